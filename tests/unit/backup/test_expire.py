"""expire: what stays whatever the rules say, what is refused, and that it may be stopped anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.backup.damaged import learn_damaged
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import ExpirePlan, plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import (
    Hold,
    HoldEvent,
    Verified,
    hold,
    holds,
    note_verification,
    record_outcome,
    record_verification,
    release,
    verifications,
    write_event,
)
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import NoSuchBackupError, RefusedError, RepositoryError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of
from airflow_ckpt_provider.verdict import Usefulness, Verdict
from tests.support.backups import back_up, stream
from tests.support.checkpoints import contents, plant
from tests.support.repository_histories import NOW, dated, left, opened
from tests.support.spoiled import overwrite, spoil
from tests.support.watched_stores import Killed, Life, watched

DAYS = {f"day{n}": timedelta(days=n) for n in range(5)}


def plan(place: Location, policy: Policy, **options: Any) -> ExpirePlan:
    return plan_expire(opened(place), policy, **{"now": NOW + timedelta(hours=1), **options})


def why(made: ExpirePlan, manifest: Manifest) -> tuple[str, ...]:
    (found,) = (d.reasons for d in made.decisions if d.backup.backup_id == manifest.backup_id)
    return found


def test_plan_and_apply(place: Location) -> None:
    made = dated(place, DAYS)
    before = contents(place / "backups")
    planned = plan(place, Policy(last=2))
    assert contents(place / "backups") == before, "a plan changes nothing"
    assert [d.keep for d in planned.decisions] == [True, True, False, False, False]
    assert why(planned, made["day0"]) == ("last backup", "newest that may be replayable")
    assert why(planned, made["day1"]) == ("last backup",)
    assert why(planned, made["day2"]) == ("no rule keeps it",)
    assert planned.verdict is Verdict.SAFE
    assert planned.steps[2] == "remove 3 manifests, oldest first"
    assert json.loads(json.dumps(planned.to_json())) == planned.to_json()
    markdown = planned.to_markdown()
    assert f"| {made['day4'].backup_id} | **goes** | no rule keeps it |" in markdown
    assert "keep-last 2" in markdown

    outcome = apply_expire(opened(place), planned, made_by="me", reason="tidy")
    assert left(place, made) == {"day0", "day1"}
    assert [backup_id for _, backup_id in outcome.removed] == [made[f"day{n}"].backup_id for n in (4, 3, 2)]
    record, begun = opened(place).records()
    assert (begun["kind"], begun["reason"], begun["removing"]) == ("expire begun", "tidy", record["removed"])
    assert (record["kind"], record["made_by"], record["reason"]) == ("expire", "me", "tidy")
    assert record["policy"] == {"last": 2}
    assert plan(place, Policy(last=2)).going == ()
    assert contents(place / "backups").keys() >= {file_of(e.object) for e in made["day0"].files}


def test_an_empty_policy_is_refused(place: Location) -> None:
    dated(place, DAYS)
    with pytest.raises(RefusedError, match="the policy is empty"):
        plan(place, Policy())
    with pytest.raises(RefusedError, match="the policy is empty"):
        plan(place, Policy.parse({"last": 0, "daily": None, "tag": []}))


def test_a_policy_that_would_remove_all_of_a_stream_is_refused(place: Location) -> None:
    made = dated(place, DAYS)
    with pytest.raises(RefusedError, match=r"the policy \(keep-tag a=b\) would keep none of the 5 backups of orders"):
        plan(place, Policy(tags=(("a=b",),)))
    assert len(left(place, made)) == 5


def test_tags_of_one_stream_are_no_tags_of_another(place: Location) -> None:
    made = dated(place, DAYS, tags={"day3": {"a": "b"}})
    planned = plan(place, Policy(tags=(("a=b",),)))
    assert {d.backup.backup_id for d in planned.kept} == {made["day3"].backup_id, made["day0"].backup_id}
    back_up(place, name="other")
    with pytest.raises(RefusedError, match="none of the 1 backups of other"):
        plan(place, Policy(tags=(("a=b",),)), now=NOW + timedelta(days=3650))
    assert len(plan(place, Policy(tags=(("a=b",),)), name="orders").kept) == 2


def test_names(place: Location) -> None:
    dated(place, DAYS)
    with pytest.raises(NoSuchBackupError, match="holds no backup of nobody"):
        plan(place, Policy(last=1), name="nobody")


class TestTheFutureIsSomebodysWrongClock:
    def test_it_stays_is_named_and_takes_nobodys_place(self, place: Location) -> None:
        made = dated(place, {**DAYS, "ahead": -timedelta(days=300), "far ahead": -timedelta(days=3000)})
        planned = plan(place, Policy(last=2))
        assert why(planned, made["ahead"]) == ("dated in the future",)
        assert len(planned.findings) == 2
        assert "a clock is wrong; it stays, and the rules go by the others" in planned.findings[0]
        apply_expire(opened(place), planned)
        assert left(place, made) == {"ahead", "far ahead", "day0", "day1"}

    def test_within_goes_by_the_newest_that_is_not_of_the_future(self, place: Location) -> None:
        made = dated(place, {**DAYS, "ahead": -timedelta(days=300)})
        apply_expire(opened(place), plan(place, Policy.parse({"within": "2d"})))
        assert left(place, made) == {"ahead", "day0", "day1"}

    def test_clocks_that_differ_by_seconds_are_no_finding(self, place: Location) -> None:
        """Also for a backup that was finished while the expire was made: another host's clock is never the same."""
        made = dated(place, {**DAYS, "just now": -timedelta(hours=1, minutes=4)})
        planned = plan(place, Policy(last=1))
        assert planned.findings == ()
        assert {d.backup.backup_id for d in planned.kept} == {made["just now"].backup_id}

    @pytest.mark.parametrize("rules", [{"last": 1}, {"daily": 1}, {"within": "1h"}])
    def test_the_newest_is_the_one_with_the_last_id(self, place: Location, rules: dict[str, Any]) -> None:
        """Somebody's clock was ahead by an hour when the older one was made, and that hour has passed since."""
        made = dated(
            place,
            {"ahead": timedelta(0), "newest": timedelta(hours=1)},
            after={"newest": timedelta(hours=1, seconds=1)},
        )
        assert opened(place).manifest().backup_id == made["newest"].backup_id
        planned = plan(place, Policy.parse(rules), now=NOW + timedelta(hours=2))
        assert planned.decisions[0].backup.backup_id == made["newest"].backup_id
        assert planned.decisions[0].keep

    def test_a_day_has_one_place_in_the_rules_though_a_clock_was_wrong(self, place: Location) -> None:
        days = {"day3": 3, "ahead": 0, "day1": 1, "day0": 0}
        made = dated(
            place,
            {name: timedelta(days=n) for name, n in days.items()},
            after={"day1": timedelta(days=1, seconds=1), "day0": timedelta(seconds=2)},
        )
        apply_expire(opened(place), plan(place, Policy(daily=3)))
        assert left(place, made) == {"day0", "day1", "day3"}

    def test_our_own_clock_is_behind(self, place: Location) -> None:
        made = dated(place, DAYS)
        planned = plan(place, Policy(last=1), now=NOW - timedelta(days=2, hours=1))
        assert {d.backup.backup_id for d in planned.going} == {made["day4"].backup_id}


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


