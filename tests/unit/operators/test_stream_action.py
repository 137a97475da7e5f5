"""``StreamActionOperator``: what the declaration says is done, and a failure of it is one of the task."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
    TaskAwaitingInput,
)
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ckpt_provider.errors import WorkspaceError
from airflow_ckpt_provider.operators import job_actions
from airflow_ckpt_provider.operators.stream_action import (
    AFTER_STOP,
    BEGUN,
    CLEARS,
    StreamActionFailedError,
    StreamActionOperator,
)
from airflow_ckpt_provider.streams.stream import Stream
from tests.support.attempts import Task
from tests.support.waiting import wait_until


def stream(**fields: Any) -> Stream:
    return Stream("orders", checkpoint="/checkpoints/orders", **fields)


def act(of: Stream, action: str = "stop", **fields: Any) -> dict[str, Any]:
    task = StreamActionOperator(task_id="act", stream=of, action=action, **fields)
    context: Any = {"params": {}, "task": task}
    task.render_template_fields(context)
    return task.execute(context)


def test_a_command_runs_with_stream_action_and_version(tmp_path: Path) -> None:
    said = tmp_path / "said"
    of = stream(deploy=f'echo "$CKPT_STREAM $CKPT_ACTION $VERSION $CKPT_OPTIONS" > {said}')
    done = act(of, "deploy", version="2.7", options='{"options": {}}')
    assert done == {"stream": "orders", "action": "deploy", "way": "command"}
    assert said.read_text() == 'orders deploy 2.7 {"options": {}}\n'


def test_a_command_that_fails_fails_the_task_with_its_last_line() -> None:
    with pytest.raises(StreamActionFailedError, match="stop of orders: the command ended with 3: no such job"):
        act(stream(stop="echo no such job; exit 3"))
    with pytest.raises(StreamActionFailedError, match=r"22: could not reach https://stopper:\*\*\*@jobs/orders\n"):
        act(stream(stop="echo could not reach https://stopper:$(echo hunter2)@jobs/orders; exit 22"))


def test_a_command_runs_beside_the_file_that_declares_it(tmp_path: Path) -> None:
    (tmp_path / "stop.sh").write_text("#!/bin/sh\npwd > said\n")
    (tmp_path / "stop.sh").chmod(0o755)
    file = tmp_path / "streams.yaml"
    file.write_text("streams: {orders: {checkpoint: /checkpoints/orders, stop: ./stop.sh}}")
    StreamActionOperator(task_id="act", stream="orders", streams_file=str(file), action="stop").execute({})  # type: ignore[typeddict-item]
    assert (tmp_path / "said").read_text() == f"{tmp_path}\n"


def test_a_command_ends_with_its_task(tmp_path: Path) -> None:
    started = tmp_path / "started"
    task = StreamActionOperator(
        task_id="act",
        stream=stream(stop=f"trap 'exit 7' TERM; touch {started}; while :; do sleep 0.01; done"),
        action="stop",
    )
    with ThreadPoolExecutor() as threads:
        running = threads.submit(task.execute, {})  # type: ignore[arg-type]
        wait_until(started.exists)
        wait_until(lambda: getattr(task._under_way, "sub_process", None) is not None)  # Airflow calls it in one thread
        task.on_kill()
        with pytest.raises(StreamActionFailedError, match="the command ended with 7"):
            running.result()


@pytest.mark.parametrize("group", ["", "upgrade."])
def test_a_start_keeps_which_stop_it_came_after_also_where_it_fails(group: str) -> None:
    kept: dict[tuple[str, str], str] = {}

    class TaskInstance:
        def __init__(self, task_id: str) -> None:
            self.task_id = task_id

        def xcom_push(self, key: str, value: str) -> None:
            kept[self.task_id, key] = value

        def xcom_pull(self, *, task_ids: str, key: str) -> str | None:
            return kept.get((task_ids, key))

    def run(action: str) -> None:
        task_id = f"{group}{action}"
        task = StreamActionOperator(task_id=action, stream=stream(**{action: "exit 3"}), action=action)
        task.task_id = task_id
        with pytest.raises(StreamActionFailedError):
            task.execute({"ti": TaskInstance(task_id)})  # type: ignore[typeddict-item]

    run("start")
    assert kept[f"{group}start", AFTER_STOP] == ""
    run("stop")
    run("start")
    assert kept[f"{group}start", AFTER_STOP] == kept[f"{group}stop", BEGUN] != ""
    run("stop")
    assert kept[f"{group}start", AFTER_STOP] != kept[f"{group}stop", BEGUN]


class Writes(BaseOperator):
    """An operator of somebody else."""

    template_fields = ("words",)
    template_ext = (".sh",)

    def __init__(self, *, path: str, words: str, deferrable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.words = words
        self.deferrable = deferrable

    def execute(self, context: Any) -> None:
        """Write down."""
        Path(self.path).write_text(f"{self.words} {self.deferrable}")


def test_an_operator_is_made_rendered_and_executed_without_deferring(tmp_path: Path) -> None:
    arguments = {"path": str(tmp_path / "said"), "words": "{{ task.task_id }}"}
    of = stream(start={"operator": {"operator": f"{__name__}.Writes", "arguments": arguments}})
    assert act(of, "start")["way"] == "operator"
    assert (tmp_path / "said").read_text() == "act False"


@pytest.mark.parametrize("native", [False, True])
def test_an_operator_is_rendered_as_a_task_of_the_same_dag(tmp_path: Path, native: bool) -> None:
    (tmp_path / "words.sh").write_text("{{ two }}")
    arguments = {"path": str(tmp_path / "said"), "words": "words.sh"}
    of = stream(start={"operator": {"operator": f"{__name__}.Writes", "arguments": arguments}})
    dag = DAG(
        "starts",
        schedule=None,
        template_searchpath=str(tmp_path),
        user_defined_macros={"two": 2},
        render_template_as_native_obj=native,
    )
    act(of, "start", dag=dag)
    assert (tmp_path / "said").read_text() == "2 False"
    assert dag.task_ids == ["act"]


class Turns(BaseOperator):
    """An operator of somebody else that defers twice, and keeps what it needs in its deferrals alone."""

    def __init__(self, *, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path

    def execute(self, context: Any) -> None:
        """Defer."""
        self.defer(trigger=Fires(word="one"), method_name="again", kwargs={"words": ["none"]})

    def again(self, context: Any, event: Any, words: list[str]) -> None:
        """Defer once more, or end."""
        words = [*words, event]
        if len(words) < 3:
            self.defer(trigger=Fires(word="two"), method_name="again", kwargs={"words": words})
        Path(self.path).write_text(" ".join(words))


class Fires(BaseTrigger):
    """A trigger that fires at once."""

    def __init__(self, *, word: str) -> None:
        super().__init__()
        self.word = word

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """As Airflow keeps it."""
        return f"{__name__}.Fires", {"word": self.word}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire."""
        yield TriggerEvent(self.word)


