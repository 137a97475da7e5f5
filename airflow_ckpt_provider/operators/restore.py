"""Restore a backup: plan it, or carry it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.transfer import WORKERS
from airflow_ckpt_provider.operators.change_operator import APPLY, PLAN, StoppingOperator
from airflow_ckpt_provider.operators.declared import UNSET
from airflow_ckpt_provider.operators.fields import flag, required, text, whole_number
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.renamed import renamed
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.units import format_size

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
    from airflow_ckpt_provider.storage.location import Location


class CheckpointRestoreOperator(StoppingOperator, StreamOperator, SinkOperator):
    """Restore a backup into an empty place, or in place of what is there. Plans only, unless ``mode="apply"``.

    Parameters of repository, sink and change: see :class:`~.place_operators.StreamOperator` (the repository holds the backup and
    keeps what is replaced), :class:`~.sink_operator.SinkOperator` (its verdict goes into the plan) and
    :class:`~.change_operator.StoppingOperator`.

    .. seealso:: :doc:`/howto/restore`

    :param target: URI of the place to restore to. (templated)
    :param target_conn_id: Airflow connection to reach the target; ``None``: the environment's own credentials. (templated)
    :param backup_id: id of the backup, or ``"latest"``. Where a plan is applied later, give the id that the plan named:
        the latest may be another one by then. (templated)
    :param batch: batch to rewind to, one of the backup's restorable ones; ``None``: its newest. (templated)
    :param replace: replace the checkpoint that is at the target; what differs is set aside before. (templated)
    :param target_uri: the target as Spark names it, where that cannot be derived; only for backups that hold absolute
        paths. (templated)
    :param workers: files copied at the same time.
    """

    template_fields: Sequence[str] = (
        *StreamOperator.template_fields,
        *SinkOperator.template_fields,
        *StoppingOperator.template_fields,
        "target",
        "target_conn_id",
        "backup_id",
        "batch",
        "replace",
        "target_uri",
    )
    #: The checkpoint is restored to its own place.
    stream_aliases: ClassVar[Mapping[str, str]] = {"target": "checkpoint", "target_conn_id": "checkpoint_conn_id"}
    old_flags = ("accept_sink",)

    def __init__(
        self,
        *,
        target: str | None = UNSET,
        target_conn_id: str | None = None,
        backup_id: str = LATEST,
        batch: int | str | None = None,
        replace: bool | str = False,
        stop_running: bool | str = False,
        target_uri: str | None = None,
        workers: int = WORKERS,
        **kwargs: Any,
    ) -> None:
        stop_running = renamed(kwargs, old="seal_running", new="stop_running", value=stop_running, default=False)
        super().__init__(stop_running=stop_running, **kwargs)
        self.target: str | None = self.needed(target, "target")
        self.target_conn_id = target_conn_id
        self.backup_id = backup_id
        self.batch = batch
        self.replace = replace
        self.target_uri = target_uri
        self.workers = workers

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan and, where it was carried out, the outcome."""
        from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
        from airflow_ckpt_provider.operators.progress_log import ProgressLog
        from airflow_ckpt_provider.places import open_place
        from airflow_ckpt_provider.recovery.restore.apply import apply_restore
        from airflow_ckpt_provider.recovery.restore.plan import RestorePlan

        with no_retry_when_refused():
            mode = self._mode()
            repository = self._open_repository()
            target = self.opened(open_place(required(self.target, "target"), text(self.target_conn_id)))
            if mode == PLAN:
                return self._shown(self._plan(repository, target, None))
            if record := self._ended_before(repository, target, context, kind=RestorePlan.kind):
                return self._carried_out(_of_record(record), context)
            shown: dict[str, Any] = {}

            def plan(seal_id: str | None) -> RestorePlan:
                made = self._plan(repository, target, seal_id)
                shown.update(self._shown(made))
                return made

            how = self._how(target, context)
            if how["stop_running"]:
                how["fingerprint"] = None  # the query that is stopped has moved the target since the plan was shown
            _, outcome = stop_plan_and_apply(
                target,
                repository,
                plan,
                apply_restore,
                change=RestorePlan.kind,
                accept=self._accepted(),
                workers=self.workers,
                on_progress=ProgressLog(self.log, "Restored"),
                **how,
            )
        self.log.info(
            "%s holds batch %d of backup %s: %d files, %s, in %.1f s. The stream continues with batch %d.",
            target,
            outcome.batch_id,
            outcome.backup_id,
            outcome.files,
            format_size(outcome.bytes),
            outcome.seconds,
            outcome.batch_id + 1,
        )
        if outcome.kept:
            self.log.info("What was there before is kept: %s", outcome.kept)
        return self._carried_out({**shown, "outcome": outcome.to_json()}, context)

    def _plan(self, repository: Repository, target: Location, seal_id: str | None) -> RestorePlan:
        from airflow_ckpt_provider.recovery.restore.plan import plan_restore
        from airflow_ckpt_provider.recovery.restore.sink import sink_says

        manifest = repository.manifest(required(self.backup_id, "backup_id"), name=text(self.name))
        batch = whole_number(self.batch, "batch")
        return plan_restore(
            repository,
            manifest,
            target,
            batch=batch,
            replace=flag(self.replace, "replace"),
            target_uri=text(self.target_uri),
            sink=sink_says(self._sinks(), manifest, target, batch=batch, repository=repository),
            seal_id=seal_id,
        )


def _of_record(record: dict[str, Any]) -> dict[str, Any]:
    """What the attempt returned that has written an audit record."""
    plan: dict[str, Any] = record["plan"]
    outcome = {key: plan[key] for key in ("plan_id", "backup_id", "target", "batch_id", "files", "bytes")}
    kept = record["kept"] if plan["target_files"] else None
    more = {"seconds": 0.0, "kept": kept, "unchanged": record.get("unchanged", 0), "already_done": True}
    return {"mode": APPLY, "plan": plan, "markdown": "", "outcome": {**outcome, **more}}
