"""``stream="orders"`` fills in what a task is not given, in every operator and sensor, and what is given comes first."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider import operators, sensors
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.declared import UNSET, DeclaredOperator
from airflow_ckpt_provider.operators.expire import CheckpointExpireOperator
from airflow_ckpt_provider.operators.kafka_retention_guard import KafkaRetentionGuardOperator
from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator
from airflow_ckpt_provider.sensors.commit_gap import CommitGapSensor
from airflow_ckpt_provider.streams.parameters import parameters_of
from airflow_ckpt_provider.streams.stream import Stream

DECLARED = """
defaults: {repository: s3://backups/streams, repository_conn_id: aws_backups, storage_conn_id: aws_lake}
streams:
  orders:
    checkpoint: s3://lake/checkpoints/orders
    sources: {kafka: {conn_id: kafka_prod}, delta: {tables: {"0": s3://lake/customers}}}
    sinks: [s3://lake/tables/orders, {sink: foreachBatch, txn_app_id: batch}]
    driver: {progress_log: s3://lake/logs/orders.jsonl}
    spark_conn_id: spark_prod
    max_downtime: 1d 12h
    retention: {daily: 30}
  clicks: {checkpoint: s3://lake/checkpoints/clicks, sinks: /tables/clicks}
"""


@pytest.fixture
def streams_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "streams.yaml"
    file.write_text(DECLARED)
    monkeypatch.setenv("AIRFLOW__CKPT__STREAMS", str(file))
    return file


def rendered(operator: Any, **params: Any) -> Any:
    operator.render_template_fields({"params": params})
    return operator


def _classes() -> list[type[BaseOperator]]:
    found = {}
    for package in (operators, sensors):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, value in vars(import_module(module.name)).items():
                if inspect.isclass(value) and issubclass(value, BaseOperator) and value.__module__ == module.name:
                    found[name] = value
    return [found[name] for name in sorted(found)]


#: Whatever is about a place of a stream.
FILLED = {"checkpoint", "repository", "sink", "progress_log", "kafka_config_id"}
OF_STREAMS = [
    cls
    for cls in _classes()
    if FILLED & set(cls.template_fields) and not inspect.isabstract(cls) and ".pipeline_" not in cls.__module__
]


@pytest.mark.parametrize("cls", OF_STREAMS, ids=lambda cls: cls.__name__)
def test_every_operator_and_sensor_of_a_stream_takes_it(cls: type[Any], streams_file: Path) -> None:
    assert issubclass(cls, DeclaredOperator)
    required = {
        name: "x"
        for each in cls.__mro__
        if "__init__" in vars(each)
        for name, p in inspect.signature(vars(each)["__init__"]).parameters.items()
        if each.__module__.startswith("airflow_ckpt_provider")
        and p.kind is inspect.Parameter.KEYWORD_ONLY
        and p.default is inspect.Parameter.empty
    }
    task = rendered(cls(task_id="t", stream="{{ params.stream }}", **required), stream="orders")
    said = parameters_of(task.declared_stream())
    for field in set(cls.template_fields) - required.keys():
        name = cls.stream_aliases.get(field, field)
        if name in said:
            assert getattr(task, field) == said[name], field
    assert not [field for field in cls.template_fields if getattr(task, field) is UNSET]


def test_all_that_the_stream_says_is_filled_in(streams_file: Path) -> None:
    rewind = rendered(CheckpointRewindOperator(task_id="t", stream="orders", to="to_latest"))
    assert {field: getattr(rewind, field) for field in rewind.template_fields if getattr(rewind, field)} == {
        "stream": "orders",
        "checkpoint": "s3://lake/checkpoints/orders",
        "checkpoint_conn_id": "aws_lake",
        "repository": "s3://backups/streams",
        "repository_conn_id": "aws_backups",
        "name": "orders",
        "sink": ["s3://lake/tables/orders", "foreachBatch"],
        "sink_conn_id": ["aws_lake", None],
        "txn_app_id": [None, "batch"],
        "spark_conn_id": "spark_prod",
        "kafka_config_id": "kafka_prod",
        "progress_log": "s3://lake/logs/orders.jsonl",
        "progress_log_conn_id": "aws_lake",
        "mode": "plan",
        "to": "to_latest",
        "exact_replay": True,
    }


def test_a_restore_goes_to_the_checkpoint_and_rules_and_guards_come_from_the_stream(streams_file: Path) -> None:
    restore = rendered(CheckpointRestoreOperator(task_id="t", stream="clicks"))
    assert (restore.target, restore.target_conn_id) == ("s3://lake/checkpoints/clicks", "aws_lake")
    assert (restore.sink, restore.sink_conn_id) == ("/tables/clicks", "aws_lake")
    assert rendered(CheckpointExpireOperator(task_id="e", stream="orders")).keep == {"daily": 30}
    preflight = rendered(RecoveryPreflightOperator(task_id="p", stream="orders"))
    assert (preflight.max_downtime, preflight.options) == (
        "1d12h",
        {
            "delta": {"conn_id": "aws_lake", "tables": {"0": "s3://lake/customers"}},
            "kafka": {"conn_id": "kafka_prod"},
        },
    )


def test_how_a_stream_is_backed_up() -> None:
    """`workers` was accepted, and nothing heeded it."""
    backup = {"workers": 3, "restorable_batches": 5, "immutable_for": "30d", "create": True}
    stream = Stream("orders", checkpoint="/ck/orders", repository="/backups", backup=backup)
    task = rendered(CheckpointBackupOperator(task_id="b", stream=stream))
    assert {field: getattr(task, field) for field in backup} == {**backup, "immutable_for": "30d"}


def test_what_is_given_comes_first_and_a_place_brings_its_own_connection(streams_file: Path) -> None:
    task = rendered(
        CheckpointRewindOperator(
            task_id="t", stream="orders", to="to_latest", sink="s3://elsewhere/t", checkpoint="/local", name="other"
        )
    )
    assert (task.sink, task.sink_conn_id, task.txn_app_id) == ("s3://elsewhere/t", None, None)
    assert (task.checkpoint, task.checkpoint_conn_id) == ("/local", None)
    assert (task.name, task.repository_conn_id) == ("other", "aws_backups")


def test_the_rewind_of_a_copy_does_not_reach_the_tables_of_the_stream() -> None:
    stream = Stream(
        "orders", checkpoint="s3://lake/checkpoints/orders", repository="/b", sinks=["s3://lake/tables/orders"]
    )
    of_copy = rendered(
        CheckpointRewindOperator(task_id="t", stream=stream, checkpoint="/copy", to="to_batch", value="3")
    )
    assert of_copy.sink is None
    own = rendered(CheckpointRewindOperator(task_id="t", stream=stream, to="to_batch", value="3"))
    assert own.sink == "s3://lake/tables/orders"
    named = rendered(
        CheckpointRewindOperator(
            task_id="t", stream=stream, checkpoint="/copy", sink="/table", to="to_batch", value="3"
        )
    )
    assert named.sink == "/table"


@pytest.mark.parametrize(
    ("operator", "given"),
    [
        (CheckpointRewindOperator, {"checkpoint": "s3://lake/checkpoints/clicks", "to": "to_latest"}),
        (CheckpointRestoreOperator, {"target": "s3://lake/checkpoints/clicks"}),
    ],
)
def test_the_end_of_the_streams_application_proves_nothing_of_another_checkpoint(
    operator: type[Any], given: dict[str, str]
) -> None:
    ended = "https://history:18080/api/v1/applications/app-1"
    stream = Stream(
        "orders", checkpoint="s3://lake/checkpoints/orders", repository="/b", driver={"spark_api_url": ended}
    )
    assert rendered(operator(task_id="t", stream=stream, **given)).spark_api_url is None


def test_a_log_that_is_given_brings_its_own_connection(streams_file: Path) -> None:
    task = rendered(CheckpointRewindOperator(task_id="t", stream="orders", to="to_latest", progress_log="/logs/x"))
    assert (task.progress_log, task.progress_log_conn_id) == ("/logs/x", None)


def test_a_default_that_is_given_in_words_comes_first_too(streams_file: Path) -> None:
    given = KafkaRetentionGuardOperator(task_id="t", stream="orders", kafka_config_id="kafka_default")
    assert rendered(given).kafka_config_id == "kafka_default"
    assert rendered(KafkaRetentionGuardOperator(task_id="u", stream="orders")).kafka_config_id == "kafka_prod"


def test_what_is_empty_in_a_form_is_filled_in(streams_file: Path) -> None:
    task = CheckpointBackupOperator(
        task_id="t", stream="{{ params.stream }}", checkpoint="{{ params.checkpoint }}", name="{{ params.name }}"
    )
    rendered(task, stream="orders", checkpoint=None, name="")
    assert (task.checkpoint, task.name) == ("s3://lake/checkpoints/orders", "orders")


@pytest.mark.parametrize("value", ["", None])
def test_a_template_that_names_no_stream_is_refused(value: str | None, streams_file: Path) -> None:
    """An expire without a name is one of all streams."""
    task = CheckpointExpireOperator(task_id="e", stream="{{ params.stream }}", repository="/r", keep={"last": 1})
    with pytest.raises(AirflowFailException, match="it names no stream"):
        rendered(task, stream=value)


def test_mapped_tasks_are_filled_in_each_by_its_own_stream(streams_file: Path) -> None:
    with DAG("mapped", schedule=None):
        mapped = CheckpointBackupOperator.partial(task_id="t", repository="/other").expand(stream=["orders", "clicks"])
    for number, name in enumerate(("orders", "clicks")):
        task = mapped.unmap({"stream": name})
        task._do_render_template_fields(task, mapped.template_fields, {}, task.get_template_env(), set())  # type: ignore[typeddict-item]
        assert (task.checkpoint, task.repository) == (f"s3://lake/checkpoints/{name}", "/other"), number
        assert task.repository_conn_id is None


def test_a_dag_may_name_the_stream_once(streams_file: Path) -> None:
    with DAG("one_stream", schedule=None, default_args={"stream": "orders"}):
        backup, verify = CheckpointBackupOperator(task_id="b"), CheckpointVerifyOperator(task_id="v")
    assert rendered(backup).checkpoint == "s3://lake/checkpoints/orders"
    assert (rendered(verify).name, verify.read_data) == ("orders", "10%")


def test_a_stream_may_be_declared_in_python() -> None:
    stream = Stream("orders", checkpoint="/checkpoints/orders", repository="/backups")
    task = rendered(CheckpointBackupOperator(task_id="b", stream=stream))
    assert (task.checkpoint, task.repository, task.name) == ("/checkpoints/orders", "/backups", "orders")


def test_an_unknown_stream_fails_without_retries_and_names_the_nearest(streams_file: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"declares no stream 'ordres'\nHINT: did you mean 'orders'\?"):
        rendered(CheckpointBackupOperator(task_id="b", stream="ordres"))


def test_without_a_file_the_next_step_is_named() -> None:
    with pytest.raises(
        AirflowFailException, match=r"no file declares streams\nHINT: set `streams` in the section \[ckpt\]"
    ):
        rendered(CheckpointBackupOperator(task_id="b", stream="orders"))


@pytest.mark.parametrize(
    ("cls", "field", "more"),
    [
        (CheckpointBackupOperator, "checkpoint", {"repository": "/r"}),
        (CheckpointBackupOperator, "repository", {"checkpoint": "/c"}),
        (CheckpointVerifyOperator, "repository", {}),
        (CheckpointRestoreOperator, "target", {"repository": "/r"}),
        (CheckpointExpireOperator, "keep", {"repository": "/r"}),
        (CommitGapSensor, "checkpoint", {}),
    ],
)
def test_without_a_stream_a_place_has_to_be_given_when_the_dag_is_parsed(
    cls: Any, field: str, more: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match=f"missing keyword argument '{field}'; give it, or stream"):
        cls(task_id="t", **more)


def test_the_configuration_has_defaults_below_the_file(streams_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams_file.write_text("streams: {clicks: {checkpoint: s3://lake/clicks, storage_conn_id: own}}")
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", "s3://configured/backups")
    monkeypatch.setenv("AIRFLOW__CKPT__STORAGE_CONN_ID", "configured")
    task = rendered(CheckpointBackupOperator(task_id="b", stream="clicks"))
    assert (task.repository, task.checkpoint_conn_id) == ("s3://configured/backups", "own")


def test_a_backup_and_its_verification_need_only_the_stream(checkpoint: Path, tmp_path: Path, run: Any) -> None:
    stream = Stream(
        "orders", checkpoint=str(checkpoint), repository=str(tmp_path / "new"), backup={"create": True, "verify": "all"}  # type: ignore[arg-type]
    )  # fmt: skip
    backup = rendered(CheckpointBackupOperator(task_id="b", stream=stream)).execute(run())
    report = rendered(CheckpointVerifyOperator(task_id="v", stream=stream)).execute(run())
    assert backup["name"] == report["name"] == "orders"
    assert report["read_files"] == backup["files"]
