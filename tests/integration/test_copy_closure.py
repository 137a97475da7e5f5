"""Backups that a real cluster of two workers takes: the same as without it, whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.jobs import copy_closure
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of, read_moved
from benchmarks.sample_tree import SampleTree
from tests.samples.archives import kinds_of, sample
from tests.support.live_copies import LiveCopies, Stream
from tests.support.packs import packs_of, restorable
from tests.support.s3_server import S3Server
from tests.support.spark_cluster import SparkCluster
from tests.support.streams.spark_host import SparkHost
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

_VERSION = "4.0.0"
#: Enough small files that a death in the middle is one.
_BIG = SampleTree(partitions=120, batches=25)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[SparkCluster]:
    running = SparkCluster(tmp_path_factory.mktemp("cluster"), s3_server.spark_conf())
    yield running
    running.kill()


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("big") / "orders"
    for path, data in _BIG.files():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)
    return place


def locally(checkpoint: Location, place: Location, **options: Any) -> Manifest:
    return create_backup(Checkpoint.at(checkpoint), Repository.open_or_create(place), **options).manifest


def made(place: Location, **options: Any) -> Location:
    """A place with a new repository: the application makes none."""
    Repository.open_or_create(place, **options)
    return place


def newest(place: Location) -> Manifest:
    return Repository.open(place).manifest("latest", name="orders")


def same(manifest: Manifest) -> dict[str, Any]:
    """A manifest without ids and times, and without saying in which pack a file is: each task writes packs of its own."""
    document: dict[str, Any] = json.loads(_without_own_names(manifest.to_document().decode()))
    packed = {entry.path for entry in manifest.files if entry.is_packed}
    for listed in document.get("file_list", ()):  # of many files it is a table
        if listed["path"] in packed:
            del listed["object"]
    del document["facts"]["pinned_at"]
    return {
        key: value for key, value in document.items() if key not in ("id", "backup_id", "created", "claim", "sha256")
    }


def without_packs(manifest: Manifest) -> list[FileEntry]:
    """The files of a backup, without saying in which pack they are."""
    assert all(entry.is_packed for entry in manifest.files)
    return [entry._replace(object="") for entry in manifest.files]


def objects(place: Location) -> dict[str, bytes]:
    """Whole ones; a process that was killed leaves hidden parts of files on a disk."""
    whole = (path for path in place.walk("objects") if "/." not in path)
    return {_without_own_names(path): place.read(path) for path in whole}


def contents(place: Location) -> dict[str, bytes]:
    """What the repository holds: the objects of its one backup, or where packs hold them, the files."""
    if any(entry.is_packed for entry in newest(place).files):
        return restorable(Repository.open(place), newest(place))
    return objects(place)


def _without_own_names(text: str) -> str:
    """Where a service is not known to refuse a copy over a file, each backup and each task has names of its own."""
    return re.sub(r"(etag-[0-9a-f-]+)\.[0-9a-f]{12}\b", r"\1", text)


@pytest.mark.parametrize("kind", sorted(kinds_of(_VERSION)))
def test_same_bytes_and_manifest(cluster: SparkCluster, tmp_path: Path, kind: str) -> None:
    """Real checkpoints of every kind, on a disk that the workers share."""
    checkpoint = sample(_VERSION, kind).unpack(tmp_path / "orders")
    summary = tmp_path / "summary.json"
    mine, theirs = open_location(str(tmp_path / "local")), made(open_location(str(tmp_path / "spark")))
    locally(open_location(str(checkpoint)), mine, name="orders", restorable_batches=2)

    arguments = (checkpoint, theirs.uri, "--name", "orders", "--restorable-batches", 2, "--output", summary)
    assert cluster.run(*arguments) == 0

    assert same(newest(theirs)) == same(newest(mine))
    assert contents(theirs) == contents(mine)
    result = json.loads(summary.read_text())
    assert (result["backup_id"], result["copied_files"]) == (newest(theirs).backup_id, result["files"])


@pytest.mark.format_1("the service copies the small files of this test")
def test_on_s3(cluster: SparkCluster, s3_server: S3Server, big: Path) -> None:
    """Copied inside the service, which the executors ask for it with the session's credentials."""
    root, options = f"s3://{s3_server.make_bucket()}", s3_server.options()
    checkpoint = open_location(f"{root}/orders", storage_options=options)
    for path in sample(_VERSION, "rocks_changelog_agg").files:
        checkpoint.create(path, sample(_VERSION, "rocks_changelog_agg").files[path])
    mine = open_location(f"{root}/local", storage_options=options)
    theirs = made(open_location(f"{root}/spark", storage_options=options))

    for _ in range(2):
        locally(checkpoint, mine)
        assert cluster.run(f"{root}/orders".replace("s3:", "s3a:"), theirs.uri) == 0
        assert same(newest(theirs)) == same(newest(mine))
        assert objects(theirs) == objects(mine)
    assert any(entry.checksum for entry in newest(theirs).files), "nothing was copied by the service"


def test_encrypted(cluster: SparkCluster, tmp_path: Path) -> None:
    checkpoint = sample(_VERSION, "rocks_changelog_agg").unpack(tmp_path / "orders")
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
    place = open_location(str(tmp_path / "backups"))
    keyed = made(Location(place.store, place.root, b"01234567890123456789012345678901"))
    assert cluster.run(checkpoint, tmp_path / "backups", "--key-file", key) == 0
    assert verify_backup(Repository.open(keyed), newest(keyed), read_data=ReadData()).ok


