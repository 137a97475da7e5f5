"""Lists and dictionaries as a template without ``| tojson`` gives them: ``"None"``, ``"{'a': 'b'}"``, JSON, ``"['a']"``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider import places
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.fields import mapping, mapping_or_text, separated, texts
from airflow_ckpt_provider.operators.fleet import DiscoverCheckpointsOperator, FleetReportOperator
from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator
from airflow_ckpt_provider.operators.reset import NewCheckpointOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.table_check import TableCheckOperator
from airflow_ckpt_provider.operators.upgrade import UpgradeBeginOperator
from airflow_ckpt_provider.redaction import redacted_options, secrets_in
from airflow_ckpt_provider.sensors.pipeline_update import PipelineUpdateSensor

Run = Callable[..., dict[str, Any]]
SPELLINGS = pytest.mark.parametrize("given", [{"a": None, "b": [1]}, "{'a': None, 'b': [1]}", '{"a": null, "b": [1]}'])


@SPELLINGS
def test_a_dictionary(given: Any) -> None:
    assert mapping(given, "options") == mapping_or_text(given, "options") == {"a": None, "b": [1]}


@pytest.mark.parametrize(
    "given", [["a", "b,c", ""], "['a', 'b,c', None]", '["a", "b,c", null]', {"a": 1, "b,c": 2}.keys()]
)
def test_a_list(given: Any) -> None:
    assert texts(given, "streams") == separated(given, "streams") == ["a", "b,c"]


def test_a_text_with_commas() -> None:
    assert separated("a,None,,b", "streams") == ["a", "b"]
    assert texts("a,b", "streams") == ["a,b"]


@pytest.mark.parametrize("given", ["{'a'", "{a: 1}", "[1]", "{" * 5000])
def test_neither(given: str) -> None:
    with pytest.raises(RefusedError, match=r"^options is ") as e:
        mapping(given, "options")
    assert e.value.hint == "give a dictionary, or JSON of one"


@pytest.mark.parametrize("given", ["None", "{}", "{'orders': {}}"])
@pytest.mark.parametrize(
    ("operator", "field"),
    [
        (RecoveryPreflightOperator, "options"),
        (FleetReportOperator, "options"),
        (FleetReportOperator, "streams"),
        (CheckpointBackupOperator, "tags"),
        *((NewCheckpointOperator, field) for field in ("kafka_partitions", "tables", "sources", "sink_options")),
        (CheckpointRewindOperator, "downstream"),
        (UpgradeBeginOperator, "driver_logs"),
    ],
)
def test_no_operator_crashes(
    checkpoint: Path, repository: Path, run: Run, operator: Any, field: str, given: str
) -> None:
    """A field of the wrong kind is refused, which Airflow does not retry."""
    CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository)).execute(run())
    fields: dict[Any, dict[str, Any]] = {
        RecoveryPreflightOperator: {"on_finding": "warn"},
        FleetReportOperator: {"on_finding": "warn", "checkpoints": str(checkpoint)},
        NewCheckpointOperator: {"way": "keep-position", "sink": "foreachBatch"},
        CheckpointRewindOperator: {"to": "to_current"},
        UpgradeBeginOperator: {"mode": "savepoint", "accept": ["no_way_back", "sink_unknown"]},
    }
    at = {
        "repository": str(repository),
        **({} if operator is FleetReportOperator else {"checkpoint": str(checkpoint)}),
    }
    task = operator(task_id="t", **at, **fields.get(operator, {}), **{field: given})
    try:
        task.execute(run())
    except AirflowFailException:
        assert given != "None"


@pytest.mark.parametrize("value", ["1_000", "1e3", "0x10", "2.10", "12e45678", "'x'", "a,b", {"a": 1}, 5])
def test_text_stays_text_in_a_dag_of_native_objects(value: Any) -> None:
    """An id of eight hexadecimal digits can be a number for Python, and so can a name and a version."""
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        tasks = [
            CheckpointBackupOperator(task_id="b", checkpoint="{{ v }}", repository="/{{ v }}", tags={"v": "{{ v }}"}),
            ResetCheckpointOperator(task_id="l", pipeline_id="{{ v }}", flows=["{{ v }}"]),
            TableCheckOperator(task_id="t", tables="{{ v }}", databricks_conn_id="d", warehouse_id="{{ v }}"),
            PipelineUpdateSensor(task_id="s", pipeline_id="{{ v }}"),
        ]
    for task in tasks:
        task.render_template_fields({"v": value})  # type: ignore[typeddict-unknown-key]  # of a context only this is read
    backup, lakeflow, check, sensor = map(vars, tasks)
    assert (backup["checkpoint"], backup["repository"], backup["tags"]) == (value, f"/{value}", {"v": value})
    assert (lakeflow["pipeline_id"], lakeflow["flows"], check["warehouse_id"]) == (value, [value], value)
    assert sensor["pipeline_id"] == value


class TestDiscovery:
    def found(self, directories: Any, run: Run) -> list[dict[str, str]]:
        return DiscoverCheckpointsOperator(task_id="d", directories=directories).execute(run())

    def test_a_list_as_text(self, checkpoint: Path, run: Run) -> None:
        assert len(self.found(f"['{checkpoint.parent}']", run)) == 1
        with pytest.raises(AirflowFailException, match="directories is "):
            self.found(f"['{checkpoint.parent}'", run)

    def test_nothing_found_and_not_everything_read(self, checkpoint: Path, tmp_path: Path, run: Run) -> None:
        with pytest.raises(StorageError, match=r"no checkpoint was found, and what is below .*/mistyped is not known"):
            self.found([str(tmp_path / "mistyped")], run)
        assert self.found([str(tmp_path / "mistyped"), str(checkpoint.parent)], run)


@pytest.mark.parametrize(
    "given",
    [
        ["--password", "s3cr3t", "--name", "shown"],
        ["--api-token=s3cr3t", "--password-file", "shown"],
        {"conf": {"secret": "s3cr3t", "shown": 1}},
        ["a=s3://u:s3cr3t@b/c,sink=shown"],
    ],
)
def test_credentials(given: Any) -> None:
    assert set(secrets_in(given)) == {"s3cr3t"}
    assert "shown" in str(redacted_options({"x": given}))
    assert "s3cr3t" not in str(redacted_options({"x": given}))


@pytest.mark.parametrize("given", ["{'a': None, 'password': 's3cr3t'}", '[{"password": "s3cr3t"}, null]'])
def test_credentials_in_a_text_that_is_parsed(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[str] = []
    monkeypatch.setattr(places, "mask_secret", masked.extend)
    places.mask_credentials(given)
    assert masked == ["s3cr3t"]
