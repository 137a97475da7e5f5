"""The repositories beside a checkpoint. Of a whole bucket there are none: ``bucket.rewinds`` is another one, of somebody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_ckpt_provider.backup.beside import default_repository, repair_place, repository_at, those_beside
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError, RepositoryError
from airflow_ckpt_provider.recovery.kept_changes import repositories_beside
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import Store


@pytest.fixture
def bucket(place: Location) -> Location:
    return Location(place.store, "bucket")


@pytest.mark.parametrize("of", [default_repository, repair_place, lambda checkpoint: repository_at(None, checkpoint)])
def test_a_whole_bucket_has_no_place_beside_it(bucket: Location, of: Callable[[Location], object]) -> None:
    with pytest.raises(RefusedError, match=r"there is no place beside .*bucket"):
        of(bucket)


def test_nothing_is_asked_for_in_another_bucket(bucket: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(store: Store, path: str, most: int) -> bytes:
        raise AssertionError(path)

    monkeypatch.setattr(type(bucket.store), "read_at_most", asked)
    assert list(those_beside(bucket)) == repositories_beside(bucket) == []


def test_those_that_are_there(place: Location) -> None:
    orders = place / "orders"
    assert list(those_beside(orders)) == []
    made = [Repository.open_or_create(of(orders)) for of in (default_repository, repair_place)]
    assert [each.location.uri for each in those_beside(orders)] == [each.location.uri for each in made]


def test_one_that_cannot_be_opened_is_an_error(place: Location) -> None:
    """It may keep the plan of a change that is half-way."""
    default_repository(place / "orders").create("repository.json", b"forged")
    with pytest.raises(RepositoryError):
        list(those_beside(place / "orders"))


@pytest.mark.parametrize(
    ("checkpoint", "is_flow"),
    [
        ("lake/pipeline/_checkpoints/main/sales/orders/ingest/3", True),
        ("lake/_checkpoints/lake/pipeline/_checkpoints/main/sales/orders/ingest/3", False),
        ("lake/pipeline/_checkpoints/orders", False),
        ("lake/pipeline/_checkpoints/team/orders", False),
        ("lake/pipeline/_checkpoints/main/sales/orders/ingest/live", False),
    ],
)
def test_only_a_flow_has_one_beside_its_pipeline(place: Location, checkpoint: str, is_flow: bool) -> None:
    """A stream whose checkpoint lies below its table has none there: ``pipeline.rewinds`` is of another checkpoint."""
    made = Repository.open_or_create(default_repository(place / "lake/pipeline"))
    Repository.open_or_create(default_repository(place / "lake"))
    found = [each.location.uri for each in repositories_beside(place / checkpoint)]
    assert found == ([made.location.uri] if is_flow else [])
