"""Repositories that hold both formats: made as format 1, and of format 2 after their first backup."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.encrypted_store import EncryptedStore
from airflow_ckpt_provider.storage.location import Location
from tests.support.watched_stores import WatchedStore

_MARKER = "repository.json"
#: Repositories that need no question any more: whoever counts requests at the store would count it.
_raised: set[tuple[str, str]] = set()
#: Whether the test that runs wants them.
wanted = False


def raise_after_first_backup() -> None:
    """From now on, whoever writes a manifest raises the format of its repository, where that is :data:`wanted`.

    A repository that is open stays one of format 1 until it is opened again, as in a process that had opened it before.
    """
    create = Location.create

    def create_and_raise(self: Location, path: str, data: bytes) -> None:
        create(self, path, data)
        if path == _MARKER:
            _raised.discard((self.store.protocol, self.root))
        if wanted and path.startswith("backups/") and path.endswith(".json"):
            _raise(self)

    Location.create = create_and_raise  # type: ignore[method-assign]


def _raise(place: Location) -> None:
    """As :func:`~airflow_ckpt_provider.backup.repository.raise_format` does, unseen by who counts requests or refuses them."""
    key = (place.store.protocol, place.root)
    if key in _raised:
        return
    store = place.store
    while isinstance(store, (WatchedStore, EncryptedStore)):  # the marker is not encrypted
        store = store._inner if isinstance(store, EncryptedStore) else store.inner
    unwatched = replace(place, store=store)
    if unwatched.find(_MARKER) is None:
        return
    marker = json.loads(unwatched.read(_MARKER))
    if marker["version"] == 1:
        # A backup that is being taken has locked the one that is there.
        until = None
        with suppress(StorageError):  # who may not ask has locked nothing
            until = None if unwatched.why_no_locks() else unwatched.locked_until(_MARKER)
        try:
            unwatched.replace(_MARKER, json.dumps({**marker, "version": 2}).encode())
        except StorageError as e:
            if "denied" not in e.message.lower():
                raise
            return  # credentials of a backup alone may not raise it: it stays as it is
        if until:
            unwatched.lock(_MARKER, until)
    _raised.add(key)
