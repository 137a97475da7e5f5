"""StartingPositionsOperator and the guards' operators: fields as they are rendered, results as XCom takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.delta_retention_guard import DeltaRetentionGuardOperator
from airflow_ckpt_provider.operators.file_source_guard import FileSourceGuardOperator
from airflow_ckpt_provider.operators.starting_positions import StartingPositionsOperator
from tests.support.delta_tables import delta_checkpoint, new_table, put
from tests.support.one_checkpoint import NEWEST

Run = Callable[..., dict[str, Any]]


def positions(run: Run, **fields: Any) -> dict[str, Any]:
    return StartingPositionsOperator(task_id="positions", **fields).execute(run())


def test_positions(checkpoint: Path, run: Run) -> None:
    found = positions(run, checkpoint=str(checkpoint), batch="3", to_datetime="None")
    assert json.loads(json.dumps(found)) == found
    assert (found["batch_id"], found["verdict"]) == (3, "WILL_DUPLICATE")
    assert found["sources"][0]["repeats"] == {"files": 4}
    assert [w["code"] for w in found["warnings"]] == ["LATER-BATCHES", "NEW-QUERY-ID", "BATCH-NUMBERS", "STATE-LOST"]


def test_a_retry_finds_the_seed_of_the_attempt_before(checkpoint: Path, run: Run, tmp_path: Path) -> None:
    first = positions(run, checkpoint=str(checkpoint), new_checkpoint=str(tmp_path / "new"))
    assert first["verdict"] == "SAFE"
    assert positions(run, checkpoint=str(checkpoint), new_checkpoint=str(tmp_path / "new")) == first
    (tmp_path / "new" / "offsets").mkdir()
    (tmp_path / "new" / "offsets" / "0").write_text("v1")
    with pytest.raises(AirflowFailException, match="is not empty: it holds offsets/0"):
        positions(run, checkpoint=str(checkpoint), new_checkpoint=str(tmp_path / "new"))


def test_of_a_backup(checkpoint: Path, repository: Path, run: Run) -> None:
    CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository)).execute(run())
    found = positions(run, repository=str(repository))
    assert (found["batch_id"], found["origin"].split()[0]) == (NEWEST, "backup")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"checkpoint": " "}, "checkpoint is empty"),
        ({"repository": "x"}, "checkpoint and repository exclude each other"),
        ({"batch": "-1"}, "batch is -1"),
        ({"batch": "99"}, "committed and still in the log: batches 0 to 5"),
        ({"to_datetime": "noon"}, "'noon' is not a time"),
        ({"kafka_partitions": {"orders": 3}}, "reads no topic 'orders'\nHINT: it has no Kafka source"),
        ({"delta_tables": {"0": "x"}}, "source '0' reads no Delta table"),
        ({"delta_tables": "x"}, "delta_tables is 'x'"),
        ({"kafka_config_id": "new"}, "need mirrored_from"),
        ({"mirrored_from": "east"}, "kafka_config_id is empty"),
        ({"mirrored_from": "east", "kafka_config_id": "nowhere"}, "there is no Airflow connection 'nowhere'"),
        ({"mirrored_from": "east", "replication_policy": "mine"}, "'mine' is no replication policy"),
    ],
)
def test_refusals(checkpoint: Path, run: Run, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AirflowFailException, match=words):
        positions(run, **{"checkpoint": str(checkpoint), **fields})


def test_rows_of_a_delta_table_are_counted(run: Run, tmp_path: Path) -> None:
    table = new_table(tmp_path / "table", 3)
    checkpoint = delta_checkpoint(tmp_path / "orders", table, 2, 0)
    found = positions(run, checkpoint=str(checkpoint), delta_tables={"0": str(table)})
    assert found["sources"][0]["repeats"] == {"files": 1, "rows": 10}


def test_delta_guard(run: Run, tmp_path: Path) -> None:
    table = new_table(tmp_path / "table", 4)
    fields: dict[str, Any] = {"checkpoint": str(delta_checkpoint(tmp_path / "orders", table, 2)), "tables": str(table)}
    report = DeltaRetentionGuardOperator(task_id="g", **fields).execute(run())
    assert (report["verdict"], json.loads(json.dumps(report))) == ("SAFE", report)
    by_source = {**fields, "tables": {"0": str(table)}, "source": "0"}
    assert DeltaRetentionGuardOperator(task_id="g", **by_source).execute(run())["verdict"] == "SAFE"
    context = run()
    with pytest.raises(AirflowFailException, match="is guaranteed only for 29 d"):
        DeltaRetentionGuardOperator(task_id="g", max_downtime="40d", **fields).execute(context)
    assert context["pushed"]["report"]["verdict"] == "WILL_FAIL"
    warned = DeltaRetentionGuardOperator(task_id="g", max_downtime="40d", on_finding="warn", **fields).execute(run())
    assert warned["verdict"] == "WILL_FAIL"


def test_delta_guard_with_reader_options(run: Run, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = new_table(tmp_path / "table", 4)
    checkpoint = delta_checkpoint(tmp_path / "orders", table, 4)
    DeltaTable(table).delete()
    for options in ({"ignoreDeletes": "true"}, {"0": {"ignoreDeletes": "true"}}):
        guard = DeltaRetentionGuardOperator(
            task_id="g", checkpoint=str(checkpoint), tables=str(table), reader_options=options
        )
        assert guard.execute(run())["verdict"] == "SAFE"


def test_a_checkpoint_without_that_source(checkpoint: Path, run: Run, tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"has no delta source\nHINT: its sources are: 0 \(file\)"):
        DeltaRetentionGuardOperator(task_id="g", checkpoint=str(checkpoint), tables="x").execute(run())
    table = new_table(tmp_path / "table", 3)
    with pytest.raises(AirflowFailException, match="has no file source"):
        FileSourceGuardOperator(task_id="g", checkpoint=str(delta_checkpoint(tmp_path / "d", table, 2))).execute(run())


def test_file_guard(run: Run, tmp_path: Path) -> None:
    files = put(tmp_path / "in", 0, 1, 2)
    checkpoint = delta_checkpoint(tmp_path / "orders", new_table(tmp_path / "table", 2), 2, files=files)
    guard = FileSourceGuardOperator(task_id="g", checkpoint=str(checkpoint), reader_options={"cleanSource": "delete"})
    assert guard.execute(run())["sources"][0]["planned_files"] == 1
    files[2].unlink()
    with pytest.raises(AirflowFailException, match="Spark leaves it out silently"):
        guard.execute(run())
