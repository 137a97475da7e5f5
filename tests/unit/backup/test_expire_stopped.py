"""expire that is paused, or stopped anywhere: nothing is removed that was held meanwhile, and the same again ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_ckpt_provider.backup.damaged import learn_damaged
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import ExpirePlan
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import (
    Hold,
    HoldEvent,
    hold,
    holds,
    release,
)
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import plant
from tests.support.repository_histories import DAYS, dated, left, opened, plan
from tests.support.watched_stores import Killed, Life, watched


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
        own = made["new"].files[0]._replace(object="objects/orders/aa/new")
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
