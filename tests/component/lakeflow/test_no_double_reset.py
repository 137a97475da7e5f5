"""Random faults, retries and kills, over HTTP: an operator never resets, refreshes or rewinds a second time.

A run is one task over all its attempts, against a pipeline of its own. Faults hit requests before or after they take effect;
the worker dies before or after a request or a note; the triggerer restarts; other people start and stop updates in between.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.operators.pipeline_configuration import PipelineConfigurationPutBackOperator
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.pipeline_rewind import PipelineRewindOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import FakeWorkspace, FlowFailed, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Killed, Task

FLOW = samples.INCREMENTAL
POSITION = "2026-08-20T05:00:00Z"
#: Attempts after which a run must have come to an end.
ATTEMPTS = 12
FAULTS: tuple[dict[str, Any], ...] = (
    {"status": 429, "retry_after": 1},
    {"status": 500},
    {"status": 503},
    {"status": 503, "took_effect": True},
    {"cut": True},
    {"cut": True, "took_effect": True},
)


@dataclass
class Deaths:
    """Kills the worker at chosen moments, counted over all attempts.

    :param at: numbers of the moments; each request has two (before, after), and so has each note.
    """

    at: set[int]
    moment: int = 0

    def may_come(self) -> None:
        self.moment += 1
        if self.moment in self.at:
            raise Killed

    @contextmanager
    def around_requests(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        call, a_call = DatabricksPipelinesHook._do_api_call, DatabricksPipelinesHook._a_do_api_call
        deaths = self

        def mortal(hook: Any, *args: Any, **kwargs: Any) -> Any:
            deaths.may_come()
            found = call(hook, *args, **kwargs)
            deaths.may_come()
            return found

        async def a_mortal(hook: Any, *args: Any, **kwargs: Any) -> Any:
            deaths.may_come()
            found = await a_call(hook, *args, **kwargs)
            deaths.may_come()
            return found

        with monkeypatch.context() as patched:
            patched.setattr(DatabricksPipelinesHook, "_do_api_call", mortal)
            patched.setattr(DatabricksPipelinesHook, "_a_do_api_call", a_mortal)
            yield


def _operator(kind: str, pipeline: Pipeline, chance: random.Random) -> BaseOperator:
    about: dict[str, Any] = {
        "task_id": "t",
        "pipeline_id": pipeline.pipeline_id,
        "mode": "apply",
        "poll_interval": 0.0005,
        "deferrable": chance.random() < 0.4,
        "on_active_update": chance.choice(["wait", "stop"]),
    }
    if kind == "reset":
        position = {FLOW: {"options": {"modifiedAfter": POSITION}, "deployed": True, "all_sources": True}}
        about |= {"flows": [FLOW], "starting_positions": position, "run_parameter": "airflow_run"}
        return ResetCheckpointOperator(**about, configuration={"modifiedAfter": POSITION})
    if kind == "refresh":
        return PipelineRefreshOperator(**about, full_refresh_selection=["customers"], guard_report={"verdict": "SAFE"})
    to = pipeline.points.points[0].time + timedelta(milliseconds=1)
    return PipelineRewindOperator(**about, to=to.isoformat())


def _asks(kind: str, body: dict[str, Any]) -> bool:
    """Whether an update does what the operator must do once."""
    if kind == "rewind":
        return bool(body.get("rewind_spec")) and not body["rewind_spec"]["dry_run"]
    return bool(body.get("reset_checkpoint_selection" if kind == "reset" else "full_refresh_selection"))


def one_run(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch, seed: int) -> dict[str, Any]:
    """Let one task run to its end; return what became of it."""
    chance = random.Random(seed)
    kind = chance.choice(["reset", "reset", "refresh", "rewind"])
    settings = {"channel": "PREVIEW", "configuration": {"pipelines.rewind.betaEnabled": "true"}}
    retries = chance.choice([0, 0, 1, 2])
    pipeline = samples.customers(workspace, name=f"run{seed}", files=3, update_retries=retries, **settings)
    pipeline.follow_up_after = chance.choice([0, 1])
    if retries and chance.random() < 0.5:
        _fail_once(pipeline)
    operator_seed = chance.random()
    task = Task(lambda: _operator(kind, pipeline, random.Random(operator_seed)), run_id=f"run{seed}")
    assert task.store
    deaths = Deaths({chance.randrange(1, 90) for _ in range(chance.choice([0, 1, 2, 4]))})
    task.store.before = task.store.after = deaths.may_come
    strangers, theirs = 0, dict[str, str]()
    for _ in range(chance.choice([0, 1, 2, 4])):
        method, path = chance.choice([("POST", r"/updates$"), ("GET", r".*"), ("POST", r"/stop$"), ("PUT", r".*")])
        workspace.fault(method, path, nth=chance.randrange(1, 4), **chance.choice(FAULTS))
    outcome = "endless"
    with deaths.around_requests(monkeypatch):
        while task.tries < ATTEMPTS:
            if chance.random() < 0.15 and pipeline.active is None:
                strangers += 1
                pipeline.start({"refresh_selection": ["customers"]}, cause="USER_ACTION")
            if kind == "reset" and chance.random() < 0.15:
                theirs = {"theirs": str(task.tries)}
                edited = {**pipeline.spec, "configuration": {**pipeline.configuration, **theirs}}
                pipeline.edit({**edited, "parameters": pipeline.parameters})
            if kind == "reset" and chance.random() < 0.15 and pipeline.active is None:
                _put_back_by_another_run(pipeline)
            try:
                result = task.attempt()
                outcome = str(result["state"])
                break
            except (Killed, CkptError):
                continue
            except AirflowFailException as e:
                outcome = f"failed: {e}"
                break
    workspace.faults.clear()
    if outcome != "COMPLETED":  # as the DAG does, for a reset that could not put its configuration back
        pipeline.advance()
        about = {"pipeline_id": pipeline.pipeline_id, "poll_interval": 0.001}
        Task(lambda: PipelineConfigurationPutBackOperator(task_id="back", **about), run_id=f"run{seed}").attempt()
    asked = [u for u in pipeline.updates if _asks(kind, u.body) and u.cause == "API_CALL"]
    return {
        "seed": seed,
        "kind": kind,
        "outcome": outcome,
        "attempts": task.tries,
        "asked": len(asked),
        "resets": pipeline.flows[FLOW].resets,
        "strangers": strangers,
        "put_back": dict(pipeline.configuration) == {**settings["configuration"], **theirs},
    }


def _put_back_by_another_run(pipeline: Pipeline) -> None:
    """What a failed run of the same DAG does in the meantime: it must not take this run's keys away."""
    before = dict(pipeline.configuration)
    about = {"pipeline_id": pipeline.pipeline_id, "poll_interval": 0.001}
    with suppress(Killed, CkptError, AirflowException):
        Task(lambda: PipelineConfigurationPutBackOperator(task_id="back", **about), run_id="another").attempt()
    assert pipeline.configuration == before


