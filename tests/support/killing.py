"""``airflow-ckpt`` in a process that is killed (SIGKILL) before a chosen write, wherever it goes."""

from __future__ import annotations

import concurrent.futures.thread
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from airflow_ckpt_provider.storage.local_store import LocalStore
from tests.support.command_line import run

#: The methods that change a store.
_WRITES = ("create", "replace", "replace_listed", "delete", "delete_listed", "remove_empty_directories")


def killed_before(write: int, *argv: object) -> bool:
    """Run the program in a process that dies before a write; whatever was written before stays.

    :param write: the number of the write, counted from 0.
    :param argv: the arguments.
    :return: whether it was killed; else it came to its end, successfully.
    :raises AssertionError: it failed before.
    """
    child = os.fork()
    if not child:
        code = 99
        try:
            one_after_the_other()
            _die_before(write)
            finished = run(*argv)
            code = finished.code
            if code:
                os.write(2, finished.err.encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0, f"{argv[0]} failed before write {write}"
    return False


def one_after_the_other() -> None:
    """Give every pool one thread, so that a number is always the same request."""
    pool = concurrent.futures.thread.ThreadPoolExecutor
    begin = pool.__init__

    def with_one(self: Any, max_workers: int | None = None, *more: Any, **options: Any) -> None:
        begin(self, 1, *more, **options)

    pool.__init__ = with_one  # type: ignore[method-assign]


def _die_before(write: int) -> None:
    left, lock = write, threading.Lock()

    def deadly(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(store: LocalStore, path: object, *more: Any, **options: Any) -> Any:
            nonlocal left
            with lock:
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
            return method(store, path, *more, **options)

        return wrapped

    for name in _WRITES:
        setattr(LocalStore, name, deadly(getattr(LocalStore, name)))
