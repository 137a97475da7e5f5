"""The fence: of all attempts at a checkpoint only the newest may write, and only while its lease lasts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.attempts import (
    LEASE_VARIABLE,
    Attempt,
    LeaseTerms,
    attempts_place,
    newest_attempt,
    was_changed_since,
)
from airflow_ckpt_provider.change.fence import Fence
from airflow_ckpt_provider.errors import ChangeRunningError, LeaseLostError, StorageError
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.units import shown_time
from tests.support.fenced_attempts import LONG, SHORT, attempt_at, notes
from tests.support.fenced_attempts import orders as orders
from tests.support.fenced_attempts import repository as repository
from tests.support.waiting import wait_until
from tests.support.watched_stores import Killed, watched

ROOT = Path(__file__).parents[3]


def is_lost(fence: Fence) -> bool:
    try:
        fence.check()
    except LeaseLostError:
        return True
    return False


class TestNumbers:
    def test_one_after_the_other(self, orders: Location, repository: Repository) -> None:
        for number in (1, 2, 3):
            with attempt_at(orders, repository) as fence:
                assert fence.attempt.number == number
                fence.check()
        assert notes(orders, repository) == [f"00000{n}{end}" for n in (1, 2, 3) for end in (".end.json", ".json")]

    def test_of_each_checkpoint_its_own(self, orders: Location, repository: Repository, place: Location) -> None:
        with attempt_at(orders, repository) as one, attempt_at(place / "clicks", repository) as other:
            assert (one.attempt.number, other.attempt.number) == (1, 1)
            one.check()
            other.check()

    def test_a_place_counts_and_not_how_it_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "orders").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "orders")
        repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
        named = [open_location(str(tmp_path / name)) for name in ("orders", "link", "orders/")]
        assert len({attempts_place(repository, place).uri for place in named}) == 1

    def test_what_is_noted(self, orders: Location, repository: Repository) -> None:
        with attempt_at(orders, repository) as fence:
            seen = newest_attempt(attempts_place(repository, orders))
            assert seen == fence.attempt
        assert fence.attempt.words == (
            f"attempt 1 (plan beef, a reset of me, process {os.getpid()} on {fence.attempt.host}, "
            f"since {shown_time(fence.attempt.at)})"
        )

    @pytest.mark.parametrize(
        ("error", "outcome"), [(None, "done"), (RuntimeError("no"), "failed"), (Killed("dead"), None)]
    )
    def test_how_it_ended(
        self, orders: Location, repository: Repository, error: BaseException | None, outcome: str | None
    ) -> None:
        """Whoever dies says nothing."""
        try:
            with attempt_at(orders, repository):
                if error:
                    raise error
        except (RuntimeError, Killed):
            pass
        ends = [path for path in notes(orders, repository) if path.endswith(".end.json")]
        said = [json.loads(attempts_place(repository, orders).read(path))["outcome"] for path in ends]
        assert said == ([outcome] if outcome else [])
        with attempt_at(orders, repository) as fence:
            assert fence.attempt.number == 2

    def test_two_that_begin_at_the_same_moment(self, orders: Location, repository: Repository) -> None:
        def first(operation: str, path: str) -> None:
            if operation == "create" and path.endswith("/000001.json"):
                attempts_place(repository, orders).create("000001.json", b"{}")

        held, _ = watched(repository.location, first)
        with (
            pytest.raises(ChangeRunningError, match="began at the same moment"),
            attempt_at(orders, Repository.open(held)),
        ):
            pytest.fail("it has no fence")

    def test_half_a_note_is_an_attempt_of_nobody(self, orders: Location, repository: Repository) -> None:
        """Its writer was killed on a store without atomic writes; its number is taken all the same."""
        place = attempts_place(repository, orders)
        place.create("000007.json", b'{"plan_id": "be')
        place.create("9.json", b"{}")  # no attempt has made it: its name would be 000009.json
        seen = newest_attempt(place)
        assert seen is not None
        assert (seen.number, seen.plan_id, seen.terms) == (7, "unknown", LeaseTerms())

    def test_a_lease_that_nobody_waits_for_is_of_nobody(self, orders: Location, repository: Repository) -> None:
        """A change that was refused ended with an OverflowError, and the next one waited for thousands of years."""
        place = attempts_place(repository, orders)
        with attempt_at(orders, repository):
            document = json.loads(place.read("000001.json"))
        for number, name in enumerate(("lease", "request_timeout"), 2):
            place.create(f"{number:06d}.json", json.dumps({**document, name: 1e12}).encode())
            seen = newest_attempt(place)
            assert seen is not None
            assert (seen.number, seen.plan_id, seen.terms) == (number, "unknown", LeaseTerms())
        assert was_changed_since(repository, orders, Clocks(), but_in="")

    def test_the_environment_sets_the_terms(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(LEASE_VARIABLE, raising=False)
        assert LeaseTerms.given() == LeaseTerms(120.0, 90.0)
        monkeypatch.setenv(LEASE_VARIABLE, "2.5")
        assert LeaseTerms.given() == LeaseTerms(2.5, 2.5)


class TestAnEarlierAttempt:
    def test_at_work_in_this_process(self, orders: Location, repository: Repository) -> None:
        with attempt_at(orders, repository, made_by="a colleague") as first:
            with pytest.raises(ChangeRunningError) as error, attempt_at(orders, repository):
                pytest.fail("it has no fence")
            assert error.value.message == f"{orders} is being changed by {first.attempt.words}"
            assert "of a colleague" in error.value.message
            first.check()
        assert notes(orders, repository) == ["000001.end.json", "000001.json"]

    def test_that_was_killed_in_this_process(self, orders: Location, repository: Repository) -> None:
        """Its lease would last for half a minute; nobody waits for it."""
        with pytest.raises(Killed), attempt_at(orders, repository):
            raise Killed
        began = threading.active_count()
        with attempt_at(orders, repository) as second:
            assert second.attempt.number == 2
            assert threading.active_count() == began + 1

    def test_silent_on_another_host(self, orders: Location, repository: Repository) -> None:
        """It is given the time of its lease and of a request; then nothing of it can arrive any more."""
        place, mine = attempts_place(repository, orders), []
        with attempt_at(orders, repository, terms=SHORT) as fence:
            mine.append(fence.attempt)
        place.delete("000001.end.json")
        elsewhere = replace(mine[0], host="elsewhere", process="another-boot/pid:[1]/77", nonce="another")
        place.replace("000001.json", json.dumps(elsewhere.to_json()).encode())
        began = time.monotonic()
        with attempt_at(orders, repository) as second:
            assert second.attempt.number == 2
            assert time.monotonic() - began >= SHORT.lease + SHORT.request_timeout

    def test_that_says_its_end_while_it_is_waited_for(self, orders: Location, repository: Repository) -> None:
        place = attempts_place(repository, orders)
        terms = LeaseTerms(lease=2.0, request_timeout=3600.0)
        gone = Attempt(1, "7f3a", "a rewind", "", "elsewhere", 77, "another-boot/pid:[1]/77", "n", "", terms)
        place.create("000001.json", json.dumps(gone.to_json()).encode())

        def end_it(operation: str, path: str) -> None:
            if operation == "create" and path.endswith("/000002.json"):
                place.create("000001.end.json", b'{"outcome": "done"}')

        held, _ = watched(repository.location, end_it)
        with attempt_at(orders, Repository.open(held)) as second:  # an hour is not waited
            assert second.attempt.number == 2

    def test_a_third_one_comes_while_the_second_waits(self, orders: Location, repository: Repository) -> None:
        place = attempts_place(repository, orders)
        gone = Attempt(1, "7f3a", "a rewind", "", "elsewhere", 77, "another-boot/pid:[1]/77", "n", "", SHORT)
        place.create("000001.json", json.dumps(gone.to_json()).encode())
        third = replace(gone, number=3, plan_id="cafe", nonce="third")

        def overtake(operation: str, path: str) -> None:
            if operation == "read" and path.endswith("/000001.end.json") and "000002.json" in place.walk():
                place.replace("000003.json", json.dumps(third.to_json()).encode())

        held, _ = watched(repository.location, overtake)
        with (
            pytest.raises(ChangeRunningError, match=r"is being changed by attempt 3 \(plan cafe"),
            attempt_at(orders, Repository.open(held)),
        ):
            pytest.fail("it has no fence")


class Holder:
    """An attempt in another process; see :mod:`tests.support.hold_fence`."""

    def __init__(self, place: Path, terms: LeaseTerms) -> None:
        self.place = open_location(str(place / "orders"))
        self.repository = Repository.open_or_create(open_location(str(place / "backups")))
        told = [self.repository.location.root, self.place.root, str(terms.lease), str(terms.request_timeout)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.hold_fence", *told],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.says() == "begun"

    def says(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def writes(self, name: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return self.says()

    def stop(self) -> None:
        """Let it stand still, as a worker that is swapped out."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def wake_up(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


