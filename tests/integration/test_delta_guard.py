"""The Delta and file guards against what a real stream then does: each case is made to happen, judged, and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta import DeltaGuard
from airflow_ckpt_provider.guards.files import FileGuard
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import SourceReport
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.stopped import STOPPED
from tests.support.streams.described import Source, Stream
from tests.support.streams.spark_host import SparkHost, coordinates

pytestmark = pytest.mark.spark

_NO_CHECK = "SET spark.databricks.delta.retentionDurationCheck.enabled=false"
#: VACUUM lists with as many tasks, 10,000 by default.
_FEW_TASKS = "SET spark.sql.sources.parallelPartitionDiscovery.parallelism=2"


class Case:
    """A table and a stream that reads it."""

    def __init__(self, host: SparkHost, place: Path) -> None:
        self.host, self.table = host, place / "table"
        self.stream = Stream(host, place / "s", (Source("delta", path=str(self.table)),))

    def append(self, start: int, parts: int = 1, *, columns: str = "id") -> None:
        exists = (self.table / "_delta_log").exists()
        begin = f"INSERT INTO delta.`{self.table}`"
        if not exists:  # Delta cleans its log where it writes a checkpoint of it, and only below one
            properties = "TBLPROPERTIES ('delta.checkpointInterval'='1')"
            begin = f"CREATE TABLE delta.`{self.table}` USING delta {properties} AS"
        self.host.sql(f"{begin} SELECT /*+ REPARTITION({parts}) */ {columns} FROM range({start}, {start + 10})")

    def sql(self, *statements: str) -> list[list[Any]]:
        return self.host.sql(*(s.format(t=f"delta.`{self.table}`") for s in statements))

    def clean_log(self, *, below: int) -> None:
        """Have Delta itself clean its log up, of files that are made to look old."""
        old = time.time() - 60 * 86400
        for file in (self.table / "_delta_log").glob("[0-9]*"):
            if int(file.name.split(".")[0]) < below:
                os.utime(file, (old, old))
        self.append(900)
        log = self.table / "_delta_log"
        deadline = time.monotonic() + 30
        while any((log / f"{v:020d}.json").exists() for v in range(below)):
            assert time.monotonic() < deadline, sorted(f.name for f in log.glob("[0-9]*"))
            time.sleep(0.05)

    def judge(self, *, fail_on_data_loss: bool = True, described: Path | None = None, **options: str) -> SourceReport:
        told: dict[str, dict[str, Any]] = {"delta": {"tables": {"0": str(self.table)}, "options": {"0": options}}}
        told["delta"]["described"] = {"0": str(described)} if described else {}
        settings = GuardSettings(fail_on_data_loss=fail_on_data_loss, options=told)
        (report,) = guard_query(
            from_checkpoint(open_location(str(self.stream.checkpoint))), settings, guards=[DeltaGuard(settings)]
        ).sources
        return report

    def runs(self, **options: str) -> list[int]:
        """Run it, and return what is new."""
        before = len(self.stream.ids)
        self.with_options(**options).run()
        return sorted(self.stream.ids)[before:] if before else self.stream.ids

    def fails(self, **options: str) -> str:
        return self.with_options(**options).fails()

    def with_options(self, **options: str) -> Stream:
        self.stream.sources = (Source("delta", path=str(self.table), options=options),)
        return self.stream


@pytest.fixture(scope="module")
def template(spark_host: SparkHost, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the versions 0 to 2, which a stream has read in batch 0 (two versions) and batch 1 (one)."""
    made = Case(spark_host, tmp_path_factory.mktemp("template"))
    made.append(0, 2)
    made.append(10, 2)
    made.stream.run()
    made.append(20, 2)
    made.stream.run()
    return made.table.parent


@pytest.fixture
def case(spark_host: SparkHost, tmp_path: Path, template: Path) -> Case:
    """A copy of it: neither the table nor the checkpoint holds its own address."""
    shutil.copytree(template, tmp_path / "case")
    return Case(spark_host, tmp_path / "case")


def test_healthy(case: Case) -> None:
    assert case.judge().verdict is Verdict.SAFE
    case.append(30)
    case.append(40)
    case.sql("OPTIMIZE {t}")
    report = case.judge()
    assert (report.verdict, report.lost, report.reasons) == (Verdict.SAFE, 0, ())
    assert 6.9 * 86400 < report.seconds_left <= 7 * 86400  # OPTIMIZE replaced files that are still to be read
    assert report.facts["limited_by"] == "delta.deletedFileRetentionDuration"
    assert case.runs() == list(range(30, 50))


