"""A check before each request that changes a store, as the holder of a lease makes it.

A store repeats requests by itself: after a refusal, a broken connection, a DataNode that does not answer. A lease can expire in
between. So the check belongs to the request and not to the verb, and lies inside everything that repeats requests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from airflow_ckpt_provider.storage.store import Store

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
AnyStore = TypeVar("AnyStore", bound="Store")


class CheckRaisedError(BaseException):
    """Carries what a check raised to the end of the verb.

    Not an ``Exception``: nothing that repeats a request, translates a store's failure or asks another server may handle it.

    :param error: what the check raised.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(error)


class WriteCheck:
    """What is called before each request that changes a store, and how long such a request may take.

    :param check: raises where the request must not be sent; by default every request may be sent.
    :param timeout: seconds for one whole request; ``None``: the store's own limits.
    """

    def __init__(self, check: Callable[[], None] | None = None, timeout: float | None = None) -> None:
        self._check = check
        self.timeout = timeout

    def __call__(self) -> None:
        """Call the check.

        :raises CheckRaisedError: it raised something.
        """
        if self._check is None:
            return
        try:
            self._check()
        except Exception as e:
            raise CheckRaisedError(e) from None

    def before(self, request: Callable[[], Answer]) -> Callable[[], Answer]:
        """Return the request with the check before it, for whoever repeats it."""

        def checked() -> Answer:
            self()
            return request()

        return checked

    def limited(self, seconds: float) -> float:
        """Return a store's own limit in seconds, or the time-out where that is shorter."""
        return seconds if self.timeout is None else min(seconds, self.timeout)


#: Every request may be sent.
NO_CHECK = WriteCheck()


def changes_store(verb: Callable[Parameters, Answer]) -> Callable[Parameters, Answer]:
    """Mark a verb that changes a store: what a check raised leaves the verb as it was raised."""

    @wraps(verb)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer:
        try:
            return verb(*args, **kwargs)
        except CheckRaisedError as e:
            error = e.error
        raise error  # out here, so that it keeps its own cause and context

    return call


def with_check(store: AnyStore, check: Callable[[], None], request_timeout: float | None) -> AnyStore:
    """Return a shallow copy of a store that calls a check as well as the one it may already have.

    The copy shares connections and pace with the original.
    """
    before = store.write_check

    def both() -> None:
        before()
        check()

    fenced = copy.copy(store)
    limit = before.timeout if request_timeout is None else before.limited(request_timeout)
    fenced.write_check = WriteCheck(both, limit)
    return fenced
