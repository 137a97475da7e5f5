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
    same=True,
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


@pytest.mark.parametrize("offset", [52, 200])
def test_records_that_the_mirror_may_have_skipped_are_not_known(offset: int) -> None:
    """MirrorMaker lost its positions and continued at the newest record: 20 records of the old log were not copied."""
    jumped = trail((50, 0), (151, 101), (252, 182), (299, 229))
    found = translate(replace(COPIED, offset=offset, trail=jumped, new_ends=ends(230)))
    assert found.verdict is Verdict.UNKNOWN
    assert "from 151 → 101 on, 101 offsets of the old log became 81 of the new one" in found.reason
    behind = translate(replace(COPIED, offset=offset, old_ends=ends(320, 50)))
    assert behind.verdict is Verdict.UNKNOWN
    assert "are still to be copied" in behind.reason
    # What was skipped before the offset is lost to nobody.
    before = trail((50, 0), (151, 81), (252, 182), (299, 229))
    assert brief(translate(replace(COPIED, trail=before, new_ends=ends(230)))) == (82, "WILL_DUPLICATE", 48)


def test_a_mirror_that_went_back_is_not_known() -> None:
    at = replace(COPIED, offset=200, trail=trail((50, 0), (210, 160), (180, 161), (299, 280)), new_ends=ends(281))
    found = translate(at)
    assert brief(found) == (162, "UNKNOWN", 19)
    assert "the syncs decreased from 210 to 180" in found.reason
    # Beyond the last sync before it too: records may have been copied after that one.
    assert brief(translate(replace(at, offset=299))) == (280, "UNKNOWN", 0)


#: The old topic had 150 records, was recreated, and has 400: all were copied.
MADE_AGAIN = MirroredPartition(
    150, trail((0, 0), (100, 100), (0, 150), (100, 250), (150, 300)), ends(550), ends(400), True
)


@pytest.mark.parametrize("same", [True, None])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"trail": trail((0, 0), (100, 100), (0, 150), (100, 250), (200, 350))},
        {"offset": 50, "trail": trail((0, 0), (0, 50)), "new_ends": ends(130), "old_ends": ends(80)},
        {"offset": 1, "trail": trail((0, 0), (0, 1)), "new_ends": ends(81), "old_ends": ends(80)},
        {"trail": trail((100, 250), (150, 300))},  # compacted
    ],
    ids=["a sync at the offset", "a sync below it", "the same offset again", "one record", "compacted"],
)
def test_syncs_that_show_a_topic_made_again_tell_nothing(change: dict[str, object], same: bool | None) -> None:
    found = translate(replace(MADE_AGAIN, same=same, **change))  # type: ignore[arg-type]
    assert found.verdict is Verdict.UNKNOWN
    assert "the old topic was recreated" in found.reason


def test_a_topic_that_no_backup_recorded_is_not_known_to_be_the_one_that_was_read() -> None:
    for offset in (151, 200):
        found = translate(replace(COPIED, offset=offset, same=None))
        assert (found.offset, found.verdict) == (translate(replace(COPIED, offset=offset)).offset, Verdict.UNKNOWN)
        assert "no backup shows that the old topic is the one that was read" in found.reason
    timed = TimedStart(1_700_000_000_000, 600_000, 120, True)
    by_time = replace(COPIED, trail=trail((252, 202)), timed=timed)
    assert translate(by_time).verdict is Verdict.WILL_DUPLICATE
    assert translate(replace(by_time, same=None)).verdict is Verdict.UNKNOWN
    again = translate(replace(COPIED, same=False))
    assert brief(again) == (EARLIEST, "UNKNOWN", None)
    assert "recreated since the backup" in again.reason


@pytest.mark.parametrize("offset", [0, 51, 52])
def test_syncs_of_perhaps_another_mirror_prove_nothing(offset: int) -> None:
    at = replace(
        COPIED, offset=offset, trail=trail((0, 0), (51, 51), (299, 299)), new_ends=ends(300), old_ends=ends(300)
    )
    assert translate(at).verdict in (Verdict.SAFE, Verdict.WILL_DUPLICATE)
    found = translate(replace(at, doubt="these may be of another mirror"))
    assert found.verdict is Verdict.UNKNOWN
    assert "another mirror" in found.reason


