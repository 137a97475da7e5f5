"""Which way small contents take into a repository with packs: through this process, or copied by the store itself.

A content that is read and packed costs less (a GET is a twelfth of a COPY, and a restore reads packs), and is usually
faster. It is not where the process is far from the store, such as in another region: then every byte passes a slow
link twice, and a copy by the store passes none. The rule:

1. The first 256 small files are read, and timed.
2. If all others would then take less than a minute, down and up, they are read and packed, too.
3. Otherwise the store copies the next 256, which is timed as well. If reading takes more than four times as long, the
   store copies all others; otherwise they are packed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Files that are timed, of either way.
SAMPLE = 256
#: Seconds that reading all others may take without a question.
WORTH = 60.0
#: So many times as long as a copy by the store may a reading take.
FACTOR = 4.0
#: What is read is written too, over the same link.
_DOWN_AND_UP = 2


class Way:
    """Decides for each small file; asked by many threads at once.

    :param files: how many small files there are.
    :param now: the time in seconds.
    """

    def __init__(self, files: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._rest = files - SAMPLE
        self._now = now
        self._lock = threading.Lock()
        self._began: float | None = None
        self._done = 0
        #: Seconds a file, of all threads together.
        self._reading: float | None = None
        self._copying: float | None = None
        self._by_store = False
        self._decided = self._rest <= 0
        self._copied = 0

    def by_store(self) -> bool:
        """Whether the store is to copy the next file; :meth:`took` has to follow when it is done."""
        with self._lock:
            if self._began is None:
                self._began = self._now()
            return self._by_store

    def took(self, *, by_store: bool) -> None:
        """Count a file that is done.

        :param by_store: what :meth:`by_store` said of it.
        """
        with self._lock:
            self._copied += by_store
            if self._decided or by_store != self._by_store or self._began is None:
                return  # one that was under way when the other way began
            self._done += 1
            if self._done < SAMPLE:
                return
            spent, self._began, self._done = (self._now() - self._began) / SAMPLE, self._now(), 0
            if self._reading is None:
                self._reading = spent * _DOWN_AND_UP
                self._by_store = self._reading * self._rest > WORTH
                self._decided = not self._by_store
            else:
                self._copying = spent
                self._by_store = self._reading > FACTOR * spent
                self._decided = True

    @property
    def says(self) -> str | None:
        """Why the store has copied small files; ``None`` if it has not."""
        if not self._copied or self._reading is None:
            return None
        took = f"a small file takes {self._reading * 1000:.3g} ms through this process"
        if self._copying is None:
            return f"{took}; the store copied the last {self._copied}"
        also = f"{self._copying * 1000:.3g} ms by the store, which copied {self._copied}"
        return f"{took} and {also}" + ("" if self._by_store else " to be timed")
