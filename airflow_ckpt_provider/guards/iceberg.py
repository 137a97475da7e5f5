"""The guard of Iceberg sources: whether the snapshot of the checkpoint still is an ancestor of the table's current one.

The rules are those of Iceberg's ``SparkMicroBatchStream``: it goes from the snapshot of its offset to the current one by their
parents. An expired snapshot, and a table that was rolled back below it, end the query at its start. Snapshots of operation
``replace`` are passed over; ``overwrite`` and ``delete`` end the query unless its reader skips them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_ckpt_provider.checkpoint.source_offsets import IcebergOffset
from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, UnreadableLogError
from airflow_ckpt_provider.guards.iceberg_client import metadata_by_name, missing_file, missing_file_below
from airflow_ckpt_provider.guards.iceberg_metadata import (
    SCHEME,
    ancestors,
    is_iceberg_table,
    newest_metadata,
    read_metadata,
    snapshots_of,
)
from airflow_ckpt_provider.guards.iceberg_retention import NOBODY_KNOWS, TimeToExpiry, time_to_expiry
from airflow_ckpt_provider.guards.reader_options import located
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings, not_guarded
from airflow_ckpt_provider.guards.report import Judgement, SourceReport
from airflow_ckpt_provider.guards.time_left import hours_needed
from airflow_ckpt_provider.source_settings import SourceSettings
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import format_duration
from airflow_ckpt_provider.verdict import Verdict

KIND = "iceberg"
#: Files that are looked for at most.
_FILES = 10_000
#: Operation of a snapshot -> the option of the reader that passes it over.
_SKIPPED_BY = {
    "delete": "streaming-skip-delete-snapshots",
    "overwrite": "streaming-skip-overwrite-snapshots",
}
#: Those whose rows are read, and those without new rows.
_READ_OR_PASSED = ("append", "replace")


class IcebergGuard:
    """Judges Iceberg sources.

    :param settings: its own options, under ``iceberg``: ``tables`` (source -> directory of a Hadoop table, or
        ``iceberg:CATALOG.NAMESPACE.TABLE``), ``catalog`` (properties of the catalog as pyiceberg names them), ``options`` (source
        -> options of the query's reader that matter here: ``streaming-skip-delete-snapshots``,
        ``streaming-skip-overwrite-snapshots``). From a shell ``table.<source>``, ``catalog.<name>``, ``option.<source>.<name>``.
    """

    kind = KIND

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings
        told = SourceSettings(KIND, settings.options.get(KIND, {}), mappings=("options", "tables", "catalog"))
        self._tables: dict[str, str | Location] = told.by_source("tables")
        self._catalog: dict[str, str] = told.by_source("catalog")
        self._options = told.reader_options()

    def recognises(self, source: GuardedSource) -> bool:
        """Whether its offsets are those of Iceberg's source."""
        return isinstance(source.start.offset or source.end, IcebergOffset)

    def judge(self, source: GuardedSource) -> SourceReport:
        """Read the table's metadata.

        :raises CkptError: the table could not be reached, or its metadata not be parsed.
        """
        table = self._tables.get(source.name)
        if table is None:
            return not_guarded(
                source,
                f"no table was given for source {source.name} (guard --option iceberg.table.{source.name}=TABLE): an offset of "
                "Iceberg does not name its table",
            )
        offset = source.start.offset
        if not isinstance(offset, IcebergOffset) or offset.snapshot_id == -1:
            return not_guarded(source, "it has read nothing yet: where it starts is for its own options to say")
        uri, metadata, doubt = self._metadata(table)
        if metadata is None:
            reason = f"there is no Iceberg table at {uri}: it has no metadata/*.metadata.json"
            return SourceReport(source.name, KIND, (Judgement(Verdict.WILL_FAIL, reason),), lost=None)
        try:
            return self._report(source, offset, table, (uri, metadata, doubt))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as e:
            raise UnreadableLogError(
                f"{uri}: a field of the table's metadata has an unexpected form ({type(e).__name__}: {e})",
                path=uri,
                hint="see whether a newer version of Iceberg wrote it",
            ) from e

    def _report(
        self,
        source: GuardedSource,
        offset: IcebergOffset,
        table: str | Location,
        found: tuple[str, Mapping[str, Any], str | None],
    ) -> SourceReport:
        uri, metadata, doubt = found
        end = source.end if isinstance(source.end, IcebergOffset) else None
        judgements = tuple(_judge(metadata, offset, end, self._options.get(source.name, {})))
        if not judgements:
            judgements = tuple(self._missing(table, metadata, offset))
        if doubt:
            judgements = (*judgements, Judgement(Verdict.UNKNOWN, doubt))
        facts: dict[str, Any] = {"table": uri, "snapshot_id": offset.snapshot_id, "position": offset.position}
        lost = 0 if all(each.verdict is Verdict.SAFE for each in judgements) else None
        left = _time_left(metadata, offset)
        if left is None:
            return SourceReport(source.name, KIND, judgements, lost=lost, facts=facts)
        judgements = (*judgements, *self._judge_downtime(left))
        facts |= left.to_json()
        return SourceReport(source.name, KIND, judgements, lost=lost, seconds_left=left.seconds, facts=facts)

    def _missing(
        self, table: str | Location, metadata: Mapping[str, Any], offset: IcebergOffset
    ) -> Iterator[Judgement]:
        """Whether a file is missing that the query reads next."""
        unread = _unread(metadata, offset)
        if not unread:
            return
        # All files of its first snapshot are read, also those that earlier ones added.
        whole = offset.snapshot_id if offset.scan_all_files and offset.snapshot_id in unread else None
        try:
            if isinstance(table, str) and table.startswith(SCHEME):
                path = missing_file(table.removeprefix(SCHEME), self._catalog, unread, most=_FILES, whole=whole)
            else:
                place, snapshots = located(table, kind=KIND, source=""), snapshots_of(metadata)
                path = missing_file_below(place, {id_: snapshots[id_] for id_ in unread}, most=_FILES, whole=whole)
        except (RefusedError, MissingExtraError) as e:
            yield Judgement(Verdict.UNKNOWN, f"whether its files are there is not known: {e.message}")
            return
        if path:
            yield Judgement(
                Verdict.WILL_FAIL, f"{path} is missing, and the query reads it next: it fails then; restore the file"
            )

    def _judge_downtime(self, left: TimeToExpiry) -> Iterator[Judgement]:
        """A planned downtime that is longer than the snapshots are sure to be kept: ``UNKNOWN``, for they need not expire."""
        if self._settings.max_downtime is None or left.seconds is None:
            return
        needed = self._settings.max_downtime + self._settings.buffer
        if left.seconds < needed:
            hours = hours_needed(left.oldest_age_ms + needed * 1000)
            yield Judgement(
                Verdict.UNKNOWN,
                f"by {left.limited_by} the snapshots that the stream needs are kept for "
                f"{format_duration(left.seconds)} more, less than the planned downtime and its buffer of "
                f"{format_duration(needed)}; {NOBODY_KNOWS}. Run none meanwhile, or set "
                f"{left.limited_by} to {hours * 3_600_000} ({hours} hours)",
            )

    def _metadata(self, table: str | Location) -> tuple[str, Mapping[str, Any] | None, str | None]:
        """The table's name, its metadata, and why that may not be current."""
        if isinstance(table, str) and table.startswith(SCHEME):
            return table, metadata_by_name(table.removeprefix(SCHEME), self._catalog), None
        place = located(table, kind=KIND, source="")
        if not is_iceberg_table(place):
            return place.uri, None, None
        path, is_hadoop = newest_metadata(place)
        doubt = (
            f"{path} is the newest metadata in the directory, and only the table's catalog knows which one is current"
        )
        return place.uri, read_metadata(place, path), None if is_hadoop else doubt


