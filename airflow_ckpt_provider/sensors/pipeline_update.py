"""Wait for an update of a Lakeflow pipeline that somebody else has started."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout, conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_ckpt_provider.advisor.failures import why_it_failed
from airflow_ckpt_provider.errors import (
    NoSuchPipelineError,
    RefusedError,
    WorkspaceError,
    WorkspaceForbiddenError,
)
from airflow_ckpt_provider.lakeflow.following import (
    FOLLOW_UP_WITHIN,
    Answer,
    Memory,
    Progress,
    Wait,
    look,
    looking,
)
from airflow_ckpt_provider.lakeflow.updates import COMPLETED, RUNNING, UpdateState
from airflow_ckpt_provider.links.pipeline_update import PipelineUpdateLink
from airflow_ckpt_provider.operators.databricks_workspace import open_workspace
from airflow_ckpt_provider.operators.fields import one_of, required, seconds, text
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.rendering import TextOperator
from airflow_ckpt_provider.operators.task_memory import TaskMemory
from airflow_ckpt_provider.triggers.pipeline_update import PipelineUpdateTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook

_KEY = "ckpt_update"
_GRACE = 60.0


class PipelineUpdateSensor(TextOperator, BaseSensorOperator):
    """Wait until an update is complete, or runs; follow the updates that the workspace starts in its place.

    Fails, without retries, when the update has failed permanently, with the text of the event log and what to do about it, or was
    canceled. The result: ``pipeline_id``, ``update_id``, ``update_ids``, ``state``, ``states`` (with times), ``url``.

    .. code-block:: python

        PipelineUpdateSensor(
            task_id="updated",
            pipeline_name="customers",
            wait_for="COMPLETED",
            deferrable=True,
        )

    .. seealso:: :doc:`/howto/lakeflow-reset`

    :param pipeline_id: the pipeline; or ``pipeline_name``. (templated)
    :param pipeline_name: its name, which only one may have. (templated)
    :param update_id: the update; ``None``: the newest when the task begins, also for its retries from Airflow 3.3 on. (templated)
    :param wait_for: ``"COMPLETED"``, or ``"RUNNING"`` for continuous pipelines, which never complete. (templated)
    :param databricks_conn_id: Airflow connection of type ``databricks``. (templated)
    :param poll_interval: seconds between two polls; ``poke_interval`` means the same.
    :param deferrable: wait in the triggerer, without a worker. Below Airflow 3.3, which keeps nothing between two polls of a
        task, the only other way than ``mode="poke"``.
    """

    template_fields: Sequence[str] = ("pipeline_id", "pipeline_name", "update_id", "wait_for", "databricks_conn_id")
    operator_extra_links = (PipelineUpdateLink(),)
    ui_color = "#ffe6cc"

    follow_up_within = FOLLOW_UP_WITHIN

    def __init__(
        self,
        *,
        pipeline_id: str | None = None,
        pipeline_name: str | None = None,
        update_id: str | None = None,
        wait_for: str = COMPLETED,
        databricks_conn_id: str = "databricks_default",
        poll_interval: timedelta | float = 30.0,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("poke_interval", poll_interval)
        super().__init__(**kwargs)
        self.pipeline_id = pipeline_id
        self.pipeline_name = pipeline_name
        self.update_id = update_id
        self.wait_for = wait_for
        self.databricks_conn_id = databricks_conn_id
        self.deferrable = deferrable
        self._seen = Memory()
        self._found: tuple[str, str] | None = None
        self._noted = False
        self._said = "no look was finished"

    def execute(self, context: Context) -> Any:
        """Wait; return where the update is."""
        self._recall(context)
        if not self.deferrable:
            try:
                return super().execute(context)
            except AirflowSensorTimeout as e:
                raise AirflowSensorTimeout(f"not within {self.timeout:g} s: {self._said}") from e
        found = self.poke(context)  # no deferral when it is over already
        if found.is_done:
            return found.xcom_value
        with no_retry_when_refused():
            pipeline_id, update_id = self._update()
        end_time = time.time() + self.timeout
        self.defer(
            trigger=PipelineUpdateTrigger(
                pipeline_id=pipeline_id,
                databricks_conn_id=required(self.databricks_conn_id, "databricks_conn_id"),
                wait=self._wait(update_id).to_json(),
                memory=self._seen.to_json(),
                end_time=end_time,
                poll_interval=self.poke_interval,
            ),
            method_name="execute_complete",
            kwargs={"found": [pipeline_id, update_id]},
            timeout=timedelta(seconds=self.timeout + _GRACE),
        )

    def execute_complete(self, context: Context, event: dict[str, Any], found: Sequence[str]) -> Any:
        """Take what the trigger found."""
        self._found = (found[0], found[1])
        self._seen = Memory.from_json(event["memory"])
        status, message = event["status"], event["message"]
        if status == "timeout":
            raise AirflowSensorTimeout(f"not within {self.timeout:g} s: {message}")
        hint = f"\nHINT: {event['hint']}" if event["hint"] else ""
        if status == "refused":
            raise AirflowFailException(f"{message}{hint}")
        if status == "error":
            raise WorkspaceError(message, hint=event["hint"])
        with no_retry_when_refused():
            return self._conclude(Answer(Progress(status), message, self._seen, event["state"]), context)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        with no_retry_when_refused():
            seconds(self.poke_interval, "poll_interval")
            try:
                pipeline_id, update_id = self._update()
                steps = looking(self._wait(update_id), self._seen)
                answer = look(lambda path: self._workspace.ask(pipeline_id, path), steps)
            except WorkspaceForbiddenError:
                raise
            except WorkspaceError as e:
                self.log.warning("%s", e)
                self._said = e.message
                return PokeReturnValue(is_done=False)
            self._seen, self._said = answer.memory, answer.message
            self._keep(context)
            self.log.info("%s", answer.message)
            result = self._conclude(answer, context)
        return PokeReturnValue(result is not None, result)

    def _conclude(self, answer: Answer, context: Context) -> dict[str, Any] | None:
        """Fail, return what the task returns, or return ``None`` to continue: the same for every mode."""
        if answer.progress is Progress.WAITING:
            return None
        self._kept(context).forget()
        result = self._result()
        if "ti" in context:
            context["ti"].xcom_push(key=PipelineUpdateLink.XCOM_KEY, value=result["url"])
        if answer.progress is Progress.DONE:
            return result
        if "ti" in context:
            context["ti"].xcom_push(key="return_value", value=result)
        pipeline_id, _ = self._update()
        why = "somebody stopped it"
        if answer.progress is Progress.FAILED:
            why = why_it_failed(self._workspace, pipeline_id, self._seen.update_ids)
        raise AirflowFailException(f"pipeline {pipeline_id}: {answer.message}\n{why}")

    def _recall(self, context: Context) -> None:
        """Continue where the poll before this one has stopped: each is another process while the task is rescheduled."""
        kept, self._noted = self._kept(context), False
        self._seen = Memory.from_json(kept.data["states"]) if "states" in kept.data else Memory()
        found = kept.data.get("found")
        self._found = (found[0], found[1]) if found else None
        if self.reschedule and not self.deferrable and not kept.lasts:
            with no_retry_when_refused():
                raise RefusedError(
                    "mode is 'reschedule', and this Airflow keeps nothing between two polls",
                    hint="give deferrable=True",
                )

    def _keep(self, context: Context) -> None:
        """Note which update it is, for the next attempt; of a task that is rescheduled also what was seen of it."""
        again = not self.deferrable and self.reschedule
        if self._noted and not again:
            return
        kept = self._kept(context)
        kept.data.update(found=list(self._update()), **({"states": self._seen.to_json()} if again else {}))
        kept.keep()
        self._noted = True

    def _kept(self, context: Context) -> TaskMemory:
        return TaskMemory(context, _KEY, retries=int(self.retries or 0))

    def _wait(self, update_id: str) -> Wait:
        wanted = one_of(text(self.wait_for), "wait_for", (COMPLETED, RUNNING))
        return Wait(update_id, wanted, self.follow_up_within)

    @property
    def _workspace(self) -> DatabricksPipelinesHook:
        conn_id = required(self.databricks_conn_id, "databricks_conn_id")
        return open_workspace(conn_id, caller=type(self).__name__)

    def _update(self) -> tuple[str, str]:
        """Pipeline and update, resolved once."""
        if self._found is None:
            given, name = text(self.pipeline_id), text(self.pipeline_name)
            pipeline_id = self._workspace.pipeline_id(pipeline_id=given, pipeline_name=name)
            update_id = text(self.update_id)
            if update_id is None:
                newest = next(self._workspace.iter_updates(pipeline_id), None)
                if newest is None:
                    raise NoSuchPipelineError(
                        f"pipeline {pipeline_id} has had no update yet", hint="start one before you wait for it"
                    )
                update_id = UpdateState.of(newest).update_id
            self._found = (pipeline_id, update_id)
        return self._found

    def _result(self) -> dict[str, Any]:
        pipeline_id, update_id = self._update()
        states = self._seen.states
        return {
            "pipeline_id": pipeline_id,
            "update_id": update_id,
            "update_ids": list(self._seen.update_ids),
            "state": states[-1].state if states else None,
            "states": self._seen.to_json(),
            "url": self._workspace.page_url(pipeline_id, update_id),
        }
