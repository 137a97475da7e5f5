"""StreamHealthSensor: passes a stream that runs as before, fails one that does not, in every mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.sensors.stream_health import stream_baseline
from tests.support.commit_gaps import MODES, wait
from tests.support.growing_streams import DiskStream
from tests.support.health_gates import gate, ran

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def before(tmp_path: Any) -> DiskStream:
    """A stream before its deployment: batches 0 to 19."""
    return ran(DiskStream(tmp_path / "orders").start(), range(20))


@pytest.mark.parametrize("mode", MODES)
class TestEveryMode:
    def test_as_before(self, before: DiskStream, mode: str, run: Run) -> None:
        baseline = stream_baseline(str(before))
        assert (baseline["batch_id"], baseline["batches"], baseline["seconds_per_batch"]) == (19, 20, 5.0)
        assert baseline["input_per_second"] == {"0": 10.0}
        # The first batch catches up: far more rows, far longer.
        after = lambda: ran(ran(before, range(20, 21), seconds=50, rows=9000), range(21, 25), seconds=6)  # noqa: E731
        report = wait(gate(before, baseline, mode), run(), after)
        assert json.loads(json.dumps(report)) == report
        assert report["healthy"] is True
        assert [check["change_percent"] for check in report["checks"]] == [20.0, 0.0]
        assert report["progress"]["latest_committed"] == 24
        assert report["baseline"] == baseline

    def test_a_new_checkpoint_that_is_still_to_come(
        self, before: DiskStream, mode: str, run: Run, tmp_path: Path
    ) -> None:
        """New code that starts from the beginning, at a place that is empty until it runs."""
        anew = DiskStream(tmp_path / "again")
        baseline = {**stream_baseline(str(before)), "batch_id": -1, "query_id": None}
        after = lambda: ran(anew.start("two"), range(5))  # noqa: E731
        report = wait(gate(anew, baseline, mode, input_within=None), run(), after)
        assert (report["healthy"], report["progress"]["latest_committed"]) == (True, 4)
        with pytest.raises(AirflowFailException, match="checkpoint"):
            gate(DiskStream(tmp_path / "gone"), {**baseline, "batch_id": 19}, mode).execute(run())

    def test_slower_until_it_gives_up(self, before: DiskStream, mode: str, run: Run) -> None:
        context, baseline = run(), stream_baseline(str(before))
        ran(before, range(20, 27), seconds=20)
        with pytest.raises(AirflowFailException) as e:
            wait(gate(before, baseline, mode, give_up_after=7), context)
        assert str(e.value) == (
            f"{before} does not run as before: batches up to 26\n"
            "seconds_per_batch: 20 instead of 5, +300 % (100 % allowed)\n"
            "HINT: check what was deployed; the report is the task's result"
        )
        assert context["pushed"]["return_value"]["healthy"] is False

    def test_slow_at_first(self, before: DiskStream, mode: str, run: Run) -> None:
        baseline = stream_baseline(str(before))
        ran(before, range(20, 25), seconds=20)
        report = wait(gate(before, baseline, mode), run(), lambda: ran(before, range(25, 30), seconds=5))
        assert report["healthy"]
        assert report["measured"]["batch_id"] in range(27, 30), "as soon as enough of them are fast"

    def test_checkpoint_lost_by_the_deployment(self, before: DiskStream, mode: str, run: Run) -> None:
        """It begins again at batch 0: noticed although it happened before the gate was there."""
        baseline = stream_baseline(str(before))
        before.rewind(-1).start("two")
        ran(before, range(2))
        with pytest.raises(AirflowFailException, match="its newest committed batch was 19 and is 1"):
            wait(gate(before, baseline, mode), run())

    def test_too_few_batches(self, before: DiskStream, mode: str, run: Run) -> None:
        baseline = stream_baseline(str(before))
        ran(before, range(20, 23))
        with pytest.raises(
            AirflowSensorTimeout, match="waiting for progressed_by 5 since batch 19: newest logged batch 22"
        ):
            wait(
                gate(before, baseline, mode, timeout=0.2),
                run(first_reschedule=datetime.now(UTC) - timedelta(seconds=1)),
            )


def test_another_query_with_higher_numbers(before: DiskStream, run: Run) -> None:
    baseline = stream_baseline(str(before))
    before.start("two")
    made = gate(before, baseline)
    with pytest.raises(AirflowFailException, match="it was query one and is query two"):
        made.execute(run())  # type: ignore[arg-type]


def test_input_that_is_read_again(before: DiskStream, run: Run) -> None:
    baseline = stream_baseline(str(before))
    ran(before, range(20, 26), rows=60_000)
    with pytest.raises(AirflowFailException, match=r"input_per_second of source 0: 1000 instead of 10"):
        gate(before, baseline, give_up_after=6).execute(run())  # type: ignore[arg-type]
    report = gate(before, baseline, input_within=None).execute(run())  # type: ignore[arg-type]
    assert [check["what"] for check in report["checks"]] == ["seconds_per_batch"]


def test_a_rendered_baseline(before: DiskStream, run: Run) -> None:
    baseline = stream_baseline(str(before))
    ran(before, range(20, 25))
    for text in (json.dumps(baseline), str(baseline)):
        assert gate(before, text).execute(run())["healthy"] is True  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"baseline": "nothing"}, "baseline is 'nothing'\nHINT: give what stream_baseline(…) returned"),
        ({"baseline": {}}, "baseline is '{}'\nHINT: give what stream_baseline(…) returned before the deployment"),
        ({"new_batches": 0}, "new_batches is 0\nHINT: give a whole number from 1 up"),
        ({"warm_up": "x"}, "warm_up is 'x'\nHINT: give a whole number from 0 up"),
        ({"give_up_after": 4}, "give_up_after is 4\nHINT: give at least warm_up and new_batches together, 5"),
        ({"duration_within": -1}, "duration_within is -1\nHINT: give percent from 0 up, or None"),
        ({"input_within": "50"}, "input_within is '50'\nHINT: give percent from 0 up, or None"),
    ],
)  # fmt: skip
def test_wrong_parameters(before: DiskStream, run: Run, fields: dict[str, Any], message: str) -> None:
    baseline = fields.pop("baseline", None)
    made = gate(before, stream_baseline(str(before)) if baseline is None else baseline, **fields)
    with pytest.raises(AirflowFailException) as e:
        made.execute(run())  # type: ignore[arg-type]
    assert str(e.value).startswith(message)


def test_no_baseline_of_nothing(tmp_path: Any) -> None:
    with pytest.raises(RefusedError, match="has no committed batch to measure"):
        stream_baseline(str(tmp_path))
