"""What a forged, damaged or misnamed record of what was moved may not do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.claims import tidy_claims
from airflow_ckpt_provider.backup.contents import listed_by
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.pack_file import PackBuilder
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repack import tidy_moved
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import Moved, content_path, moved_document, part_of, read_moved
from tests.support.backups import back_up, stream
from tests.support.checkpoints import plant
from tests.support.packs import mostly_garbage, packed_repository, planted_pack, restorable
from tests.support.watched_stores import forget_all, in_memory

ALL = ReadData()


@pytest.fixture
def place() -> Iterator[Location]:
    yield in_memory()
    forget_all()


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_a_bit_in_a_record_is_found_and_named(place: Location, at: int) -> None:
    """Else contents would be called missing that lie where the record said."""
    repository = packed_repository(place)
    pack = planted_pack(repository, b"x" * 1000)
    old = content_path(planted_pack(repository, b"y" * 1000), "1" * 64, 8, 10)
    moved = {old: content_path(pack, "1" * 64, 100, 10)}
    record = json.dumps(moved_document(moved)).encode()
    wrong = bytearray(record)
    wrong[at % len(record)] ^= 1
    repository.location.create("moved/orders/000001.json", bytes(wrong))
    found = read_moved(repository.location, "orders")
    if b'"sha256"' in wrong:
        assert (found.paths, len(found.unreadable)) == ({}, 1)
    else:  # the bit is in that word: what the record says is right
        assert found.paths == moved


def test_what_a_forged_record_names_is_read_before_a_backup_lists_it(place: Location) -> None:
    """Of a content that a store has copied only its MD5 is known: the record would say what its SHA-256 is."""
    repository = packed_repository(place)
    made = back_up(place, stream(4)).manifest
    right, wrong = b"r" * 5000, b"w" * 5000
    md5 = hashlib.md5(right, usedforsecurity=False).hexdigest()
    path = f"objects/orders/aa/etag-{md5}-{len(right)}"
    repository.location.create(path, right)
    builder = PackBuilder()
    sha256 = hashlib.sha256(wrong).hexdigest()
    start, content = builder.add(wrong, sha256), builder.sealed()
    pack = f"objects/orders/aa/{hashlib.sha256(content).hexdigest()}-{len(content)}.pack"
    repository.location.create(pack, content)
    record = moved_document({path: content_path(pack, sha256, start, len(wrong))})
    repository.location.create("moved/orders/000001.json", json.dumps(record).encode())
    plant(place / "orders", {"_schema/big": right})
    file = (place / "orders").walk()["_schema/big"]
    copied = FileEntry("_schema/big", len(right), path, checksum=f"etag:{md5}", identity=file.identity)
    before = replace(made, backup_id="20300101T000000Z-b000004", files=(*made.files, copied))
    repository.location.create(before.path, before.to_document())
    newest = back_up(place).manifest
    entry = next(each for each in newest.files if each.path == "_schema/big")
    assert repository.location.read(entry.object) == right


def test_a_forged_record_with_a_lower_number_hides_nothing(place: Location) -> None:
    repository, made = mostly_garbage(place)
    apply_prune(repository, plan_prune(repository))
    readable = restorable(repository, made)
    forged = {
        old: content_path(f"objects/orders/aa/{'1' * 64}-99999.pack", part.sha256, 8, part.length)
        for old, new in read_moved(repository.location, "orders").paths.items()
        if (part := part_of(new))
    }
    assert forged
    repository.location.create("moved/orders/000000.json", json.dumps(moved_document(forged)).encode())
    assert restorable(repository, made) == readable
    assert verify_backup(repository, made, read_data=ALL).ok


@pytest.mark.parametrize("file", ["9" * 250 + ".json", "100000000.json", "7.json", "0000007.json", "000001.json.bak"])
def test_a_file_that_is_no_record_is_named_and_stops_nothing_once_it_is_deleted(tmp_path: Path, file: str) -> None:
    repository, made = mostly_garbage(open_location(str(tmp_path)))
    planned = plan_prune(repository)
    repository.location.create(f"moved/orders/{file}", b'{"format":"airflow-ckpt-given-up"}\n')
    (words,) = check_repository(repository).streams[0].unreadable
    assert words == f"moved/orders/{file} is no record: none has this name, and nothing is read there"
    assert words in plan_prune(repository).findings[0]
    assert apply_prune(repository, planned).objects == 0
    repository.location.delete(f"moved/orders/{file}")
    assert check_repository(repository).ok
    assert apply_prune(repository, plan_prune(repository)).objects == 1
    assert repository.location.find("moved/orders/000001.json")
    assert verify_backup(repository, made, read_data=ALL).ok


def test_what_a_killed_process_left_beside_records_is_no_finding(place: Location) -> None:
    repository, _ = mostly_garbage(place)
    repository.location.create("moved/orders/.000001.json.1f.tmp", b"{")
    assert check_repository(repository).ok
    assert apply_prune(repository, plan_prune(repository)).objects == 1


def test_a_claim_for_a_record_that_cannot_be_written_has_ended(tmp_path: Path) -> None:
    """Earlier releases bound themselves to the number after a forged one; then neither prune nor check could read the claim."""
    repository, _ = mostly_garbage(open_location(str(tmp_path)))
    repository.location.create(
        "claims/orders/1f.json", b'{"what": "repack", "made_by": "", "at": "2026-01-01T00:00:00"}'
    )
    end = {"manifest": f"moved/orders/1{'0' * 250}.json", "given_up": False}
    repository.location.create("claims/orders/1f.end.json", json.dumps(end).encode())
    assert check_repository(repository).ok
    assert apply_prune(repository, plan_prune(repository)).waits_for == {}
    assert repository.location.find("claims/orders/1f.json") is None


def test_the_highest_number_of_a_record_is_named_and_a_prune_still_deletes(
    place: Location, caplog: pytest.LogCaptureFixture
) -> None:
    repository, _ = mostly_garbage(place)
    planned = plan_prune(repository)
    repository.location.create("moved/orders/99999999.json", b'{"format":"airflow-ckpt-given-up"}\n')
    repository.location.create(f"objects/orders/aa/{'1' * 64}-1", b"x")
    assert apply_prune(repository, plan_prune(repository)).objects == 1
    assert "moved/orders/99999999.json has the highest number that a record can have" in caplog.text
    repository.location.delete("moved/orders/99999999.json")
    assert apply_prune(repository, planned).objects == 1


def test_records_are_tidied_by_their_numbers(place: Location) -> None:
    """By their names, 999999 would come after 1000000: a number would come back."""
    repository, made = mostly_garbage(place)
    (pack,) = plan_prune(repository).streams[0].repacked
    part = part_of(next(e.object for e in made.files if e.is_packed))
    assert part
    old, new = (content_path(pack, "1" * 64, 8 + n, 9) for n in range(2))
    for number in (999_999, 1_000_000):
        record = json.dumps(moved_document({old: new})).encode()
        repository.location.create(f"moved/orders/{number}.json", record)
    tidy_moved(repository, "orders", listed_by(repository, "orders"))
    assert list(repository.location.walk("moved")) == ["moved/orders/1000000.json"]
    for number in (999_999, 1_000_000):
        claim = f"claims/orders/{number}"
        repository.location.create(f"{claim}.json", b"{}")
        end = {"manifest": f"moved/orders/{number}.json", "given_up": False}
        repository.location.create(f"{claim}.end.json", json.dumps(end).encode())
    repository.location.create("moved/orders/999999.json", b'{"format":"airflow-ckpt-given-up"}\n')
    repository.location.create("moved/orders/.z.tmp", b"")
    tidy_claims(repository, "orders", finished={"999999", "1000000"})
    assert repository.location.find("claims/orders/1000000.json")
    assert repository.location.find("claims/orders/999999.json") is None


class CountedPaths(dict[str, str]):
    """A mapping that counts how often it is asked."""

    asked = 0

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.asked += 1
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)


def chain_of(length: int) -> dict[str, str]:
    pack = f"objects/orders/aa/{'1' * 64}-99999999.pack"
    places = [content_path(pack, "1" * 64, start, 9) for start in range(length + 1)]
    return dict(pairwise(places))


@pytest.mark.parametrize("length", [100, 1000])
def test_a_forged_chain_costs_no_more_than_there_are_records(place: Location, length: int) -> None:
    """For each file of a backup all of it was gone through, with the square of its length."""
    repository = packed_repository(place)
    says = chain_of(length)
    repository.location.create("moved/orders/000001.json", json.dumps(moved_document(says)).encode())
    moved = read_moved(repository.location, "orders")
    assert moved.paths == says
    paths, record = CountedPaths(says), CountedPaths(says)
    counted = replace(moved, paths=paths, records={"moved/orders/000001.json": record})
    first = next(iter(says))
    assert counted.now(first) == says[first]
    assert list(counted.elsewhere(first)) == [says[first]]
    assert counted.places(first) == {first, says[first]}
    assert paths.asked + record.asked < 20
    part = counted.part(says)
    paths.asked = 0
    sent = replace(part, paths=(again := CountedPaths(part.paths)))
    assert sent.now(first) == says[first]
    assert again.asked < 5


def test_a_content_that_was_moved_as_often_as_there_are_records_is_found() -> None:
    says = chain_of(50)
    records = {f"moved/orders/{n:06d}.json": {old: new} for n, (old, new) in enumerate(says.items(), 1)}
    moved = Moved(says, records, 50)
    assert moved.chain(next(iter(says))) == [*says, list(says.values())[-1]]
    assert moved.places(next(iter(says))) == {*says, *says.values()}
    assert moved.part(says).now(next(iter(says))) == list(says.values())[-1]


def test_places_that_records_name_in_a_circle() -> None:
    a, b, c = (content_path(f"objects/orders/aa/{'1' * 64}-999.pack", "1" * 64, start, 9) for start in range(3))
    circle = {a: b, b: c, c: a}
    moved = Moved(circle, {str(n): {old: new} for n, (old, new) in enumerate(circle.items())})
    assert [moved.chain(each) for each in (a, b, c)] == [[a, b, c], [b, c, a], [c, a, b]]
    assert moved.places(b) == {a, b, c}
