"""Reads of several stores that a page waits for no longer than some seconds: one that does not answer takes no other away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.units import format_duration

Result = TypeVar("Result")

#: Seconds after which a store is asked again though an earlier read of it has not ended: its connection may be dead.
_AGAIN = 600.0
#: Reads of one store at once: pages that are opened while it is not known yet whether it answers.
_AT_ONCE = 8


class NoAnswerError(StorageError):
    """A store did not answer in time."""


@dataclass(slots=True)
class _UnderWay(Generic[Result]):
    """A read that has begun.

    :param late_since: when it was found to be late; ``None``: it is not.
    """

    read: Future[Result]
    late_since: float | None = None


class BoundedReads(Generic[Result]):
    """Reads of stores, all at once, each in a thread of its own.

    Nothing ends a request to a store from outside, so a read that is late continues in its thread. Meanwhile no other one of the
    same store is begun: however often a page is opened, a store that does not answer holds few threads.

    :param within: seconds that are waited.
    """

    def __init__(self, within: float) -> None:
        self._within = within
        self._under_way: dict[str, list[_UnderWay[Result]]] = {}
        self._lock = threading.Lock()

    def results(self, reads: Mapping[str, Callable[[], Result]]) -> dict[str, Result | Exception]:
        """What each read found, or raised; of one that is late, a :class:`NoAnswerError`.

        :param reads: key of a store -> reads it.
        """
        with self._lock:
            begun = {key: each for key, read in reads.items() if (each := self._begun(key, read))}
        wait([each.read for each in begun.values()], timeout=self._within)
        return {key: self._found(begun[key]) if key in begun else _no_answer(_STILL) for key in reads}

    def _begun(self, key: str, read: Callable[[], Result]) -> _UnderWay[Result] | None:
        """Begin a read; not where an earlier one of the same store is late, or many are under way."""
        now = time.monotonic()
        others = [
            each
            for each in self._under_way.get(key, ())
            if not each.read.done() and (each.late_since is None or now - each.late_since < _AGAIN)
        ]
        self._under_way[key] = others
        if len(others) >= _AT_ONCE or any(each.late_since is not None for each in others):
            return None
        others.append(begun := _UnderWay(_in_thread(read)))
        return begun

    def _found(self, begun: _UnderWay[Result]) -> Result | Exception:
        if not begun.read.done():
            begun.late_since = time.monotonic()
            return _no_answer(f"its store gave no answer within {format_duration(self._within)}")
        error = begun.read.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return error or begun.read.result()


def _in_thread(read: Callable[[], Result]) -> Future[Result]:
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(read())
        except BaseException as e:
            future.set_exception(e)

    # One that the end of the process need not wait for.
    threading.Thread(target=run, name="read for the page", daemon=True).start()
    return future


_STILL = "an earlier read of it has not ended yet"


def _no_answer(why: str) -> NoAnswerError:
    return NoAnswerError(why, hint="check the store and its connection; if it is only slow, open the page again later")
