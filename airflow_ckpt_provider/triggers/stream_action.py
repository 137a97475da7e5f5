"""Wait for what a declared action has begun in the triggerer, without holding a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.operators.job_actions import Wait
from airflow_ckpt_provider.triggers.in_thread import in_thread


class StreamActionTrigger(BaseTrigger):
    """Poll a job or an application every so often, until what is waited for is over, has failed, or time is up.

    Fires once, with ``status`` (``done``, ``failed``, ``timeout``), ``message`` and ``hint``. It only reads: what is left
    to do then is done by the task. A service that is out of order for a while does not end the wait.

    .. code-block:: python

        import time

        from airflow_ckpt_provider.operators.job_actions import Wait

        wait = Wait("run 12 of job 7 to start", "run_started", "databricks_default", {"job_id": "7", "run_id": 12})
        trigger = StreamActionTrigger(wait=wait.to_json(), end_time=time.time() + 1800)

    :param wait: what is waited for, as :meth:`~airflow_ckpt_provider.operators.job_actions.Wait.to_json` writes it.
    :param end_time: the deadline, in seconds since the epoch.
    :param poll_interval: seconds between two polls.
    """

    def __init__(self, *, wait: dict[str, Any], end_time: float, poll_interval: float = 5.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wait = wait
        self.end_time = end_time
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all plain JSON."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"wait": self.wait, "end_time": self.end_time, "poll_interval": self.poll_interval},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until it is over, or the deadline has passed."""
        wait = Wait.from_json(self.wait)
        while True:
            try:
                is_over, said = await in_thread(wait.poll, self.log)
            except CkptError as e:
                yield TriggerEvent({"status": "failed", "message": e.message, "hint": e.hint})
                return
            if is_over:
                yield TriggerEvent({"status": "done", "message": said, "hint": None})
                return
            left = self.end_time - time.time()
            if left <= 0:
                yield TriggerEvent({"status": "timeout", "message": said, "hint": None})
                return
            await asyncio.sleep(min(self.poll_interval, left))
