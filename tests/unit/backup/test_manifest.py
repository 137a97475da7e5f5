from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.backup.manifest import FileEntry, Manifest, manifest_path, new_backup_id, parse_manifest
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, RepositoryError
from tests.support.damaged_bytes import HOSTILE_JSON, anything, flipped_bits, truncated

NOW = datetime(2026, 11, 21, 8, 30, 0, 123456, tzinfo=UTC)
PATH = "backups/orders/20261121T083000Z-b000223.json"
ENTRIES = (
    FileEntry("commits/223", 5, "objects/orders/ab/1", sha256="ab" * 32, identity="inode:1:2"),
    FileEntry("offsets/222", 7, "objects/orders/cd/2", checksum="etag:abc", batches=(222, 223)),
    FileEntry("offsets/223", 9, "objects/orders/ef/3", sha256="cd" * 32, batches=(223,)),
)


def manifest(**changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "backup_id": "20261121T083000Z-b000223",
        "name": "orders",
        "created": NOW,
        "checkpoint": "s3://bucket/checkpoints/orders",
        "query_id": "199ce9d3",
        "batch_id": 223,
        "restorable": (222, 223),
        "files": ENTRIES,
        "facts": {"watermark_ms": 42, "operators": []},
        "tags": {"release": "27"},
        "reason": "before 2.7",
        "made_by": "dag/run",
        "tool_version": "0.1.0",
    }
    return Manifest(**values | changes)


def parse(data: bytes) -> Manifest:
    return parse_manifest(data, path=PATH)


def test_round_trip() -> None:
    assert parse(manifest().to_document()) == manifest()


_WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    _WORDS, _WORDS, st.dictionaries(_WORDS, _WORDS, max_size=3), st.lists(st.integers(0, 10**6), min_size=1, max_size=4)
)
def test_any_words_round_trip(reason: str, by: str, tags: dict[str, str], batches: list[int]) -> None:
    whole = manifest(reason=reason, made_by=by, tags=tags, restorable=tuple(batches), facts={"x": tags})
    assert parse(whole.to_document()) == whole


def test_path_and_size() -> None:
    assert manifest().path == manifest_path("orders", "20261121T083000Z-b000223") == PATH
    assert manifest().bytes == 21


def test_summary() -> None:
    assert manifest().summary() == {
        "backup_id": "20261121T083000Z-b000223",
        "name": "orders",
        "batch_id": 223,
        "restorable_batches": [222, 223],
        "created": "2026-11-21T08:30:00.123456+00:00",
        "checkpoint": "s3://bucket/checkpoints/orders",
        "query_id": "199ce9d3",
        "files": 3,
        "bytes": 21,
        "tags": {"release": "27"},
        "reason": "before 2.7",
        "made_by": "dag/run",
        "sequence": 0,
    }


def test_entries_name_only_what_is_known() -> None:
    assert ENTRIES[0].to_json() == {
        "path": "commits/223", "size": 5, "object": "objects/orders/ab/1", "sha256": "ab" * 32, "identity": "inode:1:2",
    }  # fmt: skip
    assert FileEntry.from_json({**ENTRIES[1].to_json(), "from a newer version": 1}) == ENTRIES[1]


def damaged(data: bytes) -> None:
    with pytest.raises(DamagedBackupError) as error:
        parse(data)
    assert error.value.message == f"manifest {PATH} is damaged: it is not what was written"
    assert error.value.findings == (PATH,)
    assert error.value.hint == "this backup cannot be used; choose another one (`airflow-ckpt backups REPOSITORY`)"


def test_every_flipped_bit_is_found() -> None:
    for data in flipped_bits(manifest().to_document()):
        damaged(data)


def test_every_flipped_bit_is_found_where_words_are_not_ascii() -> None:
    """The letters of a ``\\u00e9`` mean the same in upper case: still another document than was written."""
    for data in flipped_bits(manifest(reason="déjà vu", files=(), facts={}).to_document()):
        try:
            found = parse(data)
        except DamagedBackupError:
            continue
        assert found == manifest(reason="déjà vu", files=(), facts={})


def test_cut_off_anywhere_is_found() -> None:
    for data in truncated(manifest(files=ENTRIES[:1]).to_document()):
        damaged(data)


@given(anything(b'{"sha256":', b'{"sha256":"x","format":"airflow-ckpt-manifest"'))
def test_arbitrary_bytes_are_damage(data: bytes) -> None:
    damaged(data)


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_json_is_damage(name: str) -> None:
    damaged(HOSTILE_JSON[name])


