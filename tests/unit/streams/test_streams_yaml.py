"""streams.yaml: the same model as in Python, with its defaults and its schema, and quick to read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest
import yaml

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.streams import schema
from airflow_ckpt_provider.streams.declared import kinds_of
from airflow_ckpt_provider.streams.loading import MERGED, load_streams, parse_streams
from airflow_ckpt_provider.streams.problems import DeclarationError
from airflow_ckpt_provider.streams.settings import SETTINGS
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import UnknownStreamError

FULL = """\
version: 1
defaults:
  repository: s3://backups/streams
  repository_conn_id: aws_backups
  storage_conn_id: aws_lake
  objectives: {rpo: 1h}
  stop: ./stop.sh {stream}
  tags: [gold]
streams:
  orders:
    checkpoint: s3://lake/checkpoints/orders
    sources:
      kafka: {conn_id: kafka_prod}
      delta: {tables: {table.0: s3://lake/tables/customers}}
    sinks:
      - s3://lake/tables/orders
      - {sink: foreachBatch, txn_app_id: orders-batch}
    driver: {progress_log: s3://lake/logs/orders.jsonl, log: s3://lake/logs/orders.log}
    start: {dag: start_orders}
    deploy: {operator: {operator: airflow.providers.standard.operators.bash.BashOperator, arguments: {bash_command: "true"}}}
    roll_back: {databricks_job: {job_id: 17, conn_id: dbc}}
    max_downtime: PT24H
    objectives: {rto: 15m, restorable_for: 30d}
    backup: {schedule: 30 * * * *, verify: 1/7}
    retention: {hourly: 48, daily: 30}
    watch: {stuck_after: 10min}
    drill: {build: "orders.stream:build", scratch: "s3a://lake/scratch"}
    notifiers: [airflow_ckpt_provider.notifications.recovery_advice.RecoveryAdviceNotifier]
    owner: team-orders
  clicks:
    checkpoint: s3://lake/checkpoints/clicks
    stop: {spark_application: {name: clicks, namespace: streams}}
    tags: bronze
  no:
    checkpoint: s3://lake/checkpoints/no
"""


def test_a_full_file_is_read() -> None:
    streams = parse_streams(FULL)
    assert list(streams) == ["orders", "clicks", "no"]
    orders = streams.named("orders")
    assert orders.repository == "s3://backups/streams"
    assert orders.kafka == "kafka_prod"
    assert orders.sources["delta"].tables == {"table.0": "s3://lake/tables/customers"}
    assert [sink.sink for sink in orders.sinks] == ["s3://lake/tables/orders", "foreachBatch"]
    assert orders.max_downtime == timedelta(days=1)
    assert orders.schedule == "30 * * * *"
    assert orders.watch.stuck_after == timedelta(minutes=10)
    assert orders.tags == ("gold",)
    assert [getattr(orders, name).way for name in ("stop", "start", "deploy", "roll_back")] == [
        "command",
        "dag",
        "operator",
        "databricks_job",
    ]
    assert orders.roll_back is not None
    assert orders.roll_back.databricks_job is not None
    assert orders.roll_back.databricks_job.job_id == "17"


def test_defaults_are_filled_in_and_overridden() -> None:
    streams = parse_streams(FULL)
    orders, clicks = streams["orders"], streams["clicks"]
    # Field by field where fields belong together, as a whole otherwise; {stream} is the name of the stream.
    assert orders.objectives.rpo == timedelta(hours=1)
    assert orders.objectives.rto == timedelta(minutes=15)
    assert orders.stop is not None
    assert orders.stop.command == "./stop.sh orders"
    assert clicks.stop is not None
    assert clicks.stop.way == "spark_application"
    assert clicks.tags == ("bronze",)
    assert clicks.schedule == timedelta(hours=1)  # from rpo


def test_python_declares_the_same() -> None:
    [stream] = parse_streams(
        """
        streams:
          orders:
            checkpoint: s3://lake/checkpoints/orders
            sinks: s3://lake/tables/orders
            stop: ./stop.sh
            max_downtime: 1d 12h
            objectives: {rpo: 30min}
        """
    ).values()
    assert stream == Stream(
        "orders",
        checkpoint="s3://lake/checkpoints/orders",
        sinks="s3://lake/tables/orders",  # type: ignore[arg-type]  # as short as in YAML
        stop="./stop.sh",  # type: ignore[arg-type]
        max_downtime=timedelta(hours=36),
        objectives={"rpo": "PT30M"},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("given", ["checkpoint", "sinks", "backup", "retention", "watch"])
def test_none_in_python_means_what_nothing_in_the_file_means(given: str) -> None:
    fields = {"checkpoint": "/c/orders", given: None}
    if given == "checkpoint":  # such as os.environ.get("CHECKPOINT")
        with pytest.raises(DeclarationError, match="checkpoint is missing"):
            Stream("orders", **fields)
    else:
        declared = parse_streams(f"streams: {{orders: {{checkpoint: /c/orders, {given}: }}}}")["orders"]
        assert Stream("orders", **fields) == declared


#: A value of each field that may be left out, other than its default.
GIVEN = {
    "repository": "/r",
    "name_in_repository": "b",
    "application": "app",
    **dict.fromkeys((name for name in kinds_of(Stream) if name.endswith("conn_id")), "other"),
    "sources": {"file": {"conn_id": "aws"}},
    "sinks": ["/t"],
    "driver": {"progress_log": "/log", "log": "/text", "conn_id": "aws", "spark_api_url": "http://spark"},
    **dict.fromkeys(("stop", "start", "deploy", "roll_back"), "true"),
    "max_downtime": "1h",
    "objectives": {"rpo": "1h", "rto": "1h", "restorable_for": "1h"},
    "backup": {"schedule": "1h", "verify": "all", "restorable_batches": 2, "create": True, "immutable_for": "1h", "workers": 2},
    "retention": {"daily": 3},
    "watch": {"stuck_after": "1h", "behind_after": "1h", "silent_after": "1h", "max_gap": 3, "min_time_to_loss": "1h"},
    "drill": {"build": "a.b:c", "scratch": "/s", "output_mode": "update", "batches": 4},
    "notifiers": ["a.B"],
    "tags": ["gold"],
    "owner": "team",
}  # fmt: skip
BY_SCHEMA = jsonschema.Draft202012Validator(schema.streams_schema())
NESTED = [(name, inner) for name in (*MERGED, "drill") for inner in GIVEN[name]]  # type: ignore[attr-defined]


def stream_of(defaults: object, own: dict[str, object], **settings: str) -> Stream:
    """The stream of a document, which the schema takes as well."""
    document = {"defaults": defaults, "streams": {"a": {"checkpoint": "/a", **own}}}
    BY_SCHEMA.validate(document)
    return parse_streams(yaml.safe_dump(document), settings=settings)["a"]


def test_null_in_a_stream_removes_the_default_of_every_field() -> None:
    assert {"name", "checkpoint", *GIVEN} == set(kinds_of(Stream))
    nothing = stream_of({}, {})
    for name in GIVEN.keys() - {"name_in_repository"}:
        base = {"repository": "/r"} if name == "drill" else {}
        given = stream_of({**base, name: GIVEN[name]}, {})
        assert getattr(given, name) != getattr(nothing, name), name
        assert stream_of({**base, name: GIVEN[name]}, {name: None}) == stream_of(base, {}), name
        assert stream_of({**base, name: None}, {}) == stream_of(base, {}), name
    assert stream_of({}, {"name_in_repository": None}) == nothing
    assert stream_of(None, {}) == nothing


@pytest.mark.parametrize("name", list(SETTINGS))
def test_null_in_the_file_removes_the_setting_of_the_installation(name: str) -> None:
    settings = {name: str(GIVEN[name])}
    assert getattr(stream_of({}, {}, **settings), name) == GIVEN[name]
    assert getattr(stream_of({name: None}, {}, **settings), name) is None
    assert getattr(stream_of({}, {name: None}, **settings), name) is None


@pytest.mark.parametrize(("name", "inner"), NESTED)
def test_null_in_a_field_of_a_field_removes_its_default_alone(name: str, inner: str) -> None:
    base, whole = {"repository": "/r"}, GIVEN[name]
    assert isinstance(whole, dict)
    without = {key: value for key, value in whole.items() if key != inner}
    if name == "drill":  # a stream replaces it as a whole
        if inner in ("build", "scratch"):
            with pytest.raises(DeclarationError, match=f"drill: {inner} is missing"):
                parse_streams(yaml.safe_dump({"streams": {"a": {"checkpoint": "/a", name: {**whole, inner: None}}}}))
            return
        assert stream_of(base, {name: {**whole, inner: None}}) == stream_of(base, {name: without})
        return
    assert stream_of({**base, name: whole}, {name: {inner: None}}) == stream_of({**base, name: without}, {})


def test_an_unknown_stream_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownStreamError, match=r"no stream 'ordesr'\nHINT: did you mean 'orders'\?"):
        parse_streams(FULL).named("ordesr")


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text("streams: {a: {checkpoint: /a}}")
    first = load_streams(file)
    assert load_streams(file) is first
    file.write_text("streams: {b: {checkpoint: /b}}")
    os.utime(file, ns=(0, 0))
    assert list(load_streams(file)) == ["b"]


def test_settings_are_the_defaults_of_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text("defaults: {repository: /r}\nstreams: {a: {checkpoint: /a}}")
    stream = load_streams(file, settings={"repository": "/other", "kafka_conn_id": "kafka"})["a"]
    assert (stream.repository, stream.kafka_conn_id) == ("/r", "kafka")


def test_a_missing_file_is_told_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"No such file.*\nHINT: give the path of streams.yaml"):
        load_streams(tmp_path / "streams.yaml")


def test_the_published_schema_is_that_of_the_model() -> None:
    assert schema.SCHEMA_FILE.read_text() == schema.schema_text(), "write it again: dev/reference_pages.py"
    jsonschema.Draft202012Validator.check_schema(schema.streams_schema())


def test_the_schema_takes_what_the_model_takes() -> None:
    assert list(BY_SCHEMA.iter_errors(yaml.safe_load(FULL.replace("  no:", "  'no':")))) == []
    for bad in ("streams: {a: {checkpont: /a}}", "streams: {a: {watch: {max_gap: 0}}}", "streams: {}", "bakups: 1"):
        assert list(BY_SCHEMA.iter_errors(yaml.safe_load(bad))), bad


def test_every_field_is_described() -> None:
    from airflow_ckpt_provider.streams.declared import descriptions_of

    for record in schema.records():
        assert set(descriptions_of(record)) == set(kinds_of(record)), record


def test_300_streams_are_read_quickly() -> None:
    """Compared with PyYAML's own C loader on the same machine at the same moment, for machines differ."""
    shared, one, _ = FULL.partition("  orders:\n")[0], FULL.partition("streams:\n")[2].partition("  clicks:")[0], None
    text = shared + "".join(one.replace("orders", f"orders{number}") for number in range(300))

    def seconds(read: Callable[[], object]) -> float:
        began = time.thread_time()
        read()
        return time.thread_time() - began

    assert len(parse_streams(text)) == 300
    # In turns, and of this thread alone: others may run beside.
    rounds = [
        (seconds(lambda: parse_streams(text)), seconds(lambda: yaml.load(text, Loader=yaml.CSafeLoader)))
        for _ in range(3)
    ]
    ours, theirs = (min(times) for times in zip(*rounds, strict=True))
    # Measured: 2 to 3 times on a quiet machine, 6 beside nine other processes. A reader that is quadratic takes 100.
    assert ours < 15 * theirs, (ours, theirs)
