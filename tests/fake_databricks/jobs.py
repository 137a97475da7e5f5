"""The Jobs API, as far as a job with a pipeline task needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fake_databricks.clock import Clock, millis
from tests.fake_databricks.errors import ApiError, invalid, not_found
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.updates import Update

#: What run-now hands on to the pipeline.
_PARAMETERS = ("full_refresh", "full_refresh_selection", "refresh_selection", "reset_checkpoint_selection")
_RESULTS = {"COMPLETED": "SUCCESS", "FAILED": "FAILED", "CANCELED": "CANCELED"}


@dataclass(slots=True)
class Job:
    """A job with one pipeline task.

    :param continuous: its trigger, if it runs continuously: ``{"pause_status": "UNPAUSED"}``. A run that ends is followed by
        another one, some looks later, for as long as that is not paused.
    """

    job_id: int
    name: str
    pipeline_id: str
    task_key: str = "pipeline"
    continuous: dict[str, Any] | None = None
    #: Looks since the last run ended.
    idle: int = 0

    @property
    def restarts(self) -> bool:
        """Whether a run is followed by another one."""
        return self.continuous is not None and self.continuous.get("pause_status", "UNPAUSED") == "UNPAUSED"


#: Looks at a continuous job without a run until it has the next one: on Databricks up to a minute.
_IDLE_FOR = 2


@dataclass
class Run:
    """A run of a job, or one that was submitted."""

    run_id: int
    pipeline_id: str
    task_key: str
    name: str
    started: int
    job_id: int
    update: Update | None = None
    #: Why it could not start.
    refused: str = ""
    #: What was asked for.
    body: dict[str, Any] = field(default_factory=dict)


class Jobs:
    """Jobs and runs.

    :param pipeline: finds a pipeline, or raises a 404.
    """

    def __init__(self, clock: Clock, pipeline: Callable[[str], Pipeline], host: Callable[[], str]) -> None:
        self._clock, self._pipeline, self._host = clock, pipeline, host
        self.jobs: dict[int, Job] = {}
        self.runs: dict[int, Run] = {}
        self._tokens: dict[str, int] = {}

    def add(self, name: str, pipeline_id: str, *, continuous: dict[str, Any] | None = None) -> Job:
        """Make a job that runs a pipeline."""
        job = Job(len(self.jobs) + 100, name, pipeline_id, continuous=continuous)
        self.jobs[job.job_id] = job
        return job

    def run_now(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST …/jobs/run-now``."""
        job = self._job(body.get("job_id"))
        if job.restarts:
            raise invalid(f"Job {job.job_id} runs continuously and is not paused.")
        return self._run(body, body.get("pipeline_params") or {}, job.pipeline_id, job.task_key, job.name, job.job_id)

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST …/jobs/runs/submit`` with one pipeline task."""
        tasks = [task for task in body.get("tasks") or [body] if task.get("pipeline_task")]
        if len(tasks) != 1:
            raise invalid("One task with a pipeline_task is expected.")
        asked = tasks[0]["pipeline_task"]
        key = tasks[0].get("task_key", "pipeline")
        return self._run(body, asked, asked.get("pipeline_id", ""), key, str(body.get("run_name", "Untitled")), 0)

    def get(self, run_id: int) -> dict[str, Any]:
        """``GET …/jobs/runs/get``: a poll at the run is a poll at its pipeline."""
        run = self._found(run_id)
        if run.update and run.update.active:
            self._pipeline(run.pipeline_id).move(look=True)
        state = _state(run)
        task = {
            "task_key": run.task_key,
            "run_id": run.run_id + 1,
            "state": state,
            "pipeline_task": {"pipeline_id": run.pipeline_id}
            | {key: value for key in _PARAMETERS if (value := run.body.get(key))},
        }
        return {
            "run_id": run.run_id,
            "job_id": run.job_id or run.run_id + 2,
            "run_name": run.name,
            "run_type": "JOB_RUN" if run.job_id else "SUBMIT_RUN",
            "start_time": run.started,
            "run_page_url": f"{self._host()}/#job/{run.job_id}/run/{run.run_id}",
            "state": state,
            "tasks": [task],
        }

    def list_runs(self, job_id: int | None, active_only: bool) -> dict[str, Any]:
        """``GET …/jobs/runs/list``, newest first."""
        self._move()
        found = [run for run in reversed(self.runs.values()) if job_id in (None, run.job_id)]
        if active_only:
            found = [run for run in found if run.update and run.update.active]
        return {"runs": [self.get(run.run_id) for run in found]} if found else {}

    def list(self, name: str) -> dict[str, Any]:
        """``GET …/jobs/list``."""
        jobs = [job for job in self.jobs.values() if name in ("", job.name)]
        return {"jobs": [self._settings(job) for job in jobs]} if jobs else {}

    def get_job(self, job_id: int) -> dict[str, Any]:
        """``GET …/jobs/get``."""
        return self._settings(self._job(job_id))

    def update(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST …/jobs/update``: top-level settings are replaced as a whole."""
        job = self._job(body.get("job_id"))
        settings = body.get("new_settings") or {}
        if unknown := settings.keys() - {"continuous"}:
            raise invalid(f"Settings that nobody has asked for here: {sorted(unknown)}")
        if "continuous" in settings:
            job.continuous = dict(settings["continuous"])
            job.idle = 0
        return {}

    def _move(self) -> None:
        """Start the next runs of continuous jobs."""
        for job in self.jobs.values():
            active = any(run.job_id == job.job_id and run.update and run.update.active for run in self.runs.values())
            job.idle = 0 if active or not job.restarts else job.idle + 1
            if job.idle > _IDLE_FOR:
                job.idle = 0
                self._run({}, {}, job.pipeline_id, job.task_key, job.name, job.job_id)

    def cancel(self, run_id: int) -> dict[str, Any]:
        """``POST …/jobs/runs/cancel``: the pipeline is stopped if the run's own update is the active one."""
        run = self._found(run_id)
        pipeline = self._pipeline(run.pipeline_id)
        if run.update and pipeline.active is run.update:
            pipeline.stop()
        return {}

    def _settings(self, job: Job) -> dict[str, Any]:
        task = {"task_key": job.task_key, "pipeline_task": {"pipeline_id": job.pipeline_id}}
        trigger = {"continuous": job.continuous} if job.continuous else {}
        return {"job_id": job.job_id, "settings": {"name": job.name, "tasks": [task], **trigger}}

    def _job(self, job_id: Any) -> Job:
        if job_id is None or int(job_id) not in self.jobs:
            raise not_found("job", job_id)
        return self.jobs[int(job_id)]

    def _found(self, run_id: int) -> Run:
        if run_id not in self.runs:
            raise not_found("run", run_id)
        return self.runs[run_id]

    def _run(
        self, body: dict[str, Any], asked: dict[str, Any], pipeline_id: str, task_key: str, name: str, job_id: int
    ) -> dict[str, Any]:
        token = str(body.get("idempotency_token") or "")
        if token in self._tokens:
            return {"run_id": self._tokens[token]}
        pipeline = self._pipeline(pipeline_id)
        run = Run(
            1000 + 10 * len(self.runs), pipeline_id, task_key, name, millis(self._clock.now()), job_id, body=asked
        )
        try:
            update = {key: asked[key] for key in (*_PARAMETERS, "parameters") if asked.get(key)}
            run.update = pipeline.start(update, cause="JOB_TASK")
        except ApiError as e:
            run.refused = str(e)
        self.runs[run.run_id] = run
        if token:
            self._tokens[token] = run.run_id
        return {"run_id": run.run_id} | ({"number_in_job": run.run_id} if job_id else {})


def _state(run: Run) -> dict[str, Any]:
    if run.update is None:
        return {"life_cycle_state": "TERMINATED", "result_state": "FAILED", "state_message": run.refused}
    if run.update.active:
        running = run.update.state not in ("CREATED", "QUEUED", "WAITING_FOR_RESOURCES")
        return {"life_cycle_state": "RUNNING" if running else "PENDING", "state_message": ""}
    message = f"Update {run.update.update_id} is {run.update.state}."
    return {
        "life_cycle_state": "TERMINATED",
        "result_state": _RESULTS[run.update.state],
        "state_message": message,
    }
