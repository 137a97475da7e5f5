"""Run or cancel a job of Databricks, create or delete an application of the Spark operator for Kubernetes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, WorkspaceError
from airflow_ckpt_provider.streams.actions import DatabricksJob, SparkApplication
from airflow_ckpt_provider.streams.stream import Stream

_POLL_SECONDS = 5.0
_WAIT_SECONDS = 1800.0
_PAUSED, _UNPAUSED = "PAUSED", "UNPAUSED"
_GROUP, _VERSION, _PLURAL = "sparkoperator.k8s.io", "v1beta2", "sparkapplications"


def databricks_job(job: DatabricksJob, action: str, stream: Stream) -> None:
    """Run a job and return once it runs; or cancel its runs and return once none is active.

    A job that runs continuously is paused before its run is cancelled, and resumed to start it: else it starts itself again.

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
    settings = hook._do_api_call(("GET", "2.2/jobs/get"), {"job_id": job.job_id}).get("settings") or {}
    continuous = settings.get("continuous")
    if (job.do or ("cancel" if action == "stop" else "run")) == "cancel":
        if continuous:
            # First: a run that ends is followed by another one, up to a minute later.
            _pause(hook, job, continuous, _PAUSED)
        _cancel(hook, job)
    elif continuous:
        _resume(hook, job, continuous)
    else:
        _run(hook, job, action)


def _cancel(hook: Any, job: DatabricksJob) -> None:
    cancelled: set[int] = set()

    def ended() -> bool:
        active = {run["run_id"] for run in _runs(hook, job, active=True)}
        for run_id in active - cancelled:  # a list has one page of them
            hook.cancel_run(run_id)
        cancelled.update(active)
        return not active

    _wait(f"runs of job {job.job_id} to end", ended)


def _run(hook: Any, job: DatabricksJob, action: str) -> None:
    # A retry of a start finds the run of the attempt before: two queries must not run on one checkpoint.
    there = _runs(hook, job, active=True) if action == "start" else []
    run_id = (
        there[0]["run_id"]
        if there
        else hook.run_now({"job_id": int(job.job_id), "job_parameters": dict(job.parameters)})
    )
    _wait(f"run {run_id} of job {job.job_id} to start", lambda: _is_running(hook, job, run_id))


def _resume(hook: Any, job: DatabricksJob, continuous: Mapping[str, Any]) -> None:
    """Let a continuous job start its own run: it takes no other one while it is not paused."""
    if job.parameters:
        raise RefusedError(
            f"job {job.job_id} runs continuously: it takes no parameters from outside",
            hint="remove `parameters`, and set them in the job",
        )
    active = {run["run_id"] for run in _runs(hook, job, active=True)}
    earlier = {run["run_id"] for run in _runs(hook, job, active=False)} - active
    _pause(hook, job, continuous, _UNPAUSED)

    def runs() -> bool:
        newer = [run["run_id"] for run in _runs(hook, job, active=False) if run["run_id"] not in earlier]
        return any(_is_running(hook, job, run_id) for run_id in newer[:1])

    _wait(f"a run of the continuous job {job.job_id} to start", runs)


def _pause(hook: Any, job: DatabricksJob, continuous: Mapping[str, Any], status: str) -> None:
    if continuous.get("pause_status", _UNPAUSED) != status:
        # Settings are replaced as a whole.
        hook.update_job(int(job.job_id), {"continuous": {**continuous, "pause_status": status}})


def _is_running(hook: Any, job: DatabricksJob, run_id: int) -> bool:
    state = hook.get_run_state(run_id)
    if state.is_terminal and not state.is_successful:
        raise WorkspaceError(
            f"run {run_id} of job {job.job_id} ended: {state.result_state} {state.state_message}",
            hint="see the run in Databricks, then clear this task",
        )
    return bool(state.is_terminal or state.life_cycle_state == "RUNNING")


def _runs(hook: Any, job: DatabricksJob, *, active: bool) -> list[Any]:
    """The newest runs, newest first."""
    found = hook._do_api_call(
        ("GET", "2.2/jobs/runs/list"), {"job_id": job.job_id, **({"active_only": "true"} if active else {})}
    )
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
