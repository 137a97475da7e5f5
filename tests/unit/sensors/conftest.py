from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.growing_streams import DiskStream

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def stream(tmp_path: Path) -> DiskStream:
    """A stream that has run batches 0 to 5 a minute ago."""
    return DiskStream(tmp_path / "orders").start().ran(range(6), age=60)


class TaskStateStore(dict[str, Any]):
    """Where Airflow 3.3 keeps values of a task."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


@pytest.fixture
def run() -> Run:
    """Make the part of a task's context that the sensors use; ``pushed`` collects its XComs."""

    def make(*, store: bool = True, first_reschedule: Any = None, max_tries: int = 0) -> dict[str, Any]:
        pushed: dict[str, Any] = {}
        ti = SimpleNamespace(
            dag_id="dag",
            run_id="manual__1",
            task_id="task",
            map_index=-1,
            try_number=1,
            max_tries=max_tries,
            xcom_push=lambda key, value: pushed.__setitem__(key, value),
            get_first_reschedule_date=lambda context: first_reschedule,
        )
        context: dict[str, Any] = {"ti": ti, "pushed": pushed}
        if store:
            context["task_state_store"] = TaskStateStore()
        return context

    return make
