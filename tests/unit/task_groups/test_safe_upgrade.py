"""How an upgrade is wired: what runs when something before it failed, was refused or is left out."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, BaseOperator, TriggerRule

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.stream_action import ENDED
from airflow_ckpt_provider.operators.upgrade_modes import MODES
from airflow_ckpt_provider.task_groups.safe_upgrade import safe_upgrade
from airflow_ckpt_provider.upgrade.drained import tags_of

FORWARD = ["seal", "drained", "final_backup", "deploy", "release", "start", "healthy", "keep"]
BACK = ["take_back", "stop_new", "seal_again", "at_rest", "roll_back_code", "restore", "start_old", "healthy_old"]


def mine(task_id: str) -> BaseOperator:
    return EmptyOperator(task_id=task_id)


def upgrade(**given: Any) -> dict[str, Any]:
    """Task id within the group -> task."""
    mode = given.get("mode")
    settings: dict[str, Any] = {
        "checkpoint": "s3://lake/checkpoints/orders",
        "repository": "s3://lake/backups",
        "stop": None if mode == "last-state" else mine,
        "start": mine,
        "deploy": mine,
        "roll_back_code": mine,
        "shadow": mine if mode == "shadow" else None,
        **given,
    }
    with DAG("orders_upgrade", schedule=None) as dag:
        safe_upgrade(**settings)
    return {task_id.removeprefix("safe_upgrade."): task for task_id, task in dag.task_dict.items()}


def follows(tasks: dict[str, Any], task_id: str) -> set[str]:
    return {t.removeprefix("safe_upgrade.") for t in tasks[task_id].downstream_task_ids}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_stops_seals_and_can_go_back(mode: str) -> None:
    tasks = upgrade(mode=mode)
    order = [t for t in tasks if t in FORWARD]
    assert order == FORWARD
    assert ("stop" in tasks) is (mode != "last-state")
    assert ("shadow" in tasks) is (mode == "shadow")
    assert ("new_checkpoint" in tasks) is (mode == "stateless")
    assert {t for t in BACK if t not in tasks} == ({"stop_new"} if mode == "last-state" else set())
    # Whatever does not succeed once the stream may be stopped is undone: nothing is between two of them that could run.
    chain = [t for t in tasks if t in {*FORWARD, "stop", "go", "positions", "new_checkpoint"}]
    assert all(second in follows(tasks, first) for first, second in pairwise(chain) if first != "go")
    assert {t for t in tasks if "take_back" in follows(tasks, t)} == {"keep"}
    assert tasks["take_back"].trigger_rule == TriggerRule.ALL_DONE
    assert tasks["report"].trigger_rule == TriggerRule.ALL_DONE


@pytest.mark.parametrize(("state", "stopped"), [("success", "True"), ("failed", "False"), (None, "False")])
def test_the_new_checkpoint_counts_the_query_as_stopped_where_the_stop_was_successful(
    state: str | None, stopped: str
) -> None:
    task = upgrade(mode="stateless")["new_checkpoint"]
    states = {"run": {"safe_upgrade.stop": state}}
    ti = SimpleNamespace(dag_id="dag", run_id="run", get_task_states=lambda dag_id, run_ids: states)
    assert task.render_template(task.query_is_stopped, {"ti": ti}) == stopped


@pytest.mark.parametrize(
    ("kept", "since"),
    [
        ({"stop": "11:00", "seal": "11:01", "stop_new": "12:00", "seal_again": "12:01"}, ("11:00", "12:00")),
        # A task of one's own, a DAG, or one that a person has marked does not say when it ended.
        ({"seal": "11:01", "seal_again": "12:01"}, ("11:01", "12:01")),
        ({}, (None, None)),
    ],
)
def test_a_stop_is_dated_by_itself_or_by_the_seal_that_follows_it(
    kept: dict[str, str], since: tuple[str | None, str | None]
) -> None:
    """Not from the start of the run: the stream commits batches until it is stopped."""
    tasks = upgrade(mode="stateless")
    days = {f"safe_upgrade.{task_id}": f"2026-11-26T{at}:00+00:00" for task_id, at in kept.items()}
    ti = SimpleNamespace(xcom_pull=lambda task_ids, key: days.get(task_ids) if key == ENDED else None)
    anew, back = (at and f"2026-11-26T{at}:00+00:00" for at in since)
    assert tasks["new_checkpoint"].render_template(tasks["new_checkpoint"].stopped_since, {"ti": ti}) == (anew or "")
    assert tasks["restore"]._ended({"ti": ti}) == back


def test_nothing_before_the_approval_can_start_the_way_back() -> None:
    tasks = upgrade(rehearse=mine, description="s3://lake/d.json", raise_retention_to_at_most="7d", kafka_config_id="k")
    for task_id in (
        "begin",
        "preflight",
        "backup",
        "compatible",
        "rehearse",
        "plan",
        "approve",
        "raise_retention",
        "stop",
    ):
        assert "take_back" not in follows(tasks, task_id)


def test_the_seal_is_put_whatever_the_stop_did() -> None:
    tasks = upgrade()
    assert {t for t in tasks if "seal" in follows(tasks, t)} == {"stop"}
    assert (tasks["seal"].trigger_rule, tasks["seal"].after) == (TriggerRule.ALL_DONE, "go")
    assert (tasks["seal_again"].trigger_rule, tasks["seal_again"].after) == (TriggerRule.ALL_DONE, "take_back")
    assert tasks["stop"].execution_timeout.total_seconds() == 600


def test_a_stop_has_its_own_deadline() -> None:
    tasks = upgrade(stop=lambda task_id: EmptyOperator(task_id=task_id, execution_timeout=timedelta(hours=1)))
    assert tasks["stop"].execution_timeout == timedelta(hours=1)


def test_what_is_left_out_is_said() -> None:
    assert [words.partition(":")[0] for words in upgrade(preflight=None, approval=False)["begin"].skipped] == [
        "preflight",
        "comparison",
        "rehearsal",
        "approval",
        "checks of the new rows",
    ]
    everything = upgrade(
        description="d", rehearse=mine, checks=mine, sink="s3://lake/tables/orders", kafka_config_id="kafka"
    )
    assert everything["begin"].skipped == ()


def test_the_form_has_the_plan() -> None:
    tasks = upgrade()
    assert tasks["approve"].body == "{{ ti.xcom_pull(task_ids='safe_upgrade.plan')['markdown'] }}"
    assert tasks["approve"].defaults == ["Reject"]


def test_the_retention_is_put_back_whatever_happened() -> None:
    tasks = upgrade(raise_retention_to_at_most="7d", kafka_config_id="kafka")
    assert tasks["retention_back"].trigger_rule == TriggerRule.ALL_DONE
    assert {t for t in tasks if "retention_back" in follows(tasks, t)} == {"keep", "take_back", "healthy_old"}
    assert tasks["preflight"].max_downtime is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": "blue-green"}, "mode is 'blue-green'"),
        ({"stop": None}, "no task stops the stream"),
        ({"mode": "last-state", "stop": mine}, "a task is to stop it"),
        ({"mode": "shadow", "shadow": None}, "shadow is not given"),
        ({"shadow": mine}, "shadow is given"),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        upgrade(**given)


def test_nothing_may_skip_the_way_back() -> None:
    """`ShortCircuitOperator` skips the report too, by default."""

    def deploy(task_id: str, **given: Any) -> BaseOperator:
        gate = ShortCircuitOperator(task_id="gate", python_callable=lambda: False, **given)
        task = EmptyOperator(task_id=task_id)
        gate >> task
        return task

    with pytest.raises(RefusedError, match=r"safe_upgrade\.gate skips all that comes after it"):
        upgrade(deploy=deploy)
    assert "deploy" in upgrade(deploy=lambda task_id: deploy(task_id, ignore_downstream_trigger_rules=False))


def test_old_names_work_with_a_warning() -> None:
    with pytest.warns(
        AirflowProviderDeprecationWarning, match="`sink_exit` is deprecated. Use `sink_policy`"
    ) as warned:
        tasks = upgrade(sink_exit="accept")
    assert warned[0].filename == __file__
    assert {tasks[t].sink_policy for t in ("begin", "go", "restore")} == {"keep"}
    with pytest.warns(AirflowProviderDeprecationWarning, match=r"`accept_foreign_loss` is deprecated") as warned:
        tasks = upgrade(accept_foreign_loss="{{ params.x }}")
    assert len(warned) == 1
    assert {tasks[t].accept_foreign_loss for t in ("begin", "go", "restore")} == {"{{ params.x }}"}
    with pytest.raises(RefusedError, match="sink_exit and sink_policy are given"):
        upgrade(sink_exit="accept", sink_policy="keep")
    with pytest.raises(TypeError, match="unexpected keyword argument 'sinks'"):
        upgrade(sinks="s3://lake/tables/orders")


def test_a_declared_stream_stands_for_the_places() -> None:
    from airflow_ckpt_provider.operators.declared import DeclaredOperator

    tasks = upgrade(checkpoint=None, repository=None, stream="{{ params.stream }}", streams_file="/dags/streams.yaml")
    ours = [task for task in tasks.values() if isinstance(task, DeclaredOperator)]
    assert len(ours) > 10
    for task in ours:
        assert (task.stream, task.streams_file) == ("{{ params.stream }}", "/dags/streams.yaml")
        assert getattr(task, "checkpoint", None) is getattr(task, "repository", None) is None
    with pytest.raises(RefusedError, match="checkpoint or repository is missing\nHINT: give both, or stream"):
        upgrade(checkpoint=None)


def several(**given: Any) -> dict[str, Any]:
    """The tasks of an upgrade of two declared streams."""
    return upgrade(**{"checkpoint": None, "repository": None, "streams": ["orders", "returns=eu"], **given})


def test_the_way_back_finds_the_final_backup_by_its_tags() -> None:
    for tasks in (upgrade(), several()):
        for task_id in (t for t in tasks if t.startswith("final_backup")):
            assert tasks[task_id].tags == tags_of("{{ dag.dag_id }}/{{ run_id }}")


class TestSeveralStreams:
    """Of one application: what stops, starts and decides is there once, the rest for each stream."""

    def test_each_stream_is_looked_at_by_itself(self) -> None:
        tasks = several(raise_retention_to_at_most="7d", description={"orders": "a", "returns=eu": "b"})
        parts = {task_id.partition(".")[0] for task_id in tasks if "." in task_id}
        assert parts == {
            *("preflight", "backup", "compatible", "raise_retention", "drained", "final_backup", "healthy"),
            *("at_rest", "healthy_old", "retention_back"),
        }
        for part in parts:
            assert {t for t in tasks if t.startswith(f"{part}.")} == {f"{part}.orders", f"{part}.returns_eu"}
            assert [tasks[f"{part}.{name}"].stream for name in ("orders", "returns_eu")] == ["orders", "returns=eu"]
        once = {"begin", "plan", "approve", "go", "stop", "seal", "deploy", "release", "start", "keep", "report"}
        once |= {"take_back", "stop_new", "seal_again", "roll_back_code", "restore", "start_old"}
        assert set(tasks) == {*once, *(f"{part}.{name}" for part in parts for name in ("orders", "returns_eu"))}
        assert tasks["compatible.returns_eu"].description == "b"

    def test_each_waits_for_all(self) -> None:
        tasks = several()
        for before, after in (("drained", "final_backup"), ("final_backup", "deploy"), ("start", "healthy")):
            firsts = [t for t in tasks if t.partition(".")[0] == before]
            seconds = {t for t in tasks if t.partition(".")[0] == after}
            assert all(seconds <= follows(tasks, first) for first in firsts)
        assert {t for t in tasks if "take_back" in follows(tasks, t)} == {"keep"}
        assert {t for t in tasks if "keep" in follows(tasks, t)} == {"healthy.orders", "healthy.returns_eu"}

    def test_retention_is_put_back_in_the_reverse_order(self) -> None:
        """Two streams may read one topic: side by side each put back what the other had set, or lowered it."""
        tasks = several(raise_retention_to_at_most="7d")
        assert follows(tasks, "raise_retention.orders") >= {"raise_retention.returns_eu"}
        assert follows(tasks, "retention_back.returns_eu") >= {"retention_back.orders"}
        assert "go" in follows(tasks, "raise_retention.returns_eu")
        assert "go" not in follows(tasks, "raise_retention.orders")
        for end in ("keep", "take_back", "healthy_old.orders", "healthy_old.returns_eu"):
            assert "retention_back.returns_eu" in follows(tasks, end)
        assert "report" in follows(tasks, "retention_back.orders")

    def test_each_gets_what_is_its_own(self) -> None:
        tasks = several(raise_retention_to_at_most="7d")
        assert tasks["release"].backup_id == {
            "orders": "{{ ti.xcom_pull(task_ids='safe_upgrade.final_backup.orders')['backup_id'] }}",
            "returns=eu": "{{ ti.xcom_pull(task_ids='safe_upgrade.final_backup.returns_eu')['backup_id'] }}",
        }
        assert tasks["healthy.returns_eu"].baseline == (
            "{{ ti.xcom_pull(task_ids='safe_upgrade.release')['streams']['returns=eu']['baseline'] | tojson }}"
        )
        assert "raise_retention.returns_eu', key='raised'" in tasks["retention_back.returns_eu"].raised
        for task_id in ("begin", "go", "seal", "release", "keep", "restore", "report"):
            assert tasks[task_id].streams == ("orders", "returns=eu")

    def test_an_application_that_is_declared(self) -> None:
        from airflow_ckpt_provider.streams.stream import Stream
        from airflow_ckpt_provider.streams.streams import Streams

        declared = Streams(
            Stream(name, checkpoint=f"/ck/{name}", repository="/backups", application=of)
            for name, of in (("orders", "shop"), ("returns", "shop"), ("clicks", None))
        )
        tasks = several(streams=(), application="shop", streams_file=declared)
        assert [str(stream) for stream in tasks["go"].streams] == ["orders", "returns"]
        with pytest.raises(RefusedError, match="no stream with application: shops"):
            several(streams=(), application="shops", streams_file=declared)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"mode": "stateless"}, "mode is 'stateless', which is for one stream"),
            ({"sink": "/t"}, "sink is given, and 2 streams are upgraded"),
            ({"stream": "orders"}, "stream is given"),
            ({"streams": ["a", "a"]}, "two of the streams are a"),
            ({"streams": ["a=b", "a_b"]}, "two of the streams are a_b"),
            ({"description": "s3://d.json"}, "description is one for 2 streams"),
            ({"description": {"orders": "d"}}, "description and the streams differ: returns=eu"),
            ({"rehearse": {"clicks": mine}}, "rehearse and the streams differ: clicks"),
            ({"sink_policy": {"clicks": "keep"}}, "sink_policy and the streams differ: clicks"),
        ],
    )
    def test_what_does_not_go_together(self, given: dict[str, Any], says: str) -> None:
        with pytest.raises(RefusedError, match=says):
            several(**given)

    def test_rehearsals_of_each(self) -> None:
        given = {"orders": mine, "returns=eu": mine}
        reports = {"orders": "s3://a.json", "returns=eu": "s3://b.json"}
        tasks = several(rehearse=given, rehearsal_report=reports)
        assert {t for t in tasks if t.startswith("rehearse.")} == {"rehearse.orders", "rehearse.returns_eu"}
        assert tasks["plan"].rehearsal_report == reports
        assert [words.partition(":")[0] for words in tasks["begin"].skipped] == ["comparison", "checks of the new rows"]
