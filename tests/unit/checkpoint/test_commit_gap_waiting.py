"""One function judges every poll: done, waiting, stuck, was rewound."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.waiting import State, look
from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
from airflow_ckpt_provider.errors import NotACheckpointError, StorageError, UnreadableLogError
from tests.support.checkpoints import offsets_log
from tests.support.timed_store import NOON, Stream, at
from tests.support.watched_gaps import Watch, one_look, wait_for
from tests.support.watched_stores import watched

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
