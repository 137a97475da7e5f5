"""What of a rehearsal needs no Spark: the scratch copy, batches planned as another run had them, the proof, the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.rehearsal.report import Failure, RowDifference, parse_report
from airflow_ckpt_provider.upgrade.rehearsal.scratch import (
    check_apart,
    plan_as,
    plannable,
    remove_all,
    restore_scratch,
)
from airflow_ckpt_provider.upgrade.rehearsal.untouched import compare_snapshots, take_snapshot
from airflow_ckpt_provider.verdict import Verdict
from tests.support.one_checkpoint import NEWEST, unpack
from tests.support.rehearsals import rehearsal


@pytest.fixture
def checkpoint(tmp_path: Path) -> Location:
    return open_location(str(unpack(tmp_path / "checkpoints" / "orders")))


@pytest.fixture
def repository(tmp_path: Path, checkpoint: Location) -> Repository:
    found = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    create_backup(Checkpoint.at(checkpoint), found, restorable_batches=3)
    return found


def test_batches_are_planned_as_they_were(checkpoint: Location, repository: Repository, tmp_path: Path):
    before = take_snapshot(checkpoint)
    manifest = repository.manifest()
    place = open_location(str(tmp_path / "scratch" / "new"))
    copy = restore_scratch(repository, manifest, place, batch=NEWEST - 2, made_by="me", reason="why")
    assert (copy.batch_id, copy.state_bytes > 0) == (NEWEST - 2, True)
    # Under the same id Spark would stop production for it, where both run in one application.
    assert Checkpoint.at(place).progress().query_id not in (None, manifest.query_id)
    assert plannable(checkpoint, after=copy.batch_id, at_most=5) == [NEWEST - 1, NEWEST]
    assert plannable(checkpoint, after=copy.batch_id, at_most=1) == [NEWEST - 1]
    assert plannable(checkpoint, after=NEWEST, at_most=5) == []
    # What a run of its own has planned, and Hadoop's checksum of it, give way.
    place.replace(f"offsets/{NEWEST - 1}", b"v1\nof another plan")
    place.replace(f"offsets/.{NEWEST - 1}.crc", b"crc")
    place.replace(f"sources/0/{NEWEST}", b"v1\nof another plan")
    place.replace(f"sources/0/.{NEWEST}.crc", b"crc")
    plan_as(place, checkpoint, NEWEST - 1)
    assert place.read(f"offsets/{NEWEST - 1}") == checkpoint.read(f"offsets/{NEWEST - 1}")
    found = set(place.walk())
    assert f"offsets/.{NEWEST - 1}.crc" not in found
    assert f"sources/0/{NEWEST - 1}" in found
    assert f"sources/0/{NEWEST}" not in found
    assert f"sources/0/.{NEWEST}.crc" not in found
    resume = Checkpoint.at(place).resume_point()
    assert (resume.batch_id, resume.replay, resume.verdict) == (NEWEST - 1, True, Verdict.SAFE)
    assert compare_snapshots(before, take_snapshot(checkpoint)).unchanged
    remove_all(place)
    assert not (tmp_path / "scratch" / "new").exists()


def test_scratch_and_production_are_apart(tmp_path: Path):
    production = open_location(str(tmp_path / "lake" / "ck"))
    check_apart(open_location(str(tmp_path / "scratch")), production)
    for place in (tmp_path / "lake", tmp_path / "lake" / "ck", tmp_path / "lake" / "ck" / "x"):
        with pytest.raises(RefusedError, match="lie one inside the other"):
            check_apart(open_location(str(place)), production)


def test_the_proof_names_what_changed(tmp_path: Path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    place = open_location(str(tmp_path))
    before = take_snapshot(place)
    assert str(compare_snapshots(before, take_snapshot(place))).startswith(f"{tmp_path}: unchanged, 3 files (")
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").unlink()
    (tmp_path / "d").write_text("d")
    found = compare_snapshots(before, take_snapshot(place))
    assert (found.rewritten, found.gone, found.new, found.unchanged) == (("a",), ("b",), ("d",), False)
    document = found.to_json()
    assert (document["rewritten"], document["gone"], document["new"]) == (1, 1, 1)
    assert document["examples"] == ["a", "b", "d"]
    assert document["fingerprint_before"] != document["fingerprint_after"]


def test_a_table_that_is_written_meanwhile_moves_its_pointer(tmp_path: Path):
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / "_last_checkpoint").write_text("10")
    place = open_location(str(tmp_path))
    before = take_snapshot(place)
    (log / "_last_checkpoint").write_text("20")
    assert compare_snapshots(before, take_snapshot(place)).rewritten == ("_delta_log/_last_checkpoint",)
    (log / "00000000000000000020.checkpoint.parquet").write_text("")
    found = compare_snapshots(before, take_snapshot(place))
    assert (found.rewritten, len(found.new), found.unchanged) == ((), 1, False)


def test_a_good_report():
    report = rehearsal(difference=RowDifference("old code", (6, 7)))
    assert (report.verdict, report.starts, report.reasons) == (Verdict.SAFE, True, ())
    document = report.to_json()
    assert (document["input_rows"], document["output_rows"], document["seconds_per_batch"]) == (22, 9, 2.0)
    assert document["difference"]["equal"] is True
    assert "the same rows as old code in 2 batches" in report.to_markdown()


def test_reports_that_are_not_safe(tmp_path: Path):
    failed = rehearsal(batches=(), failure=Failure("OPERATORS-CHANGED", "[STREAM_FAILED]\nmore"))
    assert (failed.verdict, failed.starts) == (Verdict.WILL_FAIL, False)
    assert failed.reasons == ("OPERATORS-CHANGED: [STREAM_FAILED]",)
    later = rehearsal(failure=Failure("TIMEOUT", "still running"))
    assert (later.verdict, later.starts) == (Verdict.WILL_FAIL, True)
    idle = rehearsal(batches=())
    assert (idle.verdict, idle.starts) == (Verdict.UNKNOWN, None)
    assert "nothing to read" in idle.reasons[0]
    differing = rehearsal(difference=RowDifference("old code", (6,), 2, 1, ("a",), ("b",), ("- batch 6: {}",)))
    assert differing.verdict is Verdict.UNKNOWN
    assert differing.reasons == (
        "rows differ from old code in 1 batches: 2 only there, 1 only in the new code; columns -a +b",
    )
    unknown = rehearsal(difference=RowDifference("s3://lake/t", not_compared="no commit"))
    assert unknown.reasons == ("not compared with s3://lake/t: no commit",)
    (tmp_path / "a").write_text("a")
    before = take_snapshot(open_location(str(tmp_path)))
    (tmp_path / "a").write_text("b")
    written = rehearsal(production=(compare_snapshots(before, take_snapshot(open_location(str(tmp_path)))),))
    assert written.verdict is Verdict.UNKNOWN
    assert "rewritten meanwhile" in written.reasons[0]


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"verdict": "SAFE"}', b'{"format": "airflow-ckpt-rehearsal", "version": 2}']
)
def test_what_is_no_report(data: bytes):
    with pytest.raises(RefusedError, match=r"^s3://x/r\.json is not the report of a rehearsal"):
        parse_report(data, path="s3://x/r.json")
