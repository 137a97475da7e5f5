"""The operators, the sensor and the command line against a real broker, through an Airflow connection."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

import asyncio
import functools
import json
import operator
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_ckpt_provider.errors import SourceForbiddenError, SourceUnreachableError
from airflow_ckpt_provider.guards.kafka_client import KafkaClient
from airflow_ckpt_provider.guards.kafka_log import TopicConfig
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.kafka_retention_guard import (
    KafkaRetentionGuardOperator,
    KafkaRetentionRestoreOperator,
)
from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator
from airflow_ckpt_provider.sensors.kafka_time_to_loss import KafkaTimeToLossSensor
from airflow_ckpt_provider.triggers.kafka_time_to_loss import KafkaTimeToLossTrigger
from tests.support.attempts import Store
from tests.support.command_line import run as run_command
from tests.support.kafka_broker import KafkaBroker

_META = '{"batchWatermarkMs":0,"batchTimestampMs":1795000000000,"conf":{}}'
_HOUR = 3_600_000


def context(store: Store | None = None, *, max_tries: int = 0) -> dict[str, Any]:
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(
        dag_id="dag", run_id="manual__1", task_id="t", map_index=-1, try_number=1, max_tries=max_tries,
        xcom_push=lambda key, value: pushed.__setitem__(key, value),
    )  # fmt: skip
    return {"ti": ti, "pushed": pushed, **({"task_state_store": store} if store else {})}


@pytest.fixture
def connection(kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    extra = json.dumps({"conn_type": "kafka", "extra": kafka_broker.config})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_CK", extra)
    return "kafka_ck"


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> str:
    name = kafka_broker.create(partitions=2, retention_ms=6 * _HOUR)
    kafka_broker.put(name, [10, 10], start_ms=int(time.time() * 1000) - _HOUR)
    return name


@pytest.fixture
def checkpoint(tmp_path: Path, topic: str) -> Path:
    """A checkpoint that has read 5 records of each of two partitions."""
    root = tmp_path / "checkpoints" / "orders"
    for name in ("offsets", "commits"):
        (root / name).mkdir(parents=True)
    (root / "metadata").write_text('{"id":"4f0bd2c5-0e5d-4b3c-8b1c-1f6d4a1f8f0a"}')
    for batch, end in enumerate((3, 5)):
        (root / "offsets" / str(batch)).write_text(f'v1\n{_META}\n{{"{topic}":{{"0":{end},"1":{end}}}}}')
        (root / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return root


@pytest.fixture
def guard(checkpoint: Path, connection: str) -> Callable[..., KafkaRetentionGuardOperator]:
    def make(**fields: Any) -> KafkaRetentionGuardOperator:
        given = {"checkpoint": str(checkpoint), "kafka_config_id": connection, **fields}
        return KafkaRetentionGuardOperator(task_id="guard", **given)

    return make


Guard = Callable[..., KafkaRetentionGuardOperator]


def test_report(guard: Guard, topic: str) -> None:
    report = guard(max_downtime="3h").execute(context())
    assert json.loads(json.dumps(report)) == report
    assert (report["verdict"], report["lost"], report["batch_id"], report["raised"]) == ("SAFE", 0, 2, [])
    assert 4.9 * 3600 < report["seconds_left"] < 5 * 3600
    assert [p["name"] for p in report["sources"][0]["parts"]] == [f"{topic}-0", f"{topic}-1"]


def test_a_finding_fails_for_good_and_the_report_is_kept(guard: Guard, kafka_broker: KafkaBroker, topic: str) -> None:
    kafka_broker.delete_before(topic, {0: 8})
    around = context()
    with pytest.raises(AirflowFailException) as e:
        guard().execute(around)
    assert f"topic {topic}: 3 records are gone already (by partition 0: 3)" in str(e.value)
    assert around["pushed"]["report"]["lost"] == 3
    assert guard(on_finding="warn", fail_on_data_loss="False").execute(context())["verdict"] == "WILL_LOSE"


def test_too_short(guard: Guard) -> None:
    with pytest.raises(AirflowFailException) as e:
        guard(max_downtime="24h", buffer="30min").execute(context())
    assert "retention.ms=93600000 (1 d 2 h) would do" in str(e.value)
    told = guard(max_downtime="24h", on_short_retention="warn").execute(context())
    assert told["verdict"] == "SAFE"
    assert "would do" in told["reasons"][0]


@pytest.mark.parametrize("inherited", [True, False])
def test_retention_raised_and_put_back(
    guard: Guard, kafka_broker: KafkaBroker, checkpoint: Path, topic: str, connection: str, inherited: bool
) -> None:
    store = Store()
    if inherited:
        KafkaClient(kafka_broker.config).set_retention(topic, None, inherit=True)
    downtime = "10d" if inherited else "1d"
    asked = guard(max_downtime=downtime, raise_retention=True, raise_retention_to_at_most="30d")
    report = asked.execute(context(store))
    old = 7 * 24 * _HOUR if inherited else 6 * _HOUR
    new = report["sources"][0]["topics"][topic]["retention_ms"]
    assert report["verdict"] == "SAFE"
    assert report["raised"] == [
        {"topic": topic, "old_retention_ms": old, "inherited": inherited, "new_retention_ms": new}
    ]
    # A retry, or a cleared task, finds the retention long enough, and still knows what was there before.
    for max_tries in (0, 1):
        assert asked.execute(context(store, max_tries=max_tries))["raised"] == report["raised"]
    store.set("ckpt_raised_retention", report["raised"])  # as a version before kept it
    assert asked.execute(context(store, max_tries=1))["raised"] == report["raised"]
    restore = KafkaRetentionRestoreOperator(task_id="restore", raised=report["raised"], kafka_config_id=connection)
    assert [done["outcome"] for done in restore.execute(context())] == ["restored"]
    assert [done["outcome"] for done in restore.execute(context())] == ["restored"]
    after = guard().execute(context())["sources"][0]["topics"][topic]
    assert (after["retention_ms"], after["retention_is_inherited"]) == (old, inherited)


@pytest.mark.parametrize("max_tries", [0, 1], ids=["retried", "cleared"])
def test_what_somebody_has_set_since_is_what_is_put_back(
    guard: Guard, kafka_broker: KafkaBroker, topic: str, connection: str, max_tries: int
) -> None:
    store = Store()
    asked = guard(max_downtime="1d", raise_retention=True, raise_retention_to_at_most="7d")
    asked.execute(context(store))
    kafka_broker.configure(topic, retention_ms=20 * _HOUR)
    raised = asked.execute(context(store, max_tries=max_tries))["raised"]
    assert [change["old_retention_ms"] for change in raised] == [20 * _HOUR]
    assert asked.execute(context(store, max_tries=max_tries))["raised"] == raised


@pytest.mark.parametrize("late", [0, 3])
def test_a_raise_that_fails_half_way_is_put_back(
    late: int, guard: Guard, kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the broker that is asked learns late of a setting, and shows the one before a few times more."""
    other = kafka_broker.create(retention_ms=6 * _HOUR)
    kafka_broker.put(other, [10], start_ms=int(time.time() * 1000) - _HOUR)
    first, second = sorted((topic, other))
    set_retention, configs = KafkaClient.set_retention, KafkaClient.configs
    before: dict[str, list[dict[str, TopicConfig]]] = {}

    def refuses(client: KafkaClient, topic: str, retention_ms: int | None, *, inherit: bool = False) -> None:
        if topic == second:
            raise SourceForbiddenError("ACL: AlterConfigs on the topic")
        before[topic] = [configs(client, [topic])] * late
        set_retention(client, topic, retention_ms, inherit=inherit)

    def shows(client: KafkaClient, topics: Collection[str]) -> dict[str, TopicConfig]:
        old = [before[topic].pop() for topic in topics if before.get(topic)]
        return functools.reduce(operator.or_, old, configs(client, topics))

    monkeypatch.setattr(KafkaClient, "set_retention", refuses)
    monkeypatch.setattr(KafkaClient, "configs", shows)
    offsets = {name: {"0": 2} for name in (first, second)} | {topic: {"0": 2, "1": 2}}
    asked = guard(checkpoint=None, offsets=offsets, max_downtime="1d", raise_retention=True,
                  raise_retention_to_at_most="7d")  # fmt: skip
    with pytest.raises(SourceForbiddenError):
        asked.execute(context())
    assert configs(KafkaClient(kafka_broker.config), [first])[first].retention_ms == 6 * _HOUR


