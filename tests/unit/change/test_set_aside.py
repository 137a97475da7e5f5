"""What is set aside has a hash: after the change it is the only copy there is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.errors import DamagedFileError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
from tests.support.checkpoints import plant
from tests.support.watched_stores import WatchedStore

FILES = {"offsets/0": b"v1\nfirst", "state/0/0/1.delta": b"second"}
SHA256 = {path: f"sha256:{hashlib.sha256(data).hexdigest()}" for path, data in FILES.items()}
MD5 = {path: f"etag:{hashlib.md5(data).hexdigest()}" for path, data in FILES.items()}
MARKER = "set-aside/orders/7f3a/checkpoint/COMPLETE"


class Vouching(WatchedStore):
    """A store that copies by itself and has a checksum of each file, as S3 does."""

    #: ``None``: it has no checksums. ``encrypted``: each copy has another one.
    checksums: str | None = "md5"

    def walk(self, path: str) -> tuple[StoredFile, ...]:
        return tuple(file._replace(checksum=self._checksum(file.path)) for file in super().walk(path))

    def _checksum(self, path: str) -> str | None:
        content = self.inner.read(path) + (path.encode() if self.checksums == "encrypted" else b"")
        return f"etag:{hashlib.md5(content).hexdigest()}" if self.checksums else None


def kept(place: Location, files: Iterable[str] = FILES) -> SetAside:
    """Files of a checkpoint, set aside in a repository of the same store."""
    orders = plant(place / "orders", FILES)
    aside = SetAside(Repository.open_or_create(place / "backups"), "orders", "7f3a", "checkpoint")
    there = orders.walk()
    aside.keep(orders, [there[path] for path in files])
    return SetAside(aside.repository, "orders", "7f3a", "checkpoint")


def copying(place: Location, checksums: str | None) -> tuple[Location, Vouching]:
    store = Vouching(place.store, copies_within=True)
    store.checksums = checksums
    return Location(store, place.root), store


def flip(place: Location, path: str) -> None:
    """Change one bit of a file that was kept."""
    data = place.read(path)
    place.replace(path, bytes([data[0] ^ 1]) + data[1:])


def test_what_passes_through_has_its_sha256(place: Location) -> None:
    aside = kept(place)
    assert json.loads((place / "backups").read(MARKER))["hashes"] == SHA256
    assert aside.damaged() == []
    assert aside.read("offsets/0") == FILES["offsets/0"]


@pytest.mark.parametrize(("checksums", "hashes"), [("md5", MD5), ("encrypted", SHA256), (None, SHA256)])
def test_what_the_store_copies_is_read_only_without_a_checksum_that_can_be_compared(
    place: Location, checksums: str | None, hashes: dict[str, str]
) -> None:
    there, store = copying(place, checksums)
    aside = kept(there)
    assert json.loads((place / "backups").read(MARKER))["hashes"] == hashes
    assert any("/files/" in path for path in store.paths("read")) is (checksums != "md5")
    store.requests.clear()
    assert aside.damaged() == []
    assert any("/files/" in path for path in store.paths("read")) is (checksums != "md5")


@pytest.mark.parametrize("checksums", ["md5", "encrypted", None])
def test_a_flipped_bit(place: Location, checksums: str | None) -> None:
    there, _ = copying(place, checksums)
    aside = kept(there)
    flip(aside.files, "state/0/0/1.delta")
    assert aside.damaged() == ["state/0/0/1.delta"]
    assert aside.damaged(["offsets/0"]) == []
    with pytest.raises(DamagedFileError, match=r"files/state/0/0/1.delta is not what was kept") as error:
        aside.read("state/0/0/1.delta")
    assert error.value.hint
    assert aside.is_kept("state/0/0/1.delta", FILES["state/0/0/1.delta"])
    assert not aside.is_kept("offsets/0", b"v1\nother")


def test_a_repository_that_was_moved_to_a_store_with_other_checksums(place: Location) -> None:
    aside = kept(copying(place, "md5")[0])
    there, _ = copying(place, "encrypted")
    moved = SetAside(Repository.open(there / "backups"), aside.name, aside.plan_id, aside.part)
    assert moved.damaged() == []
    flip(moved.files, "offsets/0")
    assert moved.damaged() == ["offsets/0"]


def test_a_marker_of_an_earlier_version_shows_sizes_only(place: Location) -> None:
    kept(place)
    marker = json.loads((place / "backups").read(MARKER))
    del marker["hashes"]
    (place / "backups").replace(MARKER, json.dumps(marker).encode())
    aside = SetAside(Repository.open(place / "backups"), "orders", "7f3a", "checkpoint")
    flip(aside.files, "offsets/0")
    assert aside.damaged() == []
    assert aside.read("offsets/0") != FILES["offsets/0"]
    aside.files.replace("offsets/0", b"")
    assert aside.damaged() == ["offsets/0"]
    with pytest.raises(DamagedFileError):
        aside.read("offsets/0")
