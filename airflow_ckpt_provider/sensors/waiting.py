"""What the sensors have in common: one poll for every mode, one judgement, and a memory that outlives the process."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    conf,
)
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.declared import UNSET
from airflow_ckpt_provider.operators.fields import required, seconds, text
from airflow_ckpt_provider.operators.masking import MaskingOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.task_memory import TaskMemory
from airflow_ckpt_provider.triggers.commit_gap import CommitGapTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.conditions import Wait
    from airflow_ckpt_provider.checkpoint.driver_logs import DriverLogs
    from airflow_ckpt_provider.checkpoint.waiting import Answer
    from airflow_ckpt_provider.checkpoint.waiting_memory import Memory
    from airflow_ckpt_provider.storage.location import Location

_KEY = "ckpt_wait"
#: Seconds that the trigger gets beyond its own deadline, before Airflow ends it.
_GRACE = 60.0


class StreamSensor(MaskingOperator, BaseSensorOperator):
    """Base of the sensors that watch a checkpoint.

    :param checkpoint: URI of the checkpoint. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param deferrable: wait in the triggerer instead of on a worker.
    :param poll_interval: seconds between two polls in every mode; ``poke_interval`` means the same.
    """

    template_fields: Sequence[str] = ("checkpoint", "checkpoint_conn_id")
    ui_color = "#e1d5e7"

    def __init__(
        self,
        *,
        checkpoint: str | None = UNSET,
        checkpoint_conn_id: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: timedelta | float = 60.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("poke_interval", poll_interval)
        super().__init__(**kwargs)
        self.checkpoint: str | None = self.needed(checkpoint, "checkpoint")
        self.checkpoint_conn_id = checkpoint_conn_id
        self.deferrable = deferrable
        self._memory: Memory | None = None
        self._location: Location | None = None
        self._answer: Answer | None = None
        self._logs: DriverLogs | None = None

    @abstractmethod
    def _wait(self) -> Wait:
        """What is waited for; raises ``RefusedError`` for parameters that make no sense."""

    def _log_places(self) -> dict[str, str | None]:
        """The driver's logs that are read: ``progress_log``, ``error_log``, ``logs_conn_id``."""
        return {}

    def _conclude(self, answer: Answer) -> dict[str, Any] | None:
        """What the task returns once the condition is met; ``None`` to continue waiting."""
        return answer.progress

    def execute(self, context: Context) -> Any:
        """Wait; return how far the stream is."""
        self._memory = self._location = self._answer = self._logs = None
        with no_retry_when_refused():
            seconds(self.poke_interval, "poll_interval", least=0.001)
            self._wait()
        if self.deferrable:
            return self._wait_deferred(context)
        try:
            return super().execute(context)
        except AirflowSensorTimeout as e:
            raise AirflowSensorTimeout(self._too_late(self._answer.message if self._answer else str(e))) from e

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        answer = self._look(context)
        result = self._judge(answer, context)
        return PokeReturnValue(result is not None, result)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue where the trigger has stopped."""
        from airflow_ckpt_provider.checkpoint.waiting import Answer, State
        from airflow_ckpt_provider.checkpoint.waiting_memory import Memory

        status, message = event["status"], event["message"]
        if status == "timeout":
            raise AirflowSensorTimeout(self._too_late(message))
        hint = f"\nHINT: {event['hint']}" if event["hint"] else ""
        if status == "refused":
            raise AirflowFailException(f"{message}{hint}")
        if status == "error":
            if self.never_fail:
                raise AirflowSkipException(f"{message}{hint}")
            raise StorageError(message, hint=event["hint"])
        self._memory = Memory.from_json(event["memory"])
        result = self._judge(Answer(State(status), message, event["progress"], event["hint"]), context)
        if result is None:
            self._defer(event["end_time"])
        return result

    def _wait_deferred(self, context: Context) -> Any:
        try:
            result = self._judge(self._look(context), context)  # no deferral when it is over already
        except AirflowFailException as e:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(e)) from e
            raise
        except AirflowException:
            raise
        except Exception as e:
            if self.never_fail:
                raise AirflowSkipException(str(e)) from e
            if not self.silent_fail:
                raise
            self.log.error("%s", e)
            result = None
        if result is None:
            self._defer(time.time() + self.timeout)
        return result

    def _defer(self, end_time: float) -> None:
        from airflow_ckpt_provider.checkpoint.waiting_memory import Memory

        checkpoint, conn_id = required(self.checkpoint, "checkpoint"), text(self.checkpoint_conn_id)
        self.defer(
            trigger=CommitGapTrigger(
                checkpoint=checkpoint,
                checkpoint_conn_id=conn_id,
                wait=self._wait().to_json(),
                memory=(self._memory or Memory()).to_json(),
                poll_interval=self.poke_interval,
                end_time=end_time,
                silent_fail=self.silent_fail,
                **self._log_places(),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=max(0.0, end_time - time.time()) + _GRACE),
        )

    def _look(self, context: Context) -> Answer:
        from airflow_ckpt_provider.checkpoint.waiting import look

        with no_retry_when_refused():
            if self._memory is None:
                self._memory = self._recall(context)
            location = self._open()
            answer, later = look(location, self._wait(), self._memory, logs=self._logs)
        if self.reschedule or self._memory.looked is None:
            self._keep(later, context)
        self._memory, self._answer = later, answer
        return answer

    def _open(self) -> Location:
        from airflow_ckpt_provider.places import open_logs, open_place

        if self._location is None:
            self._location = open_place(required(self.checkpoint, "checkpoint"), text(self.checkpoint_conn_id))
            places = self._log_places()
            self._logs = open_logs(places.get("progress_log"), places.get("error_log"), places.get("logs_conn_id"))
        return self._location

    def _judge(self, answer: Answer, context: Context) -> dict[str, Any] | None:
        """Fail, return what the task returns, or return ``None`` to continue: the same for every mode."""
        from airflow_ckpt_provider.checkpoint.waiting import State

        self.log.info("%s", answer.message)
        if answer.state is State.WAITING:
            return None
        if answer.state is State.DONE:
            with no_retry_when_refused():
                result = self._conclude(answer)
            if result is not None:
                self._forget(context)
            return result
        self._forget(context)
        self._push(answer.progress, context)
        raise AirflowFailException(f"{answer.message}\nHINT: {answer.hint}")

    def _push(self, result: dict[str, Any], context: Context) -> None:
        if "ti" in context:
            # A task that fails has no result of its own accord, and this one is for whoever is informed of the failure.
            context["ti"].xcom_push(key="return_value", value=result)

    def _too_late(self, message: str) -> str:
        return f"not within {self.timeout:g} s: {message}"

    def _recall(self, context: Context) -> Memory:
        from airflow_ckpt_provider.checkpoint.waiting_memory import Memory

        kept = self._kept(context)
        if "memory" in kept.data:
            return Memory.from_json(kept.data["memory"])
        if self.reschedule and not kept.lasts and "ti" in context:
            # Before Airflow 3.3 nothing of an earlier look is left; the times of the files show what was there then.
            return Memory(started=context["ti"].get_first_reschedule_date(context))
        return Memory()

    def _keep(self, memory: Memory, context: Context) -> None:
        kept = self._kept(context)
        kept.data["memory"] = memory.to_json()
        kept.keep()

    def _forget(self, context: Context) -> None:
        self._kept(context).forget()

    def _kept(self, context: Context) -> TaskMemory:
        return TaskMemory(context, _KEY, retries=int(self.retries or 0))
