"""Brokers that do not answer, many partitions, many looks: within the time limit, with the right error, without false alarms.

That all questions share one limit is in tests/unit/guards/test_kafka_client.py.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ckpt_provider.errors import (
    SourceError,
    SourceForbiddenError,
    SourceProtocolError,
    SourceUnreachableError,
)
from airflow_ckpt_provider.verdict import Verdict
from tests.support.kafka_broker import READER, KafkaBroker, running_kafka_broker
from tests.support.kafka_guards import Ask, facts_of

_LIMIT = 2.0


def _refused(ask: Callable[[], object], error: type[SourceError]) -> SourceError:
    with pytest.raises(error) as e:
        ask()
    assert type(e.value) is error
    return e.value


def test_nobody_there(ask: Ask) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        config = {"bootstrap.servers": f"127.0.0.1:{taken.getsockname()[1]}"}
        e = _refused(lambda: ask("orders", {0: 1}, config=config, timeout=_LIMIT), SourceUnreachableError)
    assert "Connection refused" in e.message
    assert e.hint == "check bootstrap.servers, the network, and that the broker is up"


def test_unknown_host(ask: Ask) -> None:
    config = {"bootstrap.servers": "no-such-host.invalid:9092"}
    _refused(lambda: ask("orders", {0: 1}, config=config, timeout=_LIMIT), SourceUnreachableError)


def test_somebody_who_never_answers(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        _refused(lambda: ask("orders", {0: 1}, config=config, timeout=_LIMIT), SourceUnreachableError)


def test_tls_spoken_to_a_plain_listener(kafka_broker: KafkaBroker, ask: Ask) -> None:
    config = {**kafka_broker.config, "security.protocol": "SSL"}
    e = _refused(lambda: ask("orders", {0: 1}, config=config, timeout=_LIMIT), SourceProtocolError)
    assert e.hint == "check security.protocol and the listener's port"


def test_plain_text_spoken_to_a_listener_that_wants_a_login(kafka_broker: KafkaBroker, ask: Ask) -> None:
    config = {"bootstrap.servers": f"127.0.0.1:{kafka_broker.sasl_port}"}
    _refused(lambda: ask("orders", {0: 1}, config=config, timeout=_LIMIT), SourceProtocolError)


def test_a_login_offered_to_a_plain_listener(kafka_broker: KafkaBroker, ask: Ask) -> None:
    config = {**kafka_broker.sasl_config(READER), **kafka_broker.config}
    _refused(lambda: ask("orders", {0: 1}, config=config, timeout=_LIMIT), SourceProtocolError)


def test_wrong_password(kafka_broker: KafkaBroker, ask: Ask) -> None:
    config = kafka_broker.sasl_config((READER[0], "wrong"))
    _refused(lambda: ask("orders", {0: 1}, config=config, timeout=_LIMIT), SourceForbiddenError)


def test_missing_acls_one_by_one(kafka_broker: KafkaBroker, ask: Ask) -> None:
    """Each right that is missing is named; with all of them, and none on any group, the guard works."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    topic = kafka_broker.create()
    kafka_broker.put(topic, [10])
    config = kafka_broker.sasl_config(READER)

    def allow(operation: AclOperation) -> None:
        acl = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:reader",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for future in kafka_broker.admin.create_acls([acl]).values():
            future.result(30)

    def missing() -> str:
        return _refused(lambda: ask(topic, {0: 5}, config=config, timeout=_LIMIT), SourceForbiddenError).message

    assert "cannot describe topics" in missing()
    allow(AclOperation.DESCRIBE)
    kafka_broker.await_that(
        lambda: "configuration of topics (ACL: DescribeConfigs on the topic)" in missing(), "the ACL"
    )
    allow(AclOperation.DESCRIBE_CONFIGS)
    kafka_broker.await_that(lambda: "read records (ACL: Read on the topic)" in missing(), "the ACL")
    allow(AclOperation.READ)
    kafka_broker.await_that(lambda: _is_safe(lambda: ask(topic, {0: 5}, config=config)), "the ACL")


def _is_safe(judge: Callable[[], object]) -> bool:
    try:
        return judge().verdict is Verdict.SAFE  # type: ignore[attr-defined, no-any-return]
    except SourceForbiddenError:
        return False


