"""expire: what stays whatever the rules say, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.backup.damaged import learn_damaged
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import ExpirePlan
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import (
    Hold,
    HoldEvent,
    Verified,
    hold,
    holds,
    note_verification,
    record_verification,
    release,
    verifications,
    write_event,
)
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import NoSuchBackupError, RefusedError, StorageError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of
from airflow_ckpt_provider.verdict import Usefulness, Verdict
from tests.support.backups import back_up, stream
from tests.support.checkpoints import contents, plant
from tests.support.repository_histories import DAYS, NOW, dated, left, opened, plan, why
from tests.support.spoiled import overwrite, spoil
from tests.support.watched_stores import watched

RELEASED = Hold(HoldEvent.RELEASED, 0, "", "", "")


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
    assert f"| {made['day4'].backup_id} | **removed** | no rule keeps it |" in markdown
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

    def test_nor_does_a_drill_take_that_of_a_later_one(self, place: Location) -> None:
        made = dated(place, DAYS)
        for backup, at in ((made["day3"], NOW + timedelta(days=300)), (made["day2"], NOW - timedelta(days=1))):
            record = {"proven_at": at.isoformat(), "report": {}}
            path = f"drills/{backup.name}/{backup.backup_id}/{at:%Y%m%dT%H%M%SZ}.json"
            (place / "backups").create(path, json.dumps(record).encode())
        planned = plan(place, Policy(last=1))
        assert why(planned, made["day3"]) == ("a drill dated in the future has proven it",)
        assert why(planned, made["day2"]) == ("the last that a drill has proven",)
        (finding,) = planned.findings
        assert finding.startswith(f"a drill of backup {made['day3'].backup_id} of orders is dated ")

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
            own = manifest.files[0]._replace(object=f"objects/orders/aa/{word}")
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
                files.append(entry._replace(object=path))
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
