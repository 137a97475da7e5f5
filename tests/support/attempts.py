"""Runs of a task: attempts that share what Airflow keeps for a task, deferrals, and workers that are killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowRescheduleException, TaskDeferred
from pydantic import JsonValue, TypeAdapter

from airflow_ckpt_provider.hooks import databricks_pipelines
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook


class Killed(BaseException):
    """The worker is gone: nothing of this process runs any more, no handler of errors either."""


def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are repeated at once, and what a workspace asks to wait is a thousandth of it."""
    before = DatabricksPipelinesHook.__init__

    def quick(self: DatabricksPipelinesHook, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **{"retry_delay": 0.001, "timeout_seconds": 5, **kwargs})

    monkeypatch.setattr(DatabricksPipelinesHook, "__init__", quick)
    asked = databricks_pipelines._retry_after
    monkeypatch.setattr(databricks_pipelines, "_retry_after", lambda attempt: asked(attempt) / 1000)


class Store:
    """What Airflow 3.3 keeps for a task: JSON, over all attempts; ``before`` is called before every write."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self.kept[key]) if key in self.kept else default

    def set(self, key: str, value: Any, **_: Any) -> None:
        self.before()
        # As Airflow's own does, which refuses tuples: they come back as lists, and are another thing in the next attempt.
        TypeAdapter(JsonValue).validate_python(value)
        self.kept[key] = json.dumps(value)
        self.after()

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)


class Replaced(dict[str, str]):
    """What Airflow answers the id of an attempt after which another one has begun: that nothing is kept."""

    def __contains__(self, key: object) -> bool:
        return False


class Task:
    """One task of one run, over its attempts.

    :param make: makes the operator, again for every attempt, as a worker does.
    :param store: ``None``: an Airflow that keeps nothing.
    """

    def __init__(self, make: Callable[[], BaseOperator], *, run_id: str = "manual__1", store: bool = True) -> None:
        self.make = make
        self.store = Store() if store else None
        self.run_id = run_id
        self.tries = self.max_tries = 0
        self.pushed: dict[str, Any] = {}
        self.deferred = 0
        self.rescheduled = 0
        self.operator: Any = None
        self.began = datetime.now(UTC)
        #: What Airflow answers who asks for the state of the task.
        self.state = "running"

    def context(self) -> dict[str, Any]:
        ti = SimpleNamespace(
            dag_id="dag",
            run_id=self.run_id,
            task_id="task",
            map_index=-1,
            try_number=self.tries,
            max_tries=self.max_tries,
            get_first_reschedule_date=lambda _: self.began if self.rescheduled else None,
            xcom_push=lambda key, value: self.pushed.__setitem__(key, json.loads(json.dumps(value))),
            get_task_states=lambda **_: {self.run_id: {"task": self.state}},
            xcom_pull=lambda *, task_ids, key: None,  # the only task of its run
        )
        run = SimpleNamespace(start_date=self.began, run_after=self.began)
        found: dict[str, Any] = {"ti": ti, "dag_run": run}
        return found | ({"task_state_store": self.store} if self.store else {})

    def clear(self) -> None:
        """As Airflow does for a task without retries: the attempts that follow are a life of their own."""
        self.max_tries = self.tries

    def attempt(self) -> Any:
        """Run one attempt to its end, through the triggerer where the task defers."""
        self.tries += 1
        context = self.context()
        self.operator = self.make()
        step = lambda: self.operator.execute(context)  # noqa: E731
        while True:
            try:
                result = step()
            except TaskDeferred as deferral:
                self.deferred += 1
                event, method, kwargs = self.fired(deferral), deferral.method_name, deferral.kwargs or {}
                context, self.operator = self.context(), self.make()
                resumed, carried = self.operator, json.loads(json.dumps(kwargs))
                step = lambda m=method, e=event, r=resumed, k=carried, c=context: getattr(r, m)(c, event=e, **k)  # noqa: E731
            except AirflowRescheduleException:
                self.rescheduled += 1
                assert self.rescheduled < 2000, "it never ends"
                context, self.operator = self.context(), self.make()
                step = lambda c=context, o=self.operator: o.execute(c)  # noqa: E731
            else:
                assert json.loads(json.dumps(result)) == result
                return result

    @staticmethod
    def fired(deferral: TaskDeferred) -> dict[str, Any]:
        """What the trigger says, made again from what Airflow keeps of it."""
        path, kwargs = deferral.trigger.serialize()
        trigger = type(deferral.trigger)(**json.loads(json.dumps(kwargs)))
        assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"

        async def first() -> Any:
            async for event in trigger.run():
                return event.payload
            raise AssertionError("the trigger ended without an event")

        try:
            payload: dict[str, Any] = json.loads(json.dumps(asyncio.run(first())))
        except Killed:  # a triggerer that restarts makes the trigger again
            return Task.fired(deferral)
        return payload
