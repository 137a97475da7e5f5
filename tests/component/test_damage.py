"""Every file of a backup truncated, bit-flipped or removed in turn: all of it is found, and nothing is restored from it.

Nor is anything else changed by the attempt: not the empty place, not the checkpoint that was to be replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import DamagedBackupError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.plan import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.archives import sample
from tests.support.command_line import Finished, new_repository, run
from tests.support.every_run import of_these
from tests.support.fingerprints import NOTES, fingerprint
from tests.support.s3_server import S3Server
from tests.support.stopped import STOPPED

#: One of each way in which state is stored; a restore of the second rewrites what it reads.
KINDS = (
    *of_these(("rocks_changelog_agg", "tws_rocks", "file_to_noop", "hdfs_agg", "rocks_ckptv2_ssjoin"), "tws_rocks"),
)


def cut_in_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def cut_by_one(content: bytes) -> bytes:
    return content[:-1]


def emptied(content: bytes) -> bytes:
    return b""


def flip_first_bit(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def flip_a_bit_in_the_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x80]) + content[middle + 1 :]


def flip_last_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def overwritten(content: bytes) -> bytes:
    return bytes(len(content))


def one_byte_more(content: bytes) -> bytes:
    return content + b"\n"


CHANGES = (
    cut_in_half,
    cut_by_one,
    emptied,
    flip_first_bit,
    flip_a_bit_in_the_middle,
    flip_last_bit,
    overwritten,
    one_byte_more,
)


def removed(path: Path) -> None:
    path.unlink()


def replaced_by(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        """Change a file so that nothing but its content shows: its time stays."""
        stat = path.stat()
        path.write_bytes(change(path.read_bytes()))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    return damage


DAMAGES = {"removed": removed, **{change.__name__: replaced_by(change) for change in CHANGES}}


@dataclass(frozen=True)
class Taken:
    """A repository with one backup, and two places to restore to: a checkpoint to be replaced, and an empty one."""

    place: Path
    manifest: Path
    entries: list[dict[str, Any]]
    in_use: Path
    nowhere: Path

    @property
    def objects(self) -> list[Path]:
        return sorted(p for p in (self.place / "objects").rglob("*") if p.is_file())

    def forget(self) -> None:
        """Remove what verifies and restores have noted, so that the damage has to be found again."""
        for noted in ("damaged", "read", "verified"):
            shutil.rmtree(self.place / noted, ignore_errors=True)

    def paths_of(self, object_: Path) -> set[str]:
        """The checkpoint's files that are stored as an object."""
        name = str(object_.relative_to(self.place))
        return {entry["path"] for entry in self.entries if entry["object"] == name}


@pytest.fixture(scope="module", params=KINDS)
def taken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    home = tmp_path_factory.mktemp("damage")
    checkpoint = sample("4.0.0", request.param).unpack(home / "orders")
    assert run("backup", checkpoint, new_repository(home / "backups")).code == 0
    (manifest,) = (home / "backups" / "backups" / "orders").iterdir()
    entries = json.loads(manifest.read_text())["file_list"]
    # Another state of the stream, so that there would be something to restore.
    newest = max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())
    (checkpoint / "commits" / str(newest)).unlink()
    return Taken(home / "backups", manifest, entries, checkpoint, home / "restored")


def tries_to_restore(taken: Taken) -> Iterator[Finished]:
    for target in (taken.nowhere, taken.in_use):
        taken.forget()
        yield run(
            *(
                "restore",
                taken.place,
                "latest",
                target,
                "--apply",
                "--replace",
                "--query-is-stopped",
                "--quiet-for",
                "0",
                "--json",
            )
        )


