"""What needs delta-rs (``deltalake``): states of a Delta table, what it remembers beyond its log, and rolling it back
in one commit.

A state is put together from a copy of the few files of the log that it needs, so that whatever store and credentials reach the
log will do, and so that nothing can be written. Only :func:`restore` writes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_ckpt_provider.errors import CkptError, MissingExtraError, RefusedError, StorageError, package_with
from airflow_ckpt_provider.guards.delta_log import DELTA_LOG, SIDECARS, AddedFile, DeltaLog, is_v2_checkpoint
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Requests under way at once.
_READERS = 16


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
    :param features: reader and writer features that its protocol names.
    """

    table_id: str
    configuration: dict[str, str]
    schema: str
    partition_columns: tuple[str, ...]
    files: tuple[AddedFile, ...] = ()
    features: frozenset[str] = frozenset()


def read_state(log: DeltaLog, version: int, *, with_files: bool = False) -> TableState:
    """Put the state of a table at a version together.

    :param with_files: list its files too.
    :raises MissingExtraError: ``deltalake`` is not installed.
    :raises UnreadableTableError: delta-rs cannot read it; the message has delta-rs' reason.
    """
    client = _client(f"{log.table}: reading a Delta table")
    if not log.can_rebuild(version):
        raise UnreadableTableError(
            f"{log.table}: version {version} cannot be put together: its log has a hole before it, and no checkpoint after that",
            hint="the table itself is damaged here: restore the commits that are missing",
        )
    with tempfile.TemporaryDirectory(prefix="airflow-ckpt-") as directory:
        place = Path(directory, DELTA_LOG)
        place.mkdir()

        def copy(name: str) -> None:
            place.joinpath(name).write_bytes(log.content(name))

        names = log.names_for(version)
        in_parallel(copy, names, workers=_READERS)
        place.joinpath(SIDECARS).mkdir()
        sidecars = [f"{SIDECARS}/{name}" for file in names for name in _sidecars(place / file)]
        in_parallel(copy, sidecars, workers=_READERS)
        try:
            table = client.DeltaTable(directory, version=version)
            metadata, protocol = table.metadata(), table.protocol()
            return TableState(
                table_id=str(metadata.id),
                configuration=dict(metadata.configuration),
                schema=table.schema().to_json(),
                partition_columns=tuple(metadata.partition_columns),
                files=_files(table) if with_files else (),
                features=frozenset((*(protocol.reader_features or ()), *(protocol.writer_features or ()))),
            )
        except Exception as e:  # delta-rs raises its own family, OSError, and panics as plain exceptions
            if isinstance(e, MemoryError):
                raise
            raise UnreadableTableError(
                f"{log.table}: deltalake cannot read version {version} of the table ({type(e).__name__}: {e})",
                hint="its features may be beyond delta-rs: have Spark describe it (jobs/describe_delta.py of this package), and "
                "give the guard what that wrote (described)",
            ) from e


def _sidecars(file: Path) -> list[str]:
    """Names of the files that a checkpoint of the log names as its parts (V2 checkpoints of Delta's PROTOCOL.md)."""
    if not is_v2_checkpoint(file.name):
        return []
    try:
        if file.suffix == ".json":
            rows = [load_json(line) for line in file.read_bytes().splitlines() if line.strip()]
        else:
            from pyarrow import parquet

            rows = parquet.read_table(file, columns=["sidecar"]).to_pylist()
        paths = [row["sidecar"]["path"] for row in rows if row.get("sidecar")]
        return [path.rpartition("/")[2] for path in paths]
    except (ImportError, ValueError, OSError, KeyError, TypeError, AttributeError):
        return []  # delta-rs says what is wrong with it


def remembered(table: Location, app_id: str, *, storage_options: Mapping[str, str]) -> int | None:
    """The newest ``txn`` of an app id, which delta-rs reads from log checkpoints too; ``None`` without one.

    :param table: the table.
    :param app_id: the app id.
    :param storage_options: settings of the store as ``deltalake`` names them; empty for local disks.
    :raises MissingExtraError: ``deltalake`` is not installed.
    :raises StorageError: the table could not be read.
    """
    client = _client(f"{table}: its log was cleaned up, and reading the checkpoints of a log")
    try:
        opened = client.DeltaTable(table.uri, storage_options=dict(storage_options) or None)
        version: int | None = opened.transaction_version(app_id)
    except (client.exceptions.DeltaError, OSError) as e:
        raise StorageError(
            f"{table}: what it remembers of {app_id} could not be read: {e}",
            hint="see whether deltalake reaches the table's store (its storage options) and knows its features",
        ) from e
    return version


