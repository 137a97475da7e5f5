"""Interleavings and documents that nobody expects: a change is refused then, and nothing of a started stream is touched."""

from __future__ import annotations

import contextlib
import functools
import json
import posixpath
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change import engine
from airflow_ckpt_provider.change import fence as fences
from airflow_ckpt_provider.change.fence import LEASE_VARIABLE, LeaseTerms, attempts_place, fenced, newest_attempt
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.sealing import put_seal, remove_seal, unseal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.change.undo import plan_to_undo
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    ChangeRunningError,
    CkptError,
    DamagedFileError,
    QueryNotStoppedError,
    RefusedError,
    RepositoryError,
    StorageError,
)
from airflow_ckpt_provider.recovery.repair.apply import apply_repair
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from tests.support import kinds_of_changes as verbs
from tests.support.checkpoints import Files, commit_log, contents, offsets_log, plant
from tests.support.killed_changes import _after_first_change, each_verb, is_sealed, killed, without_seals
from tests.support.kinds_of_changes import SINK, VERBS, Verb, held, names, orders
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.watched_stores import WRITES, Killed, watched


def half_way(verb: Verb, here: Location) -> Location:
    """A change whose worker died after it had changed some files."""
    verb.begin(here)
    assert killed(_after_first_change(verb, here), here, 10_000)
    return here


def half_undone(verb: Verb, here: Location) -> None:
    """Undo a change in a process that dies after it has put some files back."""
    verb.take_back(watched(here, dies_half_way(verb, here))[0])


def dies_half_way(verb: Verb, here: Location) -> Callable[[str, str], None]:
    """A process dies before it changes a second file of the checkpoint."""
    changes = []

    def die(operation: str, path: str) -> None:
        if verb.changes(here, operation, path) and "/offsets/" not in path:
            changes.append(path)
            if len(changes) > 1:
                raise Killed(path)

    return die


def started(verb: Verb, here: Location) -> Files:
    """The stream is started, and has logged one batch more."""
    checkpoint = here / verb.checkpoint
    number = inspect_target(checkpoint).newest_offsets + 1
    plant(checkpoint, {f"offsets/{number}": offsets_log()})
    return verb.changed(here)


def paused_before_its_fence(verb: Verb, here: Location, meanwhile: Callable[[], Any], what: Callable[..., Any]) -> Any:
    """Carry something out in a process that is suspended after it has planned, while others do something."""
    done = []

    def pause(operation: str, path: str) -> None:
        if not done and operation in WRITES | {"list"} and "/changes/" in path:
            done.append(path)
            meanwhile()

    return what(watched(here, pause)[0])


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


class TestAHalfDoneUndoWhoseSealWasLifted:
    def lifted(self, verb: Verb, place: Location) -> Location:
        here = verb.begin(place)
        verb.carry_out(here)
        assert killed(lambda _: half_undone(verb, here), here, 10_000)
        for checkpoint in {verb.checkpoint, verb.observed}:
            mark = inspect_target(here / checkpoint).seal
            if mark is not None:
                remove_seal(here / checkpoint, mark)
        return here

    @each_verb
    def test_is_finished(self, place: Location, name: str) -> None:
        verb = VERBS[name]
        here = self.lifted(verb, place)
        verb.take_back(here)
        assert verb.changed(here) == verb.changed(verb.begin(place / "model"))

    @each_verb
    def test_is_not_once_the_stream_was_started(self, place: Location, name: str) -> None:
        verb = VERBS[name]
        here = self.lifted(verb, place)
        now = started(verb, here)
        with pytest.raises(RefusedError, match="the stream was started"):
            verb.take_back(here)
        assert verb.changed(here) == now

    def test_is_not_where_a_file_that_was_to_stay_is_missing(self, place: Location) -> None:
        verb = VERBS["rewind"]
        here = self.lifted(verb, place)
        orders(here).delete("offsets/0")
        with pytest.raises(RefusedError, match="was written to since"):
            verb.take_back(here)