@pytest.mark.parametrize("how", DAMAGES)
def test_every_object_in_turn(how: str, taken: Taken):
    assert len(taken.objects) > 5
    for path in taken.objects:
        content, times = path.read_bytes(), path.stat()
        if how in ("cut_in_half", "overwritten") and replaced_content(how, content) == content:
            continue
        DAMAGES[how](path)
        before = fingerprint(taken.place.parent, without=NOTES)

        verified = run("verify", taken.place, "--read-data", "--json")
        assert (verified.code, verified.err) == (1, ""), path
        found = verified.document["findings"]
        assert {finding["path"] for finding in found} == taken.paths_of(path)
        assert {finding["object"] for finding in found} == {str(path.relative_to(taken.place))}
        assert all(finding["path"] in finding["message"] for finding in found)

        for refused in tries_to_restore(taken):
            assert refused.code == 1, path
            error = refused.document["error"]
            assert error["type"] == "DamagedBackupError"
            assert error["message"].endswith("; nothing was changed")
            assert any(name in error["message"] for name in taken.paths_of(path))
        assert fingerprint(taken.place.parent, without=NOTES) == before

        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        taken.forget()
    assert run("verify", taken.place, "--read-data").code == 0, "the test fixes what it damages"


def replaced_content(how: str, content: bytes) -> bytes:
    return {change.__name__: change for change in CHANGES}[how](content)


def test_the_backup_can_be_restored_while_it_is_whole(taken: Taken, tmp_path: Path):
    """Else the refusals above would show nothing."""
    assert run("restore", taken.place, "latest", tmp_path / "restored", "--apply").code == 0
    assert run("restore", taken.place, "latest", taken.in_use, "--replace").code == 0


def test_structure_alone_finds_what_is_missing_or_of_another_size(taken: Taken):
    for path in taken.objects[:4]:
        content = path.read_bytes()
        for how in ("removed", "cut_by_one", "one_byte_more"):
            DAMAGES[how](path)
            verified = run("verify", taken.place, "--json")
            assert {finding["path"] for finding in verified.document["findings"]} == taken.paths_of(path)
            assert verified.document["findings"][0]["problem"] == ("missing" if how == "removed" else "size")
            path.write_bytes(content)
            taken.forget()


def test_two_objects_of_one_size_exchanged(taken: Taken):
    by_size: dict[int, list[Path]] = {}
    for path in taken.objects:
        by_size.setdefault(path.stat().st_size, []).append(path)
    one, other = next(paths[:2] for paths in by_size.values() if len(paths) > 1)
    contents = one.read_bytes(), other.read_bytes()
    assert contents[0] != contents[1]
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    try:
        verified = run("verify", taken.place, "--read-data", "--json")
        found = {finding["path"] for finding in verified.document["findings"]}
        assert found == taken.paths_of(one) | taken.paths_of(other)
        assert all(refused.code == 1 for refused in tries_to_restore(taken))
    finally:
        one.write_bytes(contents[0])
        other.write_bytes(contents[1])
        taken.forget()


@pytest.mark.parametrize("how", DAMAGES)
def test_the_manifest(how: str, taken: Taken):
    content = taken.manifest.read_bytes()
    DAMAGES[how](taken.manifest)
    before = fingerprint(taken.place.parent, without=NOTES)
    try:
        name = str(taken.manifest.relative_to(taken.place))
        if how == "removed":
            kind, message = "NoSuchBackupError", f"{taken.place} holds no backup"
        else:
            kind, message = "DamagedBackupError", f"manifest {name} is damaged: it is not what was written"
        if how != "one_byte_more":  # a line end behind a JSON document changes nothing of it
            for finished in (run("verify", taken.place, "--read-data", "--json"), *tries_to_restore(taken)):
                assert finished.code == 1
                assert finished.document["error"]["type"] == kind
                assert finished.document["error"]["message"] == message
            listed = run("backups", taken.place, "--json")
            assert listed.document["backups"] == []
            assert listed.document["findings"] == ([] if how == "removed" else [message])
        assert fingerprint(taken.place.parent, without=NOTES) == before
    finally:
        taken.manifest.write_bytes(content)


