"""One partition of a mirrored topic: from the offset on the old cluster to the offset on the new one.

Offsets of two clusters differ: copies begin at 0 whatever was expired, holes of compaction and of transactions are not copied,
and MirrorMaker delivers at least once. The rule is that of ``OffsetSyncStore.translateDownstream``: from the newest sync at or
below the offset, one record beyond it at most. So the start is at or before the right one, as long as the syncs are of these
topics and MirrorMaker copies the rest: records come twice, and none is lost.

A position is ``SAFE`` only where it is exact and nothing was written twice behind it: from its sync on, both offsets advance
alike, up to the ends of both logs, while nobody writes to the old one.

Offsets tell nothing of a topic that was deleted and recreated under its name. So no position is better than ``UNKNOWN`` where
no backup shows that the old topic is the one that was read, or where the syncs decreased. Nor is it where unread records were
deleted on the old cluster, and the syncs do not show that all of them had been copied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from airflow_ckpt_provider.guards.kafka_log import LogEnds
from airflow_ckpt_provider.guards.mirror_syncs import OffsetSync, SyncTrail
from airflow_ckpt_provider.recovery.positions.kafka import EARLIEST
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class TimedStart:
    """Where a partition of the new cluster starts by the time of a record of the old one.

    :param time_ms: time of the last record that was read, or of the first after it.
    :param margin_ms: how much earlier the new log is entered.
    :param offset: the first offset of the new log at or after that; ``None`` where it has none.
    :param rising: timestamps cannot fall: the old broker set them (``LogAppendTime``), and the new one kept them.
    """

    time_ms: int
    margin_ms: int
    offset: int | None
    rising: bool


@dataclass(frozen=True, slots=True)
class MirroredPartition:
    """What is known of one partition on both clusters.

    :param offset: the next offset to read on the old cluster.
    :param trail: its syncs; ``None`` where there are none.
    :param new_ends: both ends of its log on the new cluster.
    :param old_ends: the same on the old cluster; ``None`` where that was not asked.
    :param still: nobody wrote to the old log while both were asked.
    :param timed: the start by time, for an offset below all syncs.
    :param same: the old topic is the one that was read, as a backup recorded it; ``None``: not known.
    :param doubt: why the syncs may be those of another mirror; ``None`` where they are not.
    """

    offset: int
    trail: SyncTrail | None
    new_ends: LogEnds
    old_ends: LogEnds | None = None
    still: bool = False
    timed: TimedStart | None = None
    same: bool | None = None
    doubt: str | None = None

    @property
    def usable(self) -> SyncTrail | None:
        """The syncs, unless they point beyond the end of the new log: then they are of another topic."""
        if self.trail is None or self.trail.syncs[-1].downstream >= self.new_ends.latest:
            return None
        return self.trail

    @property
    def needs_time(self) -> bool:
        """Whether no sync can tell."""
        nothing_copied = self.new_ends.latest == 0
        return (
            self.offset > 0 and not nothing_copied and (self.usable is None or self.usable.below(self.offset) is None)
        )

    def to_come(self, trail: SyncTrail) -> int:
        """How many records of the old log may still have to be copied; holes of that log count too."""
        if self.old_ends is None:
            return 0
        last = trail.syncs[-1]
        return max((self.old_ends.latest - last.upstream) - (self.new_ends.latest - last.downstream), 0)


@dataclass(frozen=True, slots=True)
class Translation:
    """Where one partition starts on the new cluster.

    :param offset: for ``startingOffsets``.
    :param verdict: as :class:`~.position.SourcePosition` has it.
    :param repeats: how many records are read a second time at most; ``None`` where that is not known.
    :param reason: how the offset was found, and what to know.
    """

    offset: int
    verdict: Verdict
    repeats: int | None
    reason: str


def translate(at: MirroredPartition) -> Translation:
    """Translate one offset."""
    found = _located(at)
    uncopied = _uncopied(at)
    if uncopied and found.verdict is not Verdict.WILL_LOSE:
        found = replace(found, verdict=uncopied[0], reason=f"{found.reason}; {uncopied[1]}")
    doubts = [at.doubt] if at.doubt else []
    if at.same is None and at.offset > 0:
        doubts.append(
            "no backup shows that the old topic is the one that was read: if it was recreated since, this is the offset of "
            "another record"
        )
    if doubts and found.verdict in (Verdict.SAFE, Verdict.WILL_DUPLICATE):
        return replace(found, verdict=Verdict.UNKNOWN, reason="; ".join((found.reason, *doubts)))
    return found


def _located(at: MirroredPartition) -> Translation:
    """Find the start, as if the old cluster still had all that is unread."""
    if at.same is False and at.offset > 0:
        return _whole(at, "the old topic was recreated since the backup: no sync is of the topic that was read")
    if at.old_ends and at.offset > at.old_ends.latest:
        return _whole(
            at,
            f"the old log ends at {at.old_ends.latest}, before offset {at.offset}: the old topic was recreated, and no "
            "sync is of the topic that was read",
        )
    if at.offset == 0 or at.new_ends.latest == 0:
        return _from_the_beginning(at)
    trail = at.usable
    below = trail.below(at.offset) if trail else None
    if trail and below:
        return _by_sync(at, trail, below)
    if at.timed:
        return _by_time(at, at.timed)
    missing = "no sync is at or below it" if trail else "there is no sync of it"
    if at.trail and not trail:
        missing = (
            f"its newest sync names offset {at.trail.syncs[-1].downstream}, and the new log ends at {at.new_ends.latest}: "
            "the new topic was recreated"
        )
    return _whole(at, f"{missing}, and the old cluster has no record whose time could tell")


def _by_sync(at: MirroredPartition, trail: SyncTrail, below: OffsetSync) -> Translation:
    start = below.downstream + (at.offset > below.upstream)
    between = max(at.offset - below.upstream - 1, 0)
    above = trail.above(at.offset)
    if above:
        between = min(between, max(above.downstream - start, 0))
    how = f"by the sync {below.upstream} → {below.downstream}"
    if at.new_ends.earliest > start:
        return _expired(at, start, between, how)
    excess, alike = _advance(at, trail, below)
    if trail.highest_before is not None or below.downstream > below.upstream:
        seen = (
            f"before it the syncs decreased from {trail.highest_before} to {trail.syncs[0].upstream}"
            if trail.highest_before is not None
            else "the new log had more records by then than the old one had offsets"
        )
        return Translation(
            start,
            Verdict.UNKNOWN,
            between + excess,
            f"{how}; {seen}: MirrorMaker was started again and copied records twice, and then no record is lost; or the old "
            "topic was recreated, and then this may be the offset of another record",
        )
    if between:
        twice = f"; MirrorMaker seems to have written {excess:,} more twice" if excess else ""
        again = f"{how}: at most {between:,} records are read again{twice}"
        if at.old_ends is None:
            why = "without the old cluster it is not known whether all was copied behind it"
            return Translation(start, Verdict.UNKNOWN, between + excess, f"{again}; {why}")
        to_come = at.to_come(trail)
        if to_come:
            again = (
                f"{again}; the old log is up to {to_come:,} records ahead: they are lost if MirrorMaker ends before it has "
                "copied them"
            )
        return Translation(start, Verdict.WILL_DUPLICATE, between + excess, again)
    if alike:
        return Translation(
            start, Verdict.SAFE, 0, f"{how}, which is exact; both logs have the same offsets from there on"
        )
    return Translation(start, Verdict.UNKNOWN, None, f"{how}, which is exact; {_doubt(at, excess)}")


def _from_the_beginning(at: MirroredPartition) -> Translation:
    """Nothing was read of the partition, or nothing is on the new cluster."""
    nothing = at.new_ends.latest == 0
    if nothing and at.old_ends:
        to_come = max(at.offset - at.old_ends.earliest, 0)
        if not to_come:
            return Translation(EARLIEST, Verdict.SAFE, 0, "the new log is empty, and all of the old log is unread")
        return Translation(
            EARLIEST,
            Verdict.WILL_DUPLICATE,
            to_come,
            f"the new log is empty: {to_come:,} records that were read are read again where MirrorMaker still copies them",
        )
    if nothing:
        return Translation(EARLIEST, Verdict.UNKNOWN, None, "the new log is empty: what will be copied is not known")
    trail = at.usable
    first = trail.syncs[0] if trail else None
    if at.new_ends.earliest > 0:
        return Translation(
            EARLIEST,
            Verdict.WILL_LOSE,
            0,
            f"nothing was read of it, and the new log begins at {at.new_ends.earliest}: records before that are gone",
        )
    if trail and first and first.downstream == 0 and trail.highest_before is None:
        excess, alike = _advance(at, trail, first)
        if alike:
            return Translation(EARLIEST, Verdict.SAFE, 0, "nothing was read of it")
        return Translation(EARLIEST, Verdict.UNKNOWN, None, f"nothing was read of it; {_doubt(at, excess)}")
    return Translation(
        EARLIEST,
        Verdict.UNKNOWN,
        None,
        "nothing was read of it; what MirrorMaker wrote twice cannot be seen in the syncs",
    )


def _by_time(at: MirroredPartition, timed: TimedStart) -> Translation:
    start = at.new_ends.latest if timed.offset is None else max(timed.offset, at.new_ends.earliest)
    above = at.usable.above(at.offset) if at.usable else None
    end = above.downstream if above else at.new_ends.latest
    repeats = max(end - start, 0)
    how = (
        f"no sync is at or below offset {at.offset}: by time, {timed.margin_ms / 1000:g} s before the last record that was "
        "read"
    )
    if at.new_ends.earliest > 0 and start == at.new_ends.earliest:
        return Translation(start, Verdict.UNKNOWN, repeats, f"{how}; the new log begins there, older records are gone")
    went_back = at.trail is not None and at.trail.highest_before is not None
    if timed.rising and repeats and not went_back:
        return Translation(
            start,
            Verdict.WILL_DUPLICATE,
            repeats,
            f"{how}; timestamps rise (LogAppendTime), so at most {repeats:,} records are read again",
        )
    return Translation(
        start,
        Verdict.UNKNOWN,
        repeats,
        f"{how}; at most {repeats:,} records are read again, and an unread record is lost only where its timestamp is older "
        "than that",
    )


def _uncopied(at: MirroredPartition) -> tuple[Verdict, str] | None:
    """Say what of the unread records MirrorMaker cannot have copied, or may not have; ``None``: the syncs show that it did."""
    old, trail = at.old_ends, at.usable
    if old is None or at.offset > old.latest or at.same is False:
        return None
    gone = f"offsets {at.offset} to {old.earliest - 1} are deleted on the old cluster"
    deleted = old.earliest > at.offset
    if at.new_ends.latest == 0:
        return (Verdict.WILL_LOSE, f"{gone}, and none of them was copied") if deleted else None
    below = trail.below(at.offset) if trail else None
    if trail and below is None:
        first = trail.syncs[0]
        before = min(first.upstream, old.earliest) - at.offset
        if deleted and before > first.downstream:
            fewest = before - first.downstream
            count = f"{before:,}" if fewest == before else f"{fewest:,} to {before:,}"
            return Verdict.WILL_LOSE, f"{gone}, and {count} of them were not copied"
        if not deleted and first.upstream - at.offset > first.downstream:
            return (
                Verdict.UNKNOWN,
                f"of the {first.upstream - at.offset:,} offsets from {at.offset} to {first.upstream - 1}, "
                f"{first.downstream:,} at most were copied: the others are holes, or are lost",
            )
    if not deleted:
        return _skipped(at, trail, below or trail.syncs[0]) if trail else None
    if not trail or not below:
        return Verdict.UNKNOWN, f"{gone}, and no sync shows that they were copied"
    points = [(s.upstream, s.downstream) for s in trail.since(below)]
    points.append((old.latest, at.new_ends.latest))
    for (up, down), (next_up, next_down) in pairwise(points):
        if up >= old.earliest:
            return None
        if next_up - up != next_down - down:
            return (
                Verdict.UNKNOWN,
                f"{gone}, and the syncs do not show that all were copied: from {up} → {down} on, {next_up - up:,} offsets of "
                f"the old log became {next_down - down:,} of the new one",
            )
    return None


def _skipped(at: MirroredPartition, trail: SyncTrail, below: OffsetSync) -> tuple[Verdict, str] | None:
    """Say where MirrorMaker may have left out records that the old cluster still has; ``None``: each advance was copied.

    A MirrorMaker that lost its own positions continues at the newest record where its consumer has ``auto.offset.reset=latest``.
    """
    points = [(s.upstream, s.downstream) for s in trail.since(below)]
    if at.old_ends:
        points.append((at.old_ends.latest, at.new_ends.latest))
    for (up, down), (next_up, next_down) in pairwise(points):
        if next_up > at.offset and next_up - up > next_down - down:
            last = at.old_ends is not None and (next_up, next_down) == points[-1]
            wait = ", are still to be copied (ask again when they are)" if last else ""
            return Verdict.UNKNOWN, (
                f"from {up} → {down} on, {next_up - up:,} offsets of the old log became {next_down - down:,} of the new one: "
                f"the others are holes (compaction, transactions){wait}, or records that MirrorMaker skipped"
            )
    return None


def _expired(at: MirroredPartition, start: int, between: int, how: str) -> Translation:
    gone = at.new_ends.earliest - start
    if gone > between:
        return Translation(
            EARLIEST,
            Verdict.WILL_LOSE,
            0,
            f"{how} it starts at {start}, and the new log begins at {at.new_ends.earliest}: {gone - between:,} to {gone:,} "
            "unread records are gone",
        )
    return Translation(
        EARLIEST,
        Verdict.UNKNOWN,
        between - gone,
        f"{how} it starts at {start}, and the new log begins at {at.new_ends.earliest}: up to {gone:,} unread records are gone",
    )


def _whole(at: MirroredPartition, why: str) -> Translation:
    count = at.new_ends.latest - at.new_ends.earliest
    return Translation(
        EARLIEST, Verdict.UNKNOWN, None, f"{why}. It starts at the beginning: all {count:,} records are read"
    )


def _advance(at: MirroredPartition, trail: SyncTrail, since: OffsetSync) -> tuple[int, bool]:
    """How many offsets more the new log advanced than the old one since a sync, and whether both advanced alike."""
    steps = [(b.upstream - a.upstream, b.downstream - a.downstream) for a, b in pairwise(trail.since(since))]
    if at.old_ends:
        last = trail.syncs[-1]
        steps.append((at.old_ends.latest - last.upstream, at.new_ends.latest - last.downstream))
    excess = sum(max(down - up, 0) for up, down in steps)
    return excess, at.still and at.old_ends is not None and all(up == down for up, down in steps)


def _doubt(at: MirroredPartition, excess: int) -> str:
    if at.old_ends is None:
        return "whether MirrorMaker wrote records behind it twice is not known without the old cluster"
    if excess:
        return (
            f"behind it the new log advanced by {excess:,} offsets more than the old one: records written twice, markers of "
            "transactions, or records of other producers"
        )
    if not at.still:
        return "the old log is still written to: ask again when its producers are stopped and all is copied"
    return (
        "behind it the new log has fewer offsets than the old one: not all is copied yet, or the old log has holes "
        "(compaction, transactions). Whether records were written twice is not known"
    )