def test_not_beyond_the_bound(guard: Guard, topic: str) -> None:
    with pytest.raises(AirflowFailException) as e:
        guard(max_downtime="10d", raise_retention=True, raise_retention_to_at_most="2d").execute(context())
    assert "at most 172800000 (2 d) may be set" in str(e.value)
    assert guard().execute(context())["sources"][0]["topics"][topic]["retention_ms"] == 6 * _HOUR


def test_a_finding_after_the_raise_puts_it_back(guard: Guard, kafka_broker: KafkaBroker, topic: str) -> None:
    """A teardown does not run after a setup that failed."""
    kafka_broker.delete_before(topic, {0: 8})
    with pytest.raises(AirflowFailException):
        guard(max_downtime="1d", raise_retention=True, raise_retention_to_at_most="7d").execute(context())
    told = guard(on_finding="warn").execute(context())
    assert told["sources"][0]["topics"][topic]["retention_ms"] == 6 * _HOUR


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kafka_config_id": "nobody"}, "there is no Airflow connection 'nobody'"),
        ({"source": "7"}, "has no kafka source '7'"),
        ({"max_downtime": "soon"}, "max_downtime is 'soon'"),
        ({"checkpoint": None}, "nothing to guard was given"),
        ({"checkpoint": None, "offsets": "{"}, "offsets are malformed"),
        ({"raise_retention": True, "max_downtime": "1d"}, "raise_retention needs an upper bound"),
        ({"raise_retention": True, "raise_retention_to_at_most": "1d"}, "raise_retention needs the planned downtime"),
        ({"on_finding": "shrug"}, "on_finding is 'shrug'"),
    ],
)
def test_bad_input(guard: Guard, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(AirflowFailException) as e:
        guard(**fields).execute(context())
    assert message in str(e.value)


def test_an_unreachable_broker_is_left_to_the_retries(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_CK", extra)
    with pytest.raises(SourceUnreachableError):
        guard(timeout=2.0).execute(context())


def test_offsets_by_hand(guard: Guard, topic: str) -> None:
    report = guard(checkpoint=None, offsets={topic: {"0": 2, "1": -2}}).execute(context())
    assert (report["verdict"], report["subject"]) == ("SAFE", "given offsets")
    with pytest.raises(AirflowFailException) as e:
        guard(checkpoint=None, offsets='{"no-such-topic": {"0": 2}}').execute(context())
    assert "topic no-such-topic does not exist any more" in str(e.value)


def test_backups_know_their_topics(
    guard: Guard, kafka_broker: KafkaBroker, checkpoint: Path, topic: str, connection: str, tmp_path: Path
) -> None:
    """From the backup operator through the manifest to the guard, and to the list of backups."""
    place, config = tmp_path / "backups", tmp_path / "kafka.properties"
    config.write_text(f"# a client\nbootstrap.servers={kafka_broker.address}\n")
    taken = CheckpointBackupOperator(
        task_id="backup", checkpoint=str(checkpoint), repository=str(place), kafka_config_id=connection, create=True
    ).execute({})
    facts = json.loads(Path(taken["uri"]).read_text())["facts"]["sources"]["0"]
    assert facts["topics"][topic]["topic_id"]
    assert [values[:3] for values in facts["topics"][topic]["partitions"].values()] == [[0, 10, 4], [0, 10, 4]]

    def listed() -> dict[str, Any]:
        (backup,) = json.loads(run_command("backups", place, "--kafka-config", config, "--json").out)["backups"]
        verdict: dict[str, Any] = backup["source_verdict"]
        return verdict

    assert listed() == {"verdict": "replayable", "reasons": [], "lost": 0}
    assert guard(checkpoint=None, repository=str(place)).execute(context())["verdict"] == "SAFE"
    kafka_broker.delete_before(topic, {0: 8})
    assert (listed()["verdict"], listed()["lost"]) == ("state only", 3)
    assert "state only" in run_command("backups", place, "--kafka-config", config).out
    kafka_broker.delete(topic)
    kafka_broker.create(topic, partitions=2)
    kafka_broker.put(topic, [50, 50])
    assert listed()["verdict"] == "dead"
    assert guard().execute(context())["verdict"] == "SAFE", "without the backup nobody can know"
    with pytest.raises(AirflowFailException) as e:
        guard(repository=str(place)).execute(context())
    assert str(e.value).startswith(f"WILL_LOSE: {checkpoint}: topic {topic} was deleted and recreated: its id is ")
    found = run_command("guard", checkpoint, "--kafka-config", config, "--repository", place, "--json")
    assert (found.code, json.loads(found.out)["verdict"]) == (1, "WILL_LOSE")


def test_command_line(kafka_broker: KafkaBroker, checkpoint: Path, topic: str, tmp_path: Path) -> None:
    config = tmp_path / "kafka.json"
    config.write_text(json.dumps(kafka_broker.config))
    fine = run_command("guard", checkpoint, "--kafka-config", config, "--max-downtime", "3h", "--json")
    assert (fine.code, json.loads(fine.out)["verdict"]) == (0, "SAFE")
    people = run_command("guard", checkpoint, "--kafka-config", config, "--max-downtime", "24h")
    assert people.code == 1
    assert "retention.ms=97200000 (1 d 3 h) would do" in " ".join(people.out.split())
    assert f"{topic}-0" in people.out
    markdown = run_command("guard", checkpoint, "--kafka-config", config, "--markdown")
    assert markdown.out.startswith(f"## SAFE: {checkpoint}\n")
    inspected = run_command("inspect", checkpoint, "--kafka-config", config, "--json")
    assert json.loads(inspected.out)["behind"] == {"0": 10}
    assert "behind" in run_command("inspect", checkpoint, "--kafka-config", config).out
    unknown = run_command("guard", checkpoint, "--json")
    assert (unknown.code, json.loads(unknown.out)["verdict"]) == (1, "UNKNOWN")
    config.write_text('{"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 1000}')
    assert run_command("guard").code == 2
    assert run_command("guard", checkpoint, "--kafka-config", tmp_path / "none").code == 3


def test_preflight(checkpoint: Path, connection: str, kafka_broker: KafkaBroker, topic: str) -> None:
    def preflight(**fields: Any) -> dict[str, Any]:
        return RecoveryPreflightOperator(
            task_id="preflight", checkpoint=str(checkpoint), kafka_config_id=connection, **fields
        ).execute(context())

    report = preflight(max_downtime="3h")
    assert report["verdict"] == "SAFE"
    assert report["markdown"].startswith(f"## SAFE: {checkpoint}\n")
    (checkpoint / "offsets" / "4").write_text(f'v1\n{_META}\n{{"{topic}":{{"0":6,"1":6}}}}')
    with pytest.raises(AirflowFailException) as e:
        preflight()
    assert "offsets/3 is missing" in str(e.value)


def test_sensor(checkpoint: Path, connection: str, kafka_broker: KafkaBroker, topic: str) -> None:
    def sensor(**fields: Any) -> KafkaTimeToLossSensor:
        return KafkaTimeToLossSensor(
            task_id="watch", checkpoint=str(checkpoint), kafka_config_id=connection, poll_interval=0.2, **fields
        )

    assert sensor(threshold="4h").poke(context()).is_done is False
    fired = sensor(threshold="6h").execute(context())
    assert 4 * 3600 < fired["seconds_left"] < 5 * 3600
    with pytest.raises(TaskDeferred) as deferred:
        sensor(threshold="4h", deferrable=True, timeout=60).execute(context())
    trigger = deferred.value.trigger
    path, kwargs = trigger.serialize()
    assert path == "airflow_ckpt_provider.triggers.kafka_time_to_loss.KafkaTimeToLossTrigger"
    again = KafkaTimeToLossTrigger(**json.loads(json.dumps(kwargs)))

    async def first_event() -> Any:
        waiting = asyncio.ensure_future(anext(again.run()))
        await asyncio.sleep(1)
        assert not waiting.done(), "there is time enough"
        await asyncio.to_thread(kafka_broker.configure, topic, retention_ms=3 * _HOUR)
        return (await asyncio.wait_for(waiting, 30)).payload

    event = asyncio.run(first_event())
    assert event["status"] == "due"
    report = sensor(threshold="4h").execute_complete(context(), event)
    assert report["seconds_left"] < 2 * 3600


@pytest.mark.parametrize("soft_fail", [True, False])
@pytest.mark.parametrize("deferrable", [True, False])
def test_a_watch_that_no_broker_answers_fails_as_unknown(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, deferrable: bool, soft_fail: bool
) -> None:
    """With `soft_fail` too: a task that is skipped says that enough was left all the time."""
    monkeypatch.setattr(
        "airflow_ckpt_provider.guards.kafka_client.TIMEOUT", 1.0
    )  # of each of the questions that get no answer
    extra = {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 300}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_CK", json.dumps({"conn_type": "kafka", "extra": extra}))
    watch = KafkaTimeToLossSensor(
        task_id="watch",
        checkpoint=str(checkpoint),
        kafka_config_id="kafka_ck",
        poll_interval=0.1,
        timeout=0.2,
        deferrable=deferrable,
        soft_fail=soft_fail,
    )

    def run() -> Any:
        try:
            return watch.execute(context())
        except TaskDeferred as e:
            event = asyncio.run(anext(e.trigger.run())).payload
            assert event["status"] == "timeout"
            return watch.resume_execution("execute_complete", {"event": event}, context())

    with pytest.raises(
        AirflowFailException, match=rf"^UNKNOWN: whether Kafka keeps what {checkpoint} has not read for 6h: "
    ):
        run()


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"status": "timeout", "unknown": "orders-0 has no leader"}, "UNKNOWN: .* orders-0 has no leader"),
        (None, "UNKNOWN: .* the trigger did not answer within 60 s"),
    ],
)
def test_a_deferred_watch_that_learned_nothing_fails(event: Any, message: str, checkpoint: Path) -> None:
    watch = KafkaTimeToLossSensor(task_id="watch", checkpoint=str(checkpoint), timeout=60, soft_fail=True)
    after = ("execute_complete", {"event": event}) if event else ("__fail__", {"error": "Trigger timeout"})
    with pytest.raises(AirflowFailException, match=message):
        watch.resume_execution(*after, context())
    with pytest.raises(AirflowSkipException):
        watch.resume_execution("execute_complete", {"event": {"status": "timeout", "unknown": None}}, context())
