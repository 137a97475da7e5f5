"""A real checkpoint in each store: backed up, verified, restored, sealed; two at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_ckpt_provider.backup.claims import Claim
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.change.sealing import put_seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import BackupRunningError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.archives import sample
from tests.support.emulators import Emulator
from tests.support.stopped import STOPPED
from tests.support.stores_under_test import Place

pytestmark = [pytest.mark.stores, pytest.mark.timeout(300)]

_FILES = {path: data for path, data in sample("4.0.0", "rocks_changelog_agg").files.items() if "/." not in f"/{path}"}


@pytest.fixture
def checkpoint(place: Place) -> Checkpoint:
    location = place.location / "orders"
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: location.create(path, _FILES[path]), _FILES))
    return Checkpoint.at(location)


def test_round_trip(place: Place, checkpoint: Checkpoint) -> None:
    """The second backup copies nothing; a restore gives the same bytes; verify and prune have nothing to say."""
    repository = Repository.open_or_create(place.location / "backups")
    first = create_backup(checkpoint, repository)
    second = create_backup(checkpoint, repository)
    assert (first.copied_files, second.copied_files) == (first.files, 0)
    assert verify_backup(repository, second.manifest, read_data=ReadData()).ok

    target = place.location / "restored"
    apply_restore(plan_restore(repository, second.manifest, target), rest=STOPPED)
    assert {path: target.read(path) for path in target.walk()} == {
        entry.path: _FILES[entry.path] for entry in second.manifest.files
    }
    repository.location.create("objects/orders/00/debris", b"of a backup that was killed")
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    apply_prune(repository, plan_prune(repository))
    (left,) = repository.backups()
    assert set(repository.location.walk("objects")) == {entry.object for entry in left.files}


def test_an_address_opens_what_it_was_made_of(emulator: tuple[str, Emulator], checkpoint: Checkpoint) -> None:
    """Manifests, plans and audit records name places by their address: it has to lead back."""
    _, running = emulator
    uri = checkpoint.location.uri
    again = open_location(uri, storage_options=running.options)
    assert again.uri == uri
    assert again.walk().keys() == _FILES.keys()


def test_of_many_seals_one_is_set(place: Place, checkpoint: Checkpoint) -> None:
    start = threading.Barrier(8)

    def seal(number: int) -> bool:
        start.wait()
        try:
            put_seal(checkpoint.location, 6, plan_id=f"plan{number}", reason="r", made_by="me")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(seal, range(8))) == 1
    found = checkpoint.progress().seal
    assert found is not None
    assert found.batch_id == 6


def test_of_backup_and_prune_one_ends_a_claim(place: Place) -> None:
    claim = Claim(place.location, "orders")
    claim.begin("backup", "me")
    start = threading.Barrier(8)

    def end(number: int) -> bool:
        start.wait()
        try:
            claim.bind(f"backups/orders/{number}.json")
        except BackupRunningError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(end, range(8))) == 1
