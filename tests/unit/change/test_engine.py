"""What all changes have in common: stopped anywhere, each of them is finished by the same command, or undone by undo."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.attempts import LEASE_VARIABLE, Attempt, attempts_place, newest_attempt
from airflow_ckpt_provider.change.sealing import put_seal, remove_seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    ChangeRunningError,
    CkptError,
    LeaseLostError,
    RefusedError,
    SealedError,
    StorageError,
)
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.status import status_of
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import stream
from tests.support.checkpoints import Files, contents, logs, plant
from tests.support.every_run import of_these
from tests.support.file_sinks import file_sink
from tests.support.killed_changes import after_first_change, each_verb, is_sealed, killed, without_seals
from tests.support.kinds_of_changes import VERBS, Verb, held, names
from tests.support.restores import loud_seal
from tests.support.stopped import STOPPED
from tests.support.waiting import wait_until
from tests.support.watched_stores import WRITES, forget_all, watched


def comparable(verb: Verb, here: Location) -> Files:
    """The files of a change, but for query ids that are made again with every plan."""
    found = verb.changed(here)
    if verb.kind == "flow-reset":
        found.pop(f"{verb.checkpoint}/metadata", None)
    return found


def carried_out(verb: Verb, here: Location) -> Files:
    """What is there once the change is done."""
    verb.begin(here)
    verb.carry_out(here)
    return comparable(verb, here)


@pytest.mark.parametrize(
    ("name", "ending"),
    of_these(
        product(names(), ("resume", "undo")), *product(names(), ("resume",)), ("rewind", "undo"), ("restore", "undo")
    ),
)
def test_killed_at_every_write(place: Location, name: str, ending: str) -> None:
    """At every moment: as before, sealed, or done. Then either way leads to its end."""
    verb = VERBS[name]
    after = carried_out(verb, place / "model")
    states = set()
    for writes in range(400):
        here = verb.begin(place / f"run{writes}")
        before = verb.changed(here)
        if not killed(verb.carry_out, here, writes):
            assert writes > 10
            break
        now = verb.changed(here)
        done = comparable(verb, here) == after
        states.add("sealed" if is_sealed(now) else "done" if done else "before")
        assert is_sealed(now) or done or now == before, f"after write {writes}: {sorted(now)}"
        # No Spark can start from anything that is neither.
        if without_seals(comparable(verb, here)) not in (before, after):
            assert loud_seal(here / verb.checkpoint), f"after write {writes}"
        if ending == "resume":
            if not done:
                verb.carry_out(here)
            assert comparable(verb, here) == after, f"resumed after write {writes}"
        elif now != before:
            verb.take_back(here)
            assert verb.changed(here) == before, f"undone after write {writes}"
            assert verb.take_back(here).already_done
        else:
            with pytest.raises(RefusedError):
                verb.take_back(here)
            assert verb.changed(here) == before
        # Whatever it came to, the other way leads on from there.
        if ending == "resume":
            verb.take_back(here)
            assert verb.changed(here) == before, f"resumed after write {writes}, then undone"
        else:
            verb.carry_out(here)
            assert comparable(verb, here) == after, f"undone after write {writes}, then carried out"
        forget_all()
    else:
        pytest.fail("it never ended")
    assert states == {"before", "sealed", "done"}


@each_verb
def test_one_that_was_begun_is_resumed_only_by_whoever_approved_its_plan(place: Location, name: str) -> None:
    verb = VERBS[name]
    here = verb.begin(place / "run")
    assert killed(after_first_change(verb, here), here, 10_000)
    half_way = verb.changed(here)
    with pytest.raises(
        RefusedError, match=r"was begun by a plan with the fingerprint (?P<begun>\w+), not 0badc0de"
    ) as refused:
        verb.carry_out(here, fingerprint="0badc0de")
    assert verb.changed(here) == half_way
    begun = refused.value.message.partition("the fingerprint ")[2].partition(",")[0]
    verb.carry_out(here, fingerprint=begun)
    assert not is_sealed(verb.changed(here))


@pytest.mark.parametrize("name", of_these(names(), "rewind", "repair"))
def test_an_undo_that_is_killed_at_every_write(place: Location, name: str) -> None:
    """Of a change that was carried out, and of one that was stopped half-way."""
    verb = VERBS[name]
    for half_way in (False, True):
        for writes in range(400):
            here = verb.begin(place / f"{half_way}{writes}")
            before = verb.changed(here)
            if half_way:
                deleted_or_written = after_first_change(verb, here)
                assert killed(deleted_or_written, here, 10_000)
            else:
                verb.carry_out(here)
            after = verb.changed(here)
            if not killed(verb.take_back, here, writes):
                assert writes > 5
                break
            now = verb.changed(here)
            assert is_sealed(now) or now in (before, after), f"after write {writes}"
            assert verb.take_back(here).kind == verb.kind
            assert verb.changed(here) == before, f"after write {writes}"
            forget_all()
        else:
            pytest.fail("it never ended")


@pytest.mark.parametrize("name", of_these(names(lambda verb: verb.stops), "rewind"))
def test_killed_at_every_write_after_the_seal_has_stopped_the_query(place: Location, name: str) -> None:
    """There are two seals: that which stops the query, and that of the plan. The same command resumes from either."""
    verb = VERBS[name]
    assert verb.stops
    after = carried_out(verb, place / "model")
    for writes in range(400):
        here = verb.begin(place / f"run{writes}")
        before = verb.changed(here)
        if not killed(verb.stops, here, writes):
            assert writes > 10
            break
        if comparable(verb, here) != after:
            verb.stops(here)
        assert comparable(verb, here) == after, f"after write {writes}"
        verb.take_back(here)
        assert verb.changed(here) == before, f"after write {writes}"
        forget_all()
    else:
        pytest.fail("it never ended")


@each_verb
def test_where_it_stands_is_told_after_every_write(place: Location, name: str) -> None:
    verb = VERBS[name]
    told = set()
    for writes in range(400):
        here = verb.begin(place / f"run{writes}")
        before = verb.changed(here)
        if not killed(verb.carry_out, here, writes):
            break
        checkpoint = verb.live(here)
        found = status_of(Checkpoint.at(checkpoint), held(here))
        told.add(found.kind)
        if loud_seal(checkpoint):
            assert found.kind == "under_way"
            assert f"--plan {found.plan_id}" in found.commands[-1]
        elif verb.changed(here) == before:
            assert found.kind == "untouched"
        forget_all()
    assert "under_way" in told
    assert "sealed_by_another" not in told


class TestTheSeal:
    @each_verb
    def test_that_of_an_earlier_attempt_is_replaced(self, place: Location, name: str) -> None:
        """Whoever reads it knows which attempt is at work."""
        verb = VERBS[name]
        here = verb.begin(place)
        assert killed(after_first_change(verb, here), here, 10_000)
        first = inspect_target(here / verb.checkpoint).seal
        assert first is not None
        assert first.attempt == 1
        seen = set()

        def note(operation: str, path: str) -> None:
            mark = inspect_target(here / verb.checkpoint).seal
            if verb.changes(here, operation, path) and "/offsets/" not in path and mark:
                seen.add((mark.plan_id, mark.attempt))

        verb.carry_out(watched(here, note)[0])
        assert seen == {(first.plan_id, 2)}
        assert not is_sealed(verb.changed(here))

    def test_that_of_another_attempt_is_not_lifted(self, place: Location) -> None:
        plant(place, logs(range(3)))
        mine = put_seal(place, 3, plan_id="7f3a", reason="a rewind", made_by="me", attempt=1)
        remove_seal(place, mine)
        put_seal(place, 3, plan_id="7f3a", reason="a rewind", made_by="me", attempt=2)
        with pytest.raises(SealedError, match="is sealed by plan 7f3a"):
            remove_seal(place, mine)
        assert loud_seal(place)

    @each_verb
    def test_no_other_process_finds_the_place_unsealed_between_two_attempts(self, place: Location, name: str) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        assert killed(after_first_change(verb, here), here, 10_000)
        lifted: list[str] = []

        def look(operation: str, path: str) -> None:
            if not loud_seal(here / verb.checkpoint):
                lifted.append(f"{operation} {path}")
            elif lifted:
                pytest.fail(f"it was not sealed before {lifted}")

        verb.carry_out(watched(here, look)[0])

    @each_verb
    def test_the_record_names_the_attempt_the_proof_and_what_was_accepted(self, place: Location, name: str) -> None:
        verb = VERBS[name]
        here = verb.begin(place)
        verb.carry_out(here)
        record = next(iter(held(here).records()))
        assert (record["kind"], record["checkpoint"]) == (verb.kind, (here / verb.checkpoint).uri)
        assert record["attempt"]["number"] == 1
        assert record["rest"]["how"] == "statement"
        assert record["rest"]["by"] == "a test"
        assert record["after"] == inspect_target(here / verb.checkpoint).fingerprint
        kept = held(here).kept_plan(record["plan_id"])
        assert kept is not None
        assert kept["kind"] == verb.kind


class TestTwoAttempts:
    @each_verb
    def test_at_the_same_time(self, place: Location, name: str) -> None:
        """The second one says who is at work, and changes nothing."""
        verb = VERBS[name]
        here = verb.begin(place)
        errors: list[CkptError] = []

        def again(operation: str, path: str) -> None:
            if verb.changes(here, operation, path) and not errors:
                before = contents(here)
                with pytest.raises((ChangeRunningError, SealedError)) as error:
                    verb.carry_out(here)
                errors.append(error.value)
                assert contents(here) == before

        verb.carry_out(watched(here, again)[0])
        assert isinstance(errors[0], ChangeRunningError)
        assert "is being changed by attempt 1 (plan " in errors[0].message

    @each_verb
    def test_one_that_lost_its_lease_writes_nothing_more(
        self, place: Location, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It stops while its lease runs out and another attempt takes over; then it wakes up."""
        monkeypatch.setenv(LEASE_VARIABLE, "0.4")
        verb = VERBS[name]
        here = verb.begin(place)
        taken: list[tuple[Attempt, Files]] = []
        one_at_a_time = threading.Lock()

        def take_over(operation: str, path: str) -> None:
            if not verb.changes(here, operation, path):
                return
            with one_at_a_time:
                if taken or not loud_seal(here / verb.checkpoint):
                    return
                attempts = attempts_place(held(here), here / verb.observed)
                mine = newest_attempt(attempts)
                assert mine is not None
                later = replace(mine, number=2, made_by="a colleague", nonce="later")
                attempts.create("000002.json", json.dumps(later.to_json()).encode())
                wait_until(lambda: not _renewing(mine.number), "the renewal that finds the later attempt")
                taken.append((later, but_claims(here)))

        with pytest.raises(LeaseLostError) as error:
            verb.carry_out(watched(here, take_over)[0])
        later, then = taken[0]
        assert f"{later.words} took over" in error.value.message
        # The request that was under way when it was suspended is refused too, and nothing says that it has ended.
        assert but_claims(here) == then
        assert is_sealed(verb.changed(here))


