"""``stream_dags``: which DAGs a declaration makes, their forms, what can be changed, and how long it takes."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_ckpt_provider.dag_factory.scheduled import too_little
from airflow_ckpt_provider.dag_factory.stream_dags import StreamDags, stream_dags
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.declared import DeclaredOperator
from airflow_ckpt_provider.operators.stream_action import AFTER_STOP, BEGUN, CLEARS, ENDED
from airflow_ckpt_provider.streams.problems import DeclarationError
from airflow_ckpt_provider.streams.stream import Backup, Stream
from tests.support.declared_dags import DECLARED, write
from tests.support.other_sources import FILE, checkpoint

MANUAL = {"restore", "rewind", "reset", "undo", "upgrade"}


@pytest.fixture
def dags(tmp_path: Path) -> dict[str, DAG]:
    return stream_dags(write(tmp_path))


def test_a_dag_of_each_kind_is_made_and_the_backups_by_their_schedules(dags: dict[str, DAG]) -> None:
    backups = {"ckpt_backup_1h": ["orders"], "ckpt_backup_daily": ["clicks"], "ckpt_backup_30_2_x_x_x": ["views"]}
    scheduled = {"ckpt_retention", "ckpt_report", "ckpt_watch", "ckpt_incidents", "ckpt_drill"}
    assert set(dags) == {*backups, *scheduled, *(f"ckpt_{kind}" for kind in MANUAL)}
    for dag_id, names in backups.items():
        assert dags[dag_id].task_group.children["stream"]._expand_input.value == {"stream": names}  # type: ignore[attr-defined]
    assert dags["ckpt_backup_1h"].schedule.total_seconds() == 3600  # type: ignore[union-attr]
    assert dags["ckpt_backup_30_2_x_x_x"].schedule == "30 2 * * *"
    # Another schedule is another DAG: the backups would end where it is made paused.
    assert {dag_id for dag_id, dag in dags.items() if dag.is_paused_upon_creation is False} == set(backups)
    assert dags["ckpt_retention"].tags == {"checkpoint", "gold"}
    assert {task.owner for task in dags["ckpt_backup_1h"].tasks} == {"team-orders"}


def test_what_no_stream_declares_is_not_made() -> None:
    made = stream_dags([Stream("a", checkpoint="/a")])
    assert set(made) == {"ckpt_backup_daily", "ckpt_report", "ckpt_incidents", "ckpt_rewind", "ckpt_reset", "ckpt_undo"}


def test_no_dag_can_be_backfilled(dags: dict[str, DAG]) -> None:
    """Thirty backups of today, for thirty days: rules that count would then remove the backups of these days."""
    for dag in dags.values():
        allowed = {str(each.value) for each in dag.allowed_run_types or ()}
        assert {"scheduled", "manual", "asset_triggered"} <= allowed, dag.dag_id
        assert "backfill" not in allowed, dag.dag_id


def test_every_task_of_ours_takes_the_stream_from_the_file(dags: dict[str, DAG], tmp_path: Path) -> None:
    for dag in dags.values():
        for task in dag.tasks:
            if isinstance(task, DeclaredOperator):
                assert task.streams_file == str(tmp_path / "streams.yaml")


@pytest.mark.parametrize("kind", sorted(MANUAL))
def test_a_form_cannot_be_sent_without_a_stream_and_can_with_one(dags: dict[str, DAG], kind: str) -> None:
    """As Airflow's form does it: a field that may not be empty starts empty, and is marked; no field is required unseen."""
    form = dags[f"ckpt_{kind}"].params
    params = {name: form.get_param(name).serialize() for name in form}

    def wrong(values: dict[str, Any]) -> list[str]:
        checked = {name: values.get(name, param["value"]) for name, param in params.items()}
        return [
            name
            for name, param in params.items()
            if not jsonschema.Draft202012Validator(param["schema"]).is_valid(checked[name])
        ]

    # Only one stream can be upgraded, so it is filled in.
    filled = {"version": "2.7"} if kind == "upgrade" else {"stream": "orders"}
    assert wrong({}) == list(filled)
    assert wrong(filled) == []
    assert wrong({**filled, "stream": "ordres"}) == ["stream"]
    for name, param in params.items():
        assert param["value"] != "", name
        assert param["schema"]["title"], name


