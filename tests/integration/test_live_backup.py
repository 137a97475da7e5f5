"""Live streams are backed up, lost, restored and run on, row-exact. See test_soak.py for more."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.live_copies import LiveCopies
from tests.support.streams import sink
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import SparkHost

pytestmark = [pytest.mark.spark]

_KINDS = ("compacted_sources", "agg_rocksdb", "join_hdfs")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_backups_of_live_streams_are_row_exact(spark_host: SparkHost, tmp_path: Path) -> None:
    copies = LiveCopies(spark_host, tmp_path, _KINDS, files=10, seed=20261121)
    copies.run_live(backups=2)
    copies.run_references()

    verdicts = copies.verdicts_on_backups()

    assert len(verdicts) == 2 * len(_KINDS)
    assert [verdict for verdict in verdicts if verdict.outcome != "exact"] == []


@pytest.mark.timeout(300)
def test_a_killed_stream_goes_on_from_its_backup_at_the_same_place(spark_host: SparkHost, tmp_path: Path) -> None:
    """``kill -9`` in the middle of a batch, the checkpoint gone, the sink kept: batches after the backup run again."""
    kind, source, checkpoint, out = "agg_changelog", tmp_path / "in", tmp_path / "ck", tmp_path / "out"
    put_files(source, 12)
    repository = Repository.open_or_create(open_location(str(tmp_path / "repository")))
    doomed = SparkHost(tmp_path / "doomed.log")
    try:
        doomed.start(kind, source=source, checkpoint=checkpoint, out=out)
        _wait_until_in_sink(out, 4, doomed)
        backup = create_backup(Checkpoint.at(open_location(str(checkpoint))), repository)
        _wait_until_in_sink(out, backup.batch_id + 2, doomed)
    finally:
        doomed.kill()
    written = set(sink.batches(out))
    last = create_backup(Checkpoint.at(open_location(str(checkpoint))), repository, skip_if_unchanged=True)
    again = create_backup(Checkpoint.at(open_location(str(checkpoint))), repository, skip_if_unchanged=True)
    assert (last.unchanged, again.unchanged) == (False, True), "it has continued, and now it is suspended"
    assert again.backup_id == last.backup_id
    shutil.rmtree(checkpoint)

    apply_restore(plan_restore(repository, backup.manifest, open_location(str(checkpoint))))
    spark_host.start(kind, source=source, checkpoint=checkpoint, out=out, available_now=True).finished()
    untouched = tmp_path / "untouched"
    spark_host.start(kind, source=source, checkpoint=tmp_path / "other", out=untouched, available_now=True).finished()

    assert backup.batch_id + 2 in written, "nothing had to run again: the test shows nothing"
    assert sink.batches(out) == sink.batches(untouched)


def _wait_until_in_sink(out: Path, batch: int, host: SparkHost) -> None:
    deadline = time.monotonic() + 120
    while not (out / f"b={batch}").exists():
        assert host.process.poll() is None, host.log.read_text()[-2000:]
        assert time.monotonic() < deadline, f"batch {batch} did not come"
        time.sleep(0.02)
