"""The steps of an upgrade that change nothing: begin, plan, go, keep, report; see :mod:`~airflow_ckpt_provider.task_groups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.fields import mapping_or_text, required, text
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.renamed import renamed
from airflow_ckpt_provider.operators.upgrade_operator import (
    UpgradeOperator,
    UpgradeSinkOperator,
    task_part,
    upgrade_id,
)
from airflow_ckpt_provider.sensors.stream_health import stream_baseline
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.upgrade.way_back import DryRun


class UpgradeBeginOperator(UpgradeSinkOperator):
    """Begin an upgrade: judge its way back, take the stream for this run, and measure its pace.

    Fails, without retries, where the way back would fail for a reason that nobody accepted, another run upgrades the stream, or
    its checkpoint is sealed. The result: ``baseline`` (what
    :func:`~airflow_ckpt_provider.sensors.stream_health.stream_baseline` measures), ``upgrade_id``, ``name``, ``way_back`` (the
    dry run, and as ``markdown``), ``accepted``.

    .. code-block:: python

        UpgradeBeginOperator(
            task_id="begin",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            sink="s3://lake/tables/orders",
            mode="savepoint",
            version="2.7",
        )

    :param mode: how, for the record. (templated)
    :param version: what is deployed, in words, for the record and the plan. (templated)
    :param skipped: parts of the upgrade that are left out, as ``what: why it matters``.
    """

    template_fields: Sequence[str] = (*UpgradeSinkOperator.template_fields, "mode", "version")

    def __init__(
        self,
        *,
        mode: str,
        version: str | None = None,
        skipped: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        self.version = version
        self.skipped = tuple(skipped)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the baseline and the dry run."""
        from airflow_ckpt_provider.upgrade.record import Event
        from airflow_ckpt_provider.upgrade.together import begin_all

        with no_retry_when_refused():
            run, steps = upgrade_id(context), self._steps()
            members, ways, facts = [], {}, {}
            for name, step in steps.items():
                with self._about(name):
                    member = step._member
                    way_back = ways[member.name] = step._dry_run(member.checkpoint)
                    facts[member.name] = step._facts(way_back)
                members.append(member)
            begun = begin_all(members, run, facts)
        self.log.info(
            "%s: upgraded by %s; what is left out: %s",
            ", ".join(member.name for member in members),
            run,
            "; ".join(self.skipped) or "nothing",
        )
        results = {
            name: {
                "name": member.name,
                "version": upgrade.fact(Event.BEGUN, "version"),
                "baseline": upgrade.fact(Event.BEGUN, "baseline"),
                "way_back": {**ways[member.name].to_json(), "markdown": ways[member.name].to_markdown()},
                "accepted": list(upgrade.accepted),
            }
            for name, member, upgrade in zip(steps, members, begun, strict=True)
        }
        return self._result(results, upgrade_id=run, mode=self.mode, skipped=list(self.skipped))

    def _facts(self, way_back: DryRun) -> dict[str, Any]:
        """What the record keeps of the beginning."""
        accepted = self._accepted()
        way_back.check(accepted)
        place = required(self.checkpoint, "checkpoint")
        baseline = stream_baseline(place, text(self.checkpoint_conn_id), **self._driver_logs())
        about = {"mode": self.mode, "version": text(self.version) or "", "baseline": baseline}
        return about | {"accepted": list(accepted), "way_back": way_back.to_json()}


class UpgradeGoOperator(UpgradeSinkOperator):
    """Judge the way back a second time, right before the stream is stopped; note that it may be stopped from here on.

    What the record of the upgrade has as accepted counts, and only for the obstacles that the plan showed. Fails, without
    retries, where there is another one. The result: ``way_back`` (the dry run).

    .. code-block:: python

        UpgradeGoOperator(
            task_id="go",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            sink="s3://lake/tables/orders",
        )
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the dry run."""
        from airflow_ckpt_provider.upgrade.record import Event, note

        results = {}
        with no_retry_when_refused():
            steps, members, upgrades = self._members(context)
            for (name, step), member, upgrade in zip(steps.items(), members, upgrades, strict=True):
                with self._about(name):
                    way_back = step._dry_run(member.checkpoint)
                    way_back.check(upgrade.accepted, approved=upgrade.obstacles)
                results[name] = {"way_back": way_back.to_json()}
            # Written, not only read: a repository that takes no writes any more is found before the stop.
            for member, upgrade, result in zip(members, upgrades, results.values(), strict=True):
                note(member.repository, upgrade, Event.STOPPING, **result)
        return self._result(results)


