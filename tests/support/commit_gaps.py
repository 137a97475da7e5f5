"""The sensor of the commit gap, run in each mode."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import (
    AirflowRescheduleException,
    TaskDeferred,
)

FAST: dict[str, Any] = {"poll_interval": 0.01, "timeout": 20.0}


MODES = ("poke", "reschedule", "deferrable")


def run_trigger(deferred: Any) -> dict[str, Any]:
    """Run a trigger as the triggerer does, made again from what it was stored as."""
    path, arguments = json.loads(json.dumps(deferred.serialize()))
    trigger = type(deferred)(**arguments)
    assert f"{type(trigger).__module__}.{type(trigger).__qualname__}" == path

    async def first() -> Any:
        async for event in trigger.run():
            return event.payload

    payload: dict[str, Any] = json.loads(json.dumps(asyncio.run(asyncio.wait_for(first(), 30))))
    return payload


def wait(made: BaseSensorOperator, context: dict[str, Any], during: Callable[[], object] | None = None) -> Any:
    """Run a sensor to its end as Airflow does: again when it is rescheduled, by its trigger when it is deferred.

    :param during: called once, after the first poll.
    """
    if made.mode == "poke" and not made.deferrable:  # type: ignore[attr-defined]
        helper = threading.Timer(0.3, during) if during else None
        if helper:
            helper.start()
        try:
            return made.execute(context)  # type: ignore[arg-type]
        finally:
            if helper:
                helper.join()
    again: dict[str, Any] = {}
    for number in range(2000):
        try:
            if again:
                return made.resume_execution("execute_complete", again, context)  # type: ignore[arg-type]
            return made.execute(context)  # type: ignore[arg-type]
        except AirflowRescheduleException:
            time.sleep(0.01)
        except TaskDeferred as e:
            if during and number == 0:
                during()
            again = {"event": run_trigger(e.trigger)}
        else:
            raise AssertionError
        if during and number == 0 and made.mode == "reschedule":
            during()
    raise AssertionError("it never ends")
