"""The compact form of a manifest: nothing is lost in it, what is damaged is found, and 100,000 files stay small and quick."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from airflow_ckpt_provider.backup import file_table
from airflow_ckpt_provider.backup import manifest as manifest_module
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable, kept_in_memory, paths_of
from airflow_ckpt_provider.backup.manifest import Manifest, parse_manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError, RepositoryError
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, repository, stream, visible
from tests.support.checkpoints import contents
from tests.support.watched_stores import watched

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
#: No parts that could lead elsewhere: a manifest with those is refused.
names = texts.map(lambda text: "/".join(part for part in text.replace("\0", "").split("/") if part.strip(".")) or "x")
hashes = st.sampled_from(["etag:abc", "etag:abc-2", "md5:12", "sha256:0f", ":", "*", "etag:", "/"])
entries = st.builds(
    FileEntry,
    path=names,
    size=st.integers(0, 2**60),
    object=st.one_of(
        st.sampled_from(["ab/etag-abc-12", "ab/*", "ab/abcabc", "0f"]).map("objects/orders/".__add__),
        names.map("objects/orders/".__add__),
    ),
    sha256=st.none() | st.sampled_from(["0f" * 32, "ab"]),
    checksum=st.none() | hashes,
    identity=st.none() | hashes | st.just("true") | st.just(""),
    batches=st.none() | st.lists(st.integers(0, 10**9), max_size=3).map(tuple),
)


PATH = "backups/orders/20261121T083000Z-b000223.json"


def made(files: tuple[FileEntry, ...]) -> Manifest:
    return Manifest(
        backup_id="20261121T083000Z-b000223",
        name="orders",
        created=datetime(2026, 11, 21, 8, 30, tzinfo=UTC),
        checkpoint="s3://bucket/orders",
        query_id="13891364-b7ef-4beb-bd81-4736acdd524a",
        batch_id=223,
        restorable=(223,),
        files=files,
        facts={"end_offsets": [{"index": 0}]},
        tags={"a": "b"},
        claim="c",
    )


def many(count: int) -> tuple[FileEntry, ...]:
    """As a backup from one bucket into another has them."""

    def entry(number: int) -> FileEntry:
        etag = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
        size = 300 + number * 7919 % 60_000
        shard = hashlib.sha256(f"etag-{etag}-{size}".encode()).hexdigest()[:2]
        path = f"state/0/{number // 500}/{number % 500}.changelog"
        return FileEntry(path, size, f"objects/orders/{shard}/etag-{etag}-{size}", None, f"etag:{etag}", f"etag:{etag}")

    return tuple(entry(number) for number in range(count))


@given(st.lists(entries, max_size=6))
def test_nothing_is_lost(files: list[FileEntry]) -> None:
    table = FileTable("orders", files)
    read = FileTable.read(b"".join(table.write()), name="orders")
    assert list(read) == list(table) == files
    assert (read, read.bytes, read.is_ordered) == (files, table.bytes, table.is_ordered)
    assert [read[at] for at in range(-len(files), len(files))] == [*files, *files]


@given(st.lists(entries, max_size=3))
def test_both_forms_say_the_same(files: list[FileEntry]) -> None:
    manifest = made(tuple(files))
    documents = [_document(manifest, compact_from) for compact_from in (0, 10**9)]
    assert [json.loads(d)["version"] for d in documents] == [2, 1]
    assert [parse_manifest(d, path=manifest.path) for d in documents] == [manifest, manifest]


@pytest.mark.parametrize("count", [0, 3, 500, 1203])
def test_paths_are_those_of_the_files(count: int) -> None:
    files = many(count)
    right = [file.path for file in files]
    table = FileTable("orders", files)
    later = FileTable.later(lambda: table, name="orders", length=count, size=table.bytes)
    for each in (files, table, later):
        with kept_in_memory(each):
            assert list(paths_of(each)) == right
            assert tuple(each) == files
            assert list(paths_of(each)) == right


def _document(manifest: Manifest, compact_from: int) -> bytes:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(manifest_module, "COMPACT_FROM", compact_from)
        return manifest.to_document()


def test_few_files_stay_readable_for_people() -> None:
    assert "file_list" in json.loads(made(many(999)).to_document())
    assert "file_table" in json.loads(made(many(1000)).to_document())


def test_thirty_thousand_files() -> None:
    """Small, quick, and never as a whole in memory but for the entries themselves."""
    manifest = made(many(30_000))
    began = time.process_time()
    document = manifest.to_document()
    read = parse_manifest(document, path=manifest.path)
    seconds = time.process_time() - began
    assert read == manifest
    assert len(document) < 55 * 30_000, len(document)
    assert len(document) < 0.25 * len(_document(manifest, 10**9))
    assert seconds < 5, seconds
    del read
    tracemalloc.start()
    try:
        assert manifest.to_document() == document
        written = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        files = parse_manifest(document, path=manifest.path).files
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(files) == 30_000
    assert written < 6 * len(document), "as text they are far more"
    assert peak - held < 4 * len(document), (held - before, peak - before)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda table: table[:-8],
        lambda table: "!" + table[1:],
        lambda table: table[: len(table) // 2 // 4 * 4],
        lambda table: b"".join(FileTable("x").write())[:-4].decode(),
        lambda table: "",
    ],
)
def test_a_damaged_table_is_a_damaged_backup(spoil: Callable[[str], str]) -> None:
    """Also where the hash is right, as after a repair by hand that went wrong."""
    content = json.loads(made(many(1500)).to_document())
    del content["sha256"]
    content["file_table"] = spoil(content["file_table"])
    with pytest.raises(DamagedBackupError, match=f"manifest {PATH} is damaged"):
        parse_manifest(_sealed(content), path=PATH)


def test_files_that_are_read_when_somebody_asks_for_them(place: Location) -> None:
    """Whoever reads thousands of backups asks for the files of few."""
    manifest = made(many(1500))
    seen, store = watched(repository(place).location)
    kept = Repository.open(seen)
    seen.create(manifest.path, manifest.to_document())

    def later() -> Manifest:
        return kept.read_manifest("orders", manifest.backup_id, with_files=False)

    found = later()
    store.requests.clear()
    assert found.summary() == manifest.summary()
    assert store.requests == []
    assert found.files[700] == manifest.files[700]
    assert list(found.files) == list(manifest.files)
    assert store.count("read") == 1, "read again, and kept"
    for ask in (list, lambda files: files == manifest.files, lambda files: not files.is_ordered):
        assert ask(later().files)
    assert later().to_document() == manifest.to_document()
    found = later()
    seen.delete(manifest.path)
    with pytest.raises(NoSuchBackupError):
        list(found.files)
    assert len(found.files) == 1500


@pytest.mark.parametrize("key", ["files", "bytes"])
def test_a_table_of_another_length_or_size_than_the_manifest_says(key: str) -> None:
    content = json.loads(made(many(1500)).to_document())
    del content["sha256"]
    content[key] += 1
    with pytest.raises(DamagedBackupError, match=f"manifest {PATH} is damaged"):
        parse_manifest(_sealed(content), path=PATH)


def test_a_flipped_bit_is_found() -> None:
    document = bytearray(made(many(1500)).to_document())
    for at in (10, len(document) // 2, len(document) - 90, len(document) - 30, len(document) - 1):
        damaged = bytearray(document)
        damaged[at] ^= 1
        with pytest.raises(DamagedBackupError):
            parse_manifest(bytes(damaged), path=PATH)


def test_a_later_form_is_refused() -> None:
    content = json.loads(made(many(2)).to_document())
    del content["sha256"]
    with pytest.raises(RepositoryError, match="format version 4"):
        parse_manifest(_sealed(content | {"version": 4}), path=PATH)


def _sealed(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def test_backups_of_both_forms_go_on_with_each_other(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    back_up(place, stream(4))
    monkeypatch.setattr(manifest_module, "COMPACT_FROM", 0)
    compact = back_up(place, stream(5))
    assert compact.copied_files < compact.files
    monkeypatch.undo()
    again = back_up(place)
    assert again.copied_files == 0
    of_before = {"created": compact.manifest.created, "facts": compact.manifest.facts}
    assert replace(again.manifest, backup_id="", claim="", sequence=2, **of_before) == replace(
        compact.manifest, backup_id="", claim=""
    )
    assert again.manifest.facts.keys() == compact.manifest.facts.keys()
    read = repository(place).manifest(compact.backup_id)
    assert read == compact.manifest
    assert verify_backup(repository(place), read, read_data=ReadData()).ok
    apply_restore(plan_restore(repository(place), read, place / "restored"))
    assert contents(place / "restored") == {
        path: data for path, data in visible(place / "orders").items() if path in {e.path for e in read.files}
    }


def test_files_are_kept_only_inside_the_block() -> None:
    """Whoever goes through hundreds of backups holds fifty bytes a file, however often."""
    table = FileTable("orders", many(700))
    first = list(table)
    assert next(iter(table)) is not first[0]
    with kept_in_memory(table):
        with kept_in_memory(table):
            kept = list(table)
        again = list(table)
        assert all(each is other for each, other in zip(kept, again, strict=True))
        assert again == first
        table.append(many(701)[700])
        assert [each.path for each in table] == [*(each.path for each in first), many(701)[700].path]
    assert next(iter(table)) is not kept[0]
    with kept_in_memory(first):  # a list is in memory anyway
        pass


def test_a_table_of_many_files_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_table, "_FEW", 10)
    table = FileTable("orders", many(11))
    with kept_in_memory(table):
        assert next(iter(table)) is not next(iter(table))
