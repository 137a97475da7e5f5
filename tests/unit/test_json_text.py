"""Text of others that is nested so deeply that Python's parser gives up: a refusal, or no answer, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.advisor import reading
from airflow_ckpt_provider.checkpoint.progress_events import read_events
from airflow_ckpt_provider.cli import options
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.guards.kafka_settings import read_config
from airflow_ckpt_provider.guards.query import from_kafka_offsets
from airflow_ckpt_provider.lakeflow.answers import _code_and_message
from airflow_ckpt_provider.lakeflow.asked_sources import _has_offsets
from airflow_ckpt_provider.lakeflow.histories import _Json
from airflow_ckpt_provider.lakeflow.positions import _value
from airflow_ckpt_provider.lakeflow.progress import _object
from airflow_ckpt_provider.lakeflow.settings import MARK, _mark_of
from airflow_ckpt_provider.recovery.positions.files import is_auto_loader
from airflow_ckpt_provider.sinks.described_history import _mapping
from airflow_ckpt_provider.sinks.spark_tables import SparkTables
from airflow_ckpt_provider.spark.stopping import stop_requested
from airflow_ckpt_provider.storage.opening import open_location

DEEP = "[" * 100_000
OBJECT = '{"a":' * 100_000


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (is_auto_loader, False),
        (_mapping, {}),
        (_object, {}),
        (lambda text: _Json.of(text).values, {}),
        (_code_and_message, ("", DEEP[:300])),
        (_value, None),
        (lambda text: _has_offsets([], text, by_time=False), False),
        (reading._events, []),
    ],
)
def test_it_answers_nothing(read: Callable[[str], Any], answer: Any) -> None:
    assert read(DEEP) == answer


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (from_kafka_offsets, r"offsets are malformed \(nested too deeply\)"),
        (lambda text: _mark_of({MARK: text}), "cannot be read"),
    ],
)
def test_it_is_refused(read: Callable[[str], Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        read(DEEP)


def test_as_a_configuration_of_kafka() -> None:
    with pytest.raises(RefusedError, match="f is no Kafka configuration: nested too deeply"):
        read_config(OBJECT, name="f")


def test_as_a_setting_of_a_command() -> None:
    with pytest.raises(Exception, match="the value of a is no JSON: nested too deeply"):
        options.setting(f"a={DEEP}")


def test_as_a_line_of_a_driver_and_as_a_stop_marker(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(DEEP)
    assert read_events(open_location(str(file))) == ()
    asked = stop_requested(str(file))
    assert asked is not None
    assert asked.reason == DEEP[:200]


def test_as_what_spark_says_of_a_table() -> None:
    def run(application: Any, arguments: list[str]) -> None:
        Path(arguments[-1]).write_text(DEEP)

    with pytest.raises(StorageError, match=r"left no description of a\.b on this machine \(nested too deeply\)"):
        SparkTables(run).describe("a.b")  # type: ignore[arg-type]
