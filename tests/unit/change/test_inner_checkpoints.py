"""A checkpoint of another query inside the one that is changed: nobody has stopped that query, so no file of it is touched."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, stream
from tests.support.checkpoints import Files, contents, metadata, plant
from tests.support.killed_changes import after_first_change, is_sealed, killed
from tests.support.kinds_of_changes import SINK, VERBS, held, orders

OTHER = {**stream(2, partitions=1), "metadata": metadata("0b000000-0000-4000-8000-0000000000ff")}
REFUSED = r"orders/by_day/invoices is the checkpoint of another query, which nobody has stopped"


def plant_inner(here: Location, files: Files = OTHER) -> Location:
    return plant(orders(here) / "by_day/invoices", files)


@pytest.mark.parametrize("left_out", ["metadata", "offsets", "commits", ""])
@pytest.mark.parametrize("name", ["reset", "restore"])
def test_the_plan_is_refused(place: Location, name: str, left_out: str) -> None:
    """Also where the inner one has just been started, or lacks a part."""
    verb = VERBS[name]
    here = verb.begin(place)
    plant_inner(here, {p: data for p, data in OTHER.items() if PurePosixPath(p).parts[0] != left_out})
    before = contents(orders(here))
    with pytest.raises(RefusedError, match=REFUSED) as error:
        verb.carry_out(here)
    assert error.value.hint
    assert contents(orders(here)) == before


def test_a_rewind_to_a_backup_is_refused(place: Location) -> None:
    backup = back_up(place, stream(2, partitions=1)).manifest.backup_id
    plant_inner(place)
    with pytest.raises(RefusedError, match=REFUSED):
        plan_rewind(
            Checkpoint.at(orders(place)),
            Specifier("to_batch", "2"),
            sink=SINK,
            sink_exit=SinkPolicy.ACCEPT,
            repository=held(place).location,
            guards=(),
            backup=backup,
        )


@pytest.mark.parametrize("name", ["rewind", "repair"])
def test_a_change_that_touches_only_its_own_files_is_not(place: Location, name: str) -> None:
    verb = VERBS[name]
    here = verb.begin(place)
    inner = plant_inner(here)
    before = verb.changed(here)
    verb.carry_out(here)
    assert contents(inner) == OTHER
    verb.take_back(here)
    assert verb.changed(here) == before


@pytest.mark.parametrize("name", ["reset", "restore"])
@pytest.mark.parametrize("undone", [False, True])
def test_one_that_appears_half_way_stops_the_change_until_it_is_moved(place: Location, name: str, undone: bool) -> None:
    verb = VERBS[name]
    here = verb.begin(place)
    assert killed(after_first_change(verb, here), here, 10_000)
    inner = plant_inner(here)
    finish = verb.take_back if undone else verb.carry_out
    with pytest.raises(RefusedError, match=REFUSED):
        finish(here)
    assert contents(inner) == OTHER
    assert is_sealed(contents(orders(here)))
    for path in inner.walk():
        inner.delete(path)
    finish(here)
    assert not is_sealed(contents(orders(here)))
