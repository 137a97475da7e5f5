"""How many rows a new query reads again where its position lies within a version or a snapshot of a Delta table."""

from __future__ import annotations

from collections.abc import Callable

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_client import UnreadableTableError, read_state
from airflow_ckpt_provider.guards.delta_log import read_delta_log
from airflow_ckpt_provider.storage.location import Location


def rows_before(table: Location) -> Callable[[DeltaOffset], int | None]:
    """Return what counts the rows of the files up to an offset; ``None`` where the table does not show any more.

    :param table: the table's directory.
    """

    def count(offset: DeltaOffset) -> int | None:
        log = read_delta_log(table)
        if log.is_empty:
            raise RefusedError(
                f"{table} is not a Delta table: it has no _delta_log", hint="give the table's own directory"
            )
        try:
            if offset.initial_snapshot:
                files = read_state(log, offset.table_version, with_files=True).files
            else:
                files = log.commit(offset.table_version).added
        except (FileNotFoundError, UnreadableTableError):
            return None
        rows = [file.rows for file in files[: offset.index + 1]]
        return None if any(n is None for n in rows) or len(rows) <= offset.index else sum(n or 0 for n in rows)

    return count
