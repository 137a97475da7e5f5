"""Which batch a new checkpoint is to start after. What is out of range is refused with the range, never moved into it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry
from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.recovery.positions.logs import ReadableLogs, refuse_without_offsets


@dataclass(frozen=True, slots=True)
class Choice:
    """The batch after which the new checkpoint starts.

    :param entry: its offset log entry. Where the time asked for is older than the log: the oldest entry, for the names of
        the sources only.
    :param later: entries of batches after it that the old query planned, as far as they can be read, ascending.
    :param by_clock: the time to start at by the sources' own clocks, because it is older than the log.
    :param notes: what the person should know about the choice.
    """

    entry: OffsetEntry
    later: tuple[OffsetEntry, ...]
    by_clock: datetime | None = None
    notes: tuple[str, ...] = ()


def choose_newest(logs: ReadableLogs) -> Choice:
    """Take the newest committed batch whose entry can be read.

    :raises RefusedError: there is none.
    """
    candidates, notes = _done(logs)
    for batch_id in reversed(candidates):
        if entry := logs.entry(batch_id):
            skipped = [b for b in candidates if b > batch_id]
            if skipped:
                notes = (*notes, f"the offsets of {_span(skipped)} cannot be read: their rows are read again")
            return Choice(entry, _later(logs, batch_id), notes=notes)
    if not candidates and any(logs.entry(b) for b in logs.logged):
        raise _none_committed(logs)
    raise refuse_without_offsets(logs)


def choose_batch(logs: ReadableLogs, batch_id: int) -> Choice:
    """Take a batch by its number.

    :raises RefusedError: it is not one of the committed batches in the log; the message has the range.
    :raises UnreadableLogError: its entry cannot be read.
    """
    candidates, notes = _done(logs)
    if batch_id not in candidates:
        if batch_id in logs.logged:
            why = f"batch {batch_id} is planned but not committed"
        else:
            why = f"batch {batch_id} is not in the log"
        raise RefusedError(
            f"{logs.origin}: {why}; committed and still in the log: {_span(candidates) if candidates else 'none'}",
            hint="give one of those, or for an older one a time (--to-datetime) or an older backup (--repository)",
        )
    if entry := logs.entry(batch_id):
        return Choice(entry, _later(logs, batch_id), notes=notes)
    path = f"{OFFSETS}/{batch_id}"
    reason = next((u.reason for u in logs.unread if u.path == path), "cannot be read")
    raise UnreadableLogError(
        f"{path}: {reason}", path=path, batch_id=batch_id, hint="choose another batch, or a backup that holds it"
    )


def choose_time(logs: ReadableLogs, time: datetime) -> Choice:
    """Take the newest committed batch that was planned at or before a time, by the batch times in the log.

    What such a batch read had arrived by then, so nothing that arrived later is left out. Where the clock was put back
    between two batches, the older batch counts.

    :raises RefusedError: no entry can be read, or the log has no times (continuous mode).
    """
    candidates, notes = _done(logs)
    entries = logs.entries()
    done = [entries[b] for b in candidates if b in entries]
    timed = [entry for entry in done if entry.time]
    if not entries:
        raise refuse_without_offsets(logs)
    if not timed:
        if any(entry.time for entry in entries.values()):
            oldest = entries[min(entries)]
            return Choice(oldest, tuple(entries.values()), by_clock=time, notes=notes)
        raise RefusedError(
            f"{logs.origin}: its offset log has no times, as in continuous mode", hint="choose a batch by its number"
        )
    found: OffsetEntry | None = None
    for entry in timed:
        if entry.time and entry.time > time:
            break
        found = entry
    if found is None:
        oldest = timed[0]
        older = (
            f"{time.isoformat()} is older than the log, whose oldest committed batch {oldest.batch_id} was planned at "
            f"{oldest.time.isoformat() if oldest.time else '?'}: the sources' own clocks decide"
        )
        return Choice(oldest, tuple(entries.values()), by_clock=time, notes=(*notes, older))
    return Choice(found, _later(logs, found.batch_id), notes=notes)


def _done(logs: ReadableLogs) -> tuple[list[int], tuple[str, ...]]:
    """Batches that are known to be committed, ascending."""
    both = [b for b in logs.committed if b in logs.logged]
    if both:
        return both, ()
    if logs.committed and not logs.logged:
        return [], ()
    # Spark plans a batch after the one before it was committed; async progress tracking leaves gaps in the log.
    without_gaps = len(logs.logged) > 1 and logs.logged[-1] - logs.logged[0] == len(logs.logged) - 1
    if not logs.committed and without_gaps:
        newest = logs.logged[-1]
        note = f"there are no commits: the batches before {newest} count as committed, because {newest} was planned after them"
        return list(logs.logged[:-1]), (note,)
    return [], ()


def _later(logs: ReadableLogs, batch_id: int) -> tuple[OffsetEntry, ...]:
    return tuple(entry for b in logs.logged if b > batch_id and (entry := logs.entry(b)))


def _none_committed(logs: ReadableLogs) -> RefusedError:
    return RefusedError(
        f"{logs.origin}: no batch is committed yet, so a new checkpoint starts where this one did",
        hint="start it with the options that the query has now",
    )


def _span(batches: list[int]) -> str:
    runs: list[list[int]] = []
    for batch in batches:
        if runs and batch == runs[-1][1] + 1:
            runs[-1][1] = batch
        else:
            runs.append([batch, batch])
    return ("batch " if len(batches) == 1 else "batches ") + ", ".join(
        str(a) if a == b else f"{a} to {b}" for a, b in runs
    )
