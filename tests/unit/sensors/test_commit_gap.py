"""CommitGapSensor: the same answers in every mode, clear words for wrong parameters."""

from __future__ import annotations

import builtins
import inspect
import json
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.sensors.commit_gap import CommitGapSensor
from airflow_ckpt_provider.sensors.stream_health import StreamHealthSensor
from tests.support.commit_gaps import FAST, MODES, wait
from tests.support.growing_streams import DiskStream

Run = Callable[..., dict[str, Any]]


def sensor(stream: DiskStream | str, mode: str, **fields: Any) -> CommitGapSensor:
    how: dict[str, Any] = {"deferrable": True} if mode == "deferrable" else {"mode": mode}
    return CommitGapSensor(task_id="wait", **{"checkpoint": str(stream), **FAST, **how, **fields})


@pytest.mark.parametrize("mode", MODES)
class TestEveryMode:
    def test_done_at_the_first_look(self, stream: DiskStream, mode: str, run: Run) -> None:
        found = wait(sensor(stream, mode, quiet_for=5), run())
        assert json.loads(json.dumps(found)) == found
        assert (found["latest_logged"], found["latest_committed"], found["gap"]) == (5, 5, 0)
        assert found["checkpoint"] == str(stream)

    def test_done_later(self, stream: DiskStream, mode: str, run: Run) -> None:
        made = sensor(stream, mode, condition="progressed_by", value=2)
        assert wait(made, run(), lambda: stream.ran(range(6, 8)))["latest_committed"] == 7

    def test_history_rewritten_during_the_wait(self, stream: DiskStream, mode: str, run: Run) -> None:
        context = run()
        made = sensor(stream, mode, condition="committed_batch", value=9)
        with pytest.raises(AirflowFailException) as e:
            wait(made, context, lambda: stream.rewind(3))
        assert str(e.value) == (
            f"the history of {stream} was rewritten during the wait: its newest committed batch was 5 and is 3\n"
            "HINT: somebody rewound, restored or reset it: see that this was meant, then start the wait again"
        )
        assert context["pushed"]["return_value"]["latest_committed"] == 3
        assert context["task_state_store"] == {}

    def test_stuck(self, stream: DiskStream, mode: str, run: Run) -> None:
        stream.log(6, age=50)
        with pytest.raises(AirflowFailException, match="is stuck: batch 6 was begun and is not committed"):
            wait(sensor(stream, mode, stuck_after=timedelta(seconds=30)), run())

    def test_stuck_is_as_good_as_drained(self, stream: DiskStream, mode: str, run: Run) -> None:
        context = run()
        stream.log(6, age=50)
        found = wait(sensor(stream, mode, stuck_after=30, on_stuck="pass"), context)
        assert (found["latest_logged"], found["latest_committed"], found["gap"]) == (6, 5, 1)
        assert context["task_state_store"] == {}

    def test_too_late(self, stream: DiskStream, mode: str, run: Run) -> None:
        context = run()
        if mode == "reschedule":
            context["ti"].get_first_reschedule_date = lambda _: datetime.now(UTC) - timedelta(seconds=1)
        with pytest.raises(AirflowSensorTimeout) as e:
            wait(sensor(stream, mode, condition="committed_batch", value=9, timeout=0.2), context)
        assert str(e.value) == (
            f"not within 0.2 s: {stream}: waiting for committed_batch 9: newest logged batch 5, newest committed 5"
        )

    def test_soft_fail(self, stream: DiskStream, mode: str, run: Run) -> None:
        stream.log(6, age=50)
        with pytest.raises(AirflowSkipException):
            wait(sensor(stream, mode, stuck_after=30, soft_fail=True), run())
        with pytest.raises(AirflowSkipException):
            wait(sensor(stream, mode, condition="committed_batch", value=9, timeout=0, soft_fail=True), run())

    def test_missing(self, tmp_path: Path, mode: str, run: Run) -> None:
        with pytest.raises(AirflowFailException) as e:
            wait(sensor(str(tmp_path / "nothing"), mode), run())
        assert str(e.value).startswith(f"{tmp_path}/nothing is not a checkpoint: it has no offsets/")

    def test_missing_ok(self, tmp_path: Path, mode: str, run: Run) -> None:
        stream = DiskStream(tmp_path / "new")
        made = sensor(stream, mode, condition="progressed_by", value=1, missing_ok=True)
        assert wait(made, run(), lambda: stream.start().ran([0]))["latest_committed"] == 0

    def test_a_file_in_place_of_the_checkpoint(self, tmp_path: Path, mode: str, run: Run) -> None:
        file = tmp_path / "orders"
        file.write_text("")
        with pytest.raises(StorageError) as e:
            wait(sensor(str(file), mode, missing_ok=True), run())
        assert str(e.value) == (
            f"could not read {file}/metadata: Not a directory\nHINT: a part of this path is a file: correct the address"
        )

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_not_allowed(self, stream: DiskStream, mode: str, run: Run) -> None:
        (stream.place / "commits").chmod(0)
        with pytest.raises(StorageError, match="Permission denied"):
            wait(sensor(stream, mode), run())

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"condition": "idle"}, "condition is 'idle'\nHINT: give one of: drained, progressed_by, committed_batch, max_gap"),
            ({"condition": None}, "condition is None\nHINT: give one of: drained, progressed_by, committed_batch, max_gap"),
            ({"condition": "max_gap", "value": "many"}, "value is 'many'\nHINT: give a whole number from 0 up, or leave it out"),
            ({"condition": "max_gap", "value": -1}, "value is -1\nHINT: give a whole number from 0 up, or leave it out"),
            ({"condition": "max_gap"}, "value is None\nHINT: condition 'max_gap' needs a whole number from 0 up"),
            ({"value": 3}, "value is 3, and condition 'drained' has none\nHINT: leave value out"),
            ({"quiet_for": -1}, "quiet_for is -1\nHINT: give seconds or a duration such as 90s or 1h, from 0 s up"),
            ({"quiet_for": "soon"}, "quiet_for is 'soon'\nHINT: give seconds or a duration such as 90s or 1h, from 0 s up"),
            ({"on_stuck": "skip"}, "on_stuck is 'skip'\nHINT: give one of: fail, pass"),
            ({"stuck_after": 0}, "stuck_after is 0\nHINT: give seconds or a duration such as 90s or 1h, from 0.001 s up"),
            ({"poll_interval": 0}, "poll_interval is 0.0\nHINT: give seconds or a duration such as 90s or 1h, from 0.001 s up"),
            ({"missing_ok": "perhaps"}, "missing_ok is 'perhaps'\nHINT: give true or false"),
            ({"since_batch": 3}, "since_batch is 3 with condition 'drained'\nHINT: give it with 'progressed_by' only"),
            ({"checkpoint": ""}, "checkpoint is empty\nHINT: give checkpoint, or check the template that it comes from"),
        ],
    )  # fmt: skip
    def test_wrong_parameters(
        self, stream: DiskStream, mode: str, run: Run, fields: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(AirflowFailException) as e:
            wait(sensor(stream, mode, **fields), run())
        assert str(e.value).startswith(message)

    def test_retry_goes_on_where_the_attempt_before_has_stopped(self, stream: DiskStream, mode: str, run: Run) -> None:
        """``progressed_by`` counts from the beginning of the task, not of its last attempt."""
        context = run(max_tries=2)
        made = sensor(stream, mode, condition="progressed_by", value=2, retries=2)

        def lose_the_worker() -> None:
            raise RuntimeError("lost")

        if mode == "poke":
            made.timeout = 0
            with pytest.raises(AirflowSensorTimeout):
                made.execute(context)  # type: ignore[arg-type]
            made.timeout = 20
        else:
            with pytest.raises(RuntimeError):
                wait(made, context, lose_the_worker)
        stream.ran(range(6, 8))
        again = sensor(stream, mode, condition="progressed_by", value=2, retries=2)
        assert wait(again, context)["latest_committed"] == 7
        assert context["task_state_store"] == {}

    def test_cleared_task_begins_anew(self, stream: DiskStream, mode: str, run: Run) -> None:
        context = run(max_tries=0)
        with pytest.raises(AirflowSensorTimeout):
            wait(sensor(stream, mode, condition="progressed_by", value=2, timeout=0), context)
        stream.ran(range(6, 8))
        context["ti"].max_tries = 1
        with pytest.raises(AirflowSensorTimeout):
            wait(sensor(stream, mode, condition="progressed_by", value=2, timeout=0), context)


@pytest.mark.parametrize("mode", ["poke", "deferrable"])
class TestAnswersThatDoNotCome:
    """The store fails after the first poll."""

    @pytest.fixture
    def broken(self, stream: DiskStream) -> Callable[[], None]:
        def work() -> None:
            # A poll between these steps must find no commit gone that it has seen.
            (stream.place / "offsets").rename(stream.place / "offsets-away")
            os.symlink("offsets", stream.place / "offsets")  # a loop: cannot be listed
            (stream.place / "commits").rename(stream.place / "away")
            (stream.place / "commits").write_text("")

        return work

    def test_fails_with_the_path_and_is_left_to_the_retries(
        self, stream: DiskStream, mode: str, run: Run, broken: Callable[[], None]
    ) -> None:
        made = sensor(stream, mode, condition="committed_batch", value=9)
        with pytest.raises(StorageError, match=f"could not list {stream}/offsets"):
            wait(made, run(), broken)

    def test_never_fail(self, stream: DiskStream, mode: str, run: Run, broken: Callable[[], None]) -> None:
        made = sensor(stream, mode, condition="committed_batch", value=9, never_fail=True)
        with pytest.raises(AirflowSkipException):
            wait(made, run(), broken)

    def test_silent_fail(self, stream: DiskStream, mode: str, run: Run, broken: Callable[[], None]) -> None:
        made = sensor(stream, mode, condition="committed_batch", value=9, silent_fail=True, timeout=1.0)
        with pytest.raises(AirflowSensorTimeout):
            wait(made, run(), broken)


def test_reschedule_before_airflow_3_3(stream: DiskStream, run: Run) -> None:
    """No state is kept between looks there; the times of the files show what was committed when the wait began."""
    began = datetime.now(UTC) - timedelta(seconds=30)
    context = run(store=False, first_reschedule=began)
    stream.ran(range(6, 8))
    made = sensor(stream, "reschedule", condition="progressed_by", value=2)
    assert made.execute(context)["latest_committed"] == 7  # type: ignore[arg-type]
    with pytest.raises(AirflowRescheduleException):
        sensor(stream, "reschedule", condition="progressed_by", value=3, timeout=99).execute(context)  # type: ignore[arg-type]


def test_deferral_ends_by_itself(stream: DiskStream) -> None:
    with pytest.raises(TaskDeferred) as e:
        sensor(stream, "deferrable", condition="committed_batch", value=9, timeout=100).execute({})
    arguments = e.value.trigger.serialize()[1]
    assert 95 < arguments["end_time"] - time.time() <= 100
    assert e.value.timeout is not None
    assert 150 < e.value.timeout.total_seconds() <= 160, "Airflow's own limit is later than the trigger's"


@pytest.mark.parametrize("made", [CommitGapSensor, StreamHealthSensor])
class TestCommonRules:
    NOT_TEMPLATED = {  # noqa: RUF012
        *("quiet_for", "stuck_after", "duration_within", "input_within", "lag_within", "catching_up"),
        *("deferrable", "poll_interval", "streams_file"),
    }

    def _classes(self, made: type[BaseSensorOperator]) -> list[type[BaseSensorOperator]]:
        """The sensor and its bases in the package."""
        return [cls for cls in made.__mro__ if cls.__module__.startswith("airflow_ckpt_provider.")]

    def _parameters(self, made: type[BaseSensorOperator]) -> dict[str, inspect.Parameter]:
        found = {
            name: parameter
            for cls in self._classes(made)
            if "__init__" in vars(cls)
            for name, parameter in inspect.signature(vars(cls)["__init__"]).parameters.items()
        }
        return {name: p for name, p in found.items() if name not in ("self", "kwargs")}

    def test_keyword_only(self, made: type[BaseSensorOperator]) -> None:
        assert {p.kind for p in self._parameters(made).values()} == {inspect.Parameter.KEYWORD_ONLY}

    def test_templated_and_documented(self, made: type[BaseSensorOperator]) -> None:
        assert set(made.template_fields) == set(self._parameters(made)) - self.NOT_TEMPLATED
        docs = "\n".join(vars(cls)["__doc__"] for cls in self._classes(made))
        lines = docs.replace("\n        ", " ").splitlines()
        for name in self._parameters(made):
            (line,) = (found for found in lines if found.strip().startswith(f":param {name}:"))
            assert line.endswith("(templated)") is (name not in self.NOT_TEMPLATED), line

    def test_no_work_before_execute(self, made: type[BaseSensorOperator], monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*args: Any, **kwargs: Any) -> None:
            raise AssertionError(f"work in __init__: {args}")

        with monkeypatch.context() as patched:
            patched.setattr(builtins, "open", refuse)
            patched.setattr(socket, "socket", refuse)
            template = "{{ params.word }}"
            fields = dict.fromkeys(set(made.template_fields) - {"stream"}, template)
            sensor = made(task_id="t", **fields)
        assert {f: getattr(sensor, f) for f in fields} == fields
        sensor.render_template_fields({"params": {"word": "rendered"}})
        assert {getattr(sensor, f) for f in fields} == {"rendered"}
