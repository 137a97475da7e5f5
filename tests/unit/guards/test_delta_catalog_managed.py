"""Delta tables whose newest commits a catalog or coordinator keeps: they are not in the log until they are copied there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import parse_offset
from airflow_ckpt_provider.guards.delta import DeltaGuard
from airflow_ckpt_provider.guards.delta_log import CATALOG_MANAGED, read_delta_log
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings
from airflow_ckpt_provider.guards.report import SourceReport
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink, inspect_sink
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict

QUERY = "11111111-1111-1111-1111-111111111111"
FEATURES = ("catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview")
SCHEMA = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}


def table_with(root: Path, feature: str | None, *, reader: bool = False) -> Path:
    """Versions 0 to 4 are in the log, 5 (a delete) and 6 are staged; each has a batch of the query."""
    log = root / "_delta_log"
    (log / "_commits").mkdir(parents=True)
    for version in range(7):
        actions: list[dict[str, Any]] = [
            {"commitInfo": {"timestamp": 1700000000000 + version, "operation": "STREAMING UPDATE"}},
            {"txn": {"appId": QUERY, "version": version}},
        ]
        if version == 0:
            named = ["inCommitTimestamp", "vacuumProtocolCheck", *([feature] if feature else [])]
            read = ["vacuumProtocolCheck", *([feature] if feature and reader else [])]
            protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": read, "writerFeatures": named}
            metadata = {"id": "tid", "schemaString": json.dumps(SCHEMA), "partitionColumns": [], "configuration": {}}
            actions += [
                {"protocol": protocol},
                {"metaData": {**metadata, "format": {"provider": "parquet", "options": {}}}},
            ]
        if version == 5:
            actions.append({"remove": {"path": "p0.parquet", "dataChange": True, "deletionTimestamp": 1700000000000}})
        else:
            added = {"path": f"p{version}.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1}
            actions.append({"add": {**added, "dataChange": True, "stats": '{"numRecords":2}'}})
            (root / f"p{version}.parquet").write_bytes(b"x")
        name = f"{version:020d}.json" if version < 5 else f"_commits/{version:020d}.0a.json"
        (log / name).write_text("\n".join(json.dumps(action) for action in actions))
    return root


def judge(table: Path, version: int) -> SourceReport:
    offset = {"sourceVersion": 1, "reservoirId": "tid", "reservoirVersion": version, "index": -1}
    guard = DeltaGuard(GuardSettings(options={"delta": {"tables": {"0": str(table)}}}))
    return guard.judge(
        GuardedSource(SourceOffset("0", parse_offset(json.dumps({**offset, "isStartingVersion": False}))))
    )


def test_all_names_are_known() -> None:
    assert frozenset(FEATURES) == CATALOG_MANAGED


@pytest.mark.parametrize("reader", [False, True])
@pytest.mark.parametrize("feature", FEATURES)
class TestManaged:
    @pytest.mark.parametrize("version", [5, 7])
    def test_a_source_is_not_judged(self, feature: str, reader: bool, version: int, tmp_path: Path) -> None:
        """At 5 it was SAFE, though the next commit is a delete; at 7, where all is well, a new checkpoint was advised."""
        report = judge(table_with(tmp_path, feature, reader=reader), version)
        assert report.verdict is Verdict.UNKNOWN
        assert [j.verdict for j in report.judgements] == [Verdict.UNKNOWN] * len(report.judgements)
        assert f"the table has the feature {feature}: its newest versions may not be in its log yet" in (
            report.judgements[-1].reason
        )
        assert report.lost is None

    def test_a_sink_is_not_safe(self, feature: str, reader: bool, tmp_path: Path) -> None:
        """It was SAFE at batch 4, though 5 and 6 are in the table."""
        place = open_location(str(table_with(tmp_path, feature, reader=reader)))
        report = inspect_sink(Sink(place=place), QueryIds.of(QUERY), 4, 6)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons[-1].startswith(f"the table has the feature {feature}: its newest versions may not be")


def test_any_other_table_is_judged_by_its_log(tmp_path: Path) -> None:
    table = table_with(tmp_path, None)
    assert judge(table, 7).verdict is Verdict.WILL_FAIL
    assert inspect_sink(Sink(place=open_location(str(table))), QueryIds.of(QUERY), 4, 6).verdict is Verdict.SAFE


@pytest.mark.parametrize("readable", [True, False])
def test_the_feature_stands_in_the_checkpoint_of_the_log_alone(readable: bool, tmp_path: Path) -> None:
    """The commits that name it were cleaned up. It was SAFE at batch 4, though 5 and 6 are in the table."""
    table = table_with(tmp_path, "catalogManaged")
    checkpoint = table / "_delta_log" / f"{2:020d}.checkpoint.parquet"
    if readable:
        write_checkpoint(checkpoint, features=["catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"])
    else:
        checkpoint.write_bytes(b"no parquet")
    for version in range(3):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    report = inspect_sink(Sink(place=open_location(str(table))), QueryIds.of(QUERY), 4, 6)
    assert report.verdict is Verdict.UNKNOWN
    assert "its newest versions may not be in its log" in report.reasons[-1]
    assert judge(table, 7).verdict is Verdict.UNKNOWN


def write_checkpoint(file: Path, *, features: list[str]) -> None:
    """A checkpoint of the log with a protocol, the table's metadata and no files."""
    names = pa.list_(pa.string())
    protocol = pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", names),
            ("writerFeatures", names),
        ]
    )
    text = pa.map_(pa.string(), pa.string())
    metadata = pa.struct(
        [
            ("id", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", text)])),
            ("schemaString", pa.string()),
            ("partitionColumns", names),
            ("configuration", text),
        ]
    )
    rows = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {
            "metaData": {
                "id": "tid",
                "format": {"provider": "parquet", "options": []},
                "schemaString": json.dumps(SCHEMA),
                "partitionColumns": [],
                "configuration": [],
            }
        },
    ]
    schema = pa.schema([("protocol", protocol), ("metaData", metadata)])
    pq.write_table(
        pa.Table.from_pylist([{"protocol": None, "metaData": None, **row} for row in rows], schema=schema), file
    )


