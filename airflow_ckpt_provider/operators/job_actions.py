"""Run or cancel a job of Databricks, create or delete an application of the Spark operator for Kubernetes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, WorkspaceError
from airflow_ckpt_provider.streams.actions import DatabricksJob, SparkApplication
from airflow_ckpt_provider.streams.stream import Stream

_POLL_SECONDS = 5.0
_WAIT_SECONDS = 1800.0
_GROUP, _VERSION, _PLURAL = "sparkoperator.k8s.io", "v1beta2", "sparkapplications"


def databricks_job(job: DatabricksJob, action: str, stream: Stream) -> None:
    """Run a job and return once it runs; or cancel its runs and return once none is active.

    :param job: the job.
    :param action: what the declaration calls it: ``stop``, ``start``, ….
    :param stream: the stream, for its connection.
    """
    try:
        from airflow.providers.databricks.hooks.databricks import DatabricksHook
    except ImportError as e:
        raise MissingExtraError(
            f"a job of Databricks needs Airflow's Databricks provider ({e})",
            hint="pip install 'airflow-ckpt-provider[databricks]'",
        ) from e
    hook = DatabricksHook(job.conn_id or stream.databricks_conn_id or "databricks_default", caller=__name__)
    if (job.do or ("cancel" if action == "stop" else "run")) == "cancel":
        cancelled: set[int] = set()

        def ended() -> bool:
            active = {run["run_id"] for run in _active_runs(hook, job.job_id)}
            for run_id in active - cancelled:  # a list has one page of them
                hook.cancel_run(run_id)
            cancelled.update(active)
            return not active

        _wait(f"runs of job {job.job_id} to end", ended)
        return
    # A retry of a start finds the run of the attempt before: two queries must not run on one checkpoint.
    there = _active_runs(hook, job.job_id) if action == "start" else []
    run_id = (
        there[0]["run_id"]
        if there
        else hook.run_now({"job_id": int(job.job_id), "job_parameters": dict(job.parameters)})
    )

    def runs() -> bool:
        state = hook.get_run_state(run_id)
        if state.is_terminal and not state.is_successful:
            raise WorkspaceError(
                f"run {run_id} of job {job.job_id} ended: {state.result_state} {state.state_message}",
                hint="see the run in Databricks, then clear this task",
            )
        return state.is_terminal or state.life_cycle_state == "RUNNING"

    _wait(f"run {run_id} of job {job.job_id} to start", runs)


def _active_runs(hook: Any, job_id: str) -> list[Any]:
    found = hook._do_api_call(("GET", "2.2/jobs/runs/list"), {"job_id": job_id, "active_only": "true"})
    return found.get("runs") or []


def spark_application(application: SparkApplication, action: str) -> None:
    """Create an application, or delete it and return once it is gone.

    :param application: the application.
    :param action: what the declaration calls it.
    """
    try:
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
        from kubernetes.client import ApiException
    except ImportError as e:
        raise MissingExtraError(
            f"an application on Kubernetes needs Airflow's Kubernetes provider ({e})",
            hint="pip install apache-airflow-providers-cncf-kubernetes",
        ) from e
    hook = KubernetesHook(conn_id=application.conn_id)
    at = {"group": _GROUP, "version": _VERSION, "plural": _PLURAL, "namespace": application.namespace}
    if (application.do or ("delete" if action == "stop" else "create")) == "create":
        if not application.file:
            raise RefusedError(f"{application.name} has no file", hint="give the manifest: spark_application.file")
        with open(application.file, encoding="utf-8") as file:
            hook.create_custom_object(**at, body=file.read())
        return

    def gone() -> bool:
        try:
            hook.get_custom_object(**at, name=application.name)
        except ApiException as e:
            if e.status == 404:
                return True
            raise
        return False

    if not gone():
        hook.delete_custom_object(**at, name=application.name)
        _wait(f"{application.namespace}/{application.name} to be deleted", gone)


def _wait(what: str, done: Callable[[], bool]) -> None:
    until = time.monotonic() + _WAIT_SECONDS
    while not done():
        if time.monotonic() > until:
            raise WorkspaceError(f"waited {_WAIT_SECONDS:g} s for {what}", hint="see there why, then clear this task")
        time.sleep(_POLL_SECONDS)