class TestVerified:
    def test_the_newest_verified_stays(self, place: Location) -> None:
        made = dated(place, DAYS)
        for word, data in (("day4", ReadData()), ("day3", None), ("day2", ReadData(1, 1)), ("day1", None)):
            record_verification(opened(place), verify_backup(opened(place), made[word], read_data=data))
        planned = plan(place, Policy(last=1))
        assert why(planned, made["day1"]) == ("newest verified",)
        assert why(planned, made["day2"]) == ("newest with all contents verified",)
        assert {d.backup.backup_id for d in planned.going} == {made[w].backup_id for w in ("day3", "day4")}

    def test_found_damaged_since_it_is_not_verified_any_more(self, place: Location) -> None:
        made = dated(place, DAYS)
        entry = made["day0"].files[0]
        for word in ("day2", "day1"):
            record_verification(opened(place), verify_backup(opened(place), made[word], read_data=ReadData()))
        content = (place / "backups").read(entry.object)
        spoil(place / "backups", entry)
        record_verification(opened(place), verify_backup(opened(place), made["day1"], read_data=ReadData()))
        found = verifications(opened(place), "orders")
        assert found == {made["day1"].backup_id: Verified.DAMAGED, made["day2"].backup_id: Verified.CONTENTS}
        # All of them list the object. That it is right again is not known before it was read.
        overwrite(place / "backups", entry.object, content)
        record_verification(opened(place), verify_backup(opened(place), made["day1"]))
        with pytest.raises(RefusedError, match="no backup of orders is known to be whole, and 4 would go"):
            plan(place, Policy(last=1))
        record_verification(opened(place), verify_backup(opened(place), made["day3"], read_data=ReadData()))
        assert why(plan(place, Policy(last=1)), made["day2"]) == (
            "newest verified",
            "newest with all contents verified",
        )
        record_verification(opened(place), verify_backup(opened(place), made["day1"]))
        assert verifications(opened(place), "orders")[made["day1"].backup_id] is Verified.STRUCTURE

    def test_without_the_right_to_write_it_is_said_and_no_fault(
        self, place: Location, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = dated(place, DAYS)

        def forbid(operation: str, path: str) -> None:
            if operation in ("create", "replace"):
                raise StorageError("could not create it: Access Denied.")

        seen, _ = watched(place / "backups", forbid)
        assert note_verification(Repository(seen, "r"), verify_backup(opened(place), made["day1"])) is False
        assert "is not noted: could not create it" in caplog.text


class TestDamaged:
    """Backups that list a damaged object: of each of these, one of its own."""

    def damaged(self, place: Location, made: Mapping[str, Manifest], *words: str) -> None:
        for word in words:
            manifest = made[word]
            own = replace(manifest.files[0], object=f"objects/orders/aa/{word}")
            changed = replace(manifest, files=(own, *manifest.files[1:]))
            plant(place / "backups", {changed.path: changed.to_document()})
            record_verification(opened(place), verify_backup(opened(place), changed))

    def test_they_fill_no_slot_and_stay_while_the_rules_would_keep_them(self, place: Location) -> None:
        made = dated(place, DAYS)
        self.damaged(place, made, "day0", "day2")
        planned = plan(place, Policy(last=2))
        assert why(planned, made["day0"]) == ("damaged, may be repaired: last backup",)
        assert why(planned, made["day1"])[0] == why(planned, made["day3"])[0] == "last backup"
        assert {d.backup.backup_id for d in planned.going} == {made["day2"].backup_id, made["day4"].backup_id}
        assert [d.backup.verified for d in planned.decisions if d.backup.damage] == [Verified.DAMAGED] * 2
        assert sorted(planned.findings)[0].startswith(
            f"backup {made['day2'].backup_id} of orders is damaged: metadata: its object objects/orders/aa/day2 was found"
        )
        apply_expire(opened(place), planned)
        assert left(place, made) == {"day0", "day1", "day3"}

    def test_they_are_neither_replayable_nor_protected(self, place: Location) -> None:
        made = dated(place, DAYS)
        self.damaged(place, made, "day0")
        planned = plan(place, Policy(replayable=1))
        assert why(planned, made["day0"]) == ("damaged, may be repaired: replayable, as far as is known",)
        assert "newest that may be replayable" in why(planned, made["day1"])

    def test_held_they_stay(self, place: Location) -> None:
        made = dated(place, DAYS)
        self.damaged(place, made, "day4")
        hold(opened(place), made["day4"], reason="audit 7")
        assert why(plan(place, Policy(last=1)), made["day4"]) == ("held: audit 7",)

    def test_rules_that_keep_none_of_the_whole_ones(self, place: Location) -> None:
        made = dated(place, DAYS, tags={"day2": {"kind": "release"}})
        self.damaged(place, made, "day2")
        with pytest.raises(RefusedError, match="would keep none of the 4 whole backups of orders"):
            plan(place, Policy(tags=(("kind=release",),)))

    def test_no_whole_one_would_be_left(self, place: Location) -> None:
        made = dated(place, DAYS)
        self.damaged(place, made, *DAYS)
        with pytest.raises(RefusedError, match="no backup of orders is known to be whole, and 4 would go") as error:
            plan(place, Policy(last=1))
        assert f"Of the newest, {made['day0'].backup_id}: metadata: its object" in error.value.message
        assert error.value.hint
        assert "take a new backup first" in error.value.hint
        assert plan(place, Policy(last=5)).going == (), "where nothing goes there is nothing to refuse"

    def test_all_that_stay_are_found_damaged_behind_the_plan(self, place: Location) -> None:
        made = dated(place, DAYS)
        planned = plan(place, Policy(last=1))
        self.damaged(place, made, "day0", "day4")
        with pytest.raises(RefusedError, match="was found damaged since the plan was made; nothing of it was removed"):
            apply_expire(opened(place), planned)
        assert left(place, made) == set(DAYS)
        self.damaged(place, made, "day3")
        apply_expire(opened(place), plan(place, Policy(last=1)))
        assert left(place, made) == {"day0", "day1"}


class TestReplayable:
    def ask(self, made: Mapping[str, Manifest], words: Mapping[str, Usefulness]) -> Any:
        by_time = {m.backup_id: words.get(w, Usefulness.UNKNOWN) for w, m in made.items()}
        ids = [made[w].backup_id for w in sorted(made, key=lambda w: made[w].created)]

        def ask(facts: Sequence[Mapping[str, Any]]) -> list[Usefulness]:
            assert len(facts) == len(ids)
            return [by_time[i] for i in ids]

        return ask

    def test_the_newest_replayable_stays(self, place: Location) -> None:
        made = dated(place, DAYS)
        words = dict.fromkeys(DAYS, Usefulness.STATE_ONLY) | {"day3": Usefulness.REPLAYABLE}
        planned = plan(place, Policy(last=1), ask_sources=self.ask(made, words))
        assert why(planned, made["day3"]) == ("newest replayable",)
        assert {d.backup.backup_id for d in planned.kept} == {made["day0"].backup_id, made["day3"].backup_id}

    def test_so_many_of_them_by_the_policy(self, place: Location) -> None:
        made = dated(place, DAYS)
        words = dict.fromkeys(DAYS, Usefulness.REPLAYABLE) | {"day0": Usefulness.DEAD, "day2": Usefulness.STATE_ONLY}
        planned = plan(place, Policy(replayable=2), ask_sources=self.ask(made, words))
        assert why(planned, made["day1"]) == ("replayable", "newest replayable")
        assert why(planned, made["day3"]) == ("replayable",)
        assert {d.backup.backup_id for d in planned.going} == {made[w].backup_id for w in ("day0", "day2", "day4")}

    def test_what_is_not_known_takes_no_place_and_is_not_bad(self, place: Location) -> None:
        made = dated(place, DAYS)
        words = {"day2": Usefulness.REPLAYABLE, "day4": Usefulness.REPLAYABLE}
        planned = plan(place, Policy(replayable=1), ask_sources=self.ask(made, words))
        assert why(planned, made["day0"]) == ("replayable, as far as is known", "newest that may be replayable")
        assert why(planned, made["day2"]) == ("replayable", "newest replayable")
        assert {d.backup.backup_id for d in planned.going} == {made[w].backup_id for w in ("day1", "day3", "day4")}

    def test_nobody_was_asked(self, place: Location) -> None:
        made = dated(place, DAYS)
        assert len(plan(place, Policy(replayable=3)).kept) == 3
        assert why(plan(place, Policy(last=1)), made["day0"])[-1] == "newest that may be replayable"


def test_the_only_copy_of_what_a_restore_replaces_stays_until_it_has_ended(place: Location) -> None:
    plant(place / "orders", stream())
    for plan_id in ("aaaa", "bbbb", "cccc"):
        back_up(place, name="orders.before-restore", tags={"plan": plan_id})
    opened(place).record("aaaa", {"kind": "restore"})
    planned = plan(place, Policy(last=1), now=NOW + timedelta(days=3650))
    reasons = [d.reasons for d in reversed(planned.decisions)]
    assert reasons[0] == ("no rule keeps it",)
    assert reasons[1] == ("restore bbbb has not ended",)
    assert reasons[2][-1] == "restore cccc has not ended"


def test_a_manifest_that_cannot_be_read_stays_and_is_named(place: Location) -> None:
    made = dated(place, DAYS)
    plant(place / "backups", {made["day4"].path: b"{}"})
    planned = plan(place, Policy(last=1))
    assert len(planned.findings) == 1
    assert "is damaged" in planned.findings[0]
    assert planned.findings[0].endswith("; it stays")
    apply_expire(opened(place), planned)
    assert left(place, made) == {"day0", "day4"}


def test_two_at_once(place: Location) -> None:
    made = dated(place, DAYS)
    first, second = plan(place, Policy(last=1)), plan(place, Policy(last=1))
    write_event(opened(place), "orders", made["day4"].backup_id, None, HoldEvent.GOING, "the other", "")
    apply_expire(opened(place), first)
    apply_expire(opened(place), second)
    assert left(place, made) == {"day0"}


class TestSomethingWholeStays:
    """Also by a plan that is not new any more, and of two that keep what the other one removes."""

    def plans(self, place: Location) -> tuple[dict[str, Manifest], ExpirePlan, ExpirePlan]:
        """Two plans, one of which keeps the older backup and one the newer."""
        days = {"new": timedelta(days=0), "old": timedelta(days=1)}
        made = dated(place, days, tags={"old": {"keep": "old"}})

        def lost(facts: Sequence[Mapping[str, Any]]) -> list[Usefulness]:
            return [Usefulness.DEAD for _ in facts]

        first, second = (
            plan(place, policy, ask_sources=lost) for policy in (Policy(last=1), Policy(tags=(("keep=old",),)))
        )
        assert [d.backup.backup_id for d in first.going] == [made["old"].backup_id]
        assert [d.backup.backup_id for d in second.going] == [made["new"].backup_id]
        return made, first, second

    def test_a_plan_whose_kept_backup_has_expired_is_refused(self, place: Location) -> None:
        made, first, second = self.plans(place)
        apply_expire(opened(place), first)
        before = contents(place / "backups")
        with pytest.raises(
            RefusedError, match=r"would stay under the name orders: backup \S+ was removed since the plan"
        ):
            apply_expire(opened(place), second)
        assert contents(place / "backups") == before
        assert left(place, made) == {"new"}

    @pytest.mark.parametrize("at", range(1, 9))
    def test_two_that_cross(self, place: Location, at: int) -> None:
        """The second one runs to its end before each request of the first."""
        made, first, second = self.plans(place)
        requests: list[str] = []
        refused: list[RefusedError] = []

        def other(operation: str, path: str) -> None:
            if "/backups/" not in path:
                return
            requests.append(operation)
            if len(requests) == at:
                try:
                    apply_expire(opened(place), second)
                except RefusedError as e:
                    refused.append(e)

        seen, _ = watched(place / "backups", other)
        try:
            apply_expire(Repository(seen, "r"), first)
        except RefusedError as e:
            refused.append(e)
        assert len(requests) >= at
        assert len(left(place, made)) == 1
        assert len(refused) == 1
        (manifest,) = opened(place).backups("orders")
        assert holds(opened(place), "orders").get(manifest.backup_id, RELEASED).event is HoldEvent.RELEASED
        assert hold(opened(place), manifest, reason="x").is_held

    def test_both_have_said_what_goes(self, place: Location) -> None:
        """Both are refused then, and undo what they said: the next one runs."""
        made, first, _ = self.plans(place)
        write_event(opened(place), "orders", made["new"].backup_id, None, HoldEvent.GOING, "the other", "")
        with pytest.raises(RefusedError) as error:
            apply_expire(opened(place), first)
        assert "`airflow-ckpt release" in str(error.value.hint)
        assert holds(opened(place), "orders")[made["old"].backup_id].event is HoldEvent.RELEASED
        release(opened(place), made["new"], reason="that expire was stopped", dead_expires=["the other"])
        apply_expire(opened(place), first)
        assert left(place, made) == {"new"}

    def test_a_word_that_another_expire_takes_back_lets_nothing_go(self, place: Location) -> None:
        """What is then held stays."""
        made = dated(place, {"new": timedelta(days=0), "old": timedelta(days=1)})
        first = plan(place, Policy(last=1))
        theirs = write_event(opened(place), "orders", made["old"].backup_id, None, HoldEvent.GOING, "the other", "")
        done: list[str] = []

        def other(operation: str, path: str) -> None:
            if operation == "walk" and "/holds/" in path and len(holds(opened(place), "orders")) and not done:
                done.append(path)
                release(opened(place), made["old"], reason="undone", dead_expires=["the other"])
                hold(opened(place), made["old"], reason="an incident")

        seen, _ = watched(place / "backups", other)
        outcome = apply_expire(Repository(seen, "r"), first)
        assert theirs
        assert outcome.held_meanwhile == (("orders", made["old"].backup_id),)
        assert left(place, made) == {"new", "old"}

    @pytest.mark.format_1("it makes objects of its own")
    def test_each_stream_of_a_name_keeps_its_own(self, place: Location) -> None:
        """Where an earlier version has put the backups of another query under the name."""
        made = dated(place, {"new": timedelta(days=0), "old": timedelta(days=1)})
        other = {}
        for word, day in (("other new", "20260312"), ("other old", "20260302")):
            files = []
            for entry in made["new"].files:
                (place / "backups").create(path := f"{entry.object}-{day}", (place / "backups").read(entry.object))
                files.append(replace(entry, object=path))
            m = replace(
                made["new"],
                backup_id=f"{day}T000000Z-b000004",
                query_id="other",
                query_ids=(),
                checkpoint="/elsewhere/orders",
                files=tuple(files),
            )
            (place / "backups").create(m.path, m.to_document())
            other[word] = m
        planned = plan(place, Policy(last=1), ask_sources=lambda facts: [Usefulness.DEAD for _ in facts])
        assert {d.backup.backup_id for d in planned.kept} == {made["new"].backup_id, other["other new"].backup_id}
        learn_damaged(
            place / "backups", "orders", damaged={other["other new"].files[0].object: "content"}, whole=(), since=0
        )
        before = contents(place / "backups")
        with pytest.raises(RefusedError, match="no whole backup of query other of /elsewhere/orders would stay"):
            apply_expire(opened(place), planned)
        assert contents(place / "backups") == before


class TestPausedBeforeItRemoves:
    """An expire that has written what it is about to remove, and meets others before it removes anything."""

    @pytest.fixture
    def made(self, place: Location) -> dict[str, Manifest]:
        return dated(place, {"new": timedelta(days=0), "mid": timedelta(days=1), "old": timedelta(days=2)})

    def keeping(self, place: Location, made: Mapping[str, Manifest], *words: str) -> ExpirePlan:
        planned = plan(place, Policy(last=1))
        ids = {made[word].backup_id for word in words}
        return replace(planned, decisions=tuple(replace(d, keep=d.backup.backup_id in ids) for d in planned.decisions))

    def paused(self, place: Location, meddle: Callable[[], None], *, before: str, since: int = 1) -> Repository:
        """The repository of an expire that is paused directly before a request.

        :param before: the path that it asks for then, or ``delete`` for the first manifest that it deletes.
        :param since: how many audit records there are by then.
        """
        done: list[str] = []

        def look(operation: str, path: str) -> None:
            inside = path.partition("/backups/")[2]
            now = operation == "delete" and inside.startswith("backups/") if before == "delete" else inside == before
            if now and not done and len((place / "backups").walk("audit")) >= since:
                done.append(path)
                meddle()

        return Repository(watched(place / "backups", look)[0], "r")

    def going(self, place: Location, manifest: Manifest) -> Hold:
        return holds(opened(place), "orders")[manifest.backup_id]

    def test_a_refused_expire_takes_back_no_word_of_another(self, place: Location, made: dict[str, Manifest]) -> None:
        first, second = self.keeping(place, made, "new"), self.keeping(place, made, "mid")
        seen: list[str] = []

        def meddle() -> None:
            before = self.going(place, made["old"])
            with pytest.raises(RefusedError, match="is being removed by another expire"):
                apply_expire(opened(place), second)
            word = self.going(place, made["old"])
            assert (word.event, word.expires) == (HoldEvent.GOING, before.expires), "the first one's"
            assert self.going(place, made["new"]).event is HoldEvent.RELEASED, "its own word"
            with pytest.raises(RefusedError, match="is being removed") as error:
                hold(opened(place), made["old"], reason="legal")
            seen.append(error.value.message)

        apply_expire(self.paused(place, meddle, before="claims/orders"), first)
        assert seen
        assert left(place, made) == {"new"}

    def test_two_that_are_both_refused_leave_no_word(self, place: Location, made: dict[str, Manifest]) -> None:
        """The second has said of the same backup that it goes before the first takes its word back."""
        first, second = self.keeping(place, made, "new"), self.keeping(place, made, "new")
        whole = {entry.object: "content" for entry in made["new"].files}
        refused: list[RefusedError] = []

        def damage() -> None:
            learn_damaged(place / "backups", "orders", damaged=whole, whole=(), since=0)

        def meddle() -> None:
            with pytest.raises(RefusedError) as error:
                apply_expire(self.paused(place, damage, before="claims/orders", since=2), second)
            refused.append(error.value)

        with pytest.raises(RefusedError):
            apply_expire(self.paused(place, meddle, before="claims/orders"), first)
        assert refused
        assert left(place, made) == {"new", "mid", "old"}
        for word in ("mid", "old"):
            assert self.going(place, made[word]).event is HoldEvent.RELEASED

    @pytest.mark.parametrize("word", ["mid", "old"])
    def test_a_hold_that_was_granted_counts(self, place: Location, made: dict[str, Manifest], word: str) -> None:
        """Somebody took the expire for dead, released the backup and held it."""

        def meddle() -> None:
            dead = self.going(place, made[word]).expires
            release(opened(place), made[word], reason="it stays", dead_expires=dead)
            assert hold(opened(place), made[word], reason="legal").is_held

        planned = self.keeping(place, made, "new")
        outcome = apply_expire(self.paused(place, meddle, before="claims/orders"), planned)
        assert left(place, made) == {"new", word}
        assert outcome.held_meanwhile == (("orders", made[word].backup_id),)
        assert self.going(place, made[word]).is_held, "its notes stay"

    def test_a_hold_that_was_granted_after_the_first_removal_counts(
        self, place: Location, made: dict[str, Manifest]
    ) -> None:
        def meddle() -> None:
            dead = self.going(place, made["mid"]).expires
            release(opened(place), made["mid"], reason="it stays", dead_expires=dead)
            hold(opened(place), made["mid"], reason="legal")

        apply_expire(self.paused(place, meddle, before="delete"), self.keeping(place, made, "new"))
        assert left(place, made) == {"new", "mid"}

    def test_the_last_whole_backup_stays(self, place: Location, made: dict[str, Manifest]) -> None:
        """What was to stay is removed by another expire, which took the first one for dead."""
        first, second = self.keeping(place, made, "new"), self.keeping(place, made, "old", "mid")

        def meddle() -> None:
            for word in ("old", "mid"):
                dead = self.going(place, made[word]).expires
                release(opened(place), made[word], reason="that one is dead", dead_expires=dead)
            apply_expire(opened(place), second)

        with pytest.raises(
            RefusedError, match=r"backup \S+ was removed since the plan was made; nothing of it was rem"
        ):
            apply_expire(self.paused(place, meddle, before="claims/orders"), first)
        assert left(place, made) == {"old", "mid"}

    def test_damage_that_is_found_between_two_removals(self, place: Location, made: dict[str, Manifest]) -> None:
        own = replace(made["new"].files[0], object="objects/orders/aa/new")
        changed = replace(made["new"], files=(own, *made["new"].files[1:]))
        plant(place / "backups", {changed.path: changed.to_document(), own.object: b"x"})

        def meddle() -> None:
            learn_damaged(place / "backups", "orders", damaged={own.object: "content"}, whole=(), since=0)

        with pytest.raises(RefusedError, match="was found damaged since the plan was made; what is left of it stays"):
            apply_expire(self.paused(place, meddle, before="delete"), self.keeping(place, made, "new"))
        assert left(place, made) == {"new", "mid"}
        assert hold(opened(place), made["mid"], reason="the last whole one").is_held
        record = next(opened(place).records())
        assert [each["backup_id"] for each in record["removed"]] == [made["old"].backup_id]

    def test_a_release_asks_for_the_expires_that_are_dead(self, place: Location, made: dict[str, Manifest]) -> None:
        """Also of several, the later of which have said what the earlier have said."""
        backup_id, repository = made["old"].backup_id, opened(place)
        for _ in range(2):  # each has said that it goes
            seen, _ = watched(place / "backups", Life(1).before)
            with pytest.raises(Killed):
                apply_expire(Repository(seen, "r"), self.keeping(place, made, "new", "mid"))
        expires = self.going(place, made["old"]).expires
        assert len(expires) == 2
        for dead in ((), expires[:1], expires[1:], ("other",)):
            with pytest.raises(RefusedError, match=f"backup {backup_id} of orders is being removed") as error:
                release(repository, made["old"], reason="it stays", dead_expires=dead)
            assert all(f"--expire-is-dead {each}" in str(error.value.hint) for each in expires)
        assert release(repository, made["old"], reason="it stays", dead_expires=expires).is_held is False
        assert hold(repository, made["old"], reason="it stays").is_held


RELEASED = Hold(HoldEvent.RELEASED, 0, "", "", "")


@pytest.mark.parametrize("writes", range(12))
def test_stopped_anywhere_the_rest_is_whole_and_the_same_again_ends_it(place: Location, writes: int) -> None:
    made = dated(place, DAYS)
    life = Life(writes)
    seen, _ = watched(place / "backups", life.before)
    try:
        apply_expire(Repository(seen, "r"), plan(place, Policy(last=2)))
    except Killed:
        pass
    else:
        assert writes > 7
    assert left(place, made) >= {"day0", "day1"}
    for manifest in opened(place).backups("orders"):
        assert verify_backup(opened(place), manifest, read_data=ReadData()).ok
    apply_expire(opened(place), plan(place, Policy(last=2)))
    assert left(place, made) == {"day0", "day1"}


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
