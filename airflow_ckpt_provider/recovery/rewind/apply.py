"""Carrying a rewind out, under the seal.

From the first change to the last the newest file in ``offsets/`` is the seal, so no Spark starts: not between the sink's rollback
and the checkpoint's, and not from a half-rewound checkpoint. The plan is kept in the repository before the seal is set;
killed anywhere, the same command again finds the seal, reads the plan, and finishes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.claims import entries_in_use
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import WORKERS, in_parallel
from airflow_ckpt_provider.backup.verify import read_whole
from airflow_ckpt_provider.change.fail_closed_order import delete_file, delete_files, newest_offsets_first, write_file
from airflow_ckpt_provider.change.plan_seal import raise_above, seal_for_plan, with_query_stopped
from airflow_ckpt_provider.change.sealing import remove_seal
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import Target, expect_files, inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import CkptError, RefusedError, StorageError
from airflow_ckpt_provider.recovery.reset.new_numbers import new_metadata
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.undo import undo_of
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget, committed_by, roll_back_table
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RewindOutcome:
    """A rewind that was carried out.

    :param plan_id: the plan; ``undo`` takes it back by this id.
    :param checkpoint: URI of the checkpoint.
    :param batch_id: the batch it stands at; the next to run is one more.
    :param deleted: files of the checkpoint that went.
    :param written: files of the checkpoint that came from a backup.
    :param table_version: the commit that rolled the table back, or ``None``.
    :param kept: where what went is kept, in the repository.
    :param seconds: how long it took.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    checkpoint: str
    batch_id: int
    deleted: int
    written: int
    table_version: int | None
    kept: str | None
    seconds: float
    already_done: bool

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


