from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest

from airflow_ckpt_provider.parallel import in_parallel, side_by_side


def test_results_in_the_order_of_the_items() -> None:
    gate = threading.Barrier(4)

    def work(item: int) -> int:
        gate.wait(10)  # all four are under way at once, or this fails
        return item * 10

    assert in_parallel(work, [3, 1, 2, 0], workers=4) == [30, 10, 20, 0]


def test_nothing_to_do() -> None:
    assert in_parallel(str, []) == []


@pytest.mark.parametrize(("items", "workers"), [([1], 64), ([1, 2, 3], 1)])
def test_no_thread_is_started_for_one_at_a_time(items: list[int], workers: int) -> None:
    here = threading.current_thread()
    assert in_parallel(lambda _: threading.current_thread(), items, workers=workers) == [here] * len(items)


def test_after_an_error_nothing_new_is_begun() -> None:
    begun: list[int] = []
    never = threading.Event()

    def work(item: int) -> None:
        begun.append(item)
        if item == 2:
            raise FileNotFoundError("the third")
        if item > 2:
            never.wait(0.02)  # long enough for the error to be seen before the queue is worked off

    with pytest.raises(FileNotFoundError, match="the third"):
        in_parallel(work, range(200), workers=1)
    assert begun[:3] == [0, 1, 2]
    assert len(begun) < 200


def test_what_is_under_way_is_waited_for() -> None:
    ended = threading.Event()
    failed = threading.Event()

    def work(item: int) -> None:
        if item == 0:
            assert failed.wait(10)
            ended.set()
        else:
            failed.set()
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        in_parallel(work, [0, 1], workers=2)
    assert ended.is_set()


@pytest.mark.parametrize("items", [[], [7]])
def test_no_thread_is_started_for_a_generator_of_one_item(items: list[int]) -> None:
    here = threading.current_thread()
    assert in_parallel(lambda _: threading.current_thread(), iter(items)) == [here] * len(items)


def test_items_of_a_generator_are_worked_on_at_once() -> None:
    gate = threading.Barrier(3)
    assert in_parallel(lambda item: (gate.wait(10) >= 0, item), iter([3, 1, 2])) == [(True, 3), (True, 1), (True, 2)]


def test_a_generator_that_fails_later() -> None:
    done: list[int] = []

    def items() -> Iterator[int]:
        yield from (1, 2, 3)
        raise OSError("no more of the listing")

    with pytest.raises(OSError, match="no more of the listing"):
        in_parallel(done.append, items(), workers=2)
    assert set(done) <= {1, 2, 3}


class TestSideBySide:
    def test_both_wait_for_each_other(self) -> None:
        gate = threading.Barrier(2)
        first, second = side_by_side(lambda: (gate.wait(10), "one")[1], lambda: (gate.wait(10), "two")[1])
        assert (first, second) == ("one", "two")

    @pytest.mark.parametrize("fails", [0, 1])
    def test_an_error_is_raised_once_both_have_ended(self, fails: int) -> None:
        failed, ended = threading.Event(), threading.Event()

        def failing() -> None:
            failed.set()
            raise OSError("full")

        def other() -> None:
            assert failed.wait(10)
            ended.set()

        with pytest.raises(OSError, match="full"):
            side_by_side(*((failing, other) if fails == 0 else (other, failing)))
        assert ended.is_set()

    def test_of_two_errors_that_of_the_second_is_raised(self) -> None:
        with pytest.raises(KeyError):
            side_by_side(lambda: int("x"), lambda: {}["y"])


def test_the_error_of_the_first_item_is_raised_whichever_comes_first() -> None:
    failed = threading.Event()

    def work(item: int) -> None:
        if item == 1:
            assert failed.wait(10)
        elif item == 3:
            failed.set()
        else:
            return
        raise OSError(f"item {item}")

    with pytest.raises(OSError, match="item 1"):
        in_parallel(work, range(4), workers=4)


@pytest.mark.parametrize("how", ["in order", "side by side"])
def test_an_interrupt_is_raised_when_what_was_under_way_has_ended(how: str) -> None:
    """Ctrl-C, and the timeout of a task: once the call has ended, no thread of it writes any more."""
    main, interrupted, returned = threading.get_ident(), threading.Event(), threading.Event()
    too_early: list[bool] = []

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def work(item: int) -> None:
        if item == 0:
            assert any(waits() or returned.wait(0.001) for _ in range(10_000))
            os.kill(os.getpid(), signal.SIGALRM)
        assert interrupted.wait(10)
        too_early.append(returned.wait(0.2))

    def waits() -> bool:
        """Whether the main thread has begun all it wants to begin, and waits for that."""
        names = {each.name for each in traceback.extract_stack(sys._current_frames()[main])}
        return not names.isdisjoint({"wait", "join"}) and "start" not in names

    calls: dict[str, Callable[[], object]] = {
        "in order": lambda: in_parallel(work, range(100_000), workers=4),
        "side by side": lambda: side_by_side(lambda: work(0), lambda: None),
    }
    before, previous = threading.active_count(), signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            calls[how]()
    finally:
        returned.set()
        signal.signal(signal.SIGALRM, previous)
    assert threading.active_count() == before
    assert too_early
    assert not any(too_early)
