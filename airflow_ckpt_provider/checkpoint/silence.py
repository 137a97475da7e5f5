"""How long a checkpoint must stay unchanged before that shows that nobody runs its query.

A query writes into its checkpoint in each batch. So a query that runs is silent for as long as the pause between two batches.
The offset log shows the pauses between the newest batches (``batchTimestampMs``: when the batch was triggered). Spark keeps some
100 entries. In these cases they do not show how long the query may pause, so silence proves nothing, and the reason is reported:

* Continuous mode writes no times.
* Asynchronous progress tracking logs only some of the batches, so numbers are missing.
* A batch that was logged and not committed may be under way, for any time.
* A stream that has idled is silent for as long as its source has no data. ``AvailableNow`` shows the same pattern: a run has many
  batches in a row, and there is no batch until the next run.
* Entries of less than a day show no pause at night. 100 batches of one second show the past 100 seconds only.

Silence never shows three things: a source that has no new data for the first time, a trigger interval that became longer with the
last start, and a driver whose computer is suspended. A probe or a person's statement is the better proof; see
:mod:`airflow_ckpt_provider.change.rest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median

from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry
from airflow_ckpt_provider.checkpoint.poll import read_entry
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.location import Location

#: How many of the newest entries are read: Spark's ``minBatchesToRetain`` is 100, and it keeps one more.
_ENTRIES = 101
#: How many pauses it takes to say anything, and how many times the median the longest may be.
_ENOUGH, _UNEVEN = 4, 5.0
_READERS = 16
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a checkpoint must stay unchanged, or why silence proves nothing.

    :param seconds: the silence that is needed; ``None`` if silence proves nothing.
    :param why_not: why silence proves nothing, as a clause; else empty.
    :param passes: whether the reason may pass without a new start of the query: a batch that is under way ends.
    :param longest: the longest pause between two batches, in seconds.
    :param batches: how many batches were read.
    :param history: seconds from the oldest to the newest of them.
    """

    seconds: float | None
    why_not: str = ""
    passes: bool = False
    longest: float = 0.0
    batches: int = 0
    history: float = 0.0


def needed_silence(location: Location, files: FileSet, *, factor: float, minimum: float, history: float) -> Silence:
    """Read from the logs how long a query may pause, and with that how long a silence is needed.

    :param location: the checkpoint.
    :param files: all files of the checkpoint, as just listed.
    :param factor: how many times the longest pause must pass.
    :param minimum: seconds that must pass in any case.
    :param history: seconds that the entries must reach back.
    """
    logged = _numbers(files, OFFSETS)[-_ENTRIES:]
    try:
        found = in_parallel(lambda batch: read_entry(location, batch), logged, workers=_READERS)
    except UnreadableLogError as e:
        return Silence(None, f"its offset log cannot be read ({e.message})")
    gone = [batch for batch, entry in zip(logged, found, strict=True) if entry is None]
    if gone:
        return Silence(None, f"{OFFSETS}/{gone[0]} was removed while it was read, so somebody writes", passes=True)
    entries = [entry for entry in found if isinstance(entry, OffsetEntry)]
    if not entries:
        return Silence(None, "no batch is logged yet, so nothing shows how long the query may pause")
    reason = _other_mode(entries, _numbers(files, COMMITS))
    if reason:
        return Silence(None, reason)
    times = [entry.time for entry in entries if entry.time is not None]
    return _judge(times, entries[-1].batch_id in _numbers(files, COMMITS), factor, minimum, history)


def _judge(times: Sequence[datetime], committed: bool, factor: float, minimum: float, history: float) -> Silence:
    pauses = [(after - before).total_seconds() for before, after in pairwise(times)]
    if len(pauses) < _ENOUGH:
        return Silence(None, f"its offset log has the times of only {len(times)} batches")
    if min(pauses) < 0:
        return Silence(None, "the times in its offset log go backwards, so they show no intervals")
    longest, usual, reach = max(pauses), median(pauses), sum(pauses)
    if longest > _UNEVEN * usual:
        return Silence(
            None,
            f"the stream pauses at times: up to {longest:.0f} s between two batches, with a median of {usual:.1f} s",
        )
    if reach < history:
        return Silence(
            None,
            f"its offset log reaches back only {_hours(reach)}, and less than {_hours(history)} does not show whether the stream "
            "pauses at times",
        )
    if not committed:
        return Silence(None, "its newest batch is logged and not committed, so it may be under way", passes=True)
    return Silence(max(minimum, factor * longest), longest=longest, batches=len(times), history=reach)


def _other_mode(entries: Sequence[OffsetEntry], committed: Sequence[int]) -> str:
    """Why the entries are not those of a query that logs and commits each of its batches."""
    if any(entry.time is None for entry in entries):
        return "its offset log has no times, as in continuous mode"
    numbers = [entry.batch_id for entry in entries]
    if numbers[-1] - numbers[0] != len(numbers) - 1:
        return "numbers are missing in its offset log, as with asynchronous progress tracking"
    # Of the oldest batches Spark may have removed one file and not yet the other.
    kept = [batch for batch in committed if batch >= numbers[0]]
    if kept and (kept[-1] > numbers[-1] or kept[-1] - kept[0] != len(kept) - 1):
        return "its commit log does not follow its offset log, as with asynchronous progress tracking"
    return ""


def _numbers(files: FileSet, log: str) -> list[int]:
    return sorted(batch for batch in map(batch_id_of, files.files(log)) if batch is not None)


def _hours(seconds: float) -> str:
    return f"{seconds / _HOUR:.1f} h" if seconds >= _HOUR else f"{seconds:.0f} s"
