from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.backup.content_checks import content_damage
from airflow_ckpt_provider.backup.copy_progress import CopyProgress
from airflow_ckpt_provider.backup.damaged import Damage
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, VerifyReport, verify_backup
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, part_of
from tests.support.backups import back_up, entry_of, repository, stream
from tests.support.spoiled import cut, flip, is_read, lose, lying_with, spoil
from tests.support.watched_stores import watched

ALL = ReadData.parse("all")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("all", ReadData()),
        ("100%", ReadData()),
        ("1/1", ReadData(1, 1)),
        ("3/8", ReadData(3, 8)),
        ("8/8", ReadData(8, 8)),
        ("5%", ReadData(percent=5.0)),
        ("0.5%", ReadData(percent=0.5)),
        ("99.9%", ReadData(percent=99.9)),
    ],
)
def test_parse(text: str, parsed: ReadData) -> None:
    assert ReadData.parse(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "0/8",
        "9/8",
        "1/0",
        "-1/8",
        "1/8/2",
        "1/99999999999",
        f"1/{'9' * 5000}",
        "0%",
        "101%",
        "5",
        "%",
        "5 %",
        ".5%",
        "a/b",
        "all ",
        "1.5/8",
        "nan%",
    ],
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(RefusedError) as error:
        ReadData.parse(text)
    assert error.value.message == f"cannot read {text!r} of the data"
    assert error.value.hint == "use all, n/t with 1 <= n <= t <= 999999, or x%"


def entries(count: int) -> list[FileEntry]:
    return [FileEntry(f"state/0/{i}", 1, f"objects/orders/{i}", sha256="x") for i in range(count)]


@given(st.integers(0, 60), st.integers(1, 12))
def test_the_parts_together_are_everything_exactly_once(count: int, parts: int) -> None:
    chosen = [e for part in range(1, parts + 1) for e in ReadData(part, parts).choose(entries(count))]
    assert sorted(chosen, key=lambda e: e.path) == sorted(entries(count), key=lambda e: e.path)


def test_a_part_is_always_the_same() -> None:
    """Also when other files come and go: it goes by the object."""
    few, many = entries(20), entries(40)
    chosen = list(ReadData(2, 5).choose(many))
    assert [e for e in chosen if e in few] == list(ReadData(2, 5).choose(few))
    assert 0 < len(chosen) < 40


@given(st.integers(0, 60), st.floats(0.01, 99.9))
def test_a_sample_has_its_size_and_no_file_twice(count: int, percent: float) -> None:
    chosen = list(ReadData(percent=percent).choose(entries(count)))
    assert len(chosen) == (max(1, round(count * percent / 100)) if count else 0)
    assert len({e.path for e in chosen}) == len(chosen)


def backup(place: Location) -> tuple[Repository, Manifest]:
    return repository(place), back_up(place, stream(), restorable_batches=2).manifest


def test_a_whole_backup(place: Location) -> None:
    repo, manifest = backup(place)
    structure = verify_backup(repo, manifest)
    assert structure == VerifyReport(manifest.backup_id, "orders", len(manifest.files), manifest.bytes, 0, 0, ())
    content = verify_backup(repo, manifest, read_data=ALL)
    assert (content.read_files, content.read_bytes) == (content.files, content.bytes)
    assert (structure.ok, content.ok) == (True, True)
    assert content.to_json() == {
        "backup_id": manifest.backup_id, "name": "orders", "ok": True, "files": content.files, "bytes": content.bytes,
        "read_files": content.files, "read_bytes": content.bytes, "uncompared_files": 0, "coverage": None, "findings": [],
    }  # fmt: skip


def test_the_structure_costs_one_listing(place: Location) -> None:
    _, manifest = backup(place)
    location, store = watched(place / "backups")
    repo = Repository.open(location)
    store.requests.clear()
    verify_backup(repo, manifest)
    # And what is known to be damaged two more: there is no record of it, and no note either. What was moved, one more.
    assert sorted(store.requests) == [
        ("list", f"{location.root}/damaged/orders"),
        ("list", f"{location.root}/moved/orders"),
        ("walk", f"{location.root}/objects/orders"),
        ("walk", f"{location.root}/verified/orders"),
    ]


@pytest.mark.parametrize("damage", ["missing", "truncated", "emptied", "longer", "flipped"])
def test_damage_to_each_object_is_found_and_named(place: Location, damage: str) -> None:
    """In a pack: damage to the pack is that of the contents behind it, and of the pack as such."""
    repo, manifest = backup(place)
    for entry in manifest.files:
        file = file_of(entry.object)
        right = repo.location.read(file)
        if damage == "missing":
            lose(repo.location, entry.object)
        elif damage == "flipped":
            flip(repo.location, entry.object)
        elif damage == "longer":
            repo.location.replace(file, right + b"x")
        else:
            cut(repo.location, entry.object, left=entry.size - 1 if damage == "truncated" else 0)
        hurt = [e for e in lying_with(manifest.files, entry.object) if is_hurt(e, entry, damage)]
        of_pack = {file} - {entry.object} if damage not in ("missing",) else set()
        report = verify_backup(repo, manifest, read_data=ALL)
        assert not report.ok
        assert {f.path for f in report.findings} == {e.path for e in hurt} | of_pack
        problem = {"missing": "missing", "flipped": "content"}.get(damage, "size")
        assert {f.problem for f in report.findings if f.path not in of_pack} <= {problem}
        # Without reading, all but a changed content of the same size is found too.
        assert verify_backup(repo, manifest).ok == (damage == "flipped")
        repo.location.replace(file, right)
    assert verify_backup(repo, manifest, read_data=ALL).ok


