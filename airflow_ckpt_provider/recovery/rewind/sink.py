"""What a rewind does to the sink, and what its undo does: always under the seal, and before the first file of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.fence import Fence
from airflow_ckpt_provider.change.plan import hidden_checksum, undo_of
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.errors import CkptError, RefusedError, StorageError
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget, committed_by, roll_back_table
from airflow_ckpt_provider.sinks.iceberg_rollback import (
    IcebergTable,
    current_snapshot,
    holds_snapshot,
    set_snapshot,
    snapshot_is_set_by,
    tag_of,
)
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location


def _iceberg(plan: RewindPlan, sink: Sink) -> IcebergTable | None:
    """The Iceberg table that a rewind rolls back; ``None`` for any other sink.

    :raises RefusedError: the table was not named.
    """
    if not (plan.rolls_sink_back and plan.sink.kind == "iceberg"):
        return None
    if sink.place is None and not sink.table:
        raise RefusedError(f"rewind {plan.plan_id} rolls {plan.sink.uri} back", hint=f"name it: --sink {plan.sink.uri}")
    return IcebergTable(sink.place, sink.table, sink.storage_options)


@dataclass(frozen=True, slots=True)
class RollBack:
    """The sink goes back to the batch of the plan, where the plan says so.

    :param plan: the rewind.
    :param sink: the sink that it was made for.
    """

    plan: RewindPlan
    sink: Sink

    def check(self) -> None:
        """See that the sink can be rolled back with what was given, and that no undo has brought it forward again."""
        plan, sink = self.plan, self.sink
        if plan.by_spark and plan.app_id != plan.query_id:
            raise RefusedError(
                f"{plan.sink.uri} has the feature {plan.by_spark}, with which deltalake cannot restore it, and after a RESTORE "
                f"by Spark it still remembers the batches of txnAppId {plan.app_id}, which only the query's code can change",
                hint="rewind with --sink-policy keep, restore the table by Spark "
                "(airflow_ckpt_provider/jobs/roll_table_back.py), and give the code another txnAppId before it is started",
            )
        if plan.by_spark and sink.by_spark is None:
            raise RefusedError(
                f"{plan.sink.uri} has the feature {plan.by_spark}, with which deltalake cannot restore it",
                hint="say how Spark is run: --spark-submit 'spark-submit --packages io.delta:…', or spark_conn_id of the "
                "operator",
            )
        if not plan.continued:
            return
        table = _iceberg(plan, sink)
        undone = (
            snapshot_is_set_by(table, undo_of(plan.plan_id))
            if table
            else self._of_table and sink.place and committed_by(sink.place, undo_of(plan.plan_id)) is not None
        )
        if undone:
            raise RefusedError(
                f"{sink.name} was brought forward again by an undo of rewind {plan.plan_id}, which was not ended",
                hint=f"run it again: `airflow-ckpt undo {plan.checkpoint} --plan {plan.plan_id}`",
            )

    def run(self, repository: Repository, *, fence: Fence, workers: int) -> Mapping[str, Any]:
        """Roll the sink back; the second time it does nothing."""
        plan, sink, rollback = self.plan, self.sink, self.plan.sink.rollback
        if not plan.rolls_sink_back or rollback is None:
            return {"table_version": None}
        if (table := _iceberg(plan, sink)) and rollback.to_version is not None and rollback.from_version is not None:
            fence.check()
            done = set_snapshot(table, rollback.to_version, expected=rollback.from_version, plan_id=plan.plan_id)
            return {"table_version": done}
        if sink.place is None:
            raise RefusedError(
                "the plan rolls a sink back, and none was given", hint="name it as when the plan was made: --sink"
            )
        if rollback.to_version is None or rollback.from_version is None:
            self._remove_files(fence.guarding(sink.place), repository, workers)
            return {"table_version": None}
        target = TableTarget(
            table=sink.place,
            version=rollback.to_version,
            app_id=plan.app_id,
            batch_id=plan.batch_id,
            plan_id=plan.plan_id,
            storage_options=dict(sink.storage_options),
            older_ids=dict.fromkeys(plan.sink.memories, plan.batch_id),
        )
        fence.check()
        by_spark = sink.by_spark if plan.by_spark else None
        return {"table_version": roll_back_table(target, expected=rollback.from_version, by_spark=by_spark)}

    def has_changed(self, repository: Repository) -> bool | None:
        """Whether the sink was rolled back by this plan; ``None`` where that cannot be told."""
        plan, place = self.plan, self.sink.place
        if not plan.rolls_sink_back or (place is None and not self.sink.table):
            return False
        try:
            if table := _iceberg(plan, self.sink):
                return snapshot_is_set_by(table, plan.plan_id)
            if place is None:
                return False
            if self._of_table:
                return committed_by(place, plan.plan_id) is not None
            if SetAside(repository, plan.name, plan.plan_id, "sink").sizes is None:
                return False  # nothing is removed before all is set aside
            there = place.walk()
        except CkptError:
            return None
        return any(path not in there for path in plan.sink.rollback.paths) if plan.sink.rollback else False

    @property
    def _of_table(self) -> bool:
        return self.plan.rolls_sink_back and self.plan.sink.kind == "delta"

    def _remove_files(self, place: Location, repository: Repository, workers: int) -> None:
        plan = self.plan
        aside = SetAside(repository, plan.name, plan.plan_id, "sink")
        paths = plan.sink.rollback.paths if plan.sink.rollback else ()
        there = place.walk()
        if aside.sizes is None:
            gone = [path for path in paths if path not in there]
            if gone:
                raise RefusedError(
                    f"{place}/{gone[0]} is gone though the sink's log names it",
                    hint="see who deletes files of the sink",
                )
            aside.keep(place, [there[path] for path in paths], workers=workers)
        for path in paths:  # in the plan's order: the log first, from its newest entry on
            for name in (path, hidden_checksum(path)):
                if name in there:
                    place.delete_listed(there[name])


@dataclass(frozen=True, slots=True)
class BringForward:
    """The sink becomes what it was before a rewind.

    :param plan: the rewind.
    :param sink: the sink that it rolled back.
    :param record: the audit record of the rewind; ``None`` where it was not ended.
    """

    plan: RewindPlan
    sink: Sink
    record: Mapping[str, Any] | None

    def check(self) -> None:
        """See that the sink can be brought forward, and that nobody has written into it since."""
        plan, sink = self.plan, self.sink
        if table := _iceberg(plan, sink):
            self._expect_rolled_back(table)
            return
        if plan.rolls_sink_back and sink.place is None:
            raise RefusedError(
                f"rewind {plan.plan_id} rolled {plan.sink.uri} back too", hint=f"name it: --sink {plan.sink.uri}"
            )
        if plan.by_spark and sink.by_spark is None:
            raise RefusedError(
                f"rewind {plan.plan_id} rolled {plan.sink.uri} back by Spark, which has to bring it forward again too",
                hint="say how Spark is run: --spark-submit 'spark-submit --packages io.delta:…', or spark_conn_id of the "
                "operator",
            )
        self._rolled_back_in()

    def run(self, repository: Repository, *, fence: Fence, workers: int) -> Mapping[str, Any]:
        """Bring the sink forward; the second time it does nothing."""
        plan, sink, rollback = self.plan, self.sink, self.plan.sink.rollback
        if rollback and (table := _iceberg(plan, sink)):
            if not self._expect_rolled_back(table) or rollback.to_version is None or rollback.from_version is None:
                return {"table_version": None}  # killed before the table was rolled back
            fence.check()
            undo = undo_of(plan.plan_id)
            done = set_snapshot(table, rollback.from_version, expected=rollback.to_version, plan_id=undo)
            return {"table_version": done}
        if not plan.rolls_sink_back or rollback is None or sink.place is None:
            return {"table_version": None}
        if rollback.to_version is None:
            self._put_files_back(fence.guarding(sink.place), repository)
            return {"table_version": None}
        rolled_back = self._rolled_back_in()
        if rolled_back is None or rollback.from_version is None:
            return {"table_version": None}  # killed before the table was rolled back
        target = TableTarget(
            table=sink.place,
            version=rollback.from_version,
            app_id=plan.app_id,
            batch_id=next(b for b in (plan.sink.remembered, plan.sink.batch_id, plan.newest) if b is not None),
            plan_id=undo_of(plan.plan_id),
            storage_options=dict(sink.storage_options),
            older_ids=dict(plan.sink.memories),
        )
        fence.check()
        by_spark = sink.by_spark if plan.by_spark else None
        return {"table_version": roll_back_table(target, expected=rolled_back, by_spark=by_spark)}

    def has_changed(self, repository: Repository) -> bool | None:
        """Whether the sink was brought forward; ``None`` where that cannot be told."""
        plan, place = self.plan, self.sink.place
        try:
            if table := _iceberg(plan, self.sink):
                return snapshot_is_set_by(table, undo_of(plan.plan_id))
            if not plan.rolls_sink_back or place is None:
                return False
            if plan.sink.kind != "delta":
                return None
            return committed_by(place, undo_of(plan.plan_id)) is not None
        except CkptError:
            return None

    def _expect_rolled_back(self, table: IcebergTable) -> bool:
        """Whether the rewind set the table's snapshot, which then still has to be the current one."""
        plan, rollback = self.plan, self.plan.sink.rollback
        if snapshot_is_set_by(table, undo_of(plan.plan_id)):
            return True
        if rollback is None:
            return False
        if not snapshot_is_set_by(table, plan.plan_id):
            self._expect_not_rolled_back(table)
            return False
        if (newest := current_snapshot(table)) != rollback.to_version:
            raise RefusedError(
                f"{table} was written to since rewind {plan.plan_id}: it is at snapshot {newest}, and the rewind set it to "
                f"{rollback.to_version}",
                hint="rewind again instead"
                if self.record
                else "run the same rewind again, which ends it and keeps what was written",
            )
        return True

    def _expect_not_rolled_back(self, table: IcebergTable) -> None:
        """See that the table is as it was before the rewind, which has no tag in it.

        Without a tag, either the rewind was stopped before it reached the table, or somebody removed the tag afterwards.

        :raises RefusedError: the table is not known to be as before.
        """
        plan, rollback = self.plan, self.plan.sink.rollback
        former = rollback.from_version if rollback else None
        reached = bool(self.record and self.record.get("table_version"))
        if former is not None and holds_snapshot(table, former, as_head=reached):
            return
        raise RefusedError(
            f"{table} has no tag {tag_of(plan.plan_id)} any more, which kept snapshot {former} for the undo of rewind "
            f"{plan.plan_id}, and the table is not at that snapshot: it expired or was dropped; nothing was changed",
            hint=f"if {table} still has snapshot {former}, set main to it (CALL <catalog>.system.set_current_snapshot) and run "
            "the undo again; else rewind again instead",
        )

    def _rolled_back_in(self) -> int | None:
        """The table version in which the rewind rolled a table back, which still has to be its newest; ``None`` without one."""
        plan, place = self.plan, self.sink.place
        if not plan.rolls_sink_back or plan.sink.kind != "delta" or place is None:
            return None
        done = self.record["table_version"] if self.record else committed_by(place, plan.plan_id)
        history = read_table_history(place)
        newest, former = history.newest, plan.sink.rollback.from_version if plan.sink.rollback else None
        if done is None and former is not None and history.first > former + 1:
            raise RefusedError(
                f"the log of {place} begins at version {history.first}, so it is not known whether rewind {plan.plan_id} rolled "
                f"the table back from version {former}; nothing was changed",
                hint="run the same rewind again, which ends it",
            )
        if done is not None and newest != done and committed_by(place, undo_of(plan.plan_id)) is None:
            raise RefusedError(
                f"{place} was written to since rewind {plan.plan_id}: it is at version {newest}, the roll-back was {done}",
                hint="rewind again instead"
                if self.record
                else "run the same rewind again, which ends it and keeps what was written",
            )
        return int(done) if done is not None else None

    def _put_files_back(self, place: Location, repository: Repository) -> None:
        plan = self.plan
        aside = SetAside(repository, plan.name, plan.plan_id, "sink")
        kept = aside.sizes
        if kept is None or plan.sink.rollback is None:
            return
        lost = [path for path in plan.sink.rollback.paths if path not in kept]
        if lost:
            raise StorageError(
                f"{aside.place} does not keep {lost[0]}, which rewind {plan.plan_id} was to remove ({len(lost)} files)",
                hint="the plan or the marker in the repository was damaged: put it back from a copy, then run the undo again",
            )
        there = place.walk()
        # Data first, and the log upwards: a reader sees a whole number of batches at every moment.
        for path in reversed(plan.sink.rollback.paths):
            content = aside.read(path)
            checksum = there.get(hidden_checksum(path))
            if checksum is not None:
                place.delete_listed(checksum)
            if path not in there:
                place.create(path, content)
            elif place.read(path) != content:
                raise StorageError(
                    f"{place}/{path} is not the file that rewind {plan.plan_id} removed: somebody else writes into the sink",
                    hint="inspect the sink; then run the same undo again",
                )
