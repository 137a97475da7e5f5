"""Run or cancel a job of Databricks, create or delete an application of the Spark operator for Kubernetes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from airflow_ckpt_provider.errors import CkptError, MissingExtraError, RefusedError, WorkspaceError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.operators.databricks_workspace import open_workspace
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.streams.actions import DatabricksJob, SparkApplication
from airflow_ckpt_provider.streams.stream import Stream

_PAUSED, _UNPAUSED = "PAUSED", "UNPAUSED"
_GROUP, _VERSION, _PLURAL = "sparkoperator.k8s.io", "v1beta2", "sparkapplications"
#: Label of the pods of an application, and the phases of a pod whose containers have all ended.
_APP_NAME, _ENDED = "sparkoperator.k8s.io/app-name", ("Succeeded", "Failed")
#: Annotation of an application: which task created it from which manifest.
_CREATED_BY = "airflow-ckpt/created-by"
#: States of an application whose driver runs, or has run. `FAILED` is final; from every other one it can still get there.
_HAS_RUN = ("RUNNING", "SUCCEEDING", "COMPLETED")


@dataclass(frozen=True)
class Wait:
    """What an action has begun and waits for: plain JSON, so that a trigger can wait for it too.

    .. code-block:: python

        about = {"job_id": "7", "cancelled": [4711]}
        wait = Wait("runs of job 7 to end", "runs_ended", "databricks_default", about)

    :param what: in words.
    :param look: which of the looks below answers whether it is over.
    :param conn_id: the connection that is asked.
    :param about: which job, run or application.
    """

    what: str
    look: str
    conn_id: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Wait:
        """From :meth:`to_json`."""
        return cls(**data)

    def is_over(self) -> bool:
        """Ask once.

        :raises WorkspaceError: it will never be: the run or the application has failed.
        """
        return _LOOKS[self.look](self)

    def poll(self, log: Any) -> tuple[bool, str]:
        """Ask once, on a worker or in the triggerer; return whether it is over, and what is waited for.

        An error of the service is logged, and is no answer yet: it may be well again before the deadline.

        :param log: the logger of the task or the trigger.
        :raises CkptError: it will never be over.
        """
        try:
            return self.is_over(), self.what
        except CkptError:
            raise
        except Exception as e:  # whatever the service says
            said = f"{self.what}: {type(e).__name__}: {redacted_text(str(e))}"
            log.warning("%s", said)
            return False, said

    def proceed(self) -> Wait | None:
        """Do what is left to do once it is over; return what is waited for then.

        A stop looks for runs that were begun meanwhile, or that the page before did not list.
        """
        if self.look == "runs_ended":
            return _cancel(self.conn_id, self.about["job_id"])
        return None


def databricks_job(job: DatabricksJob, action: str, stream: Stream) -> Wait | None:
    """Run a job, or cancel its active runs; return what is waited for: that a run runs or has succeeded, or that none is active.

    The run that starts a stream lasts as long as the stream. Every other run is waited for to its end: what it has to do, such as
    putting new code in place, is not done before. A job that runs continuously is paused before its run is cancelled, and resumed
    to start it: else it starts itself again.

    :param job: the job.
    :param action: what the declaration calls it: ``stop``, ``start``, ….
    :param stream: the stream, for its connection.
    """
    conn_id = job.conn_id or stream.databricks_conn_id or "databricks_default"
    hook = _workspace(conn_id)
    settings = hook._do_api_call(("GET", "2.2/jobs/get"), {"job_id": job.job_id}).get("settings") or {}
    continuous = settings.get("continuous")
    if (job.do or ("cancel" if action == "stop" else "run")) == "cancel":
        if continuous:
            # First: a run that ends is followed by another one, up to a minute later.
            _pause(hook, job, continuous, _PAUSED)
        return _cancel(conn_id, job.job_id)
    if continuous and action != "start":
        raise RefusedError(
            f"job {job.job_id} runs continuously: its run does not end, and {action} has to wait for that",
            hint="declare a job that runs when it is triggered",
        )
    if continuous:
        return _resume(conn_id, job, continuous)
    return _run(conn_id, job, action)


def _workspace(conn_id: str) -> Any:
    return open_workspace(conn_id, caller=__name__)


def _cancel(conn_id: str, job_id: str) -> Wait | None:
    hook = _workspace(conn_id)
    active = [run["run_id"] for run in _runs(hook, job_id, active=True)]
    for run_id in active:  # a list has one page of them; one that is being cancelled already stays so
        hook.cancel_run(run_id)
    about = {"job_id": job_id, "cancelled": active}
    return Wait(f"runs of job {job_id} to end", "runs_ended", conn_id, about) if active else None


def _run(conn_id: str, job: DatabricksJob, action: str) -> Wait:
    hook = _workspace(conn_id)
    # A retry of a start finds the run of the attempt before: two queries must not run on one checkpoint.
    there = _runs(hook, job.job_id, active=True) if action == "start" else []
    # The hook repeats a request whose answer was lost; with the same token the workspace runs the job once.
    body = {"job_id": int(job.job_id), "job_parameters": dict(job.parameters), "idempotency_token": uuid4().hex}
    run_id = there[0]["run_id"] if there else hook.run_now(body)
    about = {"job_id": job.job_id, "run_id": run_id}
    if action == "start":
        return Wait(f"run {run_id} of job {job.job_id} to start", "run_started", conn_id, about)
    return Wait(f"run {run_id} of job {job.job_id} to end", "run_ended", conn_id, about)


def _resume(conn_id: str, job: DatabricksJob, continuous: Mapping[str, Any]) -> Wait:
    """Let a continuous job start its own run: it takes no other one while it is not paused."""
    if job.parameters:
        raise RefusedError(
            f"job {job.job_id} runs continuously: it takes no parameters from outside",
            hint="remove `parameters`, and set them in the job",
        )
    hook = _workspace(conn_id)
    active = {run["run_id"] for run in _runs(hook, job.job_id, active=True)}
    earlier = {run["run_id"] for run in _runs(hook, job.job_id, active=False)} - active
    _pause(hook, job, continuous, _UNPAUSED)
    what = f"a run of the continuous job {job.job_id} to start"
    return Wait(what, "newer_run_started", conn_id, {"job_id": job.job_id, "earlier": sorted(earlier)})


def _no_cancelled_run_is_active(wait: Wait) -> bool:
    active = {run["run_id"] for run in _runs(_workspace(wait.conn_id), wait.about["job_id"], active=True)}
    # Another one has to be cancelled first.
    return not active or not active <= {*wait.about["cancelled"]}


def _run_has_started(wait: Wait) -> bool:
    return _is_running(_workspace(wait.conn_id), wait.about["job_id"], wait.about["run_id"])


def _run_has_ended(wait: Wait) -> bool:
    return bool(_state_of(_workspace(wait.conn_id), wait.about["job_id"], wait.about["run_id"]).is_terminal)


def _newer_run_has_started(wait: Wait) -> bool:
    hook, job_id = _workspace(wait.conn_id), wait.about["job_id"]
    newer = [run["run_id"] for run in _runs(hook, job_id, active=False) if run["run_id"] not in wait.about["earlier"]]
    return any(_is_running(hook, job_id, run_id) for run_id in newer[:1])


def _pause(hook: Any, job: DatabricksJob, continuous: Mapping[str, Any], status: str) -> None:
    if continuous.get("pause_status", _UNPAUSED) != status:
        # Settings are replaced as a whole.
        hook.update_job(int(job.job_id), {"continuous": {**continuous, "pause_status": status}})


def _is_running(hook: Any, job_id: str, run_id: int) -> bool:
    state = _state_of(hook, job_id, run_id)
    return bool(state.is_terminal or state.life_cycle_state == "RUNNING")


def _state_of(hook: Any, job_id: str, run_id: int) -> Any:
    """The state of a run.

    :raises WorkspaceError: it has ended without success.
    """
    state = hook.get_run_state(run_id)
    if state.is_terminal and not state.is_successful:
        raise WorkspaceError(
            f"run {run_id} of job {job_id} ended: {state.result_state} {state.state_message}",
            hint="see the run in Databricks, then clear this task",
        )
    return state


def _runs(hook: Any, job_id: str, *, active: bool) -> list[Any]:
    """The newest runs, newest first."""
    found = hook._do_api_call(
        ("GET", "2.2/jobs/runs/list"), {"job_id": job_id, **({"active_only": "true"} if active else {})}
    )
    return found.get("runs") or []


def spark_application(
    application: SparkApplication, action: str, stream: Stream, directory: str | None, *, task: str = ""
) -> Wait | None:
    """Create an application, or delete it; return what is waited for.

    The one that starts a stream is waited for until its driver runs, every other one that is created until it has completed; one
    that is deleted until it and its pods are gone.

    :param application: the application.
    :param action: what the declaration calls it.
    :param stream: the stream, for the manifest of its start.
    :param directory: where a relative path of its manifest begins; ``None``: in that of the process.
    :param task: the same for all attempts of a task, and for no other: one finds what an attempt before it has created.
    """
    conn_id = application.conn_id or ""
    about = {"namespace": application.namespace, "name": application.name}
    what = f"{application.namespace}/{application.name}"
    if application.is_created_by(action):
        manifest = _manifest(os.path.join(directory or "", application.file or ""))
        _create(application, _check_names(application, manifest), fingerprint_of([task, manifest]) if task else "")
        if action == "start":
            return Wait(f"{what} to run", "application_runs", conn_id, about)
        return Wait(f"{what} to complete", "application_completed", conn_id, about)
    _check_started(application, stream, directory)
    hook = _kubernetes(application.conn_id)
    wait = Wait(f"{what} to be deleted", "application_gone", conn_id, about)
    if _found(hook, wait) is not None:
        hook.delete_custom_object(**_at(application.namespace), name=application.name)
    return None if _application_is_gone(wait) else wait


def _check_started(application: SparkApplication, stream: Stream, directory: str | None) -> None:
    """See that what the stream was started as has the name that is deleted: else that one would run on, and count as stopped."""
    started = stream.start.spark_application if stream.start else None
    if started is None or not started.file:
        return
    try:
        manifest = _manifest(os.path.join(directory or "", started.file))
    except RefusedError:
        return  # what is running can be stopped without it
    _check_names(started, manifest)


def _check_names(application: SparkApplication, manifest: str) -> dict[str, Any]:
    """See that a manifest is about the application that is declared: by that name it is stopped. Return it.

    :raises RefusedError: it is not.
    """
    import yaml

    try:
        found = yaml.safe_load(manifest)
    except yaml.YAMLError as e:
        said = " ".join(str(e).split())
        raise RefusedError(f"{application.file} is no YAML: {said}", hint="correct the manifest") from e
    found = found if isinstance(found, Mapping) else {}
    metadata = found.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    for field_name, given, wanted in (
        ("kind", found.get("kind"), "SparkApplication"),
        ("metadata.name", metadata.get("name"), application.name),
        ("metadata.namespace", metadata.get("namespace", application.namespace), application.namespace),
    ):
        if given != wanted:
            raise RefusedError(
                f"{field_name} in {application.file} is {given!r}, and the declaration is about {wanted!r}",
                hint=f"make both the same: the application is stopped as {application.namespace}/{application.name}",
            )
    return dict(found)


def _create(application: SparkApplication, manifest: dict[str, Any], created_by: str) -> None:
    """Create an application, or find the one that an attempt before this one has created.

    :param created_by: the value of its annotation; empty: none.
    """
    hook = _kubernetes(application.conn_id)
    from kubernetes.client import ApiException

    if created_by:
        metadata = dict(manifest["metadata"])
        metadata["annotations"] = {**(metadata.get("annotations") or {}), _CREATED_BY: created_by}
        manifest = {**manifest, "metadata": metadata}
    try:
        hook.create_custom_object(**_at(application.namespace), body=manifest)
    except ApiException as e:
        if e.status != 409:
            raise
        there = hook.get_custom_object(**_at(application.namespace), name=application.name) or {}
        if created_by and ((there.get("metadata") or {}).get("annotations") or {}).get(_CREATED_BY) == created_by:
            return
        raise RefusedError(
            f"the application {application.namespace}/{application.name} exists already",
            hint="see whether it is the one that is wanted: if so, mark this task successful; else delete it, and clear the task",
        ) from e


def _manifest(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as e:
        said = e.strerror if isinstance(e, OSError) else e
        hint = "correct spark_application.file; a relative path begins at the directory of streams.yaml"
        raise RefusedError(f"{path} cannot be read: {said}", hint=hint) from e


def _kubernetes(conn_id: str | None) -> Any:
    try:
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    except ImportError as e:
        raise MissingExtraError(
            f"an application on Kubernetes needs Airflow's Kubernetes provider ({e})",
            hint="pip install apache-airflow-providers-cncf-kubernetes",
        ) from e
    return KubernetesHook(conn_id=conn_id)


def _at(namespace: str) -> dict[str, str]:
    return {"group": _GROUP, "version": _VERSION, "plural": _PLURAL, "namespace": namespace}


def _application_is_gone(wait: Wait) -> bool:
    """Whether nothing of it runs any more: its pods are deleted after it, and its driver writes until then."""
    hook = _kubernetes(wait.conn_id or None)
    if _found(hook, wait) is not None:
        return False
    pods = hook.core_v1_client.list_namespaced_pod(
        wait.about["namespace"], label_selector=f"{_APP_NAME}={wait.about['name']}"
    )
    return all(pod.status.phase in _ENDED for pod in pods.items)


def _application_runs(wait: Wait) -> bool:
    return _phase(wait) in _HAS_RUN


def _application_has_completed(wait: Wait) -> bool:
    return _phase(wait) == "COMPLETED"


def _phase(wait: Wait) -> str:
    """The state of an application, as the Spark operator writes it; empty before it has.

    :raises WorkspaceError: it has failed, or was deleted.
    """
    name = f"{wait.about['namespace']}/{wait.about['name']}"
    found = _found(_kubernetes(wait.conn_id or None), wait)
    if found is None:
        raise WorkspaceError(f"the application {name} was deleted", hint="see who deleted it, then clear this task")
    state = (found.get("status") or {}).get("applicationState") or {}
    if state.get("state") == "FAILED":
        raise WorkspaceError(
            f"the application {name} has failed: {redacted_text(str(state.get('errorMessage') or 'no message'))}",
            hint="see the log of its driver, delete the application, then clear this task",
        )
    return str(state.get("state") or "")


def _found(hook: Any, wait: Wait) -> Mapping[str, Any] | None:
    """The object of an application; ``None``: there is none."""
    from kubernetes.client import ApiException

    try:
        found: Mapping[str, Any] = hook.get_custom_object(**_at(wait.about["namespace"]), name=wait.about["name"])
    except ApiException as e:
        if e.status == 404:
            return None
        raise
    return found or {}


_LOOKS: dict[str, Callable[[Wait], bool]] = {
    "runs_ended": _no_cancelled_run_is_active,
    "run_started": _run_has_started,
    "run_ended": _run_has_ended,
    "newer_run_started": _newer_run_has_started,
    "application_runs": _application_runs,
    "application_completed": _application_has_completed,
    "application_gone": _application_is_gone,
}
