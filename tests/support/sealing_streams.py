"""Running streams, sealed at random moments: what `test_seal.py` and `test_s3a.py` have in common."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from airflow_ckpt_provider.change.sealing import seal, unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset
from tests.support.streams import sink
from tests.support.streams.data import put_files
from tests.support.streams.kinds import KINDS
from tests.support.streams.spark_host import Run, SparkHost

#: How Spark says that the number it wanted to log is taken; which of the two depends on how far the write had come.
STOPPED = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")
#: Batches that the fastest stream may run between two seals.
_BETWEEN = 8


@dataclass(frozen=True)
class Sealed:
    """One seal and what came of it.

    :param stopped: seconds from the seal to the end of the query.
    """

    kind: str
    batch: int
    stopped: float


def seal_at_random_moments(
    host: SparkHost, kind: str, root: Path, *, times: int, seed: int, checkpoint: Checkpoint, uri: str
) -> list[Sealed]:
    """Run a stream, seal it, see it stop and stay stopped, unseal it, and so on; in the end its rows have to be right.

    :param checkpoint: the checkpoint as we reach it.
    :param uri: the checkpoint as Spark reaches it.
    """
    source, out = root / "in", root / "out"
    put_files(source, times * _BETWEEN)
    reference = _reference(host, kind, root)
    moments = random.Random(seed)
    done: list[Sealed] = []
    newest = -1
    for number in range(times):
        run = host.start(kind, source=source, checkpoint=uri, out=out)
        _wait_for_batch(checkpoint, newest + moments.randint(1, 3), run)
        time.sleep(moments.uniform(0, 0.4))
        mark = seal(checkpoint, reason=f"moment {number}", made_by="the test", plan_id=f"plan{number}")
        sealed_at = time.monotonic()
        run.wait(60)
        stopped = time.monotonic() - sealed_at

        newest = mark.batch_id - 1
        assert run.error, f"{kind} continued under the seal"
        assert any(text in run.error for text in STOPPED), run.error
        progress = checkpoint.progress()
        assert (progress.latest_logged, progress.latest_committed) == (newest, newest)
        in_sink, files = result_in(kind, out), _files_read(checkpoint)
        assert in_sink == _wanted(kind, reference, files), f"{kind}: the sink is not that of batch {newest}"

        refused = host.start(kind, source=source, checkpoint=uri, out=out).wait(60)
        assert refused.error, f"{kind} started under the seal"
        assert "MALFORMED_LOG_FILE" in refused.error, refused.error
        assert mark.sentence in refused.error, refused.error
        assert result_in(kind, out) == in_sink
        assert checkpoint.progress().seal == mark

        assert unseal(checkpoint, plan_id=f"plan{number}") == mark
        done.append(Sealed(kind, newest, stopped))
    host.start(kind, source=source, checkpoint=uri, out=out, available_now=True).finished()
    assert result_in(kind, out) == _wanted(kind, reference, times * _BETWEEN)
    return done


def result_in(kind: str, out: Path) -> Counter[str]:
    """What a reader sees in a sink: all rows, or for totals the newest one of each key."""
    if kind != "delta_sink":
        return _result(kind, sink.batches(out))
    from deltalake import DeltaTable

    if not (out / "_delta_log").is_dir():
        return Counter()
    rows = DeltaTable(str(out)).to_pyarrow_table(columns=["id", "k", "v"]).to_pylist()
    return Counter(json.dumps(list(row.values())) for row in rows)


def _wanted(kind: str, reference: dict[int, list[str]], files: int) -> Counter[str]:
    """What has to be in the sink after the first so many files, which the reference read one a batch."""
    result = _result(kind, {batch: rows for batch, rows in reference.items() if batch < files})
    if kind != "delta_sink":
        return result
    # Without the time stamps, which Spark and Arrow show differently.
    return Counter(json.dumps(json.loads(row)[:3]) for row in result.elements())


def _result(kind: str, batches: dict[int, list[str]]) -> Counter[str]:
    if KINDS[kind].mode == "update":
        batches = sink.newest_by_key(batches)
    return Counter(row for rows in batches.values() for row in rows)


def _files_read(checkpoint: Checkpoint) -> int:
    """How many files the newest batch and those before it have read, as the offset log says.

    Not the number of the batch: the file source notes a file before the batch is logged, so the batch that a seal stopped takes
    that file and the next one together when it comes to run.
    """
    source = checkpoint.progress().sources[0]
    assert isinstance(source.offset, FileOffset)
    return source.offset.log_offset + 1


def _reference(host: SparkHost, kind: str, root: Path) -> dict[int, list[str]]:
    """The same query, never stopped, in the sink that keeps batches apart."""
    same = "stateless" if kind == "delta_sink" else kind
    place, out = root / "reference-checkpoint", root / "reference"
    host.start(same, source=root / "in", checkpoint=place, out=out, available_now=True).finished()
    return sink.batches(out)


def _wait_for_batch(checkpoint: Checkpoint, batch: int, run: Run) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        committed = [
            int(f.path.rpartition("/")[2]) for f in checkpoint.location.list("commits").files if _is_batch(f.path)
        ]
        if max(committed, default=-1) >= batch:
            return
        if run.ended.wait(0.02):
            raise AssertionError(f"{run.kind} ended before batch {batch}: {run.error}")
    raise AssertionError(f"{run.kind} did not come to batch {batch}")


def _is_batch(path: str) -> bool:
    return path.rpartition("/")[2].isdigit()
