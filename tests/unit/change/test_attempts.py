"""What a repository keeps of attempts at a checkpoint: whether one was done since a moment."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.attempts import attempts_place, was_changed_since
from airflow_ckpt_provider.change.fence import fenced
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from tests.support.fenced_attempts import attempt_at, attempt_that, notes
from tests.support.fenced_attempts import orders as orders
from tests.support.fenced_attempts import repository as repository
from tests.support.later_clocks import InAnHour
from tests.support.waiting import wait_until
from tests.support.watched_stores import watched


class TestWhatWasDoneSince:
    """Of another host only the store's times can be compared with ours."""

    @pytest.mark.parametrize("elsewhere", [False, True])
    @pytest.mark.parametrize(("passed", "found"), [(0.0, False), (3600.0, True)])
    def test_an_attempt_that_was_done(self, place: Location, elsewhere: bool, passed: float, found: bool) -> None:
        repository = Repository.open_or_create(place / "backups")
        with fenced(repository, place / "orders", plan_id="first", what="a restore", made_by="a") as first:
            pass
        attempts = attempts_place(repository, place / "orders")
        if elsewhere:
            document = json.loads(attempts.read("000001.json")) | {"process": "other/other/1"}
            attempts.replace("000001.json", json.dumps(document).encode())
        ended = {file.path: file for file in attempts.list().files}["000001.end.json"].modified
        assert ended is not None
        over = ended + timedelta(seconds=1.1)  # some stores tell whole seconds
        wait_until(lambda: datetime.now(UTC) > over)
        since = Clocks(passed=passed)
        with fenced(repository, place / "orders", plan_id="second", what="a reset", made_by="b") as second:
            other = second.done_since(since)
        assert (other is not None) is found
        assert not other or other.plan_id == first.attempt.plan_id

    def test_an_attempt_that_failed_since_does_not_hide_it(self, place: Location) -> None:
        repository = Repository.open_or_create(place / "backups")
        for made_by in ("run 1/first", "run 2/first", "run 3/first"):
            with (
                suppress(RefusedError),
                fenced(repository, place / "orders", plan_id=made_by, what="x", made_by=made_by),
            ):
                if made_by == "run 3/first":
                    raise RefusedError("refused")
        with fenced(repository, place / "orders", plan_id="second", what="a reset", made_by="run 2/second") as second:
            found = [second.done_since(Clocks(passed=3600), but_in=but_in) for but_in in ("", "run 2/", "run")]
            assert second.done_since(InAnHour()) is None
        assert [other and other.plan_id for other in found] == ["run 2/first", "run 1/first", None]

    def test_an_attempt_that_was_refused_has_changed_nothing(self, place: Location) -> None:
        repository = Repository.open_or_create(place / "backups")
        with (
            pytest.raises(RefusedError),
            fenced(repository, place / "orders", plan_id="first", what="a restore", made_by="a"),
        ):
            raise RefusedError("not accepted")
        with fenced(repository, place / "orders", plan_id="second", what="a reset", made_by="b") as second:
            assert second.done_since(Clocks(passed=3600)) is None

    @pytest.mark.parametrize(
        ("earlier", "found"),
        [
            (["refused"], None),
            (["done", "refused", "refused"], 1),
            (["done", "failed", "refused"], 2),  # it may have changed something, and somebody may have lifted its seal
            (["done", "killed", "refused"], 2),
            (["killed", "refused"], 1),
        ],
    )
    def test_attempts_of_which_the_newest_was_refused(
        self, orders: Location, repository: Repository, earlier: list[str], found: int | None
    ) -> None:
        """One that was refused has changed nothing, and says nothing of those before it."""
        for how in earlier:
            attempt_that(how, orders, repository)
        with attempt_at(orders, repository) as mine:
            other = mine.done_since(Clocks(passed=3600))
            assert (other.number if other else None) == found
            assert mine.done_since(InAnHour()) is None

    def test_attempts_that_ended_before_are_not_read(self, orders: Location, repository: Repository) -> None:
        for how in ("done", "killed", "done", "done"):
            attempt_that(how, orders, repository)
        read: list[str] = []
        held, _ = watched(
            repository.location, lambda operation, path: read.append(path) if "read" in operation else None
        )
        with attempt_at(orders, Repository.open(held)) as mine:
            read.clear()
            assert mine.done_since(InAnHour()) is None
        assert {path.rpartition("/")[2] for path in read} == {"000004.json", "000004.end.json"}

    @pytest.mark.parametrize("note", [b'{"at', b'{"at": "2000-01-01T00:00:00", "outcome": "done"}'])
    def test_a_note_that_cannot_be_read_counts_by_the_time_of_its_file(
        self, orders: Location, repository: Repository, note: bytes
    ) -> None:
        """Nor can a time without a zone."""
        attempt_that("done", orders, repository)
        attempts_place(repository, orders).replace("000001.end.json", note)
        with attempt_at(orders, repository) as mine:
            assert mine.done_since(Clocks(passed=3600)) is not None
            assert mine.done_since(InAnHour()) is None


class TestWhetherItWasChangedSince:
    """Without an attempt of one's own. It was, where that is not known of an attempt that has said nothing of its end."""

    @pytest.mark.parametrize(
        ("how", "age", "alive", "elsewhere", "expected"),
        [
            ("done", 3550, None, False, True),
            ("done", 3610, None, False, False),  # on one host there is one clock
            ("done", 3610, None, True, True),
            ("done", 3670, None, True, False),
            ("refused", 0, None, False, False),
            ("killed", 3610, None, False, True),  # it may have written for as long as its lease and its requests last
            ("killed", 3650, None, False, False),
            ("killed", 3650, None, True, True),
            ("killed", 3710, None, True, False),
            ("killed", 7200, 3670, True, True),
            ("killed", 7200, 3710, True, False),
        ],
    )
    def test_an_hour(
        self,
        orders: Location,
        repository: Repository,
        *,
        how: str,
        age: int,
        alive: int | None,
        elsewhere: bool,
        expected: bool,
    ) -> None:
        attempt_that(how, orders, repository)
        attempts = attempts_place(repository, orders)
        ages = dict.fromkeys(attempts.walk(), age) | ({"000001.alive.json": alive} if alive else {})
        for path, seconds in ages.items():
            document = json.loads(attempts.read(path if path in notes(orders, repository) else "000001.json"))
            document["at"] = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
            document |= {"process": "other/other/1"} if elsewhere else {}
            attempts.replace(path, json.dumps(document).encode())
        assert was_changed_since(repository, orders, Clocks(passed=3600), but_in="run 2/") is expected
        assert not was_changed_since(repository, orders, Clocks(passed=3600), but_in="me")
