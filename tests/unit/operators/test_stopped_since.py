"""A statement that the query is stopped is about the time before another run changed the checkpoint, and started the query."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.change_operator import UNCHANGED
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import logs, plant

Run = Callable[..., dict[str, Any]]

HOUR = timedelta(hours=1)
RISKS = ["sink_duplicates", "sink_unknown", "source_loss"]


def rewind(place: Location, context: dict[str, Any], batch: int, **given: Any) -> dict[str, Any]:
    stopped: dict[str, Any] = {
        "query_is_stopped": True,
        "quiet_for": 0,
        "wait_at_most": 0,
        "accept": RISKS,
        "mode": "apply",
    }
    sink = {"sink": "foreachBatch", "sink_policy": "keep"}
    operator = CheckpointRewindOperator(
        task_id="rewind", checkpoint=str(place), to="to_batch", value=batch, **sink, **{**stopped, **given}
    )
    return dict(operator.execute(context))


@pytest.mark.parametrize("stop_running", [False, True])
@pytest.mark.parametrize(
    ("stopped_since", "started", "run_id", "is_void"),
    [
        (-HOUR, HOUR, "second", True),  # the task that stopped it, however late this one begins
        (timedelta(seconds=50), -HOUR, "second", False),
        (None, -HOUR, "second", True),  # the form of the run
        (None, timedelta(seconds=50), "second", False),
        (-HOUR, -HOUR, "first", False),  # a run knows what it has changed itself
    ],
)
def test_a_change_since_makes_it_void(
    place: Location,
    run: Run,
    stop_running: bool,
    stopped_since: timedelta | None,
    started: timedelta,
    run_id: str,
    is_void: bool,
) -> None:
    plant(place / "orders", logs(range(6)))
    rewind(place / "orders", run(run_id="first"), 4)
    plant(place / "orders", logs(range(6)))  # it was started
    now = datetime.now(UTC)
    context = {**run("later", run_id=run_id, try_number=2), "dag_run": SimpleNamespace(start_date=now + started)}
    given: dict[str, Any] = {
        "stop_running": stop_running,
        "stopped_since": (now + stopped_since).isoformat() if stopped_since else "",
    }
    if is_void:
        with pytest.raises(
            AirflowFailException,
            match=r"took over: it has, or may have, changed the checkpoint since dag/second/later/-1 said",
        ):
            rewind(place / "orders", context, 2, **given)
    else:
        rewind(place / "orders", context, 2, **given)
    there = inspect_target(place / "orders")
    assert (there.newest_batch > 3, there.seal) == (is_void, None)


def test_a_time_without_a_zone_is_refused(place: Location, run: Run) -> None:
    plant(place / "orders", logs(range(6)))
    with pytest.raises(AirflowFailException, match="has no time zone"):
        rewind(place / "orders", run(), 4, stopped_since="2026-11-26T04:00:00")


@pytest.mark.parametrize("ahead", [timedelta(minutes=2), timedelta(days=365_000)])
def test_a_time_in_the_future_is_refused(place: Location, run: Run, ahead: timedelta) -> None:
    """Otherwise the change of another run, after which the stream may run again, would not make it void."""
    plant(place / "orders", logs(range(6)))
    stopped_since = (datetime.now(UTC) + ahead).isoformat()
    with pytest.raises(AirflowFailException, match=r"is said to have been stopped at .*, which is in the future"):
        rewind(place / "orders", run(), 4, stopped_since=stopped_since)
    assert inspect_target(place / "orders").newest_batch == 5


def test_a_run_that_was_started_in_the_future_says_nothing(place: Location, run: Run) -> None:
    """The clock of the scheduler is ahead of that of this worker: what was changed since it said so is not known."""
    plant(place / "orders", logs(range(6)))
    ahead = SimpleNamespace(start_date=datetime.now(UTC) + HOUR)
    with pytest.raises(AirflowFailException, match=r"is said to have been stopped at .*, which is in the future"):
        rewind(place / "orders", {**run(), "dag_run": ahead}, 4)
    assert inspect_target(place / "orders").newest_batch == 5


class TestAQueryThatWasStoppedForAChangeThatIsRefused:
    """It can be started again where nothing was changed, and where nobody else may have started it."""

    def refused(self, place: Location, run: Run, **given: Any) -> Any:
        context = run("later", run_id="second")
        stopped_since = datetime.now(UTC).isoformat()
        with pytest.raises(AirflowFailException):
            rewind(place / "orders", context, 2, **{"accept": [], "stopped_since": stopped_since, **given})
        return context["pushed"].get(UNCHANGED)

    def test_a_risk_was_not_accepted(self, place: Location, run: Run) -> None:
        plant(place / "orders", logs(range(6)))
        assert self.refused(place, run) is True
        assert self.refused(place, run, stop_running=True) is True

    def test_it_is_not_known_to_be_stopped(self, place: Location, run: Run) -> None:
        plant(place / "orders", logs(range(6)))
        assert self.refused(place, run, accept=RISKS, query_is_stopped=False) is None

    def test_somebody_else_has_sealed_it(self, place: Location, run: Run) -> None:
        plant(place / "orders", logs(range(6)))
        seal(Checkpoint.at(place / "orders"), reason="maintenance", made_by="somebody")
        assert self.refused(place, run) is False

    def test_another_run_has_changed_it_and_may_have_started_it(self, place: Location, run: Run) -> None:
        plant(place / "orders", logs(range(6)))
        before = datetime.now(UTC).isoformat()
        rewind(place / "orders", run(run_id="first"), 4)
        plant(place / "orders", logs(range(6)))
        assert self.refused(place, run, stopped_since=before) is False
        rewind(place / "orders", run(run_id="second"), 4)  # the newest change is its own
        assert self.refused(place, run, stopped_since=before) is False
        # By the clock of one host, the other change ended before this stop.
        assert self.refused(place, run) is True


def test_what_must_be_accepted_is_asked_for_by_the_plan(place: Location, run: Run) -> None:
    plant(place / "orders", logs(range(6)))
    asked: dict[str, Any] = {"mode": "plan", "must_be_accepted": "True"}
    with pytest.raises(AirflowFailException, match="needs somebody to accept: "):
        rewind(place / "orders", run(), 2, **asked, accept=[])
    with pytest.raises(AirflowFailException, match="needs somebody to accept: "):  # a template whose value is missing
        rewind(place / "orders", run(), 2, **asked | {"must_be_accepted": "None"}, accept=[])
    assert rewind(place / "orders", run(), 2, **asked)["outcome"] is None
    assert rewind(place / "orders", run(), 2, mode="plan", accept=[])["outcome"] is None
    assert rewind(place / "orders", run(), 5, **asked, accept=[])["plan"]["already_done"]
