"""Executors of a real Spark read what threads read, also where one of them dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.change.attempts import LEASE_VARIABLE
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of
from benchmarks.sample_tree import SampleTree
from tests.support.backups import visible
from tests.support.packs import rot
from tests.support.spark_cluster import SparkCluster
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LEASE_VARIABLE, "5")  # so long a lost executor is waited for, twice
        running = SparkCluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.kill()


@pytest.fixture
def whole(tmp_path: Path) -> Repository:
    """A repository of many packs."""
    checkpoint, place = open_location(str(tmp_path / "orders")), open_location(str(tmp_path / "backups"))
    repository = Repository.open_or_create(place, format=2)
    for batches in range(15, 26, 2):  # a pack each
        for path, data in SampleTree(partitions=40, batches=batches).files():
            checkpoint.replace(path, data)
        create_backup(Checkpoint.at(checkpoint), repository)
    return repository


@pytest.fixture
def damaged(whole: Repository) -> Repository:
    """The same where one of them has rotted."""
    manifest = whole.manifest("latest", name="orders")
    rot(whole.location, next(e.object for e in manifest.files if e.path.startswith("state/0/7/")))
    return whole


@pytest.mark.parametrize("dies", [False, True])
def test_verify(cluster: SparkCluster, damaged: Repository, tmp_path: Path, dies: bool) -> None:
    """The findings and the records are those of a local verify, also where an executor is killed in the middle."""
    manifest = damaged.manifest("latest", name="orders")
    expected = verify_backup(damaged, manifest, read_data=ReadData()).to_json()
    output = tmp_path / "report.json"
    assert len({file_of(entry.object) for entry in manifest.files}) > 2

    running = cluster.executors()
    cluster.begin(damaged.location.uri, "--files-per-task", 20, "--output", output, application="verify_contents")
    if dies:
        os.kill(running[0], signal.SIGKILL)
    assert cluster.answer() == 1

    report: dict[str, Any] = json.loads(output.read_text())
    assert report == expected
    assert [finding["problem"] for finding in report["findings"]] == ["content", "content"]
    wait_until(lambda: len(cluster.executors()) == 2, "another executor")
    assert list(damaged.location.walk("damaged"))
    assert [path for path in damaged.location.walk("verified") if path.endswith("-damaged.json")]


def test_restore(cluster: SparkCluster, whole: Repository, tmp_path: Path) -> None:
    """An executor is killed in the middle: the target is that of a restore in one process."""
    manifest = whole.manifest("latest", name="orders")
    mine, theirs = open_location(str(tmp_path / "mine")), open_location(str(tmp_path / "theirs"))
    apply_restore(plan_restore(whole, manifest, mine), rest=STOPPED, accept=ACCEPTED)

    wait_until(lambda: len(cluster.executors()) == 2, "both executors")
    options = ("--query-is-stopped", "--apply", "--workers", 1, "--files-per-task", 20)
    cluster.begin(whole.location.uri, theirs.uri, *options, application="restore_contents")
    wait_until(lambda: len(theirs.walk("state")) > 20, "the first files")
    os.kill(cluster.executors()[0], signal.SIGKILL)
    assert cluster.answer() == 0

    assert visible(theirs) == visible(mine)
