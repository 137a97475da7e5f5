"""Upgrades of a real stream, Kafka to Delta, by a real Airflow: bad ones, good ones, and the naive way as a control.

A bad one ends on the old version with the rows of a stream that never failed, or is stopped before anything has changed. Whatever
happens, rows are compared in the end with those of a stream that ran without an interruption.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.record import Event, begin_upgrade, newest_upgrade, note
from tests.support.airflow_runs import Answer, RunDag, answer, known, metadata_database, run_dag
from tests.support.kafka_broker import KafkaBroker
from tests.support.safe_upgrades.stream import Stream
from tests.support.safe_upgrades.upgrades import (
    Upgrade,
    contiguous,
    make_upgrade,
    timeouts_are_noticed,
    worker_dies,
)
from tests.support.safe_upgrades.versions import PER_BATCH, STARTING
from tests.support.streams.spark_host import SparkHost, coordinates

__all__ = ["answer", "known", "metadata_database", "run_dag"]

pytestmark = [pytest.mark.spark, pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(900)]

MakeStream = Callable[..., Stream]
Run = Callable[..., Upgrade]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHost]:
    """One Spark for all upgrades."""
    host = SparkHost(tmp_path_factory.mktemp("spark") / "spark.log", packages=coordinates("spark-jars.txt"))
    yield host
    host.kill()


@pytest.fixture
def make_stream(host: SparkHost, kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[MakeStream]:
    """Make the stream of a test and let it run; it is ended afterwards."""
    made: list[Stream] = []

    def make(*, begin: bool = True, **settings: Any) -> Stream:
        topic = kafka_broker.create(partitions=2, **settings.pop("topic_settings", {}))
        made.append(Stream(host, kafka_broker, tmp_path / "stream", topic, **settings))
        if begin:
            made[-1].begin()
        return made[-1]

    yield make
    for stream in made:
        stream.end()


@pytest.fixture
def upgrade(run_dag: RunDag) -> Run:
    """Upgrade a stream, and come back when the run has ended."""

    def run(stream: Stream, to: str, *, before: Callable[[DAG], object] | None = None, **changes: Any) -> Upgrade:
        found = make_upgrade(stream, to, **changes)
        if before:
            before(found.dag)
        began = time.monotonic()
        found.run = run_dag(found.dag)
        found.seconds = time.monotonic() - began
        return found

    return run


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say what came out, whatever pytest does with the output."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {text}")

    return say


Tell = Callable[[str], None]


def taken_back(found: Upgrade, tell: Tell) -> None:
    """The old version runs again, alone, and the table is that of a stream that never failed."""
    stream = found.stream
    assert found.run.state == "failed"
    assert found.kind == "taken_back", (found.report, found.tasks)
    assert (stream.version, stream.running) == ("old", ["old"])
    noticed = max(found.times(task_id)[1] for task_id in found.failed if task_id != "report")
    again = found.times("start_old")[0]
    first = min(c.stat().st_mtime for c in (stream.checkpoint / "commits").glob("[0-9]*") if c.stat().st_mtime > again)
    assert stream.finish() == (0, 0)
    tell(
        f"undone after {', '.join(t for t in found.failed if t != 'report')}; time to recover {first - noticed:.1f} s "
        f"from the failure to the first commit, without a commit for {found.report['downtime'] or 0:.1f} s"
    )


def untouched(found: Upgrade, tell: Tell) -> None:
    """The old version was never stopped."""
    stream = found.stream
    assert found.tasks.get("stop") in ("skipped", "upstream_failed", None), found.tasks
    assert [version for version, _ in stream.runs] == stream.running == ["old"]
    assert stream.version == "old"
    assert stream.finish() == (0, 0)
    tell(f"stopped before anything has changed by {', '.join(t for t in found.failed if t != 'report') or 'nobody'}")


def kept(found: Upgrade, tell: Tell, to: str) -> None:
    """The new version runs, alone, and no row is lost, doubled or another."""
    stream = found.stream
    assert (found.run.state, found.kind) == ("success", "kept"), (found.report, found.tasks)
    assert (stream.version, stream.running) == (to, [to])
    assert stream.finish() == (0, 0)
    tell(f"kept; downtime {found.report['downtime']:.1f} s from the last commit of the old to the first of the new")


# ---- control ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "lost", "extra"),
    [("drops_rows", True, False), ("doubles_rows", False, True), ("wrong_values", True, True)],
)
def test_control_the_naive_upgrade(bad: str, lost: bool, extra: bool, make_stream: MakeStream, tell: Tell) -> None:
    """Stop, start the new version; when it proves bad stop it and start the old one again, as people do."""
    stream = make_stream()
    stream.stop()
    stream.deploy(bad)
    before = stream.newest
    stream.start()
    stream.wait_for(lambda: stream.newest >= before + 4, "batches of the new version")
    stream.stop()
    stream.roll_back_code()
    stream.start()
    found = stream.finish()
    tell(f"{found[0]} rows lost, {found[1]} rows wrong or doubled")
    assert (found[0] > 0, found[1] > 0) == (lost, extra)


# ---- code that is bad ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "noticed_by"),
    [
        ("crash_at_start", "healthy"),
        ("crash_later", "healthy"),
        ("stall", "healthy"),
        ("drops_rows", "checks"),
        ("doubles_rows", "checks"),
        ("wrong_values", "checks"),
        ("other_state", "healthy"),
    ],
)
def test_bad_code_is_taken_back(bad: str, noticed_by: str, make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    # A fault that comes later has to come while somebody looks.
    found = upgrade(make_stream(), bad, health={"new_batches": 8} if bad in ("crash_later", "stall") else {})
    assert found.failed == sorted([noticed_by, "report"]), found.tasks
    taken_back(found, tell)


@pytest.mark.parametrize(
    ("bad", "code"), [("no_state", "OPERATORS-ALL-REMOVED"), ("other_state", "STATE-KEYS")], ids=["removed", "schema"]
)
def test_what_spark_forbids_is_refused(
    bad: str, code: str, make_stream: MakeStream, upgrade: Run, tell: Tell, tmp_path: Path
) -> None:
    stream = make_stream()
    found = upgrade(stream, bad, description=stream.describe(bad, tmp_path / "description.json"))
    assert found.failed == ["compatible", "report"]
    assert code in json.dumps(found.result("compatible", "report"))
    untouched(found, tell)


def test_an_older_spark_is_refused(make_stream: MakeStream, upgrade: Run, tell: Tell, tmp_path: Path) -> None:
    stream = make_stream()
    description = Path(stream.describe("refactored", tmp_path / "description.json"))
    described = json.loads(description.read_text())
    description.write_text(json.dumps({**described, "spark": "3.5.9"}))
    found = upgrade(stream, "refactored", description=str(description), fail_on="unknown")
    assert found.failed == ["compatible", "report"]
    assert "WRITTEN-BY-NEWER-SPARK" in json.dumps(found.result("compatible", "report"))
    untouched(found, tell)


# ---- people and sources -------------------------------------------------------------------------


def test_retention_too_short(
    make_stream: MakeStream, upgrade: Run, kafka_broker: KafkaBroker, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_UPGRADE_KAFKA", json.dumps({"conn_type": "kafka", "extra": json.dumps(kafka_broker.config)})
    )
    stream = make_stream(topic_settings={"retention_ms": 10 * 60 * 1000})
    found = upgrade(stream, "refactored", preflight="fail", kafka_config_id="upgrade_kafka", planned_downtime="30m")
    assert found.failed == ["preflight", "report"]
    untouched(found, tell)


@pytest.mark.parametrize("to", ["refactored", "drops_rows"])
def test_retention_is_raised_for_the_downtime_and_put_back(
    to: str,
    make_stream: MakeStream,
    upgrade: Run,
    kafka_broker: KafkaBroker,
    tell: Tell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_UPGRADE_KAFKA", json.dumps({"conn_type": "kafka", "extra": json.dumps(kafka_broker.config)})
    )
    stream = make_stream(topic_settings={"retention_ms": 10 * 60 * 1000})
    seen = []

    def deploy() -> None:
        seen.append(retention_ms(kafka_broker, stream.topic))
        stream.deploy(to)

    found = upgrade(
        stream,
        to,
        deploy=deploy,
        kafka_config_id="upgrade_kafka",
        planned_downtime="30m",
        raise_retention_to_at_most="7d",
    )
    assert seen[0] >= 30 * 60 * 1000
    assert retention_ms(kafka_broker, stream.topic) == 10 * 60 * 1000
    if to == "refactored":
        kept(found, tell, to)
    else:
        taken_back(found, tell)


def retention_ms(broker: KafkaBroker, topic: str) -> int:
    from confluent_kafka.admin import ConfigResource

    [answer] = broker.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return int(answer.result(30)["retention.ms"].value)


def test_approval_rejected(make_stream: MakeStream, upgrade: Run, answer: Answer, tell: Tell) -> None:
    found = upgrade(
        make_stream(), "drops_rows", approval=True, before=lambda dag: answer(dag.dag_id, "Reject", "u.approve")
    )
    assert found.tasks["approve"] == "success"
    untouched(found, tell)


def test_approval_timed_out(make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    with timeouts_are_noticed():
        found = upgrade(make_stream(), "drops_rows", approval=True, approval_timeout=timedelta(seconds=1))
    untouched(found, tell)


# ---- tasks that fail ----------------------------------------------------------------------------


def _fail() -> None:
    raise RuntimeError("no cluster answers")


@pytest.mark.parametrize("task", ["deploy", "start"])
def test_a_task_of_the_user_fails(task: str, make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    stream = make_stream()
    more = {"start_old": stream.start} if task == "start" else {}
    found = upgrade(stream, "refactored", **{task: _fail}, **more)
    assert found.failed == sorted([task, "report"])
    taken_back(found, tell)


def test_the_stop_fails(make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    """The stream runs on; the seal stops it."""
    stream = make_stream()
    found = upgrade(stream, "crash_at_start", stop=_fail, stop_new=stream.stop)
    assert found.failed == ["healthy", "report", "stop"]
    assert "CONCURRENT_STREAM_LOG_UPDATE" in stream.runs[0][1].error_text
    taken_back(found, tell)


def test_the_stop_never_stops(make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    """A driver that does not read its stop marker, and a task that waits for it."""
    stream = make_stream(begin=False)
    stream.deaf = True
    stream.begin()
    stream.deaf = False

    def wait_for_ever() -> None:
        stream.runs[0][1].wait(3)

    found = upgrade(stream, "crash_at_start", stop=wait_for_ever, stop_new=stream.stop)
    assert found.failed == ["healthy", "report", "stop"]
    assert "CONCURRENT_STREAM_LOG_UPDATE" in stream.runs[0][1].error_text
    taken_back(found, tell)


def test_the_store_is_down_for_the_final_backup(make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    """It comes back while the task is tried again."""
    stream = make_stream()
    store, away = stream.root / "backups", stream.root / "backups.away"

    def comes_back() -> None:
        store.unlink()
        away.rename(store)

    def stop_and_lose_the_store() -> None:
        stream.stop()
        store.rename(away)
        store.write_text("no store here")
        threading.Timer(3.0, comes_back).start()

    found = upgrade(
        stream, "drops_rows", stop=stop_and_lose_the_store, stop_new=stream.stop, retries=5, retry_delay=1.0
    )
    taken_back(found, tell)


# ---- others at work -----------------------------------------------------------------------------


def test_somebody_starts_the_old_driver_in_between(make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    stream = make_stream()

    def deploy_while_a_colleague_starts_it() -> None:
        stream.launch("old", stop="")
        run = stream.runs[-1][1].wait(180)
        assert "sealed by plan" in run.error_text
        stream.deploy("drops_rows")

    found = upgrade(stream, "drops_rows", deploy=deploy_while_a_colleague_starts_it)
    assert found.failed == ["checks", "report"]
    taken_back(found, tell)


def test_sealed_by_somebody_else(make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    """Nothing begins; and the stream, which the seal has stopped, is his."""
    stream = make_stream()
    mark = seal(stream.ckpt, reason="I am at work on it", made_by="a colleague")
    stream.runs[0][1].wait(120)
    found = upgrade(stream, "refactored")
    assert found.failed == ["begin", "report"]
    assert (stream.version, stream.ckpt.progress().seal) == ("old", mark)
    unseal(stream.ckpt, plan_id=mark.plan_id)
    stream.start()
    assert stream.finish() == (0, 0)
    tell("stopped before anything has changed by begin")


def test_the_place_of_the_way_back_is_busy(make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    """A colleague has sealed it as well; once he is done the task is cleared, and the run continues from there."""
    stream = make_stream()
    marks = []

    def stop_new_and_find_a_colleague() -> None:
        stream.stop()
        if not marks:
            marks.append(seal(stream.ckpt, reason="I am at work on it", made_by="a colleague"))

    found = upgrade(stream, "drops_rows", stop_new=stop_new_and_find_a_colleague)
    assert found.kind == "half_way", found.report
    assert (found.failed, stream.running) == (["checks", "report", "seal_again"], [])
    unseal(stream.ckpt, plan_id=marks[0].plan_id)
    found.go_on("seal_again")
    taken_back(found, tell)


def test_a_second_upgrade_at_the_same_time(make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    stream = make_stream()
    repository = Repository.open_or_create(open_location(str(stream.root / "backups")))
    first = begin_upgrade(repository, "orders", "another_dag/another_run", mode="savepoint", version="3", baseline={})
    found = upgrade(stream, "refactored")
    assert found.failed == ["begin", "report"]
    newest = newest_upgrade(repository, "orders")
    assert newest
    assert newest.upgrade_id == "another_dag/another_run"
    note(repository, first, Event.ENDED)
    untouched(found, tell)


# ---- workers that are lost ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task_id", "after"),
    [("begin", 0), ("backup", 2), ("seal", 0), ("seal", 1), ("final_backup", 1), ("release", 0), ("keep", 0)],
)
def test_a_worker_is_lost_on_the_way(
    task_id: str,
    after: int,
    make_stream: MakeStream,
    upgrade: Run,
    tell: Tell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Airflow tries the task again, and the upgrade continues."""
    stream = make_stream()
    died = worker_dies(monkeypatch, task_id, after=after)
    found = upgrade(stream, "refactored", retries=1)
    assert died
    kept(found, tell, "refactored")


