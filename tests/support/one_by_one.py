"""One request at a time, so that what happens does not depend on Python's threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from airflow_ckpt_provider import parallel


class OneByOne(Executor):
    """A pool that does what it is given at once, in the thread that gives it."""

    def __init__(self, max_workers: int) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as e:
            future.set_exception(e)
        return future


def one_by_one(patches: pytest.MonkeyPatch) -> None:
    """Let all that asks for many things at once do one after the other."""
    patches.setattr(parallel, "ThreadPoolExecutor", OneByOne)
