"""Stopped anywhere, a backup or a restore leaves nothing that Spark would start from wrongly, and the same command completes it.

After every single write Spark itself is asked: it refuses, or continues as before, or as after. `make soak` asks it after
every step of a replacing restore too; the normal run after some of them.
"""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.killed_repository import back_up, killed_after, killed_within, restore, seconds_of
from tests.support.streams import sink
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import SparkHost

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_KIND = "agg_changelog"
_BACKED_UP, _LATER, _ALL = 5, 7, 9


@dataclass(frozen=True)
class Stream:
    """A stream that was backed up after batch 4 and then ran on to batch 6; the input has two more files.

    :param early: its checkpoint when it was backed up.
    :param late: its checkpoint now.
    :param wanted: the rows of all its batches.
    """

    host: SparkHost
    source: Path
    early: Path
    late: Path
    repository: Path
    wanted: dict[int, list[str]]

    def start_from(self, checkpoint: Path) -> str:
        """Start the query: ``refused``, or the first batch that it ran, all rows right."""
        out = checkpoint.with_name(f"{checkpoint.name}-out-{time.monotonic_ns()}")
        run = self.host.start(_KIND, source=self.source, checkpoint=checkpoint, out=out, available_now=True).wait()
        rows = sink.batches(out)
        if run.error:
            assert not rows, f"wrote batches {list(rows)}, then failed: {run.error}"
            return "refused"
        assert rows, "neither refused nor ran a batch"
        assert rows == {batch: self.wanted[batch] for batch in rows}, f"wrong rows after the start at {min(rows)}"
        return f"batch {min(rows)}"


def _copy_at_rest(checkpoint: Path, to: Path) -> None:
    """Spark tidies up the state of a query for a while after it has ended: a copy that this disturbs is recreated."""
    deadline = time.monotonic() + 60
    while True:
        try:
            shutil.copytree(checkpoint, to)
            return
        except shutil.Error:
            if time.monotonic() > deadline:
                raise
            shutil.rmtree(to)


@pytest.fixture(scope="module")
def stream(spark_host: SparkHost, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    root = tmp_path_factory.mktemp("stop_anywhere")
    source, checkpoint, out = root / "in", root / "checkpoint", root / "out"
    for files in (_BACKED_UP, _LATER, _ALL):
        done = len(list((source / "a").glob("*.json")))
        put_files(source, files - done, start=done)
        spark_host.start(_KIND, source=source, checkpoint=checkpoint, out=out, available_now=True).finished()
        _copy_at_rest(checkpoint, root / f"after-{files}")
    repository = root / "repository"
    back_up(LocalStore(), root / f"after-{_BACKED_UP}", repository, workers=4)
    wanted = sink.batches(out)
    return Stream(spark_host, source, root / f"after-{_BACKED_UP}", root / f"after-{_LATER}", repository, wanted)


def test_a_backup_killed_after_any_write_is_completed_by_the_next(stream: Stream, tmp_path: Path) -> None:
    before = _visible(stream.early)
    count = 0
    while True:
        repository = tmp_path / f"repository-{count}"
        if not killed_after(count, back_up, stream.early, repository):
            break
        back_up(LocalStore(), stream.early, repository, workers=4)
        _is_complete_backup(repository, of=stream)
        count += 1
    objects = {file.object for file in _manifest(stream.repository).files}
    assert count > len(objects), "killed fewer times than there are objects"
    assert _visible(stream.early) == before


def test_a_backup_killed_at_any_moment_is_completed_by_the_next(stream: Stream, tmp_path: Path) -> None:
    moments, took = random.Random(7), seconds_of(back_up, stream.early, tmp_path / "whole")
    killed = 0
    for number in range(20):
        repository = tmp_path / f"repository-{number}"
        killed += killed_within(moments.uniform(0, took), back_up, stream.early, repository)
        back_up(LocalStore(), stream.early, repository, workers=4)
        _is_complete_backup(repository, of=stream)
    assert killed


@pytest.mark.slow
def test_a_restore_to_an_empty_place_killed_after_any_write(stream: Stream, tmp_path: Path) -> None:
    """Until the last write Spark refuses; only before the first one there is nothing at all."""
    whole = tmp_path / "whole"
    restore(LocalStore(), stream.repository, whole, workers=4)
    wanted = _visible(whole)
    verdicts, untouched = [], 0
    for count in range(1, 1000):
        target = tmp_path / f"target-{count}"
        if not killed_after(count, restore, stream.repository, target):
            break
        if not target.exists():  # the first writes are the claim, the attempt and the plan in the repository
            assert verdicts == []
            untouched += 1
            continue
        verdicts.append(_judge_then_complete(stream, target, wanted, replace=False))

    assert untouched == 3
    assert len(verdicts) > len(wanted)
    refused = verdicts.count("refused")
    assert verdicts == ["refused"] * refused + [f"batch {_BACKED_UP}"] * (len(verdicts) - refused)
    assert refused >= len(wanted) + 1, "the seal and every file but the lifted seal"


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(21, id="few", marks=pytest.mark.slow),
        pytest.param(7, id="some", marks=pytest.mark.slow),
        pytest.param(1, id="all", marks=pytest.mark.soak),
    ],
)
def test_a_replacing_restore_killed_after_any_write(stream: Stream, tmp_path: Path, every: int) -> None:
    """First as before, then refused, then as after; the same command completes it wherever it was stopped."""
    whole = tmp_path / "whole"
    restore(LocalStore(), stream.repository, whole, workers=4)
    wanted = _visible(whole)
    verdicts = []
    for count in range(1, 1000):
        target, repository = tmp_path / f"target-{count}", tmp_path / f"repository-{count}"
        shutil.copytree(stream.late, target)
        shutil.copytree(stream.repository, repository)
        if not killed_after(count, restore, repository, target, replace=True):
            break
        ask = count % every == 0 or count < 4
        verdicts.append(_judge_then_complete(stream, target, wanted, replace=True, repository=repository, ask=ask))
        assert list((repository / "set-aside/stream").glob("*/checkpoint/COMPLETE"))

    heard = [verdict for verdict in verdicts if verdict != "not asked"]
    order = [f"batch {_LATER}", "refused", f"batch {_BACKED_UP}"]
    assert heard == sorted(heard, key=order.index)
    assert "refused" in heard
    assert len(verdicts) > 2 * len(wanted), "every file deleted, every file written"


