"""copy: the same backups in another repository, proven on the way, and continuing where it was stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_ckpt_provider.backup.copy import CopiedBackup, copy_backups, to_copy
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.migrate import plan_migrate
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.trust import check_trust
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError, RefusedError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, entry_of, files_in, stream, visible
from tests.support.checkpoints import contents, plant
from tests.support.repository_histories import opened
from tests.support.spoiled import lose, lying_with, spoil
from tests.support.watched_stores import Killed, Life, watched


@pytest.fixture
def manifests(place: Location) -> list[Manifest]:
    return [back_up(place, stream(newest), restorable_batches=2).manifest for newest in (4, 6, 9)]


def second(place: Location) -> Repository:
    return Repository.open_or_create(place / "second")


def copy(place: Location, manifests: list[Manifest]) -> list[CopiedBackup]:
    return copy_backups(opened(place), second(place), manifests, made_by="me")


def test_all(place: Location, manifests: list[Manifest]) -> None:
    before = contents(place / "backups")
    copied = copy(place, manifests)
    assert [c.backup_id for c in copied] == [m.backup_id for m in manifests]
    assert not any(c.already_there for c in copied)
    assert copied[0].copied_files == len({e.object for e in manifests[0].files})
    assert 0 < copied[1].copied_files < copied[1].files, "what they share is copied once"
    after = {p: d for p, d in contents(place / "backups").items() if not p.startswith("claims/")}
    assert after == {p: d for p, d in before.items() if not p.startswith("claims/")}
    assert check_repository(second(place)).ok
    for original in manifests:
        there = second(place).read_manifest("orders", original.backup_id)
        assert {**there.summary(), "facts": there.facts} == {**original.summary(), "facts": original.facts}
        assert [(f.path, f.size, f.identity, f.batches) for f in there.files] == [
            (f.path, f.size, f.identity, f.batches) for f in original.files
        ]
        assert verify_backup(second(place), there, read_data=ReadData()).ok
    apply_restore(plan_restore(second(place), second(place).manifest(), place / "target"))
    assert visible(place / "target") == {
        path: data for path, data in files_in(manifests[2], place).items()
        if path in {e.path for e in manifests[2].files_of(9)}
    }  # fmt: skip


def test_the_numbers_of_copies_are_those_of_the_target(place: Location, manifests: list[Manifest]) -> None:
    """A target that gets one of three has no gap; nor has one that gets an older one later."""
    assert [m.sequence for m in manifests] == [1, 2, 3]
    for number, manifest in enumerate([manifests[2], manifests[0]], 1):
        copy(place, [manifest])
        assert second(place).read_manifest(manifest.name, manifest.backup_id).sequence == number


def test_twice_is_once(place: Location, manifests: list[Manifest]) -> None:
    copy(place, manifests)
    seen, asked = watched(place / "backups")
    copied = copy_backups(Repository(seen, "r"), second(place), manifests)
    assert all(c.already_there and c.copied_files == 0 for c in copied)
    assert not [path for path in asked.paths("read") if "/objects/" in path]


@pytest.mark.format_1("so many writes; of packs: TestCopy in test_packs_pruned.py")
@pytest.mark.parametrize("writes", [0, 1, 3, 6, 10, 15, 25, 40])
def test_stopped_anywhere_what_is_there_is_whole_and_it_goes_on(
    place: Location, manifests: list[Manifest], writes: int
) -> None:
    target = second(place)
    life = Life(writes)
    seen, _ = watched(place / "second", life.before)
    with pytest.raises(Killed):
        copy_backups(opened(place), Repository(seen, "r"), manifests, workers=1)
    report = check_repository(target)
    assert report.ok
    had = sum(s.objects for s in report.streams)
    source, asked = watched(place / "backups")
    copied = copy_backups(Repository(source, "r"), target, manifests)
    assert check_repository(target).ok
    assert sum(s.objects for s in check_repository(target).streams) == had + sum(c.copied_files for c in copied)
    assert len([p for p in asked.paths("read") if "/objects/" in p]) <= sum(c.copied_files for c in copied) + 4
    for manifest in target.backups():
        assert verify_backup(target, manifest, read_data=ReadData()).ok


def test_what_is_damaged_is_not_copied(place: Location, manifests: list[Manifest]) -> None:
    entry = entry_of(manifests[2], "offsets/9")
    spoil(place / "backups", entry)
    with pytest.raises(DamagedBackupError, match=r"offsets/9: its object .* has another content than was backed up"):
        copy(place, manifests)
    assert second(place).backup_ids("orders") == tuple(m.backup_id for m in manifests[:2])
    lose(place / "backups", entry.object)
    with pytest.raises(DamagedBackupError) as error:
        copy(place, manifests)
    lost = lying_with(manifests[2].files, entry.object)
    assert error.value.findings == tuple(f"{e.path}: its object {e.object} is missing" for e in lost)
    assert check_repository(second(place)).ok


def test_one_damaged_manifest_does_not_stop_the_others(place: Location, manifests: list[Manifest]) -> None:
    """No newer backup of any stream reached the second place."""
    (place / "backups").replace(manifests[0].path, b"{broken")
    with pytest.raises(DamagedBackupError) as error:
        copy_backups(opened(place), second(place), to_copy(opened(place)))
    assert manifests[0].path in error.value.message
    assert second(place).backup_ids("orders") == tuple(m.backup_id for m in manifests[1:])


def test_all_of_a_name_that_is_not_there(place: Location, manifests: list[Manifest]) -> None:
    """It was a success with nothing."""
    with pytest.raises(NoSuchBackupError, match="holds no backup of ordres"):
        to_copy(opened(place), "ordres")
    assert [each.backup_id for each in to_copy(opened(place), "orders")] == [m.backup_id for m in manifests]


@pytest.mark.format_1("the store copies the small files of this test")
def test_checksums_of_the_store_become_hashes(place: Location) -> None:
    plant(place / "orders", stream())
    seen, _ = watched(place, copies_within=True)
    made = create_backup(Checkpoint.at(seen / "orders"), Repository.open_or_create(seen / "backups")).manifest
    assert any(e.sha256 is None for e in made.files)
    copy(place, [made])
    there = second(place).manifest()
    assert all(e.sha256 and not e.checksum for e in there.files)
    assert verify_backup(second(place), there, read_data=ReadData()).ok


def test_a_backup_into_the_copy_goes_on_from_it(place: Location, manifests: list[Manifest]) -> None:
    copy(place, manifests)
    result = create_backup(Checkpoint.at(place / "orders"), second(place), name="orders", restorable_batches=2)
    assert result.copied_files == 0


def test_into_a_repository_that_was_pruned(place: Location, manifests: list[Manifest]) -> None:
    copy(place, manifests[:2])
    (place / "second").delete(manifests[0].path)
    apply_prune(second(place), plan_prune(second(place)))
    copy(place, manifests)
    assert check_repository(second(place)).ok


def test_refused(place: Location, manifests: list[Manifest]) -> None:
    with pytest.raises(RefusedError, match="would be copied to itself"):
        copy_backups(opened(place), opened(place), manifests)
    copy(place, manifests[:1])
    inner = plant(place / "backups" / "inner", contents(place / "second"))
    for source, target in ((opened(place), Repository.open(inner)), (Repository.open(inner), opened(place))):
        with pytest.raises(RefusedError) as nested:
            copy_backups(source, target, manifests[:1])
        assert nested.value.message == f"{inner} lies inside the repository {place / 'backups'}"
    with pytest.raises(RefusedError, match=f"{inner} lies inside the repository "):
        copy_backups(second(place), Repository.open(inner), manifests[:1])
    with pytest.raises(RefusedError, match=f"{inner} lies inside the repository "):
        plan_migrate(Repository.open(inner))
    for path in contents(inner):
        inner.delete(path)
    other = replace(manifests[0], query_id="another", query_ids=("another",))
    (place / "second").replace(other.path, other.to_document())
    with pytest.raises(RefusedError, match="has another backup"):
        copy(place, manifests[:1])
    (place / "backups").delete(manifests[2].path)
    with pytest.raises(NoSuchBackupError):
        copy(place, manifests[2:])


@pytest.mark.parametrize("at_once", [True, False])
def test_each_copy_has_a_number_of_its_own_whatever_the_order(place: Location, at_once: bool) -> None:
    made = [back_up(place, stream(newest)).manifest for newest in (4, 5, 6, 7)]
    source, target = opened(place), second(place)
    mixed = [made[n] for n in (3, 1, 2, 0)]
    for each in [mixed] if at_once else [[m] for m in mixed]:
        copy_backups(source, target, each)
    numbers = {m.backup_id: m.sequence for m in target.backups("orders")}
    assert numbers == {m.backup_id: n for n, m in enumerate(mixed, 1)}
    assert check_trust(target).notes == ()
    assert check_trust(target).findings == ()