@pytest.mark.slow
def test_a_broker_that_hangs_and_one_that_dies(tmp_path: Path, ask: Ask) -> None:
    """In the middle of everything: an error within the limit, no verdict; and the right one when it is back."""
    with running_kafka_broker(tmp_path) as broker:
        topic = broker.create()
        broker.put(topic, [10])
        assert ask(topic, {0: 5}, config=broker.config).verdict is Verdict.SAFE
        for delay in (0.0, 0.01, 0.02, 0.04, 0.08):  # at several moments of a poll
            with contextlib.ExitStack() as hanging:
                timer = threading.Timer(delay, lambda: hanging.enter_context(broker.frozen()))
                timer.start()
                with contextlib.suppress(SourceUnreachableError):
                    assert ask(topic, {0: 5}, config=broker.config, timeout=1.0).verdict is Verdict.SAFE
                timer.join()
                _refused(lambda: ask(topic, {0: 5}, config=broker.config, timeout=1.0), SourceUnreachableError)
            assert ask(topic, {0: 5}, config=broker.config).verdict is Verdict.SAFE
        broker.stop()
        _refused(lambda: ask(topic, {0: 5}, config=broker.config, timeout=_LIMIT), SourceUnreachableError)
        broker.start()
        assert ask(topic, {0: 5}, config=broker.config).verdict is Verdict.SAFE


def test_a_thousand_partitions(kafka_broker: KafkaBroker, ask: Ask) -> None:
    topic = kafka_broker.create(partitions=1000)
    kafka_broker.put(topic, [5] * 1000)
    kafka_broker.delete_before(topic, dict.fromkeys(range(0, 1000, 2), 2))
    begin = time.process_time()  # of our own work, whatever else the machine is doing
    report = ask(topic, dict.fromkeys(range(1000), 3), max_downtime=86400.0)
    healthy = time.process_time() - begin
    assert (report.verdict, len(report.parts)) == (Verdict.SAFE, 1000)
    assert all(part.facts["timestamp"] for part in report.parts)
    begin = time.process_time()
    report = ask(topic, dict.fromkeys(range(1000), 1))
    lossy = time.process_time() - begin
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, 500)
    print(f"\n1,000 partitions: {healthy:.2f} s of processor time, with losses {lossy:.2f} s")
    assert max(healthy, lossy) < 5
    kafka_broker.delete(topic)


def _healthy(broker: KafkaBroker, ask: Ask, times: int) -> None:
    """A stream that keeps up more or less, on a topic that is written to, trimmed and grown all the time."""
    chance = random.Random(7)
    topic = broker.create(partitions=4)
    ends = dict.fromkeys(range(4), 0)
    known = None
    for number in range(times):
        if number % 5 == 0:
            counts = {p: chance.randrange(20) for p in ends}
            broker.put(topic, counts)
            ends = {p: ends[p] + counts[p] for p in ends}
        offsets = {p: chance.randrange(max(0, end - 30), end + 1) for p, end in ends.items()}
        if number % 10 == 1:
            known = facts_of(broker, topic, offsets)
        if number % 25 == 3:
            broker.delete_before(topic, {p: max(0, end - 30) for p, end in ends.items()})
        if number % 200 == 150:
            broker.add_partitions(topic, len(ends) + 1)
            ends[len(ends)] = 0
        level = chance.choice(["read_committed", "read_uncommitted"])
        report = ask(topic, offsets, known=known, isolation_level=level, max_downtime=86400.0, buffer=3600.0)
        assert (report.verdict, report.lost) == (Verdict.SAFE, 0), f"look {number}: {report.reasons}"


def test_no_false_alarm(kafka_broker: KafkaBroker, ask: Ask) -> None:
    _healthy(kafka_broker, ask, 40)


@pytest.mark.slow
def test_no_false_alarm_in_a_thousand_looks(kafka_broker: KafkaBroker, ask: Ask) -> None:
    _healthy(kafka_broker, ask, 1000)


def test_no_group_is_joined_and_nothing_committed(kafka_broker: KafkaBroker, ask: Ask) -> None:
    topic = kafka_broker.create()
    kafka_broker.put(topic, [10])
    ask(topic, {0: 5}, config={**kafka_broker.config, "group.id": "the-streams-own"})
    groups = {g.group_id for g in kafka_broker.admin.list_consumer_groups().result(30).valid}
    assert groups & {"the-streams-own", "airflow-ckpt-guard"} == set()
