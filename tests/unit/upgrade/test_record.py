"""The record of an upgrade: one at a time, each step once, and nothing is read into notes that are missing or of another."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError, RepositoryError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.upgrade.record import (
    Event,
    Upgrade,
    begin_upgrade,
    end_upgrade,
    is_needed,
    newest_upgrade,
    note,
    upgrade_of,
)
from tests.support.upgrade_records import RUN, begun
from tests.support.watched_stores import watched


def test_half_a_note_of_a_process_that_was_killed(kept: Repository) -> None:
    kept.location.create("upgrades/orders/.000001.json.e2c0228f-f315-4f18-b823-31dbcd289c8c.tmp", b'{"ev')
    assert newest_upgrade(kept, "orders") is None


def test_one_at_a_time(kept: Repository) -> None:
    begun(kept)
    with pytest.raises(RefusedError, match=r"orders is being upgraded by upgrade_orders/run 1"):
        begun(kept, "other/run")
    assert begun(kept).number == 1  # the same run, tried again
    note(kept, begun(kept), Event.ENDED)
    assert begun(kept, "other/run").upgrade_id == "other/run"


def test_who_comes_second_sees_who_was_first(kept: Repository, place: Location) -> None:
    """Both have seen that nobody upgrades; the other one writes first."""

    def meddle(operation: str, path: str) -> None:
        if operation == "create" and "upgrades/" in path and not done:
            done.append(path)
            begun(kept, "other/run")

    done: list[str] = []
    slow, _ = watched(kept.location, meddle)
    with pytest.raises(RefusedError, match="is being upgraded by other/run"):
        begun(Repository.open(slow))


def test_a_step_is_noted_once(kept: Repository) -> None:
    upgrade = note(kept, begun(kept), Event.SEALED, plan_id="a")
    assert note(kept, upgrade, Event.SEALED, plan_id="b").fact(Event.SEALED, "plan_id") == "a"
    # An attempt that has not seen it.
    assert note(kept, begun_before(upgrade), Event.SEALED, plan_id="c").fact(Event.SEALED, "plan_id") == "a"


def test_one_of_an_older_release_is_read(kept: Repository) -> None:
    """Nothing was noted of the way back then."""
    kept.location.create(
        "upgrades/orders/000001.json",
        b'{"event": "begun", "upgrade": "a/1", "at": "2026-01-01T00:00:00+00:00", "mode": "savepoint", "baseline": {}}',
    )
    kept.location.create(
        "upgrades/orders/000002.json",
        b'{"event": "sealed", "upgrade": "a/1", "at": "2026-01-01T00:01:00+00:00", "plan_id": "x"}',
    )
    found = upgrade_of(kept, "orders", "a/1")
    assert (found.accepted, found.obstacles, is_needed(found)) == ((), (), True)


def test_streams_do_not_know_each_other(kept: Repository) -> None:
    begun(kept)
    assert begin_upgrade(kept, "invoices", "other/run").name == "invoices"
    assert newest_upgrade(kept, "payments") is None


def test_one_that_cannot_be_read(kept: Repository) -> None:
    begun(kept)
    kept.location.replace("upgrades/orders/000001.json", b"{")
    with pytest.raises(RepositoryError, match=r"upgrades/orders/000001\.json cannot be read"):
        begun(kept)


@pytest.mark.parametrize("missing", [1, 3, 4])
def test_a_note_that_is_missing(kept: Repository, missing: int) -> None:
    """Nobody takes the stream, and no step of an earlier upgrade counts for this one."""
    note(kept, begun(kept), Event.ENDED)
    upgrade = note(kept, begun(kept, "other/run"), Event.STOPPING)
    note(kept, upgrade, Event.SEALED, plan_id="a")
    if missing == 1:  # nothing is left of the first upgrade, nor of the beginning of the second
        for number in (2, 3):
            kept.location.delete(f"upgrades/orders/{number:06d}.json")
    kept.location.delete(f"upgrades/orders/{missing:06d}.json")
    with pytest.raises(RepositoryError, match=rf"upgrades/orders/00000{max(missing, 3)}\.json is missing") as refused:
        begun(kept, "third/run")
    assert "of the upgrade of orders by other/run: put it back" in (refused.value.hint or "")


def test_a_note_of_another_upgrade(kept: Repository) -> None:
    begun(kept)
    stranger = b'{"event": "kept", "upgrade": "other/run", "at": "2026-01-01T00:00:00+00:00"}'
    kept.location.create("upgrades/orders/000002.json", stranger)
    with pytest.raises(RepositoryError, match=r"000001\.json is a note of upgrade_orders/run 1, in the middle"):
        begun(kept)


def test_what_has_ended_is_not_gone_on_with(kept: Repository) -> None:
    note(kept, begun(kept), Event.ENDED)
    with pytest.raises(RefusedError, match="has no upgrade of orders under way: it has ended"):
        upgrade_of(kept, "orders", RUN)


def test_its_end_is_audited_once(kept: Repository) -> None:
    for kind in ("kept", "by hand"):
        ended = end_upgrade(kept, begun_now(kept), kind=kind, made_by=RUN, reason="2.7")
        assert ended.fact(Event.ENDED, "kind") == "kept"
    [record] = kept.records()
    assert (record["kind"], record["name"], record["ended"], record["reason"]) == (
        "upgrade",
        "orders",
        "kept",
        "2.7",
    )


def begun_before(upgrade: Upgrade) -> Upgrade:
    return Upgrade(upgrade.name, upgrade.upgrade_id, 1, {Event.BEGUN: upgrade.events[Event.BEGUN]})


def begun_now(kept: Repository) -> Upgrade:
    """The newest upgrade, or a first one."""
    return newest_upgrade(kept, "orders") or begun(kept)