@pytest.mark.slow
def test_vacuum(case: Case) -> None:
    case.append(30)
    case.append(40)
    case.sql("OPTIMIZE {t}", _NO_CHECK, _FEW_TASKS, "VACUUM {t} RETAIN 0 HOURS")
    report = case.judge()
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, 20)
    assert [(p.name, p.facts["missing_files"], p.facts["rows"]) for p in report.parts] == [
        ("version 3", 1, 10),
        ("version 4", 1, 10),
    ]
    assert "FOREACH_BATCH_USER_FUNCTION_ERROR" in case.fails()
    assert "FOREACH_BATCH_USER_FUNCTION_ERROR" in case.fails(failOnDataLoss="false")


@pytest.mark.slow
def test_log_clean_up_takes_what_is_to_be_read(case: Case) -> None:
    case.append(30)
    case.append(40)
    case.clean_log(below=4)
    report = case.judge()
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, None)
    assert any(reason.startswith("the log no longer has version 3, still to be read") for reason in report.reasons)
    assert "DELTA_MISSING_FILES_UNEXPECTED_VERSION" in case.fails()
    again = case.judge(fail_on_data_loss=False)
    assert again.verdict is Verdict.WILL_FAIL
    assert [p.name for p in again.parts] == ["version 3"]
    assert "DELTA_STREAMING_TRAILING_COMMIT_MISSING" in case.fails(failOnDataLoss="false")


@pytest.mark.slow
def test_log_clean_up_takes_a_part_of_a_planned_batch(case: Case) -> None:
    """The one way to lose rows silently: a batch that was planned, begins in what is gone and ends in what is there."""
    case.append(30)
    case.append(40)
    assert case.runs() == list(range(30, 50))
    _replay(case.stream, 2)
    case.clean_log(below=4)
    assert case.judge().verdict is Verdict.WILL_FAIL
    report = case.judge(fail_on_data_loss=False)
    assert report.verdict is Verdict.WILL_LOSE
    assert [p.name for p in report.parts] == ["version 3"]
    assert case.runs(failOnDataLoss="false") == [*range(40, 50), *range(900, 910)]  # 30 to 39 are lost


@pytest.mark.slow
def test_log_clean_up_takes_what_was_read(case: Case) -> None:
    """Nothing is lost, and yet Spark does not start: it asks for the newest batch again."""
    case.append(30)
    case.clean_log(below=3)
    report = case.judge()
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, 0)
    assert "DELTA_MISSING_FILES_UNEXPECTED_VERSION" in case.fails()
    assert case.judge(fail_on_data_loss=False).verdict is Verdict.SAFE
    assert case.runs(failOnDataLoss="false") == [*range(30, 40), *range(900, 910)]


@pytest.mark.slow
def test_log_clean_up_under_the_first_snapshot(spark_host: SparkHost, tmp_path: Path) -> None:
    case = Case(spark_host, tmp_path)
    for start in (0, 10, 20):
        case.append(start, 2)
    case.with_options(maxFilesPerTrigger="2").run()
    for log, keep in (("commits", 0), ("offsets", 0)):
        for file in (case.stream.checkpoint / log).iterdir():
            if file.name.strip(".").split(".")[0] > str(keep):
                file.unlink()
    for batch in (1, 2):
        (tmp_path / "s" / "out" / f"b={batch}").unlink()
    case.append(30)
    assert case.judge().verdict is Verdict.SAFE
    case.clean_log(below=4)
    report = case.judge()
    assert report.verdict is Verdict.WILL_FAIL
    assert "first snapshot, version 2" in " ".join(report.reasons)
    assert "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE" in case.fails(maxFilesPerTrigger="2")


@pytest.mark.slow
def test_vacuum_takes_a_deletion_vector_of_the_first_snapshot(spark_host: SparkHost, tmp_path: Path) -> None:
    """Its data files stay: they got a newer one."""
    case = Case(spark_host, tmp_path)
    case.append(0)
    case.append(10)
    case.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors'='true')",
        "DELETE FROM {t} WHERE id IN (1, 11)",
    )
    snapshot = {"maxFilesPerTrigger": "1"}
    case.with_options(**snapshot).run()
    _replay(case.stream, 1)
    assert case.judge(**snapshot).verdict is Verdict.SAFE
    case.sql("DELETE FROM {t} WHERE id IN (2, 12)")
    skips = {**snapshot, "skipChangeCommits": "true"}
    assert case.judge(**skips).parts == ()
    case.sql(_NO_CHECK, _FEW_TASKS, "VACUUM {t} RETAIN 0 HOURS")
    (part,) = case.judge(**skips).parts
    assert (part.name, part.verdict) == ("snapshot 3", Verdict.WILL_FAIL)
    assert str(part.facts["example"]).startswith("deletion_vector_")
    assert "FOREACH_BATCH_USER_FUNCTION_ERROR" in case.fails(**skips)


