"""What an Iceberg table's metadata says about one streaming query: which epochs are in the table, and what others wrote.

Read from ``metadata/*.metadata.json``, without a client (Iceberg's table spec). Spark's sink writes the query id and the epoch
into the summary of each snapshot. Before it commits an epoch it walks from the current snapshot to the newest ancestor of the
same query, and silently skips every epoch up to that one (``SparkWrite.findLastCommittedEpochId``). So content and memory are
rolled back together.

The ancestors are given as :class:`~airflow_ckpt_provider.sinks.table_history.TableHistory`: "version" is then a place in the
line of ancestors, and :attr:`~airflow_ckpt_provider.sinks.table_history.TableHistory.snapshots` has the ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.guards.iceberg_metadata import (
    ancestors,
    newest_metadata,
    outside_main,
    read_metadata,
    snapshots_of,
)
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.storage.location import Location

#: Keys that Spark's sink writes into the summary of a snapshot.
QUERY_ID, EPOCH_ID = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"


def read_iceberg_history(place: Location) -> TableHistory:
    """Read the metadata of a table by its directory.

    :param place: the table's directory.
    :raises RefusedError: there is no metadata.
    :raises UnreadableLogError: the metadata cannot be parsed.
    """
    name, is_hadoop = newest_metadata(place)
    metadata = read_metadata(place, name)
    doubt = (
        None
        if is_hadoop
        else f"{name} is the newest metadata in the directory, and only the table's catalog knows which one is current; "
        "name the table (--sink iceberg:CATALOG.NAMESPACE.TABLE)"
    )
    return history_of_metadata(metadata, place.uri, path=f"{place}/{name}", doubt=doubt)


def history_of_metadata(metadata: Mapping[str, Any], uri: str, *, path: str, doubt: str | None = None) -> TableHistory:
    """The ancestors of a table's current snapshot.

    :param metadata: the table's metadata, as its JSON.
    :param uri: how the table is named in messages.
    :param path: where the metadata comes from, for messages.
    :param doubt: why it may not be the current metadata; ``None``: it is.
    :raises UnreadableLogError: a field has an unexpected form.
    """
    try:
        snapshots = snapshots_of(metadata)
        line, is_whole = ancestors(metadata)
        first = 0 if is_whole else 1
        commits = tuple(_commit(number, snapshots[id_]) for number, id_ in enumerate(line, start=first))
        elsewhere = tuple(_commit(0, snapshots[id_]) for id_ in sorted(outside_main(metadata)))
        out = snapshots.keys() - {*line, *outside_main(metadata)}
        left = tuple(_commit(0, snapshots[id_]) for id_ in sorted(out))
        numbers = (int(snapshots[id_].get("sequence-number") or 0) for id_ in line)
        # Each snapshot of the table takes the next number, those of other branches and those that left main too.
        gap = next((place for place, number in enumerate(numbers) if number > place + 1), None) if is_whole else None
        properties = {str(key): str(value) for key, value in (metadata.get("properties") or {}).items()}
        references = {str(name): int(ref["snapshot-id"]) for name, ref in (metadata.get("refs") or {}).items()}
        table_id = str(metadata["table-uuid"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError) as e:
        raise UnreadableLogError(
            f"{path}: a field of the table's metadata has an unexpected form ({type(e).__name__}: {e})",
            path=path,
            hint="see whether a newer version of Iceberg wrote it",
        ) from e
    return TableHistory(
        uri,
        commits,
        table_id,
        configuration=properties,
        format="iceberg",
        snapshots=tuple(line),
        held=frozenset(snapshots),
        references=references,
        elsewhere=_of_streams(elsewhere),
        left=_of_streams(left),
        gap=gap,
        doubt=doubt,
    )


def _of_streams(commits: Iterable[TableCommit]) -> tuple[TableCommit, ...]:
    return tuple(commit for commit in commits if commit.txns)


def _commit(number: int, snapshot: Mapping[str, Any]) -> TableCommit:
    summary: Mapping[str, Any] = snapshot.get("summary") or {}
    operation = str(summary.get("operation", "unknown"))
    added = summary.get("added-records")
    query, epoch = summary.get(QUERY_ID), summary.get(EPOCH_ID)
    return TableCommit(
        version=number,
        time=datetime.fromtimestamp(int(snapshot["timestamp-ms"]) / 1000, UTC),
        operation=operation,
        txns={} if query is None or epoch is None else {str(query): int(epoch)},
        changes_data=operation != "replace",
        rows=int(added) if added is not None else (0 if operation == "append" else None),
        snapshot_id=int(snapshot["snapshot-id"]),
        replaces=_replaces(operation, summary),
        is_all=str(summary.get("replace-partitions")).lower() != "true",
    )


def _replaces(operation: str, summary: Mapping[str, Any]) -> bool:
    """Whether no data file of before is left after a snapshot, by the counts in its summary; without them it may be so."""
    if operation not in ("delete", "overwrite"):
        return False
    if "total-data-files" not in summary:
        return True
    deleted = int(summary.get("deleted-data-files", 0))
    return deleted > 0 and int(summary["total-data-files"]) == int(summary.get("added-data-files", 0))
