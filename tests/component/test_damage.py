"""Every content of a backup truncated, bit-flipped or removed in turn: all of it is found, and nothing is restored from it.

Nor is anything else changed by the attempt: not the empty place, not the checkpoint that was to be replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import DamagedBackupError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of, part_of
from tests.samples.archives import sample
from tests.support.command_line import Finished, new_repository, run
from tests.support.every_run import of_these
from tests.support.fingerprints import NOTES, fingerprint
from tests.support.s3_server import S3Server
from tests.support.spoiled import file_at, lying_with, overwrite, spoiled_file, spoiled_with
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


DAMAGES = ("removed", *(change.__name__ for change in CHANGES))


def damaged_file(how: str, file: bytes, path: str) -> bytes | None:
    """The file that a content lies in, once the content is damaged; ``None``: it is removed."""
    if how == "removed":
        return None
    return spoiled_file(file, path, {change.__name__: change for change in CHANGES}[how])


def put(file: Path, content: bytes | None, times: os.stat_result) -> None:
    """Change a file so that nothing but its content shows: its time stays."""
    if content is None:
        file.unlink()
        return
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@dataclass(frozen=True)
class Taken:
    """A repository with one backup, and two places to restore to: a checkpoint to be replaced, and an empty one."""

    place: Path
    manifest: Path
    entries: list[FileEntry]
    in_use: Path
    nowhere: Path

    @property
    def objects(self) -> list[str]:
        """The contents of the backup, by their paths in the repository: all that is stored."""
        objects = sorted({entry.object for entry in self.entries})
        stored = {str(p.relative_to(self.place)) for p in (self.place / "objects").rglob("*") if p.is_file()}
        assert {file_of(path) for path in objects} == stored
        return objects

    def forget(self) -> None:
        """Remove what verifies and restores have noted, so that the damage has to be found again."""
        for noted in ("damaged", "read", "verified"):
            shutil.rmtree(self.place / noted, ignore_errors=True)

    def check_named(self, findings: list[dict[str, Any]], damaged: list[FileEntry], *, pack: str | None) -> None:
        """See that a verify names each of these files once and no other, and the pack that they lie in as such.

        :param pack: the pack; its bytes and its index may both be wrong, which are two findings.
        """
        named = [(finding["path"], finding["object"]) for finding in findings]
        assert sorted(each for each in named if each[0] != each[1]) == sorted((e.path, e.object) for e in damaged)
        assert {path for path, object_ in named if path == object_} == ({pack} if pack else set())


@pytest.fixture(scope="module", params=KINDS)
def taken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    home = tmp_path_factory.mktemp("damage")
    checkpoint = sample("4.0.0", request.param).unpack(home / "orders")
    assert run("backup", checkpoint, new_repository(home / "backups")).code == 0
    (manifest,) = (home / "backups" / "backups" / "orders").iterdir()
    entries = [FileEntry.from_json(entry) for entry in json.loads(manifest.read_text())["file_list"]]
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
def test_every_content_in_turn(how: str, taken: Taken):
    objects = taken.objects
    assert len(objects) > 5
    for path in one_of_each_file(objects) if how == "removed" else objects:
        file = file_at(taken.place, path)
        content, times = file.read_bytes(), file.stat()
        wrong = damaged_file(how, content, path)
        damaged = spoiled_with(taken.entries, path, content, wrong)
        if how in ("cut_in_half", "overwritten") and wrong == content:
            continue
        assert path in {entry.object for entry in damaged}
        put(file, wrong, times)
        before = fingerprint(taken.place.parent, without=NOTES)

        verified = run("verify", taken.place, "--read-data", "--json")
        assert (verified.code, verified.err) == (1, ""), path
        found = verified.document["findings"]
        taken.check_named(found, damaged, pack=file_of(path) if part_of(path) and wrong is not None else None)
        assert all(finding["path"] in finding["message"] for finding in found)

        for refused in tries_to_restore(taken):
            assert refused.code == 1, path
            error = refused.document["error"]
            assert error["type"] == "DamagedBackupError"
            assert error["message"].endswith("; nothing was changed")
            assert any(entry.path in error["message"] for entry in damaged)
        assert fingerprint(taken.place.parent, without=NOTES) == before

        put(file, content, times)
        taken.forget()
    assert run("verify", taken.place, "--read-data").code == 0, "the test fixes what it damages"


def one_of_each_file(objects: Iterable[str]) -> list[str]:
    """A content of each file of the repository: where the file is removed, it is removed with all others."""
    return list({file_of(path): path for path in objects}.values())


def test_the_backup_can_be_restored_while_it_is_whole(taken: Taken, tmp_path: Path):
    """Else the refusals above would show nothing."""
    assert run("restore", taken.place, "latest", tmp_path / "restored", "--apply").code == 0
    assert run("restore", taken.place, "latest", taken.in_use, "--replace").code == 0


def test_structure_alone_finds_what_is_missing_or_of_another_size(taken: Taken):
    for path in taken.objects[:4]:
        file = file_at(taken.place, path)
        content, times = file.read_bytes(), file.stat()
        for how in ("removed", "cut_by_one", "one_byte_more"):
            wrong = damaged_file(how, content, path)
            put(file, wrong, times)
            verified = run("verify", taken.place, "--json")
            # Of a pack the bytes show what lies beyond its end, and that it is another one; only a read shows what was shifted.
            size = len(wrong or b"")
            damaged = [
                entry
                for entry in lying_with(taken.entries, path)
                if (part := part_of(entry.object)) is None or part.end > size
            ]
            pack = file_of(path) if part_of(path) and wrong is not None else None
            taken.check_named(verified.document["findings"], damaged, pack=pack)
            problems = {finding["problem"] for finding in verified.document["findings"]}
            assert problems == {"missing" if how == "removed" else "size"}
            put(file, content, times)
            taken.forget()


def test_two_contents_of_one_size_exchanged(taken: Taken):
    files = open_location(str(taken.place))
    sizes = {entry.object: entry.size for entry in taken.entries}
    by_size: dict[int, list[str]] = {}
    for path in taken.objects:
        by_size.setdefault(sizes[path], []).append(path)
    one, other = next(paths[:2] for paths in by_size.values() if len(paths) > 1)
    contents = files.read(one), files.read(other)
    assert contents[0] != contents[1]
    overwrite(files, one, contents[1])
    overwrite(files, other, contents[0])
    try:
        verified = run("verify", taken.place, "--read-data", "--json")
        damaged = [entry for entry in taken.entries if entry.object in (one, other)]
        taken.check_named(verified.document["findings"], damaged, pack=file_of(one) if part_of(one) else None)
        assert all(refused.code == 1 for refused in tries_to_restore(taken))
    finally:
        overwrite(files, one, contents[0])
        overwrite(files, other, contents[1])
        taken.forget()


@pytest.mark.parametrize("how", DAMAGES)
def test_the_manifest(how: str, taken: Taken):
    content, times = taken.manifest.read_bytes(), taken.manifest.stat()
    put(taken.manifest, damaged_file(how, content, str(taken.manifest)), times)
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
        file = file_at(taken.place, path)
        content = file.read_bytes()
        file.write_bytes(spoiled_file(content, path, flip_a_bit_in_the_middle))
        with pytest.raises(DamagedBackupError) as caught:
            apply_restore(plan, rest=STOPPED)
        file.write_bytes(content)
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


@pytest.mark.parametrize(
    "how", of_these(["removed", "cut_in_half", "flip_a_bit_in_the_middle", "overwritten"], "overwritten")
)
def test_every_content_on_s3(how: str, on_s3: str, s3_server: S3Server, tmp_path: Path):
    place = open_location(f"s3://{on_s3}", storage_options=s3_server.options())
    repository = Repository.open(place / "backups")
    manifest = repository.manifest(whole=False)  # whatever was noted of it by the tests before
    objects = sorted({entry.object for entry in manifest.files})
    assert len(objects) > 5
    for path in one_of_each_file(objects) if how == "removed" else objects:
        file = file_of(path)
        content = repository.location.read(file)
        wrong = damaged_file(how, content, path)
        if wrong is None:
            repository.location.delete(file)
        else:
            repository.location.replace(file, wrong)

        report = verify_backup(repository, manifest, read_data=ReadData())
        damaged = {entry.path for entry in spoiled_with(manifest.files, path, content, wrong)}
        assert {found.path for found in report.findings} == damaged | (
            {file} if file != path and wrong is not None else set()
        )
        assert path in {found.object for found in report.findings}
        for target in (place / "restored", open_location(str(tmp_path / "restored"))):
            with pytest.raises(DamagedBackupError):
                apply_restore(plan_restore(repository, manifest, target))
            assert target.walk() == {}

        repository.location.replace(file, content)
    assert verify_backup(repository, manifest, read_data=ReadData()).ok