class TestAResumeThatFails:
    @each_verb
    def test_leaves_what_is_half_changed_sealed(self, place: Location, name: str) -> None:
        """Whatever fails first: nobody may take a half-changed checkpoint for one that was not touched."""
        verb = VERBS[name]
        for number in range(60):
            here = half_way(verb, place / f"run{number}")
            reads: list[str] = []

            def fail(operation: str, path: str, reads: list[str] = reads, number: int = number) -> None:
                if operation == "read" and "/backups/" in path and "/changes/" not in path:
                    reads.append(path)
                    if len(reads) == number + 1:
                        raise StorageError(f"could not read {path}: no route to host")

            try:
                verb.carry_out(watched(here, fail)[0])
            except CkptError:
                assert is_sealed(verb.changed(here)), reads[-1]
                continue
            break
        assert number > 1


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

    @pytest.mark.parametrize("text", ["soon", "nan", "0", "-5", "inf"])
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


def document_of(here: Location) -> tuple[str, dict[str, Any]]:
    """Path and content of the only plan that is kept, but for those of undos."""
    path = next(p for p in sorted((here / "backups").walk("plans")) if "-undo" not in p)
    return path, json.loads((here / "backups").read(path))


def forge(here: Location, **changes: Any) -> None:
    path, document = document_of(here)
    (here / "backups").replace(path, json.dumps(document | changes).encode())


def marker_of(here: Location) -> str:
    return next(p for p in (here / "backups").walk("set-aside") if p.endswith("/COMPLETE"))


