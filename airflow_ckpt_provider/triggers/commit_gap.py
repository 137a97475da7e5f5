"""Wait for a stream in the triggerer, without holding a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.redaction import redacted
from airflow_ckpt_provider.triggers.in_thread import in_thread

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.conditions import Wait
    from airflow_ckpt_provider.checkpoint.driver_logs import DriverLogs
    from airflow_ckpt_provider.checkpoint.waiting import Answer
    from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
    from airflow_ckpt_provider.storage.location import Location

#: Seconds that the last poll may take, beyond the deadline.
_LAST_LOOK = 30.0


class CommitGapTrigger(BaseTrigger):
    """Read a checkpoint every so often, until the wait is over one way or the other.

    Fires once, with ``status`` (``done``, ``stuck``, ``went_back``, ``crashed``, ``timeout``, ``error``, ``refused``),
    ``message``, ``hint``, ``progress``, and ``memory`` and ``end_time`` for a wait that continues.

    .. code-block:: python

        import time

        from airflow_ckpt_provider.checkpoint.conditions import Condition, Wait

        trigger = CommitGapTrigger(
            checkpoint="s3://lake/checkpoints/orders",
            wait=Wait(Condition("drained")).to_json(),
            end_time=time.time() + 3600,
        )

    :param checkpoint: URI of the checkpoint.
    :param wait: what is waited for, as :meth:`~airflow_ckpt_provider.checkpoint.waiting.Wait.to_json` writes it.
    :param end_time: the deadline, in seconds since the epoch. Its own: not every way of running tasks keeps that of a deferral.
    :param poll_interval: seconds between two polls.
    :param memory: what the look before remembered; a restarted triggerer continues from there.
    :param checkpoint_conn_id: Airflow connection to reach the checkpoint.
    :param silent_fail: log errors of the store and continue, as sensors with ``silent_fail`` do.
    :param progress_log: URI of the driver's progress lines, to end the wait when its query has crashed.
    :param error_log: URI of the driver's text log, likewise.
    :param logs_conn_id: Airflow connection to reach both.
    """

    def __init__(
        self,
        *,
        checkpoint: str,
        wait: dict[str, Any],
        end_time: float,
        poll_interval: float = 60.0,
        memory: dict[str, Any] | None = None,
        checkpoint_conn_id: str | None = None,
        silent_fail: bool = False,
        progress_log: str | None = None,
        error_log: str | None = None,
        logs_conn_id: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.checkpoint = checkpoint
        self.wait = wait
        self.end_time = end_time
        self.poll_interval = poll_interval
        self.memory = memory
        self.checkpoint_conn_id = checkpoint_conn_id
        self.silent_fail = silent_fail
        self.progress_log = progress_log
        self.error_log = error_log
        self.logs_conn_id = logs_conn_id
        self._location: Location | None = None
        self._logs: DriverLogs | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all plain JSON."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "checkpoint": self.checkpoint,
                "wait": self.wait,
                "end_time": self.end_time,
                "poll_interval": self.poll_interval,
                "memory": self.memory,
                "checkpoint_conn_id": self.checkpoint_conn_id,
                "silent_fail": self.silent_fail,
                "progress_log": self.progress_log,
                "error_log": self.error_log,
                "logs_conn_id": self.logs_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is an answer, or the deadline has passed."""
        from airflow_ckpt_provider.checkpoint.conditions import Wait
        from airflow_ckpt_provider.checkpoint.waiting import State
        from airflow_ckpt_provider.checkpoint.waiting_memory import Memory

        wait = Wait.from_json(self.wait)
        memory = Memory.from_json(self.memory)
        said = f"{redacted(self.checkpoint)}: no look was finished in time"
        progress: dict[str, Any] = {}
        if memory.looked is not None:  # a worker has just looked
            await self._sleep(self.poll_interval - (datetime.now(UTC) - memory.looked).total_seconds())
        while True:
            left = self.end_time - time.time()
            try:
                # All of it in a thread: some stores cannot even be opened inside an event loop.
                # (asyncio.wait_for of Python 3.11 can swallow the cancellation of a triggerer that stops.)
                async with asyncio.timeout(max(left, _LAST_LOOK)):
                    answer, memory = await in_thread(self._look, wait, memory)
            except TimeoutError:
                pass
            except RefusedError as e:
                yield self._event("refused", e.message, e.hint, progress, memory)
                return
            except CkptError as e:
                if not self.silent_fail:
                    yield self._event("error", e.message, e.hint, progress, memory)
                    return
                self.log.warning("%s", e)
            else:
                self.log.info("%s", answer.message)
                said, progress = answer.message, answer.progress or progress
                if answer.state is not State.WAITING:
                    yield self._event(answer.state.value, answer.message, answer.hint, progress, memory)
                    return
            if time.time() >= self.end_time:
                yield self._event("timeout", said, None, progress, memory)
                return
            await self._sleep(self.poll_interval)

    def _look(self, wait: Wait, memory: Memory) -> tuple[Answer, Memory]:
        from airflow_ckpt_provider.checkpoint.waiting import look
        from airflow_ckpt_provider.places import open_logs, open_place

        if self._location is None:
            self._location = open_place(self.checkpoint, self.checkpoint_conn_id)
            self._logs = open_logs(self.progress_log, self.error_log, self.logs_conn_id)
        return look(self._location, wait, memory, logs=self._logs)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, min(seconds, self.end_time - time.time())))

    def _event(
        self, status: str, message: str, hint: str | None, progress: dict[str, Any], memory: Memory
    ) -> TriggerEvent:
        return TriggerEvent(
            {
                "status": status,
                "message": message,
                "hint": hint,
                "progress": progress,
                "memory": memory.to_json(),
                "end_time": self.end_time,
            }
        )
