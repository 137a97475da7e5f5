"""The Delta guard where a table's schema was changed: Spark reads all that it asks for with the newest one, or fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_guards import ck as ck
from tests.support.delta_guards import clean, commit, judge
from tests.support.delta_guards import table as table
from tests.support.delta_tables import delta_checkpoint, id_of

MAPPED = {"delta.columnMapping.mode": "name"}


def column(name: str, kind: Any = "long", *, physical: str | None = None, nullable: bool = True) -> dict[str, Any]:
    number = {"id": 1, "col-1": 2, "col-2": 3, "col-3": 4}
    of_mapping = (
        {"delta.columnMapping.id": number[physical], "delta.columnMapping.physicalName": physical} if physical else {}
    )
    return {"name": name, "type": kind, "nullable": nullable, "metadata": of_mapping}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def alter(table: Path, version: int, *columns: dict[str, Any], features: tuple[str, ...] = (), **options: Any) -> None:
    """A commit that sets the schema, as ``ALTER TABLE`` does: no row is touched."""
    protocol: dict[str, Any] = {"minReaderVersion": 2, "minWriterVersion": 5}
    if features:
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": list(features),
        }
    metadata = {
        "id": id_of(table),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(struct(*columns)),
        "partitionColumns": [],
        "configuration": MAPPED,
        "createdTime": 0,
        **options,
    }
    actions = [{"commitInfo": {"operation": "ALTER", "timestamp": 0}}, {"protocol": protocol}, {"metaData": metadata}]
    commit(table, version).write_text("\n".join(map(json.dumps, actions)))


ID = column("id", physical="id")
MORE = column("more", physical="col-1")


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ((ID,), (ID, MORE), None),
        ((ID, MORE), (column("number", physical="id"), MORE), "id is called number since"),
        ((ID, MORE), (ID,), "more is gone since"),
        # By their names alone, nothing has changed.
        ((ID, MORE), (ID, column("more", physical="col-2")), "more is gone since"),
        (
            (ID, column("who", struct(column("age", physical="col-2")), physical="col-1")),
            (ID, column("who", struct(column("years", physical="col-2")), physical="col-1")),
            "who.age is called who.years since",
        ),
        (
            (ID, column("who", struct(column("age", physical="col-2")), physical="col-1")),
            (
                ID,
                column(
                    "who", struct(column("age", physical="col-2"), column("more", physical="col-3")), physical="col-1"
                ),
            ),
            None,
        ),
        ((ID, MORE), (ID, {**MORE, "nullable": False}), "more could be null, and cannot now"),
        ((ID, {**MORE, "nullable": False}), (ID, MORE), None),
    ],
)
def test_the_newest_commit_that_sets_the_schema_is_not_all(
    table: Path, ck: Path, then: tuple[dict[str, Any], ...], now: tuple[dict[str, Any], ...], found: str | None
) -> None:
    """It was SAFE: that commit has the newest schema itself. Spark compares the version that it asks for first."""
    alter(table, 4, *then)
    delta_checkpoint(ck, table, 5, before=4)
    alter(table, 5, *now)
    report = judge(ck, table)
    assert report.verdict is (Verdict.WILL_FAIL if found else Verdict.SAFE)
    if found:
        assert found in report.reasons[0]
        tracked = judge(ck, table, reader={"schemaTrackingLocation": str(ck)})
        assert tracked.verdict is Verdict.UNKNOWN


def test_column_mapping_that_comes_and_goes(table: Path, ck: Path) -> None:
    alter(table, 4, ID)
    delta_checkpoint(ck, table, 4)
    assert judge(ck, table).verdict is Verdict.SAFE  # the physical names are those of before
    alter(table, 5, column("number", physical="id"))
    assert (
        "version 1 has a schema that the newest one cannot read (id is called number since)"
        in judge(ck, table).reasons[0]
    )
    alter(table, 5, column("id"), configuration={})
    assert "version 4 (ALTER) has column mapping, which the table does not have any more" in judge(ck, table).reasons[0]


def test_a_change_of_what_was_read_last(table: Path, ck: Path) -> None:
    """Spark asks for the newest committed batch again."""
    alter(table, 4, ID, MORE)
    alter(table, 5, ID)
    delta_checkpoint(ck, table, 6, before=4)
    alter(table, 6, ID)
    assert judge(ck, table).verdict is Verdict.WILL_FAIL
    delta_checkpoint(ck, table, 6, before=5)
    assert judge(ck, table).verdict is Verdict.SAFE


def test_with_column_mapping_the_first_version_has_to_be_there(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2)
    alter(table, 4, ID)
    clean(table, 1)
    for fail_on_data_loss in (True, False):
        report = judge(ck, table, fail_on_data_loss=fail_on_data_loss)
        assert report.verdict is Verdict.WILL_FAIL
        assert "DELTA_STREAMING_CHECK_COLUMN_MAPPING_NO_SNAPSHOT" in report.reasons[0]


def test_a_wider_type(table: Path, ck: Path) -> None:
    """Since Delta 4.0 it is read by default."""
    alter(table, 4, ID, column("more", "integer", physical="col-1"))
    delta_checkpoint(ck, table, 4)
    alter(table, 5, ID, MORE, features=("typeWidening", "columnMapping"))
    report = judge(ck, table)
    assert report.verdict is Verdict.UNKNOWN
    assert "more was integer, is long" in report.reasons[0]


@pytest.mark.parametrize("schema", ["no JSON", "{}", '{"fields": [{"name": "id", "type": {}}]}', "null"])
def test_a_schema_that_cannot_be_read_is_not_known(table: Path, ck: Path, schema: str) -> None:
    alter(table, 4, MORE)
    alter(table, 5, ID)
    delta_checkpoint(ck, table, 4)
    forged = commit(table, 4).read_text().replace(json.dumps(json.dumps(struct(MORE))), json.dumps(schema))
    assert json.dumps(schema) in forged
    commit(table, 4).write_text(forged)
    report = judge(ck, table)
    assert report.verdict is Verdict.UNKNOWN
    assert "the schema of version 4 (ALTER) cannot be read" in report.reasons[0]