class TestAnUndoWhoseDocumentsAreDamaged:
    """Whatever is damaged or forged in the repository: it is named, and no file of a checkpoint or elsewhere is touched."""

    def refused(self, here: Location, verb: Verb, match: str) -> None:
        before = contents(here)
        with pytest.raises(CkptError, match=match) as error:
            verb.take_back(here)
        assert error.value.hint
        after = contents(here)
        changes = {
            p for p in {*before, *after} if before.get(p) != after.get(p) and not p.startswith("backups/changes/")
        }
        assert not changes

    @pytest.mark.parametrize("name", ["rewind", "reset", "repair", "restore"])
    @pytest.mark.parametrize("done", [True, False])
    @pytest.mark.parametrize("flipped", [False, True])
    def test_a_file_that_was_set_aside_is_missing_or_another(
        self, place: Location, name: str, done: bool, flipped: bool
    ) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        if done:
            verb.carry_out(here)
        else:
            assert killed(_after_first_change(verb, here), here, 10_000)
        kept = next(p for p in (here / "backups").walk("set-aside") if "/files/" in p)
        content = (here / "backups").read(kept)
        (here / "backups").delete(kept)
        if flipped:
            (here / "backups").create(kept, bytes([content[0] ^ 1]) + content[1:])
        self.refused(here, verb, kept.rpartition("/files/")[2])

    def test_a_file_that_is_damaged_while_it_is_put_back(self, place: Location) -> None:
        """The checkpoint stays sealed. Once the file is right again the same undo completes."""
        verb = VERBS["rewind"]
        here = verb.begin(place)
        before = verb.changed(here)
        verb.carry_out(here)
        kept = next(p for p in (here / "backups").walk("set-aside") if "/files/state/" in p)
        content = (here / "backups").read(kept)

        def damage(operation: str, path: str) -> None:
            if verb.changes(here, operation, path) and not path.rpartition("/")[0].endswith("/offsets"):
                (here / "backups").replace(kept, bytes([content[0] ^ 1]) + content[1:])

        with pytest.raises(DamagedFileError, match="is not what was kept"):
            verb.take_back(watched(here, damage)[0])
        assert is_sealed(contents(orders(here)))
        (here / "backups").replace(kept, content)
        verb.take_back(here)
        assert verb.changed(here) == before

    def test_a_file_that_was_to_stay_is_missing(self, place: Location) -> None:
        """Somebody lifted the seal half-way and deleted a file: putting back the rest would never be the whole."""
        verb = VERBS["rewind"]
        here = half_way(verb, place)
        orders(here).delete("offsets/0")
        self.refused(here, verb, "offsets/0")

    @pytest.mark.parametrize("path", ["../stolen", "/stolen", "a/../../stolen", "offsets/../../stolen"])
    @pytest.mark.parametrize("done", [True, False])
    def test_a_marker_that_names_a_file_elsewhere(self, place: Location, path: str, done: bool) -> None:
        verb = VERBS["rewind"]
        here = verb.begin(place)
        if done:
            verb.carry_out(here)
        else:
            assert killed(_after_first_change(verb, here), here, 10_000)
        repository, marker = here / "backups", marker_of(here)
        value = json.loads(repository.read(marker))
        value["files"][path] = 1
        repository.replace(marker, json.dumps(value).encode())
        kept = posixpath.normpath(f"{repository.root}/{marker.replace('COMPLETE', f'files/{path}')}")
        repository.store.replace(kept, b"x")
        _, document = document_of(here)
        forge(here, before=document["before"] | {path: 1})
        self.refused(here, verb, "stolen")

    @pytest.mark.parametrize(
        "content", [b"", b'{"from": "orders", "fil', b"[]", b'{"files": 1}', b'{"files": {"a": "b"}}']
    )
    @each_verb
    def test_a_marker_that_is_half_written(self, place: Location, name: str, content: bytes) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        marker = marker_of(here)
        (here / "backups").replace(marker, content)
        self.refused(here, verb, "COMPLETE")

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"plan_id": "another"}'])
    @each_verb
    def test_a_plan_that_is_half_written(self, place: Location, name: str, content: bytes) -> None:
        verb = VERBS[name]
        here = half_way(verb, place)
        path, _ = document_of(here)
        (here / "backups").replace(path, content)
        self.refused(here, verb, "plans/")

    @each_verb
    def test_a_plan_of_another_id(self, place: Location, name: str) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        forge(here, plan_id="another")
        self.refused(here, verb, "plans/")

    @pytest.mark.parametrize("name", ["rewind", "reset", "repair", "restore"])
    def test_a_plan_that_does_not_know_what_was_there_before(self, place: Location, name: str) -> None:
        """Else everything that it does not know would be deleted."""
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        _, document = document_of(here)
        before = dict(document["before"])
        stayed = json.loads((here / "backups").read(marker_of(here)))["left"]
        before.pop(next(iter(stayed), next(iter(before))))
        forge(here, before=before)
        self.refused(here, verb, "before")

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"])
    @each_verb
    def test_a_record_that_is_half_written(self, place: Location, name: str, content: bytes) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        record = next(iter((here / "backups").walk("audit")))
        (here / "backups").replace(record, content)
        self.refused(here, verb, "audit/")

    @pytest.mark.parametrize("name", ["flow-reset", "restore of a flow"])
    @pytest.mark.parametrize("key", ["checkpoint", "observed"])
    @pytest.mark.parametrize("other", ["victim/1", "{parent}/..", "{parent}/victim", "{parent}/1/../../../victim/1"])
    def test_a_plan_of_a_flow_that_names_another_place(self, place: Location, name: str, key: str, other: str) -> None:
        """All that such a place held would be deleted: it did not exist before, says the plan."""
        verb = VERBS[name]
        here = verb.begin(place)
        plant(here / "victim/1", {"metadata": b"theirs"})
        plant(here / verb.checkpoint.rpartition("/")[0] / "victim", {"metadata": b"theirs"})
        verb.carry_out(here)
        _, document = document_of(here)
        target = other.format(parent=(here / verb.checkpoint.rpartition("/")[0]).uri)
        target = target if "://" in target or target.startswith("/") else (here / target).uri
        # The person names the version that the forged plan says was observed, or made.
        stays = {"checkpoint": "observed", "observed": "checkpoint"}[key]
        forge(here, **{key: target, "before": {}})
        before = contents(here)
        with pytest.raises(CkptError):
            undo(
                here / (verb.observed if stays == "observed" else verb.checkpoint),
                held(here),
                plan_id=document["plan_id"],
                rest=STOPPED,
                open_place=lambda uri: Location(here.store, uri.partition("://")[2] or uri),
            )
        assert contents(here) == before

    @pytest.mark.parametrize("path", ["../stolen", "/stolen", "offsets/../../stolen", "a\0b"])
    @pytest.mark.parametrize("key", ["left", "before", "deletes", "writes", "written"])
    def test_any_other_path_that_leads_elsewhere(self, place: Location, path: str, key: str) -> None:
        verb = VERBS["rewind"]
        here = verb.begin(place)
        verb.carry_out(here)
        if key == "left":
            repository, marker = here / "backups", marker_of(here)
            value = json.loads(repository.read(marker))
            value["left"][path] = None
            repository.replace(marker, json.dumps(value).encode())
        else:
            _, document = document_of(here)
            entry = {"path": path, "size": 1, "object": "objects/orders/aa/x"}
            more: Any = {"before": {path: 1}, "written": {path: 1}, "deletes": [path], "writes": [entry]}[key]
            old = document[key]
            forge(here, **{key: {**old, **more} if isinstance(old, dict) else [*old, *more]})
        self.refused(here, verb, "stolen|a.{1,3}0b")

    @pytest.mark.parametrize("plan_id", ["../../victim", "a/../../b", "a/b"])
    def test_a_seal_of_a_plan_whose_id_leads_elsewhere(self, place: Location, plan_id: str) -> None:
        verb = VERBS["restore"]
        here = verb.begin(place)
        put_seal(orders(here), 9, plan_id=plan_id, reason="restore of x", made_by="me")
        self.refused(here, verb, ".")

    @pytest.mark.parametrize("plan_id", ["../audit/x", "..", "a/b", "/x", ""])
    def test_an_id_that_leads_elsewhere(self, place: Location, plan_id: str) -> None:
        verb = VERBS["rewind"]
        here = verb.begin(place)
        verb.carry_out(here)
        _, document = document_of(here)
        (here / "backups").replace("audit/x.json", json.dumps(document | {"plan_id": plan_id}).encode())
        with pytest.raises(RefusedError):
            plan_to_undo(orders(here), held(here), plan_id)


