"""The seal against running streams: they stop at a clean batch boundary, stay stopped, and continue as if nothing had been."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.every_run import of_these
from tests.support.sealing_streams import STOPPED, Sealed, seal_at_random_moments
from tests.support.streams.spark_host import Run, SparkHost

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_KINDS = ("stateless", "agg_hdfs", "agg_rocksdb", "delta_sink")


def _seal(host: SparkHost, kind: str, root: Path, *, times: int, seed: int) -> list[Sealed]:
    place = root / "checkpoint"
    checkpoint = Checkpoint.at(open_location(str(place)))
    return seal_at_random_moments(host, kind, root, times=times, seed=seed, checkpoint=checkpoint, uri=str(place))


@pytest.mark.parametrize(
    ("kind", "times"), of_these([("stateless", 2), ("agg_rocksdb", 1), ("delta_sink", 1)], ("agg_rocksdb", 1))
)
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
        f"\nseal: {kind:12} {len(done)} of 13 stopped clean, refused to start, continued row-exact; "
        f"stopped within {statistics.median(seconds):.2f} s (median), {seconds[-1]:.2f} s (worst)"
    )


def test_limit_async_progress_tracking_is_to_be_sealed_when_stopped(spark_host: SparkHost, tmp_path: Path) -> None:
    """Stopped, such a stream is kept from starting like any other (docs/seal-limits.md)."""
    checkpoint, run = _async_stream(spark_host, tmp_path / "checkpoint", commits=2)
    run.stop()
    run.finished()

    mark = seal(checkpoint, reason="stopped", made_by="the test", plan_id="plan")
    assert mark.sentence in _restart(spark_host, checkpoint).wait(60).error_text
    assert checkpoint.progress().seal == mark
    unseal(checkpoint, plan_id="plan")
    logged = checkpoint.progress().latest_logged or 0
    run = _restart(spark_host, checkpoint)
    _wait_for(lambda: _newest(checkpoint) > logged, run)
    run.stop()
    run.finished()


@pytest.mark.slow
def test_limit_async_progress_tracking_may_pass_a_seal_or_commit_at_it(spark_host: SparkHost, tmp_path: Path) -> None:
    """Sealed while it runs, such a stream stops only if it comes to log just the number that the seal has taken.

    It logs one batch a second or so and skips the numbers between. Where it does stop, it may have committed that very batch.
    """
    seen = []
    for number in range(3):
        checkpoint, run = _async_stream(spark_host, tmp_path / str(number), commits=3)
        mark = seal(checkpoint, reason="running", made_by="the test", plan_id="plan")
        _wait_for(lambda: run.ended.is_set() or _newest(checkpoint) > mark.batch_id + 3, None)  # noqa: B023
        if not run.ended.is_set():
            seen.append("passed")
            run.stop()
            run.wait()
            continue
        assert any(text in run.error_text for text in STOPPED), run.error_text
        assert mark.sentence in _restart(spark_host, checkpoint).wait(60).error_text
        beyond = [batch for batch in checkpoint.progress().committed if batch >= mark.batch_id]
        seen.append("stopped" if not beyond else "stopped, committed at the seal")
        if beyond:
            with pytest.raises(RefusedError, match=rf"has commits/{beyond[0]}.* at or beyond its seal {mark.path}"):
                unseal(checkpoint, plan_id="plan")
            for batch in beyond:
                checkpoint.location.delete(f"commits/{batch}")
                # Hadoop's checksum of a file that is gone keeps Spark from writing it again.
                checkpoint.location.delete(f"commits/.{batch}.crc")
        assert unseal(checkpoint, plan_id="plan") == mark
        run = _restart(spark_host, checkpoint)
        _wait_for(lambda: _newest(checkpoint) > mark.batch_id, run)  # noqa: B023
        run.stop()
        run.finished()
    print(f"\nasync progress tracking, sealed while it runs: {seen}")


def _async_stream(host: SparkHost, place: Path, *, commits: int) -> tuple[Checkpoint, Run]:
    checkpoint = Checkpoint.at(open_location(str(place)))
    run = _restart(host, checkpoint)
    _wait_for(lambda: len(list(place.glob("commits/[0-9]*"))) >= commits, run)
    return checkpoint, run


def _restart(host: SparkHost, checkpoint: Checkpoint) -> Run:
    place = Path(checkpoint.location.root)
    return host.start("async_progress", source=place, checkpoint=place, out=place)


def _newest(checkpoint: Checkpoint) -> int:
    names = [file.path.rpartition("/")[2] for file in checkpoint.location.list("commits").files]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _wait_for(condition: Callable[[], bool], run: Run | None) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        if run and run.ended.wait(0.02):
            raise AssertionError(run.error)
        time.sleep(0.02)