@pytest.mark.parametrize(("task_id", "after"), [("seal_again", 0), ("restore", 1), ("restore", 4), ("restore", 8)])
def test_a_worker_is_lost_on_the_way_back(
    task_id: str,
    after: int,
    make_stream: MakeStream,
    upgrade: Run,
    tell: Tell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no retry left: the run is cleared from that task on."""
    stream = make_stream()
    died = worker_dies(monkeypatch, task_id, after=after)
    found = upgrade(stream, "doubles_rows")
    assert died
    assert task_id in found.failed
    assert stream.running == []
    found.go_on(task_id)
    taken_back(found, tell)


def test_a_worker_is_lost_and_nobody_tries_again(
    make_stream: MakeStream, upgrade: Run, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that failed permanently is a failed upgrade, whatever it failed of."""
    stream = make_stream()
    died = worker_dies(monkeypatch, "final_backup", after=1)
    found = upgrade(stream, "refactored")
    assert died
    assert found.failed == ["final_backup", "report"]
    taken_back(found, tell)


# ---- good ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "conf"),
    [
        pytest.param("refactored", {}, id="savepoint"),
        pytest.param("old_again", {"spark.sql.shuffle.partitions": "5"}, id="partitions_ignored"),
        pytest.param(
            "old_again",
            {
                "spark.sql.streaming.stateStore.providerClass": (
                    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
                )
            },
            id="provider_ignored",
        ),
    ],
)
def test_good(to: str, conf: dict[str, str], make_stream: MakeStream, upgrade: Run, tell: Tell, tmp_path: Path) -> None:
    stream = make_stream(version_conf={to: conf})
    found = upgrade(stream, to, description=stream.describe(to, tmp_path / "description.json"))
    assert ("IGNORED" in json.dumps(found.result("compatible"))) is bool(conf)
    kept(found, tell, to)


