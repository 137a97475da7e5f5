"""check and repair: what is missing in a repository, and what of it can be had again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_ckpt_provider.backup.claims import claimed
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.prune_marks import Marks, write_mark
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import RepositoryReport, check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import back_up, entry_of, stream
from tests.support.checkpoints import contents, plant
from tests.support.repository_histories import opened
from tests.support.spoiled import cut, lose, lying_with, spoil
from tests.support.watched_stores import watched


@pytest.fixture
def manifest(place: Location) -> Manifest:
    return back_up(place, stream()).manifest


def check(place: Location) -> RepositoryReport:
    report = check_repository(opened(place))
    assert json.loads(json.dumps(report.to_json())) == report.to_json()
    return report


def test_whole(place: Location, manifest: Manifest) -> None:
    back_up(place, stream(9))
    before = contents(place / "backups")
    report = check(place)
    assert report.ok
    (found,) = report.streams
    assert (found.name, found.backups, found.unused_objects, found.at_work) == ("orders", 2, 0, ())
    assert found.objects == len([p for p in before if p.startswith("objects/")])
    assert contents(place / "backups") == before


def test_one_listing_for_all_backups_of_a_stream(place: Location, manifest: Manifest) -> None:
    for newest in range(5, 9):
        back_up(place, stream(newest))
    seen, asked = watched(place / "backups")
    assert check_repository(Repository(seen, "r")).ok
    assert asked.paths("walk") == [f"{seen.root}/verified/orders", f"{seen.root}/objects/orders"]
    assert asked.count("read") == 5


@pytest.mark.parametrize("is_there", [False, True])
def test_objects_that_are_missing_or_cut_off(place: Location, manifest: Manifest, is_there: bool) -> None:
    again = back_up(place).manifest
    entry = entry_of(again, "offsets/4")
    if is_there:
        cut(place / "backups", entry.object, left=3)
        says = "has 3 bytes instead of" if entry.object == file_of(entry.object) else "lies beyond the end of its pack"
    else:
        lose(place / "backups", entry.object)
        says = "is missing"
    report = check(place)
    assert not report.ok
    assert len(report.damaged) == len({m.backup_id for m in (manifest, again) if entry in m.files})
    assert any(f"its object {entry.object} {says}" in problem for problem in report.damaged[0].problems)


def test_a_manifest_that_cannot_be_read(place: Location, manifest: Manifest) -> None:
    newer = back_up(place).manifest
    plant(place / "backups", {newer.path: b"half of"})
    (damaged,) = check(place).damaged
    assert damaged.backup_id == newer.backup_id
    assert "is damaged" in damaged.problems[0]


def test_orphans_and_who_is_at_work_are_no_fault(place: Location, manifest: Manifest) -> None:
    plant(place / "backups", {"objects/orders/aa/left": b"12345", "objects/gone/aa/left": b"1"})
    write_mark(place / "backups", "orders", Marks(), [], made_by="")
    with claimed(place / "backups", "orders", what="backup", made_by="night"):
        report = check(place)
    assert report.ok
    gone, orders = report.streams
    assert (gone.name, gone.backups, gone.unused_objects) == ("gone", 0, 1)
    assert (orders.unused_objects, orders.unused_bytes, orders.unfinished_prunes) == (1, 5, 1)
    assert orders.at_work[0].startswith("backup by night since")


class TestRepair:
    def test_from_the_live_checkpoint(self, place: Location, manifest: Manifest) -> None:
        first, second = (entry_of(manifest, path) for path in ("offsets/4", "state/0/0/5.changelog"))
        lost = lying_with(manifest.files, first.object)
        lose(place / "backups", first.object)
        if second not in lost:
            cut(place / "backups", second.object, left=3)
        paths = {entry.object for entry in [*lost, second]}
        before = contents(place / "backups")
        plan = plan_objects_repair(opened(place), place / "orders")
        assert contents(place / "backups") == before
        assert plan.verdict is Verdict.SAFE
        assert {r.entry.object for r in plan.rebuilt} == paths
        assert json.loads(json.dumps(plan.to_json())) == plan.to_json()
        assert f"{len(paths)} objects can be rebuilt, 0 are lost" in plan.to_markdown()
        assert apply_objects_repair(opened(place), place / "orders", plan, made_by="me", reason="a bad disk") == {
            "plan_id": plan.plan_id, "rebuilt": len(paths), "lost": 0, "whole_again": 0
        }  # fmt: skip
        assert verify_backup(opened(place), manifest, read_data=ReadData()).ok
        record = next(opened(place).records())
        assert (record["kind"], record["reason"]) == ("repository repair", "a bad disk")
        assert plan_objects_repair(opened(place), place / "orders").rebuilt == ()

    def test_what_the_checkpoint_has_otherwise_now_is_lost(self, place: Location, manifest: Manifest) -> None:
        entry = entry_of(manifest, "offsets/4")
        lose(place / "backups", entry.object)
        plant(place / "orders", {"offsets/4": b"x" * entry.size})
        plan = plan_objects_repair(opened(place), place / "orders")
        objects = {e.object for e in lying_with(manifest.files, entry.object)}
        assert {r.entry.object for r in plan.rebuilt} == objects - {entry.object}
        assert plan.lost == ((entry.object, (manifest.backup_id,)),)
        assert plan.verdict is Verdict.WILL_LOSE
        assert f"`{entry.object}` is lost; needed by {manifest.backup_id}" in plan.to_markdown()

    def test_from_another_object_with_the_same_content(self, place: Location, manifest: Manifest) -> None:
        entry = entry_of(manifest, "offsets/4")
        content = (place / "backups").read(entry.object)
        spoil(place / "backups", entry)
        (place / "backups").delete(manifest.path)  # so that the content is stored again, under another name
        back_up(place)
        older = replace(manifest, backup_id="20200101T000000Z-b000004")
        (place / "backups").create(older.path, older.to_document())
        lose(place / "backups", entry.object)
        plan = plan_objects_repair(opened(place), place / "nowhere")
        assert {r.entry.object for r in plan.rebuilt} == {e.object for e in lying_with(older.files, entry.object)}
        assert {r.from_checkpoint for r in plan.rebuilt} == {False}
        apply_objects_repair(opened(place), place / "nowhere", plan)
        assert (place / "backups").read(entry.object) == content
        assert check(place).ok

    def test_changed_since_the_plan(self, place: Location, manifest: Manifest) -> None:
        entry = entry_of(manifest, "offsets/4")
        lose(place / "backups", entry.object)
        plan = plan_objects_repair(opened(place), place / "orders")
        (place / "orders").delete("offsets/4")
        with pytest.raises(StorageError, match="offsets/4 is not any more what"):
            apply_objects_repair(opened(place), place / "orders", plan)

    @pytest.mark.format_1("the store copies the small files of this test")
    def test_a_checksum_that_proves_nothing_rebuilds_nothing(self, place: Location) -> None:
        """Copied by the store, with an ETag that is no MD5."""
        plant(place / "orders", stream())
        seen, _ = watched(place, copies_within=True)
        manifest = create_backup(Checkpoint.at(seen / "orders"), Repository.open_or_create(seen / "backups")).manifest
        entry = next(e for e in manifest.files if e.checksum)
        assert entry.sha256 is None
        weak = tuple(e._replace(checksum="etag:abc-2") if e == entry else e for e in manifest.files)
        changed = replace(manifest, files=weak)
        (place / "backups").replace(manifest.path, changed.to_document())
        (place / "backups").delete(entry.object)
        plan = plan_objects_repair(opened(place), place / "orders")
        assert [path for path, _ in plan.lost] == [entry.object]