@pytest.mark.slow
def test_another_table_at_the_same_path(case: Case) -> None:
    shutil.rmtree(case.table)
    for start in range(0, 60, 10):
        case.append(start)
    report = case.judge()
    assert report.verdict is Verdict.WILL_FAIL
    assert "is another one" in report.reasons[0]
    assert "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE" in case.fails()


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        pytest.param("DELETE FROM {t}", "DELTA_SOURCE_IGNORE_DELETE", id="delete all", marks=pytest.mark.slow),
        pytest.param(
            "DELETE FROM {t} WHERE id < 3", "DELTA_SOURCE_TABLE_IGNORE_CHANGES", id="delete", marks=pytest.mark.slow
        ),
        pytest.param("UPDATE {t} SET id = 1005 WHERE id = 5", "DELTA_SOURCE_TABLE_IGNORE_CHANGES", id="update"),
        pytest.param(
            "RESTORE TABLE {t} TO VERSION AS OF 1", "DELTA_SOURCE_IGNORE_DELETE", id="restore", marks=pytest.mark.slow
        ),
        pytest.param(
            "INSERT OVERWRITE {t} SELECT id FROM range(5)",
            "DELTA_SOURCE_TABLE_IGNORE_CHANGES",
            id="overwrite",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_changes_are_foretold(case: Case, statement: str, error: str) -> None:
    case.sql(statement)
    case.append(40)
    report = case.judge()
    assert report.verdict is Verdict.WILL_FAIL
    (reason,) = report.reasons
    assert reason.startswith("version 3 (")
    assert error in reason
    assert f"[{error}]" in case.fails()
    assert case.judge(skipChangeCommits="true").verdict in (Verdict.SAFE, Verdict.WILL_SKIP)
    assert case.runs(skipChangeCommits="true") == list(range(40, 50))


@pytest.mark.slow
def test_an_added_column_is_no_alarm(case: Case) -> None:
    case.sql("ALTER TABLE {t} ADD COLUMNS (x STRING)")
    case.append(40, columns="id, 'a' AS x")
    assert case.judge().verdict is Verdict.SAFE
    assert case.runs() == list(range(40, 50))


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["an update", "nothing", "the reader"])
def test_a_change_data_feed_that_was_off_in_between(spark_host: SparkHost, tmp_path: Path, changed: str) -> None:
    """Spark fails at the version that turned it off, also where nothing has changed until it was on again."""
    feed, turn = {"readChangeFeed": "true"}, "ALTER TABLE {{t}} SET TBLPROPERTIES ('delta.enableChangeDataFeed'='{}')"
    case = Case(spark_host, tmp_path)
    case.append(0)
    if changed == "the reader":  # of rows until now; it asks for its newest batch again
        assert case.runs() == list(range(10))
    else:
        case.sql(turn.format("true"))
        case.append(10)
        assert case.runs(**feed) == list(range(20))
        assert case.judge(**feed).verdict is Verdict.SAFE
        case.sql(turn.format("false"))
        if changed == "an update":
            case.sql("UPDATE {t} SET id = 1005 WHERE id = 5")
    case.sql(turn.format("true"))
    case.append(20)
    report = case.judge(**feed)
    assert report.verdict is Verdict.WILL_FAIL
    version = re.search(r"did not keep in version (\d+),", report.reasons[0])
    assert version
    error = case.fails(**feed)
    assert "[DELTA_MISSING_CHANGE_DATA]" in error
    assert f"recorded for version [{version[1]}]" in error.replace("\n", " ")


