"""What conditional requests to S3 have in common, whichever client sends them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from airflow_ckpt_provider.errors import StorageError

log = logging.getLogger(__name__)

#: How often a request is repeated that the service refused though its condition holds; AWS does so where two requests race.
TIMES = 5


def if_match(identity: str) -> str:
    """The value of ``If-Match`` for a file of this identity."""
    return '"' + identity.removeprefix("etag:") + '"'


def refused(action: str) -> StorageError:
    """The error where a request was refused so often though its condition holds.

    :param action: what is being done to which place, to follow "could not".
    """
    return StorageError(
        f"could not {action}: the service refused it {TIMES} times, though the file is the one that was listed",
        hint="find out who else writes there, then run the same command again",
    )


class CopyCondition:
    """Whether a service refuses a copy over a file that is there, when it is asked to (``If-None-Match: *``).

    AWS does. Others carry out the copy and say nothing of the condition. So the first copy is made twice, under a name that
    nobody else has: the second one is refused, or the service does not know the condition.

    :param service: what to call the service.
    :param known: ``True`` where that is known of the service, ``None``: it has to be found out.
    """

    def __init__(self, service: str, known: bool | None = None) -> None:
        self._service = service
        self._finding_out = threading.Lock()
        #: ``None`` until the first copy.
        self.holds = known

    def copy(self, copy: Callable[[], None]) -> None:
        """Make a copy.

        :param copy: makes it, with the condition.
        :raises FileExistsError: as ``copy`` raises it.
        """
        if self.holds is not None or not self._finding_out.acquire(blocking=False):
            copy()  # nobody waits for the answer: as long as there is none, everybody copies to names of their own
            return
        try:
            self._copy_twice(copy)
        finally:
            self._finding_out.release()

    def _copy_twice(self, copy: Callable[[], None]) -> None:
        made = False
        try:
            copy()
            made = True
            if self.holds is None:
                copy()
        except FileExistsError:
            self.holds = True
            if not made:  # by a first try whose answer was lost
                raise
        else:
            if self.holds is None:
                log.warning(
                    "%s copies over files though it is asked not to: each backup copies under names of its own, and what one "
                    "that was stopped has copied is copied again",
                    self._service,
                )
                self.holds = False