@pytest.mark.parametrize("data", [b"[]", b"5", b"null", b'"x"', b"{}", b'{"sha256":null}'])
def test_other_json_is_damage(data: bytes) -> None:
    damaged(data)


def resigned(**changes: Any) -> bytes:
    content = json.loads(manifest().to_document())
    del content["sha256"]
    content |= changes
    body = json.dumps(content).encode()
    return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def test_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(RepositoryError) as error:
        parse(resigned(version=4))
    assert error.value.message == f"manifest {PATH} has format version 4, known here: 3"
    assert error.value.hint == "upgrade airflow-ckpt-provider"


def test_another_kind_of_document_is_damage() -> None:
    damaged(resigned(format="something else"))


def test_keys_of_a_newer_writer_are_ignored() -> None:
    assert parse(resigned(more={"a": 1})) == manifest()


def test_files_of_a_batch() -> None:
    assert [e.path for e in manifest().files_of(223)] == ["commits/223", "offsets/222", "offsets/223"]
    assert [e.path for e in manifest().files_of(222)] == ["commits/223", "offsets/222"]


@pytest.mark.parametrize("batch_id", [221, 224, -1])
def test_files_of_a_batch_that_is_not_in_it(batch_id: int) -> None:
    with pytest.raises(RefusedError) as error:
        manifest().files_of(batch_id)
    assert error.value.message == f"backup 20261121T083000Z-b000223 cannot restore batch {batch_id}"
    assert error.value.hint == "it can restore: 222, 223"


def test_ids_sort_by_time_and_name_the_batch() -> None:
    assert new_backup_id(NOW, 223) == "20261121T083000Z-b000223"
    assert new_backup_id(NOW, 12345678) == "20261121T083000Z-b12345678"
    assert new_backup_id(NOW, 9) < new_backup_id(NOW, 10)
    assert new_backup_id(NOW, 999999) < new_backup_id(NOW.replace(second=1), 0)


@pytest.mark.parametrize("name", ["orders", "o", "7", "a.b-c_d=e", "orders.before-restore", "table=orders", "_orders"])
def test_names(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a..b",
        "../orders",
        "a/b",
        "/a",
        "a\\b",
        ".hidden",
        "-x",
        "a b",
        "a\n",
        "a\0",
        "ä",
        "a:b",
        "a%2fb",
        "*",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(RefusedError) as error:
        checked_name(name)
    assert error.value.message == f"{name!r} cannot be the name of a stream"
    assert error.value.hint == (
        "use letters, digits, '.', '_', '-' and '=', beginning with a letter, a digit or '_', without '..' or '/'"
    )


@given(st.text(max_size=20))
def test_no_accepted_name_leaves_its_directory(name: str) -> None:
    try:
        path = manifest_path(checked_name(name), "x")
    except RefusedError:
        return
    assert path.count("/") == 2
    assert ".." not in path


GOLDEN = Path(__file__).parents[2] / "golden" / "stored" / "manifests"
OLDER, NEWER = "199ce9d3-fd64-4a41-a1cf-23002acf0134", "2f1d8f3e-0b52-4a53-9a7b-000000000002"


@pytest.mark.parametrize(
    ("name", "files", "query_ids", "lives", "sequence"),
    [
        ("version-0.1-list", 6, (), (OLDER,), 0),
        ("version-0.1-table", 1004, (), (OLDER,), 0),
        ("chain-list", 6, (OLDER, NEWER), (OLDER, NEWER), 0),
        ("chain-table", 1004, (OLDER, NEWER), (OLDER, NEWER), 0),
        ("sequence-list", 6, (OLDER, NEWER), (OLDER, NEWER), 7),
        ("sequence-table", 1004, (OLDER, NEWER), (OLDER, NEWER), 7),
    ],
)
def test_stored_documents(
    name: str, files: int, query_ids: tuple[str, ...], lives: tuple[str, ...], sequence: int
) -> None:
    """What was ever written is read for ever, and written again byte for byte, as a copy does."""
    data = (GOLDEN / f"{name}.json").read_bytes()
    found = parse(data)
    assert (found.backup_id, found.query_id, len(found.files)) == ("20261121T083000Z-b000223", lives[-1], files)
    assert (found.query_ids, found.lives, found.sequence) == (query_ids, lives, sequence)
    assert found.to_document() == data


@pytest.mark.parametrize("sequence", [0, -1, 2**53, "7", True, None, 1.0])
def test_a_sequence_that_no_backup_has(sequence: object) -> None:
    with pytest.raises(DamagedBackupError, match="its sequence is"):
        parse(resigned(sequence=sequence))
