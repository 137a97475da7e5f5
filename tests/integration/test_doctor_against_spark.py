"""Each pattern of damage that the doctor knows: what real Spark does about it, and that after the repair it continues row-exact.

Every run shows a handful to Spark 4.0.0; ``make doctor`` all of them, ``make samples`` those that only newer Sparks have.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.repair.apply import apply_repair
from airflow_ckpt_provider.recovery.repair.planning import plan_repair
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.samples.kinds import KINDS
from tests.samples.sparks import Sparks
from tests.support.damaged_samples import (
    DAMAGES,
    Damage,
    Placed,
    delta_missing,
    logs_of_newest_deleted,
    naively_rewound,
    no_metadata,
    partition_missing,
    placed,
    source_log_missing,
)
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import SparkHost

#: A test may have to install a Spark first, and to start it.
pytestmark = pytest.mark.timeout(900)

_NEWER = [pytest.mark.other_spark]


def each(damages: list[Damage]) -> Any:
    """Parametrize with damages; what is not for every run behind its marker."""

    def marks(damage: Damage) -> list[pytest.MarkDecorator]:
        if damage.version != "4.0.0":
            return _NEWER
        return [pytest.mark.spark] if damage.quick else [pytest.mark.spark, pytest.mark.slow]

    return pytest.mark.parametrize("damage", [pytest.param(d, marks=marks(d), id=d.name) for d in damages])


def opened(place: Placed) -> Checkpoint:
    return Checkpoint.at(open_location(str(place.checkpoint)))


def go_on(sparks: Sparks, place: Placed) -> dict[str, Any]:
    place.add_input()
    kind = place.sample.kind
    return sparks.of(place.sample.version, KINDS[kind].jvm).go_on(kind, place.checkpoint, place.input)


def rows_of(answer: dict[str, Any]) -> dict[int, list[str]]:
    assert "error" not in answer, answer["error"]
    return {int(batch): rows for batch, rows in answer["rows"].items()}


def assert_goes_on_row_exact(sparks: Sparks, place: Placed, *, after: int) -> None:
    """With an idempotent sink the rows up to ``after`` and those of this run are the rows of a run that was never damaged."""
    query_id = json.loads(place.sample.files["metadata"])["id"]
    rows = rows_of(go_on(sparks, place))
    assert sorted(rows) == list(range(after + 1, after + 1 + len(rows)))
    assert Counter(row for of_batch in rows.values() for row in of_batch) == place.sample.rows_after(after)
    assert json.loads((place.checkpoint / "metadata").read_bytes())["id"] == query_id
    assert opened(place).diagnose() == ()


@each(list(DAMAGES))
def test_what_spark_does(sparks: Sparks, damage: Damage, tmp_path: Path) -> None:
    place = placed(damage.version, damage.kind, tmp_path, damage=damage.inflict)
    committed = place.newest("commits") if (place.checkpoint / "commits").exists() else -1
    answer = go_on(sparks, place)
    if damage.error is not None:
        assert re.search(damage.error, answer.get("error", "")), answer
        return
    rows = rows_of(answer)
    assert min(rows) == (committed + 1 if damage.first is None else damage.first)


@each([damage for damage in DAMAGES if damage.repaired_to is not None])
def test_after_the_repair_spark_goes_on_row_exact(sparks: Sparks, damage: Damage, tmp_path: Path) -> None:
    place = placed(damage.version, damage.kind, tmp_path, damage=damage.inflict)
    checkpoint = opened(place)
    query_id = json.loads(place.sample.files["metadata"])["id"] if damage.query_id else None
    plan = plan_repair(checkpoint, query_id=query_id)
    assert plan.batch_id == damage.repaired_to
    apply_repair(plan, checkpoint, rest=STOPPED, accept=ACCEPTED)
    if damage.code == "OFFSETS-HOLE":
        assert plan.already_done
        rows = rows_of(go_on(sparks, place))
        assert Counter(row for of_batch in rows.values() for row in of_batch) == place.sample.rows_after(5)
        return
    assert damage.repaired_to is not None
    assert_goes_on_row_exact(sparks, place, after=damage.repaired_to)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        pytest.param("hdfs_agg", delta_missing, id="a delta"),
        pytest.param("hdfs_agg", partition_missing, id="a partition", marks=pytest.mark.slow),
        pytest.param("file_to_foreachbatch", source_log_missing, id="the source's log", marks=pytest.mark.slow),
        pytest.param("file_to_foreachbatch", no_metadata, id="the query id", marks=pytest.mark.slow),
    ],
)
def test_what_a_backup_has_comes_back_and_nothing_is_run_again(
    sparks: Sparks, kind: str, damage: Any, tmp_path: Path
) -> None:
    place = placed("4.0.0", kind, tmp_path)
    checkpoint = opened(place)
    repository = Repository.open_or_create(open_location(str(tmp_path / "repository")))
    create_backup(checkpoint, repository)
    files = place.files()
    before = set(files)
    damage(files)
    for path in before - set(files):
        (place.checkpoint / path).unlink()
    assert checkpoint.diagnose()
    plan = plan_repair(checkpoint, repository=repository)
    assert (plan.verdict, plan.batch_id, plan.replayed, plan.deletes) == (Verdict.SAFE, 5, 0, ())
    apply_repair(plan, checkpoint, repository=repository, rest=STOPPED, accept=ACCEPTED)
    assert_goes_on_row_exact(sparks, place, after=5)


def write_other_input(place: Placed, first: int, count: int) -> None:
    """Input files from ``first`` on, none with the content that the sample read."""
    place.add_input()
    for number in range(first, first + count):
        file = place.input / "in" / f"f{number:04d}.json"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        times = file.stat()
        file.write_text("".join(json.dumps({**row, "v": row["v"] + 7_000_000}) + "\n" for row in rows))
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def totals(place: Placed) -> dict[str, tuple[int, int]]:
    """Count and sum by key over all input, which is what the query gives in the end."""
    found: dict[str, tuple[int, int]] = {}
    for file in sorted((place.input / "in").glob("f*.json")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            n, s = found.get(row["k"], (0, 0))
            found[row["k"]] = (n + 1, s + row["v"])
    return found


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("repaired", [False, True], ids=["as it is", "repaired"])
def test_stale_snapshots_spoil_the_state_at_the_next_cold_start(sparks: Sparks, repaired: bool, tmp_path: Path) -> None:
    """Undone to batch 19 by hand, other data since: version 21 is loaded from the snapshot of the abandoned time line."""
    place = placed("4.0.0", "rocks_changelog_maint", tmp_path, damage=naively_rewound)
    if repaired:
        apply_repair(plan_repair(opened(place)), opened(place), rest=STOPPED, accept=ACCEPTED)
    kind = KINDS[place.sample.kind]
    total = kind.files[0] + kind.further_files[0]
    write_other_input(place, 20, total - 20)
    later = [place.input / "in" / f"f{number:04d}.json" for number in range(22, total)]
    kept = [(file, file.read_bytes(), file.stat().st_mtime_ns) for file in later]
    for file in later:
        file.unlink()
    service = sparks.of("4.0.0", kind.jvm)
    # With the settings of a kind that leaves snapshots to every tenth batch: otherwise a slow run replaces the stale one.
    first = rows_of(service.go_on("rocks_changelog_agg", place.checkpoint, place.input))
    assert sorted(first) == [20, 21]
    for file, content, modified in kept:
        file.write_bytes(content)
        os.utime(file, ns=(modified, modified))
    # A run of its own: it loads the state again.
    rows = rows_of(service.go_on(place.sample.kind, place.checkpoint, place.input))
    ends = {row["k"]: (row["n"], row["s"]) for batch in sorted(rows) for row in map(json.loads, rows[batch])}
    right = {key: total for key, total in totals(place).items() if key in ends}
    assert (ends == right) is repaired


@pytest.mark.spark
@pytest.mark.slow
def test_replayed_batches_are_the_same_batches(sparks: Sparks, tmp_path: Path) -> None:
    """The cut removes what a file source has logged beyond it, so that files are not taken together."""
    place = placed("4.0.0", "hdfs_agg_maint", tmp_path, damage=logs_of_newest_deleted)
    apply_repair(plan_repair(opened(place)), opened(place), rest=STOPPED, accept=ACCEPTED)
    rows = rows_of(go_on(sparks, place))
    assert {batch: rows[batch] for batch in (21, 22)} == {
        batch: place.sample.rows["sample"][str(batch)] for batch in (21, 22)
    }


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "files"),
    [
        pytest.param("agg_changelog", 12, marks=pytest.mark.slow),
        pytest.param("join_hdfs", 60, marks=pytest.mark.slow),
        pytest.param("compacted_sources", 60, marks=pytest.mark.slow),
        pytest.param("agg_hdfs", 60, marks=pytest.mark.slow),
    ],
)
def test_no_alarm_on_a_running_stream(spark_host: SparkHost, kind: str, files: int, tmp_path: Path) -> None:
    """Maintenance and purges delete files all the time; read as often as it goes, nothing is found."""
    source, place = tmp_path / "input", tmp_path / "ck"
    put_files(source, files)
    run = spark_host.start(kind, source=source, checkpoint=place, out=tmp_path / "out", available_now=True)
    checkpoint = Checkpoint.at(open_location(str(place)))
    looks = 0
    while not run.ended.wait(0.1):
        if (place / "commits").exists():
            assert checkpoint.diagnose() == ()
            looks += 1
    run.finished()
    assert looks > 10
