"""How fast a store is asked: as many requests at once as it takes, fewer when it asks for fewer, more again afterwards.

S3 answers ``503 SlowDown`` (others ``429``) to whoever asks too much. Repeating such a request at once, from sixty threads, is
what keeps a store down. So the refusal of one request slows all of them: half as many at once and a pause for everybody; then one
more with every round of answers. TCP does the same with packets that get lost (additive increase, multiplicative decrease).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.failures import SLOWER, is_passing, says_slow_down, storage_error

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Requests under way at once, however many threads ask.
MOST = 256


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a store is asked again.

    :param refused: seconds without any answer but refusals after which it is given up.
    :param refused_request: seconds after which one request is given up though others are answered.
    :param failures: how often a request is repeated whose connection broke, or that the service failed at.
    :param first_pause: seconds that everybody waits after a refusal; twice as long after each further one in a row.
    :param longest_pause: seconds, of such a pause and of that before a repeated request.
    """

    refused: float = 90.0
    refused_request: float = 600.0
    failures: int = 6
    first_pause: float = 0.1
    longest_pause: float = 5.0


class Pace:
    """The requests to one store, from all threads of this process.

    :param place: URI of the store, for the log.
    :param retry_policy: how long it is asked again.
    """

    def __init__(self, place: str, retry_policy: RetryPolicy | None = None) -> None:
        self._place = place
        self._retry_policy = retry_policy or RetryPolicy()
        self._changed = threading.Condition()
        self._at_once = 0
        self._limit = float(MOST)
        self._peak = 0
        #: When the limit was last cut, the store was given up, and until when everybody waits.
        self._cut_at = self._given_up_at = self._resume_at = 0.0
        #: What it said when it was given up.
        self._words = ""
        #: Since when it has only refused.
        self._refusing_since: float | None = None
        self._pause = self._retry_policy.first_pause
        #: How many requests were refused, and the fewest at once that it came down to.
        self.refused = 0
        self.lowest = MOST

    @property
    def limit(self) -> int:
        """How many requests may be under way at once now."""
        return int(self._limit)

    def ask(self, action: str, request: Callable[[], Answer]) -> Answer:
        """Make a request when it is its turn, and again where it was refused or broke off.

        :param action: what is being done to which place, to follow "could not".
        :param request: makes the request; may be called several times.
        :raises StorageError: the store never took it.
        """
        asked = time.monotonic()
        first_refusal: float | None = None
        failures = 0
        while True:
            began = self._enter(action, asked)
            answered = True  # whatever it says, the store is not too busy to say it
            pause = 0.0
            try:
                return request()
            except Exception as e:
                answered = not (says_slow_down(e) or is_passing(e))
                if says_slow_down(e):
                    now = time.monotonic()
                    first_refusal = first_refusal or now
                    self._slow_down(began, now)
                    self._check_patience(action, e, first_refusal, now)
                elif is_passing(e) and failures < self._retry_policy.failures:
                    pause = min(self._retry_policy.first_pause * 2**failures, self._retry_policy.longest_pause)
                    failures += 1
                    log.info(
                        "could not %s, trying again in %.1f s: %s", action, pause, storage_error(action, e).message
                    )
                else:
                    raise
            finally:
                self._leave(answered)
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311, so that not all come back at once

    def _enter(self, action: str, asked: float) -> float:
        with self._changed:
            while True:
                if self._given_up_at >= asked:  # what another thread has waited for in vain nobody else need wait for
                    raise StorageError(f"could not {action}: the store refuses everything: {self._words}", hint=SLOWER)
                wait = self._resume_at - time.monotonic()
                if wait <= 0 and self._at_once < int(self._limit):
                    self._at_once += 1
                    self._peak = max(self._peak, self._at_once)
                    return time.monotonic()
                self._changed.wait(wait if wait > 0 else None)

    def _leave(self, answered: bool) -> None:
        with self._changed:
            self._at_once -= 1
            if answered:
                self._refusing_since = None
                if self._limit < MOST:
                    self._recover()
            self._changed.notify(int(self._limit) - self._at_once)

    def _recover(self) -> None:
        self._pause = self._retry_policy.first_pause
        self._limit += 1 / self._limit  # one more for each round of answers
        if self._limit >= self._peak:
            log.info("%s takes %d requests at once again", self._place, self._peak)
            self._limit = float(MOST)

    def _slow_down(self, began: float, now: float) -> None:
        with self._changed:
            self.refused += 1
            self._refusing_since = self._refusing_since or now
            if began < self._cut_at:
                return  # asked before the store's last refusal took effect
            self._limit = max(1.0, min(self._limit, self._at_once) / 2)
            self.lowest = min(self.lowest, int(self._limit))
            self._cut_at = now
            self._resume_at = now + self._pause
            log.log(
                logging.INFO if self.refused > 1 else logging.WARNING,
                "%s asks to be asked less: %d requests at once from now on, after %.1f s",
                self._place,
                int(self._limit),
                self._pause,
            )
            self._pause = min(self._pause * 2, self._retry_policy.longest_pause)

    def _check_patience(self, action: str, error: Exception, first_refusal: float, now: float) -> None:
        with self._changed:
            silent, tried = now - (self._refusing_since or now), now - first_refusal
            words = f"{storage_error(action, error).message}; asked again for {max(silent, tried):.0f} s"
            if silent >= self._retry_policy.refused:
                self._given_up_at, self._words = now, words
                self._changed.notify_all()
            elif tried < self._retry_policy.refused_request:
                return
        raise StorageError(f"{words}, with ever fewer requests at once", hint=SLOWER) from error