Hold = Callable[[LeaseTerms], Holder]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    held: list[Holder] = []

    def begin(terms: LeaseTerms) -> Holder:
        held.append(Holder(tmp_path, terms))
        return held[-1]

    yield begin
    for holder in held:
        holder.close()


class TestAnAttemptInAnotherProcess:
    def test_at_work(self, hold: Hold) -> None:
        first = hold(LeaseTerms(6.0, 1.0))
        with (
            pytest.raises(ChangeRunningError, match=r"is being changed by attempt 1 \(plan 7f3a, a rewind of first"),
            attempt_at(first.place, first.repository),
        ):
            pytest.fail("it has no fence")
        assert first.writes("still-mine") == "written"
        assert "000002.json" not in notes(first.place, first.repository)

    def test_ended(self, hold: Hold) -> None:
        first = hold(LONG)
        first.process.communicate()  # closes its standard input
        assert first.process.returncode == 0
        with attempt_at(first.place, first.repository) as second:
            assert second.attempt.number == 2

    def test_dead_on_this_host(self, hold: Hold) -> None:
        """Nobody waits for the half minute of its lease."""
        first = hold(LONG)
        first.process.kill()
        first.process.wait()
        asked: list[str] = []
        held, _ = watched(first.repository.location, lambda operation, path: asked.append(path))
        with attempt_at(first.place, Repository.open(held)) as second:
            assert second.attempt.number == 2
        assert sum(path.endswith("000001.end.json") for path in asked) <= 2, "its end was waited for"

    def test_stopped_and_awake_again(self, hold: Hold) -> None:
        """It is not dead, so its lease is waited for; when it wakes up it writes nothing, and names who took over."""
        first = hold(SHORT)
        assert first.writes("before") == "written"
        first.stop()
        with attempt_at(first.place, first.repository, made_by="second") as second:
            second.guarding(first.place).create("of-the-second", b"")
            first.wake_up()
            said = first.writes("too-late")
            assert "has lost its lease" in said
            assert said.endswith(f"{second.attempt.words} took over")
            assert first.process.wait() == 1
        assert sorted(first.place.walk()) == ["before", "of-the-second"]


