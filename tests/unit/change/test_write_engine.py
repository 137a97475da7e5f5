"""The lent fence: whoever writes for the attempt of another process stops when that is over, or when it was suspended itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.attempts import LeaseTerms, attempts_place
from airflow_ckpt_provider.change.edits import Write
from airflow_ckpt_provider.change.fence import Fence, fenced
from airflow_ckpt_provider.change.write_engine import FilesToWrite, LentFence
from airflow_ckpt_provider.change.writing import write_new
from airflow_ckpt_provider.errors import LeaseLostError, StorageError
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from tests.support.waiting import wait_until
from tests.support.watched_stores import watched

SHORT, LONG = LeaseTerms(1.0, 0.1), LeaseTerms(60.0, 10.0)


@pytest.fixture
def repository(place: Location) -> Repository:
    return Repository.open_or_create(place / "backups")


@pytest.fixture
def driver(place: Location, repository: Repository, request: pytest.FixtureRequest) -> Iterator[Fence]:
    with fenced(
        repository, place / "orders", plan_id="beef", what="a restore", made_by="me", terms=request.param, lends=True
    ) as fence:
        yield fence


def lent(repository: Repository, driver: Fence) -> LentFence:
    return LentFence(repository, FilesToWrite((), driver.attempt, driver.directory))


def why_lost(fence: LentFence) -> str:
    try:
        fence.check()
    except LeaseLostError as e:
        return e.message
    return ""


@pytest.mark.parametrize("driver", [SHORT], indirect=True)
def test_a_read_may_take_longer_than_a_lease(repository: Repository, driver: Fence) -> None:
    """Between two writes nobody calls the fence."""
    since = Clocks()
    with lent(repository, driver) as fence:
        wait_until(lambda: since.elapsed > 2.5 * SHORT.lease, "several leases")
        fence.check()


@pytest.mark.parametrize("driver", [SHORT], indirect=True)
def test_the_driver_died(repository: Repository, driver: Fence, place: Location) -> None:
    """Nothing says that its attempt has ended: somebody may lift the seal by hand, or remove the checkpoint and start anew."""
    with lent(repository, driver) as fence:
        guarded = fence.guarding(place / "orders")
        guarded.create("state/0/0/1.delta", b"1")
        driver.end(None)
        wait_until(lambda: why_lost(fence), "the executor sees that the driver is silent")
        assert "its process has shown no sign of life for" in why_lost(fence)
        with pytest.raises(LeaseLostError):
            guarded.create("state/0/0/2.delta", b"2")
    assert list((place / "orders").walk()) == ["state/0/0/1.delta"]


@pytest.mark.parametrize("driver", [LONG], indirect=True)
def test_suspended_for_an_hour(
    repository: Repository, driver: Fence, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no other attempt has begun: nobody knows what has happened meanwhile."""
    with lent(repository, driver) as fence:
        guarded, now = fence.guarding(place / "orders"), time.time
        monkeypatch.setattr(time, "time", lambda: now() + 3600)
        with pytest.raises(LeaseLostError, match="could not be renewed for 3600"):
            guarded.create("state/0/0/1.delta", b"1")
    assert not list((place / "orders").walk())


@pytest.mark.parametrize("driver", [SHORT], indirect=True)
@pytest.mark.parametrize(
    ("over", "why"),
    [
        (lambda driver, attempts: driver.end("done"), "its attempt has all files, or has ended"),
        (lambda driver, attempts: attempts.create("000001.written.json", b"{}"), "its attempt has all files"),
        (lambda driver, attempts: attempts.create("000002.json", b"{}"), "attempt 2 (plan unknown"),
    ],
)
def test_over_meanwhile(
    repository: Repository,
    driver: Fence,
    place: Location,
    over: Callable[[Fence, Location], object],
    why: str,
) -> None:
    with lent(repository, driver) as fence:
        over(driver, attempts_place(repository, place / "orders"))
        wait_until(lambda: why_lost(fence), "the executor sees that it is over")
        assert why in why_lost(fence)
    with pytest.raises(LeaseLostError):
        lent(repository, driver)  # a task that begins only now


class TestCopiedByTheStore:
    @pytest.fixture
    def copied(self, place: Location) -> Write:
        place.create("backups/objects/o", b"content")
        repository, _ = watched(place / "backups", copies_within=True)
        found = place.find("backups/objects/o")
        assert found is not None
        read = lambda: (place / "backups").read("objects/o")  # noqa: E731
        return Write("state/1.delta", 7, read, (repository, "objects/o", 7, found.checksum))

    def test_somebody_else_has_written_it(self, place: Location, copied: Write) -> None:
        target, _ = watched(place / "orders", copies_within=True)
        target.create("state/1.delta", b"another")
        with pytest.raises(StorageError, match=r"state/1.delta appeared while plan beef was carried out.*\nHINT: "):
            write_new(target, copied, "beef")

    def test_its_object_is_missing(self, place: Location, copied: Write) -> None:
        target, _ = watched(place / "orders", copies_within=True)
        place.delete("backups/objects/o")
        with pytest.raises(StorageError, match=r"state/1.delta: its object objects/o is missing.*\nHINT: "):
            write_new(target, copied, "beef")

    def test_its_content_was_put_into_a_pack_since(self, place: Location, copied: Write) -> None:
        target, _ = watched(place / "orders", copies_within=True)
        place.delete("backups/objects/o")
        write_new(target, replace(copied, read=lambda: b"content"), "beef")
        assert target.read("state/1.delta") == b"content"
