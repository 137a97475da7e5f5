"""Streams whose checkpoint lies on ``hdfs://``, written by Spark's own client and backed up by WebHDFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.hdfs_cluster import HdfsCluster, running_hdfs
from tests.support.sealing_streams import seal_at_random_moments
from tests.support.streams import sink
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import Run, SparkHost

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


def _open(cluster: HdfsCluster, path: str) -> Location:
    return open_location(f"{cluster.address}/{path}", storage_options=cluster.options)


@pytest.mark.parametrize("kind", ["stateless", "agg_rocksdb", "transform_with_state"])
def test_a_stream_on_hdfs_is_backed_up_live_lost_and_restored(
    spark_host: SparkHost, hdfs: HdfsCluster, tmp_path: Path, kind: str
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    put_files(source, 20)
    checkpoint = _open(hdfs, f"{kind}/checkpoint")
    run = spark_host.start(kind, source=source, checkpoint=checkpoint.uri, out=out)
    repository = Repository.open_or_create(_open(hdfs, f"{kind}/backups"))
    manifests = [_backup_after(batch, run, checkpoint, repository) for batch in (3, 7, 12)]
    run.drain()
    run.finished()
    wanted = sink.batches(out)
    assert [rows for rows in wanted.values() if not rows] == []
    hdfs.client().rm(f"/{kind}/checkpoint", recursive=True)

    # Where it was, and beside it: then what is named in it by its whole address has to be another.
    for number, manifest in enumerate(reversed(manifests)):
        place = checkpoint if number == 0 else _open(hdfs, f"{kind}/restored/{number}")
        apply_restore(plan_restore(repository, manifest, place))
        went_on = tmp_path / f"out-{number}"
        spark_host.start(kind, source=source, checkpoint=place.uri, out=went_on, available_now=True).finished()
        rows = sink.batches(went_on)
        assert min(rows) == manifest.batch_id + 1
        assert not sink.difference(wanted, sink.joined(wanted, rows, manifest.batch_id))
        if number == 0:
            hdfs.client().rm(f"/{kind}/checkpoint", recursive=True)


def test_sealed_on_hdfs(spark_host: SparkHost, hdfs: HdfsCluster, tmp_path: Path) -> None:
    place = _open(hdfs, "sealed")
    done = seal_at_random_moments(
        spark_host, "stateless", tmp_path, times=2, seed=5, checkpoint=Checkpoint.at(place), uri=place.uri
    )
    assert len(done) == 2


def _backup_after(batch: int, run: Run, location: Location, repository: Repository) -> Manifest:
    checkpoint = Checkpoint.at(location)
    while not any(file.path == f"commits/{batch}" for file in location.list("commits").files):
        assert not run.ended.wait(0.05), run.error
    return create_backup(checkpoint, repository).manifest