def test_the_upgrade_is_for_streams_that_declare_how(dags: dict[str, DAG]) -> None:
    assert dags["ckpt_upgrade"].params.get_param("stream").schema["enum"] == ["orders"]
    assert dags["ckpt_restore"].params.get_param("stream").schema["enum"] == ["orders", "clicks", "views"]
    assert dags["ckpt_upgrade"].params["stream"] == "orders"  # the only one


def test_a_relative_file_is_beside_the_file_of_dags_and_airflow_finds_the_dags(tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    write(tmp_path)
    (tmp_path / "streams.py").write_text(
        'from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags\n\nstream_dags("streams.yaml")\n'
    )
    bag = DagBag(dag_folder=str(tmp_path))
    assert bag.import_errors == {}
    assert {"ckpt_backup_1h", "ckpt_restore"} <= set(bag.dags)


def test_all_problems_of_the_file_are_the_import_error(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"(?s)has 2 problems.*line 4.*line 5"):
        stream_dags(write(tmp_path, "streams:\n  a:\n    checkpoint: /a\n    max_downtme: 1h\n    tags: {}\n"))


def test_the_dags_survive_serialisation_and_are_the_same_each_time(tmp_path: Path) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    file = write(tmp_path)

    def serialised() -> dict[str, str]:
        return {
            name: json.dumps(DagSerialization.to_dict(dag), sort_keys=True) for name, dag in stream_dags(file).items()
        }

    first = serialised()
    assert first == serialised()
    assert not [name for name, text in first.items() if " object at 0x" in text]


def test_a_task_can_be_changed_and_tasks_added_around(tmp_path: Path) -> None:
    class Ours(StreamDags):
        report_schedule = "@daily"

        def task(self, operator: Any, task_id: str, **arguments: Any) -> Any:
            if operator is CheckpointBackupOperator:
                arguments["restorable_batches"] = 5
            return super().task(operator, task_id, **arguments)

        def around(self, dag: DAG) -> None:
            if dag.dag_id.endswith("_restore"):
                dag.get_task("start") >> BashOperator(task_id="open_ticket", bash_command="true")

        def report(self) -> DAG:
            with DAG("my_report", schedule=None) as dag:
                BashOperator(task_id="report", bash_command="true")
            return dag

    made = stream_dags(write(tmp_path), factory=Ours, default_args={"retries": 7}, tags=["data"])
    backup = made["ckpt_backup_1h"].get_task("stream.back_up")
    assert (backup.restorable_batches, backup.retries) == (5, 7)  # type: ignore[union-attr]
    assert made["ckpt_restore"].get_task("open_ticket").upstream_task_ids == {"start"}
    assert "my_report" in made
    assert "ckpt_report" not in made
    assert made["ckpt_undo"].tags == {"data", "gold"}


def test_streams_of_python_need_no_file() -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    streams = [Stream(name, checkpoint=f"/checkpoints/{name}", repository="/backups") for name in ("orders", "clicks")]
    for dag in stream_dags(streams).values():
        DagSerialization.to_dict(dag)
        for task in dag.tasks:
            if isinstance(task, DeclaredOperator):
                assert task.declared_streams()["clicks"] is streams[1]


def test_each_stream_can_have_dags_of_its_own(tmp_path: Path) -> None:
    made = stream_dags(write(tmp_path), per_stream=True)
    assert {"ckpt_orders_backup_1h", "ckpt_orders_upgrade", "ckpt_clicks_backup_daily", "ckpt_clicks_restore"} <= set(
        made
    )
    assert "ckpt_clicks_upgrade" not in made
    assert made["ckpt_clicks_restore"].params["stream"] == "clicks"


@pytest.mark.parametrize(
    ("one", "other"), [("0 1,5 * * *", "0 1-5 * * *"), ("*/5 * * * *", "*,5 * * * *"), ("0 0 * * 1#2", "0 0 * * 1,2")]
)
def test_streams_of_two_schedules_are_both_backed_up(one: str, other: str) -> None:
    streams = [
        Stream(name, checkpoint=f"/c/{name}", repository="/b", backup=Backup(schedule=schedule))
        for name, schedule in (("orders", one), ("clicks", other), ("views", one.replace(" ", "  ", 1)))
    ]
    backups = [dag for name, dag in stream_dags(streams).items() if name.startswith("ckpt_backup_")]
    assert sorted(len(dag.task_group.children["stream"]._expand_input.value["stream"]) for dag in backups) == [1, 2]


def test_a_watch_that_cannot_look_any_more_fails_and_one_whose_hour_has_passed_is_skipped(dags: dict[str, DAG]) -> None:
    watch = dags["ckpt_watch"].get_task("stream.time_to_loss")
    with pytest.raises(CkptError, match="no such bucket"):
        watch.resume_execution("execute_complete", {"event": {"status": "error", "message": "no such bucket"}}, {})  # type: ignore[typeddict-item]
    with pytest.raises(AirflowSkipException):
        watch.resume_execution("execute_complete", {"event": {"status": "timeout"}}, {})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(("declared", "error"), [("file", AirflowSkipException), ("kafka", AirflowFailException)])
def test_a_watch_skips_a_stream_without_a_kafka_source_unless_it_declares_one(
    tmp_path: Path, declared: str, error: type[Exception]
) -> None:
    """The connection is that of all streams: every hour the watch of one that reads files failed."""
    orders = {"checkpoint": checkpoint(tmp_path / "orders", FILE), "sources": {declared: {}}}
    file = write(tmp_path, yaml.safe_dump({"defaults": {"kafka_conn_id": "kafka"}, "streams": {"orders": orders}}))
    watch: Any = stream_dags(file)["ckpt_watch"]
    given = watch.task_group.children["stream"]._expand_input.value[0]
    task = watch.get_task("stream.time_to_loss")
    for name, value in given.items():
        assert getattr(task, name)._key == name  # what the group is mapped over, as Airflow renders it
        setattr(task, name, value)
    task.after_rendering()
    with pytest.raises(error, match="has no kafka source"):
        task.execute({})


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            {"verdict": "SAFE", "reasons": [], "sources": [{"seconds_left": 7200.0}, {"seconds_left": None}]},
            "orders: Kafka keeps what it has not read for 2 h more, less than 1 d",
        ),
        (
            {"verdict": "WILL_LOSE", "reasons": ["7 records are gone"], "sources": [{"seconds_left_estimate": 0.0}]},
            "orders: WILL_LOSE: 7 records are gone; Kafka keeps what it has not read for 0.0 s more, less than 1 d",
        ),
        ({"verdict": "WILL_FAIL", "reasons": [], "sources": []}, "orders: WILL_FAIL"),
    ],
)
def test_an_alarm_says_how_much_time_is_left(report: dict[str, Any], said: str) -> None:
    declared = Stream("orders", checkpoint="/c", kafka_conn_id="kafka", max_downtime="24h")  # type: ignore[arg-type]
    assert too_little(declared, report) == said


