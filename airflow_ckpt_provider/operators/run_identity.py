"""Who does this: the name under which a task is known to repositories, seals and audit records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.storage.clocks import Clocks


def made_by(context: Context) -> str:
    """Return ``<dag_id>/<run_id>/<task_id>/<map_index>``: the same for every attempt, and for no other task.

    A retry finds by it what the attempt before has finished. Empty outside of a task run (a test, a notebook).
    """
    if "ti" not in context:
        return ""
    ti = context["ti"]
    map_index = -1 if ti.map_index is None else ti.map_index
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{map_index}"


def since_start(context: Context) -> Clocks:
    """Return clocks that began when this attempt of the task was started, by the wall clock of its worker."""
    from airflow_ckpt_provider.storage.clocks import Clocks

    started = getattr(context.get("ti"), "start_date", None)
    return Clocks(passed=(datetime.now(UTC) - started).total_seconds() if isinstance(started, datetime) else 0.0)


def has_been_tried(context: Context) -> bool:
    """Whether an attempt before this one may have left something.

    The first attempt of a run cannot find work of its own, so it need not search; and a run that was deleted and
    recreated under the same id must not take its namesake's work for its own.
    """
    return "ti" in context and context["ti"].try_number > 1
