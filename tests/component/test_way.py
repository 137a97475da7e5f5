"""A backup into packs over a slow link: the store copies what would take too long through this process."""

from __future__ import annotations

import time

import pytest

from airflow_ckpt_provider.backup import way
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import part_of
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant
from tests.support.s3_gate import Gate
from tests.support.s3_server import S3Server
from tests.support.stopped import STOPPED


@pytest.mark.parametrize("slow", ["GET", "COPY"])
def test_the_faster_way_is_taken(slow: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one request at a time, so that nothing hangs on the order of answers."""
    monkeypatch.setattr(way, "SAMPLE", 5)
    monkeypatch.setattr(way, "WORTH", 0.0)
    bucket = s3_server.make_bucket()
    files = stream(12)

    def delay(kind: str, path: str) -> int | None:
        if kind == slow and (kind == "COPY" or "/checkpoint/" in path):
            time.sleep(0.4)  # a link, or a store, as slow as this
        return None

    def place(path: str, server: Gate | S3Server = s3_server) -> Location:
        return open_location(f"s3://{bucket}/{path}", storage_options=server.options())

    plant(place("checkpoint"), files)
    repository = Repository.open_or_create(place("repository"), format=2)
    gate = Gate(s3_server, refuse=delay)
    try:
        through_gate = Repository.open(place("repository", gate))
        result = create_backup(Checkpoint.at(place("checkpoint", gate)), through_gate, name="orders", workers=1)
    finally:
        gate.close()
    packed = [entry for entry in result.manifest.files if part_of(entry.object)]
    alone = [entry for entry in result.manifest.files if not part_of(entry.object)]
    assert result.way is not None
    if slow == "GET":
        assert result.way.endswith(f"by the store, which copied {len(alone)}")
        assert len(alone) > len(packed) >= way.SAMPLE
    else:
        assert result.way.endswith("by the store, which copied 5 to be timed")
        assert len(packed) > len(alone) == 5
    assert verify_backup(repository, result.manifest, read_data=ReadData()).ok
    apply_restore(plan_restore(repository, result.manifest, place("restored")), rest=STOPPED)
    assert contents(place("restored")) == {entry.path: files[entry.path] for entry in result.manifest.files}
