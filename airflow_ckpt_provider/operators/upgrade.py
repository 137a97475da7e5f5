"""The steps of an upgrade that change nothing: begin, plan, keep, report; see :mod:`~airflow_ckpt_provider.task_groups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.manifest import checked_name
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.fields import required, text
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.sensors.stream_health import mark_baseline, stream_baseline
from airflow_ckpt_provider.upgrade.fence import begin
from airflow_ckpt_provider.upgrade.outcome import HALF_WAY, KEPT, UNTOUCHED, downtime_of, outcome_of
from airflow_ckpt_provider.upgrade.page import page_of
from airflow_ckpt_provider.upgrade.record import Event, end_upgrade, newest_upgrade, note, upgrade_of
from airflow_ckpt_provider.upgrade.rehearsal.report import parse_report
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.upgrade.record import Upgrade

_NO_SINK = "sink: what the new code has written cannot be taken out of it on the way back"


class UpgradeOperator(BaseOperator):
    """Base of the steps of an upgrade: the places, and the record of the upgrade.

    :param checkpoint: URI of the checkpoint. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param repository: URI of the repository that keeps the backups and the record of the upgrade. (templated)
    :param repository_conn_id: Airflow connection to reach it; ``None`` likewise. (templated)
    :param name: name of the stream in the repository; ``None``: the last segment of the checkpoint. (templated)
    :param driver_logs: where the driver says how it goes, as :func:`~airflow_ckpt_provider.sensors.stream_health.stream_baseline`
        takes it: ``progress_log``, ``error_log``, ``progress_log_conn_id``; what they say by now is no fault of what is started
        next. (templated)
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "checkpoint_conn_id",
        "repository",
        "repository_conn_id",
        "name",
        "driver_logs",
    )
    ui_color = "#dae8fc"

    def __init__(
        self,
        *,
        checkpoint: str,
        repository: str,
        checkpoint_conn_id: str | None = None,
        repository_conn_id: str | None = None,
        name: str | None = None,
        driver_logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.repository: str | None = repository
        self.checkpoint_conn_id = checkpoint_conn_id
        self.repository_conn_id = repository_conn_id
        self.name = name
        self.driver_logs = driver_logs

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint.at(open_place(required(self.checkpoint, "checkpoint"), text(self.checkpoint_conn_id)))

    def _kept(self) -> Repository:
        return Repository.open_or_create(
            open_place(required(self.repository, "repository"), text(self.repository_conn_id))
        )

    def _name(self, checkpoint: Checkpoint) -> str:
        return checked_name(text(self.name) or checkpoint.location.name)

    def _baseline(self, upgrade: Upgrade, batch_id: int | None, *, anew: bool = False) -> dict[str, Any]:
        """The pace that was measured before the upgrade, for the batches that come next."""
        measured: dict[str, Any] = dict(upgrade.fact(Event.BEGUN, "baseline"))
        measured["batch_id"] = -1 if anew or batch_id is None else batch_id
        if anew:
            # Of a new checkpoint every batch is a new one, under an id that Spark makes.
            measured["query_id"] = None
        return mark_baseline(measured, **(self.driver_logs or {}))

    def _upgrade(self, repository: Repository, checkpoint: Checkpoint, context: Context) -> Upgrade:
        return upgrade_of(repository, self._name(checkpoint), upgrade_id(context))

    def _sibling(self, task_id: str) -> str:
        """The id of a task of the same group."""
        return f"{self.task_id.rpartition('.')[0]}.{task_id}".lstrip(".")


def upgrade_id(context: Context) -> str:
    """Who upgrades: the run, the same for all tasks and attempts of it."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}"


class UpgradeBeginOperator(UpgradeOperator):
    """Begin an upgrade: take the stream for this run, and measure its pace.

    Fails, without retries, where another run upgrades the stream, or its checkpoint is sealed. The result: ``baseline`` (what
    :func:`~airflow_ckpt_provider.sensors.stream_health.stream_baseline` measures), ``upgrade_id``, ``name``.

    :param mode: how, for the record. (templated)
    :param version: what is deployed, in words, for the record and the plan. (templated)
    :param sink: what the stream writes to; ``None``: not known, which is told. (templated)
    :param skipped: parts of the upgrade that are left out, as ``what: why it matters``.
    """

    template_fields: Sequence[str] = (*UpgradeOperator.template_fields, "mode", "version", "sink")

    def __init__(
        self,
        *,
        mode: str,
        version: str | None = None,
        sink: str | None = None,
        skipped: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        self.version = version
        self.sink = sink
        self.skipped = tuple(skipped)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the baseline."""
        with no_retry_when_refused():
            checkpoint, repository = self._checkpoint(), self._kept()
            name, run = self._name(checkpoint), upgrade_id(context)
            baseline = stream_baseline(self.checkpoint, text(self.checkpoint_conn_id), **(self.driver_logs or {}))
            about = {"mode": self.mode, "version": text(self.version) or "", "baseline": baseline}
            begun = begin(checkpoint, repository, name, run, **about)
        skipped = [*self.skipped, *([] if text(self.sink) else [_NO_SINK])]
        self.log.info("%s is upgraded by %s; what is left out: %s", name, run, "; ".join(skipped) or "nothing")
        return {
            "upgrade_id": run,
            "name": name,
            "mode": self.mode,
            "version": begun.fact(Event.BEGUN, "version"),
            "skipped": skipped,
            "baseline": begun.fact(Event.BEGUN, "baseline"),
        }


class UpgradePlanOperator(UpgradeOperator):
    """Put everything that is known before the stream is stopped on one page, for the approval.

    The result: ``markdown``, ``verdict`` and ``rehearsal`` (its report, or ``None``). Fails, without retries, where the
    rehearsal's report says anything else than ``SAFE``, unless that is accepted.

    :param rehearsal_report: URI of the report that ``jobs/rehearse.py`` wrote; ``None``: there is none. (templated)
    :param rehearsal_conn_id: Airflow connection to reach it. (templated)
    :param accept: verdict of the rehearsal that is accepted beside ``SAFE``: ``"UNKNOWN"`` where other rows are the purpose of
        the upgrade, and the person who approves looks at them. (templated)
    :param steps: what the tasks after the approval do, in words.
    """

    template_fields: Sequence[str] = (
        *UpgradeOperator.template_fields,
        "rehearsal_report",
        "rehearsal_conn_id",
        "accept",
    )

    def __init__(
        self,
        *,
        rehearsal_report: str | None = None,
        rehearsal_conn_id: str | None = None,
        accept: str | None = None,
        steps: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rehearsal_report = rehearsal_report
        self.rehearsal_conn_id = rehearsal_conn_id
        self.accept = accept
        self.steps = tuple(steps)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the page."""
        with no_retry_when_refused():
            rehearsal = self._rehearsal()
            found = [self._pulled(context, task_id) for task_id in ("preflight", "compatible")]
            known = [str(result["markdown"]) for result in found if result.get("markdown")]
            page = page_of(self._pulled(context, "begin"), known, rehearsal, self.steps)
            self.log.info("\n%s", page)
            verdict = str(rehearsal["verdict"]) if rehearsal else Verdict.UNKNOWN.value
            if rehearsal and verdict not in (Verdict.SAFE.value, text(self.accept)):
                context["ti"].xcom_push(key="markdown", value=page)
                raise RefusedError(
                    f"the rehearsal says {verdict}: nothing was stopped",
                    hint="its report is in the log and in the XCom `markdown`; accept_rehearsal accepts a verdict",
                )
        return {"markdown": page, "verdict": verdict, "rehearsal": rehearsal}

    def _pulled(self, context: Context, task_id: str) -> dict[str, Any]:
        """What a task of the group returned; nothing where it is left out."""
        found = context["ti"].xcom_pull(task_ids=self._sibling(task_id), key="return_value")
        return found if isinstance(found, dict) else {}

    def _rehearsal(self) -> dict[str, Any] | None:
        uri = text(self.rehearsal_report)
        if uri is None:
            return None
        directory, _, name = uri.rpartition("/")
        try:
            data = open_place(directory or ".", text(self.rehearsal_conn_id)).read(name)
        except FileNotFoundError as e:
            raise RefusedError(
                f"{uri} does not exist", hint="the rehearsal has to write it: `--output`; see how-to rehearse"
            ) from e
        return parse_report(data, path=uri)


class UpgradeKeepOperator(UpgradeOperator):
    """The new code is well: the upgrade cannot be taken back by this run any more.

    The result: ``downtime`` (seconds from the last commit of the old code to the first of the new), ``backup_id`` (of the drained
    checkpoint).
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the downtime."""
        with no_retry_when_refused():
            checkpoint, repository = self._checkpoint(), self._kept()
            upgrade = self._upgrade(repository, checkpoint, context)
            downtime = downtime_of(upgrade, checkpoint)
            upgrade = note(repository, upgrade, Event.KEPT, downtime=downtime)
        self.log.info("The upgrade is kept; the stream stood still for %s s", upgrade.fact(Event.KEPT, "downtime"))
        return {
            "downtime": upgrade.fact(Event.KEPT, "downtime"),
            "backup_id": upgrade.fact(Event.RELEASED, "backup_id"),
        }


class UpgradeReportOperator(UpgradeOperator):
    """Say how the upgrade ended, and leave the stream to the next one. Runs whatever happened before.

    Fails where the upgrade was taken back, stands half-way, or a task has failed before anything was changed: the run is then
    a failed one. A half-way upgrade keeps the stream, so that the run can be cleared and gone on with. The result: ``kind``,
    ``message``, ``commands``, ``downtime``, ``failed`` (ids of tasks), ``markdown``; it is there as the XCom ``report`` when the
    task fails.

    :param reason: why the stream was upgraded, for the audit record. (templated)
    """

    template_fields: Sequence[str] = (*UpgradeOperator.template_fields, "reason")

    def __init__(self, *, reason: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("trigger_rule", "all_done")
        super().__init__(**kwargs)
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; fail where the new code does not run because of a failure."""
        failed = self._failed(context)
        with no_retry_when_refused():
            checkpoint, repository = self._checkpoint(), self._kept()
            name, run = self._name(checkpoint), upgrade_id(context)
            found = newest_upgrade(repository, name)
            if found is None or found.upgrade_id != run:
                raise RefusedError(
                    f"this run has not begun an upgrade of {name}; tasks that failed: {', '.join(failed) or 'none'}",
                    hint="nothing was changed; see the log of the task `begin`",
                )
            outcome = outcome_of(found, checkpoint)
            if outcome.kind != HALF_WAY:
                facts = {"checkpoint": checkpoint.location.uri, "failed": failed, "outcome": outcome.to_json()}
                end_upgrade(repository, found, kind=outcome.kind, made_by=run, reason=text(self.reason) or "", **facts)
        said = f"\n\nTasks that failed: {', '.join(failed)}." if failed else ""
        report = {**outcome.to_json(), "failed": failed, "markdown": f"{outcome.to_markdown()}{said}\n"}
        self.log.info("\n%s", report["markdown"])
        if outcome.kind == KEPT or (outcome.kind == UNTOUCHED and not failed):
            return report
        context["ti"].xcom_push(key="report", value=report)
        raise AirflowFailException(report["markdown"])

    def _failed(self, context: Context) -> list[str]:
        ti = context["ti"]
        prefix = self._sibling("")
        states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
        return sorted(
            t.removeprefix(prefix) for t, state in states.items() if state == "failed" and t.startswith(prefix)
        )
