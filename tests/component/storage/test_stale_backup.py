"""A backup that was suspended while another one took over cannot change what that one lists: on a real S3 server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.packing import PACKED_BELOW
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.storage import s3_store
from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.s3_store import S3Store
from benchmarks.sample_tree import SampleTree
from tests.support.s3_server import S3Server

#: State files that are too big for a pack, so that the store copies them itself whatever the format of the repository is.
BIG = tuple(f"state/0/0/{version}.changelog" for version in range(1, 6))
#: One that Spark writes again, with as many bytes, when the batch runs again after a rewind.
REWRITTEN = BIG[2]


class Stream:
    """A checkpoint and a repository in one bucket."""

    def __init__(self, server: S3Server, kind: str) -> None:
        self.server, self.kind, self.bucket = server, kind, server.make_bucket()
        self.plain = self.open()
        for path, content in SampleTree(partitions=1).files():
            big = content * (PACKED_BELOW // len(content) + 1)
            self.plain.replace(f"orders/{path}", big if path in BIG else content)
        Repository.open_or_create(self.plain / "repository")

    def open(self) -> Location:
        """The bucket, by a client of its own."""
        if self.kind == "s3fs":
            return Location(FsspecStore(self.server.filesystem()), self.bucket)
        return open_location(f"s3://{self.bucket}", storage_options=self.server.options())

    def back_up(self, place: Location | None = None) -> Manifest:
        here = place or self.open()
        return create_backup(Checkpoint.at(here / "orders"), Repository.open(here / "repository"), workers=1).manifest

    def rewrite(self) -> None:
        """The batch runs again: another content of the same size under the same name."""
        path = f"orders/{REWRITTEN}"
        self.plain.replace(path, bytes(255 - byte for byte in self.plain.read(path)))

    def pass_the_lease(self) -> None:
        """As if the process that holds it were on a host that nobody has heard of for long enough."""
        path = "repository/running/orders.json"
        held = json.loads(self.plain.read(path))
        document = held | {"host": "elsewhere", "renewed": time.time() - 100}
        self.plain.replace(path, json.dumps(document).encode())


def overwriting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As copies were made before: the control."""

    def copy(store: S3Store, source: str, target: str, size: int) -> None:
        bucket, _, key = source.partition("/")
        import obstore

        client = store._bucket(bucket, writes=True)
        obstore.copy(client, key, target.partition("/")[2], overwrite=True)

    monkeypatch.setattr(S3Store, "copy", copy)
    monkeypatch.setattr(S3Store, "copies_if_absent", lambda *_: True)


def ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that does not know the condition and says nothing of it: it gets a header that this one does not know."""
    monkeypatch.setattr(s3_store, "_COPY_IF_ABSENT", "header-with-status:x-amz-meta-unknown:x:412")


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pass


@pytest.mark.parametrize(
    ("kind", "service", "stays_whole"),
    [
        ("obstore", nothing, True),
        ("s3fs", nothing, True),
        ("obstore", ignored, True),
        ("obstore", overwriting, False),
    ],
    ids=["obstore", "s3fs", "a service that ignores the condition", "control: copies as before"],
)
def test_it_cannot_change_an_object_that_another_manifest_lists(
    s3_server: S3Server,
    kind: str,
    service: Callable[[pytest.MonkeyPatch], None],
    stays_whole: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has chosen the name of an object and is suspended before it copies. Another backup copies to that name and lists it;
    then the file is written again. Woken up, the first one copies the new content to the old name.
    """
    service(monkeypatch)
    stream = Stream(s3_server, kind)
    others: list[Manifest] = []
    stale = stream.open()
    copy = type(stale.store).copy

    def stand_still(store: Any, source: str, target: str, size: int) -> None:
        if store.__dict__.get("stands_still") and source.endswith(REWRITTEN) and not others:
            stream.pass_the_lease()
            others.append(stream.back_up())
            stream.rewrite()
        copy(store, source, target, size)

    monkeypatch.setattr(type(stale.store), "copy", stand_still)
    stale.store.__dict__["stands_still"] = True
    own: Manifest | None = None
    try:
        own = stream.back_up(stale)
    except CkptError:
        own = None  # it may end with an error, as long as it has changed nothing
    (other,) = others  # it did stand still
    repository = Repository.open(stream.plain / "repository")
    report = verify_backup(repository, other, read_data=ReadData())
    assert report.ok == stays_whole, report.findings
    if own is not None and stays_whole:
        assert verify_backup(repository, own, read_data=ReadData()).ok


def test_what_one_that_was_killed_has_copied_is_used_where_the_service_knows_the_condition(s3_server: S3Server) -> None:
    stream = Stream(s3_server, "obstore")
    place = stream.open()
    first = stream.back_up(place)
    repository = stream.plain / "repository"
    repository.delete(first.path)
    again = create_backup(Checkpoint.at(place / "orders"), Repository.open(place / "repository"))
    assert place.store.copies_if_absent(1)
    # The very first copy shows whether the service knows it, under a name of its own. What lies in packs is not looked for.
    assert again.copied_files - sum(entry.is_packed for entry in again.manifest.files) <= 1
    assert len([entry for entry in again.manifest.files if entry.checksum]) >= len(BIG)
    assert verify_backup(Repository.open(repository), again.manifest, read_data=ReadData()).ok


def test_each_backup_has_names_of_its_own_where_it_does_not(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ignored(monkeypatch)
    stream = Stream(s3_server, "obstore")
    place = stream.open()
    first = stream.back_up(place)
    copied = {entry.object for entry in first.files if entry.checksum}
    assert len(copied) >= len(BIG)
    assert not place.store.copies_if_absent(1)
    assert caplog.text.count("copies over files though it is asked not to") == 1
    assert stream.back_up(place).files == first.files, "what a manifest lists is used all the same"
    repository = stream.plain / "repository"
    for path in repository.walk("backups"):
        repository.delete(path)
    second = stream.back_up(place)
    assert not copied & {entry.object for entry in second.files}
    assert verify_backup(Repository.open(repository), second, read_data=ReadData()).ok
