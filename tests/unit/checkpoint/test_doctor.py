"""The doctor: every pattern of damage is found and named, and nothing that is whole is complained of.

What Spark does about each, and that a repair fixes it, is shown in ``tests/integration/test_doctor_against_spark.py``.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.doctor import CHECKS, KINDS
from airflow_ckpt_provider.checkpoint.doctor.examination import NEWEST
from airflow_ckpt_provider.checkpoint.findings import Finding, Severity
from airflow_ckpt_provider.checkpoint.logs import HIGHEST
from airflow_ckpt_provider.errors import HistoryRewrittenError, NotACheckpointError, StorageError
from airflow_ckpt_provider.recovery.reset.new_numbers import logs_up_to
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.archives import VERSIONS, sample
from tests.support.damaged_samples import DAMAGES, Damage, placed
from tests.support.doctored import opened
from tests.support.every_run import each_sample
from tests.support.watched_stores import Life, forget_all, in_memory, watched

each_damage = pytest.mark.parametrize("damage", [pytest.param(d, id=d.name) for d in DAMAGES])


def codes(found: tuple[Finding, ...]) -> list[str]:
    return [finding.kind.code for finding in found]


@each_sample
def test_no_alarm_on_what_a_spark_left(version: str, kind: str, tmp_path: Path) -> None:
    """Every kind of every version: asynchronous progress with its gaps, continuous mode, logs that were purged."""
    assert opened(placed(version, kind, tmp_path)).diagnose() == ()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["hdfs_agg", "rocks_changelog_maint", "hdfs_ssjoin", "file_to_foreachbatch"])
def test_no_alarm_when_the_newest_batch_is_not_committed(version: str, kind: str, tmp_path: Path) -> None:
    place = placed(version, kind, tmp_path)
    (place.checkpoint / "commits" / str(place.newest("commits"))).unlink()
    assert opened(place).diagnose() == ()


@pytest.mark.parametrize("kind", ["hdfs_agg", "rate_async_progress"])
def test_no_alarm_on_a_seal(kind: str, tmp_path: Path) -> None:
    place = placed("4.0.0", kind, tmp_path)
    seal(opened(place), reason="a pause")
    assert opened(place).diagnose() == ()


def test_no_alarm_on_a_new_checkpoint_that_keeps_the_batch_numbers(place: Location) -> None:
    """As a reset makes it: two entries without offsets, no state, nothing before."""
    logs = logs_up_to(
        41, ["0", "1"], conf={}, time_ms=1_795_259_541_938, query_id="0a6ab8f5-4b0f-4a51-93f4-0b6b8a3f0f0e"
    )
    for path, content in logs.items():
        place.create(path, content.encode())
    assert Checkpoint.at(place).diagnose() == ()


@each_damage
def test_every_damage_is_found_and_nothing_else(damage: Damage, tmp_path: Path) -> None:
    found = opened(placed(damage.version, damage.kind, tmp_path, damage=damage.inflict)).diagnose()
    assert codes(found) == [damage.code]
    (finding,) = found
    assert finding.path
    assert finding.message
    told = finding.to_json()
    assert json.loads(json.dumps(told)) == told
    assert told["effect"]
    assert told["remedy"]


@each_damage
def test_damage_is_found_under_a_seal_too(damage: Damage, tmp_path: Path) -> None:
    place = placed(damage.version, damage.kind, tmp_path, damage=damage.inflict)
    if not (place.checkpoint / "offsets").exists():
        pytest.skip("there is nothing to seal")
    names = [int(file.name) for file in (place.checkpoint / "offsets").glob("*") if file.name.isdigit()]
    (place.checkpoint / "offsets" / str(max(names) + 1)).write_text("airflow-ckpt: sealed by plan 1 (x, y, z); no")
    assert codes(opened(place).diagnose()) == [damage.code]


def test_every_kind_has_a_damage_that_real_spark_was_shown() -> None:
    assert [kind.code for kind in KINDS] == list(
        dict.fromkeys(d.code for d in sorted(DAMAGES, key=lambda d: d.pattern))
    )
    assert sorted({damage.pattern for damage in DAMAGES}) == list(range(1, 19))
    for kind in KINDS:
        assert re.fullmatch(r"[A-Z]+(-[A-Z]+)*", kind.code)
        assert all((kind.meaning, kind.reaction, kind.remedy))
        assert kind.severity is not Severity.ADVICE


def test_worst_first(tmp_path: Path) -> None:
    def two(files: dict[str, bytes]) -> None:
        del files["offsets/1"]
        for path in ("commits/3", "commits/4", "commits/5"):
            del files[path]

    found = opened(placed("4.0.0", "hdfs_agg", tmp_path, damage=two)).diagnose()
    assert [finding.severity for finding in found] == [Severity.SILENT, Severity.WARNING]
    assert codes(found) == ["BATCHES-SKIPPED", "OFFSETS-HOLE"]


@pytest.mark.parametrize("kind", ["hdfs_agg", "file_to_foreachbatch"])
def test_a_file_with_the_highest_number_is_found(tmp_path: Path, kind: str) -> None:
    """And nobody counts up to it."""

    def highest(files: dict[str, bytes]) -> None:
        files[f"offsets/{HIGHEST}"] = files["offsets/4"]

    checkpoint = opened(placed("4.0.0", kind, tmp_path, damage=highest))
    found = checkpoint.diagnose()
    assert any(f"offsets/{HIGHEST}" in finding.message for finding in found)
    assert len(checkpoint.undecided()) <= 1
    assert all(len(finding.figures.get("batches", ())) <= 10_000 for finding in found)


def test_a_gap_is_a_loss_where_the_commit_is_there(tmp_path: Path) -> None:
    """Asynchronous progress tracking leaves both out, or has neither of them lost."""

    def both(files: dict[str, bytes]) -> None:
        for log in ("offsets", "commits"):
            del files[f"{log}/2"]

    def one(files: dict[str, bytes]) -> None:
        del files["offsets/2"]

    kind = "file_to_foreachbatch"
    assert opened(placed("4.0.0", kind, tmp_path / "both", damage=both)).diagnose() == ()
    assert codes(opened(placed("4.0.0", kind, tmp_path / "one", damage=one)).diagnose()) == ["OFFSETS-HOLE"]


def test_temporary_files_of_a_writer_at_work_are_no_debris(tmp_path: Path) -> None:
    place = placed("4.0.0", "hdfs_agg", tmp_path)
    file = place.checkpoint / "offsets" / ".6.0b4f6d6f-5a0e-4a51-93f4-0b6b8a3f0f0e.tmp"
    file.write_bytes(b"v1")
    now = time.time()
    os.utime(file, (now + 1, now + 1))
    assert opened(place).diagnose() == ()
    os.utime(file, (now - 3600, now - 3600))
    assert codes(opened(place).diagnose()) == ["TEMPORARY-FILES"]


def test_without_contents_only_listings_tell(tmp_path: Path) -> None:
    place = placed(
        "4.0.0", "hdfs_agg", tmp_path, damage=next(d.inflict for d in DAMAGES if "cut_off" in d.name and d.pattern == 8)
    )
    assert opened(place).diagnose(contents=False) == ()
    assert codes(opened(place).diagnose()) == ["STATE-INCOMPLETE"]


def test_many_stores_of_one_operator_are_one_finding(tmp_path: Path) -> None:
    def all_of_version_5(files: dict[str, bytes]) -> None:
        for path in [p for p in files if p.endswith("/5.delta")]:
            del files[path]

    (finding,) = opened(placed("4.0.0", "hdfs_ssjoin", tmp_path, damage=all_of_version_5)).diagnose()
    assert finding.figures["files"] == 8
    assert finding.message.endswith("(and 7 more)")


def test_an_unknown_provider_is_named_and_not_judged(tmp_path: Path) -> None:
    def of_somebody(files: dict[str, bytes]) -> None:
        for path in files:
            if path.startswith("offsets/"):
                files[path] = re.sub(rb"org\.[\w.]*HDFSBackedStateStoreProvider", b"com.acme.Provider", files[path])

    (finding,) = opened(placed("4.0.0", "hdfs_agg", tmp_path, damage=of_somebody)).diagnose()
    assert (finding.kind.code, finding.severity) == ("FORMAT-UNKNOWN", Severity.WARNING)
    assert "com.acme.Provider" in finding.message


def test_a_wrong_checksum_file_and_a_damaged_file_are_told_apart(tmp_path: Path) -> None:
    def state_file(files: dict[str, bytes]) -> None:
        (path,) = (p for p in files if re.fullmatch(r"state/0/0/6_[^.]*\.changelog", p))
        content = bytearray(files[path])
        content[-30] ^= 1
        files[path] = bytes(content)

    place = placed("4.3.0", "rocks_ckptv2_agg", tmp_path, damage=state_file)
    assert codes(opened(place).diagnose()) == ["STATE-INCOMPLETE"]


def test_schema_files_that_are_needed(tmp_path: Path) -> None:
    def without(files: dict[str, bytes]) -> None:
        del files[next(p for p in files if "/_stateSchema/" in p)]

    (finding,) = opened(placed("4.0.0", "tws_rocks", tmp_path, damage=without)).diagnose()
    assert finding.kind.code == "STATE-INCOMPLETE"
    assert "_stateSchema" in finding.path


def test_an_operator_that_is_missing(tmp_path: Path) -> None:
    def first_operator(files: dict[str, bytes]) -> None:
        for path in [p for p in files if p.startswith("state/0/")]:
            del files[path]

    (finding,) = opened(placed("4.0.0", "hdfs_two_operators", tmp_path, damage=first_operator)).diagnose()
    assert (finding.kind.code, finding.path) == ("STATE-PARTITION-MISSING", "state/0")


def test_no_commits_at_all(tmp_path: Path) -> None:
    def uncommitted(files: dict[str, bytes]) -> None:
        for batch in range(6):
            del files[f"commits/{batch}"]

    assert codes(opened(placed("4.0.0", "hdfs_agg", tmp_path, damage=uncommitted)).diagnose()) == ["BATCHES-SKIPPED"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e.replace(b'"logOffset":5', b'"logOffset":2'), "decreases from log id 4 to 2"),
        (lambda e: e + b'\n{"logOffset":5}', "it has 2 sources, batch 4 has 1"),
        (
            lambda e: e.replace(b'codec":"lz4"', b'codec":"zstd"'),
            "stateStore.compression.codec changes from lz4 to zstd",
        ),
        (lambda e: e.replace(b'{"logOffset":5}', b'{"orders":{"0":5}}'), "source 0 changes from file to kafka"),
    ],
)
def test_signs_of_two_writers(change: Callable[[bytes], bytes], words: str, tmp_path: Path) -> None:
    def other(files: dict[str, bytes]) -> None:
        files["offsets/5"] = change(files["offsets/5"])

    found = opened(placed("4.0.0", "file_to_foreachbatch", tmp_path, damage=other)).diagnose()
    written = [finding.message for finding in found if finding.kind.code == "TWO-WRITERS"]
    assert [words in message for message in written] == [True]


def test_names_that_are_no_numbers_are_passed_over(tmp_path: Path) -> None:
    place = placed("4.0.0", "hdfs_agg", tmp_path)
    for name in ("abc", "5.bak", "-1", "99999999999999999999999", "007", "5 "):
        for log in ("offsets", "commits"):
            (place.checkpoint / log / name).write_text("x")
    assert opened(place).diagnose() == ()


def test_a_long_log_is_read_at_its_end_only(tmp_path: Path) -> None:
    place = placed("4.0.0", "file_to_noop", tmp_path)
    logs = [place.checkpoint / log for log in ("offsets", "commits")]
    contents = [(log / "5").read_bytes() for log in logs]
    batches = 5_000
    for batch in range(batches):
        for log, content in zip(logs, contents, strict=True):
            (log / str(batch)).write_bytes(content if batch > batches - NEWEST - 10 else b"")
    here, store = watched(open_location(str(place.checkpoint)))
    assert Checkpoint.at(here).diagnose() == ()
    assert store.count("read") < 2 * NEWEST + 20
    assert store.count("walk", "list") == 1


def test_reads_only(place: Location) -> None:
    for path, content in sample("4.0.0", "hdfs_agg").files.items():
        place.create(path, content if path != "offsets/5" else b"")
    here, _ = watched(place, Life(0).before)
    assert codes(Checkpoint.at(here).diagnose()) == ["LOG-FILE-TORN"]


def test_what_passes_while_the_stream_runs_is_no_finding(place: Location) -> None:
    """At the first poll the newest state is not listed yet, at the second it is."""
    files = dict(sample("4.0.0", "hdfs_agg").files)
    late = {path: files.pop(path) for path in ("state/0/0/6.delta", "state/0/1/6.delta")}
    for path, content in files.items():
        place.create(path, content)
    looks = []

    def write_late(operation: str, path: str) -> None:
        looks.extend([path] if operation == "walk" else [])
        if len(looks) == 2:
            while late:
                place.create(*late.popitem())

    here, _ = watched(place, write_late)
    assert Checkpoint.at(here).diagnose() == ()
    assert len(looks) == 2


def test_a_file_that_vanishes_is_looked_for_again(place: Location) -> None:
    for path, content in sample("4.0.0", "hdfs_agg").files.items():
        place.create(path, content)
    gone = []

    def purge(operation: str, path: str) -> None:
        if operation == "read" and path.endswith("offsets/0") and not gone:
            gone.append(path)
            for log in ("offsets", "commits"):
                place.delete(f"{log}/0")

    here, _ = watched(place, purge)
    assert Checkpoint.at(here).diagnose() == ()
    assert gone


def test_what_never_could_be_examined_is_not_called_whole(place: Location) -> None:
    """Batches pass faster than the listing: it was "no known damage", though the query id is gone."""
    files = dict(sample("4.0.0", "hdfs_agg").files)
    del files["metadata"]
    for path, content in files.items():
        place.create(path, content)
    batches = [*Checkpoint.at(place).progress().committed]

    def pass_on(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(f"offsets/{batches[-1]}"):
            for old in tuple(batches):
                for log in ("offsets", "commits"):
                    place.create(f"{log}/{old + len(batches)}", place.read(f"{log}/{old}"))
                    place.delete(f"{log}/{old}")
            batches[:] = (batch + len(batches) for batch in tuple(batches))

    here, _ = watched(place, pass_on)
    with pytest.raises(HistoryRewrittenError) as error:
        Checkpoint.at(here).diagnose()
    assert error.value.message == (
        f"{here} changes faster than it can be examined: each of 6 times a file was gone before it was read"
    )


def test_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(NotACheckpointError, match="is not a checkpoint"):
        Checkpoint.at(open_location(str(tmp_path))).diagnose()
    with pytest.raises((NotACheckpointError, StorageError)):
        Checkpoint.at(open_location(str(tmp_path / "notes.txt"))).diagnose()


@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["hdfs_agg", "rocks_changelog_maint", "rocks_ckptv2_maint", "tws_rocks"]),
)
def test_whatever_is_done_to_a_file_is_no_crash(seed: int, kind: str) -> None:
    """One file cut off, changed, emptied or deleted: the answer is findings, whatever they are."""
    chance = random.Random(seed)
    files = dict(sample("4.0.0", kind).files)
    path = chance.choice(sorted(files))
    content = files[path]
    harm = chance.randrange(4)
    if harm == 0:
        del files[path]
    elif harm == 1:
        files[path] = content[: chance.randrange(len(content) + 1)]
    elif harm == 2:
        files[path] = b""
    elif content:
        at = chance.randrange(len(content))
        files[path] = content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]
    place = in_memory()
    for name, data in files.items():
        place.create(name, data)
    for finding in Checkpoint.at(place).diagnose():
        assert finding.kind in KINDS
        assert json.dumps(finding.to_json())
    forget_all()


def test_every_check_is_of_its_own() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
