"""Stop, start or deploy a stream in the way that its declaration says."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.declared import DeclaredOperator
from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, text
from airflow_ckpt_provider.operators.job_actions import databricks_job, spark_application
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.streams.stream import Stream

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.streams.actions import Action

#: XCom by which an action that was begun is known.
BEGUN = "begun"
#: XCom of a start: the stop of this run that it came after, by its :data:`BEGUN`; empty where there was none.
AFTER_STOP = "after_stop"
ACTIONS = ("stop", "start", "deploy", "roll_back")


class StreamActionFailedError(AirflowException):
    """A stream was not stopped, started or deployed; a retry does the same again.

    .. code-block:: python

        raise StreamActionFailedError("orders: ./stop.sh ended with exit code 1")
    """


class StreamActionOperator(DeclaredOperator):
    """Stop, start or deploy a stream as ``stop``, ``start``, ``deploy`` or ``roll_back`` of its declaration says.

    A command of the shell runs where the task runs, in the directory of ``streams.yaml``, with ``CKPT_STREAM``, ``CKPT_ACTION``,
    ``VERSION`` and ``CKPT_OPTIONS`` in its environment. It is ended when the task is.
    A DAG is triggered and waited for. An operator is made and executed. A job of Databricks is run or cancelled, an application
    of the Spark operator for Kubernetes created or deleted.

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
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.action = action
        self.version = version
        self.options = options
        self.wanted = wanted
        self.if_absent = if_absent
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
            self._carry_out(stream, what, action, context)
        return {"stream": stream.name, "action": what, "way": action.way}

    def _carry_out(self, stream: Stream, what: str, action: Action, context: Context) -> None:
        if action.command:
            self._command(stream, what, action.command)
        elif action.dag:
            from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

            conf = {**action.dag.conf, "stream": stream.name, "action": what, "version": text(self.version)}
            if options := mapping(self.options, "options"):
                conf["options"] = options
            self._operator(
                TriggerDagRunOperator,
                {"trigger_dag_id": action.dag.dag_id, "conf": conf, "wait_for_completion": True, "poke_interval": 5},
                context,
            )
        elif action.operator:
            self._operator(by_name(action.operator.operator), action.operator.arguments, context)
        elif action.databricks_job:
            databricks_job(action.databricks_job, what, stream)
        elif action.spark_application:
            spark_application(action.spark_application, what)

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

    def _operator(self, operator: Any, arguments: Any, context: Context) -> None:
        # A task that is deferred would be resumed in this operator, which knows nothing of it.
        given = {"deferrable": False, **arguments} if _takes(operator, "deferrable") else dict(arguments)
        task = operator(task_id=self.task_id.rpartition(".")[2], **given)
        task.render_template_fields(context)
        self._under_way = task
        task.execute(context)


def by_name(dotted: str) -> Any:
    """Import what a declaration names.

    :param dotted: such as ``package.module.Class``.
    :raises RefusedError: there is none.
    """
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as e:
        raise RefusedError(
            f"{dotted} cannot be imported: {e}", hint="correct the name in streams.yaml, or install it"
        ) from e


def _takes(operator: Any, name: str) -> bool:
    return any(
        name in inspect.signature(vars(each)["__init__"]).parameters
        for each in operator.__mro__
        if "__init__" in vars(each)
    )
