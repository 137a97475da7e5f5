"""``airflow-ckpt`` in a process that stops itself (SIGSTOP) at a chosen write or delete of a checkpoint.

It stands for a worker that is paused, swapped out, or cut off from its network, and wakes up long after::

    python -m tests.support.stop_itself delete 3 after /data/orders -- restore …

stops after the third file of ``/data/orders`` was deleted, until somebody sends SIGCONT. Requests are made one after the other.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.store import StoredFile
from tests.support.killing import one_after_the_other

#: The methods of a store that delete, and those that write.
OPERATIONS = {"delete": ("delete", "delete_listed"), "write": ("create", "replace", "replace_listed")}


def stop_now() -> None:
    """Stop this process before this thread does anything else: a signal to the process may reach another thread first."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stop_at(operation: str, number: int, moment: str, below: str) -> None:
    """Stop this process once.

    :param operation: ``delete`` or ``write``.
    :param number: of the request, counted from 1. Hidden files, such as Hadoop's checksums, do not count.
    :param moment: ``before`` the store carries the request out, or ``after`` it has.
    :param below: the checkpoint; other places do not count.
    """
    seen = 0

    def stopping(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(store: LocalStore, path: str | StoredFile, *more: Any, **options: Any) -> Any:
            nonlocal seen
            name = path.path if isinstance(path, StoredFile) else path
            counts = name.startswith(f"{below}/") and not os.path.basename(name).startswith(".")
            seen += counts
            here = counts and seen == number
            if here and moment == "before":
                stop_now()
            result = method(store, path, *more, **options)
            if here and moment == "after":
                stop_now()
            return result

        return wrapped

    for name in OPERATIONS[operation]:
        setattr(LocalStore, name, stopping(getattr(LocalStore, name)))


if __name__ == "__main__":
    what, count, when, place, _, *argv = sys.argv[1:]
    one_after_the_other()
    stop_at(what, int(count), when, place)
    sys.exit(main(argv))