@pytest.mark.parametrize("kind", ["restore", "rewind", "reset", "undo"])
def test_nothing_comes_before_the_approval_but_a_plan(kind: str, dags: dict[str, DAG]) -> None:
    dag = dags[f"ckpt_{kind}"]
    assert dag.params["approval"] is True
    assert dag.get_task("approve").get_flat_relative_ids(upstream=True) <= {"plan", "what_next"}
    assert {"stop", kind, "start"} <= dag.get_task("ready").get_flat_relative_ids(upstream=False)
    assert dag.get_task("ready").upstream_task_ids == {"what_next", "approve"}


def test_no_dag_shares_a_field_of_its_form_with_another(dags: dict[str, DAG]) -> None:
    """Airflow writes the values of a run into the fields of the DAG that ran."""
    dags["ckpt_restore"].params["approval"] = False
    try:
        assert [dags[f"ckpt_{kind}"].params["approval"] for kind in ("rewind", "reset", "undo")] == [True] * 3
    finally:
        dags["ckpt_restore"].params["approval"] = True


CLEARED_ONCE = SimpleNamespace(clear_number=1)


@dataclass
class TaskInstance:
    """What the templates ask of Airflow's: states and XComs of the tasks of this run."""

    states: dict[str, str]
    kept: dict[tuple[str, str], Any]
    dag_id: str = "ckpt_rewind"
    run_id: str = "r"

    def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
        return dict.fromkeys(run_ids, self.states)

    def xcom_pull(self, task_ids: str, key: str = "return_value") -> Any:
        return self.kept.get((task_ids, key))


