"""The Delta guard where a table has deletion vectors: their files leave as data files do. By Spark: ``integration``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.guards.delta import DeltaGuard
from airflow_ckpt_provider.guards.delta_log import parse_commit
from airflow_ckpt_provider.guards.delta_vector import vector_path
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import SourceReport
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_tables import delta_checkpoint, new_table

OLD, NEW = ("^-aqEH.-t@S}K{vb[*k^", "JB8{)^s:=VG9l?7E@)Z!")


def vector(stored: str) -> dict[str, Any]:
    return {"storageType": "u", "pathOrInlineDv": stored, "offset": 1, "sizeInBytes": 34, "cardinality": 1}


def actions(table: Path, version: int) -> list[dict[str, Any]]:
    path = table / "_delta_log" / f"{version:020d}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def commit(table: Path, version: int, found: list[dict[str, Any]]) -> None:
    (table / "_delta_log" / f"{version:020d}.json").write_text("\n".join(map(json.dumps, found)))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Version 1 adds a file that has a deletion vector, and version 4 gives it another one."""
    table = new_table(tmp_path / "table", 4)
    features: dict[str, Any] = {"minReaderVersion": 3, "minWriterVersion": 7}
    features |= {key: ["deletionVectors"] for key in ("readerFeatures", "writerFeatures")}
    commit(table, 0, [{**each, **({"protocol": features} if "protocol" in each else {})} for each in actions(table, 0)])
    found = actions(table, 1)
    (add,) = (each["add"] for each in found if "add" in each)
    add["deletionVector"] = vector(OLD)
    commit(table, 1, found)
    left = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "deletionVector": vector(OLD)}
    changed = {**add, "deletionVector": vector(NEW)}
    commit(table, 4, [{"commitInfo": {"operation": "DELETE"}}, {"remove": left}, {"add": changed}])
    for stored in (OLD, NEW):
        (table / str(vector_path(vector(stored)))).write_bytes(b"vector")
    return table


def judge(table: Path, ck: Path, index: int, **reader: str) -> SourceReport:
    """Of a stream that has read files of its first snapshot, version 3."""
    delta_checkpoint(ck, table, 3, index, before=None, initial=True)
    told = GuardSettings(options={"delta": {"tables": {"0": str(table)}, "options": {"0": reader}}})
    return guard_query(from_checkpoint(open_location(str(ck))), told, guards=[DeltaGuard(told)]).sources[0]


@pytest.mark.parametrize(
    ("gone", "index", "reader", "example"),
    [
        (OLD, 0, {"skipChangeCommits": "true"}, OLD),
        (OLD, 1, {"skipChangeCommits": "true"}, None),  # it has read the file
        (NEW, 1, {"skipChangeCommits": "true"}, None),
        (NEW, 1, {"ignoreChanges": "true"}, NEW),
        (NEW, 1, {"readChangeFeed": "true"}, NEW),
        (OLD, 1, {"readChangeFeed": "true"}, OLD),
    ],
)
def test_one_is_gone(
    gone: str, index: int, reader: dict[str, str], example: str | None, table: Path, tmp_path: Path
) -> None:
    assert not judge(table, tmp_path / "before", index, **reader).parts
    (table / str(vector_path(vector(gone)))).unlink()
    report = judge(table, tmp_path / "after", index, **reader)
    assert [(p.verdict, p.facts["example"]) for p in report.parts] == (
        [(Verdict.WILL_FAIL, vector_path(vector(example)))] if example else []
    )
    assert (Verdict.WILL_FAIL in {each.verdict for each in report.judgements}) is (example is not None)


def test_it_may_go_as_soon_as_a_data_file(table: Path, tmp_path: Path) -> None:
    """The time is that of the commit which gave the file another vector: 1970 here."""
    assert judge(table, tmp_path / "unread", 0, skipChangeCommits="true").seconds_left == 0
    assert judge(table, tmp_path / "read", 1, skipChangeCommits="true").seconds_left


def test_what_a_commit_says(table: Path) -> None:
    path = "_delta_log/00000000000000000004.json"
    found = parse_commit((table / path).read_bytes(), version=4, path=path)
    assert list(found.dropped) == [vector_path(vector(OLD))], "the data file stays"
    assert list(found.vectors.values()) == [vector_path(vector(OLD))]
    assert [file.vector for file in found.added] == [vector_path(vector(NEW))]