@dataclass(frozen=True, slots=True)
class TableProperties:
    """What a table asks of whoever writes into it.

    :param features: reader and writer features that its protocol names.
    :param configuration: its properties, such as ``delta.appendOnly``.
    """

    features: frozenset[str]
    configuration: Mapping[str, str]


def read_properties(table: Location, *, storage_options: Mapping[str, str]) -> TableProperties:
    """Open a table as :func:`restore` does, and return what it asks of a writer. Reads only.

    :param table: the table.
    :param storage_options: settings of the store as ``deltalake`` names them; empty for local disks.
    :raises MissingExtraError: ``deltalake`` is not installed.
    :raises StorageError: the table could not be read: credentials, address, or a feature that delta-rs does not know.
    """
    client = _client("rolling a Delta table back")
    try:
        opened = client.DeltaTable(table.uri, storage_options=dict(storage_options) or None)
        protocol, metadata = opened.protocol(), opened.metadata()
    except (client.exceptions.DeltaError, OSError) as e:
        raise StorageError(
            f"deltalake cannot open {table}: {e}",
            hint="give deltalake what it needs to reach the table's store (--sink-option, sink_options); the Airflow connection "
            "is not used",
        ) from e
    features = frozenset((*(protocol.reader_features or ()), *(protocol.writer_features or ())))
    return TableProperties(features, dict(metadata.configuration))


def restore(
    table: Location,
    version: int,
    *,
    txns: Mapping[str, int],
    about: Mapping[str, str],
    expected: int,
    storage_options: Mapping[str, str],
    check_lease: Callable[[], None] = lambda: None,
) -> None:
    """Restore a version and set what the table remembers, in one atomic commit.

    :param table: the table.
    :param version: the version whose content it is to have.
    :param txns: app id -> the version it is to remember of it.
    :param about: what ``commitInfo`` is to say besides.
    :param expected: the version the table has to have before.
    :param storage_options: settings of the store as ``deltalake`` names them; empty for local disks.
    :param check_lease: raises where the caller may not write any more; called right before ``deltalake`` is asked to commit.
    :raises RefusedError: somebody wrote into the table before, or at the same moment; nothing was changed.
    :raises MissingExtraError: ``deltalake`` is not installed.
    :raises StorageError: the table could not be read or written.
    """
    client = _client("rolling a Delta table back")
    try:
        opened = client.DeltaTable(table.uri, storage_options=dict(storage_options) or None)
        if opened.version() != expected:
            raise RefusedError(
                f"{table} is at version {opened.version()}, and the plan was made at version {expected}: somebody "
                "wrote into it; the table was not changed",
                hint="see who writes (DESCRIBE HISTORY), then make a new plan",
            )
        properties = client.CommitProperties(
            custom_metadata=dict(about),
            # A concurrent commit must fail this one: its rows would be restored away unseen.
            max_commit_retries=0,
            # With a time: a table with delta.setTransactionRetentionDuration forgets one without at once.
            app_transactions=[client.Transaction(*txn, time.time_ns() // 1_000_000) for txn in txns.items()],
        )
        check_lease()
        if version == expected:  # only what the table remembers is to change
            opened.create_write_transaction([], "append", opened.schema(), commit_properties=properties)
        else:
            opened.restore(version, commit_properties=properties)
    except client.exceptions.CommitFailedError as e:
        if not _is_at(client, table, expected, storage_options):
            raise RefusedError(
                f"{table} was written to at the same moment ({e}); the rollback did not happen",
                hint="see who else writes into the table, then make a new plan",
            ) from e
        raise StorageError(
            f"{table}: deltalake cannot commit to this table ({e}); nothing was changed",
            hint="a feature of the table may be beyond deltalake: have Spark restore it, or change the table's settings",
        ) from e
    except (client.exceptions.DeltaError, OSError) as e:
        raise StorageError(
            f"{table} could not be restored to version {version}: {e}",
            hint="nothing was changed; if data files are gone (VACUUM), this version cannot be restored any more",
        ) from e


def _is_at(client: ModuleType, table: Location, version: int, storage_options: Mapping[str, str]) -> bool:
    try:
        found: int = client.DeltaTable(table.uri, storage_options=dict(storage_options) or None).version()
    except (client.exceptions.DeltaError, OSError):
        return False
    return found == version


def _client(what: str) -> ModuleType:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as e:
        raise MissingExtraError(
            f"{what} needs deltalake, which is not installed ({e})", hint=f"pip install '{package_with('delta')}'"
        ) from e
    return deltalake


def _files(table: DeltaTable) -> tuple[AddedFile, ...]:
    import pyarrow as pa

    rows: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    rows.sort(key=lambda row: (row["modification_time"], row["path"]))
    return tuple(
        AddedFile(
            unquote(row["path"]) if "://" not in row["path"] else row["path"],
            row.get("num_records"),
            row.get("size_bytes"),
        )
        for row in rows
    )
