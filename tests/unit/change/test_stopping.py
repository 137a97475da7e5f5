"""A seal, or a word that the query is stopped, counts only until the stream could have been started again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_ckpt_provider.change.attempts import attempts_place
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.sealing import put_seal, unseal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    ChangeRunningError,
    QueryNotStoppedError,
    RefusedError,
)
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from tests.support import kinds_of_changes as verbs
from tests.support.checkpoints import commit_log, offsets_log, plant
from tests.support.killed_changes import (
    dies_half_way,
    is_sealed,
    killed,
    started,
    without_seals,
)
from tests.support.kinds_of_changes import VERBS, held, names, orders
from tests.support.later_clocks import InAnHour
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, watched


class TestStoppingTheQuery:
    def test_a_seal_that_was_lifted_after_the_proof_proves_nothing_any_more(self, place: Location) -> None:
        """Whoever lifted it may have started the query, which has not written yet."""
        verb = VERBS["rewind"]
        here = verb.begin(place)
        before = verb.changed(here)
        lifted = []

        def plan(seal_id: str | None) -> Any:
            made = verbs._plan_rewind(here, seal_id)
            lifted.append(unseal(Checkpoint.at(orders(here)), for_start=True, begun=lambda _: False))
            return made

        with pytest.raises(RefusedError, match="lifted"):
            verbs.stop_and_apply(here, plan, verbs.rewind_applier(here), change="rewind")
        assert lifted[0]
        assert verb.changed(here) == before

    @pytest.mark.parametrize("number", range(1, 6))
    def test_an_attempt_that_was_refused_does_not_lift_the_seal_of_the_next_one(
        self, place: Location, number: int
    ) -> None:
        """It is suspended before one of the requests that lift its own seal, which the next one has taken over by then."""
        verb = VERBS["reset"]
        here = verb.begin(place)
        asked: list[str] = []
        refused: list[RefusedError] = []

        def pause(operation: str, path: str) -> None:
            if refused and path.startswith(orders(here).root):
                asked.append(operation)
                if len(asked) == number:
                    dying = watched(here, dies_half_way(verb, here))[0]
                    assert killed(lambda _: verbs._stop_and_reset(dying), here, 10_000)

        def apply(*_: object, **__: object) -> None:
            refused.append(RefusedError("another plan was approved"))
            raise refused[0]

        stale = watched(here, pause)[0]
        with pytest.raises(RefusedError, match="another plan was approved"):
            verbs.stop_and_apply(stale, functools.partial(verbs._plan_reset, stale), apply, change="reset")
        assert len(asked) >= number
        assert is_sealed(verb.changed(here))

    def test_a_plan_that_does_not_fit_any_more_leaves_no_seal(self, place: Location) -> None:
        verb = VERBS["rewind"]
        here = verb.begin(place)

        def plan(seal_id: str | None) -> Any:
            made = verbs._plan_rewind(here, seal_id)
            plant(orders(here), {"state/0/0/late.delta": b"late"})
            return made

        with pytest.raises(RefusedError, match="is not any more what plan"):
            verbs.stop_and_apply(here, plan, verbs.rewind_applier(here), change="rewind")
        assert not is_sealed(verb.changed(here))

    def test_two_plans_under_one_seal_do_not_remove_what_only_the_other_one_would_keep(self, place: Location) -> None:
        """The first one, to batch 1, dies half-way; the second one, to batch 0, had planned before it began."""
        verb = VERBS["rewind"]
        here = verb.begin(place)
        before = verb.changed(here)

        def rewind(batch: int, here: Location, meanwhile: Callable[[], Any] = lambda: None) -> None:
            def apply(plan: RewindPlan, **how: Any) -> Any:
                meanwhile()
                return verbs.rewind_applier(here)(plan, **how)

            plan = functools.partial(verbs._plan_rewind, here, batch=batch)
            verbs.stop_and_apply(here, plan, apply, change="rewind")

        def begin() -> None:
            with pytest.raises(Killed):
                rewind(1, watched(here, dies_half_way(verb, here))[0])

        with pytest.raises(RefusedError, match=r"attempt \d+ of .* has begun plan \w+ \(rewind to batch 1\)"):
            rewind(0, here, meanwhile=begin)
        assert is_sealed(verb.changed(here))
        verb.take_back(here)
        assert verb.changed(here) == before

    def test_what_was_set_aside_under_the_same_id_before_is_not_taken_for_a_copy(self, place: Location) -> None:
        """A person seals under an id of theirs, again and again, and the stream runs in between."""
        verb = VERBS["restore"]
        here = verb.begin(place)
        for again in (False, True):
            put_seal(orders(here), 7, plan_id="beef", reason="a maintenance", made_by="me")
            plan = verbs._plan_restore(here, seal_id="beef")
            if again:
                now = without_seals(verb.changed(here))
                with pytest.raises(RefusedError, match="plan beef was carried out or begun before"):
                    apply_restore(plan, rest=STOPPED)
                assert without_seals(verb.changed(here)) == now
                return
            apply_restore(plan, rest=STOPPED)
            plant(orders(here), {"offsets/2": offsets_log('{"orders":{"0":7}}'), "commits/2": commit_log()})

    def test_the_seal_stays_for_another_attempt_that_counts_on_it(self, place: Location) -> None:
        verb = VERBS["rewind"]
        here = verb.begin(place)

        def apply(_plan: object, **_how: object) -> None:
            raise ChangeRunningError("it is being changed by attempt 1")

        with pytest.raises(ChangeRunningError):
            verbs.stop_and_apply(here, functools.partial(verbs._plan_rewind, here), apply, change="rewind")
        assert is_sealed(verb.changed(here))


class TestAWordThatWasGivenBeforeAnotherChange:
    """An attempt that was suspended before it planned: meanwhile another one was done, and the stream was started."""

    @pytest.mark.parametrize("refused_since", [False, True])
    @pytest.mark.parametrize("name", ["rewind", "reset", "restore"])
    def test_is_void(self, place: Location, name: str, refused_since: bool) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        asleep = replace(STOPPED, said=Clocks(passed=3600))
        verb.carry_out(here)
        plant(orders(here), {"offsets/9": offsets_log('{"orders":{"0":7}}'), "commits/9": commit_log()})
        if refused_since:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(verbs, "STOPPED", RestRule(wait_at_most=0.0))
                with pytest.raises(QueryNotStoppedError):
                    verb.carry_out(here)
        now = verb.changed(here)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verbs, "STOPPED", asleep)
            with pytest.raises(
                RefusedError, match=r"took over.*changed the checkpoint since a test said, 36\d\d s ago, that"
            ):
                verb.carry_out(here)
        assert verb.changed(here) == now

    @pytest.mark.parametrize("said", [False, True])
    @pytest.mark.parametrize("name", ["rewind", "reset", "restore"])
    def test_is_no_leave_to_stop_the_stream_that_was_started_since(
        self, place: Location, name: str, said: bool
    ) -> None:
        """It is not even sealed, whether or not somebody said that the query is stopped."""
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        now = started(verb, here)
        words = "a test said" if said else "this command was started"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verbs, "STOPPED", replace(STOPPED, query_is_stopped=said, said=Clocks(passed=3600)))
            with pytest.raises(RefusedError, match=f"took over.*changed the checkpoint since {words}"):
                verb.stops(here)
        assert verb.changed(here) == now

    @pytest.mark.parametrize("name", names(lambda verb: verb.stops))
    def test_is_not_void_by_the_own_seal_that_stops_the_query(self, place: Location, name: str) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        with pytest.MonkeyPatch.context() as patch:
            # The batches were made just now: an hour later they would make it void.
            patch.setattr(verbs, "STOPPED", replace(STOPPED, said=Clocks(passed=30)))
            verb.stops(here)
        assert not is_sealed(verb.changed(here))
        assert next(iter(held(here).records()))["kind"] == verb.kind

    def test_is_given_anew_by_a_new_command(self, place: Location) -> None:
        verb = VERBS["rewind"]
        here = verb.begin(place)
        verb.carry_out(here)
        attempts = attempts_place(held(here), orders(here))
        [end] = (path for path in attempts.walk() if path.endswith(".end.json"))
        assert b'"done"' in attempts.read(end)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verbs, "STOPPED", replace(STOPPED, said=InAnHour()))
            assert verb.take_back(here).already_done is False
