from __future__ import annotations

import threading

import pytest

from airflow_ckpt_provider.backup.transfer import CopyProgress, Meter, in_parallel


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


def test_meter() -> None:
    seen: list[CopyProgress] = []
    meter = Meter(seen.append, files=2, size=30)
    meter.add(10)
    meter.add(20)
    assert seen == [CopyProgress(1, 2, 10, 30), CopyProgress(2, 2, 30, 30)]
    Meter(None, files=1, size=1).add(1)


def test_meter_counts_right_from_many_threads() -> None:
    seen: list[CopyProgress] = []
    meter = Meter(seen.append, files=500, size=500)
    in_parallel(meter.add, [1] * 500, workers=16)
    assert [p.files_done for p in seen] == list(range(1, 501))
    assert seen[-1] == CopyProgress(500, 500, 500, 500)
