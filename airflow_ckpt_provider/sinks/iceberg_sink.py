"""An Iceberg table as a sink: by its name in a catalog or by its directory, rolled back by setting its snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.iceberg_client import metadata_by_name
from airflow_ckpt_provider.guards.iceberg_metadata import is_iceberg_table
from airflow_ckpt_provider.sinks.delta import judge_start
from airflow_ckpt_provider.sinks.delta_sink import brought_forward
from airflow_ckpt_provider.sinks.iceberg_history import history_of_metadata, read_iceberg_history
from airflow_ckpt_provider.sinks.iceberg_rollback import (
    IcebergTable,
    current_snapshot,
    expect_snapshot,
    holds_snapshot,
    set_snapshot,
    snapshot_is_set_by,
    tag_of,
)
from airflow_ckpt_provider.sinks.kinds import SinkChange, SinkContent, SinkKind, SinkStart
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.sinks.table_history import TableHistory


@dataclass(frozen=True, slots=True)
class IcebergTableContent(SinkContent):
    """An Iceberg table, as it was read.

    :param table: the ancestors of its current snapshot.
    """

    table: TableHistory

    @property
    def history(self) -> TableHistory:
        """The ancestors of its current snapshot."""
        return self.table

    def verdict(self, start: SinkStart) -> SinkReport:
        """Judge a start."""
        return judge_start(self.table, start)


class IcebergSink(SinkKind):
    """Iceberg tables. See :mod:`~airflow_ckpt_provider.sinks.iceberg_rollback` for what a rollback commits."""

    kind = "iceberg"
    has_identity = True

    def look(self, sink: Sink) -> IcebergTableContent | None:
        """Read the table's metadata."""
        if sink.kind == self.kind and sink.table:
            metadata = metadata_by_name(sink.table, sink.storage_options)
            return IcebergTableContent(history_of_metadata(metadata, sink.name, path=sink.name))
        if sink.place is None or not is_iceberg_table(sink.place):
            return None
        return IcebergTableContent(read_iceberg_history(sink.place))

    def check(self, change: SinkChange) -> None:
        """See that nobody wrote into the table, and that it still has the snapshot."""
        table, rollback = _table(change), change.rollback
        if change.continued and snapshot_is_set_by(table, change.undo_id):
            raise brought_forward(change)
        if snapshot_is_set_by(table, change.plan_id):
            return
        if (head := current_snapshot(table)) != rollback.from_version:
            raise RefusedError(
                f"{table} is at snapshot {head}, and the plan was made at snapshot {rollback.from_version}: somebody wrote into "
                "it; the table was not changed",
                hint="see who writes (its snapshots table), then make a new plan",
            )
        if rollback.to_version is not None:
            expect_snapshot(table, rollback.to_version)

    def roll_back(self, change: SinkChange) -> int | None:
        """One commit that sets branch main to the snapshot."""
        rollback, table = change.rollback, _table(change)
        if rollback.to_version is None or rollback.from_version is None:
            raise ValueError("the plan of an Iceberg table has snapshots")
        return set_snapshot(
            table,
            rollback.to_version,
            expected=rollback.from_version,
            plan_id=change.plan_id,
            unless=change.undo_id,
            check_lease=change.check_lease,
        )

    def is_rolled_back(self, change: SinkChange) -> bool | None:
        """Whether the plan's tag is in the table. Without it that is not known while the commit of an earlier attempt could
        still succeed.
        """
        table, former = _table(change), change.rollback.from_version
        if snapshot_is_set_by(table, change.plan_id):
            return True
        could_succeed = current_snapshot(table) == former and not snapshot_is_set_by(table, change.undo_id)
        return None if change.continued and could_succeed else False

    def undo_needs(self, change: SinkChange) -> tuple[list[str], list[str]]:
        """The tag keeps what it takes."""
        kept = "a tag keeps the snapshot that leaves the table for 30 days, also from expire_snapshots: nobody may drop it before"
        return ["nobody may write into the table before", kept], []

    def check_undo(self, change: SinkChange) -> None:
        """See that the table is at the snapshot that the roll-back has set."""
        self._expect_rolled_back(change)

    def undo(self, change: SinkChange) -> int | None:
        """One commit that sets branch main to the snapshot before the roll-back.

        Killed before the table was rolled back, the rewind is not known to be dead: the tag of the undo shuts it out.
        """
        rollback, table = change.rollback, _table(change)
        if rollback.to_version is None or rollback.from_version is None:
            return None
        rolled_back, former = self._expect_rolled_back(change), rollback.from_version
        if not rolled_back and (current_snapshot(table) != former or not table.takes_commits):
            return None  # no attempt of the rewind can commit any more
        before = rollback.to_version if rolled_back else former
        done = set_snapshot(table, former, expected=before, plan_id=change.undo_id, check_lease=change.check_lease)
        return done if rolled_back else None

    def is_undone(self, change: SinkChange) -> bool:
        """Whether the undo's tag is in the table."""
        return snapshot_is_set_by(_table(change), change.undo_id)

    def _expect_rolled_back(self, change: SinkChange) -> bool:
        """Whether the rewind set the table's snapshot, which then still has to be the current one."""
        table, rollback = _table(change), change.rollback
        if snapshot_is_set_by(table, change.undo_id):
            return True
        if not snapshot_is_set_by(table, change.plan_id):
            self._expect_not_rolled_back(change)
            return False
        if (newest := current_snapshot(table)) != rollback.to_version:
            raise RefusedError(
                f"{table} was written to since rewind {change.plan_id}: it is at snapshot {newest}, and the rewind set it to "
                f"{rollback.to_version}",
                hint=change.instead_of_undo(
                    f"set main to snapshot {rollback.to_version}, without what was written since (CALL "
                    "<catalog>.system.set_current_snapshot)"
                ),
            )
        return True

    def _expect_not_rolled_back(self, change: SinkChange) -> None:
        """See that the table is as it was before the rewind, which has no tag in it.

        Without a tag, either the rewind was stopped before it reached the table, or somebody removed the tag afterwards.

        :raises RefusedError: the table is not known to be as before.
        """
        table, former = _table(change), change.rollback.from_version
        reached = bool(change.record and change.record.get("table_version"))
        if former is not None and holds_snapshot(table, former, as_head=reached):
            return
        raise RefusedError(
            f"{table} has no tag {tag_of(change.plan_id)} any more, which kept snapshot {former} for the undo of rewind "
            f"{change.plan_id}, and the table is not at that snapshot: it expired or was dropped; nothing was changed",
            hint=f"if {table} still has snapshot {former}, set main to it (CALL <catalog>.system.set_current_snapshot) and run "
            "the undo again; else rewind again instead",
        )


def _table(change: SinkChange) -> IcebergTable:
    """The table that is rolled back.

    :raises RefusedError: it was not named.
    """
    sink = change.sink
    if sink.place is None and not sink.table:
        raise RefusedError(
            f"rewind {change.plan_id} rolls {change.report.uri} back", hint=f"name it: --sink {change.report.uri}"
        )
    return IcebergTable(sink.place, sink.table, sink.storage_options)
