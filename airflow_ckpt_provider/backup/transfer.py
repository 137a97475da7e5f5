"""Many files at once: what creating, verifying and restoring a backup have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sized
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")
One = TypeVar("One")
Other = TypeVar("Other")

#: Requests under way at once. Small objects dominate, so it is latency that has to be hidden.
WORKERS = 64
#: Seconds in which a few files of a local disk are done. All 64 threads have begun after seven of them.
_PAUSE = 0.0003


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a long piece of work is."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int


OnProgress = Callable[[CopyProgress], None]


class Meter:
    """Counts what is done and informs whoever wants to know. May be used from several threads.

    :param on_progress: called after each file, or ``None``.
    """

    def __init__(self, on_progress: OnProgress | None, *, files: int, size: int) -> None:
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._progress = CopyProgress(0, files, 0, size)

    def add(self, size: int, files: int = 1) -> None:
        """Count one more file, or several, of ``size`` bytes."""
        with self._lock:
            p = self._progress
            self._progress = CopyProgress(p.files_done + files, p.files_total, p.bytes_done + size, p.bytes_total)
            if self._on_progress:
                self._on_progress(self._progress)


def side_by_side(first: Callable[[], One], second: Callable[[], Other]) -> tuple[One, Other]:
    """Do two things at once that wait for different answers."""
    one, other = in_parallel(lambda work: work(), cast(list[Callable[[], Any]], [first, second]), workers=2)
    return one, other


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

    The first error is raised after what was under way has ended; nothing new is begun after it. Items are taken as they are
    worked on, so that a million of them need no memory.

    :param take: given each result, by one thread at a time.
    """
    numbered = enumerate(items)
    results: dict[int, Result] = {}
    taken = 0
    failed: list[BaseException] = []
    all_begun = False
    lock = threading.Lock()

    def take_turns() -> None:
        nonlocal taken, all_begun
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
                    failed.append(e)
                    return
            try:
                result = work(item)
                with lock:
                    results[number] = result
                    while taken in results:
                        take(results.pop(taken))
                        taken += 1
            except BaseException as e:
                failed.append(e)
                return

    # To start a thread costs more than a file on a local disk: none for one item, and no more once the last has begun. So there
    # are twice as many each time, with a pause before.
    threads = min(workers, len(items)) if isinstance(items, Sized) else workers
    if threads <= 1:
        take_turns()
    else:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            try:
                workers_begun: list[Future[None]] = []
                while len(workers_begun) < threads and not (all_begun or failed):
                    more = min(len(workers_begun) or 1, threads - len(workers_begun))
                    workers_begun += [pool.submit(take_turns) for _ in range(more)]
                    wait(workers_begun, timeout=_PAUSE)
                wait(workers_begun)
            except BaseException as e:  # Ctrl-C: what has not begun must not
                failed.append(e)
                raise
    if failed:
        raise failed[0]
