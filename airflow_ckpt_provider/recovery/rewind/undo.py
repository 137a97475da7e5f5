"""Taking a rewind back: the checkpoint becomes, file by file, what it was before, and the sink too.

Only as long as nothing was written since: a stream that was started again has made a history of its own. A rewind that was killed
half-way can be taken back as well.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import WORKERS
from airflow_ckpt_provider.change.fail_closed_order import delete_files
from airflow_ckpt_provider.change.plan_seal import raise_above, seal_for_plan
from airflow_ckpt_provider.change.sealing import remove_seal, sealed_by_another
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import expect_files, inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import NoSuchBackupError, RefusedError
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import read_plan
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget, committed_by, roll_back_table
from airflow_ckpt_provider.sinks.sink import Sink

log = logging.getLogger(__name__)

_SUFFIX = "-undo"


def undo_of(plan_id: str) -> str:
    """Id of the undo of a plan, by which a second run finds the first one's seal and commit."""
    return plan_id + _SUFFIX


def taken_back_by(plan_id: str) -> str:
    """Id of the plan that an undo takes back; any other id is returned as it is."""
    return plan_id.removesuffix(_SUFFIX)


@dataclass(frozen=True, slots=True)
class UndoOutcome:
    """A rewind that was taken back.

    :param plan_id: the plan that was taken back.
    :param checkpoint: URI of the checkpoint.
    :param put_back: files of the checkpoint that were put back.
    :param deleted: files that the rewind had written and that went.
    :param table_version: the commit that rolled the table forward, or ``None``.
    :param seconds: how long it took.
    :param already_done: it had been taken back before.
    """

    plan_id: str
    checkpoint: str
    put_back: int
    deleted: int
    table_version: int | None
    seconds: float
    already_done: bool

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


