"""What a stream declares of its sources is what the guards are told, wherever they are asked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from deltalake import DeltaTable

from airflow_ckpt_provider.operators.delta_retention_guard import DeltaRetentionGuardOperator
from airflow_ckpt_provider.operators.kafka_retention_guard import KafkaRetentionGuardOperator
from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator
from airflow_ckpt_provider.sensors.kafka_time_to_loss import KafkaTimeToLossSensor
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams
from tests.support.command_line import run
from tests.support.delta_guards import ck as ck
from tests.support.delta_guards import table as table
from tests.support.delta_tables import delta_checkpoint
from tests.support.iceberg_tables import NAME, Table
from tests.support.other_sources import checkpoint


def declared(tmp_path: Path, checkpoint: Path, sources: str) -> Path:
    file = tmp_path / "streams.yaml"
    file.write_text(f"streams:\n  orders:\n    checkpoint: {checkpoint}\n    sources: {sources}\n")
    return file


@pytest.fixture
def reader(table: Path, ck: Path) -> Path:
    """The checkpoint of a query whose next batch finds a delete."""
    DeltaTable(table).delete()
    return delta_checkpoint(ck, table, 2)


@pytest.mark.parametrize("source", ["0", "table.0"])
class TestADeltaSource:
    @pytest.fixture
    def streams(self, tmp_path: Path, table: Path, reader: Path, source: str) -> Path:
        said = f"{{delta: {{tables: {{{source}: {table}}}, options: {{option.0.ignoreDeletes: 'true'}}}}}}"
        return declared(tmp_path, reader, said)

    @pytest.mark.parametrize("operator", [DeltaRetentionGuardOperator, RecoveryPreflightOperator])
    def test_operators(self, operator: Any, streams: Path) -> None:
        task = operator(task_id="t", stream="orders", streams_file=str(streams))
        task.render_template_fields({})
        assert task.execute({})["verdict"] == "SAFE"

    def test_command(self, streams: Path) -> None:
        finished = run("guard", "--stream", "orders", "--streams", streams, "--json")
        assert (finished.code, finished.document["verdict"]) == (0, "SAFE")

    def test_a_command_that_is_given_more(self, streams: Path) -> None:
        told = ("--option", "delta.option.0.ignoreDeletes=false")
        finished = run("guard", "--stream", "orders", "--streams", streams, *told, "--json")
        assert (finished.code, finished.document["verdict"]) == (1, "WILL_FAIL")


def test_a_table_is_read_by_the_connection_that_is_declared(table: Path, reader: Path) -> None:
    delta = {"tables": {"0": str(table)}, "conn_id": "not_there", "options": {"option.0.ignoreDeletes": "true"}}
    streams = Streams([Stream("orders", checkpoint=str(reader), sources={"delta": delta})])
    for operator in (DeltaRetentionGuardOperator, RecoveryPreflightOperator):
        task: Any = operator(task_id="t", stream="orders", streams_file=streams)
        task.render_template_fields({})
        with pytest.raises(Exception, match="not_there"):
            task.execute({})


def test_a_kafka_source() -> None:
    kafka = {
        "conn_id": "kafka_prod",
        "options": {"isolation_level": "read_committed", "options": {"0": {"subscribePattern": "orders-.*"}}},
    }
    streams = Streams([Stream("orders", checkpoint="/ck/orders", sources={"kafka": kafka})])
    guard = KafkaRetentionGuardOperator(task_id="g", stream="orders", streams_file=streams)
    guard.render_template_fields({})
    assert (guard.isolation_level, guard.reader_options) == ("read_committed", {"0": {"subscribePattern": "orders-.*"}})
    sensor = KafkaTimeToLossSensor(task_id="s", stream="orders", streams_file=streams)
    sensor.render_template_fields({})
    assert (sensor.isolation_level, sensor.reader_options) == (guard.isolation_level, guard.reader_options)
    preflight = RecoveryPreflightOperator(task_id="p", stream="orders", streams_file=streams)
    preflight.render_template_fields({})
    assert preflight.options == {"kafka": {"conn_id": "kafka_prod", **kafka["options"]}}


def test_an_iceberg_table_of_a_catalog(tmp_path: Path) -> None:
    """Only its directory could be declared, of which the guard does not know the current metadata."""
    iceberg = Table(tmp_path / "lake").rows("a")
    offset = json.dumps({"version": 1, "snapshot_id": iceberg.head, "position": 1, "scan_all_files": False})
    place = checkpoint(tmp_path / "ck", offset)
    catalog = {f"catalog.{name}": value for name, value in iceberg.properties.items()}
    source = json.dumps({"iceberg": {"tables": {"0": f"iceberg:{NAME}"}, "options": catalog}})
    file = declared(tmp_path, Path(place), source)
    finished = run("guard", "--stream", "orders", "--streams", file, "--json")
    assert (finished.code, finished.document["verdict"]) == (0, "SAFE")
    down = run("guard", "--stream", "orders", "--streams", file, "--max-downtime", "24")
    assert re.search(r"down for +24 s from now on", down.out)
    task = RecoveryPreflightOperator(task_id="p", stream="orders", streams_file=str(file))
    task.render_template_fields({})
    assert task.execute({})["verdict"] == "SAFE"


def test_options_that_are_not_by_source_are_a_problem_of_the_declaration(tmp_path: Path) -> None:
    """Not of the first backup that takes the stream."""
    file = declared(
        tmp_path, tmp_path / "ck", "{kafka: {conn_id: kafka_prod, options: {options: {subscribePattern: a}}}}"
    )
    finished = run("streams", "check", "--streams", file)
    assert finished.code == 1
    said = " ".join(finished.err.split())
    assert "streams.orders.sources" in said
    assert "give source -> options, or option.<source>.<name>" in said


class TestRefused:
    """What nothing would heed: it was passed over in silence, and the verdict was SAFE."""

    def ask(self, reader: Path, *options: str) -> Any:
        told = [word for option in options for word in ("--option", option)]
        return run("guard", reader, "--option", f"delta.table.0={reader.parent / 'table'}", *told)

    @pytest.mark.parametrize(
        ("option", "words"),
        [
            ("delta.option.1.ignoreDeletes=true", "has no delta source '1', for which options are given"),
            ("kafka.option.0.subscribePattern=a", "has no kafka source '0', for which options are given"),
            ("delta.optoin.0.ignoreDeletes=true", "the guard of delta sources has no setting 'optoin.0.ignoreDeletes'"),
            ("delta.option.ignoreDeletes=true", "give source -> options, or option.<source>.<name>"),
            ("delta.options=ignoreDeletes", "delta.options is 'ignoreDeletes'"),
            ("kafka.isolation_level=READ_COMMITED", "give read_uncommitted or read_committed"),
            ("kafka.isolation_lvl=read_committed", "did you mean 'isolation_level'?"),
            ("kafka.warn_only=perhaps", "give true or false"),
            ("kafka.timeout=soon", "kafka.timeout is 'soon'"),
        ],
    )
    def test_by_the_command(self, reader: Path, option: str, words: str) -> None:
        finished = self.ask(reader, option)
        assert finished.code == 1
        assert words in " ".join(finished.err.split())

    def test_a_kind_without_a_guard(self, reader: Path) -> None:
        finished = self.ask(reader, "delta.option.0.ignoreDeletes=true", "kafak.option.0.subscribePattern=a")
        assert finished.code == 1
        assert "options are given for 'kafak', for which there is no guard; did you mean 'kafka'?" in " ".join(
            finished.out.split()
        )

    def test_by_an_operator(self, reader: Path, table: Path) -> None:
        def guard(reader_options: Any) -> Any:
            where = {"checkpoint": str(reader), "tables": str(table)}
            return DeltaRetentionGuardOperator(task_id="g", reader_options=reader_options, **where).execute({})

        assert guard({"0": {"ignoreDeletes": True}})["verdict"] == "SAFE"
        with pytest.raises(AirflowFailException, match="has no delta source '1'"):
            guard({"1": {"ignoreDeletes": True}})
        with pytest.raises(AirflowFailException, match="some of it is by source"):
            guard({"0": {"ignoreDeletes": True}, "ignoreChanges": True})
