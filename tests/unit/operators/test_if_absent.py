"""One guard over a fleet: a stream without a source of its kind is skipped where that is known, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.operators.delta_retention_guard import DeltaRetentionGuardOperator
from airflow_ckpt_provider.operators.file_source_guard import FileSourceGuardOperator
from airflow_ckpt_provider.operators.kafka_retention_guard import KafkaRetentionGuardOperator
from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator
from airflow_ckpt_provider.sensors.kafka_time_to_loss import KafkaTimeToLossSensor
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.stream import Stream
from tests.support.other_sources import FILE, OF_ANOTHER_KIND, RATE, checkpoint

GUARDS = {
    # None of them has a connection: a stream that is skipped needs none.
    "kafka": lambda **given: KafkaRetentionGuardOperator(task_id="t", **given),
    "kafka sensor": lambda **given: KafkaTimeToLossSensor(task_id="t", **given),
    "delta": lambda **given: DeltaRetentionGuardOperator(task_id="t", tables="/lake/orders", **given),
    "file": lambda **given: FileSourceGuardOperator(task_id="t", **given),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_stream_without_such_a_source_is_skipped_where_that_is_wanted(guard: str, tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "ck", RATE if guard == "file" else FILE)
    kind = guard.split()[0]
    with pytest.raises(AirflowSkipException, match=rf"has no {kind} source"):
        GUARDS[guard](checkpoint=place, if_absent="skip").execute({})
    with pytest.raises(
        AirflowFailException, match=rf"(?s)has no {kind} source.*if_absent='skip' skips the task"
    ) as refused:
        GUARDS[guard](checkpoint=place).execute({})
    assert "its sources are: 0 (" in str(refused.value)


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ((), "a query that has run no batch may read anything"),
        ((FILE, OF_ANOTHER_KIND), "a source of unknown kind may be one of this kind in a newer format"),
        ((FILE, "-"), "a source without an offset yet"),
    ],
)
@pytest.mark.parametrize("guard", ["kafka", "delta"])
def test_what_is_not_known_is_not_skipped(guard: str, offsets: tuple[str, ...], why: str, tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException):
        GUARDS[guard](checkpoint=checkpoint(tmp_path / "ck", *offsets), if_absent="skip").execute({})


def test_a_source_that_is_asked_for_by_a_wrong_name_is_an_error(tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "ck", FILE)
    with pytest.raises(AirflowFailException, match="has no file source '7'"):
        GUARDS["file"](checkpoint=place, source="7", if_absent="skip").execute({})


@pytest.mark.parametrize("guard", GUARDS)
def test_another_word_is_refused_before_anything_is_read(guard: str) -> None:
    given: dict[str, Any] = {"checkpoint": "/nowhere", "if_absent": "ignore"}
    with pytest.raises(AirflowFailException, match=r"if_absent is 'ignore'\n.*fail, skip"):
        GUARDS[guard](**given).execute({})


def test_a_name_without_a_backup_is_that_of_a_declared_stream_or_refused(tmp_path: Path) -> None:
    place, kept = checkpoint(tmp_path / "ck", RATE), str(tmp_path / "backups")
    Repository.open_or_create(open_location(kept))
    declared = Stream("orders", checkpoint=place, repository=kept)

    def verdict(**given: Any) -> Any:
        task = RecoveryPreflightOperator(task_id="t", stream=declared, on_finding="warn", **given)
        task.render_template_fields({})
        return task.execute({})["verdict"]

    assert verdict() == "SAFE"
    with pytest.raises(AirflowFailException, match="holds no backup of ordres"):
        verdict(name="ordres")
