"""States of a Delta table, put together by delta-rs (``deltalake``) from a copy of the few files of its log that it needs.

A copy, so that whatever store and credentials reach the log will do, and so that nothing can be written.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_ckpt_provider.errors import CkptError, MissingExtraError
from airflow_ckpt_provider.guards.delta_log import DELTA_LOG, AddedFile, DeltaLog

if TYPE_CHECKING:
    from deltalake import DeltaTable


class UnreadableTableError(CkptError):
    """delta-rs cannot read the table: a feature that it does not know, or a damaged log."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one version.

    :param table_id: its id.
    :param configuration: its properties.
    :param schema: its schema, as Delta's JSON.
    :param partition_columns: columns it is partitioned by.
    :param files: its files in the order in which a stream's first snapshot takes them: by modification time and path.
        Empty unless they were asked for.
    """

    table_id: str
    configuration: dict[str, str]
    schema: str
    partition_columns: tuple[str, ...]
    files: tuple[AddedFile, ...] = ()


def read_state(log: DeltaLog, version: int, *, with_files: bool = False) -> TableState:
    """Put the state of a table at a version together.

    :param with_files: list its files too.
    :raises MissingExtraError: ``deltalake`` is not installed.
    :raises UnreadableTableError: delta-rs cannot read it; the message has delta-rs' reason.
    """
    try:
        from deltalake import DeltaTable
    except ImportError as e:
        raise MissingExtraError(
            f"{log.table}: reading a Delta table needs deltalake ({e})",
            hint="pip install 'airflow-ckpt-provider[delta]'",
        ) from e
    with tempfile.TemporaryDirectory(prefix="airflow-ckpt-") as directory:
        place = Path(directory, DELTA_LOG)
        for name in log.names_for(version):
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(log.table.read(f"{DELTA_LOG}/{name}"))
        try:
            table = DeltaTable(directory, version=version)
            metadata = table.metadata()
            return TableState(
                table_id=str(metadata.id),
                configuration=dict(metadata.configuration),
                schema=table.schema().to_json(),
                partition_columns=tuple(metadata.partition_columns),
                files=_files(table) if with_files else (),
            )
        except Exception as e:  # delta-rs raises its own family, OSError, and panics as plain exceptions
            if isinstance(e, MemoryError):
                raise
            raise UnreadableTableError(
                f"{log.table}: deltalake cannot read version {version} of the table ({type(e).__name__}: {e})",
                hint="its features may be beyond delta-rs: have Spark describe it (jobs/describe_delta.py of this package), and "
                "give the guard what that wrote (described)",
            ) from e


def _files(table: DeltaTable) -> tuple[AddedFile, ...]:
    import pyarrow as pa

    rows: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    rows.sort(key=lambda row: (row["modification_time"], row["path"]))
    return tuple(
        AddedFile(unquote(row["path"]) if "://" not in row["path"] else row["path"], row.get("num_records"))
        for row in rows
    )