def test_good_last_state(make_stream: MakeStream, upgrade: Run, tell: Tell) -> None:
    stream = make_stream()
    stream.runs[0][1].stop()
    stream.runs[0][1].wait(120)
    found = upgrade(stream, "refactored", mode="last-state", stop_new=stream.stop)
    kept(found, tell, "refactored")


def test_good_stateless(
    make_stream: MakeStream, upgrade: Run, tell: Tell, kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new checkpoint at the position that the brokers have; the reader options come from the plan."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_UPGRADE_KAFKA", json.dumps({"conn_type": "kafka", "extra": json.dumps(kafka_broker.config)})
    )
    stream = make_stream(releases=["plain"])

    def deploy() -> None:
        from airflow.sdk import get_current_context

        plan = get_current_context()["ti"].xcom_pull(task_ids="u.positions")["plan"]
        [options] = plan["options"].values()
        stream.version_conf["plain_again"] = {STARTING: options["startingOffsets"], **plan["conf"]}
        stream.deploy("plain_again")

    # Without state an event that was sent twice is there twice.
    found = upgrade(
        stream, "plain_again", mode="stateless", deploy=deploy, checks=None, kafka_config_id="upgrade_kafka"
    )
    kept(found, tell, "plain_again")


def test_a_position_that_nobody_asked_for_is_refused_before_the_stop(
    make_stream: MakeStream, upgrade: Run, tell: Tell
) -> None:
    """Without ``kafka_config_id`` no broker is asked, and somebody has to accept that while the old version still runs."""
    stream = make_stream(releases=["plain"])
    found = upgrade(stream, "plain_again", mode="stateless", checks=None)
    assert found.failed == ["new_positions", "report"]
    assert [version for version, _ in stream.runs] == stream.running
    assert stream.finish() == (0, 0)
    tell("stopped before anything has changed by new_positions")


