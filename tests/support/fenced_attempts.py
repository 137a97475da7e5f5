"""Attempts at a change of a checkpoint, within their fence."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.attempts import LeaseTerms, attempts_place
from airflow_ckpt_provider.change.fence import Fence, fenced
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.storage.location import Location
from tests.support.watched_stores import Killed

#: So short that a test can wait for its end, and so long that no renewal of it comes too late on a busy machine.
SHORT, LONG = LeaseTerms(0.3, 0.1), LeaseTerms(30.0, 10.0)


@pytest.fixture
def repository(place: Location) -> Repository:
    return Repository.open_or_create(place / "backups")


@pytest.fixture
def orders(place: Location) -> Location:
    return place / "orders"


def attempt_at(
    orders: Location, repository: Repository, *, terms: LeaseTerms = LONG, made_by: str = "me", plan_id: str = "beef"
) -> AbstractContextManager[Fence]:
    return fenced(repository, orders, plan_id=plan_id, what="a reset", made_by=made_by, terms=terms)


def notes(orders: Location, repository: Repository) -> list[str]:
    return sorted(attempts_place(repository, orders).walk())


def attempt_that(how: str, orders: Location, repository: Repository) -> None:
    """Be an attempt that was done, was refused before it wrote anything, failed after that, or was killed."""
    errors = {"refused": RefusedError("not accepted"), "failed": StorageError("full"), "killed": Killed("dead")}
    with suppress(*map(type, errors.values())), attempt_at(orders, repository) as fence:
        if how != "refused":
            fence.guarding(orders).replace("offsets/0", b"")
        if how in errors:
            raise errors[how]
