"""A statement that the query is stopped is void where the checkpoint shows that the query has run since."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import QueryNotStoppedError
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import logs, plant
from tests.support.fenced_attempts import attempt_at


def said(ago: float = 600, **more: Any) -> RestRule:
    """Somebody has said so some seconds ago."""
    given: dict[str, Any] = {"query_is_stopped": True, "said_by": "kim@ops", "said_in": "dag/run/"}
    return RestRule(said=Clocks(passed=ago), **given | more)


@pytest.fixture
def orders(tmp_path: Path) -> Location:
    """A checkpoint with batches 0 to 5, which are an hour old."""
    location = plant(open_location(str(tmp_path / "orders")), logs(range(6)))
    for path in location.walk():
        written(location, path, ago=3600)
    return location


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.open_or_create(open_location(str(tmp_path / "backups")))


def written(location: Location, path: str, *, ago: float) -> None:
    """Have a file be written some seconds ago; it exists, or is a copy of the one of batch 5."""
    log, _, _ = path.partition("/")
    if path not in location.walk():
        location.replace(path, location.read(f"{log}/5"))
    os.utime(Path(location.root) / path, (time.time() - ago,) * 2)


def check(rule: RestRule, orders: Location, repository: Repository, *, stopping: bool = False) -> None:
    with attempt_at(orders, repository, made_by="dag/run/restore/-1") as fence:
        rule.check_word(fence, orders, stopping=stopping)


@pytest.mark.parametrize("path", ["commits/6", "offsets/6", "commits/5"])
@pytest.mark.parametrize("stopping", [False, True])
def test_a_batch_since_makes_it_void(orders: Location, repository: Repository, path: str, *, stopping: bool) -> None:
    """The stream has a trigger of a minute: it may be silent while the change watches it."""
    written(orders, path, ago=20)
    with pytest.raises(QueryNotStoppedError) as error:
        check(said(), orders, repository, stopping=stopping)
    assert error.value.message.startswith(f"the query of {orders} has run since kim@ops said, at ")
    assert f": {path} (batch {path[-1]}) was written at " in error.value.message
    assert "stop it again" in str(error.value.hint)
    assert "stopped_since" in str(error.value.hint)


@pytest.mark.parametrize("ago", [3600, 601, 560])
def test_a_batch_before_or_within_what_clocks_differ_does_not(
    orders: Location, repository: Repository, ago: float
) -> None:
    written(orders, "commits/6", ago=ago)
    check(said(), orders, repository)


def test_it_is_about_a_statement_with_an_earlier_time(orders: Location, repository: Repository) -> None:
    """Where nobody says that it is stopped, it may run until it is sealed. A statement on the command line is one of now."""
    written(orders, "commits/6", ago=20)
    for rule in (said(query_is_stopped=False), RestRule(query_is_stopped=True), said(0)):
        check(rule, orders, repository, stopping=True)


def test_a_seal_is_no_batch(orders: Location, repository: Repository) -> None:
    seal(Checkpoint.at(orders), reason="an upgrade", made_by="somebody")
    check(said(), orders, repository)


def test_what_the_same_run_has_written_does_not(orders: Location, repository: Repository) -> None:
    """A restore writes the logs anew, and the same run changes the checkpoint once more."""
    with attempt_at(orders, repository, made_by="dag/run/restore/-1") as fence:
        fence.guarding(orders).replace("commits/5", orders.read("commits/5"))
    check(said(), orders, repository)
    written(orders, "commits/6", ago=-120)
    with pytest.raises(QueryNotStoppedError, match="has run since"):
        check(said(), orders, repository)


def test_what_an_attempt_that_changed_nothing_found_still_does(orders: Location, repository: Repository) -> None:
    written(orders, "commits/6", ago=20)
    for _ in range(2):
        with pytest.raises(QueryNotStoppedError, match="has run since"):
            check(said(), orders, repository)


def test_times_are_compared_on_the_clock_of_the_store(orders: Location, repository: Repository) -> None:
    """That clock is five minutes ahead of the one of this worker."""
    written(orders, "commits/6", ago=500)
    with attempt_at(orders, repository, made_by="dag/run/restore/-1") as fence:
        own = Path(repository.location.root) / fence.directory / f"{fence.attempt.number:06d}.json"
        os.utime(own, (time.time() + 300,) * 2)
        said().check_word(fence, orders)
        written(orders, "commits/6", ago=200)
        with pytest.raises(QueryNotStoppedError, match="has run since"):
            said().check_word(fence, orders)
