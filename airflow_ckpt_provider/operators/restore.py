"""Restore a backup: plan it, or apply the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.operators.change_operator import APPLY, PLAN, StoppingOperator
from airflow_ckpt_provider.operators.declared import UNSET
from airflow_ckpt_provider.operators.executors import LOCAL, SPARK, ExecutorsOperator
from airflow_ckpt_provider.operators.fields import flag, required, text, whole_number
from airflow_ckpt_provider.operators.place_operators import StreamOperator
from airflow_ckpt_provider.operators.renamed import renamed
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.operators.sink_operator import SinkOperator
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.units import format_size

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
    from airflow_ckpt_provider.storage.location import Location

#: The application that restores on Spark. What it imports of this package has to be importable where its driver runs.
APPLICATION = str(Path(__file__).parents[1] / "jobs" / "restore_contents.py")


class CheckpointRestoreOperator(ExecutorsOperator, StoppingOperator, StreamOperator, SinkOperator):
    """Restore a backup into an empty place, or in place of what is there. Plans only, unless ``mode="apply"``.

    Parameters of repository, sink and change: see :class:`~.place_operators.StreamOperator` (the repository holds the backup and
    keeps what is replaced), :class:`~.sink_operator.SinkOperator` (its verdict is part of the plan) and
    :class:`~.change_operator.StoppingOperator`; of Spark, whose executors can write the files:
    :class:`~.executors.ExecutorsOperator`. This task plans in any case.

    .. code-block:: python

        plan = CheckpointRestoreOperator(
            task_id="plan",
            repository="s3://backups/streams",
            target="s3://lake/checkpoints/orders",
            name="orders",
            replace=True,
            sink="s3://lake/tables/orders",
        )

    .. seealso:: :doc:`/howto/restore`, :doc:`/howto/huge-checkpoints`

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
        *ExecutorsOperator.template_fields,
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
        from airflow_ckpt_provider.recovery.restore.apply import apply_restore
        from airflow_ckpt_provider.recovery.restore.plan import RestorePlan

        with self._refusals(context, self._target_place, self._given_repository):
            mode, engine = self._mode(), self._engine()
            repository = self._open_repository()
            target = self._target_place()
            if mode == PLAN:
                return self._shown(self._plan(repository, target, None))
            if record := self._ended_before(repository, target, context, kind=RestorePlan.kind):
                return self._carried_out(of_record(record), context)
            shown: dict[str, Any] = {}
            how = self._how(target, context)
            planned = None
            if engine != LOCAL:
                if how["stop_running"]:
                    raise RefusedError(
                        f"engine is {engine!r}, and stop_running is true: Spark stops no query",
                        hint="stop the query before, or seal its checkpoint by CheckpointSealOperator; or give engine='local'",
                    )
                planned = self._plan(repository, target, None)
                if not planned.already_done and (engine == SPARK or self._is_much(planned)):
                    return self._restore_on_spark(repository, planned, how, context)

            def plan(seal_id: str | None) -> RestorePlan:
                made = planned or self._plan(repository, target, seal_id)
                shown.update(self._shown(made))
                return made

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

    def _target_place(self) -> Location:
        from airflow_ckpt_provider.places import open_place

        return self.opened(open_place(required(self.target, "target"), text(self.target_conn_id)))

    def _is_much(self, plan: RestorePlan) -> bool:
        limits = self._limits()
        return len(plan.entries) >= limits["files"] or plan.bytes >= limits["size"]

    def _restore_on_spark(
        self, repository: Repository, plan: RestorePlan, how: Mapping[str, Any], context: Context
    ) -> dict[str, Any]:
        """Have Spark plan the same and apply it; its audit record has what came of it."""
        shown = self._shown(plan)
        accepted, by = self._accepted(), made_by(context)
        plan.check_fingerprint(how["fingerprint"])
        if not plan.continued:
            plan.check_accepted(accepted)
        self.log.info("%d files, %s: Spark restores them", len(plan.entries), format_size(plan.bytes))
        known: set[Any] = set() if plan.continued else {record.get("plan_id") for record in repository.records()}
        self._run_on_spark(APPLICATION, self._arguments(repository, plan, accepted, how))
        record = repository.audit(by)
        if record is None or record["plan_id"] in known:
            raise StorageError(
                f"Spark ended well, and {repository.location} has no audit record of the restore of {plan.checkpoint}",
                hint="see that the cluster means the same places by these addresses",
            )
        outcome = {**of_record(record)["outcome"], "seconds": None, "already_done": False}
        self.log.info(
            "%s holds batch %d of backup %s. The stream continues with batch %d.",
            plan.checkpoint,
            plan.batch_id,
            plan.manifest.backup_id,
            plan.batch_id + 1,
        )
        # The id, by which it can be undone, is that of Spark's plan.
        ids = plan.plan_id, record["plan_id"]
        made = {**shown["plan"], "plan_id": ids[1]}
        whole = {**shown, "plan": made, "markdown": shown["markdown"].replace(*ids), "outcome": outcome}
        return self._carried_out(whole, context)

    def _arguments(
        self, repository: Repository, plan: RestorePlan, accepted: Sequence[str], how: Mapping[str, Any]
    ) -> list[str]:
        """What the application is given."""
        about = {
            "--repository-id": repository.repository_id,
            "--backup": plan.manifest.backup_id,
            "--name": plan.manifest.name,
            "--batch": str(plan.batch_id),
            "--fingerprint": how["fingerprint"],
            "--progress-log": text(self.progress_log),
            "--spark-api": text(self.spark_api_url),
            "--stopped-since": (datetime.now(UTC) - timedelta(seconds=how["rest"].said.elapsed)).isoformat(),
            "--quiet-for": str(self.quiet_for),
            "--wait-at-most": str(self.wait_at_most),
            "--target-uri": text(self.target_uri),
            "--sink-answer": json.dumps(plan.sink.to_json()) if plan.sink else None,
            "--reason": how["reason"],
            "--made-by": how["made_by"],
        }
        flags = {"--replace": flag(self.replace, "replace"), "--query-is-stopped": how["rest"].query_is_stopped}
        return [
            repository.location.uri,
            required(self.target, "target"),
            "--apply",
            *(option for option, given in flags.items() if given),
            *(f"{option}={value}" for option, value in about.items() if value),
            *(f"--accept={word}" for word in accepted),
        ]

    def _plan(self, repository: Repository, target: Location, seal_id: str | None) -> RestorePlan:
        from airflow_ckpt_provider.recovery.restore.planning import plan_restore
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


def of_record(record: dict[str, Any]) -> dict[str, Any]:
    """What the attempt returned that has written an audit record."""
    plan: dict[str, Any] = record["plan"]
    outcome = {key: plan[key] for key in ("plan_id", "backup_id", "target", "batch_id", "files", "bytes")}
    kept = record["kept"] if plan["target_files"] else None
    more = {"seconds": 0.0, "kept": kept, "unchanged": record.get("unchanged", 0), "already_done": True}
    return {"mode": APPLY, "plan": plan, "markdown": "", "outcome": {**outcome, **more}}
