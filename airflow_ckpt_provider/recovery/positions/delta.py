"""Delta: ``startingVersion`` is the first version to read. The offset says which, one way in each of three cases.

An offset is (``reservoirVersion`` v, ``index`` i, ``isStartingVersion``): everything up to file i of version v has been read.

* i = -1: nothing of v. "Version v-1 to its end" is written like this, so v is the first to read: ``startingVersion`` = v.
* i >= 0: files 0 to i of v. No option can start within a version: ``startingVersion`` = v reads these files again.
* ``isStartingVersion``: the query was still reading the table as it stood at v, in the order of its files' times. No option
  starts within a snapshot: a new query takes the whole table again, and ``startingVersion`` would leave out the rest of it.

Read in ``DeltaSource.scala`` (Delta 4.4) and measured with Spark 4.0.0 and Delta 4.4.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset
from airflow_ckpt_provider.guards.delta_rows import rows_before
from airflow_ckpt_provider.guards.delta_start import NO_TABLE, judge_start, judge_start_by_clock
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.recovery.positions.position import SourcePosition
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import WORST_FIRST, Verdict

#: Without it Spark refuses a startingVersion that does not exist yet (DELTA_VERSION_NOT_FOUND), which is where a query that
#: has read all there is stands.
ALLOW_NEXT_VERSION = "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled"


def delta_position(
    source: str, offset: DeltaOffset, *, table: Location | None = None, logged_at: datetime | None = None
) -> SourcePosition:
    """Start where the batch ended. ``SAFE`` only where the table was read, and has all of it.

    :param table: the table's directory; ``None``: not known.
    :param logged_at: when the batch was planned, in UTC, where known.
    """
    position = _within_snapshot(source, offset, table) if offset.initial_snapshot else _at(source, offset, table)
    if table is None:
        return _judged(position, [Judgement(Verdict.UNKNOWN, NO_TABLE)])
    return _judged(position, judge_start(table, source, offset, logged_at=logged_at))


def _judged(position: SourcePosition, found: Iterable[Judgement]) -> SourcePosition:
    """Add what is known of the table, the worst first."""
    said = [Judgement(position.verdict, reason) for reason in position.reasons]
    judgements = sorted([*said, *found], key=lambda judgement: WORST_FIRST.index(judgement.verdict))
    return replace(
        position,
        verdict=judgements[0].verdict,
        reasons=tuple(judgement.reason for judgement in judgements),
    )


def _at(source: str, offset: DeltaOffset, table: Location | None) -> SourcePosition:
    version = offset.table_version
    options = {"startingVersion": str(version)}
    conf = {ALLOW_NEXT_VERSION: "true"}
    next_version = (
        f"set {ALLOW_NEXT_VERSION}=true for the first start: without it Spark refuses version {version} while the "
        f"table has not "
        "got it yet"
    )
    if offset.index < 0:  # -20 and -19 are at a change of the schema, before the files of the version too
        return SourcePosition(source, DeltaOffset.kind, options, Verdict.SAFE, (next_version,), conf=conf)
    files = offset.index + 1
    rows = rows_before(table)(offset) if table else None
    counted = f"{rows:,} rows of {_files(files)}" if rows is not None else _files(files)
    return SourcePosition(
        source,
        DeltaOffset.kind,
        options,
        Verdict.WILL_DUPLICATE,
        (
            f"the batch ended within version {version}, after its file {offset.index}: no option can say so. This "
            f"start reads "
            f"{counted} again; startingVersion={version + 1} would lose the rest of the version",
        ),
        repeats={"files": files} if rows is None else {"files": files, "rows": rows},
        conf=conf,
    )


def _within_snapshot(source: str, offset: DeltaOffset, table: Location | None) -> SourcePosition:
    version, files = offset.table_version, max(offset.index + 1, 0)
    if not files:
        return SourcePosition(
            source, DeltaOffset.kind, {}, Verdict.SAFE, ("nothing was read yet: the new query takes the whole table",)
        )
    rows = rows_before(table)(offset) if table else None
    counted = f"{rows:,} rows of {_files(files)}" if rows is not None else _files(files)
    return SourcePosition(
        source,
        DeltaOffset.kind,
        {},
        Verdict.WILL_DUPLICATE,
        (
            f"the batch ended within the first snapshot, version {version}, after {_files(files)} of it: no "
            f"option can say so. A new "
            f"query without startingVersion takes the whole table again, {counted} of it a second time (fewer "
            f"where they were "
            f"deleted since); with startingVersion={version} it would never see the rest of the snapshot",
        ),
        repeats={"files": files} if rows is None else {"files": files, "rows": rows},
    )


def delta_position_by_clock(
    source: str, offset: DeltaOffset, *, time: datetime, table: Location | None = None
) -> SourcePosition:
    """Start with the first version that was committed at or after a time; never ``SAFE``.

    :param offset: any offset of the source.
    :param table: the table's directory; ``None``: not known.
    """
    text = time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    position = SourcePosition(
        source,
        DeltaOffset.kind,
        {"startingTimestamp": text},
        Verdict.UNKNOWN,
        (
            "the first version committed at or after the time, by the times of the commits: whether the query had read all that "
            "was committed before is not known",
            f"set {ALLOW_NEXT_VERSION}=true for the first start: without it Spark refuses a time after the newest "
            f"commit",
        ),
        repeats=None,
        conf={ALLOW_NEXT_VERSION: "true"},
    )
    if table is None:
        return _judged(position, [Judgement(Verdict.UNKNOWN, NO_TABLE)])
    return _judged(position, judge_start_by_clock(table, offset, time=time))


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
