"""The term of a lease: how long its holder may write, by the holder's own clocks.

No store can be asked to refuse the writes of a worker that was suspended for an hour (SIGSTOP, a paused virtual machine). So the
holder of a lease compares its clocks with the term before each request, and extends the term by renewing the lease in the
background. The fence of a change and the lease of a backup are built on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from airflow_ckpt_provider.errors import CkptError, LeaseLostError
from airflow_ckpt_provider.storage.clocks import Clocks

log = logging.getLogger(__name__)


class Term:
    """How long the holder of a lease may write.

    :param holder: who that is, in words, for the error.
    :param seconds: how long the lease lasts after each renewal.
    :param since: clocks that began before the newest proof that the lease is held.
    :param every: seconds between two renewals; a quarter of the lease by default.
    """

    def __init__(self, holder: str, seconds: float, since: Clocks, *, every: float | None = None) -> None:
        self._holder, self._seconds, self._since = holder, seconds, since
        self._every = seconds / 4 if every is None else every
        self._lost: str | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """See that the lease has not run out; called before every request that writes or deletes.

        Between this comparison and the system call that sends the request lie some microseconds. A process that is paused just
        there sends that one request when it wakes; what it does then is limited by the identity or the free name that the
        request asks for.

        :raises LeaseLostError: it has, or somebody else took over.
        """
        if self._lost is None and (elapsed := self._since.elapsed) > self._seconds:
            self._lost = f"it could not be renewed for {elapsed:.1f} s"
        if self._lost is not None:
            raise LeaseLostError(
                f"{self._holder} has lost its lease: {self._lost}; it writes nothing more",
                hint="run the same command again: it continues, or says what was done",
            )

    def lose(self, why: str) -> None:
        """Give the lease up.

        :param why: what happened, in words.
        """
        self._lost = why

    def keep(self, renew: Callable[[], None], *, name: str) -> None:
        """Renew the lease from now on, in a thread of its own.

        A renewal that fails is tried again until the term is over; it ends when the lease is lost.

        :param renew: sees that the lease is still held, and shows a sign of life; calls :meth:`lose` where somebody else has it.
        :param name: of the thread.
        """
        self._thread = threading.Thread(target=self._keep, args=(renew,), name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop renewing."""
        self._done.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _keep(self, renew: Callable[[], None]) -> None:
        while not self._done.wait(self._every):
            before = Clocks()
            try:
                self.check()
                renew()
            except LeaseLostError:
                return
            except Exception as e:
                reason = e.message if isinstance(e, CkptError) else f"{type(e).__name__}: {e}"
                log.warning("The lease of %s could not be renewed: %s", self._holder, reason)
            else:
                self._since = before
