"""Many requests at once: a store is far away, and its files are small."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sized
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
One = TypeVar("One")
Other = TypeVar("Other")

#: Requests under way at once. Small objects dominate, so it is latency that has to be hidden.
WORKERS = 64
#: Seconds in which a few files of a local disk are done. All 64 threads have begun after seven of them.
_PAUSE = 0.0003


def side_by_side(first: Callable[[], One], second: Callable[[], Other]) -> tuple[One, Other]:
    """Do two things at once that wait for different answers; the second one in the calling thread.

    If both fail, the error of the second is raised.
    """
    with ThreadPoolExecutor(1) as beside:  # waits for the first, also if the second fails or the wait is interrupted
        asked = beside.submit(first)
        other = second()
        return asked.result(), other


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item], *, workers: int = WORKERS) -> list[Result]:
    """Apply ``work`` to all items, several at once; results in the order of the items. See :func:`in_order`."""
    results: list[Result] = []
    in_order(work, items, results.append, workers=workers)
    return results


def in_order(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    take: Callable[[Result], object],
    *,
    workers: int = WORKERS,
) -> None:
    """Apply ``work`` to all items, several at once, and give the results away in the order of the items.

    After an error nothing new is begun. What was under way ends, then the error of the first item in the order is raised, as
    if they had been worked on one by one. Items are taken as they are worked on, so that a million of them need no memory.

    :param take: given each result, by one thread at a time.
    """
    numbered = enumerate(items)
    if isinstance(items, Sized):
        most = len(items)
    else:
        head = list(islice(numbered, 2))
        most = workers if len(head) == 2 else 1
        numbered = chain(head, numbered)  # type: ignore[assignment]
    most = min(workers, most)
    results: dict[int, Result] = {}
    begun = taken = 0
    #: Number of an item -> why it failed. All before it were begun.
    failed: dict[int, BaseException] = {}
    all_begun = False
    lock = threading.Lock()

    def take_turns() -> None:
        nonlocal begun, taken, all_begun
        while True:
            with lock:
                if failed:
                    return
                try:
                    number, item = next(numbered)
                except StopIteration:
                    all_begun = True
                    return
                except BaseException as e:
                    failed[begun] = e
                    return
                begun += 1
            try:
                result = work(item)
                with lock:
                    results[number] = result
                    while taken in results:
                        take(results.pop(taken))
                        taken += 1
            except BaseException as e:
                failed[number] = e
                return

    # To start a thread costs more than a file on a local disk: none for one item, and no more once the last has begun. So there
    # are twice as many each time, with a pause before.
    if most <= 1:
        take_turns()
    else:
        with ThreadPoolExecutor(max_workers=most) as pool:
            try:
                turns: list[Future[None]] = []
                while len(turns) < most and not (all_begun or failed):
                    more = min(len(turns) or 1, most - len(turns))
                    turns += [pool.submit(take_turns) for _ in range(more)]
                    wait(turns, timeout=_PAUSE)
                wait(turns)
            except BaseException as e:  # Ctrl-C: what has not begun must not
                failed[-1] = e
                raise
    if failed:
        raise failed[min(failed)]
