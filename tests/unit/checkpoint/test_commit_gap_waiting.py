"""One function judges every poll: done, waiting, stuck, was rewound."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.conditions import Condition, Wait
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.checkpoint.waiting import Answer, State, look
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
from airflow_ckpt_provider.errors import NotACheckpointError, StorageError, UnreadableLogError
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import commit_log, metadata, offsets_log
from tests.support.timed_store import NOON, Stream, at
from tests.support.watched_stores import watched

PATIENCE = timedelta(minutes=10)


def wait_for(kind: str = "drained", value: int | None = None, **more: Any) -> Wait:
    since = more.pop("since_batch", None)
    return Wait(Condition(kind, value, since).check(), **{"stuck_after": PATIENCE, **more})


class Watch:
    """Reads again and again; the memory goes through JSON each time, as between two processes."""

    def __init__(self, stream: Stream, wait: Wait, memory: Memory | None = None) -> None:
        self.location, self.store = watched(stream.location)
        self.wait = wait
        self.memory = memory or Memory()
        self.cost: list[tuple[int, int]] = []

    def look(self, now: datetime) -> Answer:
        before = len(self.store.requests)
        answer, memory = look(self.location, self.wait, self.memory, now=now)
        asked = [operation for operation, _ in self.store.requests[before:]]
        self.cost.append((asked.count("list"), asked.count("read")))
        assert set(asked) <= {"list", "read", "walk"}
        self.memory = Memory.from_json(json.loads(json.dumps(memory.to_json())))
        assert self.memory == memory
        assert json.loads(json.dumps(answer.progress)) == answer.progress
        return answer

    def states(self, *moments: float) -> list[str]:
        return [self.look(at(m)).state.value for m in moments]


def one_look(stream: Stream, wait: Wait, now: datetime) -> Answer:
    return Watch(stream, wait).look(now)


# --- the four conditions ---


@pytest.mark.parametrize(
    ("kind", "value", "committed", "logged", "state"),
    [
        ("drained", None, 5, 5, "done"),
        ("drained", None, 4, 5, "waiting"),
        ("committed_batch", 5, 5, 6, "done"),
        ("committed_batch", 6, 5, 6, "waiting"),
        ("committed_batch", 0, 0, 0, "done"),
        ("max_gap", 0, 5, 5, "done"),
        ("max_gap", 0, 4, 5, "waiting"),
        ("max_gap", 1, 4, 5, "done"),
    ],
)
def test_condition(kind: str, value: int | None, committed: int, logged: int, state: str) -> None:
    stream = Stream().start().ran(range(committed + 1))
    for batch in range(committed + 1, logged + 1):
        stream.log(batch)
    answer = one_look(stream, wait_for(kind, value, quiet_for=timedelta(0)), at(logged + 1))
    assert answer.state.value == state, answer.message
    assert (answer.progress["latest_logged"], answer.progress["latest_committed"]) == (logged, committed)


@pytest.mark.parametrize("batches", [range(0), range(1), range(7, 9)], ids=["none", "first", "purged"])
def test_progressed_by_counts_from_the_first_look(batches: range) -> None:
    stream = Stream().start().ran(batches)
    watch = Watch(stream, wait_for("progressed_by", 2))
    assert watch.states(20) == ["waiting"]
    stream.ran([batches.stop])
    assert watch.states(21) == ["waiting"]
    stream.ran([batches.stop + 1])
    assert watch.states(22) == ["done"]


def test_progressed_by_since_a_batch() -> None:
    stream = Stream().start().ran(range(6))
    assert one_look(stream, wait_for("progressed_by", 2, since_batch=3), at(9)).state is State.DONE
    assert one_look(stream, wait_for("progressed_by", 3, since_batch=3), at(9)).state is State.WAITING
    assert one_look(stream, wait_for("progressed_by", 6, since_batch=-1), at(9)).state is State.DONE


def test_progressed_by_since_a_time_when_nothing_else_is_left() -> None:
    """Reschedule mode before Airflow 3.3: the times of the files show what was committed when the wait began."""
    stream = Stream().start().ran(range(10))
    began = Memory(started=at(6.5))
    for value, state in ((3, State.DONE), (4, State.WAITING)):
        assert Watch(stream, wait_for("progressed_by", value), began).look(at(11)).state is state
    purged = Stream().start().ran(range(8, 10))
    assert Watch(purged, wait_for("progressed_by", 2), began).look(at(11)).state is State.DONE
    unknown = Stream(tells_times=False).start().ran(range(10))
    assert Watch(unknown, wait_for("progressed_by", 1), began).look(at(11)).state is State.WAITING


def test_async_progress_tracking_leaves_numbers_out() -> None:
    stream = Stream().start().ran([0, 3, 9]).log(25)
    answer = one_look(stream, wait_for("max_gap", 1), at(26))
    assert (answer.state, answer.progress["gap"], answer.progress["uncommitted"]) == (State.DONE, 16, 1)
    stream.commit(25)
    assert one_look(stream, wait_for(quiet_for=timedelta(0)), at(26)).state is State.DONE


def test_continuous_mode_logs_no_time() -> None:
    stream = Stream().start()
    for epoch in range(3):
        stream.put(f"offsets/{epoch}", offsets_log('{"0":{"value":1,"runTimeMs":2}}'), at(epoch))
        stream.commit(epoch)
    answer = one_look(stream, wait_for(quiet_for=timedelta(0)), at(4))
    assert (answer.state, answer.progress["batch_time"]) == (State.DONE, None)


# --- quiet ---


def test_drained_only_when_quiet() -> None:
    stream = Stream().start().ran(range(3))  # the newest commit is of 2 min 10 s
    wait = wait_for(quiet_for=timedelta(minutes=5))
    assert Watch(stream, wait).states(7, 7.2) == ["waiting", "done"]
    assert one_look(stream, wait, at(7.2)).state is State.DONE, "the times of the files show, no second look is needed"


def test_a_new_batch_begins_the_quiet_anew() -> None:
    stream = Stream().start().ran(range(3))
    watch = Watch(stream, wait_for(quiet_for=timedelta(minutes=5)))
    assert watch.states(6) == ["waiting"]
    stream.log(3, at(6.5))
    assert watch.states(7) == ["waiting"]
    stream.commit(3, at(7.5))
    assert watch.states(8, 12, 12.5) == ["waiting", "waiting", "done"]


def test_a_clock_ahead_of_the_stores_does_not_cut_the_quiet_short() -> None:
    """By an hour here. What did not exist at the look before is not older than that look."""
    stream = Stream().start().ran(range(3)).log(3)
    watch = Watch(stream, wait_for(quiet_for=timedelta(minutes=5), stuck_after=None))
    assert watch.states(63) == ["waiting"]
    stream.commit(3)
    assert watch.states(64, 67.9, 68.1) == ["waiting", "waiting", "done"]


def test_a_store_that_tells_no_times() -> None:
    stream = Stream(tells_times=False).start().ran(range(3))
    watch = Watch(stream, wait_for(quiet_for=timedelta(minutes=5)))
    assert watch.states(60, 64, 65) == ["waiting", "waiting", "done"]


def test_nothing_logged_yet() -> None:
    watch = Watch(Stream().start(), wait_for(quiet_for=timedelta(minutes=1)))
    assert watch.states(0, 1) == ["waiting", "done"]


# --- stuck ---


def test_stuck_when_nothing_is_written_any_more() -> None:
    stream = Stream().start().ran(range(3)).log(3)
    stream.put("state/0/1/3.delta", b"", at(3.5))
    watch = Watch(stream, wait_for())
    assert watch.states(5, 13.4) == ["waiting", "waiting"], "the state was written to ten minutes ago"
    answer = watch.look(at(13.6))
    assert answer.state is State.STUCK
    assert answer.message == (
        "memory://ck/orders is stuck: batch 3 was begun and is not committed, and nothing was written to offsets/, "
        "commits/ or state/ for 10 min 6 s (newest logged batch 3, newest committed 2)"
    )
    assert answer.hint == "see whether the query still runs, and what its driver and its sink wait for"


def test_stuck_is_seen_at_once_by_the_times_of_the_files() -> None:
    assert one_look(Stream().start().ran(range(3)).log(3), wait_for(), at(60)).state is State.STUCK


def test_state_that_is_written_is_no_standstill() -> None:
    stream = Stream().start().ran(range(3)).log(3)
    watch = Watch(stream, wait_for())
    for minutes in (14, 24, 34):
        stream.put("state/0/1/3.delta", b"", at(minutes - 1))
        assert watch.states(minutes) == ["waiting"]
    assert watch.states(42.9, 43.1) == ["waiting", "stuck"]


def test_the_state_is_not_listed_before_the_logs_are_old() -> None:
    stream = Stream().start().ran(range(3)).log(3)
    stream.put("state/0/1/3.delta", b"", at(12))
    watch = Watch(stream, wait_for())
    watch.states(4, 8, 12)
    assert watch.store.count("walk") == 0
    watch.states(14, 16, 18, 20)
    assert watch.store.count("walk") == 1, "it was written to at 12, so it needs no look before 22"
    assert watch.states(22.1) == ["stuck"]


@pytest.mark.parametrize("kind", ["progressed_by", "committed_batch"])
def test_an_idle_stream_is_not_stuck(kind: str) -> None:
    stream = Stream().start().ran(range(3))
    assert Watch(stream, wait_for(kind, 9)).states(10, 1000) == ["waiting", "waiting"]


def test_never_stuck_without_a_limit() -> None:
    assert one_look(Stream().start().log(0), wait_for(stuck_after=None), at(9999)).state is State.WAITING


def test_the_condition_comes_before_stuck() -> None:
    stream = Stream().start().ran(range(3)).log(3)
    assert one_look(stream, wait_for("committed_batch", 2), at(60)).state is State.DONE


def test_commits_ahead_of_offsets() -> None:
    """Not drained, whatever the numbers say: offsets were lost."""
    stream = Stream().start().ran(range(5)).drop("offsets/3", "offsets/4")
    watch = Watch(stream, wait_for(quiet_for=timedelta(0)))
    assert watch.states(5) == ["waiting"]
    answer = watch.look(at(20))
    assert answer.state is State.STUCK
    assert "commits/ is ahead of offsets/" in answer.message
    assert one_look(stream, wait_for("max_gap", 0), at(5)).state is State.WAITING


# --- was rewound ---


@pytest.mark.parametrize(
    ("rewrite", "reason"),
    [
        (lambda s: s.drop("offsets/5", "commits/5"), "its newest committed batch was 5 and is 4"),
        (
            lambda s: s.drop(*(f"{log}/{b}" for b in range(6) for log in ("offsets", "commits"))),
            "its newest committed batch was 5, and now it has none",
        ),
        (
            lambda s: s.commit(5, at(8)).ran([6]),
            "commits/5 was written at 2026-11-21T12:05:10+00:00 and again at 2026-11-21T12:08:00+00:00",
        ),
        (lambda s: s.drop("offsets/5", "commits/5").ran([7]), "commits/5 is gone while older ones are there"),
        (lambda s: s.start("two"), "it was query one and is query two"),
    ],
    ids=["rewound", "emptied", "rewound and run on", "rewound and run on with gaps", "another query"],
)
@pytest.mark.parametrize("kind", ["drained", "committed_batch"])
def test_history_rewritten_during_the_wait(rewrite: Any, reason: str, kind: str) -> None:
    stream = Stream().start().ran(range(6))
    wait = wait_for(kind, 7 if kind == "committed_batch" else None, quiet_for=timedelta(hours=1))
    watch = Watch(stream, wait)
    assert watch.states(6, 6.5) == ["waiting", "waiting"]
    rewrite(stream)
    answers = [watch.look(at(m)) for m in (9, 10, 11)]
    ended = next(a for a in answers if a.state is not State.WAITING)
    assert ended.state is State.WENT_BACK
    assert ended.message == f"the history of memory://ck/orders was rewritten during the wait: {reason}"


def test_purged_logs_are_no_rewriting() -> None:
    stream = Stream().start().ran(range(6))
    watch = Watch(stream, wait_for("committed_batch", 99))
    for newest in range(6, 40):
        stream.ran([newest]).drop(f"offsets/{newest - 4}", f"commits/{newest - 4}")
        assert watch.states(newest + 1) == ["waiting"]
    stream.drop(*(f"{log}/{b}" for b in range(39) for log in ("offsets", "commits"))).ran(range(99, 102))
    assert watch.states(102) == ["done"], "the newest commit seen may be long purged"


def test_a_planned_batch_that_is_dropped_is_no_history() -> None:
    """Real-time and continuous mode drop what was logged beyond the newest commit when they start."""
    stream = Stream().start().ran(range(3)).log(3)
    watch = Watch(stream, wait_for("committed_batch", 9))
    assert watch.states(4) == ["waiting"]
    stream.drop("offsets/3")
    assert watch.states(5) == ["waiting"]


def test_the_query_id_is_read_often_enough_while_the_stream_moves_at_every_look() -> None:
    stream = Stream().start().ran(range(3)).log(3)
    watch = Watch(stream, wait_for("committed_batch", 99))
    for batch in range(3, 20):
        assert watch.states(batch + 1) == ["waiting"]
        stream.commit(batch).log(batch + 1)
    stream.start("two")
    states = []
    for batch in range(20, 24):
        stream.commit(batch).log(batch + 1)
        states += watch.states(batch + 1)
    assert "went_back" in states
    assert all(cost == (2, 1) for cost in watch.cost)


# --- a checkpoint that is missing, sealed or broken ---


def test_missing() -> None:
    with pytest.raises(NotACheckpointError) as e:
        one_look(Stream(), wait_for(), NOON)
    assert e.value.message == (
        "memory://ck/orders is not a checkpoint: it has no offsets/, no commits/ and no metadata"
    )
    assert "missing_ok=True" in str(e.value.hint)


def test_missing_ok_waits_for_its_first_batches() -> None:
    stream = Stream()
    watch = Watch(stream, wait_for("progressed_by", 1, missing_ok=True))
    answer = watch.look(NOON)
    assert answer.message == "memory://ck/orders: waiting for progressed_by 1: there is no checkpoint yet"
    assert watch.states(60) == ["waiting"]
    stream.start().log(0, at(61))
    assert watch.states(62) == ["waiting"]
    stream.commit(0, at(63))
    assert watch.states(64) == ["done"]


def test_missing_ok_is_not_drained() -> None:
    watch = Watch(Stream(), wait_for(missing_ok=True, quiet_for=timedelta(0)))
    assert watch.states(0, 100) == ["waiting", "waiting"]


def seal(stream: Stream, number: int, reason: str = "an upgrade") -> Seal:
    mark = Seal(number, "7f3a", reason, "dag/run/task", at(10))
    stream.put(f"offsets/{number}", mark.sentence.encode(), at(10))
    return mark


def test_sealed_is_drained_when_its_newest_batch_is_committed() -> None:
    stream = Stream().start().ran(range(6))
    mark = seal(stream, 6)
    answer = one_look(stream, wait_for(quiet_for=timedelta(hours=1)), at(11))
    assert answer.state is State.DONE, answer.message
    assert answer.message == (
        "memory://ck/orders: drained: newest logged batch 5, newest committed 5; sealed by plan 7f3a (an upgrade, "
        "dag/run/task)"
    )
    assert (answer.progress["latest_logged"], answer.progress["gap"]) == (5, 0)
    assert answer.progress["sealed"] == mark.sentence
    assert answer.progress["sources"] == [{"index": 0, "kind": "kafka", "offset": {"orders": {"0": 600}}}]


def test_sealed_while_its_newest_batch_runs() -> None:
    stream = Stream().start().ran(range(5)).log(5, at(9.9))
    seal(stream, 6)
    watch = Watch(stream, wait_for())
    assert watch.states(11) == ["waiting"]
    stream.commit(5, at(11.1))
    assert watch.states(12) == ["done"]


def test_sealed_with_a_batch_that_nobody_commits_is_stuck() -> None:
    stream = Stream().start().ran(range(5)).log(5)
    seal(stream, 6)
    watch = Watch(stream, wait_for())
    assert watch.states(30) == ["waiting"], "what was read was the seal; what lies below it may be one too"
    answer = watch.look(at(31))
    assert answer.state is State.STUCK
    assert "sealed by plan 7f3a (an upgrade, dag/run/task)" in answer.message


def test_sealed_stream_does_not_progress_and_is_not_stuck() -> None:
    stream = Stream().start().ran(range(6))
    seal(stream, 6)
    watch = Watch(stream, wait_for("progressed_by", 1))
    assert watch.states(11, 60, 120) == ["waiting"] * 3
    assert "sealed by plan 7f3a" in watch.look(at(121)).message
    stream.drop("offsets/6").log(6, at(122)).commit(6, at(123))
    assert watch.states(124) == ["done"]


def test_two_seals() -> None:
    """A restore that raised its seal and was killed before it removed the lower one."""
    stream = Stream().start().ran(range(5))
    seal(stream, 5)
    seal(stream, 9)
    assert Watch(stream, wait_for()).states(60, 61) == ["waiting", "done"]


def test_async_progress_tracking_may_commit_at_the_seal() -> None:
    stream = Stream().start().ran(range(6))
    seal(stream, 6)
    stream.commit(6, at(10.1))
    answer = one_look(stream, wait_for(quiet_for=timedelta(0)), at(11))
    assert (answer.state, answer.progress["latest_logged"]) == (State.DONE, 5)
    assert answer.progress["sealed"] is not None


def test_place_that_is_being_restored_is_not_drained() -> None:
    stream = Stream()
    seal(stream, 6)
    assert Watch(stream, wait_for(quiet_for=timedelta(0))).states(11, 100) == ["waiting", "waiting"]


@pytest.mark.parametrize("content", [b"", b"v9\n{}\n1", b"garbage"], ids=["empty", "newer Spark", "garbage"])
def test_newest_entry_that_cannot_be_read(content: bytes) -> None:
    stream = Stream().start().ran(range(3))
    stream.put("offsets/3", content, at(3))
    with pytest.raises(UnreadableLogError, match="offsets/3"):
        one_look(stream, wait_for(), at(4))


def test_names_that_are_no_numbers() -> None:
    stream = Stream().start().ran(range(3))
    for name in ("offsets/.7.crc", "offsets/7.tmp", "offsets/x", "commits/_SUCCESS", "commits/007", "offsets/-1"):
        stream.put(name, b"x", at(50))
    answer = one_look(stream, wait_for(quiet_for=timedelta(0)), at(4))
    assert (answer.state, answer.progress["latest_logged"], answer.progress["latest_committed"]) == (State.DONE, 2, 2)


def test_a_file_where_a_directory_should_be() -> None:
    stream = Stream()
    stream.put("offsets", b"x", NOON)
    with pytest.raises(NotACheckpointError):
        one_look(stream, wait_for(), NOON)


# --- failures of the store ---


def test_a_look_that_fails_is_made_again_and_at_last_raised() -> None:
    stream = Stream().start().ran(range(3))
    broken = {"on": True}

    def before(operation: str, path: str) -> None:
        if broken["on"]:
            raise StorageError(f"could not {operation} {path}: no answer", hint="check the network")

    location, _ = watched(stream.location, before)
    wait = wait_for("committed_batch", 5)
    with pytest.raises(StorageError, match="could not list /ck/orders/commits"):
        look(location, wait, Memory(), now=at(3))

    broken["on"] = False
    _, memory = look(location, wait, Memory(), now=at(3))
    broken["on"] = True
    for number in (1, 2):
        answer, memory = look(location, wait, memory, now=at(4))
        assert answer.state is State.WAITING
        assert answer.message == f"look {number} of 3 failed: could not list /ck/orders/commits: no answer"
    broken["on"] = False
    _, memory = look(location, wait, memory, now=at(5))
    broken["on"] = True
    for _ in range(2):
        _, memory = look(location, wait, memory, now=at(6))
    with pytest.raises(StorageError):
        look(location, wait, memory, now=at(7))


# --- cost and result ---


def long_log(batches: int) -> Stream:
    stream = Stream().start()
    entry, done = offsets_log("1", metadata={}), commit_log()
    for batch in range(batches):
        stream.store.files[f"/ck/orders/offsets/{batch}"] = (entry, NOON)
        stream.store.files[f"/ck/orders/commits/{batch}"] = (done, NOON)
    return stream


def test_cost_of_a_hundred_thousand_batches() -> None:
    watch = Watch(long_log(100_000), wait_for(quiet_for=timedelta(hours=1)))
    assert watch.states(61) == ["done"]
    assert watch.cost == [(2, 1)]


@pytest.mark.parametrize("batches", [1, 1000])
@pytest.mark.parametrize("kind", ["drained", "progressed_by", "committed_batch"])
def test_cost(batches: int, kind: str) -> None:
    stream = long_log(batches)
    value = {"drained": None, "progressed_by": 2, "committed_batch": batches + 1}[kind]
    watch = Watch(stream, wait_for(kind, value, quiet_for=timedelta(hours=20)))
    watch.states(1, 2)
    for batch in (batches, batches + 1):
        stream.log(batch, at(3))
        watch.look(at(3))
        stream.commit(batch, at(3))
        watch.look(at(3.1))
    answer = watch.look(at(3000))
    assert answer.state is State.DONE
    assert answer.progress["latest_committed"] == batches + 1
    assert all(lists == 2 and reads <= 1 for lists, reads in watch.cost), watch.cost


def test_cost_under_a_seal() -> None:
    """One read more than elsewhere, once: the entry below the seal, for the report."""
    stream = Stream().start().ran(range(6))
    seal(stream, 6)
    watch = Watch(stream, wait_for("progressed_by", 9))
    watch.states(11, 12, 13)
    assert watch.cost == [(2, 1)] * 3
    watch = Watch(stream, wait_for())
    assert watch.states(11) == ["done"]
    assert watch.cost == [(2, 2)]


def test_result() -> None:
    stream = Stream().start().ran(range(6))
    answer = one_look(stream, wait_for(quiet_for=timedelta(0)), at(6))
    assert answer.progress == {
        "checkpoint": "memory://ck/orders",
        "latest_logged": 5,
        "latest_committed": 5,
        "gap": 0,
        "uncommitted": 0,
        "batch_time": "2024-11-21T01:50:16.395000+00:00",
        "logged_at": "2026-11-21T12:05:00+00:00",
        "committed_at": "2026-11-21T12:05:10+00:00",
        "seconds_since_commit": 50.0,
        "batches_per_minute": 1.0,
        "sources": [{"index": 0, "kind": "kafka", "offset": {"orders": {"0": 600}}}],
        "sealed": None,
    }


def test_rate_is_not_known_of_a_checkpoint_that_was_restored() -> None:
    stream = Stream().start()
    for batch in range(5):
        stream.log(batch, at(9)).commit(batch, at(9))
    assert one_look(stream, wait_for(quiet_for=timedelta(0)), at(10)).progress["batches_per_minute"] is None


def test_an_entry_that_is_purged_between_listing_and_reading() -> None:
    stream = Stream().start().ran(range(3))

    def before(operation: str, path: str) -> None:
        if operation == "read" and path.endswith("offsets/2"):
            stream.drop("offsets/0", "offsets/1", "offsets/2", "commits/0", "commits/1").ran(range(3, 5))

    location, _ = watched(stream.location, before)
    answer, memory = look(location, wait_for(quiet_for=timedelta(0)), Memory(), now=at(9))
    assert answer.state is State.WAITING
    assert look(location, wait_for(quiet_for=timedelta(0)), memory, now=at(10))[0].state is State.DONE


def test_a_stream_that_moves_between_the_two_listings_never_looks_further_than_it_is() -> None:
    stream = Stream().start().ran(range(3)).log(3)

    def before(operation: str, path: str) -> None:
        if operation == "list" and path.endswith("offsets"):
            stream.commit(3).log(4)

    location, _ = watched(stream.location, before)
    answer, _ = look(location, wait_for(quiet_for=timedelta(0)), Memory(), now=at(4))
    assert (answer.state, answer.progress["gap"]) == (State.WAITING, 2)


def test_memory_of_a_newer_version_is_understood() -> None:
    assert Memory.from_json({"base": 3, "something_new": 1}) == Memory(base=3)
    assert Memory.from_json(None) == Memory()


def test_place_is_named_whatever_the_store() -> None:
    stream = Stream()
    assert isinstance(stream.location, Location)
    stream.put("metadata", metadata(), NOON)
    assert "memory://ck/orders" in one_look(stream, wait_for("committed_batch", 1), NOON).message