def _time_left(metadata: Mapping[str, Any], offset: IcebergOffset) -> TimeToExpiry | None:
    """For how long the stream can still start where it stands; ``None`` where it cannot now, or that cannot be determined."""
    try:
        line, _ = ancestors(metadata)
        if offset.snapshot_id not in line:
            return None
        return time_to_expiry(metadata, offset.snapshot_id, now_ms=time.time_ns() // 1_000_000)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
    ):  # damaged, as the verdict says; or settings that are no numbers
        return None


def _unread(metadata: Mapping[str, Any], offset: IcebergOffset) -> list[int]:
    """The snapshots of which files are read next: those that append, and the one of the offset, if some of its are left.

    The first snapshot of a stream is read with all its files, whatever its operation is.
    """
    snapshots, (line, _) = snapshots_of(metadata), ancestors(metadata)
    at = line.index(offset.snapshot_id)
    summary = snapshots[offset.snapshot_id].get("summary") or {}
    files = str(summary.get("total-data-files" if offset.scan_all_files else "added-data-files", ""))
    appends = [
        id_ for id_ in line[at + 1 :] if (snapshots[id_].get("summary") or {}).get("operation", "append") == "append"
    ]
    if offset.scan_all_files:
        has_more = not files.isdecimal() or offset.position < int(files)
    else:
        has_more = files.isdecimal() and offset.position < int(files) and summary.get("operation", "append") == "append"
    return [*([offset.snapshot_id] if has_more else []), *appends]


