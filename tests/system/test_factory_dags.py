"""The DAGs that `stream_dags` makes, run by Airflow on real checkpoints: each kind that tests of other files do not run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.drills import last_drill
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from demo.orders import Arrivals
from demo.upgrade import commands
from demo.upgrade.checks import wrong_seconds
from demo.upgrade.place import Place
from tests.support.airflow_runs import Answer, RunDag, result, states
from tests.support.checkpoints import logs, plant
from tests.support.declared_dags import declare_in
from tests.support.drilled_stream import STREAM
from tests.support.growing_streams import DiskStream
from tests.support.kafka_broker import KafkaBroker
from tests.support.one_checkpoint import NEWEST
from tests.support.real_airflow import RealAirflow, ran
from tests.support.streams.data import put_files
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

CHECKOUT = Path(__file__).parents[2]
TOLD = "{notifier: tests.system.test_declared_streams.WritesDown, arguments: {path: PATH}}"
_HOUR = 3_600_000
_META = '{"batchWatermarkMs":0,"batchTimestampMs":1795000000000,"conf":{}}'

Declare = Callable[[str], dict[str, DAG]]


@pytest.fixture
def declare(tmp_path: Path) -> Declare:
    """Write a `streams.yaml` with a file of DAGs beside it, and load it as Airflow does."""
    return partial(declare_in, tmp_path)


def newest(checkpoint: Path) -> int | None:
    return Checkpoint.at(open_location(str(checkpoint))).progress().latest_committed


def test_retention_keeps_what_its_rules_keep(
    declare: Declare, run_dag: RunDag, repository: Path, tmp_path: Path
) -> None:
    place = open_location(str(tmp_path / "checkpoints" / "orders"))
    dags = declare(f"streams: {{orders: {{checkpoint: {place}, repository: {repository}, retention: {{last: 1}}}}}}")
    for batches in (3, 4):
        plant(place, logs(range(batches)))
        assert run_dag(dags["ckpt_backup_daily"]).state == "success"
    kept = Repository.open(open_location(str(repository)))
    _, newer = kept.backup_ids("orders")
    run = run_dag(dags["ckpt_retention"])
    assert states(run) == {"stream.expire": "success"}
    assert kept.backup_ids("orders") == (newer,)


def test_a_reset_gives_a_new_checkpoint_and_is_undone(
    declare: Declare, run_dag: RunDag, checkpoint: Path, repository: Path, tmp_path: Path
) -> None:
    acts = tmp_path / "acts"
    act = f"echo $CKPT_ACTION $CKPT_OPTIONS >> {acts}"
    dags = declare(
        f"streams: {{orders: {{checkpoint: {checkpoint}, repository: {repository}, sinks: foreachBatch, "
        f"stop: '{act}', start: '{act}'}}}}"
    )
    form = {"stream": "orders", "way": "keep-position", "reason": "deduplication added"}
    planned = run_dag(dags["ckpt_reset"], run_conf={**form, "mode": "plan"})
    assert (states(planned)["plan"], states(planned)["reset"]) == ("success", "skipped")
    assert newest(checkpoint) == NEWEST
    # Whether a start hands the options on, which the new checkpoint needs, only its owner knows: it is not started unasked.
    run = run_dag(dags["ckpt_reset"], run_conf={**form, "mode": "apply", "approval": False})
    assert run.state == "success", states(run)
    assert states(run)["start"] == "skipped"
    assert result(run, "reset", "outcome")["start"] == NEWEST
    assert not (checkpoint / "commits").exists()
    undone = run_dag(dags["ckpt_undo"], run_conf={"stream": "orders", "approval": False})
    assert undone.state == "success", states(undone)
    assert newest(checkpoint) == NEWEST
    run = run_dag(dags["ckpt_reset"], run_conf={**form, "mode": "apply", "approval": False, "start": True})
    assert run.state == "success", states(run)
    *before, started = acts.read_text().splitlines()
    assert before == ["stop", "stop", "start", "stop"]
    options = {key: result(run, "reset", "outcome")[key] for key in ("options", "conf")}
    assert json.loads(started.removeprefix("start ")) == options == {"options": {"0": {}}, "conf": {}}


def test_a_stream_is_not_stopped_for_a_risk_and_started_again_where_its_change_is_refused(
    declare: Declare, run_dag: RunDag, repository: Path, tmp_path: Path
) -> None:
    place, acts = open_location(str(tmp_path / "checkpoints" / "orders")), tmp_path / "acts"
    act = f"echo $CKPT_ACTION >> {acts}"
    dag = declare(
        f"streams: {{orders: {{checkpoint: {place}, repository: {repository}, sinks: foreachBatch, "
        f"stop: '{act}', start: '{act}'}}}}"
    )["ckpt_restore"]
    plant(place, logs(range(4)))
    kept = Repository.open(open_location(str(repository)))
    create_backup(Checkpoint.at(place), kept, name="orders")
    plant(place, logs(range(6)))
    form = {"stream": "orders", "mode": "apply", "approval": False}
    asked = run_dag(dag, run_conf=form)
    assert (asked.state, states(asked)["plan"], acts.exists()) == ("failed", "failed", False)
    for file in (repository / "objects" / "orders").rglob("*"):
        if file.is_file():
            file.write_bytes(bytes(file.stat().st_size))
    refused = run_dag(dag, run_conf={**form, "accept": ["sink_duplicates", "sink_unknown", "source_loss"]})
    found = states(refused)
    assert {task: found[task] for task in ("plan", "stop", "restore", "start", "start_again")} == {
        "plan": "success", "stop": "success", "restore": "failed", "start": "upstream_failed", "start_again": "success"
    }  # fmt: skip
    assert refused.state == "failed"
    assert acts.read_text().split() == ["stop", "start"]
    assert newest(tmp_path / "checkpoints" / "orders") == 5


@pytest.fixture
def topic(kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic that keeps records for 40 hours; the first unread one is an hour old."""
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_CK", json.dumps({"conn_type": "kafka", "extra": kafka_broker.config}))
    name = kafka_broker.create(retention_ms=40 * _HOUR)
    kafka_broker.put(name, [10], start_ms=int(time.time() * 1000) - _HOUR)
    return name


