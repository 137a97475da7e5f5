"""The Delta guard on tables written by delta-rs: what is gone, what will stop the stream, and for how long all is there."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset
from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, UnreadableLogError
from airflow_ckpt_provider.guards.delta import DeltaGuard
from airflow_ckpt_provider.guards.delta_log import interval, parse_commit, read_delta_log
from airflow_ckpt_provider.guards.delta_rows import rows_before
from airflow_ckpt_provider.guards.query import from_checkpoint, from_facts, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_guards import ck as ck
from tests.support.delta_guards import clean, commit, judge
from tests.support.delta_guards import table as table
from tests.support.delta_tables import delta_checkpoint, id_of, new_table, offset, rows


def planned_an_hour_ago(ck: Path) -> None:
    """Batch 1, before the table was written."""
    entry = ck / "offsets" / "1"
    long_ago = int((time.time() - 3600) * 1000)
    entry.write_text(entry.read_text().replace("4000000000001", str(long_ago)))


def test_healthy(table: Path, ck: Path) -> None:
    report = judge(delta_checkpoint(ck, table, 2), table)
    assert (report.verdict, report.reasons, report.lost) == (Verdict.SAFE, (), 0)
    assert report.facts["start_version"] == 2
    assert report.facts["latest_version"] == 3
    assert 29.9 * 86400 < (report.seconds_left or 0) <= 30 * 86400
    drained = judge(delta_checkpoint(ck, table, 4), table)
    assert (drained.verdict, drained.reasons) == (Verdict.SAFE, ())


def test_flat_options_of_a_shell(table: Path, ck: Path) -> None:
    DeltaTable(table).delete()
    options = {"table.0": str(table), "option.0.ignoreDeletes": "true"}
    told = GuardSettings(options={"delta": options})
    query = from_checkpoint(open_location(str(delta_checkpoint(ck, table, 2))))
    (source,) = guard_query(query, told, guards=[DeltaGuard(told)]).sources
    assert source.verdict is Verdict.SAFE
    assert "only deletes, which is ignored" in source.reasons[0]


def test_without_a_table_it_is_unknown(table: Path, ck: Path) -> None:
    report = judge(delta_checkpoint(ck, table, 2), None)
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons == (
        "no table was given for source 0 (guard --option delta.table.0=TABLE): a checkpoint holds the id of a Delta table and "
        "not its path",
    )


def test_no_table_there(table: Path, ck: Path, tmp_path: Path) -> None:
    report = judge(delta_checkpoint(ck, table, 2), tmp_path / "nothing")
    assert report.verdict is Verdict.WILL_FAIL
    assert "it has no _delta_log" in report.reasons[0]


def test_another_table(table: Path, ck: Path, tmp_path: Path) -> None:
    other = new_table(tmp_path / "other", 4)
    report = judge(delta_checkpoint(ck, table, 2), other)
    assert (report.verdict, len(report.reasons)) == (Verdict.WILL_FAIL, 1)
    assert f"(id {id_of(other)}; the checkpoint read {id_of(table)})" in report.reasons[0]


@pytest.mark.parametrize("below", [1, 2, 3])
def test_log_clean_up(table: Path, ck: Path, below: int) -> None:
    """The stream has read versions 0 and 1, version 1 in its newest batch, and 2 is next."""
    delta_checkpoint(ck, table, 2)
    clean(table, below)
    loud, silent = judge(ck, table), judge(ck, table, fail_on_data_loss=False)
    wanted = {
        1: (Verdict.SAFE, Verdict.SAFE, 0),  # version 0 is of no interest
        2: (Verdict.WILL_FAIL, Verdict.SAFE, 0),  # nothing is lost; Spark asks for version 1 again
        3: (Verdict.WILL_FAIL, Verdict.WILL_FAIL, None),  # Delta 4 does not start without what it has read last
    }
    assert (loud.verdict, silent.verdict, silent.lost) == wanted[below]
    assert [p.name for p in silent.parts] == (["version 2"] if below == 3 else [])


def test_log_clean_up_of_what_a_backup_has_read_last(table: Path) -> None:
    """It was SAFE. A start after a restore or a rewind to the backup asks for version 1 again, as any other start does."""
    starts, ends = ([{"index": 0, "offset": offset(id_of(table), version)}] for version in (1, 2))
    query = from_facts({"start_offsets": starts, "end_offsets": ends}, subject="backup b", batch_id=1)
    settings = GuardSettings(options={"delta": {"tables": {"0": str(table)}}})
    assert guard_query(query, settings, guards=[DeltaGuard(settings)]).verdict is Verdict.SAFE
    clean(table, 2)
    report = guard_query(query, settings, guards=[DeltaGuard(settings)])
    assert report.verdict is Verdict.WILL_FAIL
    assert "version 1, which the newest committed batch read" in report.reasons[0]


def test_log_clean_up_behind_a_number_that_was_left_out(table: Path, ck: Path) -> None:
    """Async progress tracking does not log each batch: Spark takes the newest entry before the newest batch."""
    delta_checkpoint(ck, table, 2)
    for log in ("offsets", "commits"):
        (ck / log / "1").rename(ck / log / "2")
    assert judge(ck, table).verdict is Verdict.SAFE
    clean(table, 2)
    assert judge(ck, table).verdict is Verdict.WILL_FAIL


def test_log_clean_up_within_a_planned_batch(table: Path, ck: Path) -> None:
    """Versions 2 and 3 are planned, 2 is gone: with ``failOnDataLoss=false`` its rows are lost silently."""
    delta_checkpoint(ck, table, 4, before=2)
    (ck / "commits" / "1").unlink()
    clean(table, 3)
    assert judge(ck, table).verdict is Verdict.WILL_FAIL
    report = judge(ck, table, fail_on_data_loss=False)
    assert (report.verdict, report.lost) == (Verdict.WILL_LOSE, None)
    assert [p.name for p in report.parts] == ["version 2"]


def test_the_only_batch_needs_the_state_before_it(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2, before=None)
    assert judge(ck, table).verdict is Verdict.SAFE
    clean(table, 1)
    report = judge(ck, table, fail_on_data_loss=False)
    assert report.verdict is Verdict.WILL_FAIL
    assert "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE" in report.reasons[0]


def test_a_first_snapshot(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2, 0, before=None, initial=True)
    assert judge(ck, table).verdict is Verdict.SAFE
    files = sorted(DeltaTable(table, version=2).file_uris(), key=lambda uri: Path(uri).stat().st_mtime_ns)
    Path(files[0]).unlink()  # was read
    assert judge(ck, table).verdict is Verdict.SAFE
    Path(files[1]).unlink()
    report = judge(ck, table)
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, 10)
    assert [p.name for p in report.parts] == ["snapshot 2"]
    clean(table, 3)
    assert "first snapshot, version 2" in " ".join(judge(ck, table).reasons)


def test_a_data_file_is_gone(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2)
    for version in (0, 3):
        (file,) = read_delta_log(open_location(str(table))).commit(version).added
        (table / file.path).unlink()
    report = judge(ck, table, fail_on_data_loss=False)
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, 10)
    assert [(p.name, p.facts["rows"]) for p in report.parts] == [("version 3", 10)]


def test_a_data_file_of_another_length(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2)
    (file,) = read_delta_log(open_location(str(table))).commit(3).added
    content = (table / file.path).read_bytes()
    (table / file.path).write_bytes(b"")
    report = judge(ck, table)
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, 10)
    assert "1 data files (10 rows) of version 3 are cut off: the batch fails" in report.reasons[0]
    (table / file.path).write_bytes(content + content)
    assert judge(ck, table).verdict is Verdict.UNKNOWN
    (table / file.path).write_bytes(content)
    assert judge(ck, table).verdict is Verdict.SAFE


def test_a_file_of_the_first_snapshot_that_is_cut_off(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 3, 2, before=None, initial=True)
    (file,) = read_delta_log(open_location(str(table))).commit(3).added
    (table / file.path).write_bytes(b"PAR1")
    assert [p.name for p in judge(ck, table).parts] == ["snapshot 3"]


def test_a_position_within_a_version(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2, 0)
    (file,) = read_delta_log(open_location(str(table))).commit(2).added
    (table / file.path).unlink()  # was read
    assert judge(ck, table).verdict is Verdict.SAFE


@pytest.mark.parametrize(
    ("reader", "verdict"),
    [
        ({}, Verdict.WILL_FAIL),
        ({"ignoreDeletes": "true"}, Verdict.WILL_FAIL),
        ({"ignoreChanges": "true"}, Verdict.WILL_DUPLICATE),
        ({"skipChangeCommits": "TRUE"}, Verdict.WILL_SKIP),
        ({"skipchangecommits": "true"}, Verdict.WILL_SKIP),
    ],
)
def test_an_update(table: Path, ck: Path, reader: dict[str, str], verdict: Verdict) -> None:
    delta_checkpoint(ck, table, 4)
    DeltaTable(table).update(updates={"id": "id + 1000"}, predicate="id = 5")
    report = judge(ck, table, reader=reader)
    assert report.verdict is verdict
    assert report.reasons[0].startswith("version 4 (UPDATE) ")


@pytest.mark.parametrize(
    ("reader", "verdict"),
    [
        ({"ignoreDeletes": "true"}, Verdict.WILL_FAIL),
        ({"ignoreChanges": "true"}, Verdict.WILL_DUPLICATE),
        ({"skipChangeCommits": "true"}, Verdict.WILL_SKIP),
    ],
)
def test_an_update_after_more_deletes_than_are_named(
    reader: dict[str, str], verdict: Verdict, tmp_path: Path, ck: Path
) -> None:
    """It was SAFE, as the first of them is."""
    table = new_table(tmp_path / "long", 30)
    delta_checkpoint(ck, table, DeltaTable(table).version() + 1)
    for file in range(21):
        DeltaTable(table).delete(f"id >= {file * 10} and id < {file * 10 + 10}")
    DeltaTable(table).update(updates={"id": "1000"}, predicate="id = 299")
    report = judge(ck, table, reader=reader)
    assert report.verdict is verdict
    assert {f"1 more versions that take rows away or rewrite them: {found}" for found in ("SAFE", verdict)} <= {
        *report.reasons
    }


def test_an_overwrite_and_a_restore(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 4)
    write_deltalake(table, rows(9), mode="overwrite")
    DeltaTable(table).restore(3)
    assert [r.split(":")[0] for r in judge(ck, table).reasons] == [
        "version 4 (WRITE) updates or replaces rows",
        "version 5 (RESTORE) updates or replaces rows",
    ]


def test_changes_that_the_newest_batch_has_read_are_asked_for_again(table: Path, ck: Path) -> None:
    """By an option that the query had, and may not have any more: then its start fails. It was SAFE."""
    DeltaTable(table).delete("id < 3")
    delta_checkpoint(ck, table, 5, before=4)
    report = judge(ck, table)
    assert report.verdict is Verdict.UNKNOWN
    assert "the newest batch has read this by an option, and Spark asks for it again at its start" in report.reasons[0]
    assert judge(ck, table, reader={"skipChangeCommits": "true"}).verdict is Verdict.SAFE


def test_changes_before_the_newest_batch_are_no_alarm(table: Path, ck: Path) -> None:
    DeltaTable(table).delete("id < 3")
    write_deltalake(table, rows(6), mode="append")
    assert judge(delta_checkpoint(ck, table, 6, before=5), table).verdict is Verdict.SAFE


def test_an_optimized_table_is_no_alarm_until_it_is_vacuumed(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2)
    DeltaTable(table).optimize.compact()
    report = judge(ck, table)
    assert report.verdict is Verdict.SAFE
    assert report.facts["limited_by"] == "delta.deletedFileRetentionDuration"
    assert 6.9 * 86400 < (report.seconds_left or 0) <= 7 * 86400
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    vacuumed = judge(ck, table)
    assert (vacuumed.verdict, vacuumed.lost) == (Verdict.WILL_FAIL, 20)


def test_schemas(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 4)
    wider = rows(5).append_column("x", [["a"] * 10])
    write_deltalake(table, wider, mode="append", schema_mode="merge")
    assert judge(ck, table).verdict is Verdict.SAFE
    # Version 4 told of columns id and x; a version later x is a number.
    text = (
        commit(table, 4).read_text().replace(r"\"name\":\"x\",\"type\":\"string\"", r"\"name\":\"x\",\"type\":\"long\"")
    )
    lines = [json.loads(line) for line in text.splitlines()]
    commit(table, 5).write_text("\n".join(json.dumps(a) for a in lines if "metaData" in a or "commitInfo" in a))
    report = judge(ck, table)
    assert report.verdict is Verdict.WILL_FAIL
    assert "x was string, is long" in report.reasons[0]


def test_a_table_taken_back(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 4)
    commit(table, 3).unlink()
    commit(table, 2).unlink()
    report = judge(ck, table)
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, None)
    assert "the table ends at version 1, and the checkpoint has read version 3" in report.reasons[0]


def test_a_table_written_again_under_the_same_id(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2)
    planned_an_hour_ago(ck)
    report = judge(ck, table)
    assert (report.verdict, report.lost) == (Verdict.WILL_LOSE, None)


def test_a_planned_batch_beyond_the_end(table: Path, ck: Path) -> None:
    """Batch 1 is planned up to version 3; the table is a copy that ends at version 1, and is then written again."""
    delta_checkpoint(ck, table, 4, before=1)
    (ck / "commits" / "1").unlink()
    assert judge(ck, table).verdict is Verdict.SAFE
    for version in (2, 3):
        commit(table, version).unlink()
    for fail_on_data_loss in (True, False):
        report = judge(ck, table, fail_on_data_loss=fail_on_data_loss)
        assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, None)
        assert "the table ends at version 1, and the next batch is planned up to version 3" in report.reasons[0]
    for version in (2, 3):
        write_deltalake(table, rows(version), mode="append")
    planned_an_hour_ago(ck)
    report = judge(ck, table)
    assert (report.verdict, report.lost) == (Verdict.UNKNOWN, None)
    assert "the batch has other rows now" in report.reasons[0]


def test_a_planned_batch_of_another_table(table: Path, ck: Path, tmp_path: Path) -> None:
    delta_checkpoint(ck, table, 4)
    (ck / "commits" / "1").unlink()
    entry = ck / "offsets" / "1"
    entry.write_text(entry.read_text().replace(id_of(table), "other"))
    report = judge(ck, table)
    assert report.verdict is Verdict.WILL_FAIL
    assert f"(id {id_of(table)}; the checkpoint read other)" in report.reasons[0]


def test_a_table_that_delta_rs_cannot_read(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2)
    lines = [json.loads(line) for line in commit(table, 0).read_text().splitlines()]
    for action in lines:
        if "protocol" in action:
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["ofTheFuture"],
                "writerFeatures": ["ofTheFuture"],
            }
    commit(table, 0).write_text("\n".join(map(json.dumps, lines)))
    report = judge(ck, table)
    assert report.verdict is Verdict.UNKNOWN
    assert "ofTheFuture" in report.reasons[0] or "features" in report.reasons[0].lower()


def test_without_deltalake(table: Path, ck: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delta_checkpoint(ck, table, 2)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'airflow-ckpt-provider\[delta\]'"):
        judge(ck, table)


def test_a_damaged_commit(table: Path, ck: Path) -> None:
    delta_checkpoint(ck, table, 2)
    commit(table, 3).write_text('{"add":{"path"')
    with pytest.raises(UnreadableLogError, match=f"{3:020d}.json: the JSON is broken or cut off"):
        read_delta_log(open_location(str(table))).commit(3)


@pytest.mark.parametrize(
    "action",
    [
        {"add": {"path": "x", "dataChange": True, "size": [1]}},
        {"add": {"path": "x"}},
        {"remove": {"path": "x", "deletionTimestamp": 10**30}},
        {"cdc": {"path": 1}},
        {"commitInfo": True},
        {"commitInfo": {"timestamp": 10**30}},
        {"metaData": 10**30},
        {"metaData": {"partitionColumns": 1}},
    ],
)
def test_a_field_of_an_unexpected_form(action: dict[str, Any], table: Path) -> None:
    commit(table, 4).write_text(json.dumps(action))
    with pytest.raises(
        UnreadableLogError, match=r"0{19}4\.json: a field is missing or has an unexpected form: \w+Error \("
    ):
        read_delta_log(open_location(str(table))).commit(4)


@pytest.mark.parametrize("reader", [{}, {"readChangeFeed": "true"}])
def test_a_commit_of_any_number(reader: dict[str, str], tmp_path: Path, ck: Path) -> None:
    """It took all memory, or did not end, to count up to it."""
    table = new_table(tmp_path / "feed", 4, configuration={"delta.enableChangeDataFeed": "true"})
    delta_checkpoint(ck, table, 2)
    commit(table, 10**12).write_text("")
    report = judge(ck, table, reader=reader)
    assert report.verdict is Verdict.WILL_FAIL
    assert [p.name for p in report.parts] == ["versions 4 to 999999999999"]


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_log_checkpoint_with_sidecars(form: str, table: Path, ck: Path) -> None:
    """It was UNKNOWN: the parts that a V2 checkpoint names were not read."""
    delta_checkpoint(ck, table, 3, before=2)
    clean(table, 2)
    log = table / "_delta_log"
    classic = log / f"{3:020d}.checkpoint.parquet"
    state = parquet.read_table(classic)
    (log / "_sidecars").mkdir()
    part = log / "_sidecars" / "part.parquet"
    parquet.write_table(state.select(["add", "remove"]).filter(pc.field("add").is_valid()), part)
    features = ["v2Checkpoint"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    metadata = next(row["metaData"] for row in state.to_pylist() if row["metaData"])
    metadata |= {"format": {"provider": "parquet", "options": {}}, "configuration": {}}
    actions = [
        {"checkpointMetadata": {"version": 3}},
        {"sidecar": {"path": part.name, "sizeInBytes": part.stat().st_size, "modificationTime": 1}},
        {"protocol": protocol},
        {"metaData": {name: value for name, value in metadata.items() if value is not None}},
    ]
    classic.unlink()
    (log / "_last_checkpoint").unlink()
    place = log / f"{3:020d}.checkpoint.6491acb6-d38a-41a8-9f22-7d19491939d7.{form}"
    if form == "json":
        place.write_text("\n".join(map(json.dumps, actions)))
    else:
        parquet.write_table(pa.Table.from_pylist(actions, schema=v2_schema(state.schema)), place)
    assert judge(ck, table).reasons == ()
    part.unlink()
    assert judge(ck, table).verdict is Verdict.UNKNOWN


def v2_schema(classic: pa.Schema) -> pa.Schema:
    sidecar = pa.struct({"path": pa.string(), "sizeInBytes": pa.int64(), "modificationTime": pa.int64()})
    features = pa.list_(pa.string())
    protocol = {"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}
    return pa.schema(
        {
            "checkpointMetadata": pa.struct({"version": pa.int64()}),
            "sidecar": sidecar,
            "protocol": pa.struct({**protocol, "readerFeatures": features, "writerFeatures": features}),
            "metaData": classic.field("metaData").type,
        }
    )


def test_a_log_checkpoint_newer_than_every_commit(table: Path, ck: Path) -> None:
    """It was SAFE for a stream that has read all of it, though Spark cannot open the table."""
    delta_checkpoint(ck, table, 4, before=3)
    clean(table, 4)
    with pytest.raises(UnreadableLogError, match=r"is newer than every commit \(there is no commit\)"):
        judge(ck, table, fail_on_data_loss=False)


@pytest.mark.parametrize(
    ("text", "hours"),
    [("interval 30 days", 720), ("interval 1 week", 168), ("INTERVAL 2 hours 30 minutes", 2.5), ("168 hours", 168)],
)
def test_intervals(text: str, hours: float) -> None:
    found = interval(text)
    assert found
    assert found.total_seconds() == hours * 3600


@pytest.mark.parametrize("text", ["", "interval", "forever", "interval 1 month", "interval 1 day or so"])
def test_other_intervals_are_not_guessed(text: str) -> None:
    assert interval(text) is None


def test_rows_before(table: Path, tmp_path: Path) -> None:
    count = rows_before(open_location(str(table)))

    def at(version: int, index: int, *, initial: bool) -> int | None:
        return count(DeltaOffset("", id_of(table), version, index, initial))

    assert at(2, 0, initial=False) == 10
    assert at(2, 1, initial=True) == 20
    assert at(2, 5, initial=False) is None  # the version has no sixth file
    assert at(9, 0, initial=False) is None
    with pytest.raises(RefusedError, match="is not a Delta table"):
        rows_before(open_location(str(tmp_path / "nothing")))(DeltaOffset("", "", 0, 0, False))


def test_paths_of_commits_are_decoded() -> None:
    line = b'{"add":{"path":"day=2026-11-21%2009:00/part-0.parquet","dataChange":true,"stats":"{\\"numRecords\\":3}"}}'
    (file,) = parse_commit(line, version=0, path="x").added
    assert (file.path, file.rows, file.is_elsewhere) == ("day=2026-11-21 09:00/part-0.parquet", 3, False)
    (clone,) = parse_commit(b'{"add":{"path":"s3://b/t/p","dataChange":true}}', version=0, path="x").added
    assert (clone.rows, clone.is_elsewhere) == (None, True)
