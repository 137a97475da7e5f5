"""From an offset on the old cluster to one on the new: recorded syncs of a real MirrorMaker, single cases, random mirrors."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from airflow_ckpt_provider.guards.kafka_log import LogEnds
from airflow_ckpt_provider.guards.mirror_syncs import OffsetSync, SyncTrail, trails
from airflow_ckpt_provider.recovery.positions.kafka import EARLIEST
from airflow_ckpt_provider.recovery.positions.translation import (
    MirroredPartition,
    TimedStart,
    Translation,
    translate,
)
from airflow_ckpt_provider.verdict import Verdict

P = ("orders", 0)


def trail(*pairs: tuple[int, int]) -> SyncTrail:
    return trails(OffsetSync(P, up, down) for up, down in pairs)[P]


def ends(latest: int, earliest: int = 0) -> LogEnds:
    return LogEnds(earliest, latest, latest)


#: Copied from offset 50 on, to the end; nobody writes.
COPIED = MirroredPartition(
    offset=200,
    trail=trail((50, 0), (151, 101), (252, 202), (299, 249)),
    new_ends=ends(250),
    old_ends=ends(300, 50),
    still=True,
)


def brief(found: Translation) -> tuple[int, str, int | None]:
    return found.offset, found.verdict.value, found.repeats


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (50, (0, "SAFE", 0)),
        (51, (1, "SAFE", 0)),  # right behind the record of a sync
        (52, (1, "WILL_DUPLICATE", 1)),
        (150, (1, "WILL_DUPLICATE", 99)),
        (151, (101, "SAFE", 0)),
        (200, (102, "WILL_DUPLICATE", 48)),
        (299, (249, "SAFE", 0)),
        (300, (250, "SAFE", 0)),  # all was read
    ],
)
def test_the_newest_sync_at_or_below_tells(offset: int, expected: tuple[int, str, int]) -> None:
    assert brief(translate(replace(COPIED, offset=offset))) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"old_ends": None, "still": False}, "not known without the old cluster"),
        ({"still": False}, "ask again when its producers are stopped"),
        ({"old_ends": ends(310, 50)}, "not all is copied yet"),
        ({"new_ends": ends(255)}, "5 offsets more than the old one"),
        ({"trail": trail((50, 0), (151, 101), (252, 210), (299, 257)), "new_ends": ends(258)}, "8 offsets more"),
        ({"trail": trail((50, 0), (151, 101), (252, 190), (299, 237)), "new_ends": ends(238)}, "has fewer offsets"),
    ],
)
def test_an_exact_position_is_not_safe_where_doubles_cannot_be_excluded(change: dict[str, object], words: str) -> None:
    found = translate(replace(COPIED, offset=151, **change))  # type: ignore[arg-type]
    assert brief(found) == (101, "UNKNOWN", None)
    assert words in found.reason


def test_what_was_written_twice_is_in_the_bound() -> None:
    at = replace(COPIED, offset=160, trail=trail((50, 0), (151, 101), (252, 210), (299, 257)), new_ends=ends(258))
    assert brief(translate(at)) == (102, "WILL_DUPLICATE", 8 + 8)


def test_a_mirror_that_went_back_is_not_known() -> None:
    at = replace(COPIED, offset=200, trail=trail((50, 0), (210, 160), (180, 161), (299, 280)), new_ends=ends(281))
    found = translate(at)
    assert brief(found) == (162, "UNKNOWN", 19)
    assert "the syncs went back from 210 to 180" in found.reason
    # Read up to behind where it went back from: the syncs are of what was read.
    assert translate(replace(at, offset=299)).offset == 280


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"old_ends": ends(120)}, "the old topic was made again"),
        ({"new_ends": ends(100)}, "the new topic was made again"),
        ({"trail": None}, "there is no sync of it"),
        ({"trail": trail((252, 202))}, "no sync is at or below it"),
    ],
)
def test_without_a_sync_it_starts_at_the_beginning(change: dict[str, object], words: str) -> None:
    found = translate(replace(COPIED, **change))  # type: ignore[arg-type]
    assert brief(found) == (EARLIEST, "UNKNOWN", None)
    assert words in found.reason


@pytest.mark.parametrize(
    ("rising", "offset", "expected"),
    [
        (True, 120, (120, "WILL_DUPLICATE", 82)),
        (False, 120, (120, "UNKNOWN", 82)),
        (True, None, (250, "UNKNOWN", 0)),
    ],
)
def test_by_time(rising: bool, offset: int | None, expected: tuple[int, str, int]) -> None:
    timed = TimedStart(1_700_000_000_000, 600_000, offset, rising)
    at = replace(COPIED, trail=trail((252, 202)), timed=timed)
    assert at.needs_time
    found = translate(at)
    assert brief(found) == expected
    assert "by time, 600 s before the last record that was read" in found.reason


@pytest.mark.parametrize(
    ("earliest", "expected"),
    [(102, (102, "WILL_DUPLICATE", 48)), (120, (EARLIEST, "UNKNOWN", 30)), (190, (EARLIEST, "WILL_LOSE", 0))],
)
def test_records_that_the_new_cluster_deleted(earliest: int, expected: tuple[int, str, int]) -> None:
    assert brief(translate(replace(COPIED, new_ends=ends(250, earliest)))) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (EARLIEST, "SAFE", 0)),
        ({"trail": None, "new_ends": ends(0), "old_ends": ends(0)}, (EARLIEST, "SAFE", 0)),
        ({"trail": None, "new_ends": ends(0), "old_ends": None}, (EARLIEST, "UNKNOWN", None)),
        ({"new_ends": ends(250, 10)}, (EARLIEST, "WILL_LOSE", 0)),
        ({"trail": trail((151, 101), (299, 249))}, (EARLIEST, "UNKNOWN", None)),
        ({"offset": 7, "trail": None, "new_ends": ends(0), "old_ends": ends(9, 2)}, (EARLIEST, "WILL_DUPLICATE", 5)),
        ({"offset": 9, "trail": None, "new_ends": ends(0), "old_ends": ends(9, 9)}, (EARLIEST, "SAFE", 0)),
    ],
)
def test_nothing_read_or_nothing_copied(change: dict[str, object], expected: tuple[int, str, int | None]) -> None:
    assert brief(translate(replace(COPIED, **{"offset": 0, **change}))) == expected  # type: ignore[arg-type]


@dataclass
class Copying:
    """One partition and MirrorMaker, as its source has it: at least once, a sync where ``PartitionState.update`` wants one."""

    chance: random.Random
    old: list[int] = field(default_factory=list)  # offsets that hold a record
    end: int = 0
    new: list[int] = field(default_factory=list)  # what each record of the new log is a copy of
    syncs: list[OffsetSync] = field(default_factory=list)
    next_read: int = 0  # index into old
    crashed: bool = False
    holes: bool = False

    def write(self, count: int, holes: float) -> None:
        self.holes |= holes > 0
        for _ in range(count):
            self.end += 1 + (self.chance.random() < holes) * self.chance.randrange(1, 4)
            self.old.append(self.end - 1)

    def copy(self, count: int, lag: int) -> None:
        """A life of MirrorMaker: it starts at what it committed, which is at or before what it wrote."""
        previous, synced, delayed = -1, None, None
        for record in self.old[self.next_read : self.next_read + count]:
            self.new.append(record)
            at = len(self.new) - 1
            delayed = OffsetSync(P, record, at)
            if synced is None or at - (synced + 1) >= lag or record - previous != 1:
                synced, previous = at, record
                # Eleven under way already: a later one takes its place.
                if self.chance.random() < 0.9:
                    self.syncs.append(delayed)
                    delayed = None
            previous = record
        self.next_read = min(self.next_read + count, len(self.old))
        if delayed and self.chance.random() < 0.7:
            self.syncs.append(delayed)

    def crash(self, back: int) -> None:
        self.crashed = True
        self.next_read = max(self.next_read - back, 0)


def test_random_mirrors_lose_nothing_and_repeat_no_more_than_was_said() -> None:
    seen: dict[Verdict, int] = {}
    for seed in range(3000):
        chance = random.Random(seed)
        mirror = Copying(chance)
        mirror.write(chance.randrange(1, 120), chance.choice([0, 0, 0.1]))
        mirror.next_read = chance.randrange(len(mirror.old)) if chance.random() < 0.5 else 0
        first = mirror.old[mirror.next_read]
        lag = chance.choice([1, 5, 20])
        for _ in range(chance.randrange(1, 4)):
            mirror.copy(chance.choice([chance.randrange(1, 60), 1000]), lag)
            if chance.random() < 0.3:
                mirror.crash(chance.randrange(1, 15))
            mirror.write(chance.randrange(0, 30), chance.choice([0, 0, 0.1]))
        if chance.random() < 0.7:
            mirror.copy(1000, lag)
        kept = mirror.syncs[chance.randrange(len(mirror.syncs)) :] if mirror.syncs else []  # compacted
        offset = chance.choice(
            [0, chance.randrange(first, mirror.end + 1), mirror.end, mirror.chance.choice(mirror.old)]
        )
        at = MirroredPartition(
            offset, trails(kept).get(P), ends(len(mirror.new)), ends(mirror.end) if seed % 7 else None, seed % 5 > 0
        )
        found = translate(at)
        seen[found.verdict] = seen.get(found.verdict, 0) + 1
        start = max(found.offset, 0)
        read = mirror.new[start:]
        unread = {record for record in mirror.new if record >= offset}
        again = len(read) - len(unread & set(read))
        all_is_copied = mirror.next_read == len(mirror.old)
        if found.verdict is not Verdict.SAFE:
            mirror.copy(1000, lag)  # what MirrorMaker still has to do; a safe position needs nothing more
        assert {record for record in mirror.new if record >= offset} <= set(mirror.new[start:]), (seed, found)
        if found.verdict is Verdict.SAFE:
            assert again == 0, (seed, found)
        if found.verdict is Verdict.WILL_DUPLICATE and (
            not mirror.crashed or (not mirror.holes and all_is_copied and at.old_ends)
        ):
            assert found.repeats is not None
            assert again <= found.repeats, (seed, found)
    assert min(seen.get(v, 0) for v in (Verdict.SAFE, Verdict.WILL_DUPLICATE, Verdict.UNKNOWN)) > 100, seen
