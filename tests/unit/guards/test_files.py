"""The file guard: files of the next batch, archives, and logs that are not whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.sources import SOURCES_EVOLVE
from airflow_ckpt_provider.guards.files import FileGuard
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import SourceReport
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import batch_metadata, commit_log, compact, metadata, offsets_log, plant
from tests.support.command_line import run
from tests.support.delta_tables import delta_checkpoint, new_table, put


@pytest.fixture
def ck(tmp_path: Path) -> Path:
    """Two files were read, two are logged for the next batch."""
    table = new_table(tmp_path / "table", 2)
    return delta_checkpoint(tmp_path / "orders", table, 2, files=put(tmp_path / "in", 0, 1, 2, 3))


def judge(checkpoint: Path, **reader: str) -> SourceReport:
    settings = GuardSettings(options={"file": {"options": {"1": reader}}})
    query = from_checkpoint(open_location(str(checkpoint))).of_kind("file")
    return guard_query(query, settings, guards=[FileGuard(settings)]).sources[0]


def test_healthy(ck: Path) -> None:
    report = judge(ck)
    assert (report.verdict, report.reasons, report.lost) == (Verdict.SAFE, (), 0)
    assert report.facts == {"planned_files": 2, "read_files": 2, "missing_files": 0, "read_files_gone": 0}
    assert [p.facts["found"] for p in report.parts] == ["as listed", "as listed"]


def test_a_planned_file_is_gone(ck: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "f 2.json").unlink()
    report = judge(ck)
    assert (report.verdict, report.lost) == (Verdict.WILL_LOSE, None)
    assert report.reasons == ("1 file of the next batch is gone (f 2.json): Spark leaves it out silently",)


def test_a_planned_file_is_in_the_archive(ck: Path, tmp_path: Path) -> None:
    file = tmp_path / "in" / "f 2.json"
    archived = Path(f"{tmp_path / 'archive'}{file}")
    archived.parent.mkdir(parents=True)
    shutil.move(file, archived)
    report = judge(ck, cleanSource="archive", sourceArchiveDir=str(tmp_path / "archive"))
    assert report.verdict is Verdict.WILL_LOSE
    assert report.reasons[0].endswith("1 of them is in the archive: move it back first")
    assert report.parts[0].facts["archived"] == str(archived)


def test_a_planned_file_was_replaced(ck: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "f 3.json").write_text('{"id": 77}\n')
    report = judge(ck)
    assert report.verdict is Verdict.UNKNOWN
    assert [p.facts["found"] for p in report.parts] == ["as listed", "modified since"]


def test_directories_that_have_names(ck: Path) -> None:
    """Spark 4.2 with source evolution names the directories, and writes positional offsets. Which is which it does not say."""
    (ck / "sources" / "1").rename(ck / "sources" / "events")
    for entry in (ck / "offsets").iterdir():
        version, metadata, *offsets = entry.read_text().split("\n")
        settled = json.loads(metadata)
        settled["conf"][SOURCES_EVOLVE] = "true"
        entry.write_text("\n".join((version, json.dumps(settled), *offsets)))
    report = judge(ck)
    assert report.verdict is Verdict.UNKNOWN
    assert "the source's own log is not at hand" in report.reasons[0]
    for entry in (ck / "offsets").iterdir():  # of the only source it is known
        version, metadata, _, offset = entry.read_text().split("\n")
        entry.write_text("\n".join((version, metadata, offset)))
    settings = GuardSettings()
    report = guard_query(from_checkpoint(open_location(str(ck))), settings, guards=[FileGuard(settings)]).sources[0]
    assert (report.verdict, report.facts["planned_files"]) == (Verdict.SAFE, 2)


def test_read_files_may_be_gone(ck: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "f 0.json").unlink()
    report = judge(ck)
    assert report.verdict is Verdict.SAFE
    assert report.reasons == ("1 of 2 files that were read is gone: a rewind would lose it",)
    assert "cleanSource=delete deletes files that were read" in judge(ck, cleanSource="delete").reasons[0]


def test_a_log_that_was_trimmed_at_its_beginning(ck: Path) -> None:
    """Spark reads the whole log at its start: tests/integration/test_file_guard.py. It was WILL_DUPLICATE."""
    (ck / "sources" / "1" / "0").unlink()
    report = judge(ck)
    assert report.verdict is Verdict.WILL_FAIL
    assert "sources/1/0: the file is missing" in report.reasons[0]


def test_the_entry_of_the_planned_batch_is_missing(tmp_path: Path) -> None:
    """A torn copy. It was SAFE: nothing of a file that is logged was missing."""
    files = put(tmp_path / "in", 0, 1)
    logged = [
        f"v1\n{compact({'path': file.as_uri(), 'timestamp': int(file.stat().st_mtime * 1000), 'batchId': n})}".encode()
        for n, file in enumerate(files)
    ]
    content = {"metadata": metadata(), "commits/0": commit_log(), "sources/0/0": logged[0]}
    for batch in range(2):
        content[f"offsets/{batch}"] = offsets_log(compact({"logOffset": batch}), metadata=batch_metadata(batch))
    ck = plant(open_location(str(tmp_path / "ck")), content)
    settings = GuardSettings()

    def judged() -> SourceReport:
        return guard_query(from_checkpoint(ck), settings, guards=[FileGuard(settings)]).sources[0]

    assert judged().verdict is Verdict.WILL_FAIL
    assert "sources/0/1: the file is missing" in judged().reasons[0]
    ck.create("sources/0/1", logged[1])
    assert judged().verdict is Verdict.SAFE


@pytest.mark.parametrize("content", [b"", b"v1\n{", None])
def test_a_log_that_is_damaged_where_the_start_reads_it(ck: Path, content: bytes | None) -> None:
    file = ck / "sources" / "1" / "1"
    file.unlink() if content is None else file.write_bytes(content)
    report = judge(ck)
    assert report.verdict is Verdict.WILL_FAIL


def test_without_its_log_it_is_unknown() -> None:
    from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
    from airflow_ckpt_provider.checkpoint.source_offsets import parse_offset
    from airflow_ckpt_provider.guards.registry import GuardedSource

    source: Any = GuardedSource(SourceOffset("0", parse_offset('{"logOffset":3}')))
    guard = FileGuard(GuardSettings())
    assert guard.recognises(source)
    assert guard.judge(source).verdict is Verdict.UNKNOWN


def test_a_file_beyond_the_planned_batch_is_gone(ck: Path, tmp_path: Path) -> None:
    """Log 2 is the planned batch, and log 3 is read after it; a torn copy of a checkpoint has such a log."""
    plan = ck / "offsets/2"
    plan.write_text((ck / "offsets/1").read_text().replace('{"logOffset":1}', '{"logOffset":2}'))
    report = judge(ck)
    assert (report.verdict, report.facts["planned_files"]) == (Verdict.SAFE, 1)
    (tmp_path / "in" / "f 3.json").unlink()
    report = judge(ck)
    assert (report.verdict, report.lost) == (Verdict.WILL_LOSE, None)
    assert "1 file logged beyond the next batch is gone (f 3.json)" in report.reasons[0]


def test_a_huge_log_offset_takes_neither_time_nor_memory(ck: Path) -> None:
    log = ck / "offsets/1"
    log.write_text(log.read_text().replace('{"logOffset":1}', f'{{"logOffset":{10**17}}}'))
    report = judge(ck)
    assert report.verdict is Verdict.WILL_FAIL
    assert "the file is missing" in report.reasons[0]


def test_a_rewind_counts_the_files_behind_its_target_only(tmp_path: Path) -> None:
    """It said of a file that the replay does not read that the rewind would lose it."""
    files = put(tmp_path / "in", 0, 1, 2)
    content = {"metadata": metadata()}
    for n, file in enumerate(files):
        logged = {"path": file.as_uri(), "timestamp": int(file.stat().st_mtime * 1000), "batchId": n}
        content |= {f"sources/0/{n}": f"v1\n{compact(logged)}".encode(), f"commits/{n}": commit_log()}
        content[f"offsets/{n}"] = offsets_log(compact({"logOffset": n}), metadata=batch_metadata(n))
    ck = plant(open_location(str(tmp_path / "ck")), content)
    files[0].unlink()
    rewind = ("rewind", tmp_path / "ck", "--to-batch", 0, "--sink", "foreachBatch", "--json")
    assert run(*rewind).document["sources"]["verdict"] == "SAFE"
    assert run(*rewind).document["sources"]["reasons"] == []
    files[2].unlink()
    reason = "1 file of the next batch is gone (f 2.json): Spark leaves it out silently"
    assert run(*rewind).document["sources"]["reasons"] == [reason]
    settings = GuardSettings()
    (report,) = guard_query(from_checkpoint(ck), settings, guards=[FileGuard(settings)]).sources
    assert report.reasons == ("2 of 3 files that were read are gone: a rewind would lose them",)
