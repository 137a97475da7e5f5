"""Packing what a real S3 service has copied itself: objects of which manifests know an ETag and no SHA-256."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.migrate import apply_migrate, plan_migrate
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import pack_size
from tests.support.backups import stream
from tests.support.checkpoints import contents, plant
from tests.support.s3_gate import Gate
from tests.support.s3_server import S3Server
from tests.support.stopped import STOPPED


@pytest.fixture
def gate(s3_server: S3Server) -> Iterator[Gate]:
    made = Gate(s3_server)
    yield made
    made.close()


def test_what_the_service_has_copied(gate: Gate, s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket()

    def place(path: str) -> Location:
        return open_location(f"s3://{bucket}/{path}", storage_options=gate.options())

    files = stream(12, partitions=8)
    plant(place("orders"), files)
    repository = Repository.open_or_create(place("backups"), format=1)
    first = create_backup(Checkpoint.at(place("orders")), repository).manifest
    plant(place("orders"), {path: data for path, data in stream(14, partitions=8).items() if path not in files})
    second = create_backup(Checkpoint.at(place("orders")), repository).manifest
    copied = [e for e in second.files if e.sha256 is None and (e.checksum or "").startswith("etag:")]
    assert len(copied) > 50, "the service has copied too little to show anything"
    right = {e.path: place("orders").read(e.path) for e in second.files}

    plan = plan_migrate(repository)
    assert plan.remarks == ()
    with gate.watched() as requests:
        outcome = apply_migrate(place("backups"), plan)
    assert outcome.objects == outcome.deleted == plan.objects
    kinds = Counter(r.kind for r in requests)
    assert kinds["GET"] <= plan.objects + 45, "each object is read once"
    assert kinds["PUT"] <= 12
    repository = Repository.open(place("backups"))
    assert all(pack_size(path) is not None for path in repository.location.walk("objects"))
    assert check_repository(repository).ok

    with gate.watched() as requests:
        assert verify_backup(repository, first, read_data=ReadData()).ok
        assert verify_backup(repository, second, read_data=ReadData()).ok
    assert len(requests) < 40
    with gate.watched() as requests:
        apply_restore(plan_restore(repository, second, place("restored")), rest=STOPPED)
    assert sum(r.kind == "GET" for r in requests) < 60
    assert contents(place("restored")) == right

    # The service's ETags say that nothing is new; the next manifest lists what was packed, with its SHA-256.
    third = create_backup(Checkpoint.at(place("orders")), repository)
    assert third.copied_files == 0
    assert all(e.is_packed and e.sha256 for e in third.manifest.files)
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    apply_prune(repository, plan_prune(repository))
    assert verify_backup(repository, third.manifest, read_data=ReadData()).ok
    apply_restore(plan_restore(repository, third.manifest, place("again")), rest=STOPPED)
    assert contents(place("again")) == right