def undo_rewind(
    checkpoint: Checkpoint,
    repository: Repository,
    *,
    plan_id: str | None = None,
    sink: Sink | None = None,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> UndoOutcome:
    """Take a rewind back.

    :param checkpoint: the checkpoint.
    :param repository: the one that the rewind was carried out with.
    :param plan_id: the rewind; by default the newest one of this checkpoint.
    :param sink: the sink, where the rewind rolled one back.
    :param made_by: the run or user that takes it back.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :raises NoSuchBackupError: there was no such rewind.
    :raises RefusedError: something was written since; nothing was changed.
    :raises SealedError: something else has sealed the checkpoint.
    :raises StorageError: reading or writing failed; the checkpoint stays sealed, and the same command again finishes.
    """
    began = time.monotonic()
    location = checkpoint.location
    sink = sink or Sink()
    progress = checkpoint.progress()
    half_done = taken_back_by(progress.seal.plan_id) if progress.seal else None
    plan = _plan(repository, location.uri, plan_id or half_done)
    if progress.seal and half_done != plan.plan_id:
        raise sealed_by_another(progress.uri, progress.seal)
    records = [r for r in repository.records() if taken_back_by(str(r.get("plan_id"))) == plan.plan_id]
    if half_done is None and any(record["kind"] == "undo" for record in records):
        return UndoOutcome(plan.plan_id, location.uri, 0, 0, None, time.monotonic() - began, already_done=True)
    aside = SetAside(repository, plan.name, plan.plan_id, "checkpoint")
    record = next((r for r in records if r["kind"] == "rewind"), None)
    after = _check_untouched(checkpoint, plan, record) if half_done is None else None
    if plan.rolls_sink_back and sink.place is None:
        raise RefusedError(
            f"rewind {plan.plan_id} rolled {plan.sink.uri} back too", hint=f"name it: --sink {plan.sink.uri}"
        )
    if plan.by_spark and sink.by_spark is None:
        raise RefusedError(
            f"rewind {plan.plan_id} rolled {plan.sink.uri} back by Spark, which has to bring it forward again too",
            hint="say how Spark is run: --spark-submit 'spark-submit --packages io.delta:…', or spark_conn_id of the operator",
        )
    mark = progress.seal
    try:
        rolled_back = _rolled_back_in(plan, record, sink)
        mark = seal_for_plan(
            location,
            plan_id=undo_of(plan.plan_id),
            reason=f"undo of rewind {plan.plan_id}",
            made_by=made_by,
            fingerprint=after,
            own=(plan.plan_id,),
        )
        mark = raise_above(location, mark, plan.before, made_by=made_by)
        table_version = _sink_forward(plan, sink, repository, rolled_back)
    except RefusedError:
        # The table comes first, so nothing was changed. A rewind that was not ended stays as sealed as it was.
        if mark and mark.plan_id == undo_of(plan.plan_id):
            remove_seal(location, mark)
        raise
    put_back = sorted(aside.sizes or {})
    extra = [path for path in inspect_target(location).visible if path not in plan.before]
    delete_files(location, extra, workers=workers)
    aside.put_back(location, put_back, workers=workers)
    what = f"what it was before rewind {plan.plan_id}"
    expect_files(inspect_target(location), plan.before.items(), plan_id=mark.plan_id, what=what)
    facts = {"made_by": made_by, "reason": reason, "checkpoint": location.uri, "table_version": table_version}
    repository.record(undo_of(plan.plan_id), {"kind": "undo", "of": plan.plan_id, **facts})
    remove_seal(location, mark)
    log.info("%s is what it was before rewind %s; seal lifted", location, plan.plan_id)
    return UndoOutcome(
        plan_id=plan.plan_id,
        checkpoint=location.uri,
        put_back=len(put_back),
        deleted=len(extra),
        table_version=table_version,
        seconds=time.monotonic() - began,
        already_done=False,
    )


def _plan(repository: Repository, uri: str, plan_id: str | None) -> RewindPlan:
    if plan_id is None:
        rewinds = (r for r in repository.records() if r.get("kind") == "rewind" and r.get("checkpoint") == uri)
        plan_id = next((str(record["plan_id"]) for record in rewinds), None)
    plan = read_plan(repository, plan_id) if plan_id else None
    if plan is None:
        what = f"no rewind {plan_id}" if plan_id else f"no rewind of {uri}"
        raise NoSuchBackupError(
            f"{repository.location} knows {what}",
            hint="name the repository that the rewind was carried out with (--repository)",
        )
    return plan


def _check_untouched(checkpoint: Checkpoint, plan: RewindPlan, record: dict[str, Any] | None) -> str:
    """See that the rewind was carried out and the checkpoint not written to since; return its fingerprint."""
    now = inspect_target(checkpoint.location)
    if record is None:
        if now.fingerprint == plan.fingerprint:
            raise RefusedError(
                f"rewind {plan.plan_id} changed nothing: it was refused or never carried out",
                hint="there is nothing to undo",
            )
        raise RefusedError(
            f"rewind {plan.plan_id} has no audit record and the checkpoint carries no seal of it",
            hint="somebody lifted its seal half-way: restore the safety copy by hand from the repository's set-aside/ directory",
        )
    if now.fingerprint != record["after"]:
        raise RefusedError(
            f"{checkpoint.location} was written to since rewind {plan.plan_id}: the stream went on",
            hint="rewind again instead, to a batch of the new history",
        )
    return now.fingerprint


def _rolled_back_in(plan: RewindPlan, record: dict[str, Any] | None, sink: Sink) -> int | None:
    """The table version in which the rewind rolled a table back, which still has to be its newest; ``None`` without one.

    :raises RefusedError: somebody wrote into the table since: bringing it forward would take those rows away.
    """
    if not plan.rolls_sink_back or plan.sink.kind != "delta" or sink.place is None:
        return None
    done = record["table_version"] if record else committed_by(sink.place, plan.plan_id)
    newest = read_table_history(sink.place).newest
    if done is not None and newest != done and committed_by(sink.place, undo_of(plan.plan_id)) is None:
        raise RefusedError(
            f"{sink.place} was written to since rewind {plan.plan_id}: it is at version {newest}, the rollback was {done}",
            hint="rewind again instead"
            if record
            else "run the same rewind again, which ends it and keeps what was written",
        )
    return int(done) if done is not None else None


def _sink_forward(plan: RewindPlan, sink: Sink, repository: Repository, rolled_back: int | None) -> int | None:
    rollback = plan.sink.rollback
    if not plan.rolls_sink_back or rollback is None or sink.place is None:
        return None
    if rollback.to_version is None:
        aside = SetAside(repository, plan.name, plan.plan_id, "sink")
        # Data first, and the log upwards: a reader sees a whole number of batches at every moment.
        for path in reversed(rollback.paths):
            if aside.sizes is not None:
                aside.put_back(sink.place, [path], workers=1)
        return None
    if rolled_back is None or rollback.from_version is None:
        return None  # killed before the table was rolled back
    target = TableTarget(
        table=sink.place,
        version=rollback.from_version,
        app_id=plan.app_id,
        batch_id=plan.sink.remembered if plan.sink.remembered is not None else plan.newest,
        plan_id=undo_of(plan.plan_id),
        storage_options=dict(sink.storage_options),
    )
    return roll_back_table(target, expected=rolled_back, by_spark=sink.by_spark if plan.by_spark else None)
