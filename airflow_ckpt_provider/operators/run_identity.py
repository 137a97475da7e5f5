"""Who does this: the name under which a task is known to repositories, seals and audit records."""

from __future__ import annotations

from datetime import datetime
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


def run_of(context: Context) -> str:
    """Return how :func:`made_by` begins for all tasks of this run. Empty outside of a task run."""
    return f"{context['ti'].dag_id}/{context['ti'].run_id}/" if "ti" in context else ""


def since_said(context: Context, at: str | None = None) -> Clocks:
    """Return clocks that began when somebody said that the query is stopped, by the wall clock of this worker.

    Not when this attempt of the task was started: it may have waited, and a retry would say so again though nobody does.

    :param at: when the query was stopped, in ISO 8601; ``None``: it was said by whoever started the run, or cleared it.
    :raises RefusedError: ``at`` is no time with a zone, or the time is more than a minute ahead of this worker's clock.
    """
    from airflow_ckpt_provider.storage.clocks import Clocks
    from airflow_ckpt_provider.units import parse_time

    said: object = parse_time(at) if at else getattr(context.get("dag_run"), "start_date", None)
    if not isinstance(said, datetime):
        said = getattr(context.get("ti"), "start_date", None)
    return Clocks.since_said(said) if isinstance(said, datetime) else Clocks()


def has_been_tried(context: Context) -> bool:
    """Whether an attempt before this one may have left something.

    The first attempt of a run cannot find work of its own, so it need not search; and a run that was deleted and
    recreated under the same id must not take its namesake's work for its own.
    """
    return "ti" in context and context["ti"].try_number > 1


def life_of(context: Context) -> int:
    """Return a number that is the same for all attempts of a task until it is cleared: ``max_tries`` of its instance.

    Airflow sets it when the instance is created, and again only with a clear, to more than the attempts that there were. The
    task's own ``retries`` may be others by the next attempt: the DAG may have been edited.
    """
    return int(getattr(context.get("ti"), "max_tries", None) or 0)