def _fail_once(pipeline: Pipeline) -> None:
    """The next update that reads fails, and the one that the workspace starts in its place does not."""
    begin = pipeline._begin

    def mended(update: Any) -> Any:
        lost = FlowFailed("SOME_ERROR", "[SOME_ERROR] the cluster was lost")
        pipeline.flows[FLOW].error = None if update.cause == "RETRY_ON_FAILURE" else lost
        return begin(update)

    pipeline._begin = mended  # type: ignore[method-assign]


def _check(found: dict[str, Any]) -> None:
    assert found["asked"] <= 1, found
    assert found["resets"] <= 1, found
    assert found["outcome"] != "endless", found
    assert found["put_back"], found
    if found["outcome"] == "COMPLETED":
        assert found["asked"] == found["resets"] == 1, found


@pytest.mark.parametrize("seed", range(6))
def test_never_twice(workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    _check(one_run(workspace, monkeypatch, seed))


@pytest.mark.parametrize("kind", ["reset", "refresh", "rewind"])
def test_not_again_where_it_is_cleared_after_its_success(workspace: FakeWorkspace, kind: str) -> None:
    settings = {"channel": "PREVIEW", "configuration": {"pipelines.rewind.betaEnabled": "true"}}
    pipeline = samples.customers(workspace, files=3, **settings)
    task = Task(lambda: _operator(kind, pipeline, random.Random(1)))
    first = task.attempt()
    seen = len(workspace.requests)
    task.clear()
    assert task.attempt() == first
    assert {request.method for request in workspace.requests[seen:]} <= {"GET"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(40))
def test_never_twice_in_a_thousand_runs(
    workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch, part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for seed in range(1000 + part * 25, 1025 + part * 25):
        found.append(one_run(workspace, monkeypatch, seed))
        workspace.requests.clear()
    for each in found:
        _check(each)
    ended = [each for each in found if each["outcome"] == "COMPLETED"]
    with capsys.disabled():
        attempts = sum(each["attempts"] for each in found)
        print(f"\n{len(found)} runs, {attempts} attempts, {len(ended)} completed, none reset twice")
    assert len(ended) > len(found) / 2