class TestTheLease:
    def test_it_is_renewed(self, orders: Location, repository: Repository) -> None:
        place, began = attempts_place(repository, orders), time.monotonic()
        with attempt_at(orders, repository, terms=LeaseTerms(2.0, 1.0)) as fence:
            seen = set()

            def renewed_twice() -> bool:
                file = place.find("000001.alive.json")
                seen.add(file and place.read(file.path))
                return len(seen - {None}) >= 2

            wait_until(renewed_twice, "two signs of life")
            wait_until(lambda: time.monotonic() - began > fence.attempt.terms.lease, "the end of the first lease")
            fence.check()

    @pytest.mark.parametrize("clock", [0, 1, 2], ids=["monotonic", "boot time", "wall clock"])
    def test_one_clock_is_enough_to_end_it(
        self, orders: Location, repository: Repository, clock: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A computer that slept, a virtual machine that was paused: some of its clocks were suspended."""
        now = [100.0, 200.0, 300.0]
        monkeypatch.setattr(Clocks, "_now", lambda self: tuple(now))

        def run() -> None:
            with attempt_at(orders, repository) as fence:
                place = fence.guarding(orders)
                now[clock] += LONG.lease - 1
                place.create("in-time", b"")
                now[clock] += 2
                for change in (
                    lambda: place.create("late", b""),
                    lambda: place.replace("in-time", b"late"),
                    lambda: place.delete("in-time"),
                    lambda: place.delete_listed(place.walk()["in-time"]),
                    lambda: place.replace_listed(place.walk()["in-time"], b"late"),
                ):
                    with pytest.raises(LeaseLostError, match="it writes nothing more"):
                        change()
                assert place.read("in-time") == b""  # reading is free
                now[clock] -= 2
                place.create("late", b"")

        with pytest.raises(LeaseLostError, match="could not be renewed for"):
            run()
        assert sorted(orders.walk()) == ["in-time"]

    def test_a_wall_clock_that_is_put_back_makes_it_no_longer(
        self, orders: Location, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [100.0, 200.0, 300.0]
        monkeypatch.setattr(Clocks, "_now", lambda self: tuple(now))

        def run() -> None:
            with attempt_at(orders, repository) as fence:
                now[:] = [100.0 + LONG.lease + 1, 200.0 + LONG.lease + 1, 0.0]
                fence.check()

        with pytest.raises(LeaseLostError):
            run()

    def test_a_renewal_that_fails_is_tried_again(self, orders: Location, repository: Repository) -> None:
        failures = [2]

        def fail(operation: str, path: str) -> None:
            if operation == "replace" and path.endswith(".alive.json") and failures[0]:
                failures[0] -= 1
                raise StorageError("could not replace it: 503")

        held, _ = watched(repository.location, fail)
        with attempt_at(orders, Repository.open(held), terms=LeaseTerms(4.0, 1.0)) as fence:
            place = attempts_place(repository, orders)
            wait_until(lambda: "000001.alive.json" in place.walk() or is_lost(fence), "a sign of life")
            assert failures == [0]
            fence.check()

    @pytest.mark.parametrize("operation", ["list", "replace"])
    def test_a_repository_that_does_not_answer_ends_it(
        self, orders: Location, repository: Repository, operation: str
    ) -> None:
        begun = threading.Event()

        def fail(asked: str, path: str) -> None:
            if begun.is_set() and asked == operation and "/changes/" in path:
                raise StorageError("no route to host")

        held, _ = watched(repository.location, fail)

        def run() -> None:
            with attempt_at(orders, Repository.open(held), terms=SHORT) as fence:
                begun.set()
                wait_until(lambda: is_lost(fence), "the end of the lease")
                fence.check()

        with pytest.raises(LeaseLostError, match="could not be renewed"):
            run()
        assert [path for path in notes(orders, repository) if path.endswith(".end.json")] == []

    def test_a_renewal_that_finds_a_later_attempt(self, orders: Location, repository: Repository) -> None:
        """Long before the lease is over."""
        place = attempts_place(repository, orders)
        later: list[Attempt] = []

        def run() -> None:
            with attempt_at(orders, repository, terms=LeaseTerms(2.0, 1.0)) as fence:
                later.append(replace(fence.attempt, number=2, plan_id="cafe", made_by="a colleague", nonce="later"))
                place.create("000002.json", json.dumps(later[0].to_json()).encode())
                wait_until(lambda: is_lost(fence), "the renewal that finds it")
                fence.check()

        with pytest.raises(LeaseLostError) as error:
            run()
        assert f"has lost its lease: {later[0].words} took over" in error.value.message
        assert error.value.hint == "run the same command again: it continues, or says what was done"