def test_a_part_of_a_checkpoint_is_none(tmp_path: Path) -> None:
    """A writer that was killed leaves one part of two: the commits below it are needed still."""
    table = table_with(tmp_path, None)
    log = table / "_delta_log"
    (log / f"{3:020d}.checkpoint.{1:010d}.{2:010d}.parquet").write_bytes(b"x")
    assert read_delta_log(open_location(str(table))).checkpoints == {}
    (log / f"{0:020d}.json").unlink()
    assert not read_delta_log(open_location(str(table))).can_rebuild(4)
    (log / f"{3:020d}.checkpoint.{2:010d}.{2:010d}.parquet").write_bytes(b"x")
    assert list(read_delta_log(open_location(str(table))).checkpoints) == [3]
    assert read_delta_log(open_location(str(table))).can_rebuild(4)


def test_an_empty_directory_of_staged_commits_is_no_sign(tmp_path: Path) -> None:
    """Spark makes it in every table: without a commit in it that is newer than the log, nothing is elsewhere."""
    table = table_with(tmp_path, None)
    for file in (table / "_delta_log" / "_commits").iterdir():
        file.unlink()
    (table / "_delta_log" / "_staged_commits").mkdir()
    assert read_delta_log(open_location(str(table))).staged == ""
    for version in range(3):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    (table / "_delta_log" / f"{2:020d}.checkpoint.parquet").write_bytes(b"no parquet")
    report = inspect_sink(Sink(place=open_location(str(table))), QueryIds.of(QUERY), 4, 4)
    assert not any("catalog" in reason for reason in report.reasons)