def test_unread_records_that_the_old_cluster_deleted_before_they_were_copied() -> None:
    timed = TimedStart(1_000_000, 600_000, 0, True)
    cases: list[tuple[dict[str, object], str, str]] = [
        ({"trail": None, "new_ends": ends(0), "old_ends": ends(600, 500)}, "WILL_LOSE", "none of them was copied"),
        ({"offset": 0, "trail": trail((500, 0))}, "WILL_LOSE", "and 500 of them were not copied"),
        ({"trail": trail((600, 100)), "timed": timed}, "WILL_LOSE", "and 300 to 400 of them were not copied"),
        ({"trail": trail((600, 450)), "timed": timed}, "UNKNOWN", "no sync shows that they were copied"),
        ({"trail": None, "timed": timed}, "UNKNOWN", "no sync shows that they were copied"),
        (
            {"trail": trail((90, 90), (500, 100)), "new_ends": ends(600)},
            "UNKNOWN",
            "410 offsets of the old log became 10",
        ),
        ({"trail": trail((90, 90)), "new_ends": ends(600)}, "UNKNOWN", "910 offsets of the old log became 510"),
        ({"trail": trail((90, 90), (510, 510)), "new_ends": ends(900)}, "WILL_DUPLICATE", "at most 9 records"),
        ({"trail": trail((90, 90)), "new_ends": ends(1000)}, "WILL_DUPLICATE", "at most 9 records"),
        ({"trail": trail((99, 99)), "new_ends": ends(1000)}, "SAFE", "exact"),
    ]
    at = MirroredPartition(100, None, ends(500), ends(1000, 500), True, same=True)
    for change, verdict, words in cases:
        found = translate(replace(at, **change))  # type: ignore[arg-type]
        assert (found.verdict.value, words in found.reason) == (verdict, True), (change, found)
        if verdict != "SAFE" and "at most 9" not in words:
            assert f"offsets {change.get('offset', 100)} to 499 are deleted on the old cluster" in found.reason


def test_a_mirror_that_began_behind_the_offset() -> None:
    timed = TimedStart(1_000_000, 600_000, 0, True)
    at = MirroredPartition(100, trail((600, 0)), ends(400), ends(1000), True, timed, same=True)
    found = translate(at)
    assert found.verdict is Verdict.UNKNOWN
    assert "of the 500 offsets from 100 to 599, 0 at most were copied" in found.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"old_ends": ends(120)}, "the old topic was recreated"),
        ({"new_ends": ends(100)}, "the new topic was recreated"),
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
        ({"trail": trail((0, 0), (249, 249)), "old_ends": ends(250)}, (EARLIEST, "SAFE", 0)),
        ({}, (EARLIEST, "WILL_LOSE", 0)),  # 50 records are gone, and were not copied
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


#: A record: in which life of the old topic it was written, and its offset.
Written = tuple[int, int]


@dataclass
class Copying:
    """One partition and MirrorMaker, as its source has it: at least once, a sync where ``PartitionState.update`` wants one."""

    chance: random.Random
    old: list[int] = field(default_factory=list)  # offsets that hold a record
    end: int = 0
    earliest: int = 0
    life: int = 0
    written: list[Written] = field(default_factory=list)
    new: list[Written] = field(default_factory=list)  # what each record of the new log is a copy of
    syncs: list[OffsetSync] = field(default_factory=list)
    next_read: int = 0  # index into old
    crashed: bool = False
    holes: bool = False

    def write(self, count: int, holes: float) -> None:
        self.holes |= holes > 0
        for _ in range(count):
            self.end += 1 + (self.chance.random() < holes) * self.chance.randrange(1, 4)
            self.old.append(self.end - 1)
            self.written.append((self.life, self.end - 1))

    def copy(self, count: int, lag: int) -> None:
        """A life of MirrorMaker: it starts at what it committed, which is at or before what it wrote."""
        previous, synced, delayed = -1, None, None
        for record in self.old[self.next_read : self.next_read + count]:
            self.new.append((self.life, record))
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

    def expire(self, count: int) -> None:
        """Delete the first records, copied or not; MirrorMaker continues at the first that is left."""
        gone = min(count, len(self.old))
        self.earliest = self.old[gone] if gone < len(self.old) else self.end
        del self.old[:gone]
        self.next_read = max(self.next_read - gone, 0)

    def jump(self) -> None:
        """MirrorMaker lost its positions, and continues at the newest record (``auto.offset.reset=latest``)."""
        self.next_read = len(self.old)

    def make_again(self) -> None:
        """Delete the old topic and make it again; MirrorMaker begins it from its start, and the new topic stays."""
        self.life += 1
        self.old.clear()
        self.end = self.earliest = self.next_read = 0