class TestAResume:
    @pytest.mark.parametrize("name", ["rewind", "reset", "repair"])
    def test_under_a_seal_that_no_attempt_has_put_asks_again_whether_the_query_is_stopped(
        self, place: Location, name: str
    ) -> None:
        """Somebody lifted the seal, started the stream, and sealed it again under the same id, as an upgrade does."""
        verb = VERBS[name]
        here = half_way(verb, place)
        mark = inspect_target(orders(here)).seal
        assert mark is not None
        remove_seal(orders(here), mark)
        put_seal(orders(here), mark.batch_id, plan_id=mark.plan_id, reason=mark.reason, made_by="an upgrade")
        now = verb.changed(here)
        asked = []

        def ask(*_: object, **__: object) -> None:
            asked.append(verb.changed(here))
            raise RefusedError("it runs")

        for what in (verb.carry_out, verb.take_back):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine, "prove_rest", ask)
                with pytest.raises(RefusedError, match="it runs"):
                    what(here)
            assert verb.changed(here) == now
        assert asked == [now, now]

    @each_verb
    @pytest.mark.parametrize("undo", [False, True])
    def test_under_a_seal_put_again_after_the_stream_ran_leaves_its_files_alone(
        self, place: Location, name: str, undo: bool
    ) -> None:
        """Its files have the names of those that were to go: removed by name, they would be lost without a copy."""
        verb = VERBS[name]
        here = half_way(verb, place)
        for checkpoint in {verb.checkpoint, verb.observed}:
            mark = inspect_target(here / checkpoint).seal
            if mark is not None:
                remove_seal(here / checkpoint, mark)
                plan_id, reason = mark.plan_id, mark.reason
        number = inspect_target(here / verb.checkpoint).newest_offsets + 1
        ran = {f"offsets/{number}": offsets_log('{"orders":{"0":7}}'), f"commits/{number}": commit_log()}
        plant(here / verb.checkpoint, ran)
        put_seal(here / verb.checkpoint, number + 1, plan_id=plan_id, reason=reason, made_by="an upgrade")
        now = verb.changed(here)
        with pytest.raises(RefusedError, match=r"was written since|did not write|was not ended"):
            (verb.take_back if undo else verb.carry_out)(here)
        assert verb.changed(here) == now

    @pytest.mark.parametrize("name", ["rewind", "reset", "repair"])
    def test_at_a_copy_of_the_checkpoint_is_refused(self, place: Location, name: str) -> None:
        """A checkpoint that was copied half-way has the seal too; its record would speak of the other place."""
        verb = VERBS[name]
        here = half_way(verb, place)
        files = contents(orders(here))
        plant(here / "copies/orders", files)
        copied = (here / "copies/orders").root
        original = replace(here, root=here.root)
        plans = {
            "rewind": lambda: apply_rewind(
                verbs._plan_rewind(original), Checkpoint.at(here / "copies/orders"), held(here), sink=SINK, rest=STOPPED
            ),
            "reset": lambda: apply_reset(
                verbs._plan_reset(original), here / "copies/orders", held(here), accept=ACCEPTED, rest=STOPPED
            ),
            "repair": lambda: apply_repair(
                verbs._plan_repair(original), Checkpoint.at(here / "copies/orders"), repository=held(here), rest=STOPPED
            ),
        }
        with pytest.raises(RefusedError, match="was made for"):
            plans[name]()
        assert contents(here / "copies/orders") == files, copied

    @pytest.mark.parametrize("path", ["../stolen", "/stolen", "offsets/../../stolen"])
    def test_of_a_plan_that_writes_elsewhere_is_refused(self, place: Location, path: str) -> None:
        verb = VERBS["reset"]
        here = half_way(verb, place)
        _, document = document_of(here)
        forge(here, contents=document["contents"] | {path: "x"})
        now = without_seals(verb.changed(here))
        with pytest.raises(CkptError, match="stolen"):
            verb.carry_out(here)
        assert without_seals(verb.changed(here)) == now
        assert is_sealed(verb.changed(here))

    @pytest.mark.parametrize("path", ["../stolen", "/stolen", "offsets/../../stolen"])
    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("rewind", "deletes"),
            ("rewind", "writes"),
            ("rewind", "object"),
            ("rewind", "before"),
            ("repair", "deletes"),
            ("repair", "fetches"),
            ("repair", "object"),
            ("repair", "rewrites"),
            ("reset", "before"),
        ],
    )
    def test_of_a_plan_that_names_a_place_elsewhere(self, place: Location, name: str, key: str, path: str) -> None:
        verb = VERBS[name]
        here = half_way(verb, place)
        _, document = document_of(here)
        entries = "fetches" if name == "repair" else "writes"
        entry = {"path": "x", "size": 1, "object": "objects/orders/aa/x", "sha256": "00", "backup_id": "b"}
        more: Any = {
            "deletes": [path],
            "writes": [entry | {"path": path}],
            "fetches": [entry | {"path": path}],
            "object": [entry | {"object": path}],
            "before": {path: 1},
            "rewrites": {path: "AAAA"},
        }[key]
        key = entries if key == "object" else key
        old = document[key]
        forge(here, **{key: {**old, **more} if isinstance(old, dict) else [*old, *more]})
        now = verb.changed(here)
        with pytest.raises(RepositoryError, match="stolen"):
            verb.carry_out(here)
        assert verb.changed(here) == now

    @pytest.mark.parametrize("name", ["rewind", "reset", "repair"])
    @pytest.mark.parametrize("lost", ["request", "deletes", "sink", "fetches", "sources"])
    def test_of_a_plan_that_lacks_something_names_the_file(self, place: Location, name: str, lost: str) -> None:
        verb = VERBS[name]
        here = half_way(verb, place)
        path, document = document_of(here)
        if lost not in document:
            return
        del document[lost]
        (here / "backups").replace(path, json.dumps(document).encode())
        now = verb.changed(here)
        with contextlib.suppress(CkptError):  # what the plan does not need may be missing
            verb.carry_out(here)
            return
        assert verb.changed(here) == now


