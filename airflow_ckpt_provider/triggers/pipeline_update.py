"""Wait for an update of a pipeline in the triggerer, without holding a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, WorkspaceError, WorkspaceForbiddenError
from airflow_ckpt_provider.lakeflow.following import Answer, Memory, Progress, Wait, a_look, looking
from airflow_ckpt_provider.lakeflow.updates import active_update
from airflow_ckpt_provider.operators.databricks_workspace import open_workspace


class PipelineUpdateTrigger(BaseTrigger):
    """Poll an update every so often, until the wait is over one way or the other.

    Fires once, with ``status`` (``done``, ``failed``, ``canceled``, ``timeout``, ``error``, ``refused``), ``message``,
    ``hint``, ``state``, and ``memory`` and ``end_time`` for a wait that continues. A workspace that is out of order for
    a while does not end the wait.

    .. code-block:: python

        import time

        from airflow_ckpt_provider.lakeflow.following import Wait

        trigger = PipelineUpdateTrigger(
            pipeline_id="4c1f",
            databricks_conn_id="databricks_default",
            wait=Wait(update_id="9a7e").to_json(),
            end_time=time.time() + 3600,
        )

    :param pipeline_id: the pipeline.
    :param databricks_conn_id: id of the connection.
    :param wait: what is waited for, as :meth:`~airflow_ckpt_provider.lakeflow.following.Wait.to_json` writes it.
    :param end_time: the deadline, in seconds since the epoch. Its own: not every way of running tasks keeps that of a deferral.
    :param poll_interval: seconds between two polls.
    :param memory: what the look before remembered; a restarted triggerer continues from there.
    :param stop_when_killed: stop the update when a user ends the waiting task.
    """

    def __init__(
        self,
        *,
        pipeline_id: str,
        databricks_conn_id: str,
        wait: dict[str, Any],
        end_time: float,
        poll_interval: float = 30.0,
        memory: list[dict[str, Any]] | None = None,
        stop_when_killed: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline_id = pipeline_id
        self.databricks_conn_id = databricks_conn_id
        self.wait = wait
        self.end_time = end_time
        self.poll_interval = poll_interval
        self.memory = memory
        self.stop_when_killed = stop_when_killed
        self._seen = Memory.from_json(memory)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all plain JSON."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "pipeline_id": self.pipeline_id,
                "databricks_conn_id": self.databricks_conn_id,
                "wait": self.wait,
                "end_time": self.end_time,
                "poll_interval": self.poll_interval,
                "memory": self.memory,
                "stop_when_killed": self.stop_when_killed,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is an answer, or the deadline has passed."""
        wait = Wait.from_json(self.wait)
        said, state = f"pipeline {self.pipeline_id}: no look was finished in time", ""
        while True:
            try:
                answer = await self._look(wait)
            except (RefusedError, MissingExtraError) as e:
                yield self._event("refused", e.message, e.hint, state)
                return
            except WorkspaceForbiddenError as e:
                yield self._event("error", e.message, e.hint, state)
                return
            except WorkspaceError as e:
                self.log.warning("%s", e)
                said = e.message
            else:
                if answer.message != said:
                    self.log.info("%s", answer.message)
                self._seen, said, state = answer.memory, answer.message, answer.state
                if answer.progress is not Progress.WAITING:
                    yield self._event(answer.progress.value, answer.message, None, state)
                    return
            left = self.end_time - time.time()
            if left <= 0:
                yield self._event("timeout", said, None, state)
                return
            await asyncio.sleep(min(self.poll_interval, left))

    async def on_kill(self) -> None:
        """Stop the update, if it is still the one that runs: only when a user ends the task, not at a restart."""
        ours = {*self._seen.update_ids, self.wait.get("update_id")}
        if not self.stop_when_killed:
            return
        async with open_workspace(self.databricks_conn_id, caller=type(self).__name__) as workspace:
            if active_update(await workspace.a_get_pipeline(self.pipeline_id)) in ours - {"", None}:
                await workspace.a_stop_pipeline(self.pipeline_id)

    async def _look(self, wait: Wait) -> Answer:
        async with open_workspace(self.databricks_conn_id, caller=type(self).__name__) as workspace:
            return await a_look(lambda path: workspace.a_ask(self.pipeline_id, path), looking(wait, self._seen))

    def _event(self, status: str, message: str, hint: str | None, state: str) -> TriggerEvent:
        return TriggerEvent(
            {
                "status": status,
                "message": message,
                "hint": hint,
                "state": state,
                "memory": self._seen.to_json(),
                "end_time": self.end_time,
            }
        )