def test_random_mirrors_lose_nothing_and_repeat_no_more_than_was_said() -> None:
    seen: dict[tuple[Verdict, bool, bool], int] = {}
    for seed in range(6000):
        chance = random.Random(seed)
        mirror = Copying(chance)
        mirror.write(chance.randrange(1, 120), chance.choice([0, 0, 0.1]))
        mirror.next_read = chance.randrange(len(mirror.old)) if chance.random() < 0.5 else 0
        lag = chance.choice([1, 5, 20])
        lives = [mirror.end]  # of each life of the old topic, its end
        expiring, remade = chance.random() < 0.4, chance.random() < 0.25
        for _ in range(chance.randrange(1, 4)):
            mirror.copy(chance.choice([chance.randrange(1, 60), 1000]), lag)
            if chance.random() < 0.3:
                mirror.crash(chance.randrange(1, 15))
            if chance.random() < 0.1:
                mirror.jump()
            if remade and chance.random() < 0.5:
                mirror.make_again()
                mirror.write(chance.randrange(1, 120), chance.choice([0, 0, 0.1]))
                lives.append(0)
            if expiring:
                mirror.expire(chance.randrange(1, 100))
            mirror.write(chance.randrange(0, 30), chance.choice([0, 0, 0.1]))
            lives[-1] = mirror.end
        if chance.random() < 0.7:
            mirror.copy(1000, lag)
        if mirror.life and mirror.next_read == 0:
            mirror.copy(
                1, lag
            )  # MirrorMaker has seen that the topic was recreated: what it has not seen no offset shows
        kept = mirror.syncs[chance.randrange(len(mirror.syncs)) :] if mirror.syncs else []  # compacted
        life = chance.randrange(len(lives))  # of the topic that was read
        offset = chance.choice([0, chance.randrange(lives[life] + 1), lives[life], chance.choice([*mirror.old, 0])])
        same = chance.choice([life == mirror.life, life == mirror.life, None])
        at = MirroredPartition(
            offset,
            trails(kept).get(P),
            ends(len(mirror.new)),
            ends(mirror.end, mirror.earliest) if seed % 7 else None,
            seed % 5 > 0,
            same=same,
        )
        found = translate(at)
        kind = (found.verdict, expiring, len(lives) > 1)
        seen[kind] = seen.get(kind, 0) + 1
        start = max(found.offset, 0)
        unread = {(n, o) for n, o in mirror.written if n > life or (n == life and o >= offset)}
        again = sum(record not in unread for record in mirror.new[start:])
        again += len([r for r in mirror.new[start:] if r in unread]) - len(unread & set(mirror.new[start:]))
        all_is_copied = mirror.next_read == len(mirror.old)
        copied = set(mirror.new) & unread
        if found.verdict in (Verdict.SAFE, Verdict.WILL_DUPLICATE) and offset == 0:
            # Nothing was read: what an earlier life of the topic lost is nothing that this position can keep.
            unread = {record for record in unread if record[0] == mirror.life or record in copied}
        if found.verdict is not Verdict.SAFE or not mirror.new:
            # What MirrorMaker still has to do: a safe position needs nothing more, unless nothing was copied yet.
            mirror.copy(1000, lag)
        if len(lives) == 1 and not expiring:
            assert copied <= set(mirror.new[start:]), (seed, found)
        if found.verdict in (Verdict.SAFE, Verdict.WILL_DUPLICATE):
            assert unread <= set(mirror.new[start:]), (seed, found)
        if found.verdict is Verdict.SAFE:
            assert again == 0, (seed, found)
        if found.verdict is Verdict.WILL_DUPLICATE and (
            (not mirror.crashed and len(lives) == 1) or (not mirror.holes and all_is_copied and at.old_ends)
        ):
            assert found.repeats is not None
            assert again <= found.repeats, (seed, found)
    for verdict in (Verdict.SAFE, Verdict.WILL_DUPLICATE, Verdict.UNKNOWN):
        for expiring in (False, True):
            assert seen.get((verdict, expiring, False), 0) > 50, seen
    assert seen.get((Verdict.WILL_LOSE, True, False), 0) > 50, seen
    assert sum(count for (_, _, again), count in seen.items() if again) > 500, seen