class TestARepairOfVersion010:
    """Its audit record does not say what was there afterwards."""

    def test_is_not_taken_back_once_the_stream_has_run(self, place: Location) -> None:
        verb = VERBS["repair"]
        here = verb.begin(place)
        verb.carry_out(here)
        path = next(iter((here / "backups").walk("audit")))
        record = json.loads((here / "backups").read(path))
        del record["after"]
        (here / "backups").replace(path, json.dumps(record).encode())
        _, document = document_of(here)
        document.pop("before")
        forge(here, before={})
        batch = int(document["batch_id"])
        ran = {
            path: contents(orders(here))["commits/0"] if path.startswith("commits") else offsets_log()
            for number in range(batch + 1, batch + 3)
            for path in (f"offsets/{number}", f"commits/{number}")
        }
        plant(orders(here), ran)
        now = verb.changed(here)
        with pytest.raises(RefusedError, match="written to since"):
            verb.take_back(here)
        assert verb.changed(here) == now


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
                RefusedError, match=r"took over.*changed the checkpoint since a test said, 3600 s ago, that"
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
            patch.setattr(verbs, "STOPPED", replace(STOPPED, said=Clocks(passed=3600)))
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
            patch.setattr(verbs, "STOPPED", replace(STOPPED, said=Clocks(passed=-3600)))
            assert verb.take_back(here).already_done is False


def test_clocks_of_a_process_began_before_they_were_made() -> None:
    assert Clocks.of_process().elapsed > Clocks(passed=0.01).elapsed