def test_by_spark_submit(tmp_path: Path) -> None:
    """The application as a file, as people and ``SparkSubmitOperator`` run it."""
    checkpoint = sample(_VERSION, "hdfs_agg").unpack(tmp_path / "orders")
    made(open_location(str(tmp_path / "backups")))
    done = subprocess.run(
        [
            *(
                Path(sys.executable).with_name("spark-submit"),
                "--master",
                "local[2]",
                "--conf",
                "spark.ui.enabled=false",
            ),
            *(copy_closure.__file__, checkpoint, tmp_path / "backups", "--tag", "release=27", "--made-by", "me"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    manifest = newest(open_location(str(tmp_path / "backups")))
    assert json.loads(done.stdout)["backup_id"] == manifest.backup_id
    assert (manifest.tags, manifest.made_by) == ({"release": "27"}, "me")


@pytest.mark.format_1("of packs: the next test")
def test_a_lost_executor(cluster: SparkCluster, tmp_path: Path, big: Path) -> None:
    mine, theirs = open_location(str(tmp_path / "local")), made(open_location(str(tmp_path / "spark")))
    expected = locally(open_location(str(big)), mine)

    cluster.begin(big, theirs.uri, "--files-per-task", 20, "--workers", 1)
    wait_until(lambda: len(theirs.walk("objects")) > 100, "the first objects")
    os.kill(cluster.executors()[0], signal.SIGKILL)
    copied = len(theirs.walk("objects"))

    assert cluster.answer() == 0
    assert copied < len(expected.files) * 0.8, "it was killed too late to show anything"
    assert same(newest(theirs)) == same(expected)
    assert objects(theirs) == objects(mine)


def test_a_lost_executor_and_packs(cluster: SparkCluster, tmp_path: Path, big: Path) -> None:
    """Its tasks run again on the other one; what it had packed is garbage that no manifest lists."""
    mine, theirs = open_location(str(tmp_path / "local")), open_location(str(tmp_path / "spark"))
    for place in (mine, theirs):
        made(place, format=2)
    expected = locally(open_location(str(big)), mine)

    cluster.begin(big, theirs.uri, "--files-per-task", 20, "--workers", 1)
    wait_until(lambda: len(packs_of(Repository.open(theirs))) > 5, "the first packs")
    os.kill(cluster.executors()[0], signal.SIGKILL)
    packed = len(packs_of(Repository.open(theirs)))

    assert cluster.answer() == 0
    repository, manifest = Repository.open(theirs), newest(theirs)
    assert packed < len(expected.files) / 20 * 0.8, "it was killed too late to show anything"
    assert without_packs(manifest) == without_packs(expected)
    assert restorable(repository, manifest) == restorable(Repository.open(mine), expected)
    apply_prune(repository, plan_prune(repository))
    moved = read_moved(repository.location, manifest.name)  # a prune merges small packs
    assert set(packs_of(repository)) == {file_of(moved.now(entry.object)) for entry in manifest.files}
    assert verify_backup(repository, manifest, read_data=ReadData()).ok


@pytest.mark.format_1("the next run takes over whole files; a pack without a manifest is garbage")
def test_a_killed_driver(tmp_path: Path, cluster: SparkCluster, big: Path) -> None:
    """The next run copies what is missing, and writes nothing over what is there."""
    mine, theirs = open_location(str(tmp_path / "local")), made(open_location(str(tmp_path / "spark")))
    expected = locally(open_location(str(big)), mine)
    doomed = SparkCluster(tmp_path / "doomed")
    doomed.begin(big, theirs.uri, "--files-per-task", 20, "--workers", 1)
    wait_until(lambda: len(theirs.walk("objects")) > 100, "the first objects")
    doomed.kill()
    held = theirs.walk("objects")
    assert len(held) < len(expected.files) * 0.8, "it was killed too late to show anything"
    assert not Repository.open(theirs).names()

    summary = tmp_path / "summary.json"
    assert cluster.run(big, theirs.uri, "--output", summary) == 0
    now = theirs.walk("objects")
    whole = {path: file for path, file in held.items() if "/." not in path}
    assert {path: now[path] for path in whole} == whole
    missing = [entry for entry in newest(theirs).files if entry.object not in whole]
    assert json.loads(summary.read_text())["copied_files"] == len(missing) > 100
    assert same(newest(theirs)) == same(expected)


class _BySpark(LiveCopies):
    """Live streams whose backups a cluster takes."""

    cluster: SparkCluster
    lock = threading.Lock()

    def _back_up(self, stream: Stream) -> None:
        with self.lock:  # one driver
            assert self.cluster.run(stream.checkpoint, self.repository.location.uri, "--name", stream.kind) == 0
        stream.manifests.append(self.repository.manifest("latest", name=stream.kind))


def test_live_streams(cluster: SparkCluster, spark_host: SparkHost, tmp_path: Path) -> None:
    """Backed up while they run, lost, restored and run on: row-exact, as without Spark."""
    kinds: Iterable[str] = ("agg_rocksdb", "join_hdfs")
    copies = _BySpark(spark_host, tmp_path, kinds, files=12, seed=20261121)
    copies.cluster = cluster
    copies.run_live(backups=2)
    copies.run_references()

    verdicts = copies.verdicts_on_backups()

    assert len(verdicts) == 4
    assert [verdict for verdict in verdicts if verdict.outcome != "exact"] == []
