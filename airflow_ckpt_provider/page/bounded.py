"""Reads of several stores that a page waits for no longer than some seconds: one that does not answer takes no other away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.units import format_duration

Result = TypeVar("Result")

#: Seconds after which a store is asked again though an earlier read of it has not ended: its connection may be dead.
_AGAIN = 600.0


class NoAnswerError(StorageError):
    """A store did not answer in time."""


class BoundedReads(Generic[Result]):
    """Reads of stores, all at once, each in a thread of its own.

    Nothing ends a request to a store from outside, so a read that is late continues in its thread. Meanwhile no other one of the
    same store is begun: however often a page is opened, a store that does not answer holds few threads.

    :param within: seconds that are waited.
    """

    def __init__(self, within: float) -> None:
        self._within = within
        #: Key -> a read that is late, and when that was found.
        self._late: dict[str, tuple[Future[Result], float]] = {}
        self._lock = threading.Lock()

    def results(self, reads: Mapping[str, Callable[[], Result]]) -> dict[str, Result | Exception]:
        """What each read found, or raised; of one that is late, a :class:`NoAnswerError`.

        :param reads: key of a store -> reads it.
        """
        with self._lock:
            now = time.monotonic()
            self._late = {
                key: (read, since)
                for key, (read, since) in self._late.items()
                if not read.done() and now - since < _AGAIN
            }
            begun = {key: _begun(read) for key, read in reads.items() if key not in self._late}
        wait(begun.values(), timeout=self._within)
        found: dict[str, Result | Exception] = {}
        for key in reads:
            if key not in begun:
                found[key] = _no_answer("an earlier read of it has not ended yet")
            elif not begun[key].done():
                with self._lock:
                    self._late[key] = begun[key], time.monotonic()
                found[key] = _no_answer(f"its store gave no answer within {format_duration(self._within)}")
            else:
                error = begun[key].exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                found[key] = error or begun[key].result()
        return found


def _begun(read: Callable[[], Result]) -> Future[Result]:
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(read())
        except BaseException as e:
            future.set_exception(e)

    # One that the end of the process need not wait for.
    threading.Thread(target=run, name="read for the page", daemon=True).start()
    return future


def _no_answer(why: str) -> NoAnswerError:
    return NoAnswerError(why, hint="check the store and its connection; if it is only slow, open the page again later")
