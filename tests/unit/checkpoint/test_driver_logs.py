"""What a driver says besides its checkpoint: crashes of new runs, uncaught errors, lag."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint import error_log
from airflow_ckpt_provider.checkpoint.driver_logs import Crash, DriverLogs, DriverMark, find_crash, mark_logs
from airflow_ckpt_provider.checkpoint.error_log import LogPosition, end_of, uncaught_error
from airflow_ckpt_provider.checkpoint.lag import batches_of, compare_lags, largest_lags
from airflow_ckpt_provider.checkpoint.progress_events import read_events
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.storage.opening import open_location

NOW = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
SEALED = Seal(6, "7f3a", "restore", "run 1", NOW).sentence


class Driver:
    """The logs of a driver, written line by line."""

    def __init__(self, place: Path) -> None:
        self.progress = place / "orders.jsonl"
        self.errors = place / "driver.log"

    @property
    def logs(self) -> DriverLogs:
        return DriverLogs(open_location(str(self.progress)), open_location(str(self.errors)))

    def tell(self, event: str, run: str, *, minutes: float = 0.0, query: str = "one", **more: Any) -> Driver:
        at = NOW + timedelta(minutes=minutes)
        line = json.dumps({"event": event, "at": at.isoformat(), "query_id": query, "run_id": run, **more})
        with self.progress.open("a") as file:
            file.write(f"{line}\n")
        return self

    def batch(self, batch: int, lag: float | None, *, rows: int = 0, metric: str = "maxOffsetsBehindLatest") -> Driver:
        metrics = {} if lag is None else {metric: str(lag)}
        sources = [{"description": "KafkaV2[Subscribe[orders]]", "end_offset": "{}", "metrics": metrics}]
        return self.tell("progress", "old", batch_id=batch, input_rows=rows, sources=sources)

    def ended(self, run: str, error: str | None = "no such customer", *, minutes: float = 0.0, **more: Any) -> Driver:
        said = {"error": error, "error_class": "USER_RAISED_EXCEPTION" if error else None}
        return self.tell("terminated", run, minutes=minutes, **said, **more)

    def log(self, text: str) -> Driver:
        with self.errors.open("a") as file:
            file.write(text)
        return self

    def crash(self, since: DriverMark, query_id: str | None = "one") -> Crash | None:
        return find_crash(self.logs, since, query_id=query_id, position=None)[0]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path).tell("started", "old", minutes=-600)


class TestCrash:
    def test_a_new_run(self, driver: Driver) -> None:
        since = mark_logs(driver.logs, NOW)
        assert since.runs == ("old",)
        assert DriverMark.from_json(json.loads(json.dumps(since.to_json()))) == since
        assert driver.tell("started", "new", minutes=5).crash(since) is None
        found = driver.ended(
            "new", "java.lang.X: no such customer\n\tat a\n\tat b\n\tat c\n\tat d\n\tat e", minutes=6
        ).crash(since)
        assert found is not None
        assert found.in_words == (
            "the query was terminated at 2026-11-21 08:36:00 UTC by USER_RAISED_EXCEPTION: "
            "java.lang.X: no such customer\n\tat a\n\tat b\n\tat c\n\tat d"
        )
        # It stays one although a cluster manager has started it again.
        assert driver.tell("started", "newer", minutes=7).crash(since) == found

    def test_what_is_no_crash_of_the_new_code(self, driver: Driver) -> None:
        since = mark_logs(driver.logs, NOW)
        driver.ended("old", "[CONCURRENT_STREAM_LOG_UPDATE]", minutes=5)  # stopped by a seal
        driver.tell("started", "again", minutes=6).ended("again", f"Failed to read log file: {SEALED}", minutes=6)
        driver.tell("started", "new", minutes=7).ended("new", None, minutes=8)
        driver.tell("started", "else", minutes=7, query="two").ended("else", minutes=8, query="two")
        assert driver.crash(since) is None
        assert driver.crash(since, query_id=None) is not None

    def test_by_the_times_alone(self, driver: Driver) -> None:
        since = DriverMark(NOW)
        driver.ended("old", minutes=5).ended("begin not reported", minutes=6)
        assert driver.crash(since) is None
        driver.tell("started", "new", minutes=7).ended("new", minutes=7)
        assert driver.crash(since) is not None
        assert driver.crash(DriverMark(NOW + timedelta(minutes=8))) is None

    def test_lines_that_are_none(self, driver: Driver) -> None:
        since = mark_logs(driver.logs, NOW)
        with driver.progress.open("a") as file:
            file.write('{"event":\nnull\n[]\n{"event":"terminated"}\n')
        assert len(read_events(open_location(str(driver.progress)))) == 1
        assert driver.crash(since) is None

    def test_no_files_yet(self, tmp_path: Path) -> None:
        none = Driver(tmp_path / "none")
        assert mark_logs(none.logs, NOW) == DriverMark(NOW, (), LogPosition())
        assert none.crash(mark_logs(none.logs, NOW)) is None


UNCAUGHT = [
    'Exception in thread "main" java.lang.NoSuchMethodError: x',
    "26/11/21 08:30:00 ERROR SparkUncaughtExceptionHandler: Uncaught exception in thread Thread[main,5,main]",
    "26/11/21 08:30:00 ERROR ApplicationMaster: User class threw exception: org.apache.spark.SparkException",
    "26/11/21 08:30:00 ERROR MicroBatchExecution: Query orders [id = a, runId = b] terminated with error",
    "pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query",
    "java.lang.OutOfMemoryError: Java heap space",
    "# A fatal error has been detected by the Java Runtime Environment:",
]
CAUGHT = [
    "26/11/21 08:30:00 WARN TaskSetManager: Lost task 0.0: org.apache.spark.api.python.PythonException: "
    "Traceback (most recent call last):",
    "java -XX:+ExitOnOutOfMemoryError -XX:+HeapDumpOnOutOfMemoryError",
    "26/11/21 08:30:00 ERROR TaskSchedulerImpl: Lost executor 3 on 10.0.0.7",
]


class TestErrorLog:
    @pytest.mark.parametrize("line", UNCAUGHT)
    def test_uncaught(self, driver: Driver, line: str) -> None:
        since = mark_logs(driver.log("all is well\n").logs, NOW)
        found = driver.log(f"INFO begins\n{line}\n\tat a\n").crash(since)
        assert found is not None
        assert found.in_words == f"an uncaught error is in {driver.errors}: {line}"

    @pytest.mark.parametrize("line", CAUGHT)
    def test_caught(self, driver: Driver, line: str) -> None:
        since = mark_logs(driver.logs, NOW)
        assert driver.log(f"INFO begins\n{line}\n").crash(since) is None

    def test_a_traceback_names_its_exception(self, driver: Driver) -> None:
        since = mark_logs(driver.logs, NOW)
        driver.log('Traceback (most recent call last):\n  File "app.py", line 3\n    x()\nValueError: no table\nbye\n')
        found = driver.crash(since)
        assert found is not None
        assert found.error == "Traceback (most recent call last): ValueError: no table"

    def test_from_before(self, driver: Driver) -> None:
        since = mark_logs(driver.log(f"{UNCAUGHT[0]}\n").logs, NOW)
        assert driver.log("INFO begins\n").crash(since) is None
        # Without a mark nobody knows what is old: it begins at the end.
        assert driver.crash(DriverMark(NOW)) is None

    def test_refused_by_a_seal(self, driver: Driver) -> None:
        since = mark_logs(driver.logs, NOW)
        assert driver.log(f"{UNCAUGHT[3]}\njava.lang.X: Failed to read log file … {SEALED}\n").crash(since) is None

    @pytest.mark.parametrize("keep", [0, 1000], ids=["shorter", "longer"])
    def test_rotated(self, driver: Driver, keep: int) -> None:
        since = mark_logs(driver.log("INFO of before\n" * 10).logs, NOW)
        driver.errors.write_text(f"{UNCAUGHT[5]}\n" + "INFO of today\n" * keep)
        assert driver.crash(since) is not None

    def test_each_line_once_and_whole(self, driver: Driver) -> None:
        file = open_location(str(driver.errors))
        position = end_of(file)
        found, position = uncaught_error(driver.log("INFO\nException in").logs.errors or file, position)
        assert (found, position.bytes) == (None, 5)
        driver.log(" thread x\nINFO\n")
        found, position = uncaught_error(file, position)
        assert (found, position.bytes) == ("Exception in thread x", driver.errors.stat().st_size)
        assert LogPosition.from_json(json.loads(json.dumps(position.to_json()))) == position
        assert uncaught_error(file, position) == (None, position)

    def test_no_more_than_there_is_time_for(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(error_log, "MOST_BYTES", 1000)
        file = open_location(str(driver.errors))
        position = end_of(file)
        driver.log(f"{UNCAUGHT[0]}\n" + "INFO of today\n" * 200)
        size = driver.errors.stat().st_size
        found, position = uncaught_error(file, position)
        assert (found, position.bytes, position.skipped) == (None, size, size - 1000)
        driver.log(f"{UNCAUGHT[0]}\n")
        found, position = uncaught_error(file, position)
        assert (found, position.skipped) == (UNCAUGHT[0], size - 1000)


def lags(driver: Driver, *, within: float = 20.0, after: int = 9, last: int = 99, **before: float) -> list[Any]:
    progress = batches_of(read_events(open_location(str(driver.progress))), "one")
    return compare_lags(progress, before=before or None, after=after, last=last, within=within)


class TestLag:
    def test_of_the_baseline(self, driver: Driver) -> None:
        for batch, lag in ((7, 90.0), (8, 10.0), (9, 30.0)):
            driver.batch(batch, lag)
        progress = batches_of(read_events(open_location(str(driver.progress))), "one")
        assert largest_lags(progress, first=8, last=9) == {"0": 30.0}

    @pytest.mark.parametrize(
        ("measured", "before", "ok"),
        [
            ((100, 400, 900), 100, False),
            ((100, 400, 120), 100, True),
            ((9000, 4000, 5000), 100, True),  # it catches up on the time of the deployment
            ((100, 100, 700), 600, True),
            ((0, 0, 1), 0, False),
        ],
    )
    def test_compared(self, driver: Driver, measured: tuple[float, ...], before: float, ok: bool) -> None:
        for batch, lag in enumerate(measured, 10):
            driver.batch(batch, lag)
        (check,) = lags(driver, **{"0": before})
        assert (check.what, check.measured, check.ok) == ("maxOffsetsBehindLatest of source 0", measured[-1], ok)

    def test_what_the_next_batch_reads(self, driver: Driver) -> None:
        for batch in (10, 11):
            driver.batch(batch, 50.0 * (batch - 10), rows=60)
        assert [check.ok for check in lags(driver, **{"0": 0.0})] == [True]
        driver.batch(11, 61.0, rows=60)  # run again
        assert [check.ok for check in lags(driver, **{"0": 0.0})] == [False]

    def test_bytes_know_no_rows(self, driver: Driver) -> None:
        driver.batch(10, 0.0, metric="numBytesOutstanding").batch(11, 50.0, rows=60, metric="numBytesOutstanding")
        (check,) = lags(driver)
        assert (check.what, check.ok) == ("numBytesOutstanding of source 0", False)

    def test_unknown(self, driver: Driver) -> None:
        assert [str(check) for check in lags(driver)] == ["lag: unknown (baseline None, now None)"]
        driver.batch(10, None).batch(11, None)
        assert [str(check) for check in lags(driver)] == ["lag: unknown (baseline None, now None)"]
        assert [(c.what, c.ok) for c in lags(driver, **{"0": 5.0})] == [("lag of source 0", None)]
        assert [check.ok for check in lags(driver, last=9)] == [None]
