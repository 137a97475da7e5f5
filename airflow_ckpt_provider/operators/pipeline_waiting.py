"""What all operators on pipelines have in common: which pipeline, one start, one judgement, a stop of one's own only."""

from __future__ import annotations

import hashlib
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, conf

from airflow_ckpt_provider.advisor.failures import why_it_failed
from airflow_ckpt_provider.errors import (
    CkptError,
    RefusedError,
    UnknownStartError,
    WorkspaceError,
)
from airflow_ckpt_provider.lakeflow.carrying_out import Run
from airflow_ckpt_provider.lakeflow.examine import FAIL, STOP
from airflow_ckpt_provider.lakeflow.following import (
    FOLLOW_UP_WITHIN,
    Answer,
    Memory,
    Progress,
    Wait,
)
from airflow_ckpt_provider.lakeflow.one_update import make_room, seen_through, start_in_room, stop_ours
from airflow_ckpt_provider.lakeflow.plan import PipelinePlan
from airflow_ckpt_provider.lakeflow.request import StartRequest
from airflow_ckpt_provider.lakeflow.starting import RetryPolicy, Started, start_once
from airflow_ckpt_provider.lakeflow.updates import RUNNING
from airflow_ckpt_provider.links.pipeline_update import PipelineUpdateLink
from airflow_ckpt_provider.operators.databricks_workspace import open_workspace
from airflow_ckpt_provider.operators.ended import was_ended
from airflow_ckpt_provider.operators.fields import one_of, required, seconds, text
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.rendering import TextOperator
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.operators.task_memory import TaskMemory
from airflow_ckpt_provider.triggers.pipeline_update import PipelineUpdateTrigger
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook

#: Where Airflow 3.3 and later keep what a task has begun.
_KEY = "pipeline_update"
#: Seconds that the trigger gets beyond its own deadline, before Airflow ends it.
_GRACE = 60.0
#: A run that a job starts may take its time until its update shows: looks of ``retry_policy.settle``, not more requests.
_JOB_SENDS = 30
_VERDICTS = tuple(verdict.value for verdict in Verdict)

DEFERRABLE = conf.getboolean("operators", "default_deferrable", fallback=False)
POLL_INTERVAL, TIMEOUT = 30.0, 86400.0


def update_ids_of(step: Mapping[str, Any]) -> list[str]:
    """Ids of the updates of a step, as a task keeps it: the one that it has started, and those in its place."""
    noted = (step.get("note") or {}).get("update_id")
    return list(
        dict.fromkeys([*([noted] if noted else []), *(state["update_id"] for state in step.get("states") or ())])
    )


