"""``sink`` of an operator as a list, with one value for all sinks or one for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.undo import CheckpointUndoOperator
from airflow_ckpt_provider.operators.upgrade import UpgradeBeginOperator
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.delta_batches import batches_in, delta_table
from tests.support.operator_runs import Run

ROLLBACK, KEEP = SinkPolicy.ROLLBACK, SinkPolicy.ACCEPT


def operator(**fields: Any) -> CheckpointRewindOperator:
    return CheckpointRewindOperator(task_id="t", checkpoint="/c", to="to_latest", **fields)


@pytest.mark.parametrize("sink", [["/lake/a", "/lake/b"], ("/lake/a", "/lake/b"), "['/lake/a', '/lake/b']"])
def test_one_for_all_or_one_for_each(sink: Any) -> None:
    each = operator(sink=sink, txn_app_id=["x", None], sink_options={"k": "v"}, sink_policy=["rollback", "keep"])
    assert [(s.name, s.app_id, dict(s.storage_options)) for s in each._sinks()] == [
        ("/lake/a", "x", {"k": "v"}),
        ("/lake/b", None, {"k": "v"}),
    ]
    assert each._policies() == [ROLLBACK, None]
    assert [s.app_id for s in operator(sink=sink, txn_app_id="x")._sinks()] == ["x", "x"]
    assert operator(sink=sink, sink_policy="rollback")._policies() == [ROLLBACK, ROLLBACK]


def test_one_sink_and_none() -> None:
    assert [s.name for s in operator(sink="/lake/a")._sinks()] == ["/lake/a"]
    assert [s.name for s in operator(sink="foreachBatch")._sinks()] == ["foreachBatch"]
    assert [s.kind for s in operator(sink="None")._sinks()] == ["unknown"]
    assert operator()._policies() == [None]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"sink": ["/a", "/b"], "txn_app_id": ["x", "y", "z"]}, "txn_app_id has 3 entries for 2 sinks"),
        ({"sink": "['/a'"}, "give a text, or a list of texts"),
        ({"sink": ["/a", "/a"]}, "is named twice"),
    ],
)
def test_what_does_not_fit(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RefusedError) as refused:
        operator(**fields)._sinks()
    assert why in f"{refused.value}"


def test_the_steps_of_an_upgrade() -> None:
    each = UpgradeBeginOperator(
        task_id="t",
        checkpoint="/c",
        repository="/r",
        mode="savepoint",
        sink=["/a", "kafka"],
        sink_policy=["rollback", "keep"],
    )
    assert [s.name for s in each._sinks()] == ["/a", "kafka"]
    assert each._policies() == [ROLLBACK, KEEP]


def test_a_rewind_and_its_undo(tmp_path: Path, run: Run) -> None:
    plant(open_location(str(tmp_path / "orders")), stream(6))
    tables = {
        "first": delta_table(tmp_path / "first", range(4, 7)),
        "second": delta_table(tmp_path / "second", range(4, 7)),
    }
    about: dict[str, Any] = {"checkpoint": str(tmp_path / "orders"), "sink": [str(tmp_path / name) for name in tables]}
    rewind = CheckpointRewindOperator(
        task_id="rewind",
        to="to_batch",
        value=4,
        sink_policy="rollback",
        mode="apply",
        query_is_stopped=True,
        accept=["source_loss", "source_failure"],  # its input files are not real
        **about,
    )
    result = rewind.execute(run("rewind"))
    assert [sink["table_version"] for sink in result["outcome"]["sinks"]] == [3, 3]
    assert {name: batches_in(table) for name, table in tables.items()} == {name: [4, 4] for name in tables}
    undo = CheckpointUndoOperator(task_id="undo", query_is_stopped=True, **about)
    assert [sink["table_version"] for sink in undo.execute(run("undo"))["sinks"]] == [4, 4]
