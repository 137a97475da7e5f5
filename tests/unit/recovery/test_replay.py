"""What a replay will take, told by how long the batches took the first time: only where the clocks of the files show that."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.offsets import parse_offsets
from airflow_ckpt_provider.recovery.rewind.replay import replay_after
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import logs, plant

NEWEST = 6


@pytest.fixture
def orders(tmp_path: Path) -> Location:
    """Seven batches, each of which took a fifth of the time until the next one."""
    place = plant(open_location(str(tmp_path / "orders")), logs(range(NEWEST + 1)))
    for batch in range(NEWEST + 1):
        following = planned(place, batch + 1) if batch < NEWEST else planned(place, batch) + interval(place)
        committed(place, batch, planned(place, batch) + (following - planned(place, batch)) / 5)
    return place


def planned(place: Location, batch: int) -> float:
    time: datetime | None = parse_offsets(place.read(f"offsets/{batch}"), batch_id=batch).time
    assert time is not None
    return time.timestamp()


def interval(place: Location) -> float:
    return planned(place, 1) - planned(place, 0)


def committed(place: Location, batch: int, moment: float) -> None:
    os.utime(Path(place.root, "commits", str(batch)), (moment, moment))


def seconds(place: Location, after: int) -> float | None:
    return replay_after(Checkpoint.at(place).tree(), after, ()).seconds


@pytest.mark.parametrize("after", [0, 3, NEWEST - 1])
def test_as_long_as_the_first_time(orders: Location, after: int) -> None:
    assert seconds(orders, after) == pytest.approx((NEWEST - after) * interval(orders) / 5, rel=0.01)


def test_a_batch_that_is_not_committed_counts_as_the_others_do(orders: Location) -> None:
    orders.delete(f"commits/{NEWEST}")
    assert seconds(orders, 3) == pytest.approx(3 * interval(orders) / 5, rel=0.01)


def test_nothing_follows(orders: Location) -> None:
    assert seconds(orders, NEWEST) == 0


def test_files_of_a_restore_tell_nothing(orders: Location) -> None:
    """All of one moment, hours after the batches: no batch took hours."""
    for batch in range(NEWEST + 1):
        committed(orders, batch, planned(orders, NEWEST) + 3 * 3600)
    for after in range(NEWEST):
        assert seconds(orders, after) is None
