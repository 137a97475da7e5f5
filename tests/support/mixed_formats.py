"""Repositories that hold both formats: made as format 1, and of format 2 after their first backup."""

from __future__ import annotations

import json
from dataclasses import replace

from airflow_ckpt_provider.storage.encrypted_store import EncryptedStore
from airflow_ckpt_provider.storage.location import Location
from tests.support.watched_stores import WatchedStore

_MARKER = "repository.json"
#: Whether the test that runs wants them.
wanted = False


def raise_after_first_backup() -> None:
    """From now on, whoever writes a manifest raises the format of its repository, where that is :data:`wanted`.

    A repository that is open stays one of format 1 until it is opened again, as in a process that had opened it before.
    """
    create = Location.create

    def create_and_raise(self: Location, path: str, data: bytes) -> None:
        create(self, path, data)
        if wanted and path.startswith("backups/") and path.endswith(".json"):
            _raise(self)

    Location.create = create_and_raise  # type: ignore[method-assign]


def _raise(place: Location) -> None:
    """As :func:`~airflow_ckpt_provider.backup.repository.raise_format` does, unseen by who counts requests or refuses them."""
    store = place.store
    while isinstance(store, (WatchedStore, EncryptedStore)):  # the marker is not encrypted
        store = store._inner if isinstance(store, EncryptedStore) else store.inner
    unwatched = replace(place, store=store)
    if unwatched.find(_MARKER) is None:
        return
    marker = json.loads(unwatched.read(_MARKER))
    if marker["version"] == 1:
        unwatched.replace(_MARKER, json.dumps({**marker, "version": 2}).encode())