@pytest.mark.slow
def test_a_column_of_another_type(case: Case) -> None:
    case.append(30)
    case.sql("REPLACE TABLE {t} USING delta AS SELECT cast(id AS string) AS id FROM range(3)")
    report = case.judge()
    assert report.verdict is Verdict.WILL_FAIL
    case.fails()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER TABLE {t} RENAME COLUMN more TO other", "more is called other since"),
        ("ALTER TABLE {t} DROP COLUMN more", "more is gone since"),
        ("", "cannot be put together any more"),
    ],
)
def test_a_column_that_was_renamed_or_dropped(case: Case, statement: str, words: str) -> None:
    """With column mapping that takes no row away. Spark compares the first version that it asks for, which has to be there."""
    mapped = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    case.sql(mapped, "ALTER TABLE {t} ADD COLUMNS (more INT)")
    case.append(30, columns="id, 1 AS more")
    assert case.judge().verdict is Verdict.SAFE
    assert case.runs() == list(range(30, 40))
    case.append(40, columns="id, 2 AS more")
    assert case.judge().verdict is Verdict.SAFE
    if statement:
        case.sql(statement)
    else:
        first = json.loads((case.stream.checkpoint / "offsets" / "1").read_text().splitlines()[2])["reservoirVersion"]
        for file in (case.table / "_delta_log").glob("[0-9]*"):
            version, is_commit = int(file.name.split(".")[0]), file.suffix == ".json"
            if version < first or (version == first and not is_commit):
                file.unlink()
    report = case.judge()
    assert report.verdict is Verdict.WILL_FAIL
    assert words in report.reasons[0]
    error = re.search(r"DELTA_STREAMING_[A-Z_]+", report.reasons[0])
    assert error
    assert error[0] in case.fails()


@pytest.mark.slow
def test_the_schema_log_of_a_restored_query(case: Case, tmp_path: Path) -> None:
    """``schemaTrackingLocation``: the log names the checkpoint's place, and Delta does not start from another one."""
    case.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    case.append(30)
    tracked = {"schemaTrackingLocation": str(case.stream.checkpoint)}
    stream, read = case.with_options(**tracked), len(case.stream.ids)
    while (run := stream.begin().wait()).error:  # it wants to be started again where it has written the log
        assert "DELTA_STREAMING_METADATA_EVOLUTION" in run.error_text
    assert stream.ids[read:] == list(range(30, 40))
    case.append(40)
    checkpoint = Checkpoint.at(open_location(str(case.stream.checkpoint)))
    held = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    manifest = create_backup(checkpoint, held).manifest
    assert any("_schema_log_" in entry.path for entry in manifest.files)
    for name in ("copied", "restored"):
        place = tmp_path / name / "checkpoint"
        if name == "copied":
            shutil.copytree(case.stream.checkpoint, place)
        else:
            apply_restore(plan_restore(held, manifest, open_location(str(place))), rest=STOPPED)
        options = {"schemaTrackingLocation": str(place)}
        stream = Stream(case.host, place.parent, (Source("delta", path=str(case.table), options=options),))
        if name == "copied":
            assert "is different from the one persisted for previous processing" in stream.fails()
        else:
            assert stream.run().ids == list(range(40, 50))


@pytest.mark.slow
def test_a_table_taken_back(case: Case) -> None:
    """A copy of an older day: the same id, fewer versions; then grown past the checkpoint again, which Spark cannot see."""
    log = case.table / "_delta_log"
    for version in (1, 2):
        for file in log.glob(f"*{version:020d}*"):
            file.unlink()
    report = case.judge()
    assert report.verdict is Verdict.WILL_FAIL
    assert "the table ends at version 0, and the checkpoint has read version 2" in report.reasons[0]
    assert "DELTA_STREAMING_TRAILING_COMMIT_MISSING" in case.fails()
    for start in (500, 510, 520):
        case.append(start)
    entry = case.stream.checkpoint / "offsets" / "1"
    text = entry.read_text()
    planned = int(text.split('"batchTimestampMs":')[1].split(",")[0])
    # As if the day had been long ago.
    entry.write_text(text.replace(str(planned), str(planned - 3_600_000)))
    (entry.parent / ".1.crc").unlink(missing_ok=True)
    silent = case.judge()
    assert silent.verdict is Verdict.WILL_LOSE
    assert "restored and written again" in silent.reasons[0]
    assert case.runs() == list(range(520, 530))  # of 500 to 519 nothing is said


@pytest.mark.slow
def test_a_planned_batch_beyond_the_end(case: Case) -> None:
    case.append(30)
    case.append(40)
    case.stream.run()
    _replay(case.stream, 2)
    for version in (3, 4):
        for file in (case.table / "_delta_log").glob(f"*{version:020d}*"):
            file.unlink()
    report = case.judge(fail_on_data_loss=False)
    assert report.verdict is Verdict.WILL_FAIL
    assert "the table ends at version 2, and the next batch is planned up to version 4" in report.reasons[0]
    assert "DELTA_STREAMING_TRAILING_COMMIT_MISSING" in case.fails(failOnDataLoss="false")


