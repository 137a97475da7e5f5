"""Packs and documents that were damaged or forged: found, named, and the rest can be restored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import manifest as manifests
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.pack_file import MAGIC, PackBuilder, read_index
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repack import repack
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.repository_repair import apply_objects_repair, plan_objects_repair
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import DamagedBackupError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, pack_size, part_of
from tests.support.backups import back_up, files_in, stream
from tests.support.checkpoints import contents
from tests.support.packs import (
    flip,
    of_pack,
    packed_repository,
    packs_of,
    restorable,
    restored,
    with_big_files,
)
from tests.support.spoiled import spoil
from tests.support.watched_stores import in_memory, watched

ALL = ReadData()
GOLDEN = Path(__file__).parents[2] / "golden" / "stored"


def reindexed(pack: bytes, change: Callable[[list[tuple[str, int]]], list[tuple[str, int]]]) -> bytes:
    """A pack with another index, which is right in itself.

    :param change: given SHA-256 and bytes of each content; what is to stand there.
    """
    rows = [(sha256, length) for sha256, _, length in read_index(pack)]
    body = pack[: -len(rows) * 36 - 44]
    index = b"".join(bytes.fromhex(sha256) + length.to_bytes(4, "big") for sha256, length in change(rows))
    return b"".join((body, index, hashlib.sha256(index).digest(), (len(index) // 36).to_bytes(4, "big"), MAGIC))


#: Kind -> what becomes of the bytes of a pack, given them and those of another pack; ``None``: it is missing.
FAULTS: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "a bit in a content": lambda pack, other: flip(pack, 20),
    "a bit in the last content": lambda pack, other: flip(pack, [*read_index(pack)][-1][1]),
    "a bit in the index": lambda pack, other: flip(pack, len(pack) - 60),
    "a bit in the hash of the index": lambda pack, other: flip(pack, len(pack) - 30),
    "a bit in the number of contents": lambda pack, other: flip(pack, len(pack) - 9),
    "a bit in the beginning": lambda pack, other: flip(pack, 0),
    "a bit in the end": lambda pack, other: flip(pack, len(pack) - 1),
    "the index is cut off": lambda pack, other: pack[:-40],
    "half of it is cut off": lambda pack, other: pack[: len(pack) // 2],
    "empty": lambda pack, other: b"",
    "missing": lambda pack, other: None,
    "longer": lambda pack, other: pack + b"more",
    "another pack": lambda pack, other: other,
    "an older pack, as long as this one": lambda pack, other: (other * 100)[: len(pack)],
    "two contents exchanged": lambda pack, other: pack[: len(MAGIC)] + pack[len(MAGIC) : 400][::-1] + pack[400:],
    "zeros": lambda pack, other: bytes(len(pack)),
    "an index with another hash": lambda pack, other: reindexed(pack, lambda rows: [("1" * 64, rows[0][1]), *rows[1:]]),
    "an index in another order": lambda pack, other: reindexed(pack, lambda rows: rows[::-1]),
    "an index that names a content twice": lambda pack, other: reindexed(pack, lambda rows: [rows[0], *rows]),
    "an index with a huge length": lambda pack, other: reindexed(
        pack, lambda rows: [(rows[0][0], 2**32 - 1), *rows[1:]]
    ),
    "an index of nothing": lambda pack, other: reindexed(pack, lambda rows: []),
    "a huge number of contents": lambda pack, other: pack[:-12] + b"\xff" * 4 + pack[-8:],
}


class TestFaults:
    @pytest.mark.parametrize("kind", FAULTS)
    def test_it_is_found_and_named_and_the_rest_can_be_restored(self, place: Location, kind: str) -> None:
        repository = packed_repository(place)
        first = back_up(place, stream(3)).manifest
        (pack,) = packs_of(repository)
        newest = back_up(place, stream(6)).manifest
        (other,) = set(packs_of(repository)) - {pack}
        right = files_in(newest, place)
        damaged = FAULTS[kind](repository.location.read(pack), repository.location.read(other))
        if damaged is None:
            repository.location.delete(pack)
        else:
            repository.location.replace(pack, damaged)
        report = verify_backup(repository, newest, read_data=ALL)
        assert not report.ok
        assert all(finding.is_damage for finding in report.findings)
        named = {finding.path for finding in report.findings}
        # Every file that cannot be restored is named, no other one is; and what is wrong with the pack as such.
        left = restorable(repository, newest)
        assert left == {path: data for path, data in right.items() if path not in named}
        assert named - {pack} == set(right) - left.keys() <= set(of_pack(newest, pack))
        assert pack in named or set(of_pack(newest, pack)) <= named
        of_all = verify_repository(repository, read_data=ALL)
        assert {d.backup_id for d in of_all.damaged} == {first.backup_id, newest.backup_id}
        assert pack in "".join(of_all.findings)
        # What was learned keeps new backups from using it; they are whole.
        after = back_up(place, stream(7)).manifest
        assert all(file_of(entry.object) != pack for entry in after.files)
        assert verify_backup(repository, after, read_data=ALL).ok
        assert restored(repository, after, place / "target") == files_in(after, place)

    @pytest.mark.parametrize("kind", FAULTS)
    def test_repaired_from_the_checkpoint_it_is_the_same_to_the_letter(self, place: Location, kind: str) -> None:
        repository = packed_repository(place)
        made = back_up(place, with_big_files(stream())).manifest
        (pack,) = packs_of(repository)
        right = repository.location.read(pack)
        damaged = FAULTS[kind](right, right[: len(right) // 3])
        if damaged is None:
            repository.location.delete(pack)
        else:
            repository.location.replace(pack, damaged)
        record_verification(repository, verify_backup(repository, made, read_data=ALL))
        plan = plan_objects_repair(repository, place / "orders")
        apply_objects_repair(repository, place / "orders", plan)
        if plan.rebuilt:
            assert repository.location.read(pack) == right
        else:  # nothing that a restore needs was damaged: the next prune writes the contents again
            apply_prune(repository, plan_prune(repository))
            assert pack not in packs_of(repository)
        report = verify_backup(repository, made, read_data=ALL)
        assert report.ok, report.findings
        assert restored(repository, made, place / "target") == {
            e.path: (place / "orders").read(e.path) for e in made.files
        }

    def test_a_pack_that_is_lost_is_written_again_under_another_name(self, place: Location) -> None:
        """What is known to be damaged is never what a new backup lists, also where the same contents come together again."""
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        (pack,) = packs_of(repository)
        repository.location.delete(pack)
        record_verification(repository, verify_backup(repository, made, read_data=ALL))
        after = create_backup(Checkpoint.at(place / "orders"), repository, workers=1).manifest
        assert {file_of(entry.object) for entry in after.files}.isdisjoint({pack})
        assert verify_backup(repository, after, read_data=ALL).ok

    def test_a_verify_of_all_backups_names_the_file_first_each_time(self, place: Location) -> None:
        repository = packed_repository(place)
        entry = back_up(place, stream()).manifest.files[0]
        spoil(repository.location, entry)
        first, again = (verify_repository(repository, read_data=ALL).damaged[0].problems for _ in range(2))
        assert [words.partition(":")[0] for words in first] == [entry.path, f"pack {file_of(entry.object)} is damaged"]
        assert again == first

    def test_a_damaged_index_keeps_nobody_from_restoring_the_latest(self, place: Location) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        (pack,) = packs_of(repository)
        repository.location.replace(pack, FAULTS["a bit in the index"](repository.location.read(pack), b""))
        record_verification(repository, verify_backup(repository, made, read_data=ALL))
        assert repository.manifest().backup_id == made.backup_id
        assert restored(repository, made, place / "target") == files_in(made, place)


def forged(repository: Repository, manifest: Manifest, object_: Callable[[FileEntry], str]) -> str:
    """Store a manifest that lists an object in another way, with the right hash over it; return its id."""
    first, *rest = manifest.files
    made = replace(manifest, backup_id="20300101T000000Z-b000004", files=(first._replace(object=object_(first)), *rest))
    repository.location.create(made.path, made.to_document())
    return made.backup_id


def changed(
    start: int = 0, length: int = 0, pack: Callable[[str], str] = lambda pack: pack
) -> Callable[[FileEntry], str]:
    def path(entry: FileEntry) -> str:
        part = part_of(entry.object)
        assert part is not None
        return f"{pack(part.pack)}/{part.sha256}-{part.start + start}-{part.length + length}"

    return path


class TestForged:
    @pytest.mark.parametrize(
        ("object_", "words"),
        [
            (changed(start=10**9), "it ends behind the end of its pack"),
            (changed(start=1), "that overlap at byte"),
            (changed(length=10**11), "it ends behind the end of its pack"),
            (changed(length=1), "has another hash or size than"),
            (lambda e: e.object.rpartition("-")[0] + "--5", "it names a pack, and no content in it"),
            (lambda e: e.object.rpartition("/")[0] + f"/{'0' * 64}-8-{e.size}", "has another hash or size than"),
            (
                changed(pack=lambda p: p.replace("objects/orders", "objects/orders/../other")),
                "or nothing between two slashes",
            ),
            (changed(pack=lambda p: p.replace("objects/orders", "objects/other")), "does not lie in objects/orders/"),
            (changed(pack=lambda p: p.replace("objects/orders", "/etc")), "it is empty, absolute"),
            (
                lambda e: e.object.replace(str(pack_size(file_of(e.object))), "999999999999"),
                "no pack has 931.3 GiB",
            ),
            (lambda e: file_of(e.object), None),
        ],
    )
    def test_a_manifest_is_refused(
        self, place: Location, object_: Callable[[FileEntry], str], words: str | None
    ) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        backup_id = forged(repository, made, object_)
        if words is None:  # the pack as if it were a content: its size and its hash are others
            report = verify_backup(repository, repository.manifest(backup_id), read_data=ALL)
            assert [finding.problem for finding in report.findings] == ["size"]
            return
        with pytest.raises(DamagedBackupError) as error:
            repository.manifest(backup_id)
        assert "or forged, though its hash is right" in error.value.message
        assert words in error.value.message

    def test_what_it_says_of_a_pack_makes_no_good_backup_a_damaged_one(self, place: Location) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        first, second, *_ = (e for e in made.files if e.size > 1)
        wrong = first._replace(sha256="1" * 64, object=first.object.replace(first.sha256 or "", "1" * 64))
        rest = tuple(e for e in made.files if e.object not in (first.object, second.object))
        other = replace(made, backup_id="20300101T000000Z-b000004", files=(wrong, second, *rest))
        repository.location.create(other.path, other.to_document())
        report = verify_repository(repository, read_data=ALL)
        assert [d.backup_id for d in report.damaged] == [other.backup_id]
        assert any(first.path in problem for problem in report.damaged[0].problems)
        assert restored(repository, repository.manifest(made.backup_id), place / "target") == files_in(made, place)

    @pytest.mark.parametrize("version", [1, 2])
    def test_contents_in_packs_under_an_earlier_version(
        self, place: Location, version: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repository = packed_repository(place)
        made = replace(back_up(place, stream()).manifest, backup_id="20300101T000000Z-b000004")
        monkeypatch.setattr(manifests, "has_packed", lambda files: False)
        monkeypatch.setattr(manifests, "COMPACT_FROM", 1000 if version == 1 else 1)
        repository.location.create(made.path, made.to_document())
        with pytest.raises(DamagedBackupError, match="which a manifest of this version cannot list"):
            repository.manifest(made.backup_id)

    @pytest.mark.parametrize(
        "document",
        [
            b"no JSON",
            {"format": "airflow-ckpt-moved", "version": 2, "moved": {}},
            {"moved": {"objects/other/aa/x": {"{pack}": {"{content}": 8}}}},
            {"moved": {"{pack}": {"../../etc": {"{content}": 8}}}},
            {"moved": {"{pack}": {"objects/other/aa/" + "0" * 64 + "-99999.pack": {"{content}": 8}}}},
            {"moved": {"{pack}": {"{pack}": {"{content}": -1}}}},
            {"moved": {"{pack}": {"{pack}": {"{content}": 10**9}}}},
            {"moved": {"{pack}": {"{pack}": {"../x": 8}}}},
            {"moved": [1]},
            b" " * (17 * 1024**2),
        ],
    )
    def test_a_record_of_what_was_moved_is_named_and_stops_nothing_but_deletions(
        self, place: Location, document: bytes | dict[str, object]
    ) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        pack, _, content = made.files[0].object.rpartition("/")
        if isinstance(document, bytes):
            data = document
        else:
            text = json.dumps({"format": "airflow-ckpt-moved", "version": 1, **document})
            data = text.replace("{pack}", pack).replace("{content}", content).encode()
        repository.location.create("moved/orders/000001.json", data)
        repository.location.create("objects/orders/aa/left", b"by a backup that was killed")
        before = contents(place / "backups" / "objects")
        plan = plan_prune(repository)
        assert "moved/orders/000001.json cannot be read" in plan.findings[0]
        assert apply_prune(repository, plan).objects == 0
        assert contents(place / "backups" / "objects") == before
        report = check_repository(repository)
        assert not report.ok
        assert "moved/orders/000001.json cannot be read" in report.streams[0].unreadable[0]
        assert restored(repository, made, place / "target") == files_in(made, place)
        after = back_up(place, stream(6)).manifest
        assert verify_backup(repository, after, read_data=ALL).ok
        assert restored(repository, after, place / "another") == files_in(after, place)
        repository.location.delete("moved/orders/000001.json")
        assert apply_prune(repository, plan_prune(repository)).objects == 1

    def test_a_record_that_points_at_something_else_deletes_nothing(self, place: Location) -> None:
        repository = packed_repository(place)
        made = back_up(place, stream()).manifest
        (pack,) = packs_of(repository)
        builder = PackBuilder()
        builder.add(b"x" * 100_000, hashlib.sha256(b"x" * 100_000).hexdigest())
        bogus = builder.sealed()
        other = f"objects/orders/aa/{hashlib.sha256(bogus).hexdigest()}-{len(bogus)}.pack"
        repository.location.create(other, bogus)
        names = [entry.object.rpartition("/")[2] for entry in made.files]
        record = {"format": "airflow-ckpt-moved", "version": 1, "moved": {pack: {other: dict.fromkeys(names, 8)}}}
        repository.location.create("moved/orders/000001.json", json.dumps(record).encode())
        outcome = apply_prune(repository, plan_prune(repository))
        assert pack in packs_of(repository)
        # The prune reads that pack before it deletes anything, so the first one is known to be needed.
        assert outcome.waits_for["orders"] == (
            f"{other}, which has {len(set(names))} damaged contents (airflow-ckpt repair)",
        )
        assert restored(repository, made, place / "target") == files_in(made, place)


@pytest.mark.parametrize("contents_", [20, 60])
def test_a_rotten_pack_does_not_have_the_records_read_for_each_content(contents_: int) -> None:
    """Before, each of ten thousand contents had all records read and parsed, twice: a restore did not come to its refusal."""
    place = in_memory()
    repository = packed_repository(place)
    made = back_up(place, {**stream(6), **{f"_schema/{n}": bytes([n]) * 50 for n in range(contents_)}}).manifest
    repack(repository, "orders", set(packs_of(repository)), made_by="a test")
    apply_prune(repository, plan_prune(repository), abandoned_after=timedelta(0))
    (pack,) = packs_of(repository)
    repository.location.replace(pack, bytes(byte ^ 1 for byte in repository.location.read(pack)))
    seen, store = watched(repository.location)
    report = verify_backup(Repository.open(seen), made, read_data=ALL)
    assert {finding.path for finding in report.findings} >= {entry.path for entry in made.files if entry.size}
    assert 0 < len([path for path in store.paths("read") if "/moved/" in path]) < 10