def but_claims(here: Location) -> Files:
    """All files but the notes on which backups are read; each attempt takes its own away."""
    return {path: data for path, data in contents(here).items() if not path.startswith("backups/claims/")}


def _renewing(number: int) -> bool:
    return any(thread.name == f"lease {number}" for thread in threading.enumerate())


class TestAStoreThatFails:
    @each_verb
    def test_while_files_are_set_aside(self, place: Location, name: str) -> None:
        """Nothing was changed, so it is not left sealed."""
        verb = VERBS[name]
        here = verb.begin(place)
        before = verb.changed(here)

        def fail(operation: str, path: str) -> None:
            if operation in WRITES and "/set-aside/" in path:
                raise StorageError("could not replace it: no space left on device")

        with pytest.raises(StorageError, match="no space left"):
            verb.carry_out(watched(here, fail)[0])
        assert verb.changed(here) == before
        verb.carry_out(here)
        assert not is_sealed(verb.changed(here))

    @each_verb
    def test_while_files_are_changed(self, place: Location, name: str) -> None:
        """It stays sealed; the same command finishes it."""
        verb = VERBS[name]
        after = carried_out(verb, place / "model")
        here = verb.begin(place / "run")
        before = verb.changed(here)
        failed = []

        def fail(operation: str, path: str) -> None:
            changes = verb.changes(here, operation, path) and "/offsets/" not in path
            if changes and not failed:
                failed.append(path)
                raise StorageError("could not send it: no route to host")

        with pytest.raises(StorageError, match="no route to host"):
            verb.carry_out(watched(here, fail)[0])
        assert loud_seal(here / verb.checkpoint)
        verb.carry_out(here)
        assert comparable(verb, here) == after
        verb.take_back(here)
        assert verb.changed(here) == before


