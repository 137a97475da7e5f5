"""Lets ``dag.test()`` skip a branch of a DAG at once: by itself it skips one task after the other, one in a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def skipping_at_once() -> Iterator[None]:
    """Have Airflow decide, whenever it decides which tasks may run, until its decisions change nothing more."""
    from airflow.models.dagrun import DagRun

    decide = DagRun.update_state

    def decide_all(run: Any, **given: Any) -> Any:
        decided = None
        while decided != (decided := _states(run, **given)):
            found = decide(run, **given)
            if found[0] or run.state != "running":
                break
        return found

    with patch.object(DagRun, "update_state", decide_all):
        yield


def _states(run: Any, *, session: Any, **_: Any) -> dict[str, str]:
    return {str(ti.id): str(ti.state) for ti in run.get_task_instances(session=session)}