def is_hurt(entry: FileEntry, damaged: FileEntry, damage: str) -> bool:
    """Whether a content is hurt by damage to another one in the same file."""
    its, part = part_of(entry.object), part_of(damaged.object)
    if not its or not part:
        return True
    if damage == "longer":
        return False
    return damage == "missing" or its.start == part.start or (damage != "flipped" and its.start > part.start)


def test_what_findings_say(place: Location) -> None:
    repo, manifest = backup(place)
    entry = entry_of(manifest, "state/0/1/5.changelog")
    lose(repo.location, entry.object)
    (finding,) = (f for f in verify_backup(repo, manifest).findings if f.path == entry.path)
    assert finding == Damage(
        "state/0/1/5.changelog", entry.object, "missing",
        f"state/0/1/5.changelog: its object {entry.object} is missing",
    )  # fmt: skip
    assert finding.to_json() == {
        "path": finding.path, "object": finding.object, "problem": "missing", "message": finding.message,
    }  # fmt: skip
    assert content_damage(entry, b"x") == Damage(
        entry.path, entry.object, "size",
        f"{entry.path}: its object {entry.object} has 1 bytes instead of {entry.size}",
    )  # fmt: skip
    assert content_damage(entry, b"x" * entry.size) == Damage(
        entry.path, entry.object, "content", f"{entry.path}: its object {entry.object} has another content than was backed up",
    )  # fmt: skip


def test_some_parts_find_it_and_all_parts_together_do(place: Location) -> None:
    repo, manifest = backup(place)
    entry = entry_of(manifest, "state/0/1/5.changelog")
    spoil(repo.location, entry)
    reports = [verify_backup(repo, manifest, read_data=ReadData(n, 4)) for n in (1, 2, 3, 4)]
    whole_packs = {file_of(entry.object)} - {entry.object}
    assert {f.path for r in reports for f in r.findings} - whole_packs == {"state/0/1/5.changelog"}
    read = sum(r.read_files for r in reports)
    # Of a pack that is in another part, the first run reads some contents all the same.
    assert read >= len(manifest.files) if repo.packs else read == len(manifest.files)


@pytest.mark.parametrize("path", ["metadata", "offsets/4", "commits/4", "offsets/3", "commits/3"])
def test_a_manifest_that_lacks_what_every_restore_needs(place: Location, path: str) -> None:
    repo, manifest = backup(place)
    less = Manifest(
        **{n: getattr(manifest, n) for n in manifest.__slots__}
        | {"files": tuple(f for f in manifest.files if f.path != path)}
    )
    report = verify_backup(repo, less)
    assert {f.message for f in report.findings} == {f"{path} is not in the backup at all"}


def test_an_object_that_cannot_be_read(place: Location) -> None:
    _, manifest = backup(place)
    entry = entry_of(manifest, "state/0/1/5.changelog")

    def fail(operation: str, path: str) -> None:
        if is_read(operation, path, entry.object):
            raise StorageError("could not read it: I/O error")

    location, _ = watched(place / "backups", fail)
    report = verify_backup(Repository.open(location), manifest, read_data=ALL)
    (finding,) = (f for f in report.findings if f.path == entry.path)
    assert (finding.problem, finding.path) == ("unreadable", entry.path)
    assert finding.message == f"{entry.path}: its object {entry.object} could not be read: could not read it: I/O error"
    assert (report.ok, report.damaged, report.contents_read) == (False, False, False)
    assert {f.path for f in report.findings} == {e.path for e in lying_with(manifest.files, entry.object)}
    assert report.read_files == report.files - len(report.findings)


def test_an_object_that_vanishes_before_it_is_read(place: Location) -> None:
    repo, manifest = backup(place)
    entry = entry_of(manifest, "state/0/1/5.changelog")

    def vanish(operation: str, path: str) -> None:
        if is_read(operation, path, entry.object):
            lose(repo.location, entry.object)

    location, _ = watched(place / "backups", vanish)
    findings = verify_backup(Repository.open(location), manifest, read_data=ALL).findings
    assert {f.path for f in findings} == {e.path for e in lying_with(manifest.files, entry.object)}
    assert {f.problem for f in findings} == {"missing"}


def test_progress(place: Location) -> None:
    repo, manifest = backup(place)
    seen: list[CopyProgress] = []
    verify_backup(repo, manifest, read_data=ALL, on_progress=seen.append)
    files, size = len(manifest.files), manifest.bytes
    assert [p.files_done for p in seen] == list(range(1, files + 1))
    assert seen[-1] == CopyProgress(files, files, size, size)


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("checksum", "right"),
    [
        (f"etag:{md5(b'content')}", True),
        (f"etag:{md5(b'other')}", False),
        (f"md5:{md5(b'content')}", True),
        (f"md5:{md5(b'other')}", False),
        (f"sha256:{hashlib.sha256(b'content').hexdigest()}", True),
        (f"sha256:{hashlib.sha256(b'other').hexdigest()}", False),
        (f"etag:{md5(b'other')}-2", True),
    ],
)
def test_contents_that_only_the_store_has_hashed(checksum: str, right: bool) -> None:
    """Compared with every hash of the content that a store of ours gives; an ETag of several parts is none."""
    entry = FileEntry("offsets/4", 7, "objects/orders/x", checksum=checksum)
    assert (content_damage(entry, b"content") is None) is right