def _operation(snapshot: Mapping[str, Any]) -> str:
    return str((snapshot.get("summary") or {}).get("operation", ""))


def _judge(
    metadata: Mapping[str, Any], offset: IcebergOffset, end: IcebergOffset | None, options: Mapping[str, str]
) -> Iterator[Judgement]:
    snapshots = snapshots_of(metadata)
    try:
        line, is_whole = ancestors(metadata)
    except ValueError as e:
        yield Judgement(Verdict.UNKNOWN, f"the table's metadata is damaged: {e}")
        return
    if offset.snapshot_id not in snapshots:
        yield Judgement(
            Verdict.WILL_FAIL,
            f"snapshot {offset.snapshot_id}, which the checkpoint has read up to, has expired or is of another table: "
            "Cannot load current offset at snapshot; start a new checkpoint",
        )
        return
    if offset.snapshot_id not in line:
        yield Judgement(
            Verdict.WILL_FAIL,
            f"snapshot {offset.snapshot_id}, which the checkpoint has read up to, is not an ancestor of the current one: "
            "the table was rolled back below it. Set the former snapshot again (set_current_snapshot), or rewind this stream too"
            if is_whole
            else f"snapshot {offset.snapshot_id}, which the checkpoint has read up to, is not among the ancestors of the current "
            "one that the table still has: one between them has expired, or the table was rolled back below it; start a new "
            "checkpoint, or, where it was rolled back, set the former snapshot again (set_current_snapshot)",
        )
        return
    if end and end.snapshot_id not in line:
        yield Judgement(
            Verdict.WILL_FAIL,
            f"snapshot {end.snapshot_id}, up to which the next batch was planned, has expired or was rolled back; start a new "
            "checkpoint",
        )
    on = {key.lower() for key, value in options.items() if value.lower() == "true"}
    at = line.index(offset.snapshot_id)
    own = _operation(snapshots[offset.snapshot_id])
    if (option := _SKIPPED_BY.get(own)) and option not in on and not offset.scan_all_files:
        yield Judgement(
            Verdict.UNKNOWN,
            f"snapshot {offset.snapshot_id}, up to which the checkpoint has read, is of operation {own}: the query has passed it "
            f"over by {option}, and fails at its next batch without; whether it still has the option is not known: give it",
        )
    for id_ in line[at + 1 :]:
        operation = _operation(snapshots[id_])
        option = _SKIPPED_BY.get(operation)
        if operation not in (*_READ_OR_PASSED, *_SKIPPED_BY):
            yield Judgement(
                Verdict.UNKNOWN,
                f"snapshot {id_} has the operation {operation!r}: Spark fails at one that it does not know",
            )
        if option and option in on:
            yield Judgement(Verdict.WILL_SKIP, f"snapshot {id_} ({operation}) is passed over with its rows ({option})")
        elif option:
            yield Judgement(
                Verdict.WILL_FAIL,
                f"snapshot {id_} is of operation {operation}: Cannot process {operation} snapshot; {option}=true passes it over",
            )