@pytest.mark.parametrize("kind", ["restore", "rewind", "reset", "undo"])
@pytest.mark.parametrize(
    ("states", "kept", "stopped"),
    [
        ({"stop": "success"}, {("stop", BEGUN): "a"}, "True"),
        ({"stop": "success"}, {("stop", BEGUN): "a", ("start", AFTER_STOP): "a"}, "False"),
        ({"stop": "success"}, {("stop", BEGUN): "a", ("start_again", AFTER_STOP): "a"}, "False"),
        ({"stop": "success"}, {("stop", BEGUN): "b", ("start", AFTER_STOP): "a"}, "True"),
        ({"stop": "success"}, {("start", AFTER_STOP): ""}, "False"),  # another operator in the place of ours stops it
        ({"stop": "success"}, {}, "True"),
        ({"stop": "success"}, {("stop", BEGUN): "a", ("stop", CLEARS): 1}, "True"),
        ({"stop": "success"}, {("stop", BEGUN): "a", ("stop", CLEARS): 0}, "False"),  # cleared without the stop
        ({"stop": "skipped"}, {}, "False"),
    ],
)
def test_a_stop_is_no_word_about_a_stream_that_was_started_since(
    kind: str, states: dict[str, str], kept: dict[tuple[str, str], str], stopped: str, dags: dict[str, DAG]
) -> None:
    change, kept = dags[f"ckpt_{kind}"].get_task(kind), dict(kept)
    context: Any = {"ti": TaskInstance(states, kept), "params": {"query_is_stopped": False}, "dag_run": CLEARED_ONCE}
    assert change.render_template(change.query_is_stopped, context) == stopped
    # The stop is a DAG, or another operator in the place of ours: the task after it says when.
    kept["stopped", "return_value"] = "2026-11-26T03:59:00+00:00"
    dated = change.render_template(change.stopped_since, context)
    assert dated == (kept["stopped", "return_value"] if stopped == "True" else "")
    assert dags[f"ckpt_{kind}"].get_task("stopped").upstream_task_ids == {"stop"}
    assert "stopped" in change.upstream_task_ids
    kept["stop", ENDED] = "2026-11-26T04:00:00+00:00"
    dated = change.render_template(change.stopped_since, context)
    assert dated == (kept["stop", ENDED] if stopped == "True" else "")
    context["params"]["query_is_stopped"] = True  # the form was sent when the run was started
    assert change.render_template(change.query_is_stopped, context) == "True"
    assert change.render_template(change.stopped_since, context) == dated


@pytest.mark.parametrize("kind", ["restore", "rewind", "reset", "undo"])
def test_what_is_applied_is_what_the_plan_showed(kind: str, dags: dict[str, DAG]) -> None:
    change = dags[f"ckpt_{kind}"].get_task(kind)
    shown = {"approval": {"risks": ["sink_duplicates"]}, "plan": {"of": "4711"}, "markdown": "### Undo"}
    context: Any = {"ti": TaskInstance({}, {("plan", "return_value"): shown}), "params": {"plan_id": None}}
    if kind == "undo":
        assert change.render_template(change.plan_id, context) == "4711"
    else:
        assert json.loads(change.render_template(change.approval, context)) == shown["approval"]
    assert change.render_template(dags[f"ckpt_{kind}"].get_task("approve").body, context) == "### Undo"
    assert dags[f"ckpt_{kind}"].get_task("plan").mode == "plan"


@pytest.mark.parametrize("kind", ["restore", "rewind", "reset", "undo"])
@pytest.mark.parametrize(
    ("form", "states", "kept", "wanted"),
    [
        ({}, {"stop": "success"}, {"unchanged": True}, "True"),
        ({}, {"stop": "success"}, {"unchanged": False}, "False"),
        ({}, {"stop": "success"}, {}, "False"),  # it failed otherwise, or was not begun
        ({}, {"stop": "failed"}, {"unchanged": True}, "False"),
        ({"start": False}, {"stop": "success"}, {"unchanged": True}, "False"),
        ({"query_is_stopped": True}, {"stop": "success"}, {"unchanged": True}, "False"),  # by hand, before the run
    ],
)
def test_a_stream_is_started_again_where_its_change_was_refused(
    kind: str, form: dict[str, Any], states: dict[str, str], kept: dict[str, Any], wanted: str, dags: dict[str, DAG]
) -> None:
    again = dags[f"ckpt_{kind}"].get_task("start_again")
    assert (again.trigger_rule, again.upstream_task_ids, again.retries) == ("all_failed", {kind}, 0)
    xcoms = {("stop", BEGUN): "a", **{(kind, key): value for key, value in kept.items()}}
    params = {"start": True, "query_is_stopped": False, **form}
    context: Any = {"ti": TaskInstance(states, xcoms), "params": params, "dag_run": CLEARED_ONCE}
    assert again.render_template(again.wanted, context) == wanted


