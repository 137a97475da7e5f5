"""A statement that the query is stopped is about the time before another run changed the checkpoint, and started the query."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import logs, plant

Run = Callable[..., dict[str, Any]]

HOUR = timedelta(hours=1)


def rewind(place: Location, context: dict[str, Any], batch: int, **given: Any) -> dict[str, Any]:
    operator = CheckpointRewindOperator(
        task_id="rewind", checkpoint=str(place), to="to_batch", value=batch, sink="foreachBatch", sink_policy="keep",
        accept=["sink_duplicates", "sink_unknown", "source_loss"], mode="apply", query_is_stopped=True, quiet_for=0, **given,
    )  # fmt: skip
    return dict(operator.execute(context))


@pytest.mark.parametrize("stop_running", [False, True])
@pytest.mark.parametrize(
    ("stopped_since", "started", "run_id", "is_void"),
    [
        (-HOUR, HOUR, "second", True),  # the task that stopped it, however late this one begins
        (HOUR, -HOUR, "second", False),
        (None, -HOUR, "second", True),  # the form of the run
        (None, HOUR, "second", False),
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
            AirflowFailException, match=r"took over: it has changed the checkpoint since dag/second/later/-1 said"
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
