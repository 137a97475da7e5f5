"""StreamHealthSensor with the driver's logs: a crash ends it at once, in every mode; the lag must not grow."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_ckpt_provider.sensors.stream_health import StreamHealthSensor, mark_baseline, stream_baseline
from tests.support.commit_gaps import MODES, wait
from tests.support.growing_streams import DiskStream
from tests.support.health_gates import gate, ran

Run = Callable[..., dict[str, Any]]


class LoggedStream(DiskStream):
    """A stream whose driver shows how it goes."""

    @property
    def logs(self) -> dict[str, Any]:
        return {"progress_log": str(self.place) + ".jsonl", "error_log": str(self.place) + ".log"}

    def tell(self, event: str, run_id: str, **more: Any) -> LoggedStream:
        line = {"event": event, "at": datetime.now(UTC).isoformat(), "query_id": "one", "run_id": run_id, **more}
        with Path(self.logs["progress_log"]).open("a") as file:
            file.write(f"{json.dumps(line)}\n")
        return self

    def say(self, text: str) -> LoggedStream:
        with Path(self.logs["error_log"]).open("a") as file:
            file.write(f"{text}\n")
        return self

    def behind(self, lags: dict[int, float], run_id: str) -> LoggedStream:
        for batch, lag in lags.items():
            metrics = {"maxOffsetsBehindLatest": str(lag)}
            self.tell("progress", run_id, batch_id=batch, input_rows=600, sources=[{"metrics": metrics}])
        return self

    def crash(self, run_id: str = "new") -> LoggedStream:
        error = {"error": "java.lang.X: no such customer\n\tat a", "error_class": "USER_RAISED_EXCEPTION"}
        return self.tell("started", run_id).tell("terminated", run_id, **error)


@pytest.fixture
def before(tmp_path: Path) -> LoggedStream:
    """A stream before its deployment: batches 0 to 19, up to 3000 offsets behind."""
    stream = LoggedStream(tmp_path / "orders")
    ran(stream.start(), range(20))
    return stream.tell("started", "old").behind({18: 3000, 19: 1000}, "old").say("INFO begins")


def logged(stream: LoggedStream, baseline: Any, mode: str = "poke", **fields: Any) -> StreamHealthSensor:
    return gate(stream, baseline, mode, **{**stream.logs, **fields})


@pytest.mark.parametrize("mode", MODES)
class TestEveryMode:
    def test_crash_at_the_start(self, before: LoggedStream, mode: str, run: Run) -> None:
        """No batch ever appears, and nobody waits for it."""
        baseline, context = stream_baseline(str(before), **before.logs), run()
        with pytest.raises(AirflowFailException) as e:
            wait(logged(before, baseline, mode, timeout=600.0), context, before.crash)
        told = str(e.value)
        assert told.startswith(f"{before} has a query that fails: the query was terminated at 20")
        assert " UTC by USER_RAISED_EXCEPTION: java.lang.X: no such customer\n\tat a\nHINT: fix" in told
        result = context["pushed"]["return_value"]
        assert json.loads(json.dumps(result)) == result
        assert (result["latest_committed"], result["crash"]["run_id"]) == (19, "new")
        assert context["task_state_store"] == {}

    def test_crash_after_enough_good_batches(self, before: LoggedStream, mode: str, run: Run) -> None:
        baseline = stream_baseline(str(before), **before.logs)
        ran(before, range(20, 25))
        with pytest.raises(AirflowFailException, match="USER_RAISED_EXCEPTION"):
            wait(logged(before.crash(), baseline, mode), run())

    def test_error_in_the_log(self, before: LoggedStream, mode: str, run: Run) -> None:
        baseline = stream_baseline(str(before), **before.logs)
        error = "java.lang.OutOfMemoryError: Java heap space"
        with pytest.raises(AirflowFailException, match=rf"uncaught error is in {before}.log: {error}"):
            wait(logged(before, baseline, mode), run(), lambda: before.say(error))

    def test_the_old_run_is_no_fault_of_the_new_one(self, before: LoggedStream, mode: str, run: Run) -> None:
        baseline = stream_baseline(str(before), **before.logs)
        before.tell("terminated", "old", error="[CONCURRENT_STREAM_LOG_UPDATE] sealed", error_class=None)
        before.say("ERROR MicroBatchExecution: Query orders terminated with error")
        baseline = mark_baseline(json.dumps(baseline), **before.logs)
        after = lambda: ran(before.tell("started", "new").behind({20: 9000, 24: 2000}, "new"), range(20, 25))  # noqa: E731
        report = wait(logged(before, baseline, mode), run(), after)
        assert (report["healthy"], report["baseline"]["driver"]["runs"]) == (True, ["old"])
        assert report["checks"][-1]["what"] == "maxOffsetsBehindLatest of source 0"

    def test_lag_that_grows(self, before: LoggedStream, mode: str, run: Run) -> None:
        baseline, context = stream_baseline(str(before), **before.logs), run()
        assert baseline["lag"] == {"0": 3000.0}
        ran(before.behind({20: 3000, 24: 3700}, "new"), range(20, 25))
        with pytest.raises(AirflowFailException) as e:
            wait(logged(before, baseline, mode, give_up_after=5), context)
        assert "maxOffsetsBehindLatest of source 0: 3700 instead of 3000, +23 % (20 % allowed)" in str(e.value)
        report = wait(logged(before, baseline, mode, lag_within=25.0), run())
        assert report["healthy"] is True
        report = wait(logged(before, baseline, mode, lag_within=None), run())
        assert [check["what"] for check in report["checks"]] == ["seconds_per_batch", "input_per_second of source 0"]


def test_a_baseline_of_an_earlier_version(before: LoggedStream, run: Run) -> None:
    baseline = stream_baseline(str(before))
    assert (baseline["lag"], baseline["driver"]) == (None, None)
    old = {key: value for key, value in baseline.items() if key not in ("time", "lag", "driver")}
    ran(before.crash("older").behind({20: 100, 24: 90}, "new"), range(20, 25))
    # Nobody knows what came before it: what is there at the first poll does not count.
    report = logged(before, old).execute(run())  # type: ignore[arg-type]
    assert (report["healthy"], report["checks"][-1]["ok"], report["baseline"]["time"]) == (True, True, None)
    with pytest.raises(AirflowFailException, match="USER_RAISED_EXCEPTION"):
        logged(before, baseline).execute(run())  # type: ignore[arg-type]


def test_logs_that_are_not_there(before: LoggedStream, run: Run) -> None:
    fields = {"progress_log": str(before) + ".other", "error_log": str(before) + ".other.log"}
    baseline = stream_baseline(str(before), **fields)
    ran(before, range(20, 25))
    report = logged(before, baseline, **fields).execute(run())  # type: ignore[arg-type]
    assert report["healthy"] is True
    assert (report["checks"][-1]["what"], report["checks"][-1]["ok"]) == ("lag", None)


def test_the_trigger_reads_on_where_the_worker_has_stopped(before: LoggedStream, run: Run) -> None:
    baseline = stream_baseline(str(before), **before.logs)
    before.say("INFO continues")
    with pytest.raises(TaskDeferred) as e:
        logged(before, baseline, "deferrable").execute(run())  # type: ignore[arg-type]
    arguments = e.value.trigger.serialize()[1]
    assert arguments["memory"]["log"][0] == Path(before.logs["error_log"]).stat().st_size
    assert (arguments["progress_log"], arguments["error_log"]) == tuple(before.logs.values())


def test_wrong_lag(before: LoggedStream, run: Run) -> None:
    with pytest.raises(AirflowFailException, match="lag_within is -1"):
        logged(before, stream_baseline(str(before)), lag_within=-1).execute(run())  # type: ignore[arg-type]