@pytest.mark.parametrize("to", ["refactored", "drops_rows"])
def test_shadow(to: str, make_stream: MakeStream, upgrade: Run, tell: Tell, tmp_path: Path) -> None:
    """The new version runs beside the old one first; where its rows are others the old one is not even stopped."""
    # Comparing a batch takes longer than running it: with small batches one after the other it would never be level.
    stream = make_stream(begin=False, every="12 seconds", conf={PER_BATCH: "5000"})
    stream.begin(2)
    report = tmp_path / "report.json"
    found = upgrade(stream, to, mode="shadow", shadow=lambda: stream.shadow(to, report), rehearsal_report=str(report))
    shadowed = json.loads(report.read_text())
    assert shadowed["followed"]["ended"] == "level", shadowed
    if to == "refactored":
        kept(found, tell, to)
    else:
        assert found.failed == ["plan", "report"]
        untouched(found, tell)


def test_the_check_of_these_tests_finds_what_it_should(make_stream: MakeStream) -> None:
    """Otherwise nothing above means anything."""
    stream = make_stream()
    stream.stop()
    contiguous(stream.table)
    before = stream.newest
    stream.deploy("wrong_values")
    stream.start()
    stream.wait_for(lambda: stream.newest > before + 1, "wrong rows")
    with pytest.raises(AssertionError, match="missing, doubled or changed"):
        contiguous(stream.table)
    lost, wrong = stream.finish()
    assert lost == wrong > 0
