"""With which backup a guard compares the topics of a query, and what it says where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import NoSuchBackupError
from airflow_ckpt_provider.guards.kafka import KafkaGuard, observe_kafka
from airflow_ckpt_provider.guards.query import guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.preflight import query_to_guard
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import batch_metadata, commit_log, metadata, offsets_log, plant
from tests.support.command_line import run
from tests.support.kafka_logs import WEEK, KafkaLogs


@pytest.fixture
def cluster() -> KafkaLogs:
    by_producers = replace(WEEK, append_time=False)
    return KafkaLogs({("a", 0): [0.1] * 10, ("b", 0): [0.1] * 10}, by_producers, {"a": "A1", "b": "B1"})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Location:
    """A query of two Kafka sources."""
    lines = ('{"a":{"0":5}}', '{"b":{"0":5}}')
    files = {"metadata": metadata(), "commits/0": commit_log()}
    return plant(
        open_location(str(tmp_path / "orders")), {**files, "offsets/0": offsets_log(*lines, metadata=batch_metadata(0))}
    )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.open_or_create(open_location(str(tmp_path / "backups")))


def back_up(checkpoint: Location, repository: Repository, cluster: KafkaLogs | None) -> None:
    create_backup(Checkpoint.at(checkpoint), repository, observe=observe_kafka(cluster) if cluster else None)


def asked(cluster: KafkaLogs, **what: Any) -> GuardReport:
    return guard_query(query_to_guard(**what), GuardSettings(), guards=[KafkaGuard(GuardSettings(), cluster)])


def test_given_offsets_are_compared_with_the_topics_of_every_source(
    cluster: KafkaLogs, checkpoint: Location, repository: Repository
) -> None:
    """It was SAFE: the topic is that of the second source."""
    back_up(checkpoint, repository, cluster)
    offsets = {"b": {"0": 5}}
    assert asked(cluster, offsets=offsets, repository=repository).verdict is Verdict.SAFE
    cluster.ids["b"] = "B2"
    found = asked(cluster, offsets=offsets, repository=repository)
    assert found.verdict is Verdict.WILL_LOSE
    assert found.reasons[0].startswith("topic b was deleted and recreated: its id is B2, at the backup it was B1")


class TestANameWithoutABackup:
    @pytest.mark.parametrize("by", ["checkpoint", "offsets"])
    def test_that_somebody_typed_is_refused(
        self, by: str, cluster: KafkaLogs, checkpoint: Location, repository: Repository
    ) -> None:
        """It was SAFE, compared with nothing."""
        back_up(checkpoint, repository, cluster)
        what: dict[str, Any] = {"checkpoint": checkpoint} if by == "checkpoint" else {"offsets": {"b": {"0": 5}}}
        with pytest.raises(NoSuchBackupError) as e:
            asked(cluster, repository=repository, name="ordres", **what)
        assert str(e.value) == f"{repository.location} holds no backup of ordres\nHINT: it has backups of orders"

    @pytest.mark.parametrize("declared", [False, True])
    def test_of_a_stream_that_is_new(
        self, declared: bool, cluster: KafkaLogs, checkpoint: Location, repository: Repository
    ) -> None:
        name = "orders" if declared else None
        found = asked(cluster, checkpoint=checkpoint, repository=repository, name=name, name_is_declared=declared)
        assert found.verdict is Verdict.SAFE
        assert found.reasons == (
            f"a topic that was recreated is not noticed: {repository.location} holds no backup of orders",
        )

    def test_on_the_command_line(self, checkpoint: Location, repository: Repository) -> None:
        found = run("guard", checkpoint.uri, "--repository", repository.location.uri, "--name", "ordres")
        assert (found.code, "holds no backup of ordres" in found.err.replace("\n", " ")) == (1, True)


def test_a_backup_that_did_not_ask_kafka(cluster: KafkaLogs, checkpoint: Location, repository: Repository) -> None:
    back_up(checkpoint, repository, None)
    found = asked(cluster, checkpoint=checkpoint, repository=repository)
    assert found.verdict is Verdict.SAFE
    assert "recorded no topics: give the backup a connection to Kafka" in found.reasons[0]
    back_up(checkpoint, repository, cluster)
    assert asked(cluster, checkpoint=checkpoint, repository=repository).reasons == ()