@pytest.mark.slow
def test_a_first_batch_from_a_version(spark_host: SparkHost, tmp_path: Path) -> None:
    """Spark works ``startingVersion`` out again at each start until the second batch is committed."""
    case = Case(spark_host, tmp_path)
    for start in (0, 10, 20, 30):
        case.append(start)
    assert case.runs(startingVersion="1") == list(range(10, 40))
    _replay(case.stream, 0)
    assert case.judge(startingVersion="1").verdict is Verdict.SAFE
    assert case.judge(startingVersion="latest").verdict is Verdict.WILL_LOSE
    assert case.runs(startingVersion="latest") == []
    case.clean_log(below=3)
    assert case.judge(startingVersion="latest").verdict is Verdict.SAFE
    report = case.judge(startingVersion="1", fail_on_data_loss=False)
    assert report.verdict is Verdict.WILL_FAIL
    assert "DELTA_VERSION_NOT_FOUND" in report.reasons[0]
    assert "DELTA_VERSION_NOT_FOUND" in case.fails(startingVersion="1", failOnDataLoss="false")
    assert case.runs(startingVersion="latest") == list(range(900, 910))


# Files


def _put(directory: Path, *ids: int) -> None:
    directory.mkdir(exist_ok=True)
    for i in ids:
        (directory / f"f {i}.json").write_text(json.dumps({"id": i}) + "\n")
        os.utime(directory / f"f {i}.json", (1704067200 + i,) * 2)


def _replay(stream: Stream, batch: int) -> None:
    """Have the newest batch run again."""
    for name in (str(batch), f".{batch}.crc"):
        (stream.checkpoint / "commits" / name).unlink(missing_ok=True)
    (stream.place / "out" / f"b={batch}").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "verdict", "ids"),
    [
        (lambda file: None, Verdict.SAFE, [0, 1, 2]),
        (lambda file: file.unlink(), Verdict.WILL_LOSE, [0, 1]),
        (lambda file: file.write_text('{"id": 77}\n'), Verdict.UNKNOWN, [0, 1, 77]),
    ],
    ids=["there", "gone", "replaced"],
)
def test_files_of_a_replay(
    spark_host: SparkHost, tmp_path: Path, harm: Callable[[Path], object], verdict: Verdict, ids: list[int]
) -> None:
    place = tmp_path / "in"
    _put(place, 0, 1, 2)
    source = Source("json", path=str(place), schema="id long", options={"maxFilesPerTrigger": "1"})
    stream = Stream(spark_host, tmp_path / "s", (source,)).run()
    _replay(stream, 2)
    harm(place / "f 2.json")
    settings = GuardSettings()
    (report,) = guard_query(
        from_checkpoint(open_location(str(stream.checkpoint))), settings, guards=[FileGuard(settings)]
    ).sources
    assert report.verdict is verdict
    assert report.facts["planned_files"] == 1
    assert stream.run().ids == ids


@pytest.mark.slow
def test_a_table_that_only_spark_can_read(case: Case, tmp_path: Path) -> None:
    """No feature of Delta 4.4 is beyond delta-rs today: one of tomorrow is put into the log once Spark has described it."""
    case.stream.run()
    case.append(500)
    assert case.judge().verdict is Verdict.SAFE
    described = tmp_path / "described.json"
    packages = coordinates("spark-jars.txt")
    command = ["--packages", ",".join(packages), "--conf", f"spark.jars.ivy={Path('.cache/ivy').absolute()}"]
    command += ["--conf", "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"]
    command += ["--conf", "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"]
    command += ["airflow_ckpt_provider/jobs/describe_delta.py", "--table", str(case.table), "--out", str(described)]
    subprocess.run([str(Path(sys.executable).with_name("spark-submit")), *command], check=True, capture_output=True)
    first = case.table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            features = ["collations-preview"]
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
            action["protocol"]["writerFeatures"] = features
    first.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    for log_checkpoint in (case.table / "_delta_log").glob("*.checkpoint*.parquet"):
        log_checkpoint.unlink()
    (case.table / "_delta_log" / "_last_checkpoint").unlink(missing_ok=True)
    unknown = case.judge()
    assert unknown.verdict is Verdict.UNKNOWN
    assert "collations-preview" in unknown.reasons[0]
    assert case.judge(described=described).verdict is Verdict.SAFE
    another = json.loads(described.read_text()) | {"table_id": "another"}
    described.write_text(json.dumps(another))
    assert case.judge(described=described).verdict is Verdict.WILL_FAIL
    described.write_text(json.dumps(another | {"version": 0}))
    with pytest.raises(RefusedError, match="describes version 0 of the table, which is at"):
        case.judge(described=described)