class TestASinkThatFails:
    """A rewind that rolls the output of a file sink back; the sink goes first, under the seal."""

    @pytest.fixture
    def out(self, place: Location) -> Location:
        return file_sink(place / "out", 4)

    def rewind(self, here: Location, out: Location) -> Any:
        checkpoint, sink = Checkpoint.at(here / "orders"), Sink(place=out)
        plan = plan_rewind(
            checkpoint,
            Specifier("to_batch", "2"),
            sink=sink,
            sink_exit=SinkPolicy.ROLLBACK,
            repository=here / "backups",
            guards=(),
        )
        return apply_rewind(plan, checkpoint, held(here), sink=sink, rest=STOPPED)

    def begin(self, place: Location) -> Location:
        Repository.open_or_create(place / "backups")
        plant(place / "orders", stream(4))
        return place

    def test_before_anything_is_removed(self, place: Location, out: Location) -> None:
        here = self.begin(place)
        sink = contents(out)

        def fail(operation: str, path: str) -> None:
            if operation in WRITES and "/sink/files/" in path:
                raise StorageError("could not replace it: no space left on device")

        with pytest.raises(StorageError, match="no space left"):
            self.rewind(watched(here, fail)[0], out)
        assert contents(here / "orders") == stream(4)
        assert contents(out) == sink

    def test_half_way(self, place: Location, out: Location) -> None:
        """It stays sealed, and the error says how to continue and how to undo it."""
        here = self.begin(place)
        sink = contents(out)
        removed = []

        def fail(operation: str, path: str) -> None:
            if operation == "delete_listed":
                removed.append(path)
                if len(removed) == 2:
                    raise StorageError("could not delete it: no route to host")

        with pytest.raises(StorageError, match="no route to host") as error:
            self.rewind(here, watched(out, fail)[0])
        assert loud_seal(here / "orders")
        assert without_seals(contents(here / "orders")) == stream(4)
        mark = inspect_target(here / "orders").seal
        assert mark is not None
        named = f"--repository {held(here).location.uri} --sink {out.uri}"
        assert f"`airflow-ckpt undo {here / 'orders'} --plan {mark.plan_id} {named}`" in str(error.value.hint)
        assert "run the same command again" in str(error.value.hint)
        undo(here / "orders", held(here), sink=Sink(place=out), rest=STOPPED)
        assert contents(out) == sink
        assert contents(here / "orders") == stream(4)

    def test_that_cannot_be_asked_either(self, place: Location, out: Location) -> None:
        """Whether it was changed is not known: it stays sealed."""
        here = self.begin(place)
        failed = []

        def fail(operation: str, path: str) -> None:
            if operation == "delete_listed" or failed:
                failed.append(path)
                raise StorageError("no route to host")

        with pytest.raises(StorageError, match="no route to host") as error:
            self.rewind(here, watched(out, fail)[0])
        assert loud_seal(here / "orders")
        assert "stays sealed" in str(error.value.hint)
        self.rewind(here, out)
        assert not loud_seal(here / "orders")
        assert set(out.walk("_spark_metadata")) == {f"_spark_metadata/{batch}" for batch in range(3)}
