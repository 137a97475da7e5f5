"""dags/rewind_chain.py on three streams that read each other's tables: planned, approved, and back at one boundary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.operators.chain import ChainUndoOperator
from tests.support.airflow_runs import Answer, RunDag, result, states
from tests.support.chained_streams import IDS, Chained

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]


@pytest.fixture
def chained(tmp_path: Path) -> Chained:
    return Chained(tmp_path / "lake")


@pytest.fixture
def rewind(example_dags: dict[str, DAG], run_dag: RunDag, chained: Chained) -> Callable[..., Any]:
    """Fill in the form and run the DAG."""

    def run(**form: Any) -> Any:
        dag = example_dags["rewind_chain"]
        dag.get_task("stop_streams").bash_command = "true"
        dag.get_task("start_streams").bash_command = "true"
        dag.get_task("rewind").quiet_for = 0.1
        where = {"streams": "\n".join(s.argument for s in chained.streams()), "to": "to_batch", "value": "4"}
        # Bronze's input files are missing: what they held is lost to a replay.
        return run_dag(dag, run_conf={**where, "accept": "source_loss", "query_is_stopped": True, **form})

    return run


@pytest.mark.slow
def test_plan_is_the_default_and_changes_nothing(rewind: Callable[..., Any], chained: Chained) -> None:
    before = chained.content()
    run = rewind()
    assert run.state == "success"
    assert {task for task, state in states(run).items() if state == "success"} == {"plan", "what_next"}
    assert "| silver | `" in result(run, "plan")["markdown"]
    assert chained.content() == before


def test_all_streams_go_back(rewind: Callable[..., Any], chained: Chained, answer: Answer) -> None:
    answer("rewind_chain", "Approve")
    run = rewind(mode="apply", reason="wrong values since the deployment")
    assert run.state == "success"
    assert set(states(run).values()) == {"success"}
    assert result(run, "plan", "plan")["batches"] == dict.fromkeys(IDS, 4)
    outcome = result(run, "rewind", "outcome")
    assert [stream["name"] for stream in outcome["streams"]] == ["gold", "silver", "bronze"]
    assert [chained.content()[name] for name in IDS] == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 3
    streams = [stream.argument for stream in chained.streams()]
    undo = ChainUndoOperator(task_id="undo", streams=streams, query_is_stopped=True, quiet_for=0.0)
    assert undo.execute({})["plan_id"] == outcome["plan_id"]
    assert [chained.content()[name] for name in IDS] == [sorted([*range(7), *range(7)])] * 3