def test_every_bit_of_a_part_of_the_manifest(taken: Taken):
    """Its hash covers all of it: no flipped bit goes unnoticed, wherever it is."""
    content = taken.manifest.read_bytes()
    try:
        for position in range(0, len(content), max(1, len(content) // 200)):
            flipped = bytearray(content)
            flipped[position] ^= 1 << position % 8
            taken.manifest.write_bytes(flipped)
            finished = run("restore", taken.place, "latest", taken.nowhere, "--apply", "--json")
            assert finished.code == 1, (position, content[position : position + 20])
            assert not taken.nowhere.exists()
    finally:
        taken.manifest.write_bytes(content)


def test_the_marker_of_the_repository(taken: Taken):
    marker = taken.place / "repository.json"
    content = marker.read_bytes()
    try:
        for damaged in (cut_in_half(content), b"", None):
            if damaged is None:
                marker.unlink()
            else:
                marker.write_bytes(damaged)
            for finished in (run("verify", taken.place, "--json"), *tries_to_restore(taken)):
                assert finished.code == 1
                assert finished.document["error"]["type"] == "RepositoryError"
                assert "repository.json" in finished.document["error"]["message"]
            assert not taken.nowhere.exists()
    finally:
        marker.write_bytes(content)


def test_damage_between_plan_and_apply(taken: Taken, tmp_path: Path):
    repository = Repository.open(open_location(str(taken.place)))
    target = tmp_path / "restored"
    for path in taken.objects:
        plan = plan_restore(repository, repository.manifest(), open_location(str(target)))
        content = path.read_bytes()
        path.write_bytes(flip_a_bit_in_the_middle(content))
        with pytest.raises(DamagedBackupError) as caught:
            apply_restore(plan, rest=STOPPED)
        path.write_bytes(content)
        taken.forget()
        assert caught.value.findings
        assert not target.exists()


def test_a_new_backup_does_not_build_on_damage(tmp_path: Path):
    """An object is not trusted because its name is there: the next backup stores what is damaged again, or says so."""
    checkpoint = sample("4.0.0", "rocks_changelog_agg").unpack(tmp_path / "orders")
    place = new_repository(tmp_path / "backups")
    run("backup", checkpoint, place)
    for path in sorted(p for p in (place / "objects").rglob("*") if p.is_file()):
        path.write_bytes(cut_in_half(path.read_bytes()))
    assert run("backup", checkpoint, place).code == 0
    assert run("verify", place, "latest", "--read-data").code == 0
    assert run("restore", place, "latest", tmp_path / "restored", "--apply").code == 0


@pytest.fixture(scope="module", params=["from a disk", "inside the store"])
def on_s3(request: pytest.FixtureRequest, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bucket with a repository; its objects were written by us, or copied by the store."""
    bucket = s3_server.make_bucket()
    checkpoint = str(sample("4.0.0", "rocks_changelog_agg").unpack(tmp_path_factory.mktemp("s3") / "orders"))
    if request.param == "inside the store":
        s3_server.filesystem().put(f"{checkpoint}/", f"{bucket}/orders/", recursive=True)
        checkpoint = f"s3://{bucket}/orders"
    options = []
    for key, value in s3_server.options().items():
        text = json.dumps(value) if isinstance(value, dict) else value
        options += ["--storage-option", f"{key}={text}"]
    place = new_repository(f"s3://{bucket}/backups", *options)
    assert run("backup", checkpoint, place, *options).code == 0
    return bucket


@pytest.mark.parametrize("how", ["removed", "cut_in_half", "flip_a_bit_in_the_middle", "overwritten"])
def test_every_object_on_s3(how: str, on_s3: str, s3_server: S3Server, tmp_path: Path):
    place = open_location(f"s3://{on_s3}", storage_options=s3_server.options())
    repository = Repository.open(place / "backups")
    manifest = repository.manifest(whole=False)  # whatever was noted of it by the tests before
    objects = sorted({entry.object for entry in manifest.files})
    assert len(objects) > 5
    for name in objects:
        content = repository.location.read(name)
        if how == "removed":
            repository.location.delete(name)
        else:
            repository.location.replace(name, replaced_content(how, content))

        report = verify_backup(repository, manifest, read_data=ReadData())
        assert {found.path for found in report.findings} == {e.path for e in manifest.files if e.object == name}
        for target in (place / "restored", open_location(str(tmp_path / "restored"))):
            with pytest.raises(DamagedBackupError):
                apply_restore(plan_restore(repository, manifest, target))
            assert target.walk() == {}

        repository.location.replace(name, content)
    assert verify_backup(repository, manifest, read_data=ReadData()).ok
