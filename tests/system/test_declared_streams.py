"""docs/howto/declare-streams.md, done as it says: a few lines of YAML, two of Python, and what Airflow then does with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.airflow_runs import Answer, RunDag, load_dags, result, states
from tests.support.checkpoints import logs, plant

pytestmark = pytest.mark.airflow

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "declare-streams.md"
NAMES = ("orders", "payments", "clicks")
Load = Callable[..., dict[str, DAG]]


def example(language: str) -> str:
    """The first example of a language in the how-to."""
    found = re.search(rf"^```{language}\n(.*?)^```", HOWTO.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


@pytest.fixture
def load(tmp_path: Path, checkpoint: Path) -> Load:
    """Write the two files of the how-to, with places of this machine, and load them as Airflow does."""
    for name, batches in (("payments", 3), ("clicks", 2)):
        plant(open_location(str(tmp_path / "checkpoints" / name)), logs(range(batches)))
    folder = tmp_path / "dags"
    folder.mkdir()

    def make(more: str = "", python: str = "") -> dict[str, DAG]:
        text = example("yaml").replace("s3://lake/checkpoints", str(tmp_path / "checkpoints"))
        text = text.replace("s3://backups/streams", str(tmp_path / "backups")).replace(
            "  storage_conn_id: aws_lake\n", ""
        )
        (folder / "streams.yaml").write_text(text + more)
        (folder / "streams.py").write_text(python or example("python"))
        return load_dags(folder)

    return make


def newest(place: Location) -> int | None:
    """The newest committed batch."""
    return Checkpoint.at(place).progress().latest_committed


def mapped(run: Any, task_id: str) -> dict[str, str]:
    """State of each mapped task, by the name that people see."""
    return {ti.rendered_map_index: str(ti.state) for ti in run.get_task_instances() if ti.task_id == task_id}


def test_a_few_lines_are_enough_for_nightly_verified_backups(load: Load, run_dag: RunDag, tmp_path: Path) -> None:
    assert len(lines(example("yaml"))) <= 12
    assert len(lines(example("python"))) <= 3
    dags = load()
    backup = dags["ckpt_backup_daily"]
    assert backup.timetable.expression == "0 0 * * *"  # type: ignore[attr-defined]
    run = run_dag(backup)
    assert mapped(run, "stream.back_up") == mapped(run, "stream.verify") == dict.fromkeys(NAMES, "success")
    repository = Repository.open(open_location(str(tmp_path / "backups")))
    assert sorted(repository.names()) == sorted(NAMES)
    for number, name in enumerate(NAMES):
        report = result(run, "stream.verify", map_index=number)
        assert (report["name"], report["ok"]) == (name, True)
        assert report["backup_id"] == result(run, "stream.back_up", map_index=number)["backup_id"]
        assert repository.manifest("latest", name=name).reason == "scheduled"


def test_one_that_fails_fails_alone_and_its_notifier_is_called(load: Load, run_dag: RunDag, tmp_path: Path) -> None:
    told = tmp_path / "told"
    dags = load(
        f"    notifiers: [{{notifier: tests.system.test_declared_streams.WritesDown, arguments: {{path: {told}}}}}]\n",
    )
    (tmp_path / "checkpoints" / "clicks" / "offsets" / "1").write_bytes(b"torn")
    for task in dags["ckpt_backup_daily"].tasks:
        task.retries = 0
    run = run_dag(dags["ckpt_backup_daily"])
    assert mapped(run, "stream.back_up") == {"orders": "success", "payments": "success", "clicks": "failed"}
    assert mapped(run, "stream.verify")["payments"] == "success"
    assert told.read_text() == "stream.back_up"


class WritesDown:
    """A notifier: what Airflow calls with the context of a task."""

    def __init__(self, *, path: str) -> None:
        self._path = Path(path)

    def __call__(self, context: Any) -> None:
        self._path.write_text(context["task"].task_id)


def test_a_lost_checkpoint_is_restored_by_the_form(load: Load, run_dag: RunDag, tmp_path: Path) -> None:
    dags = load(
        f"    stop: echo stop $CKPT_STREAM >> {tmp_path}/acts\n    start: echo start $CKPT_STREAM >> {tmp_path}/acts\n"
    )
    run_dag(dags["ckpt_backup_daily"])
    place = open_location(str(tmp_path / "checkpoints" / "clicks"))
    before = newest(place)
    (tmp_path / "checkpoints" / "clicks").rename(tmp_path / "lost")
    planned = run_dag(dags["ckpt_restore"], run_conf={"stream": "clicks", "mode": "plan"})
    assert states(planned)["restore"] == "skipped"
    assert not (tmp_path / "checkpoints" / "clicks").exists()
    run = run_dag(dags["ckpt_restore"], run_conf={"stream": "clicks", "mode": "apply", "approval": False})
    assert run.state == "success", states(run)
    assert result(run, "restore", "outcome")["target"] == str(tmp_path / "checkpoints" / "clicks")
    assert newest(place) == before
    assert (tmp_path / "acts").read_text() == "stop clicks\nstart clicks\n"


@pytest.mark.slow
def test_a_stream_without_actions_is_stopped_and_started_by_hand(load: Load, run_dag: RunDag, tmp_path: Path) -> None:
    dags = load()
    run_dag(dags["ckpt_backup_daily"])
    run = run_dag(
        dags["ckpt_rewind"],
        run_conf={
            "stream": "payments",
            "mode": "apply",
            "approval": False,
            "to": "shift_by",
            "value": "-1",
            "query_is_stopped": True,
            "sink_policy": "keep",
            "accept": ["sink_unknown", "source_loss"],
        },
    )
    assert run.state == "success", states(run)
    assert (states(run)["stop"], states(run)["rewind"], states(run)["start"]) == ("skipped", "success", "skipped")
    assert newest(open_location(str(tmp_path / "checkpoints" / "payments"))) == 1
    undone = run_dag(dags["ckpt_undo"], run_conf={"stream": "payments", "approval": False, "query_is_stopped": True})
    assert states(undone)["undo"] == "success"
    assert newest(open_location(str(tmp_path / "checkpoints" / "payments"))) == 2


@pytest.mark.slow
def test_the_report_judges_each_stream_by_its_own_limits(load: Load, run_dag: RunDag, tmp_path: Path) -> None:
    dags = load("    objectives: {rpo: 1s}\n    backup: {schedule: 1s}\n")
    assert {"ckpt_backup_daily", "ckpt_backup_1s"} <= set(dags)
    run_dag(dags["ckpt_backup_daily"])
    report = run_dag(dags["ckpt_report"])
    problems = result(report, "report", "report")["problems"]
    assert set(problems) == {
        str(tmp_path / "checkpoints" / "clicks")
    }  # never backed up; the others are not judged by age
    limits = {s["name"]: s for s in result(report, "report", "report")["streams"]}
    assert set(limits) == set(NAMES)


WATCH = """
from airflow.providers.standard.operators.python import PythonOperator

