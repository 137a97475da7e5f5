"""The seal against running streams: they stop at a clean batch boundary, stay stopped, and go on as if nothing had been."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.sealing import seal, unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.opening import open_location
from tests.integration.sealing_streams import Sealed, seal_at_random_moments
from tests.integration.streams.spark_host import SparkHost

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_KINDS = ("stateless", "agg_hdfs", "agg_rocksdb", "delta_sink")


def _seal(host: SparkHost, kind: str, root: Path, *, times: int, seed: int) -> list[Sealed]:
    place = root / "checkpoint"
    checkpoint = Checkpoint.at(open_location(str(place)))
    return seal_at_random_moments(host, kind, root, times=times, seed=seed, checkpoint=checkpoint, uri=str(place))


@pytest.mark.parametrize(("kind", "times"), [("stateless", 2), ("agg_rocksdb", 2), ("delta_sink", 2)])
def test_a_sealed_stream_stops_cleanly_and_goes_on_row_exact(
    spark_host: SparkHost, tmp_path: Path, kind: str, times: int
) -> None:
    assert len(_seal(spark_host, kind, tmp_path, times=times, seed=3)) == times


@pytest.mark.seal_soak
@pytest.mark.parametrize("kind", _KINDS)
def test_sealed_at_many_moments(spark_host: SparkHost, tmp_path: Path, kind: str) -> None:
    """13 moments of each of 4 kinds: 52. ``SOAK_SEED`` changes the moments."""
    done = _seal(spark_host, kind, tmp_path, times=13, seed=int(os.environ.get("SOAK_SEED", "1")))
    seconds = sorted(sealed.stopped for sealed in done)
    print(
        f"\nseal: {kind:12} {len(done)} of 13 stopped clean, refused to start, went on row-exact; "
        f"stopped within {statistics.median(seconds):.2f} s (median), {seconds[-1]:.2f} s (worst)"
    )


def test_limit_async_progress_tracking_may_commit_beyond_the_seal(spark_host: SparkHost, tmp_path: Path) -> None:
    """It stops all the same; a commit beyond the seal has to go before the seal is lifted (docs/seal-limits.md)."""
    place, out = tmp_path / "checkpoint", tmp_path / "out"
    checkpoint = Checkpoint.at(open_location(str(place)))
    beyond_ever = False
    for number in range(6):
        run = spark_host.start("async_progress", source=tmp_path, checkpoint=place, out=out)
        before = _newest(place)
        deadline = time.monotonic() + 60
        while _newest(place) < before + 2:
            assert not run.ended.wait(0.02), run.error
            assert time.monotonic() < deadline
        mark = seal(checkpoint, reason="limits", made_by="the test", plan_id=f"plan{number}")
        run.wait(60)
        assert run.error
        assert (
            mark.sentence in spark_host.start("async_progress", source=tmp_path, checkpoint=place, out=out).wait().error
        )

        beyond = sorted(path.name for path in (place / "commits").iterdir() if _is_at_or_beyond(path, mark.batch_id))
        if beyond:
            beyond_ever = True
            with pytest.raises(
                RefusedError, match=rf"has commits/{beyond[0]}.* at or beyond its seal offsets/{mark.batch_id}"
            ):
                unseal(checkpoint, plan_id=mark.plan_id)
            for name in beyond:
                (place / "commits" / name).unlink()
        assert unseal(checkpoint, plan_id=mark.plan_id) == mark
        if beyond_ever:
            break
    spark_host.start("async_progress", source=tmp_path, checkpoint=place, out=out)
    print(f"\nasync progress: a commit beyond the seal was seen: {beyond_ever}")


def _newest(checkpoint: Path) -> int:
    directory = checkpoint / "commits"
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _is_at_or_beyond(path: Path, batch: int) -> bool:
    return path.name.isdigit() and int(path.name) >= batch