class PipelineOperator(TextOperator):
    """Base of the operators on pipelines of Databricks.

    ``execute`` runs :meth:`_run` from its beginning, in every attempt and after every deferral: each step of it finds what was
    done already and continues. So a deferral, a retry and a crash are one case.

    :param pipeline_id: the pipeline; or ``pipeline_name``. (templated)
    :param pipeline_name: its name, which only one may have. (templated)
    :param databricks_conn_id: Airflow connection of type ``databricks``. (templated)
    :param poll_interval: seconds between two polls.
    :param timeout: seconds or a timedelta for the waiting.
    :param deferrable: wait in the triggerer, without a worker.
    """

    template_fields: Sequence[str] = ("pipeline_id", "pipeline_name", "databricks_conn_id")
    operator_extra_links = (PipelineUpdateLink(),)
    ui_color = "#ffe6cc"

    #: How long a lost answer is looked after; of this class, so that tests need not wait.
    start_retry_policy = RetryPolicy()
    follow_up_within = FOLLOW_UP_WITHIN
    #: Seconds in which Airflow says whether somebody has ended the task; it kills the process a few seconds after the signal.
    ended_within = 2.0

    def __init__(
        self,
        *,
        pipeline_id: str | None = None,
        pipeline_name: str | None = None,
        databricks_conn_id: str = "databricks_default",
        poll_interval: timedelta | float = POLL_INTERVAL,
        timeout: timedelta | float = TIMEOUT,
        deferrable: bool = DEFERRABLE,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.pipeline_id = pipeline_id
        self.pipeline_name = pipeline_name
        self.databricks_conn_id = databricks_conn_id
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.deferrable = deferrable
        self._workspace: DatabricksPipelinesHook | None = None
        self._memory: TaskMemory | None = None
        self._end_time = 0.0
        #: The start that is under way in this process, for ``on_kill``.
        self._under_way: tuple[str, StartRequest] | None = None
        self._ti: Any = None
        #: Whether somebody has ended this task: it starts nothing any more.
        self._is_ended = False

    @abstractmethod
    def _run(self, context: Context) -> dict[str, Any]:
        """Do all that is left to do; return the result."""

    def _ended(self, result: dict[str, Any]) -> dict[str, Any]:
        """Note that all is done, and return the result."""
        return result

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan, or do it and wait."""
        with no_retry_when_refused():
            self._begin(context, None, time.time() + seconds(self.timeout, "timeout").total_seconds())
            return self._ended(self._run(context))

    def execute_complete(self, context: Context, event: dict[str, Any], carried: dict[str, Any]) -> dict[str, Any]:
        """Continue where the trigger has stopped."""
        with no_retry_when_refused():
            self._begin(context, carried, carried["end_time"])
            if event["status"] == "timeout":
                self._too_late(event["message"])
            if event["status"] == "refused":
                raise RefusedError(event["message"], hint=event["hint"])
            if event["status"] == "error":
                raise WorkspaceError(event["message"], hint=event["hint"])
            if (step := carried.get("waiting_for")) and event.get("memory"):
                self._kept.step(step)["states"] = event["memory"]
                self._kept.keep()
            return self._ended(self._run(context))

    def on_kill(self) -> None:
        """Stop this task's own update if somebody has ended the task, by a mark or a clear; nobody else's update.

        A worker that is evicted, an attempt that was replaced and a time-out leave the update as it is: the next attempt
        follows it.
        """
        if self._memory is None or self._ti is None:
            return
        if was_ended(self._ti, self._memory.check_current, within=self.ended_within):
            self._is_ended = True
            self._end()
        else:
            self.log.warning(
                "This process was ended, and nobody is known to have ended the task: an update that it has started continues, "
                "and the next attempt follows it. To stop it use PipelineStopOperator, or the pipeline's page"
            )

    def _end(self) -> None:
        """Stop the update, and clean up around it once it has ended."""
        try:
            self._stop_own_update()
        except CkptError as e:
            self.log.warning("The task was ended, and its update may still run: %s", e)
        else:
            self._stopped()

    def _stopped(self) -> None:
        """Clean up after an end of the task: no update of it runs, and it starts none."""

    def _stop_own_update(self) -> None:
        """Stop this task's own update, if it is the one that runs, and see that it has ended.

        :raises WorkspaceError: it may still run, or appear.
        """
        steps = self._kept.data.get("steps", {})
        step, request = self._under_way or (next(reversed(steps), ""), None)
        note = steps.get(step, {}).get("note")
        if not note:
            return
        stop_ours(
            self.workspace,
            self._pipeline_id(),
            request,
            note,
            Memory.from_json(steps[step].get("states")),
            follow_up_within=self.follow_up_within,
            retry_policy=self.start_retry_policy,
        )

    # ---- for the subclasses -----------------------------------------------------------------------------------------

    @property
    def _kept(self) -> TaskMemory:
        if self._memory is None:
            raise RuntimeError("no task is run")
        return self._memory

    @property
    def workspace(self) -> DatabricksPipelinesHook:
        """The workspace behind the connection."""
        if self._workspace is None:
            conn_id = required(self.databricks_conn_id, "databricks_conn_id")
            self._workspace = open_workspace(conn_id, caller=type(self).__name__)
        return self._workspace

    def _begin(self, context: Context, carried: dict[str, Any] | None, end_time: float) -> None:
        seconds(self.poll_interval, "poll_interval", least=0.0)
        self._workspace, self._under_way, self._ti = None, None, context.get("ti")
        memory = (carried or {}).get("memory")
        self._memory = TaskMemory(context, _KEY, retries=int(self.retries or 0), carried=memory)
        self._end_time = end_time

    def _pipeline_id(self) -> str:
        """The pipeline, resolved once for all attempts."""
        kept = self._kept.data
        if "pipeline_id" not in kept:
            given, name = text(self.pipeline_id), text(self.pipeline_name)
            kept["pipeline_id"] = self.workspace.pipeline_id(pipeline_id=given, pipeline_name=name)
        return str(kept["pipeline_id"])

    def _has_begun(self) -> bool:
        """Whether a start was noted: then what is planned now was approved then."""
        return any(step.get("note") for step in self._kept.data.get("steps", {}).values())

    def _planned(self, plan: PipelinePlan, *, apply: bool, accept: Any, fingerprint: Any) -> None:
        """Keep and show a plan; where it is to be carried out, see that it may be."""
        if plan.to_json() != self._kept.data.get("plan"):
            self.log.info("\n%s", plan.to_markdown())
        self._kept.data.update(plan=plan.to_json(), markdown=plan.to_markdown())
        if apply:
            given = text(accept)
            plan.check(
                accept=Verdict(one_of(given, "accept", _VERDICTS)) if given else None, fingerprint=text(fingerprint)
            )
            self._kept.keep()

    def _make_room(self, step: str, on_active_update: str) -> None:
        """See that no update is active, or do about it what was asked for; nothing once the step was begun."""
        if self._kept.notes(step).load():
            return
        make_room(self.workspace, self._pipeline_id(), on_active_update, self._free)

    def _free(self, on_active_update: str) -> None:
        """Wait until no update is active, and stop the one that is if asked to."""
        if on_active_update == STOP:
            self._kept.check_current()  # the active one may be that of the attempt that took over
            self.workspace.stop_pipeline(self._pipeline_id())
        self._wait(Wait(), None)

    def _start(self, context: Context, step: str, request: StartRequest, **how: Any) -> str:
        """Start the update of a step, or find it; return its id.

        :param how: ``on_active_update`` and ``check``, as for ``start_in_room``;
            ``send``, ``prepared`` and ``retry_policy``, as for ``start_once``.
        """
        on_active_update, check = how.pop("on_active_update", FAIL), how.pop("check", lambda: None)
        retry_policy = how.pop("retry_policy", self.start_retry_policy)
        pipeline_id = self._pipeline_id()
        self._under_way = (step, request)
        send = how.pop("send", None) or (lambda: self.workspace.start_update(pipeline_id, request.body))

        def send_unless_ended() -> str | None:
            if self._is_ended:
                raise RefusedError(
                    f"pipeline {pipeline_id}: somebody ended this task before it started an update",
                    hint="clear this task to run it again",
                )
            update_id: str | None = send()
            return update_id

        how["send"] = send_unless_ended

        def start() -> Started:
            notes = self._kept.notes(step)
            return start_once(self.workspace, pipeline_id, request, notes, retry_policy=retry_policy, **how)

        started = start_in_room(start, on_active_update, self._free, check)
        part = self._kept.step(step)
        if part.get("found") is None:
            part["found"] = started.found
            self.log.info(
                "Update %s of pipeline %s is this task's (by %s)", started.update_id, pipeline_id, started.found
            )
        part["url"] = self.workspace.page_url(pipeline_id, started.update_id)
        self._kept.keep()
        if self._is_ended:  # while the start was on its way
            self._end()
        if "ti" in context:
            context["ti"].xcom_push(key=PipelineUpdateLink.XCOM_KEY, value=part["url"])
        return started.update_id

    def _follow(
        self,
        context: Context,
        step: str,
        update_id: str,
        wait_for: str | None,
        *,
        flows: tuple[str, ...] = (),
        flows_run_for: float = 0.0,
    ) -> None:
        """Follow the update of a step to where it is wanted.

        :param flows: flows that have to run before that is a success.
        :param flows_run_for: seconds that they have to run without a failure, where the update does not end.
        """
        part = self._kept.step(step)
        if wait_for is None or part.get("done"):
            return
        states = Memory.from_json(self._kept.step(step).get("states")).states
        reached = states and (states[-1].is_successful or (wait_for == RUNNING and states[-1].state == RUNNING))
        if not flows and reached:
            return
        answer = self._wait(Wait(update_id, wait_for, self.follow_up_within, flows, flows_run_for), step)
        if answer.progress is not Progress.DONE:
            self._failed(context, answer)
        part["done"] = True
        self._kept.keep()

    def _as_run(self, context: Context, **how: Any) -> Run:
        """Return this task as the core carries plans out with it.

        :param how: as for :meth:`_start`.
        """
        return _TaskRun(self, context, how)

    def _failed(self, context: Context, answer: Answer) -> NoReturn:
        pipeline_id = self._pipeline_id()
        if answer.progress is Progress.CANCELED:
            who = "this task, which somebody ended, stopped it" if self._is_ended else "somebody stopped it"
            hint = "see in the event log what it has done, and clear this task: it plans again"
            message = f"pipeline {pipeline_id}: {answer.message}: {who}\nHINT: {hint}"
        else:
            why = why_it_failed(self.workspace, pipeline_id, answer.memory.update_ids)
            message = f"pipeline {pipeline_id}: {answer.message}\n{why}"
        result, words = self._left()
        if "ti" in context:
            # A task that fails has no result of its own accord, and this one is for whoever is informed of the failure.
            context["ti"].xcom_push(key="return_value", value=result)
        message += words
        # Not tried again: the workspace has tried again itself, and a second reset would read the same input again.
        raise AirflowFailException(message)

    def _left(self) -> tuple[dict[str, Any], str]:
        """The result of a task whose update has failed, and what whoever reads of that has to know."""
        return self._result(), ""

    def _wait(self, wait: Wait, step: str | None) -> Answer:
        """Wait on this worker, or hand over to the triggerer."""
        part = self._kept.step(step) if step else {}
        said: list[str] = []

        def seen(answer: Answer) -> None:
            if [answer.message] != said[-1:]:
                said.append(answer.message)
                self.log.info("%s", answer.message)
            if answer.memory.to_json() != (part.get("states") or []):
                part["states"] = answer.memory.to_json()
                if step:
                    self._kept.keep()

        def unseen(error: WorkspaceError) -> None:
            said.append(error.message)
            self.log.warning("%s", error)

        def pause(memory: Memory, message: str) -> None:
            left = self._end_time - time.time()
            if left <= 0:
                self._too_late(message)
            if self.deferrable:
                self._defer(wait, step, memory)
            time.sleep(min(seconds(self.poll_interval, "poll_interval").total_seconds(), left))

        memory = Memory.from_json(part.get("states"))
        return seen_through(self.workspace, self._pipeline_id(), wait, memory, seen=seen, unseen=unseen, pause=pause)

    def _defer(self, wait: Wait, step: str | None, memory: Memory) -> NoReturn:
        trigger = PipelineUpdateTrigger(
            pipeline_id=self._pipeline_id(),
            databricks_conn_id=required(self.databricks_conn_id, "databricks_conn_id"),
            wait=wait.to_json(),
            memory=memory.to_json(),
            end_time=self._end_time,
            poll_interval=seconds(self.poll_interval, "poll_interval").total_seconds(),
            stop_when_killed=step is not None,
        )
        self._hand_over(trigger, step)

    def _hand_over(self, trigger: Any, step: str | None) -> NoReturn:
        carried = {"memory": self._kept.data, "end_time": self._end_time, "waiting_for": step}
        self.defer(
            trigger=trigger,
            method_name="execute_complete",
            kwargs={"carried": carried},
            timeout=timedelta(seconds=max(0.0, self._end_time - time.time()) + _GRACE),
        )

    def _too_late(self, message: str) -> NoReturn:
        raise AirflowException(
            f"not within {seconds(self.timeout, 'timeout').total_seconds():g} s: {message}\n"
            "HINT: it continues in the workspace; the next attempt of this task waits on, or give a longer timeout"
        )

    def _result(self, *steps: str) -> dict[str, Any]:
        """What the XCom says of the updates of some steps: of all, by default."""
        parts = self._kept.data.get("steps", {})
        chosen = [parts.get(name, {}) for name in steps or parts]
        states = [state for part in chosen for state in part.get("states") or ()]
        last = chosen[-1] if chosen else {}
        update_id = (last.get("note") or {}).get("update_id")
        return {
            "mode": "apply" if parts else "plan",
            "plan": self._kept.data.get("plan"),
            "markdown": self._kept.data.get("markdown"),
            "pipeline_id": self._kept.data.get("pipeline_id"),
            "pipeline_name": (self._kept.data.get("plan") or {}).get("pipeline_name"),
            "update_id": update_id,
            "update_ids": list(dict.fromkeys(update_id for part in chosen for update_id in update_ids_of(part))),
            "state": states[-1]["state"] if states else None,
            "states": states,
            "found": last.get("found"),
            "url": last.get("url"),
        }

    def _through_job(self, context: Context, job_id: str, request: StartRequest) -> dict[str, Any]:
        """Return how :meth:`_start` sends a start through a job; the update that comes of it is searched for."""
        body = self._job_call(context, job_id, request)

        def send() -> None:
            run_id = self.workspace.run_job_once(body)
            try:
                problem = self.workspace.job_run_problem(run_id)
            except WorkspaceError as e:  # the job was started all the same
                raise UnknownStartError(e.message, hint=e.hint) from e
            if problem:
                raise RefusedError(
                    f"job {job_id}: {problem}", hint="see the run's page; clear this task to run the job again"
                )

        return {"send": send, "retry_policy": replace(self.start_retry_policy, sends=_JOB_SENDS)}

    def _job_call(self, context: Context, job_id: str, request: StartRequest) -> dict[str, Any]:
        """The body of ``jobs/run-now``; the same for all attempts of this task, and for no other."""
        who = made_by(context) or str(self._kept.data.setdefault("without_a_run", time.time_ns()))
        token = hashlib.sha256(f"{who}/{self._kept.life}/{request.fingerprint}".encode()).hexdigest()[:40]
        return request.for_job(job_id, token)

    def _planned_through_job(
        self, context: Context, plan: PipelinePlan, job_id: str | None, request: StartRequest
    ) -> PipelinePlan:
        """The plan with the request that is really sent."""
        if not job_id:
            return plan
        settings = [call for call in plan.calls if call[0] == "PUT"]
        run_now = ("POST", "2.2/jobs/run-now", self._job_call(context, job_id, request))
        return replace(plan, calls=(*settings, run_now))


class _TaskRun:
    """One of :class:`~airflow_ckpt_provider.lakeflow.carrying_out.Run`: a task, which may hand its waits over."""

    failure: type[Exception] = AirflowFailException

    def __init__(self, task: PipelineOperator, context: Context, how: dict[str, Any]) -> None:
        self._task, self._context, self._how = task, context, how

    def make_room(self, step: str, on_active_update: str) -> None:
        self._task._make_room(step, on_active_update)

    def start(
        self, step: str, request: StartRequest, *, on_active_update: str, check: Callable[[], None] = lambda: None
    ) -> str:
        how = {"on_active_update": on_active_update, "check": check, **self._how}
        return self._task._start(self._context, step, request, **how)

    def follow(self, step: str, update_id: str, wait_for: str | None, **flows: Any) -> None:
        self._task._follow(self._context, step, update_id, wait_for, **flows)

    def note(self, step: str) -> dict[str, Any] | None:
        return self._task._kept.notes(step).load()
