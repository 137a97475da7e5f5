"""Who is making a backup of a stream at the moment.

A courtesy, not a lock: two backups at once would both be right, for objects are named by their content and manifests are
put-if-absent. It keeps schedulers from doing the work twice, and says so to whoever asks. It is taken over at once
where its process is known to be dead (same host), else when it has not been renewed for a while.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.errors import BackupRunningError, StorageError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import Location

#: Seconds between two renewals, and without one until a lease counts as abandoned.
_RENEW_EVERY = 15.0
_ABANDONED_AFTER = 90.0


@contextmanager
def lease(repository: Location, name: str, *, made_by: str) -> Iterator[None]:
    """Hold the lease of a stream's backups for the time of a ``with`` block.

    :raises BackupRunningError: somebody else holds it.
    """
    path = f"running/{name}.json"
    mine = {"holder": str(uuid.uuid4()), "host": socket.gethostname(), "pid": os.getpid(), "made_by": made_by}
    _take(repository, path, mine)
    done = threading.Event()
    renewing = threading.Thread(target=_renew, args=(repository, path, mine, done), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        done.set()
        renewing.join()
        # Replaced, not deleted: in an append-only repository a backup needs no right to delete.
        repository.replace(path, _document(mine, released=True))


def _take(repository: Location, path: str, mine: dict[str, Any]) -> None:
    held = None
    with suppress(StorageError):  # to whoever may not list, S3 says of a file that is not there that it is forbidden
        held = _read(repository, path)
    try:
        if held is None:
            repository.create(path, _document(mine))
    except FileExistsError:  # taken at this moment, or damaged
        held = _read(repository, path) or {"released": True}
    if held is not None:
        if not _is_free(held):
            raise _running(held, path)
        repository.replace(path, _document(mine))
    held = _read(repository, path)
    if held and held["holder"] != mine["holder"]:  # another one took it at the same moment
        raise _running(held, path)


def _read(repository: Location, path: str) -> dict[str, Any] | None:
    """Who holds it; ``None`` where that cannot be read: a damaged lease is nobody's."""
    try:
        held: dict[str, Any] = load_json(repository.read(path))
        return held if held.keys() >= {"holder", "host", "pid", "made_by", "renewed", "released"} else None
    except (ValueError, AttributeError, FileNotFoundError):
        return None


def _renew(repository: Location, path: str, mine: dict[str, Any], done: threading.Event) -> None:
    while not done.wait(_RENEW_EVERY):
        repository.replace(path, _document(mine))


def _document(mine: dict[str, Any], *, released: bool = False) -> bytes:
    now = time.time()
    return json.dumps({**mine, "renewed": now, "released": released}).encode()


def _is_free(held: dict[str, Any]) -> bool:
    if held["released"] or time.time() - held["renewed"] > _ABANDONED_AFTER:
        return True
    return held["host"] == socket.gethostname() and not _is_alive(held["pid"])


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _running(held: dict[str, Any], path: str) -> BackupRunningError:
    since = datetime.fromtimestamp(held["renewed"], UTC).isoformat(timespec="seconds")
    by = f" for {held['made_by']}" if held["made_by"] else ""
    return BackupRunningError(
        f"another backup of this stream is running: process {held['pid']} on {held['host']}{by}, last sign of life {since}",
        hint=f"wait for it to end; should its host be gone, {path} counts as abandoned {_ABANDONED_AFTER:.0f} s after that",
    )
