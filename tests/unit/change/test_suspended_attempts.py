"""Attempts that were suspended, or that met another one: a change is refused then, and a started stream stays as it is."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change import fence as fences
from airflow_ckpt_provider.change.attempts import LEASE_VARIABLE, LeaseTerms, attempts_place, newest_attempt
from airflow_ckpt_provider.change.fence import fenced
from airflow_ckpt_provider.change.sealing import put_seal, remove_seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    RefusedError,
    StorageError,
)
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from tests.support import kinds_of_changes as verbs
from tests.support.checkpoints import contents
from tests.support.killed_changes import (
    each_verb,
    half_undone,
    half_way,
    is_sealed,
    killed,
    paused_before_its_fence,
    started,
    without_seals,
)
from tests.support.kinds_of_changes import SINK, VERBS, held, orders
from tests.support.stopped import STOPPED
from tests.support.watched_stores import watched


class TestAnAttemptThatStoodStillBeforeItsFence:
    @each_verb
    @pytest.mark.parametrize("again", ["carry_out", "take_back"])
    def test_leaves_the_stream_alone_that_was_started_since(self, place: Location, name: str, again: str) -> None:
        """It had found the seal of a half-done change; meanwhile the change was finished and the stream started."""
        verb, then = VERBS[name], []
        here = half_way(verb, place)

        def finish() -> None:
            verb.carry_out(here)
            then.append(started(verb, here))

        with pytest.raises(RefusedError, match="lifted"):
            paused_before_its_fence(verb, here, finish, getattr(verb, again))
        assert verb.changed(here) == then[0]

    def test_that_had_begun_and_whose_seal_was_lifted(self, place: Location) -> None:
        """The same plan again, in the same process, after a person has lifted the seal and started the stream."""
        verb = VERBS["rewind"]
        here = verb.begin(place)
        plan = verbs._plan_rewind(here)
        apply = functools.partial(apply_rewind, plan, sink=SINK, rest=STOPPED)
        failed = []

        def fail(operation: str, path: str) -> None:
            if verb.changes(here, operation, path) and "/offsets/" not in path and not failed:
                failed.append(path)
                raise StorageError("could not send it: no route to host")

        dying = watched(here, fail)[0]
        with pytest.raises(StorageError, match="no route"):
            apply(Checkpoint.at(orders(dying)), held(dying))
        mark = inspect_target(orders(here)).seal
        assert mark is not None
        remove_seal(orders(here), mark)
        now = started(verb, here)
        with pytest.raises(RefusedError, match="was carried out or begun before"):
            apply(Checkpoint.at(orders(here)), held(here))
        assert verb.changed(here) == now

    @each_verb
    def test_leaves_what_another_undo_has_half_undone_sealed(self, place: Location, name: str) -> None:
        """Two undo one change; the other one dies half-way."""
        verb = VERBS[name]
        here = verb.begin(place)
        before = verb.changed(here)
        verb.carry_out(here)
        then = []

        def die_half_way() -> None:
            assert killed(lambda _: half_undone(verb, here), here, 10_000)
            then.append(verb.changed(here))
            assert is_sealed(then[0])

        with pytest.raises(RefusedError):
            paused_before_its_fence(verb, here, die_half_way, verb.take_back)
        now = verb.changed(here)
        assert is_sealed(now)
        assert without_seals(now) == without_seals(then[0])
        verb.take_back(here)
        assert verb.changed(here) == before


class TestTheFence:
    def test_an_attempt_is_waited_for_though_one_that_waited_for_it_died(
        self, place: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first one is suspended elsewhere; the second one took a number, and died while it waited."""
        repository = Repository.open_or_create(place / "backups")
        attempts = attempts_place(repository, place / "orders")
        with fenced(repository, place / "orders", plan_id="a", what="a reset", made_by="me") as fence:
            first = replace(fence.attempt, number=1, host="elsewhere", process="another boot/ns/1", nonce="first")
        for path in attempts.walk():
            attempts.delete(path)
        second = replace(first, number=2, host=fence.attempt.host, process=fence.attempt.process, nonce="second")
        for attempt in (first, second):
            attempts.create(f"{attempt.number:06d}.json", json.dumps(attempt.to_json()).encode())
        waits: list[float] = []
        monkeypatch.setattr(
            fences, "_wait_until", lambda condition, seconds: bool(waits.append(seconds)) or condition()
        )
        with fenced(repository, place / "orders", plan_id="b", what="a reset", made_by="me") as fence:
            assert fence.attempt.number == 3
        terms = first.terms
        assert max(waits, default=0) > terms.lease + terms.request_timeout

    def test_an_attempt_that_failed_before_it_began_does_not_block_the_next_one(
        self, place: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repository = Repository.open_or_create(place / "backups")
        attempts = attempts_place(repository, place / "orders")
        terms = LeaseTerms(0.2, 0.1)
        with fenced(repository, place / "orders", plan_id="a", what="a reset", made_by="me", terms=terms) as fence:
            first = replace(fence.attempt, host="elsewhere", process="another boot/ns/1", nonce="first")
        for path in attempts.walk():
            attempts.delete(path)
        attempts.create("000001.json", json.dumps(first.to_json()).encode())

        def fail(*_: object, **__: object) -> None:
            raise StorageError("no route to host")

        with monkeypatch.context() as patch:
            patch.setattr(fences, "_wait_for", fail)
            with (
                pytest.raises(StorageError, match="no route"),
                fenced(repository, place / "orders", plan_id="a", what="a reset", made_by="me", terms=terms),
            ):
                pass
        with fenced(repository, place / "orders", plan_id="a", what="a reset", made_by="me", terms=terms) as fence:
            assert fence.attempt.number == 3
        assert newest_attempt(attempts) == fence.attempt

    @pytest.mark.parametrize("lease", [float("nan"), float("inf"), -1.0, "soon", 10**400])
    def test_an_attempt_with_a_lease_that_never_ends_is_waited_for_as_one_that_cannot_be_read(
        self, place: Location, monkeypatch: pytest.MonkeyPatch, lease: object
    ) -> None:
        repository = Repository.open_or_create(place / "backups")
        with fenced(repository, place / "orders", plan_id="a", what="a reset", made_by="me") as fence:
            forged = fence.attempt.to_json() | {"number": 2, "lease": lease, "host": "elsewhere", "process": ""}
        attempts_place(repository, place / "orders").create("000002.json", json.dumps(forged).encode())
        waits: list[float] = []
        monkeypatch.setattr(
            fences, "_wait_until", lambda condition, seconds: bool(waits.append(seconds)) or condition()
        )
        with fenced(repository, place / "orders", plan_id="b", what="a reset", made_by="me") as fence:
            assert fence.attempt.number == 3
        assert all(0 < seconds < 600 for seconds in waits)
        assert max(waits) > LeaseTerms().lease

    @pytest.mark.parametrize("text", ["soon", "nan", "0", "-5", "inf", "1e12"])
    def test_terms_that_make_no_sense_are_refused(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setenv(LEASE_VARIABLE, text)
        with pytest.raises(RefusedError, match=LEASE_VARIABLE):
            LeaseTerms.given()


class TestTwoRepositories:
    def test_of_two_restores_into_one_empty_place_none_goes_on_under_the_seal_of_the_other(
        self, place: Location
    ) -> None:
        """The other one seals higher, just after ours has seen that nobody else is there."""
        verb = VERBS["restore"]
        here = verb.begin(place)
        for path in contents(orders(here)):
            orders(here).delete(path)
        walks = []

        def seal_higher(operation: str, path: str) -> None:
            if operation == "walk" and path == orders(here).root and is_sealed(verb.changed(here)):
                walks.append(path)
                if len(walks) == 2:
                    put_seal(orders(here), 99, plan_id="other", reason="restore of another", made_by="they", attempt=1)

        with pytest.raises(RefusedError, match="sealed by plan other"):
            verb.carry_out(watched(here, seal_higher)[0])
        assert set(contents(orders(here))) == {"offsets/2", "offsets/99"}


def test_clocks_of_a_process_began_before_they_were_made() -> None:
    assert Clocks.of_process().elapsed > Clocks(passed=0.01).elapsed