class UpgradePlanOperator(UpgradeOperator):
    """Put everything that is known before the stream is stopped on one page, for the approval.

    The result: ``markdown``, ``verdict`` and ``rehearsal`` (its report, or ``None``). Fails, without retries, where the
    rehearsal's report says anything else than ``SAFE``, unless that is accepted.

    .. code-block:: python

        UpgradePlanOperator(
            task_id="plan",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            steps=["stop the stream", "deploy 2.7", "start it"],
        )

    :param rehearsal_report: URI of the report that ``jobs/rehearse.py`` wrote; of several streams a dictionary with their names;
        ``None``: there is none. (templated)
    :param rehearsal_conn_id: Airflow connection to reach it. (templated)
    :param accept_rehearsal: verdict of the rehearsal that is accepted beside ``SAFE``: ``"UNKNOWN"`` where other rows are the
        purpose of the upgrade, and the person who approves reads them. (templated)
    :param steps: what the tasks after the approval do, in words.
    """

    template_fields: Sequence[str] = (
        *UpgradeOperator.template_fields,
        "rehearsal_report",
        "rehearsal_conn_id",
        "accept_rehearsal",
    )

    def __init__(
        self,
        *,
        rehearsal_report: str | Mapping[str, str] | None = None,
        rehearsal_conn_id: str | None = None,
        accept_rehearsal: str | None = None,
        steps: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        accept_rehearsal = renamed(kwargs, old="accept", new="accept_rehearsal", value=accept_rehearsal, default=None)
        super().__init__(**kwargs)
        self.rehearsal_report = rehearsal_report
        #: Whether one was given: a template of it that renders to nothing is no word that there is none.
        self.is_rehearsed = rehearsal_report is not None
        self.rehearsal_conn_id = rehearsal_conn_id
        self.accept_rehearsal = accept_rehearsal
        self.steps = tuple(steps)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the page."""
        from airflow_ckpt_provider.upgrade.page import page_of, then

        pages, rehearsals = [], {}
        with no_retry_when_refused():
            begun = self._pulled(context, "begin")
            for name in self._steps():
                rehearsals[name] = self._rehearsal(name)
                found = [self._pulled(context, task_id, name) for task_id in ("preflight", "compatible")]
                known = [str(result["markdown"]) for result in found if result.get("markdown")]
                of_stream = {**begun, **(begun.get("streams") or {}).get(name, {})}
                pages.append(page_of(of_stream, known, rehearsals[name], ()))
            page = "\n\n".join([*pages, then(self.steps)])
            self.log.info("\n%s", page)
            verdicts = {n: str(r["verdict"]) if r else Verdict.UNKNOWN.value for n, r in rehearsals.items()}
            wrong = {
                name: verdicts[name]
                for name, rehearsal in rehearsals.items()
                if rehearsal and verdicts[name] not in (Verdict.SAFE.value, text(self.accept_rehearsal))
            }
            if wrong:
                context["ti"].xcom_push(key="markdown", value=page)
                said = ", ".join(f"{verdict}{f' of {name}' if name else ''}" for name, verdict in wrong.items())
                raise RefusedError(
                    f"the rehearsal says {said}: nothing was stopped",
                    hint="its report is in the log and in the XCom `markdown`; accept_rehearsal accepts a verdict",
                )
        results = {name: {"verdict": verdicts[name], "rehearsal": rehearsals[name]} for name in verdicts}
        return self._result(results, markdown=page)

    def _pulled(self, context: Context, task_id: str, name: str = "") -> dict[str, Any]:
        """What a task of the group returned; nothing where it is left out.

        :param name: the stream of which it is, where there are several.
        """
        task_id = self._sibling(f"{task_id}.{task_part(name)}" if name else task_id)
        found = context["ti"].xcom_pull(task_ids=task_id, key="return_value")
        return found if isinstance(found, dict) else {}

    def _rehearsal(self, name: str) -> dict[str, Any] | None:
        from airflow_ckpt_provider.places import open_place
        from airflow_ckpt_provider.upgrade.rehearsal.report import parse_report

        given = mapping_or_text(self.rehearsal_report, "rehearsal_report")
        uri = text(given.get(name) if isinstance(given, Mapping) else given)
        if uri is None and self.is_rehearsed and not isinstance(given, Mapping):
            raise RefusedError(
                "rehearsal_report is empty: whatever it is taken from has none",
                hint="see what the rehearsal returned; leave rehearsal_report out if nothing was rehearsed",
            )
        if uri is None:
            return None
        directory, _, file = uri.rpartition("/")
        try:
            data = open_place(directory or ".", text(self.rehearsal_conn_id)).read(file)
        except FileNotFoundError as e:
            raise RefusedError(
                f"{uri} does not exist", hint="the rehearsal has to write it: `--output`; see how-to rehearse"
            ) from e
        return parse_report(data, path=uri)


class UpgradeKeepOperator(UpgradeOperator):
    """The new code is healthy: the upgrade cannot be rolled back by this run any more.

    Fails, without retries, where the new code was never let start, the checkpoint carries a seal of this upgrade, or the way back
    has begun.

    The result: ``downtime`` (seconds from the last commit of the old code to the first of the new), ``backup_id`` (of the drained
    checkpoint).

    .. code-block:: python

        UpgradeKeepOperator(
            task_id="keep",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
        )
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the downtime."""
        from airflow_ckpt_provider.upgrade.record import Event
        from airflow_ckpt_provider.upgrade.together import keep_all

        with no_retry_when_refused():
            steps, members, upgrades = self._members(context)
            kept = keep_all(members, upgrades)
        results = {
            name: {
                "downtime": upgrade.fact(Event.KEPT, "downtime"),
                "backup_id": upgrade.fact(Event.RELEASED, "backup_id"),
            }
            for name, upgrade in zip(steps, kept, strict=True)
        }
        for upgrade in kept:
            self.log.info("%s is kept; it did not run for %s s", upgrade.name, upgrade.fact(Event.KEPT, "downtime"))
        return self._result(results)


class UpgradeReportOperator(UpgradeOperator):
    """Say how the upgrade ended, and leave the stream to the next one. Runs whatever happened before.

    Fails where the upgrade was rolled back, is unfinished, or a task has failed before anything was changed: the run is then
    a failed one. A half-way upgrade keeps the stream, so that the run can be cleared and continued with. The result: ``kind``,
    ``message``, ``commands``, ``downtime``, ``failed`` (ids of tasks), ``markdown``; it is there as the XCom ``report`` when the
    task fails.

    .. code-block:: python

        UpgradeReportOperator(
            task_id="report",
            checkpoint="s3://lake/checkpoints/orders",
            repository="s3://backups/streams",
            trigger_rule="all_done",
        )

    :param reason: why the stream was upgraded, for the audit record. (templated)
    """

    template_fields: Sequence[str] = (*UpgradeOperator.template_fields, "reason")

    def __init__(self, *, reason: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("trigger_rule", "all_done")
        super().__init__(**kwargs)
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; fail where the new code does not run because of a failure."""
        from airflow_ckpt_provider.upgrade.outcome import HALF_WAY, KEPT, TAKEN_BACK, UNTOUCHED
        from airflow_ckpt_provider.upgrade.record import newest_upgrade
        from airflow_ckpt_provider.upgrade.together import end_all

        failed = self._failed(context)
        with no_retry_when_refused():
            members, run = [step._member for step in self._steps().values()], upgrade_id(context)
            newest = {member.name: newest_upgrade(member.repository, member.name) for member in members}
            found = {name: upgrade for name, upgrade in newest.items() if upgrade and upgrade.upgrade_id == run}
            if not found:
                raise RefusedError(
                    f"this run has not begun an upgrade of {', '.join(newest)}; tasks that failed: "
                    f"{', '.join(failed) or 'none'}",
                    hint="nothing was changed; see the log of the task `begin`",
                )
            begun = [member for member in members if member.name in found]
            outcome = end_all(
                begun, [found[m.name] for m in begun], reason=text(self.reason) or "", facts={"failed": failed}
            )
        said = [f"Tasks that failed: {', '.join(failed)}."] if failed else []
        if outcome.kind in (TAKEN_BACK, HALF_WAY) and (first := self._first_undone(context)):
            said.append(f"The first task on the way forward that did not succeed: {first}.")
        if outcome.clear:
            task_id, run_id = self._sibling(outcome.clear), context["ti"].run_id
            said.append(f"To clear, with what comes after it: the task `{task_id}` of the run `{run_id}`.")
        markdown = "\n\n".join([outcome.to_markdown(), *said])
        report = {**outcome.to_json(), "failed": failed, "markdown": f"{markdown}\n"}
        self.log.info("\n%s", report["markdown"])
        if outcome.kind == KEPT or (outcome.kind == UNTOUCHED and not failed):
            return report
        context["ti"].xcom_push(key="report", value=report)
        raise AirflowFailException(report["markdown"])

    def _failed(self, context: Context) -> list[str]:
        return sorted(task_id for task_id, state in self._states(context).items() if state == "failed")

    def _first_undone(self, context: Context) -> str | None:
        """The first task between `go` and `keep` that was not successful, with its state."""
        states, dag = self._states(context), self.dag
        forward = dag.get_task(self._sibling("go")).get_flat_relative_ids(upstream=False)
        forward &= {*dag.get_task(self._sibling("keep")).get_flat_relative_ids(upstream=True), self._sibling("keep")}
        for task in dag.topological_sort():
            task_id = task.task_id.removeprefix(self._sibling(""))
            if task.task_id in forward and (state := states.get(task_id)) != "success":
                return f"{task_id} ({state or 'not run'})"
        return None
