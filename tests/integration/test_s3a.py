"""Streams whose checkpoint lies on ``s3a://`` of a real S3 server, `make s3a`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.s3_server import S3Server
from tests.support.sealing_streams import seal_at_random_moments
from tests.support.streams import sink
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import Run, SparkHost, coordinates

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def s3a_host(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHost]:
    """A Spark that reaches the server."""
    packages = coordinates("s3a-jars.txt") + coordinates("spark-jars.txt")
    host = SparkHost(tmp_path_factory.mktemp("s3a") / "spark.log", packages=packages, conf=s3_server.spark_conf())
    yield host
    host.kill()


def _open(server: S3Server, path: str) -> Location:
    return open_location(f"s3a://{path}", storage_options=server.options())


@pytest.mark.s3a
@pytest.mark.parametrize("kind", ["stateless", "agg_changelog", "transform_with_state"])
def test_a_stream_on_s3a_is_backed_up_live_and_restored_beside_it(
    s3a_host: SparkHost, s3_server: S3Server, tmp_path: Path, kind: str
) -> None:
    bucket = s3_server.make_bucket()
    source, out = tmp_path / "in", tmp_path / "out"
    put_files(source, 20)
    place = f"{bucket}/checkpoints/{kind}"
    run = s3a_host.start(kind, source=source, checkpoint=f"s3a://{place}", out=out)
    repository = Repository.open_or_create(_open(s3_server, f"{bucket}/backups"))
    manifests = [_backup_after(batch, run, _open(s3_server, place), repository) for batch in (3, 7, 12)]
    run.drain()
    run.finished()
    wanted = sink.batches(out)
    assert [rows for rows in wanted.values() if not rows] == []
    # Gone permanently: a restored stream that still reads it (schema files of transformWithState) fails.
    s3_server.filesystem().rm(place, recursive=True)

    for number, manifest in enumerate(manifests):
        beside, went_on = f"{bucket}/restored/{number}", tmp_path / f"out-{number}"
        apply_restore(plan_restore(repository, manifest, _open(s3_server, beside)))
        uri = f"s3a://{beside}"
        s3a_host.start(kind, source=source, checkpoint=uri, out=went_on, available_now=True).finished()
        rows = sink.batches(went_on)
        assert min(rows) == manifest.batch_id + 1
        assert not sink.difference(wanted, sink.joined(wanted, rows, manifest.batch_id))


@pytest.mark.s3a
def test_directory_markers_are_neither_batches_nor_backed_up(
    s3a_host: SparkHost, s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = s3_server.make_bucket()
    source, out, place = tmp_path / "in", tmp_path / "out", f"{bucket}/checkpoint"
    put_files(source, 4)
    s3a_host.start("agg_hdfs", source=source, checkpoint=f"s3a://{place}", out=out, available_now=True).finished()
    client = s3_server.filesystem()
    for marker in ("offsets", "commits", "offsets/9", "state/0/1"):
        # As S3A and the consoles of clouds make them: an empty object whose name ends with a slash.
        _client(client).put_object(Bucket=bucket, Key=f"checkpoint/{marker}/", Body=b"")
    checkpoint = Checkpoint.at(_open(s3_server, place))

    progress = checkpoint.progress()
    assert (progress.latest_logged, progress.latest_committed) == (3, 3)
    repository = Repository.open_or_create(_open(s3_server, f"{bucket}/backups"))
    backup = create_backup(checkpoint, repository)
    assert [file.path for file in backup.manifest.files if file.path.endswith("/") or file.path == "offsets/9"] == []
    apply_restore(plan_restore(repository, backup.manifest, _open(s3_server, f"{bucket}/beside")))
    put_files(source, 2, start=4)
    went_on = tmp_path / "went-on"
    s3a_host.start(
        "agg_hdfs", source=source, checkpoint=f"s3a://{bucket}/beside", out=went_on, available_now=True
    ).finished()
    assert list(sink.batches(went_on)) == [4, 5]


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        *(pytest.param(kind, 2, marks=pytest.mark.s3a, id=f"{kind}-few") for kind in ("stateless", "agg_rocksdb")),
        *(
            pytest.param(kind, 5, marks=pytest.mark.seal_soak, id=f"{kind}-many")
            for kind in ("stateless", "agg_rocksdb")
        ),
    ],
)
def test_sealed_on_s3a(s3a_host: SparkHost, s3_server: S3Server, tmp_path: Path, kind: str, times: int) -> None:
    place = f"{s3_server.make_bucket()}/checkpoint"
    done = seal_at_random_moments(
        s3a_host,
        kind,
        tmp_path,
        times=times,
        seed=int(os.environ.get("SOAK_SEED", "5")),
        checkpoint=Checkpoint.at(_open(s3_server, place)),
        uri=f"s3a://{place}",
    )
    assert len(done) == times
    print(f"\nseal on s3a: {kind:12} {times} of {times}; stopped within {max(s.stopped for s in done):.2f} s (worst)")


def _backup_after(batch: int, run: Run, location: Location, repository: Repository) -> Manifest:
    checkpoint = Checkpoint.at(location)
    while not any(file.path == f"commits/{batch}" for file in location.list("commits").files):
        assert not run.ended.wait(0.05), run.error
    return create_backup(checkpoint, repository).manifest


def _client(filesystem: Any) -> Any:
    """The plain S3 client: s3fs makes no object whose name ends with a slash."""
    import botocore.session

    options = filesystem.client_kwargs | {"endpoint_url": filesystem.endpoint_url}
    session = botocore.session.get_session()
    return session.create_client(
        "s3", aws_access_key_id=filesystem.key, aws_secret_access_key=filesystem.secret, **options
    )
