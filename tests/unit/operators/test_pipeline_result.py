"""What a task about a pipeline returns of several updates."""

from __future__ import annotations

from typing import Any

from airflow_ckpt_provider.operators.pipeline_rewind import PipelineRewindOperator
from airflow_ckpt_provider.operators.task_memory import TaskMemory


def seen(*update_ids: str) -> list[dict[str, Any]]:
    return [{"update_id": update_id, "state": "COMPLETED"} for update_id in update_ids]


def test_the_ids_are_in_the_order_of_the_updates() -> None:
    """The second update came before the one that the workspace started in place of the first."""
    task = PipelineRewindOperator(task_id="t", pipeline_id="p", to="2026-08-20T05:00:00Z")
    task._memory = TaskMemory({}, "k", retries=0)
    task._memory.data["steps"] = {
        "rewind": {"note": {"update_id": "u1"}, "states": seen("u1", "u1b")},
        "replay": {"note": {"update_id": "u2"}, "states": seen("u2")},
    }
    assert task._result()["update_ids"] == ["u1", "u1b", "u2"]
    assert task._result("replay")["update_ids"] == ["u2"]