def apply_rewind(
    plan: RewindPlan,
    checkpoint: Checkpoint,
    repository: Repository,
    *,
    sink: Sink | None = None,
    accept_source_loss: bool = False,
    accept_foreign_loss: bool = False,
    quiet_for: float = 5.0,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> RewindOutcome:
    """Carry a rewind out.

    :param plan: from :func:`~airflow_ckpt_provider.recovery.rewind.planning.plan_rewind`.
    :param checkpoint: the checkpoint that it was made for.
    :param repository: keeps what goes, the plan and the audit record.
    :param sink: the sink that the plan was made for.
    :param accept_source_loss: go on though the guards say that the sources have lost data, or that the query would fail. Where
        they were not asked, or could not tell, the plan says ``UNKNOWN`` and needs no leave.
    :param accept_foreign_loss: go on though rows that others wrote into the table leave it too.
    :param quiet_for: seconds without a change after which the checkpoint counts as at rest.
    :param made_by: the run or user that rewinds.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :raises RefusedError: the checkpoint or the table is not any more what the plan was made for, somebody writes to it, or
        the plan would do what was not accepted; nothing was changed.
    :raises StorageError: reading or writing failed; the checkpoint stays sealed, and the same command again finishes.
    """
    began = time.monotonic()
    sink = sink or Sink()
    if plan.already_done:
        return _outcome(plan, began, table_version=None, kept=None)
    if not plan.continued:
        about = {"source_loss": accept_source_loss, "foreign_loss": accept_foreign_loss}
        _check_accepted(plan, spark=sink.by_spark is not None, **about)
        repository.keep_plan(plan.plan_id, plan.document())
    else:
        _check_not_undone(plan, sink)
    aside = SetAside(repository, plan.name, plan.plan_id, "checkpoint")
    mark = _seal(plan, checkpoint.location, aside, quiet_for=quiet_for, made_by=made_by)
    location = checkpoint.location
    try:
        now = inspect_target(location)
        going = {*plan.deletes, *(entry.path for entry in plan.writes), *({METADATA_FILE} if plan.new_query_id else ())}
        aside.keep(location, [file for path, file in now.visible.items() if path in going], workers=workers)
        table_version = _roll_sink_back(plan, sink, repository, workers)
    except RefusedError:
        remove_seal(location, mark)  # nothing was changed
        raise
    with entries_in_use(repository, plan.writes, what="rewind", made_by=made_by):
        delete_files(location, plan.deletes, workers=workers)
        _write(plan, repository, location, workers)
    if plan.new_query_id:
        write_file(location, METADATA_FILE, new_metadata(plan.new_query_id).encode())
    after = _check(plan, checkpoint)
    facts = {"made_by": made_by, "reason": reason, "checkpoint": plan.checkpoint, "kept": aside.place}
    result = {"table_version": table_version, "after": after.fingerprint, "plan": plan.to_json()}
    repository.record(plan.plan_id, {"kind": "rewind", **facts, **result})
    # Performed last: until now no Spark could start.
    remove_seal(location, mark)
    log.info("%s stands at batch %d; seal lifted", location, plan.batch_id)
    return _outcome(plan, began, table_version=table_version, kept=aside.place)


def _outcome(plan: RewindPlan, began: float, *, table_version: int | None, kept: str | None) -> RewindOutcome:
    return RewindOutcome(
        plan_id=plan.plan_id,
        checkpoint=plan.checkpoint,
        batch_id=plan.batch_id,
        deleted=len(plan.deletes),
        written=len(plan.writes),
        table_version=table_version,
        kept=kept,
        seconds=time.monotonic() - began,
        already_done=plan.already_done,
    )


def _check_accepted(plan: RewindPlan, *, spark: bool, source_loss: bool, foreign_loss: bool) -> None:
    """Refuse what nobody has agreed to."""
    why = "; ".join(plan.sink.reasons)
    if plan.sink.verdict is not Verdict.SAFE and plan.sink_exit is None:
        raise RefusedError(
            f"the sink says {plan.sink.verdict.value} for a start after batch {plan.batch_id}: {why}",
            hint="choose an exit: --sink-exit rollback (the sink goes back too), forward (the checkpoint goes to where the sink "
            "is) or accept (what was just said will happen)",
        )
    rollback = plan.sink.rollback
    if plan.by_spark and not spark:
        raise RefusedError(
            f"{plan.sink.uri} has the feature {plan.by_spark}, with which deltalake cannot restore it",
            hint="say how Spark is run: --spark-submit 'spark-submit --packages io.delta:…', or spark_conn_id of the operator",
        )
    if plan.by_spark and plan.app_id != plan.query_id:
        raise RefusedError(
            f"{plan.sink.uri} has the feature {plan.by_spark}, with which deltalake cannot restore it, and after a RESTORE by "
            f"Spark it still remembers the batches of txnAppId {plan.app_id}, which only the query's code can change",
            hint="rewind with --sink-exit accept, restore the table by Spark (airflow_ckpt_provider/jobs/roll_table_back.py), "
            "and give the code another txnAppId before it is started",
        )
    if plan.rolls_sink_back and rollback and rollback.foreign and not foreign_loss:
        raise RefusedError(
            f"others have written into {plan.sink.uri} since batch {plan.batch_id}: {', '.join(rollback.foreign)}; a "
            "rollback takes their rows away too",
            hint="accept that (--accept-foreign-loss), or choose another exit",
        )
    if plan.source_verdict in (Verdict.WILL_LOSE, Verdict.WILL_FAIL, Verdict.WILL_SKIP) and not source_loss:
        reasons = "; ".join(plan.sources["reasons"]) if plan.sources else ""
        raise RefusedError(
            f"the sources say {plan.source_verdict.value}: {reasons}",
            hint="go back to a later batch, or accept the loss (--accept-source-loss)",
        )


def _check_not_undone(plan: RewindPlan, sink: Sink) -> None:
    """Refuse to go on where an undo has brought the table forward again: the table would skip what is replayed."""
    of_table = plan.rolls_sink_back and plan.sink.kind == "delta"
    if of_table and sink.place and committed_by(sink.place, undo_of(plan.plan_id)) is not None:
        raise RefusedError(
            f"{sink.place} was brought forward again by an undo of rewind {plan.plan_id}, which was not ended",
            hint=f"run it again: `airflow-ckpt undo {plan.checkpoint} --plan {plan.plan_id}`",
        )


def stop_plan_and_apply(
    checkpoint: Checkpoint,
    repository: Repository,
    plan: Callable[[str | None], RewindPlan],
    *,
    sink: Sink,
    stop_running: bool = False,
    quiet_for: float = 5.0,
    made_by: str = "",
    **accepted: Any,
) -> tuple[RewindPlan, RewindOutcome]:
    """Plan a rewind and carry it out, after the query was stopped where that is allowed.

    :param plan: makes the plan, given the id under which the checkpoint was sealed to stop its query, or ``None``.
    :param stop_running: a query that still runs may be stopped, by the seal, at its batch boundary.
    :param accepted: what else :func:`apply_rewind` takes.
    """

    def work(under: str | None) -> tuple[RewindPlan, RewindOutcome]:
        made = plan(under)
        outcome = apply_rewind(
            made, checkpoint, repository, sink=sink, quiet_for=quiet_for, made_by=made_by, **accepted
        )
        return made, outcome

    return with_query_stopped(
        checkpoint.location,
        repository,
        work,
        change="rewind",
        stop_running=stop_running,
        quiet_for=quiet_for,
        made_by=made_by,
    )


def _seal(plan: RewindPlan, location: Location, aside: SetAside, *, quiet_for: float, made_by: str) -> Seal:
    mark = seal_for_plan(
        location,
        plan_id=plan.plan_id,
        reason=f"rewind to batch {plan.batch_id}",
        made_by=made_by,
        fingerprint=plan.fingerprint,
        begun=aside.sizes is not None,
        quiet_for=quiet_for,
        hint="stop the query, then make a new plan; or have the seal stop it (stop_running / --stop-running)",
    )
    return raise_above(location, mark, (entry.path for entry in plan.writes), made_by=made_by)


def _roll_sink_back(plan: RewindPlan, sink: Sink, repository: Repository, workers: int) -> int | None:
    rollback = plan.sink.rollback
    if not plan.rolls_sink_back or rollback is None:
        return None
    if sink.place is None:
        raise RefusedError(
            "the plan rolls a sink back, and none was given", hint="name it as when the plan was made: --sink"
        )
    if rollback.to_version is None or rollback.from_version is None:
        _set_sink_files_aside(plan, sink.place, repository, workers)
        return None
    target = TableTarget(
        table=sink.place,
        version=rollback.to_version,
        app_id=plan.app_id,
        batch_id=plan.batch_id,
        plan_id=plan.plan_id,
        storage_options=dict(sink.storage_options),
    )
    if plan.by_spark and sink.by_spark is None:
        raise StorageError(
            f"{sink.place} has to be rolled back by Spark (feature {plan.by_spark}), and how Spark is run was not said",
            hint="run the same rewind again with --spark-submit, or spark_conn_id of the operator",
        )
    return roll_back_table(target, expected=rollback.from_version, by_spark=sink.by_spark if plan.by_spark else None)


def _set_sink_files_aside(plan: RewindPlan, place: Location, repository: Repository, workers: int) -> None:
    aside = SetAside(repository, plan.name, plan.plan_id, "sink")
    paths = plan.sink.rollback.paths if plan.sink.rollback else ()
    if aside.sizes is None:
        there = place.walk()
        gone = [path for path in paths if path not in there]
        if gone:
            raise RefusedError(
                f"{place}/{gone[0]} is gone though the sink's log names it", hint="see who deletes files of the sink"
            )
        aside.keep(place, [there[path] for path in paths], workers=workers)
    for path in paths:  # in the plan's order: the log first, from its newest entry on
        delete_file(place, path)


def _write(plan: RewindPlan, repository: Repository, location: Location, workers: int) -> None:
    by_path = {entry.path: entry for entry in plan.writes}
    gates = [by_path.pop(path) for path in newest_offsets_first(by_path)]

    def write(entry: FileEntry) -> None:
        write_file(location, entry.path, read_whole(repository, entry, right_when="the plan was made"))

    in_parallel(write, by_path.values(), workers=workers)
    for entry in gates:
        write(entry)


def _check(plan: RewindPlan, checkpoint: Checkpoint) -> Target:
    """See that exactly what was planned is there, and that it is whole for Spark."""
    there = inspect_target(checkpoint.location)
    kept = {path: size for path, size in plan.before.items() if path not in set(plan.deletes)}
    wanted = kept | {entry.path: entry.size for entry in plan.writes}
    if plan.new_query_id:
        wanted[METADATA_FILE] = len(new_metadata(plan.new_query_id))
    expect_files(there, wanted.items(), plan_id=plan.plan_id)
    try:
        resolve_closure(checkpoint.tree(), plan.batch_id, replays_next=plan.exact_replay)
    except CkptError as e:
        raise StorageError(
            f"{checkpoint.location} does not read back as batch {plan.batch_id}: {e.message}",
            hint=f"take it back: `airflow-ckpt undo {plan.checkpoint} --plan {plan.plan_id}`",
        ) from e
    return there
