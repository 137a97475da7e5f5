"""Gaps in ``offsets/`` that are legal for one query and damage for another: named, and never called whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.location import Location
from tests.samples.archives import VERSIONS, kinds_of
from tests.support.checkpoints import (
    Files,
    batch_metadata,
    commit_log,
    hdfs_aggregation,
    metadata,
    offsets_log,
    plant,
)
from tests.support.command_line import run
from tests.support.damaged_samples import placed
from tests.support.doctored import opened


def rate_source(logged: tuple[int, ...], committed: tuple[int, ...]) -> Files:
    """A query without state that reads the rate source, as in Spark's own test resources."""
    offsets = {f"offsets/{b}": offsets_log(str(b), metadata=batch_metadata(b)) for b in logged}
    return {"metadata": metadata()} | offsets | {f"commits/{b}": commit_log() for b in committed}


@pytest.mark.parametrize(
    ("logged", "committed", "path", "starts"),
    [
        ((1, 2, 4), (1, 2), "offsets/3", False),  # of Spark's test resources: without the option it refuses it
        ((0, 1, 3), (0, 1), "offsets/2", False),
        ((0, 2, 3), (0,), "offsets/1", True),
        ((0, 5, 9, 10), (0, 5, 9, 10), "offsets/1", True),
    ],
)
def test_a_gap_is_named(
    place: Location, logged: tuple[int, ...], committed: tuple[int, ...], path: str, starts: bool
) -> None:
    checkpoint = Checkpoint.at(plant(place / "ck", rate_source(logged, committed)))
    assert checkpoint.diagnose() == ()
    (gap,) = checkpoint.undecided()
    assert (gap.path, gap.to_json()["verdict"]) == (path, "UNKNOWN")
    assert "Whether that is damage is not known" in gap.message
    assert ("any other query starts" in gap.message) == starts


@pytest.mark.parametrize(
    ("logged", "committed"),
    [((1, 2, 3), (1, 2)), ((3,), (3,)), ((), ()), ((0, 1, 3), (0, 1, 2, 3))],
    ids=["no gap", "one entry", "none", "lost, which is a finding"],
)
def test_nothing_is_undecided(place: Location, logged: tuple[int, ...], committed: tuple[int, ...]) -> None:
    assert Checkpoint.at(plant(place / "ck", rate_source(logged, committed))).undecided() == ()


def test_with_state_it_is_damage(place: Location) -> None:
    files = {path: data for path, data in hdfs_aggregation(4).items() if path not in ("offsets/2", "commits/2")}
    checkpoint = Checkpoint.at(plant(place / "ck", files))
    assert checkpoint.undecided() == ()
    assert "OFFSETS-HOLE" in [finding.kind.code for finding in checkpoint.diagnose()]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_sparks_left(version: str, tmp_path: Path) -> None:
    """Only asynchronous progress tracking leaves a gap, and a seal is none."""
    for kind in kinds_of(version):
        checkpoint = opened(placed(version, kind, tmp_path / kind))
        gaps = checkpoint.undecided()
        assert not gaps or kind == "rate_async_progress", kind
        if kind == "rate_async_progress":
            seal(checkpoint, reason="a pause")
            assert checkpoint.undecided() == gaps


def test_on_the_command_line(tmp_path: Path) -> None:
    for path, content in rate_source((1, 2, 4), (1, 2)).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    shown = run("doctor", tmp_path)
    assert (shown.code, "no known damage" in shown.out) == (0, False)
    assert "UNKNOWN  offsets/3" in shown.out
    found = run("doctor", tmp_path, "--json").document
    assert (found["findings"], [each["path"] for each in found["unknown"]]) == ([], ["offsets/3"])
    for path, content in rate_source((3,), (3,)).items():
        (tmp_path / path).write_bytes(content)
    assert "no known damage" in run("doctor", tmp_path).out
