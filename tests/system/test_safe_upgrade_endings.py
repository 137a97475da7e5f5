"""How a run of `safe_upgrade` can end in a real Airflow: nothing is stopped in vain, and nothing stays down silently."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.task_groups.safe_upgrade import safe_upgrade
from tests.support.delta_batches import delta_table
from tests.support.one_checkpoint import NEWEST
from tests.support.safe_upgrades.upgrades import UpgradeRun
from tests.system.conftest import Answer, RunDag, result
from tests.unit.operators.test_upgrade_begin import FEATURES, PROTOCOL, edit_first

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

#: The batches of these tests are made by copying files.
_ANY_PACE = {"duration_within": None, "input_within": None, "lag_within": None}


@dataclass(frozen=True)
class Made:
    """A task of the user that is made in another way."""

    make: Callable[[str], BaseOperator]


class Tried(UpgradeRun):
    """An upgrade of a stream that nobody runs: what its tasks did, and where it ended.

    :param checkpoint: the checkpoint, drained at batch 5.
    :param did: names of the user's tasks that ran, in order.
    """

    def __init__(self, checkpoint: Path, run_dag: RunDag) -> None:
        self.checkpoint = checkpoint
        Repository.open_or_create(open_location(str(checkpoint.parents[1] / "backups")))
        self.ckpt = Checkpoint.at(open_location(str(checkpoint)))
        self.did: list[str] = []
        self.run: Any = None
        self._run_dag = run_dag

    def upgrade(
        self, *, run: dict[str, Any] | None = None, before: Callable[[DAG], object] | None = None, **settings: Any
    ) -> Tried:
        tasks = {
            name: self.task(settings.pop(name, None))
            for name in ("stop", "deploy", "start", "roll_back_code", "checks", "start_old", "stop_new")
            if name not in ("checks", "start_old", "stop_new") or name in settings
        }
        with DAG(f"upgrade_{uuid.uuid4().hex[:8]}", schedule=None) as dag:
            safe_upgrade(
                "u",
                **{
                    "checkpoint": str(self.checkpoint),
                    "repository": str(self.checkpoint.parents[1] / "backups"),
                    "preflight": None,
                    "approval": False,
                    "quiet_for": 0.1,
                    "rest_timeout": 30.0,
                    "stuck_after": 1.0,
                    "retries": 0,
                    "health": {"new_batches": 1, "warm_up": 0, "poll_interval": 0.1, "timeout": 3.0, **_ANY_PACE},
                    **tasks,
                    **settings,
                },
            )
        self.dag = dag
        if before:
            before(dag)
        self.run = self._run_dag(dag, **(run or {}))
        return self

    def go_on(self, task_id: str) -> None:
        """Clear a task and what comes after it, and let the run continue."""
        self.did.clear()
        super().go_on(task_id)

    def task(self, does: Any = None) -> Callable[[str], BaseOperator]:
        if isinstance(does, Made):
            return does.make

        def call(task_id: str) -> Any:
            self.did.append(task_id)
            return does() if does else None

        def make(task_id: str) -> BaseOperator:
            return PythonOperator(task_id=task_id, python_callable=call, op_args=[task_id], retries=0)

        return make

    def commit_a_batch(self) -> None:
        """What a stream does that was started: the next batch of the checkpoint, as far as anybody here looks."""
        for log in ("offsets", "commits"):
            shutil.copyfile(self.checkpoint / log / str(self.newest), self.checkpoint / log / str(self.newest + 1))

    @property
    def newest(self) -> int:
        return max(int(file.name) for file in (self.checkpoint / "commits").glob("[0-9]*"))

    @property
    def sealed(self) -> bool:
        return inspect_target(open_location(str(self.checkpoint))).seal is not None


@pytest.fixture
def tried(checkpoint: Path, run_dag: RunDag) -> Tried:
    return Tried(checkpoint, run_dag)


def skip() -> None:
    raise AirflowSkipException("not today")


def fail() -> None:
    raise RuntimeError("no cluster answers")


KEEP = {"sink": "foreachBatch", "sink_policy": "keep"}
BACK = ["stop_new", "roll_back_code", "start_old"]


@pytest.fixture
def spark_table(tried: Tried, tmp_path: Path) -> Path:
    """The sink, with a feature that only Spark restores."""
    query_id = tried.ckpt.progress().query_id
    assert query_id
    table = Path(delta_table(tmp_path / "table", range(NEWEST + 1), app_id=query_id).uri)
    edit_first(table, lambda text: text.replace(PROTOCOL, FEATURES))
    return table


def untouched(tried: Tried) -> None:
    assert (tried.failed, tried.did, tried.sealed) == (["begin", "report"], [], False)


def taken_back(tried: Tried, did: list[str]) -> None:
    assert (tried.report["kind"], tried.run.state, tried.sealed) == ("taken_back", "failed", False)
    assert tried.did == did


class TestRefusedBeforeTheStop:
    def test_no_sink_is_named(self, tried: Tried) -> None:
        """With its defaults."""
        untouched(tried.upgrade())

    @pytest.mark.slow
    def test_only_spark_restores_the_table(self, tried: Tried, spark_table: Path) -> None:
        untouched(tried.upgrade(sink=str(spark_table)))

    @pytest.mark.slow
    def test_txn_app_id_of_such_a_table(self, tried: Tried, spark_table: Path) -> None:
        untouched(tried.upgrade(sink=str(spark_table), sink_settings={"txn_app_id": "orders_app"}))

    @pytest.mark.slow
    def test_control_it_is_found_too_late(self, tried: Tried) -> None:
        """Accepted, it happens as it did before there was a dry run: stopped, then refused, and the stream stays down."""
        tried.upgrade(accept=["no_way_back"], start=lambda: (tried.commit_a_batch(), fail()))
        assert tried.failed == ["report", "restore", "start"]
        assert (tried.report["kind"], tried.report["clear"], tried.sealed) == ("half_way", "take_back", True)
        assert tried.did[0] == "stop"
        assert "* accepted (`no_way_back`): sink_not_named: " in result(tried.run, "u.plan")["markdown"]


class TestSkipped:
    def test_deploy(self, tried: Tried) -> None:
        taken_back(tried.upgrade(deploy=skip, start_old=tried.commit_a_batch, **KEEP), ["stop", "deploy", *BACK])
        assert "deploy (skipped)" in tried.report["markdown"]
        assert tried.report["clear"] is None

    @pytest.mark.slow
    def test_by_a_short_circuit_before_it(self, tried: Tried) -> None:
        def make(task_id: str) -> BaseOperator:
            gate = ShortCircuitOperator(
                task_id="gate", python_callable=lambda: False, ignore_downstream_trigger_rules=False
            )
            deploy = PythonOperator(task_id=task_id, python_callable=fail)
            gate >> deploy
            return deploy

        taken_back(tried.upgrade(deploy=Made(make), **KEEP), ["stop", *BACK])
        assert tried.tasks["deploy"] == "skipped"

    @pytest.mark.slow
    def test_checks(self, tried: Tried) -> None:
        taken_back(
            tried.upgrade(start=tried.commit_a_batch, checks=skip, start_old=tried.commit_a_batch, **KEEP),
            ["stop", "deploy", "start", "checks", *BACK],
        )

    @pytest.mark.slow
    def test_the_stop(self, tried: Tried) -> None:
        """The seal stops the stream, and the upgrade continues."""
        tried.upgrade(stop=skip, start=tried.commit_a_batch, **KEEP)
        assert (tried.report["kind"], tried.run.state, tried.sealed) == ("kept", "success", False)

    @pytest.mark.slow
    def test_the_stop_of_the_new_code(self, tried: Tried) -> None:
        """Nobody knows whether it runs: it stays sealed until a person has stopped it and marked the stop as successful."""
        tried.upgrade(start=fail, stop_new=skip, start_old=tried.commit_a_batch, **KEEP)
        assert (tried.report["kind"], tried.sealed) == ("half_way", True)
        assert (tried.tasks["stop_new"], tried.tasks["seal_again"]) == ("skipped", "success")
        assert tried.tasks["restore"] == "failed"

    @pytest.mark.slow
    def test_the_old_code_is_not_put_in_place(self, tried: Tried) -> None:
        tried.upgrade(start=fail, roll_back_code=skip, start_old=tried.commit_a_batch, **KEEP)
        assert (tried.report["kind"], tried.report["clear"], tried.sealed) == ("half_way", "take_back", True)
        tried.dag.get_task("u.roll_back_code").python_callable = tried.did.append
        tried.go_on("take_back")
        taken_back(tried, BACK)

    @pytest.mark.slow
    def test_the_old_code_is_not_started(self, tried: Tried) -> None:
        taken_back(tried.upgrade(start=fail, start_old=skip, **KEEP), ["stop", "deploy", "start", *BACK])
        assert tried.report["clear"] == "start_old"


def test_the_approval_is_rejected(tried: Tried, answer: Answer) -> None:
    tried.upgrade(approval=True, before=lambda dag: answer(dag.dag_id, "Reject", "u.approve"), **KEEP)
    assert (tried.report["kind"], tried.run.state, tried.did, tried.sealed) == ("untouched", "success", [], False)
    assert "### Way back" in result(tried.run, "u.plan")["markdown"]


@pytest.mark.slow
def test_start_timed_out(tried: Tried) -> None:
    def make(task_id: str) -> BaseOperator:
        never = threading.Event()
        timeout = timedelta(seconds=1) if task_id == "start" else None
        return PythonOperator(task_id=task_id, python_callable=never.wait, execution_timeout=timeout)

    taken_back(tried.upgrade(start=Made(make), start_old=tried.commit_a_batch, **KEEP), ["stop", "deploy", *BACK])
    assert tried.failed == ["report", "start"]


class TestMarkedSuccess:
    """Without having run."""

    @pytest.mark.slow
    def test_deploy(self, tried: Tried) -> None:
        """Whoever marks it answers for what is in place."""
        tried.upgrade(start=tried.commit_a_batch, run={"mark_success_pattern": r"u\.deploy"}, **KEEP)
        assert (tried.report["kind"], tried.did) == ("kept", ["stop", "start"])

    @pytest.mark.slow
    def test_seal(self, tried: Tried) -> None:
        """Nothing is sealed: `release` finds it."""
        tried.upgrade(start_old=tried.commit_a_batch, run={"mark_success_pattern": r"u\.seal$"}, **KEEP)
        assert "release" in tried.failed
        taken_back(tried, ["stop", "deploy", *BACK])

    def test_restore(self, tried: Tried) -> None:
        """The seal is there still: no Spark starts."""
        tried.upgrade(
            start=lambda: (tried.commit_a_batch(), fail()),
            start_old=lambda: None if tried.sealed else tried.commit_a_batch(),
            run={"mark_success_pattern": r"u\.restore"},
            **KEEP,
        )
        assert (tried.report["kind"], tried.report["clear"], tried.sealed) == ("half_way", "take_back", True)
        tried.go_on("take_back")
        taken_back(tried, BACK)
        assert tried.newest == NEWEST + 1


@pytest.mark.slow
def test_the_run_was_killed(tried: Tried) -> None:
    """None of our tasks runs after `deploy`, the report neither: as where a run is marked as failed, or its time is over."""
    tried.upgrade(
        deploy=skip,
        run={"mark_success_pattern": r"u\.(take_back|seal_again|at_rest|restore|healthy_old|report)"},
        **KEEP,
    )
    assert tried.sealed
    tried.go_on("take_back")
    taken_back(tried, BACK)
