"""Backups that somebody holds: no rule lets them go until they are released."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import (
    Verified,
    hold,
    holds,
    record_outcome,
    release,
    verifications,
)
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.errors import RefusedError, RepositoryError
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, stream
from tests.support.checkpoints import contents, plant
from tests.support.repository_histories import DAYS, dated, left, opened, plan, why
from tests.support.watched_stores import watched


class TestHolds:
    def test_a_held_backup_stays_until_it_is_released(self, place: Location) -> None:
        made = dated(place, DAYS)
        hold(opened(place), made["day4"], reason="audit 7", made_by="ann")
        planned = plan(place, Policy(last=1))
        assert why(planned, made["day4"]) == ("held: audit 7 (ann)",)
        apply_expire(opened(place), planned)
        assert left(place, made) == {"day0", "day4"}
        release(opened(place), made["day4"], reason="audit is over")
        apply_expire(opened(place), plan(place, Policy(last=1)))
        assert left(place, made) == {"day0"}
        assert not [path for path in contents(place / "backups") if path.startswith("holds/")]

    def test_events_are_in_order_whatever_the_clocks_say(self, place: Location) -> None:
        made = dated(place, DAYS)
        for _ in range(11):
            hold(opened(place), made["day4"], reason="on")
            release(opened(place), made["day4"], reason="off")
        hold(opened(place), made["day4"], reason="last")
        word = holds(opened(place), "orders")[made["day4"].backup_id]
        assert (word.number, word.is_held, word.reason) == (23, True, "last")

    def test_half_a_file_of_a_process_that_was_killed(self, place: Location) -> None:
        made = dated(place, DAYS)
        hold(opened(place), made["day4"], reason="audit")
        for kind in ("holds", "audit"):
            path = f"{kind}/orders/{made['day4'].backup_id}" if kind == "holds" else kind
            (place / "backups").create(f"{path}/.000009.json.e2c0228f-f315-4f18-b823-31dbcd289c8c.tmp", b'{"ev')
        assert holds(opened(place), "orders")[made["day4"].backup_id].number == 1
        assert list(opened(place).records()) == []
        apply_expire(opened(place), plan(place, Policy(last=1)), made_by="x")
        assert left(place, made) == {"day0", "day4"}
        assert opened(place).audit("x") is not None

    def test_another_expire_forgets_them_while_they_are_read(self, place: Location) -> None:
        made = dated(place, DAYS)
        for day in ("day3", "day4"):
            hold(opened(place), made[day], reason="audit")

        def forget(operation: str, path: str) -> None:
            if operation == "read" and f"/holds/orders/{made['day4'].backup_id}/" in path:
                (place / "backups").delete(path.partition("/backups/")[2])

        seen, _ = watched(place / "backups", forget)
        assert set(holds(Repository(seen, ""), "orders")) == {made["day3"].backup_id}

    def test_twice_is_once(self, place: Location) -> None:
        made = dated(place, DAYS)
        first = hold(opened(place), made["day4"], reason="a")
        assert hold(opened(place), made["day4"], reason="b") == first
        assert release(opened(place), made["day3"], reason="never held").is_held is False

    def test_a_reason_is_asked_for(self, place: Location) -> None:
        made = dated(place, DAYS)
        with pytest.raises(RefusedError, match="a hold without a reason"):
            hold(opened(place), made["day4"], reason=" ")

    def test_held_while_the_expire_runs(self, place: Location) -> None:
        made = dated(place, DAYS)
        planned = plan(place, Policy(last=1))
        hold(opened(place), made["day4"], reason="just in time")
        outcome = apply_expire(opened(place), planned)
        assert outcome.held_meanwhile == (("orders", made["day4"].backup_id),)
        assert left(place, made) == {"day0", "day4"}

    @pytest.mark.parametrize("at", range(1, 9))
    def test_held_at_any_request_of_the_expire(self, place: Location, at: int) -> None:
        made = dated(place, {"day0": timedelta(), "day1": timedelta(days=1)})
        planned = plan(place, Policy(last=1))
        requests = []
        said: list[str] = []

        def meddle(operation: str, path: str) -> None:
            requests.append(operation)
            if len(requests) == at:
                try:
                    hold(opened(place), made["day1"], reason="now")
                    said.append("held")
                except RefusedError as e:
                    said.append(e.message)

        seen, _ = watched(place / "backups", meddle)
        apply_expire(Repository(seen, "r"), planned)
        assert (left(place, made) == {"day0", "day1"}) is (said == ["held"])
        if said != ["held"]:
            assert not said or "is being removed" in said[0] or "holds no backup" in said[0]

    def test_a_hold_that_cannot_be_read_stops_everything(self, place: Location) -> None:
        made = dated(place, DAYS)
        plant(place / "backups", {f"holds/orders/{made['day4'].backup_id}/000001.json": b"{"})
        with pytest.raises(RefusedError, match=r"000001.json cannot be read"):
            plan(place, Policy(last=1))


class TestNumbersOfHolds:
    def held(self, place: Location, manifest: Manifest, name: str) -> None:
        event = {"event": "held", "reason": "x", "made_by": "m", "at": "t"}
        (place / "backups").create(f"holds/orders/{manifest.backup_id}/{name}.json", json.dumps(event).encode())

    def test_the_one_after_the_last_of_six_digits(self, place: Location) -> None:
        manifest = back_up(place, stream()).manifest
        self.held(place, manifest, "999999")
        assert release(opened(place), manifest, reason="over").number == 1_000_000
        assert not holds(opened(place), "orders")[manifest.backup_id].is_held
        assert release(opened(place), manifest, reason="over").number == 1_000_000
        assert hold(opened(place), manifest, reason="again").number == 1_000_001

    @pytest.mark.parametrize("name", ["1", "0000001", "x", "\u00b2", "\u0661"])
    def test_a_name_without_a_number_is_named(self, place: Location, name: str) -> None:
        """It would stand for another event, or for none."""
        manifest = back_up(place, stream()).manifest
        self.held(place, manifest, name)
        with pytest.raises(RepositoryError, match="has no number of an event"):
            plan_expire(opened(place), Policy(last=1))

    def test_the_newest_note_of_a_verify(self, place: Location) -> None:
        manifest = back_up(place, stream()).manifest
        (place / "backups").create(f"verified/orders/{manifest.backup_id}/999999-contents.json", b"{}")
        record_outcome(opened(place), "orders", manifest.backup_id, Verified.DAMAGED, {})
        assert verifications(opened(place), "orders") == {manifest.backup_id: Verified.DAMAGED}

    @pytest.mark.parametrize(
        ("noted", "is_damaged", "now"),
        [
            (Verified.DAMAGED, False, None),  # repaired since
            (Verified.DAMAGED, True, Verified.DAMAGED),
            (Verified.CONTENTS, True, Verified.DAMAGED),
            (Verified.CONTENTS, False, Verified.CONTENTS),
            (None, False, None),
        ],
    )
    def test_what_is_known_now(self, noted: Verified | None, is_damaged: bool, now: Verified | None) -> None:
        assert Verified.now(noted, is_damaged=is_damaged) is now
