"""Encrypted repositories: all that works with plain ones, nothing to read without the key, and every change is noticed."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import hold, note_verification
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli.main import main
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, RepositoryError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.keys import parse_key
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of
from tests.support.backups import entry_of, stream
from tests.support.checkpoints import QUERY_ID, contents, plant
from tests.support.one_checkpoint import unpack
from tests.support.spoiled import lose, lying_with
from tests.support.watched_stores import forget_all, in_memory

KEY, OTHER = os.urandom(32), os.urandom(32)


@pytest.fixture(params=["memory", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    yield in_memory() if request.param == "memory" else open_location(str(tmp_path))
    forget_all()


def opened(place: Location, key: bytes | None = KEY, at: str = "backups") -> Repository:
    return Repository.open_or_create(replace(place / at, key=key))


def back_up(place: Location, newest: int = 4, **options: str) -> Manifest:
    plant(place / "orders", stream(newest))
    return create_backup(Checkpoint.at(place / "orders"), opened(place), **options).manifest  # type: ignore[arg-type]


def test_everything_works_as_in_a_plain_one(place: Location) -> None:
    older, newer = back_up(place, 3), back_up(place, 9)
    repository = opened(place)
    for manifest in (older, newer):
        report = verify_backup(repository, manifest, read_data=ReadData())
        assert report.ok
        assert report.read_bytes == manifest.bytes
        assert note_verification(repository, report)
    assert [e.object for e in back_up(place, 9).files] == [e.object for e in newer.files], "nothing new is stored"
    hold(repository, newer, reason="test")
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    assert len(repository.backup_ids("orders")) == 2
    pruned = apply_prune(repository, plan_prune(repository)).objects
    # Of a pack nothing is pruned while most of it is used.
    assert pruned > 0 if not any(e.is_packed for e in older.files) else pruned == 0
    assert check_repository(repository).ok
    outcome = apply_restore(plan_restore(repository, newer, place / "target"))
    assert outcome.files == len(newer.files)
    assert {p: d for p, d in contents(place / "target").items() if "/." not in f"/{p}"} == {
        p: d for p, d in contents(place / "orders").items() if p in {e.path for e in newer.files}
    }
    lose(place / "backups", entry_of(newer, "offsets/9").object)
    plan = plan_objects_repair(repository, place / "orders")
    apply_objects_repair(repository, place / "orders", plan)
    assert check_repository(repository).ok


def test_nothing_can_be_read_without_the_key(place: Location) -> None:
    manifest = back_up(place, reason="a secret reason")
    raw = contents(place / "backups")
    assert {file_of(entry.object) for entry in manifest.files} < raw.keys()
    words = [QUERY_ID, "a secret reason", "batchWatermarkMs", "nextBatchWatermarkMs", "file_list", manifest.checkpoint]
    for path, data in raw.items():
        if path != "repository.json":
            assert data.startswith(b"ACKPT"), path
            assert not [word for word in words if word.encode() in data], path
    assert base64.b64encode(KEY) not in raw["repository.json"]


def test_the_same_content_never_looks_the_same(place: Location) -> None:
    repository = opened(place)
    repository.location.create("objects/a", b"content")
    repository.location.create("objects/b", b"content")
    raw = contents(place / "backups")
    assert raw["objects/a"] != raw["objects/b"]
    assert {f.size for f in repository.location.walk("objects").values()} == {7}


class TestKeys:
    def test_another_key(self, place: Location) -> None:
        back_up(place)
        for open_it in (Repository.open, Repository.open_or_create):
            with pytest.raises(RepositoryError, match="is encrypted with another key than the one given"):
                open_it(replace(place / "backups", key=OTHER))

    def test_no_key(self, place: Location) -> None:
        back_up(place)
        for open_it in (Repository.open, Repository.open_or_create):
            with pytest.raises(RepositoryError, match="is encrypted, and no key was given"):
                open_it(place / "backups")

    def test_a_key_for_a_plain_one(self, place: Location) -> None:
        opened(place, key=None)
        with pytest.raises(RepositoryError, match="is not encrypted, and a key was given"):
            opened(place)

    def test_of_a_newer_version(self, place: Location) -> None:
        back_up(place)
        marker = (place / "backups").read("repository.json").replace(b"AES-256-GCM", b"AES-999-GCM")
        (place / "backups").replace("repository.json", marker)
        with pytest.raises(RepositoryError, match="is encrypted by AES-999-GCM, known here: AES-256-GCM"):
            opened(place)

    @pytest.mark.parametrize("text", ["", "secret", base64.b64encode(b"short").decode(), "ä" * 44])
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(RepositoryError, match="f is no key: a key is 32 bytes in base64") as error:
            parse_key(text, name="f")
        assert error.value.hint == "make one: openssl rand -base64 32"
        assert not text or text not in str(error.value)

    def test_as_openssl_writes_it(self) -> None:
        assert parse_key(base64.b64encode(KEY).decode() + "\n", name="f") == KEY

    def test_it_is_in_no_message(self, place: Location) -> None:
        assert repr(KEY) not in repr(replace(place, key=KEY))


class TestChanges:
    @pytest.fixture
    def manifest(self, place: Location) -> Manifest:
        return back_up(place)

    @pytest.mark.parametrize("at", [0, 9, 25, -1])
    def test_one_bit(self, place: Location, manifest: Manifest, at: int) -> None:
        path = entry_of(manifest, "metadata").object
        data = bytearray((place / "backups").read(file_of(path)))
        data[at] ^= 1
        (place / "backups").replace(file_of(path), bytes(data))
        findings = verify_backup(opened(place), manifest, read_data=ReadData()).findings
        hit = {entry.path for entry in lying_with(manifest.files, path)}
        assert {found.path for found in findings} == hit
        assert len(findings) == len(hit)
        assert all("it was changed, cut off, or is not of this place" in found.message for found in findings)

    @pytest.mark.format_1("two files change places; two packs: test_packs_damaged.py")
    def test_two_objects_change_places(self, place: Location, manifest: Manifest) -> None:
        one, two = (entry_of(manifest, f"offsets/{n}").object for n in (3, 4))
        raw = place / "backups"
        first, second = raw.read(one), raw.read(two)
        assert len(first) == len(second)
        raw.replace(one, second)
        raw.replace(two, first)
        findings = verify_backup(opened(place), manifest, read_data=ReadData()).findings
        assert {f.path for f in findings} == {"offsets/3", "offsets/4"}

    @pytest.mark.parametrize("left", [0, 10, 36, 100])
    def test_a_manifest_that_was_cut_off_is_not_overlooked(
        self, place: Location, manifest: Manifest, left: int
    ) -> None:
        data = (place / "backups").read(manifest.path)
        (place / "backups").replace(manifest.path, data[:left])
        with pytest.raises(DamagedBackupError, match=f"^manifest {manifest.path} is damaged: could not decrypt"):
            opened(place).manifest(manifest.backup_id, name="orders")

    def test_a_repository_may_be_moved_as_a_whole(self, place: Location, manifest: Manifest) -> None:
        plant(place / "elsewhere" / "deep", contents(place / "backups"))
        moved = opened(place, at="elsewhere/deep")
        assert verify_backup(moved, moved.manifest(), read_data=ReadData()).ok


def test_copies(place: Location) -> None:
    back_up(place, 3)
    back_up(place, 9)
    source = opened(place)
    for at, key in (("plain", None), ("other key", OTHER)):
        target = opened(place, key=key, at=at)
        copied = copy_backups(source, target, source.backups())
        assert sum(c.copied_files for c in copied) > 0
        assert all(verify_backup(target, m, read_data=ReadData()).ok for m in target.backups())
    plain, back = opened(place, key=None, at="plain"), opened(place, at="back")
    copy_backups(plain, back, plain.backups())
    assert check_repository(back).ok


def test_one_inside_the_other_is_refused(place: Location) -> None:
    plant(place / "orders", stream())
    with pytest.raises(RefusedError, match="lies inside"):
        create_backup(Checkpoint.at(place / "orders"), opened(place, at="orders/backups"))


def test_from_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, repository = str(unpack(tmp_path / "orders")), str(tmp_path / "repository")
    key, other = tmp_path / "key", tmp_path / "other"
    for file in (key, other, tmp_path / "orders" / "metadata"):
        file.touch(0o600)
        file.chmod(0o600)
    key.write_text(base64.b64encode(KEY).decode() + "\n")
    other.write_text(base64.b64encode(OTHER).decode())
    for place, its_key in ((repository, key), (tmp_path / "2", key), (tmp_path / "3", other)):
        assert main(["init", str(place), "--key-file", str(its_key)]) == 0
    assert main(["backup", checkpoint, repository, "--key-file", str(key)]) == 0
    assert main(["verify", repository, "--read-data", "--key-file", str(key)]) == 0
    assert main(["copy", repository, "all", str(tmp_path / "2"), "--key-file", str(key)]) == 0
    assert main(
        ["copy", repository, "all", str(tmp_path / "3"), "--key-file", str(key), "--target-key-file", str(other)]
    ) == 0  # fmt: skip
    assert main(["verify", str(tmp_path / "2"), "--read-data", "--key-file", str(key)]) == 0
    assert main(["verify", str(tmp_path / "3"), "--read-data", "--key-file", str(other)]) == 0
    capsys.readouterr()
    for argv, says in (
        (["verify", repository], "is encrypted, and no key was given"),
        (["verify", repository, "--key-file", str(other)], "is encrypted with another key"),
        (["verify", repository, "--key-file", checkpoint], "cannot be read"),
        (["verify", repository, "--key-file", str(tmp_path / "orders" / "metadata")], "is no key"),
    ):
        assert main(argv) == 1
        assert says in capsys.readouterr().err
