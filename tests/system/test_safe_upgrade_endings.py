"""How a run of `safe_upgrade` can end in a real Airflow: nothing is stopped in vain, and nothing stays down silently."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.sdk import BaseOperator

from tests.support.airflow_runs import Answer, RunDag, result
from tests.support.delta_batches import delta_table
from tests.support.one_checkpoint import NEWEST
from tests.support.upgrade_beginnings import FEATURES, PROTOCOL, edit_first
from tests.support.upgrade_tries import BACK, Made, Tried, fail, skip

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]


@pytest.fixture
def tried(checkpoint: Path, run_dag: RunDag) -> Tried:
    return Tried(checkpoint, run_dag)


KEEP = {"sink": "foreachBatch", "sink_policy": "keep"}


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
    @pytest.mark.slow
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

    @pytest.mark.slow
    def test_seal_and_the_cluster_manager_starts_what_is_deployed(self, tried: Tried) -> None:
        """Nobody has released the new code, and it has written a batch: that is put back."""
        tried.upgrade(
            deploy=tried.commit_a_batch,
            start_old=tried.commit_a_batch,
            run={"mark_success_pattern": r"u\.seal$"},
            **KEEP,
        )
        taken_back(tried, ["stop", "deploy", *BACK])
        assert tried.newest == NEWEST + 1
        assert f"were put back to batch {NEWEST} " in tried.report["markdown"]

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
def test_once_the_way_back_has_begun_the_new_code_is_not_kept(tried: Tried) -> None:
    """The check was wrong, not the code; it is corrected, and cleared with all that comes after it."""
    tried.upgrade(accept=["no_way_back"], start=tried.commit_a_batch, checks=fail)
    assert (tried.report["kind"], tried.sealed) == ("half_way", True)
    assert "clear the first task that did not succeed" not in tried.report["markdown"]
    tried.dag.get_task("u.checks").python_callable = tried.did.append
    tried.go_on("checks")
    assert {"keep", "report"} <= {*tried.failed}
    assert (tried.report["kind"], tried.run.state, tried.sealed) == ("half_way", "failed", True)


class TestClearedAfterItsEnd:
    """Nothing of the user runs: a stop would stop a stream that nobody starts again, and a deploy change what runs next."""

    @pytest.mark.slow
    def test_the_stop_of_a_kept_one(self, tried: Tried) -> None:
        tried.upgrade(start=tried.commit_a_batch, **KEEP)
        tried.go_on("stop")
        assert (tried.did, tried.sealed, tried.report["kind"]) == ([], False, "kept")
        assert {"stop", "seal"} <= {*tried.failed}

    @pytest.mark.slow
    @pytest.mark.parametrize("task_id", ["stop", "deploy", "start", "stop_new", "roll_back_code"])
    def test_a_task_of_one_that_was_rolled_back(self, tried: Tried, task_id: str) -> None:
        tried.upgrade(start=fail, start_old=tried.commit_a_batch, stop_new=lambda: None, **KEEP)
        tried.go_on(task_id)
        taken_back(tried, [])
        assert task_id in tried.failed

    @pytest.mark.slow
    def test_the_start_of_the_old_code_runs(self, tried: Tried) -> None:
        """The report names it, where nobody has started the stream."""
        tried.upgrade(start=fail, start_old=skip, **KEEP)
        tried.dag.get_task("u.start_old").python_callable = lambda task_id: tried.did.append(task_id)
        tried.go_on("start_old")
        assert tried.did == ["start_old"]


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
