"""Stop, start or deploy a stream in the way that its declaration says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException, conf

from airflow_ckpt_provider.errors import RefusedError, WorkspaceError
from airflow_ckpt_provider.operators.declared import DeclaredOperator
from airflow_ckpt_provider.operators.declared_classes import by_name, operator_of
from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, seconds, text
from airflow_ckpt_provider.operators.job_actions import Wait, databricks_job, spark_application
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.run_identity import life_of, made_by
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.triggers.stream_action import StreamActionTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.streams.actions import Action

#: XCom by which an action that was begun is known.
BEGUN = "begun"
#: XCom of when an action had ended, in ISO 8601: since then a stream is stopped. A DAG that Airflow waits for leaves none.
ENDED = "ended"
#: XCom beside it: how often the run had been cleared by then.
CLEARS = "clears"
#: XCom of a start: the stop of this run that it came after, by its :data:`BEGUN`; empty where there was none.
AFTER_STOP = "after_stop"
ACTIONS = ("stop", "start", "deploy", "roll_back")
#: Seconds that the trigger gets beyond its own deadline, before Airflow ends it.
_GRACE = 60.0


class StreamActionFailedError(AirflowException):
    """A stream was not stopped, started or deployed; a retry does the same again.

    .. code-block:: python

        raise StreamActionFailedError("orders: ./stop.sh ended with exit code 1")
    """


class StreamActionOperator(DeclaredOperator):
    """Stop, start or deploy a stream as ``stop``, ``start``, ``deploy`` or ``roll_back`` of its declaration says.

    A command of the shell runs where the task runs, in the directory of ``streams.yaml``, with ``CKPT_STREAM``, ``CKPT_ACTION``,
    ``VERSION`` and ``CKPT_OPTIONS`` in its environment. It is ended when the task is.
    A DAG is triggered and waited for. An operator is made, rendered as a task of the same DAG, and executed. A job of
    Databricks is run or cancelled, an application of the Spark operator for Kubernetes created or deleted. All waits but that
    for a command are the triggerer's with ``deferrable``: a command is a process of the worker.

    .. code-block:: python

        StreamActionOperator(
            task_id="stop",
            stream="orders",  # as declared in streams.yaml
            action="stop",
        )

    .. seealso:: :doc:`/howto/declare-streams`, :doc:`/howto/declared-dags`

    :param action: ``"stop"``, ``"start"``, ``"deploy"`` or ``"roll_back"``. (templated)
    :param version: what is deployed, in words. (templated)
    :param options: what the readers of a new checkpoint need at their first start, as JSON: the action's ``CKPT_OPTIONS``, or
        ``options`` of the run of its DAG. (templated)
    :param wanted: ``False``: the task is skipped. (templated)
    :param if_absent: where the declaration has no such action: ``"fail"``, or ``"skip"`` the task. (templated)
    :param deferrable: wait in the triggerer, without a worker; a declared operator that has such an argument gets it too.
    :param poll_interval: seconds between two polls.
    :param timeout: seconds or a timedelta for a job or an application to get there; a DAG or an operator has its own.
    """

    template_fields: Sequence[str] = ("action", "version", "options", "wanted", "if_absent")
    ui_color = "#dae8fc"

    def __init__(
        self,
        *,
        action: str,
        version: str | None = None,
        options: str | None = None,
        wanted: bool | str = True,
        if_absent: str = "fail",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: timedelta | float = 5.0,
        timeout: timedelta | float = 1800.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.action = action
        self.version = version
        self.options = options
        self.wanted = wanted
        self.if_absent = if_absent
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.timeout = timeout
        #: What is under way: a command or an operator.
        self._under_way: Any = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Carry the action out; return which way."""
        with no_retry_when_refused():
            what = one_of(self.action, "action", ACTIONS)
            stream = self.declared_stream()
            if stream is None:
                raise RefusedError("stream is empty", hint="give the name of a declared stream")
            action: Action | None = getattr(stream, what)
            reaction = one_of(self.if_absent, "if_absent", ("fail", "skip"))
            if not flag(self.wanted, "wanted"):
                raise AirflowSkipException(f"{what} of {stream} is not wanted in this run")
            if action is None and reaction == "skip":
                raise AirflowSkipException(f"{stream} declares no `{what}`: do it by hand")
            if action is None:
                raise RefusedError(f"{stream} declares no `{what}`", hint=f"declare it: {what}: ./command, a DAG, …")
        self.log.info("%s %s: %s", what, stream, action.way)
        if ti := context.get("ti"):
            # Before it is carried out: a start that failed may have started the stream.
            ti.xcom_push(BEGUN, uuid4().hex)
            if what == "start":
                group, dot, _ = self.task_id.rpartition(".")
                ti.xcom_push(AFTER_STOP, ti.xcom_pull(task_ids=f"{group}{dot}stop", key=BEGUN) or "")
        with no_retry_when_refused():
            seconds(self.poll_interval, "poll_interval", least=0.0)
            self._carry_out(stream, what, action, context)
        return _ended(stream, what, action, context)

    def execute_complete(
        self, context: Context, event: Any = None, carried: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Continue where a trigger has stopped: one of this operator, of the triggered DAG, or of the declared operator."""
        with no_retry_when_refused():
            what = one_of(self.action, "action", ACTIONS)
            stream = self.declared_stream()
            action: Action | None = getattr(stream, what) if stream else None
            if stream is None or action is None:
                raise self._not_declared_now(f"{stream} declared `{what}`")
            begun = dict(carried or {})
            if "operator" in begun:
                task = self._made(by_name(begun["operator"]), begun["arguments"], context)
                given = {**begun["kwargs"], "event": event}
                self._deferring(lambda: task.resume_execution(begun["method"], given, context), begun)
            elif "wait" in begun:
                self._is_over(event)
                self._wait(Wait.from_json(begun["wait"]).proceed(), begun["end_time"])
            else:  # Airflow's runner of tasks has triggered the DAG, and deferred this task
                self._triggering(stream, what, action, context).execute_complete(context, event)
        return _ended(stream, what, action, context)

    @staticmethod
    def _not_declared_now(before: str) -> StreamActionFailedError:
        return StreamActionFailedError(
            f"{before} when this task began it, and does so no longer\n"
            "HINT: see whether it was carried out; then clear this task, or mark it as a success"
        )

    def _carry_out(self, stream: Stream, what: str, action: Action, context: Context) -> None:
        end_time = time.time() + seconds(self.timeout, "timeout", least=0.0).total_seconds()
        if action.command:
            self._command(stream, what, action.command)
        elif action.dag:
            # Airflow's runner of tasks triggers it and waits, and comes back here only after a deferral. Nobody says when it
            # ended: at the time of the trigger the stream still ran.
            _note_clears(context)
            self._triggering(stream, what, action, context).execute(context)
        elif action.operator:
            named, arguments = action.operator.operator, dict(action.operator.arguments)
            task = self._made(by_name(named), arguments, context)
            self._deferring(lambda: task.execute(context), {"operator": named, "arguments": arguments})
        elif action.databricks_job:
            self._wait(databricks_job(action.databricks_job, what, stream), end_time)
        elif action.spark_application:
            task = f"{made_by(context)}/{life_of(context)}" if made_by(context) else ""
            begun = spark_application(action.spark_application, what, stream, self._directory(), task=task)
            self._wait(begun, end_time)

    def _wait(self, wait: Wait | None, end_time: float) -> None:
        """Wait on this worker, or hand over to the triggerer."""
        pause = seconds(self.poll_interval, "poll_interval", least=0.0).total_seconds()
        while wait:
            is_over, said = wait.poll(self.log)
            if is_over:
                wait = wait.proceed()
                if wait is None:
                    return
                said = wait.what
            if (left := end_time - time.time()) <= 0:
                self._is_over({"status": "timeout", "message": said, "hint": None})
            if self.deferrable:
                self.defer(
                    trigger=StreamActionTrigger(wait=wait.to_json(), end_time=end_time, poll_interval=pause),
                    method_name="execute_complete",
                    kwargs={"carried": {"wait": wait.to_json(), "end_time": end_time}},
                    timeout=timedelta(seconds=left + _GRACE),
                )
            time.sleep(min(pause, left))

    def _is_over(self, event: Mapping[str, Any]) -> None:
        if event["status"] == "timeout":
            waited = seconds(self.timeout, "timeout", least=0.0).total_seconds()
            raise WorkspaceError(
                f"waited {waited:g} s for {event['message']}",
                hint="see there why, then clear this task; or give a longer timeout",
            )
        if event["status"] != "done":
            raise WorkspaceError(event["message"], hint=event["hint"])

    def _command(self, stream: Stream, what: str, command: str) -> None:
        from airflow.providers.standard.hooks.subprocess import SubprocessHook

        env = {**os.environ, "CKPT_STREAM": stream.name, "CKPT_ACTION": what, "VERSION": text(self.version) or ""}
        env["CKPT_OPTIONS"] = text(self.options) or ""
        self._under_way = hook = SubprocessHook()
        result = hook.run_command(["/bin/sh", "-c", command], env=env, output_encoding="utf-8", cwd=self._directory())
        if result.exit_code:
            raise StreamActionFailedError(
                f"{what} of {stream}: the command ended with {result.exit_code}: {redacted_text(result.output)}\n"
                "HINT: its output is in the log of this task; correct it, and clear the task"
            )

    def _directory(self) -> str | None:
        """Where a command runs: beside the file that declares it; ``None``: in a new directory."""
        if isinstance(self.stream, Stream) or not (file := self.declared_streams().source):
            return None
        return os.path.dirname(file)

    def on_kill(self) -> None:
        """End the command, or let the operator end what it has begun."""
        if (send := getattr(self._under_way, "send_sigterm", None)) or (
            send := getattr(self._under_way, "on_kill", None)
        ):
            send()

    def _triggering(self, stream: Stream, what: str, action: Action, context: Context) -> Any:
        """Airflow's operator for the declared DAG."""
        from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

        if action.dag is None:
            raise self._not_declared_now(f"{stream} declared a DAG as `{what}`")
        how = {"trigger_dag_id": action.dag.dag_id, "wait_for_completion": True, "poke_interval": 5}
        task = self._made(TriggerDagRunOperator, {**how, "conf": dict(action.dag.conf)}, context)
        # Only now: what a person or a checkpoint names is a value, never a template.
        task.conf.update(stream=stream.name, action=what, version=text(self.version))
        if options := mapping(self.options, "options"):
            task.conf["options"] = options
        return task

    def _made(self, operator: Any, arguments: Mapping[str, Any], context: Context) -> Any:
        """An operator of this task, ready to be executed. Its arguments are templates, as the DAG of this task renders them."""
        task = operator_of(operator, arguments, task_id=self.task_id.rpartition(".")[2], deferrable=self.deferrable)
        # Not `task.dag`, which would make it one more task of the DAG.
        object.__setattr__(task, "_dag", self.get_dag())
        task.render_template_fields(context)
        self._under_way = task
        return task

    def _deferring(self, run: Callable[[], Any], begun: Mapping[str, Any]) -> None:
        """Run a part of a declared operator; where it defers or asks a human, resume it here, as Airflow would."""
        try:
            run()
        except BaseException as e:
            # Airflow's own signals; the second one is of 3.3 and later, and of operators that ask a human.
            if type(e).__name__ not in ("TaskDeferred", "TaskAwaitingInput"):
                raise
            signal: Any = e
            signal.kwargs = {"carried": {**begun, "method": signal.method_name, "kwargs": dict(signal.kwargs or {})}}
            signal.method_name = "execute_complete"
            raise


def _ended(stream: Stream, what: str, action: Action, context: Context) -> dict[str, Any]:
    """Note when the action had ended, and return what the task says of it."""
    _note_end(context)
    return {"stream": stream.name, "action": what, "way": action.way}


def _note_end(context: Context) -> None:
    if ti := context.get("ti"):
        ti.xcom_push(ENDED, datetime.now(UTC).isoformat())
    _note_clears(context)


def _note_clears(context: Context) -> None:
    if ti := context.get("ti"):
        ti.xcom_push(CLEARS, getattr(context.get("dag_run"), "clear_number", 0) or 0)