@pytest.mark.parametrize("kind", ["restore", "rewind", "reset"])
def test_what_must_be_accepted_is_asked_for_before_the_stream_is_stopped(kind: str, dags: dict[str, DAG]) -> None:
    plan = dags[f"ckpt_{kind}"].get_task("plan")
    for mode, asked in (("plan", "False"), ("apply", "True")):
        context: Any = {"params": {"mode": mode, "accept": ["sink_unknown"]}}
        assert plan.render_template(plan.must_be_accepted, context) == asked
        assert plan.render_template(plan.accept, context) == "['sink_unknown']"


@pytest.mark.parametrize("kind", ["restore", "rewind", "reset", "undo"])
def test_a_start_that_failed_is_not_repeated(kind: str, dags: dict[str, DAG]) -> None:
    assert dags[f"ckpt_{kind}"].get_task("start").retries == 0
    assert dags[f"ckpt_{kind}"].get_task("stop").retries == 2


def test_two_streams_whose_dags_would_have_one_id_are_refused() -> None:
    streams = [Stream(name, checkpoint=f"/c/{name}", repository="/b") for name in ("day=1", "day_1")]
    assert "ckpt_restore" in stream_dags(streams)
    with pytest.raises(RefusedError, match="two DAGs would have the id ckpt_day_1_"):
        stream_dags(streams, per_stream=True)


def test_300_streams_are_parsed_without_a_network_and_at_little_more_than_the_cost_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"network: {args}")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    one = DECLARED.partition("  clicks:")[0]
    shared, _, body = one.partition("  orders:\n")
    many = shared + "".join(
        f"  orders{n}:\n{body.replace('checkpoints/orders', f'checkpoints/orders{n}')}" for n in range(300)
    )
    stream_dags(write(tmp_path, one))  # loads what is loaded at the first use

    def seconds(text: str, place: Path) -> tuple[int, float]:
        place.mkdir()
        file = write(place, text)
        began = time.thread_time()
        made = stream_dags(file)
        return len(made), time.thread_time() - began

    few, base = seconds(one, tmp_path / "one")
    # Each from a file of its own, for a file is read once. The shortest: whatever else the machine does can only add to it.
    number, taken = min(seconds(many, tmp_path / f"many{n}") for n in range(3))
    assert number == few  # the number of DAGs does not grow
    # Measured: 0.4 to 0.7 s on two busy cores, for the first time in a process.
    assert taken < base + 1.5, (base, taken)


def test_declared_dags_load_nothing_that_reads_a_store(tmp_path: Path) -> None:
    """What parses files of DAGs does it every half a minute: the core is loaded when a task runs."""
    program = (
        "import sys; from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags; "
        f"stream_dags({str(write(tmp_path, DECLARED))!r}); "
        "print(*(name.split('.', 1)[1] for name in sys.modules if name.startswith('airflow_ckpt_provider.')))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert "operators.restore" in loaded
    heavy = ("storage", "guards", "lakeflow", "page", "lineage", "upgrade", "checkpoint.checkpoint", "change.engine")
    assert [name for name in loaded if name.startswith(heavy)] == []


APPLICATION = """
defaults:
  checkpoint: s3://lake/checkpoints/{stream}
  repository: s3://backups/streams
  stop: ./stop.sh shop
  start: ./start.sh shop
  deploy: ./deploy.sh shop
  roll_back: ./roll_back.sh shop
streams:
  orders: {application: shop}
  returns: {application: shop}
  clicks:
  bought: {application: ads}
  seen: {application: ads, stop: ./other.sh}
"""


@pytest.mark.parametrize("per_stream", [False, True])
def test_the_queries_of_an_application_are_upgraded_together(tmp_path: Path, per_stream: bool) -> None:
    """And not one by one: their application is stopped. Of `ads` the streams do not agree how."""
    made = stream_dags(write(tmp_path, APPLICATION), per_stream=per_stream)
    alone = "ckpt_clicks_upgrade" if per_stream else "ckpt_upgrade"
    assert {dag_id for dag_id in made if "upgrade" in dag_id} == {alone, "ckpt_upgrade_shop"}
    if not per_stream:
        assert made[alone].params.get_param("stream").schema["enum"] == ["clicks"]
    dag = made["ckpt_upgrade_shop"]
    assert dag.task_dict["upgrade.restore"].streams == ("orders", "returns")
    assert {"upgrade.drained.orders", "upgrade.drained.returns"} <= set(dag.task_dict)
    assert [dag.task_dict[f"upgrade.{each}"].stream for each in ("stop", "start_old")] == ["orders", "orders"]
    assert dag.task_dict["upgrade.start"].retries == 0
