"""Where the first batch of a query begins to read a Delta table, which no log entry says: by its reader options.

Spark works that out again at each start until the second batch is committed (``DeltaSource.extractStartingState``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_log import DeltaLog
from airflow_ckpt_provider.guards.reader_options import option
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.units import is_number
from airflow_ckpt_provider.verdict import Verdict

#: Where a day begins first: a time without a zone is in that of Spark's session, which is not known here.
_EARLIEST_ZONE = timezone(timedelta(hours=14))


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """The beginning of a first batch.

    :param offset: where it begins.
    :param on_start: what that does to every start, also where the batch is committed.
    :param on_replay: what that does where the batch runs again.
    """

    offset: DeltaOffset
    on_start: Judgement | None = None
    on_replay: Judgement | None = None


def first_batch(log: DeltaLog, end: DeltaOffset, options: Mapping[str, str]) -> FirstBatch:
    """Work out where Spark begins.

    :param log: the table's log.
    :param end: the end of the batch.
    :param options: the query's reader options, as far as they are known. Without ``startingVersion`` and
        ``startingTimestamp`` it begins with a snapshot.
    :raises RefusedError: an option has a value that Delta refuses.
    """
    version, time = option(options, "startingVersion"), option(options, "startingTimestamp")
    if version is not None:
        return _from_version(log, end, version)
    if time is not None:
        return _from_time(log, end, time)
    snapshot = end.table_version if end.initial_snapshot else max(end.table_version - 1, 0)
    return FirstBatch(DeltaOffset("", end.table_id, snapshot, -1, True))


def _from_version(log: DeltaLog, end: DeltaOffset, text: str) -> FirstBatch:
    told = f"startingVersion={text}"
    if text.strip().lower() == "latest":
        return _begin(end, log.latest + 1, told)
    if not is_number(text.strip()):
        raise RefusedError(
            f"{told} is no version of a Delta table", hint="give a number, or latest, as the query has it"
        )
    version, oldest = int(text), min(log.commits, default=-1)
    if version >= oldest:
        return _begin(end, version, told)
    judgement = Judgement(
        Verdict.WILL_FAIL,
        f"the log of {log.table} begins at version {oldest}, and Spark checks {told} at each start until the second batch is "
        "committed: DELTA_VERSION_NOT_FOUND; start a new checkpoint",
    )
    return FirstBatch(_begin(end, version, told).offset, on_start=judgement)


def _from_time(log: DeltaLog, end: DeltaOffset, text: str) -> FirstBatch:
    """The first version at or after a time; where the log begins after it, Delta begins there without an error."""
    told = f"startingTimestamp={text}"
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError as e:
        raise RefusedError(
            f"{told} is no time ({e})", hint="give it as the query has it, such as 2026-11-21T14:00:00Z"
        ) from e
    time = (time if time.tzinfo else time.replace(tzinfo=_EARLIEST_ZONE)).astimezone(UTC)
    version = next((v for v in log.commits if _is_since(log, v, time)), log.latest + 1)
    if 0 < version == min(log.commits, default=-1):
        judgement = Judgement(
            Verdict.UNKNOWN,
            f"the log of {log.table} begins at version {version}, after {told}: the first batch, which is not committed, begins "
            "there without an error, and whether it had older versions is not known",
        )
        return FirstBatch(_begin(end, version, told).offset, on_replay=judgement)
    return _begin(end, version, told)


def _begin(end: DeltaOffset, version: int, told: str) -> FirstBatch:
    offset = DeltaOffset("", end.table_id, version, -1, False)
    if version <= end.last_read:
        return FirstBatch(offset)
    judgement = Judgement(
        Verdict.WILL_LOSE,
        f"with {told} the first batch, which is not committed, begins at version {version} now: what was planned, up to version "
        f"{end.last_read}, is left out without an error",
    )
    return FirstBatch(offset, on_replay=judgement)


def _is_since(log: DeltaLog, version: int, time: datetime) -> bool:
    """Delta goes by the time of the file, or by the one in the commit."""
    written, committed = log.commits[version], log.commit(version).time
    return written is None or written >= time or (committed is not None and committed >= time)
