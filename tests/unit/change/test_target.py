from __future__ import annotations

import pytest

from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import logs, plant
from tests.support.seals import seal_at


def test_an_empty_place(place: Location) -> None:
    target = inspect_target(place)
    assert (target.is_empty, target.is_checkpoint, target.seal, target.newest_offsets) == (True, False, None, -1)


def test_a_checkpoint(place: Location) -> None:
    target = inspect_target(plant(place, logs(range(3))))
    assert (target.is_empty, target.is_checkpoint, target.seal, target.newest_offsets) == (False, True, None, 2)
    assert target.visible.keys() == logs(range(3)).keys()


def test_hidden_files_do_not_count(place: Location) -> None:
    target = inspect_target(plant(place, {".metadata.crc": b"", "offsets/.7.crc": b"", ".tmp/x": b""}))
    assert target.is_empty
    assert target.newest_offsets == -1
    assert len(target.files) == 3


@pytest.mark.parametrize("path", ["metadata", "offsets/3", "commits/3"])
def test_what_is_left_of_a_checkpoint_is_one(place: Location, path: str) -> None:
    assert inspect_target(plant(place, {path: b"x"})).is_checkpoint


def test_other_files(place: Location) -> None:
    target = inspect_target(plant(place, {"part-0.parquet": b"x", "metadata/x": b"x", "offsets": b"x"}))
    assert (target.is_empty, target.is_checkpoint) == (False, False)


def test_a_seal_alone_is_an_empty_place(place: Location) -> None:
    target = inspect_target(plant(place, seal_at(5)))
    assert target.seal is not None
    assert (target.is_empty, target.is_checkpoint, target.newest_offsets) == (True, False, 5)


def test_the_seal_changes_nothing_of_the_fingerprint(place: Location) -> None:
    before = inspect_target(plant(place, logs(range(3)))).fingerprint
    assert inspect_target(plant(place, seal_at(3))).fingerprint == before
    place.replace("offsets/.3.crc", b"x")
    assert inspect_target(place).fingerprint == before


@pytest.mark.parametrize("change", ["new", "gone", "grown", "replaced"])
def test_any_change_shows_in_the_fingerprint(place: Location, change: str) -> None:
    before = inspect_target(plant(place, {"offsets/0": b"v1", "x": b"12"})).fingerprint
    if change == "gone":
        place.delete("x")
    else:
        plant(place, {"new": {"y": b"12"}, "grown": {"x": b"123"}, "replaced": {"x": b"13"}}[change])
    assert inspect_target(place).fingerprint != before
