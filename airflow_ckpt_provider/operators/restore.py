"""Restore a backup: plan it, or carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.backup.repository import LATEST, Repository
from airflow_ckpt_provider.backup.transfer import WORKERS
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.fields import flag, one_of, required, text, whole_number
from airflow_ckpt_provider.operators.progress_log import ProgressLog, size
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import has_been_tried, made_by
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.plan import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.sinks.sink import Sink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
    from airflow_ckpt_provider.storage.location import Location

PLAN, APPLY = "plan", "apply"


class CheckpointRestoreOperator(BaseOperator):
    """Restore a backup into an empty place, or in place of what is there. Plans only, unless ``mode="apply"``.

    The plan is shown in the log and is the task's result: ``plan`` (JSON), ``markdown`` (for an approval form),
    ``outcome`` (``None`` when only planned), as a dictionary and key by key.

    While a restore is under way the target is sealed, so that no Spark starts from half of it. A retry goes on where the
    attempt before was stopped. A retry, or a cleared task, that had finished finds its audit record and changes nothing:
    the stream may have gone on since.

    .. seealso:: :doc:`/howto/restore`

    :param repository: URI of the repository. (templated)
    :param target: URI of the place to restore to. (templated)
    :param repository_conn_id: Airflow connection to reach the repository; ``None``: the environment's own
        credentials. (templated)
    :param target_conn_id: Airflow connection to reach the target; ``None`` likewise. (templated)
    :param backup_id: id of the backup, or ``"latest"``. Where a plan is applied later, give the id that the plan named:
        the latest may be another one by then. (templated)
    :param name: name of the stream; needed for ``latest`` where the repository holds several. (templated)
    :param batch: batch to go back to, one of the backup's restorable ones; ``None``: its newest. (templated)
    :param mode: ``"plan"`` changes nothing, ``"apply"`` restores. (templated)
    :param replace: replace the checkpoint that is at the target; it is backed up, or set aside, before. (templated)
    :param seal_running: stop a stream that still writes to the target by sealing it. (templated)
    :param fingerprint: fingerprint of the plan that was shown (``plan.output["plan"]["fingerprint"]``): apply is refused
        if backup or target are others now. ``None``: not compared. (templated)
    :param reason: why, for the audit record. (templated)
    :param target_uri: the target as Spark names it, where that cannot be derived; only for backups that hold absolute
        paths. (templated)
    :param sink: what the query writes to (directory of a Delta table or a file sink, or ``foreachBatch``, ``foreach``,
        ``kafka``): its verdict goes into the plan. ``None``: not looked at. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log. (templated)
    :param accept_sink: restore though the sink says that it will skip or double rows. (templated)
    :param quiet_for: seconds for which nobody may write to the target that is to be replaced.
    :param workers: files copied at the same time.
    """

    template_fields: Sequence[str] = (
        "repository",
        "target",
        "repository_conn_id",
        "target_conn_id",
        "backup_id",
        "name",
        "batch",
        "mode",
        "replace",
        "seal_running",
        "fingerprint",
        "reason",
        "target_uri",
        "sink",
        "sink_conn_id",
        "accept_sink",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"reason": "md"}
    ui_color = "#ffe6cc"

    def __init__(
        self,
        *,
        repository: str,
        target: str,
        repository_conn_id: str | None = None,
        target_conn_id: str | None = None,
        backup_id: str = LATEST,
        name: str | None = None,
        batch: int | str | None = None,
        mode: Literal["plan", "apply"] | str = PLAN,
        replace: bool | str = False,
        seal_running: bool | str = False,
        fingerprint: str | None = None,
        reason: str | None = None,
        target_uri: str | None = None,
        sink: str | None = None,
        sink_conn_id: str | None = None,
        accept_sink: bool | str = False,
        quiet_for: float = 5.0,
        workers: int = WORKERS,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.repository = repository
        self.target = target
        self.repository_conn_id = repository_conn_id
        self.target_conn_id = target_conn_id
        self.backup_id = backup_id
        self.name = name
        self.batch = batch
        self.mode = mode
        self.replace = replace
        self.seal_running = seal_running
        self.fingerprint = fingerprint
        self.reason = reason
        self.target_uri = target_uri
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.accept_sink = accept_sink
        self.quiet_for = quiet_for
        self.workers = workers

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        with no_retry_when_refused():
            mode = one_of(self.mode, "mode", (PLAN, APPLY))
            repository = Repository.open(
                open_place(required(self.repository, "repository"), text(self.repository_conn_id))
            )
            target = open_place(required(self.target, "target"), text(self.target_conn_id))
            if mode == APPLY and (done := self._done_before(repository, target, context)):
                return done
            plan = self._plan(repository, target)
            markdown = plan.to_markdown()
            self.log.info("\n%s", markdown)
            result: dict[str, Any] = {"mode": mode, "plan": plan.to_json(), "markdown": markdown, "outcome": None}
            if mode == PLAN:
                self.log.info("Nothing was changed: this is a plan. Run with mode=apply to carry it out.")
                return result
            self._check_fingerprint(plan)
            outcome = apply_restore(
                plan,
                made_by=made_by(context),
                reason=text(self.reason) or "",
                workers=self.workers,
                on_progress=ProgressLog(self.log, "Restored"),
                accept_sink=flag(self.accept_sink, "accept_sink"),
            )
        self.log.info(
            "%s holds batch %d of backup %s: %d files, %s, in %.1f s. The stream goes on with batch %d.",
            target,
            outcome.batch_id,
            outcome.backup_id,
            outcome.files,
            size(outcome.bytes),
            outcome.seconds,
            outcome.batch_id + 1,
        )
        if outcome.kept:
            self.log.info("What was there before is kept: %s", outcome.kept)
        return {**result, "outcome": outcome.to_json()}

    def _plan(self, repository: Repository, target: Location) -> RestorePlan:
        manifest = repository.manifest(required(self.backup_id, "backup_id"), name=text(self.name))
        batch = whole_number(self.batch, "batch")
        sink = Sink.named(text(self.sink), lambda uri: open_place(uri, text(self.sink_conn_id)))
        return plan_restore(
            repository,
            manifest,
            target,
            batch=batch,
            replace=flag(self.replace, "replace"),
            seal_running=flag(self.seal_running, "seal_running"),
            quiet_for=self.quiet_for,
            target_uri=text(self.target_uri),
            sink=sink_says(sink, manifest, target, batch=batch, repository=repository),
        )

    def _check_fingerprint(self, plan: RestorePlan) -> None:
        """Refuse where the plan is not the one that was shown.

        One that goes on with work under its own seal is let through: it has changed the target itself. So is one that may
        stop a running stream: its target moves all the time.
        """
        shown = text(self.fingerprint)
        if shown in (None, plan.fingerprint) or plan.already_done or plan.seal_running or plan.target.seal:
            return
        raise RefusedError(
            f"the plan that was shown ({shown}) is not the one that would be carried out now ({plan.fingerprint}): "
            f"{plan.target.location} has changed since, or the backup is another one; nothing was changed",
            hint="look at a new plan, and apply that",
        )

    def _done_before(self, repository: Repository, target: Location, context: Context) -> dict[str, Any] | None:
        """Find a restore that an attempt before this one carried to its end.

        The record is written before the seal is lifted: a target still sealed by its plan is not finished yet.
        """
        record = repository.audit(made_by(context)) if has_been_tried(context) else None
        if record is None or record["plan"]["target"] != target.uri:
            return None
        seal = inspect_target(target).seal
        if seal is not None and seal.plan_id == record["plan_id"]:
            return None
        plan: dict[str, Any] = record["plan"]
        self.log.info(
            "An attempt before this one restored batch %d of backup %s to %s at %s (plan %s): nothing is changed. "
            "To restore it once more start a new run.",
            plan["batch_id"],
            plan["backup_id"],
            target,
            record["at"],
            record["plan_id"],
        )
        outcome = {key: plan[key] for key in ("plan_id", "backup_id", "target", "batch_id", "files", "bytes")}
        return {
            "mode": APPLY,
            "plan": plan,
            "markdown": "",
            "outcome": {
                **outcome,
                "seconds": 0.0,
                "kept": record["kept"],
                "unchanged": record.get("unchanged", 0),
                "already_done": True,
            },
        }