@pytest.mark.slow
def test_the_watch_is_calm_alarms_and_fails_where_nobody_answers(
    declare: Declare, run_dag: RunDag, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, told = tmp_path / "checkpoints" / "orders", tmp_path / "told"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"4f0bd2c5-0e5d-4b3c-8b1c-1f6d4a1f8f0a"}')
    (checkpoint / "offsets" / "0").write_text(f'v1\n{_META}\n{{"{topic}":{{"0":5}}}}')
    (checkpoint / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')

    def watched(max_downtime: str) -> Any:
        told.unlink(missing_ok=True)
        dags = declare(
            f"streams: {{orders: {{checkpoint: {checkpoint}, kafka_conn_id: kafka_ck, max_downtime: {max_downtime}, "
            f"notifiers: [{TOLD.replace('PATH', str(told))}]}}}}"
        )
        watch: Any = dags["ckpt_watch"].get_task("stream.time_to_loss")
        watch.timeout, watch.poke_interval = 1.0, 0.2  # not for an hour
        return run_dag(dags["ckpt_watch"])

    calm = watched("6h")
    assert states(calm) == {"stream.time_to_loss": "skipped", "stream.alarm": "skipped"}
    assert not told.exists()
    alarmed = watched("39h")
    assert states(alarmed) == {"stream.time_to_loss": "success", "stream.alarm": "failed"}
    assert told.read_text() == "stream.alarm"
    extra = {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 300}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_CK", json.dumps({"conn_type": "kafka", "extra": extra}))
    unreachable = watched("6h")
    assert states(unreachable) == {"stream.time_to_loss": "failed", "stream.alarm": "upstream_failed"}
    assert told.read_text() == "stream.time_to_loss"


@pytest.mark.slow
@pytest.mark.spark
def test_the_drill_proves_each_stream_that_has_one(
    declare: Declare, run_dag: RunDag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    production, module = tmp_path / "production" / "orders", tmp_path / "orders_stream.py"
    module.write_text(STREAM.replace("@INPUT@", str(tmp_path / "in" / "a")).replace("@CHECKPOINT@", str(production)))
    put_files(tmp_path / "in", 3)
    subprocess.run([sys.executable, module], check=True, timeout=240, cwd=tmp_path)
    repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    create_backup(Checkpoint.at(open_location(str(production))), repository)
    put_files(tmp_path / "in", 2, start=3)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{CHECKOUT}")
    dags = declare(
        f"defaults:\n  repository: {tmp_path}/backups\n"
        f"streams:\n  orders:\n    checkpoint: {production}\n"
        f"    drill: {{build: 'orders_stream:build', scratch: {tmp_path}/scratch, output_mode: update, batches: 2}}\n"
        f"  clicks: {{checkpoint: {tmp_path}/production/clicks}}\n"
    )
    run = run_dag(dags["ckpt_drill"])
    assert {ti.rendered_map_index: str(ti.state) for ti in run.get_task_instances()} == {"orders": "success"}
    proof = last_drill(repository, "orders")
    assert proof is not None
    assert (proof.report["verdict"], proof.to_json()["batches"]) == ("SAFE", 2)
    assert proof.report["production"][0]["unchanged"] is True


@dataclass
class Running:
    """A stream of real Spark, with orders that arrive.

    :param place: where it is.
    """

    place: Place

    def wait_for_batches(self, count: int) -> None:
        wait_until((self.place.checkpoint / "commits").exists, "its first batch", within=300)
        first = newest(self.place.checkpoint) or 0
        wait_until(lambda: (newest(self.place.checkpoint) or 0) >= first + count, f"{count} batches", within=300)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    place = Place(tmp_path / "stream")
    place.orders.mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    Repository.open_or_create(open_location(str(tmp_path / "backups")))
    arrivals = Arrivals(place.orders, files=1500, every=0.5, again=10)
    arrivals.start()
    commands.deploy(place, "1")
    commands.start(place)
    try:
        yield Running(place)
    finally:
        arrivals.end()
        commands.kill(place)


@pytest.mark.slow
@pytest.mark.spark
def test_a_stream_is_upgraded_and_a_bad_version_is_taken_back(
    declare: Declare, run_dag: RunDag, answer: Answer, running: Running, tmp_path: Path
) -> None:
    place = running.place
    program = shlex.join([sys.executable, "-m", "demo.upgrade.commands", str(place.root)])

    def command(verb: str) -> str:
        return f"cd {CHECKOUT} && {program} {verb}"

    running.wait_for_batches(8)
    dags = declare(
        f"""
streams:
  orders:
    checkpoint: {place.checkpoint}
    repository: {tmp_path}/backups
    sinks: {place.table}
    driver: {{progress_log: {place.progress}, log: {place.log}}}
    stop: {command("stop")}
    start: {command("start")}
    deploy: {command('deploy "$VERSION"')}
    roll_back: {command('roll-back "$VERSION"')}
"""
    )
    dag = dags["ckpt_upgrade"]
    answer("ckpt_upgrade", "Approve", "upgrade.approve")
    good = run_dag(dag, run_conf={"stream": "orders", "version": "2", "reason": "tax"})
    assert good.state == "success", states(good)
    assert result(good, "upgrade.report")["kind"] == "kept"
    assert place.deployed == ["1", "2"]
    assert place.driver
    answer("ckpt_upgrade", "Approve", "upgrade.approve")
    bad = run_dag(dag, run_conf={"stream": "orders", "version": "3-crash-at-start"})
    assert bad.state == "failed"
    assert result(bad, "upgrade.report", "report")["kind"] == "taken_back"
    assert place.deployed == ["1", "2"]
    assert place.driver
    running.wait_for_batches(2)
    commands.stop(place)
    assert wrong_seconds(place.table) == []


@pytest.mark.slow
def test_an_incident_starts_its_dag_by_the_triggerer_and_tells_the_notifiers(tmp_path: Path) -> None:
    stream, told, home = (
        ran(DiskStream(tmp_path / "orders").start(), range(30)),
        tmp_path / "told",
        tmp_path / "airflow",
    )
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "streams.yaml").write_text(
        # Not as the store spells it.
        f"streams: {{orders: {{checkpoint: 'file://{tmp_path}//orders/', watch: {{stuck_after: 30s}}, "
        f"notifiers: [{TOLD.replace('PATH', str(told))}]}}}}"
    )
    (home / "dags" / "streams.py").write_text(
        "from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags\n\n"
        'stream_dags("streams.yaml", default_args={"retries": 0})\n'
    )
    airflow = RealAirflow(home)
    try:
        airflow.wait_until_healthy(within=600)
        airflow.wait_until(lambda: airflow.ask("dags/ckpt_incidents")["dag_id"], "it is known", within=300)
        stream.log(30, age=60)
        # Before, of the backup, which has no repository.
        airflow.wait_until(
            lambda: told.exists() and told.read_text() == "tell", "somebody is told of the incident", within=400
        )
        (run,) = airflow.ask("dags/ckpt_incidents/dagRuns")["dag_runs"]
        assert run["state"] in ("running", "success")
    finally:
        airflow.end()
