from __future__ import annotations

import pytest

from airflow_ckpt_provider.change.target import check_at_rest, inspect_target, wait_until_at_rest
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location
from tests.unit.checkpoint.builders import logs, plant
from tests.unit.checkpoint.stores import watched
from tests.unit.checkpoint.test_progress import seal_at


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


def test_at_rest(place: Location) -> None:
    location, store = watched(plant(place, logs(range(3))))
    check_at_rest(inspect_target(location), quiet_for=0)
    assert store.count("walk") == 2
    check_at_rest(inspect_target(place / "empty"), quiet_for=1000)


def test_in_use(place: Location) -> None:
    plant(place, logs(range(3)))

    def write(operation: str, path: str) -> None:
        if operation == "walk" and store.count("walk") == 2:
            plant(place, dict(logs(range(4)).items() - logs(range(3)).items()))

    location, store = watched(place, write)
    with pytest.raises(RefusedError) as error:
        check_at_rest(inspect_target(location), quiet_for=0.01)
    assert error.value.message == f"{place} is in use: commits/3 changed within 0.01 s (3 changes in all)"
    assert error.value.hint == "stop the query first, or have the restore seal it (seal_running / --seal-running)"


def test_waiting_for_rest(place: Location) -> None:
    """Batch after batch, then none: only then is it at rest, and what is returned is what is there then."""
    plant(place, logs(range(1)))

    def write(operation: str, path: str) -> None:
        if operation == "walk" and store.count("walk") <= 4:
            plant(place, logs(range(store.count("walk"))))

    location, store = watched(place, write)
    target = wait_until_at_rest(location, quiet_for=0, at_most=60)
    assert target.newest_offsets == 3
    assert store.count("walk") == 5


def test_no_rest_within_the_time(place: Location) -> None:
    def write(operation: str, path: str) -> None:
        if operation == "walk":
            plant(place, {f"offsets/{store.count('walk')}": b"v1\n{}\n1"})

    location, store = watched(place, write)
    with pytest.raises(RefusedError) as error:
        wait_until_at_rest(location, quiet_for=0, at_most=0)
    assert error.value.message == f"{place} is still written to 0 s after it was sealed"
    assert error.value.hint == ("stop the query by other means, then run the same command again: it goes on from here")
