"""Who is making a backup of a stream at the moment.

Not what makes two backups at once right: objects are never written over, and manifests are put-if-absent. It keeps schedulers
from doing the work twice, and says so to whoever asks. It is taken over at once where its process is known to be dead (same
host), else when it has not been renewed for a while. Its holder writes no more once it could have been taken over, by its own
clocks: see :mod:`~airflow_ckpt_provider.backup.term`.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.backup.term import Term
from airflow_ckpt_provider.errors import BackupRunningError, LeaseLostError, StorageError, TooLargeError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location

#: Seconds between two renewals, and without one until a lease counts as abandoned.
_RENEW_EVERY = 15.0
_ABANDONED_AFTER = 90.0
_KINDS: dict[str, Any] = {
    "holder": str,
    "host": str,
    "pid": int,
    "made_by": str,
    "renewed": int | float,
    "released": bool,
}
#: Seconds by which the clock of a holder may be ahead of ours. What is later was never written by a backup.
_CLOCKS_DIFFER = 86_400.0
#: Seconds after a renewal for which its holder writes: it ends well before somebody else may take it over.
_LASTS = 75.0


@contextmanager
def lease(repository: Location, name: str, *, made_by: str) -> Iterator[Location]:
    """Hold the lease of a stream's backups for the time of a ``with`` block.

    :return: the repository's place, in which every write sees first that the lease still lasts.
    :raises BackupRunningError: somebody else holds it.
    :raises LeaseLostError: from within: it could not be renewed in time, or somebody else took it over.
    """
    path = f"running/{name}.json"
    mine = {"holder": str(uuid.uuid4()), "host": socket.gethostname(), "pid": os.getpid(), "made_by": made_by}
    since = Clocks()
    _take(repository, path, mine)
    term = Term(f"the backup of {name} (process {mine['pid']} on {mine['host']})", _LASTS, since, every=_RENEW_EVERY)
    # A request that is under way when the lease ends may arrive: it only creates what does not exist yet.
    guarded = repository.fenced(term.check, request_timeout=None)
    term.keep(lambda: _renew(guarded, path, mine, term), name=f"lease of {name}")
    try:
        yield guarded
    finally:
        term.end()
        # Replaced, not deleted: in an append-only repository a backup needs no right to delete.
        with suppress(LeaseLostError):  # it may be somebody else's by now
            guarded.replace(path, _document(mine, released=True))


def _take(repository: Location, path: str, mine: dict[str, Any]) -> None:
    held = None
    with suppress(StorageError):  # to whoever may not list, S3 says of a file that does not exist that it is forbidden
        held = _read(repository, path)
    try:
        if held is None:
            repository.create(path, _document(mine))
            if repository.store.creates_if_absent:
                return  # nobody else has
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
    """Who holds it; ``None`` where that cannot be read: a damaged or forged lease is nobody's."""
    try:
        held: dict[str, Any] = load_json(repository.read_document(path))
    except (ValueError, FileNotFoundError, TooLargeError):
        return None
    if not (isinstance(held, dict) and all(isinstance(held.get(key), kind) for key, kind in _KINDS.items())):
        return None
    is_possible = 0 < held["pid"] < 2**31 and 0 < held["renewed"] < time.time() + _CLOCKS_DIFFER
    return held if is_possible else None


def _renew(repository: Location, path: str, mine: dict[str, Any], term: Term) -> None:
    held = _read(repository, path)
    if held is not None and held["holder"] != mine["holder"]:
        term.lose(f"process {held['pid']} on {held['host']} took it over")
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