@pytest.mark.slow
def test_a_restore_killed_at_any_moment(stream: Stream, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    restore(LocalStore(), stream.repository, whole, workers=4)
    wanted = _visible(whole)
    moments, took = random.Random(11), seconds_of(restore, stream.repository, tmp_path / "timed")
    verdicts = []
    for number in range(12):
        target, repository = tmp_path / f"target-{number}", tmp_path / f"repository-{number}"
        shutil.copytree(stream.late, target)
        shutil.copytree(stream.repository, repository)
        killed_within(moments.uniform(0, took), restore, repository, target, replace=True)
        verdicts.append(_judge_then_complete(stream, target, wanted, replace=True, repository=repository))
    assert set(verdicts) <= {f"batch {_LATER}", "refused", f"batch {_BACKED_UP}"}


def _judge_then_complete(
    stream: Stream,
    target: Path,
    wanted: dict[str, bytes],
    *,
    replace: bool,
    repository: Path | None = None,
    ask: bool = True,
) -> str:
    """Ask Spark, then run the same command again on whatever it left behind, and see the restore complete."""
    verdict = "not asked"
    if ask:  # of a copy: where Spark continues, it may still be tidying up there while the restore runs
        aside = target.with_name(f"{target.name}-aside")
        shutil.copytree(target, aside)
        verdict = stream.start_from(aside)
    restore(LocalStore(), repository or stream.repository, target, workers=4, replace=replace)
    found = _visible(target)
    assert found.keys() == wanted.keys(), f"after {verdict}"
    assert found == wanted, f"after {verdict}"
    return verdict


def _is_complete_backup(repository: Path, *, of: Stream) -> None:
    manifest, clean = _manifest(repository), _manifest(of.repository)
    place = Repository.open(open_location(str(repository)))
    assert verify_backup(place, manifest, read_data=ReadData.parse("all")).ok
    assert [(file.path, file.checksum) for file in manifest.files] == [
        (file.path, file.checksum) for file in clean.files
    ]


def _manifest(repository: Path) -> Manifest:
    return Repository.open(open_location(str(repository))).manifest("latest", name="stream")


def _visible(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