from airflow_ckpt_provider.dag_factory.stream_dags import StreamDags, stream_dags
from airflow_ckpt_provider.sensors.kafka_time_to_loss import KafkaTimeToLossSensor


class Short(StreamDags):
    def task(self, operator, task_id, **arguments):
        if operator is KafkaTimeToLossSensor:  # no broker here: what it reports when it fires
            report = {"verdict": "WILL_LOSE", "reasons": ["orders-0 is read by nobody"]}
            return PythonOperator(task_id=task_id, python_callable=lambda: report)
        return super().task(operator, task_id, **arguments)


stream_dags("streams.yaml", factory=Short)
"""


@pytest.mark.slow
def test_an_alarm_names_the_stream_and_tells_its_notifiers(load: Load, run_dag: RunDag, tmp_path: Path) -> None:
    told = tmp_path / "told"
    dags = load(
        "    sources: {kafka: {conn_id: kafka_prod}}\n"
        f"    notifiers: [{{notifier: tests.system.test_declared_streams.WritesDown, arguments: {{path: {told}}}}}]\n",
        WATCH,
    )
    run = run_dag(dags["ckpt_watch"])
    assert mapped(run, "stream.alarm") == {"clicks": "failed"}
    assert told.read_text() == "stream.alarm"


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "becomes"), [("Reject", "skipped"), ("Approve", "success")])
def test_nothing_is_stopped_or_changed_before_the_approval(
    load: Load, run_dag: RunDag, answer: Answer, tmp_path: Path, choice: str, becomes: str
) -> None:
    dags = load(f"    stop: echo stop >> {tmp_path}/acts\n")
    run_dag(dags["ckpt_backup_daily"])
    (tmp_path / "checkpoints" / "clicks").rename(tmp_path / "lost")
    answer("ckpt_restore", choice)
    run = run_dag(dags["ckpt_restore"], run_conf={"stream": "clicks", "mode": "apply"})
    assert states(run)["restore"] == states(run)["stop"] == becomes
    assert (tmp_path / "checkpoints" / "clicks").exists() is (tmp_path / "acts").exists() is (choice == "Approve")