def test_an_operator_that_defers_is_resumed_with_what_it_carried(tmp_path: Path) -> None:
    arguments = {"path": str(tmp_path / "said")}
    of = stream(start={"operator": {"operator": f"{__name__}.Turns", "arguments": arguments}})
    task = Task(lambda: StreamActionOperator(task_id="act", stream=of, action="start", deferrable=True))
    assert task.attempt() == {"stream": "orders", "action": "start", "way": "operator"}
    assert (tmp_path / "said").read_text() == "none one two"
    assert task.deferred == 2


class Asks(BaseOperator):
    """An operator of somebody else that asks a human, as those of Airflow do from 3.3 on."""

    def __init__(self, *, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path

    def execute(self, context: Any) -> None:
        """Ask."""
        raise TaskAwaitingInput(method_name="answered", kwargs={"question": "stop?"}, timeout=None)

    def answered(self, context: Any, event: Any, question: str) -> None:
        """Write down what was answered."""
        Path(self.path).write_text(f"{question} {event}")


@pytest.mark.parametrize("answer", ["yes", None])
def test_an_operator_that_asks_a_human_is_resumed_with_the_answer(tmp_path: Path, answer: str | None) -> None:
    of = stream(stop={"operator": {"operator": f"{__name__}.Asks", "arguments": {"path": str(tmp_path / "said")}}})
    task = StreamActionOperator(task_id="act", stream=of, action="stop")
    with pytest.raises(TaskAwaitingInput) as asked:
        task.execute({})  # type: ignore[typeddict-item]
    kwargs = json.loads(json.dumps(asked.value.kwargs)) | {"event": answer}
    again = StreamActionOperator(task_id="act", stream=of, action="stop")
    assert again.resume_execution(asked.value.method_name, kwargs, {})["way"] == "operator"  # type: ignore[typeddict-item]
    assert (tmp_path / "said").read_text() == f"stop? {answer}"


def test_an_operator_is_told_to_defer_where_its_task_may(tmp_path: Path) -> None:
    arguments = {"path": str(tmp_path / "said"), "words": "x"}
    of = stream(start={"operator": {"operator": f"{__name__}.Writes", "arguments": arguments}})
    act(of, "start", deferrable=True)
    assert (tmp_path / "said").read_text() == "x True"
    of = stream(start={"operator": {"operator": f"{__name__}.Writes", "arguments": arguments | {"deferrable": False}}})
    act(of, "start", deferrable=True)
    assert (tmp_path / "said").read_text() == "x False"


def test_a_declaration_that_is_gone_when_the_wait_is_over_is_an_error() -> None:
    task = StreamActionOperator(task_id="act", stream=stream(), action="start")
    with pytest.raises(
        StreamActionFailedError, match="orders declared `start` when this task began it, and does so no lo"
    ):
        task.execute_complete({}, event={"status": "done"})  # type: ignore[typeddict-item]
    task = StreamActionOperator(task_id="act", stream=stream(start="true"), action="start")
    with pytest.raises(StreamActionFailedError, match="orders declared a DAG as `start` when this task began it"):
        task.execute_complete({}, event=("", {}))  # type: ignore[typeddict-item]


def test_a_dag_that_is_waited_for_in_the_triggerer_ends_the_task_as_it_ended() -> None:
    task = StreamActionOperator(
        task_id="act", stream=stream(start={"dag": "start_orders"}), action="start", deferrable=True
    )
    with pytest.raises(DagRunTriggerException) as caught:
        task.execute({})  # type: ignore[typeddict-item]
    assert caught.value.deferrable is True  # the runner of tasks defers to `execute_complete` of this task
    ended: dict[str, Any] = {"dag_id": "start_orders", "run_ids": ["one"], "states": ["success", "failed"]}
    event = ("airflow.providers.standard.triggers.external_task.DagStateTrigger", ended | {"one": "success"})
    assert task.execute_complete({}, event=event) == {"stream": "orders", "action": "start", "way": "dag"}  # type: ignore[typeddict-item]
    with pytest.raises(AirflowException, match="start_orders failed"):
        task.execute_complete({}, event=(event[0], ended | {"one": "failed"}))  # type: ignore[typeddict-item]


def test_a_dag_is_triggered_and_waited_for() -> None:
    of = stream(start={"dag": {"dag_id": "start_orders", "conf": {"cluster": "blue"}}})
    with pytest.raises(DagRunTriggerException) as caught:  # Airflow's own way to trigger and wait
        act(of, "start")
    assert caught.value.trigger_dag_id == "start_orders"
    assert caught.value.conf == {"cluster": "blue", "stream": "orders", "action": "start", "version": None}
    assert caught.value.wait_for_completion is True
    with pytest.raises(DagRunTriggerException) as caught:
        act(of, "start", options='{"options": {"0": {"startingVersion": "42"}}}')
    assert caught.value.conf["options"] == {"options": {"0": {"startingVersion": "42"}}}


def test_a_stop_by_a_dag_that_airflow_waits_for_does_not_say_when_it_ended() -> None:
    """It knows only when the DAG was triggered: the stream commits batches until it is stopped."""
    kept: dict[str, str] = {}
    task = StreamActionOperator(task_id="stop", stream=stream(stop={"dag": "stop_orders"}), action="stop")
    ti = SimpleNamespace(xcom_push=kept.__setitem__)
    with pytest.raises(DagRunTriggerException):  # the runner of tasks waits, and then calls the task a success
        task.execute({"params": {}, "task": task, "ti": ti})  # type: ignore[typeddict-item]
    assert kept.keys() == {BEGUN, CLEARS}


def test_what_a_form_or_a_checkpoint_names_is_no_template_for_the_triggered_dag() -> None:
    of = stream(deploy={"dag": {"dag_id": "deploy_{{ 1 + 1 }}", "conf": {"cluster": "{{ task.task_id }}"}}})
    given = "{{ conn.vault.password }}"
    raw = "{% raw %}" + given + "{% endraw %}"  # as `{{ params.version }}` gives what is in the form
    with pytest.raises(DagRunTriggerException) as caught:
        act(of, "deploy", version=raw, options=json.dumps({"options": {raw: raw}}))
    assert caught.value.trigger_dag_id == "deploy_2"
    assert caught.value.conf["cluster"] == "act"
    assert (caught.value.conf["version"], caught.value.conf["options"]) == (given, {"options": {given: given}})


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, AirflowFailException, "orders declares no `stop`\nHINT: declare it"),
        ({"if_absent": "skip"}, AirflowSkipException, "orders declares no `stop`: do it by hand"),
        ({"wanted": "False"}, AirflowSkipException, "stop of orders is not wanted in this run"),
        ({"if_absent": "ignore"}, AirflowFailException, "if_absent is 'ignore'"),
    ],
)
def test_what_is_not_declared_fails_or_is_skipped(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        act(stream(), **fields)


def test_an_unknown_action_or_operator_is_refused() -> None:
    with pytest.raises(AirflowFailException, match="action is 'pause'"):
        act(stream(), "pause")
    with pytest.raises(AirflowFailException, match=r"no\.such\.Operator cannot be imported"):
        act(stream(stop={"operator": "no.such.Operator"}))


def test_a_kubernetes_application_needs_its_provider() -> None:
    from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

    with pytest.raises(AirflowOptionalProviderFeatureException, match="apache-airflow-providers-cncf-kubernetes"):
        act(stream(stop={"spark_application": {"name": "orders"}}))


class _ApiError(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


@pytest.fixture
def kubernetes_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the client, which the provider brings and this environment has not."""
    monkeypatch.setitem(sys.modules, "kubernetes", ModuleType("kubernetes"))
    monkeypatch.setitem(sys.modules, "kubernetes.client", SimpleNamespace(ApiException=_ApiError))


class _Kubernetes:
    """Applications as the Spark operator for Kubernetes keeps them: their states, one with each poll, the last one for ever."""

    def __init__(self, *states: str) -> None:
        self.created: dict[str, dict[str, Any]] = {}
        self.states = list(states)

    def create_custom_object(self, *, body: dict[str, Any], **_: str) -> None:
        manifest = body
        if manifest["metadata"]["name"] in self.created:
            raise _ApiError(409)
        self.created[manifest["metadata"]["name"]] = manifest

    def get_custom_object(self, *, name: str, **_: str) -> dict[str, Any]:
        if name not in self.created:
            raise _ApiError(404)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state == "deleted":
            raise _ApiError(404)
        message = {"errorMessage": "driver container failed with ExitCode: 1"} if state == "FAILED" else {}
        return self.created[name] | ({"status": {"applicationState": {"state": state, **message}}} if state else {})


MANIFEST = "kind: SparkApplication\nmetadata: {name: orders}\n"
STATES = ["", "SUBMITTED", "SUBMISSION_FAILED", "PENDING_RERUN", "SUBMITTED"]


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubernetes_client: None) -> Any:
    """Carry an action out that creates an application, on a cluster with these states of it."""

    def do_it(
        action: str, *states: str, manifest: str | None = MANIFEST, of: str = "orders", ti: Any = None, **how: Any
    ) -> _Kubernetes:
        cluster = _Kubernetes(*states)
        monkeypatch.setattr(job_actions, "_kubernetes", lambda _: cluster)
        file = tmp_path / "streams.yaml"
        way = f"{{spark_application: {{name: {of}, file: orders.yaml}}}}"
        file.write_text(f"streams: {{orders: {{checkpoint: /checkpoints/orders, {action}: {way}}}}}")
        if manifest is not None:
            (tmp_path / "orders.yaml").write_text(manifest)
        task = StreamActionOperator(
            task_id="act", stream="orders", streams_file=str(file), action=action, **{"poll_interval": 0, **how}
        )
        task.execute({} if ti is None else {"ti": ti})  # type: ignore[typeddict-item]
        return cluster

    return do_it


def test_the_manifest_of_an_application_is_beside_the_file_that_declares_it(created: Any, tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match=rf"{tmp_path}/orders\.yaml cannot be read: No such file"):
        created("start", "RUNNING", manifest=None)
    assert list(created("start", "RUNNING").created) == ["orders"]


def test_an_application_that_exists_is_not_created_again(
    created: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = created("start", "RUNNING")
    monkeypatch.setattr(sys.modules[__name__], "_Kubernetes", lambda *_: cluster)
    with pytest.raises(
        AirflowFailException, match="the application default/orders exists already\nHINT: see whether it is"
    ):
        created("start", "RUNNING")


@pytest.mark.parametrize(
    ("other", "is_found"),
    [
        ({"try_number": 2}, True),  # the worker was lost after it had created it
        ({"max_tries": 3}, False),  # cleared
        ({"run_id": "another"}, False),
        ({"manifest": MANIFEST + "spec: {mode: cluster}\n"}, False),
    ],
)
def test_a_retry_finds_the_application_that_it_has_created(
    other: dict[str, Any], is_found: bool, created: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: dict[str, Any] = {
        "dag_id": "d",
        "run_id": "r",
        "task_id": "start",
        "map_index": -1,
        "try_number": 1,
        "max_tries": 1,
    }
    first |= {"xcom_push": lambda *_: None, "xcom_pull": lambda **_: None}
    cluster = created("start", "RUNNING", ti=SimpleNamespace(**first))
    monkeypatch.setattr(sys.modules[__name__], "_Kubernetes", lambda *_: cluster)
    again = {"manifest": MANIFEST, **first, **other}
    how = {"manifest": again.pop("manifest"), "ti": SimpleNamespace(**again)}
    if is_found:
        assert created("start", "RUNNING", **how).states == ["RUNNING"]
    else:
        with pytest.raises(AirflowFailException, match="the application default/orders exists already"):
            created("start", "RUNNING", **how)


@pytest.mark.parametrize("last", ["RUNNING", "SUCCEEDING", "COMPLETED"])
def test_a_start_returns_once_the_driver_of_the_application_runs(created: Any, last: str) -> None:
    assert created("start", *STATES, last).states == [last]


def test_a_deploy_returns_once_its_application_has_completed(created: Any) -> None:
    assert created("deploy", *STATES, "RUNNING", "SUCCEEDING", "COMPLETED").states == ["COMPLETED"]


@pytest.mark.parametrize("action", ["start", "deploy"])
@pytest.mark.parametrize(
    ("last", "message"),
    [
        (
            "FAILED",
            r"the application default/orders has failed: driver container failed with ExitCode: 1\nHINT: see the log",
        ),
        ("deleted", r"the application default/orders was deleted\nHINT: see who deleted it"),
    ],
)
def test_an_application_that_fails_fails_its_task(created: Any, action: str, last: str, message: str) -> None:
    with pytest.raises(WorkspaceError, match=message):
        created(action, *STATES, last)


def test_an_application_that_does_not_get_there_is_named(created: Any) -> None:
    with pytest.raises(WorkspaceError, match=r"waited 0.05 s for default/orders to run\nHINT: see there why"):
        created("start", "SUBMITTED", timeout=0.05, poll_interval=0.01)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (
            "kind: SparkApplication\nmetadata: {name: orders-stream}",
            "metadata.name in orders.yaml is 'orders-stream', and",
        ),
        ("kind: SparkApplication\nmetadata: {generateName: orders-}", "metadata.name in orders.yaml is None, and"),
        (
            MANIFEST.replace("orders}", "orders, namespace: etl}"),
            "metadata.namespace in orders.yaml is 'etl', and the dec",
        ),
        (MANIFEST.replace("Spark", "ScheduledSpark"), "kind in orders.yaml is 'ScheduledSparkApplication', and the"),
        ("- kind", "kind in orders.yaml is None, and the declaration is about 'SparkApplication'"),
        ("kind: [", "orders.yaml is no YAML: "),
    ],
)
def test_a_manifest_of_another_application_is_refused(created: Any, manifest: str, message: str) -> None:
    """The stop would find no application of the declared name, and the stream would count as stopped."""
    with pytest.raises(AirflowFailException, match=message):
        created("start", "RUNNING", manifest=manifest)


@pytest.mark.usefixtures("kubernetes_client")
def test_a_stop_by_another_name_than_the_start_is_no_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application was created before its manifest was compared, and still runs."""
    cluster = _Kubernetes("RUNNING")
    monkeypatch.setattr(job_actions, "_kubernetes", lambda _: cluster)
    file = tmp_path / "streams.yaml"
    ways = "start: {spark_application: {name: orders, file: o.yaml}}, stop: {spark_application: {name: orders}}"
    file.write_text(f"streams: {{orders: {{checkpoint: /checkpoints/orders, {ways}}}}}")
    (tmp_path / "o.yaml").write_text("kind: SparkApplication\nmetadata: {name: orders-stream}")
    task = StreamActionOperator(task_id="act", stream="orders", streams_file=str(file), action="stop")
    with pytest.raises(AirflowFailException, match=r"metadata.name in o.yaml is 'orders-stream'"):
        task.execute({})  # type: ignore[typeddict-item]


class _Cluster:
    """An application whose object is deleted at once, and whose pods end later, as Kubernetes collects them."""

    def __init__(self, phases: list[list[str]], *, there: bool = True) -> None:
        self.there, self.phases, self.asked = there, phases, ""
        self.core_v1_client = self

    def get_custom_object(self, **_: str) -> dict[str, Any]:
        if not self.there:
            raise _ApiError(404)
        return {}

    def delete_custom_object(self, **_: str) -> None:
        self.get_custom_object()
        self.there = False

    def list_namespaced_pod(self, namespace: str, *, label_selector: str) -> Any:
        self.asked = f"{namespace}: {label_selector}"
        phases = self.phases.pop(0) if self.phases else []
        return SimpleNamespace(items=[SimpleNamespace(status=SimpleNamespace(phase=phase)) for phase in phases])


@pytest.mark.usefixtures("kubernetes_client")
@pytest.mark.parametrize("there", [True, False], ids=["deleted", "deleted-before"])
def test_an_application_is_stopped_when_its_driver_has_ended(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    cluster = _Cluster([["Running", "Running"], ["Running", "Succeeded"], ["Succeeded"], ["Running"]], there=there)
    monkeypatch.setattr(job_actions, "_kubernetes", lambda _: cluster)
    act(stream(stop={"spark_application": {"name": "orders", "namespace": "streams"}}), poll_interval=0)
    assert not cluster.there
    assert cluster.phases == [["Running"]]  # not asked any more
    assert cluster.asked == "streams: sparkoperator.k8s.io/app-name=orders"
