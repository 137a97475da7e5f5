"""Iceberg tables of a real REST catalog as sinks: verdict, rollback under the requirements of the commit, undo, no catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.guards.iceberg_client import commit_by_name
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support import iceberg_conformance as by_sql
from tests.support.backups import stream
from tests.support.checkpoints import QUERY_ID, contents, plant
from tests.support.iceberg_tables import NAME, Table
from tests.support.rest_catalog import running_rest_catalog
from tests.support.stopped import STOPPED

pytestmark = pytest.mark.stores


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_rest_catalog(tmp_path_factory.mktemp("rest")) as found:
        yield found


@pytest.fixture
def table(uri: str, tmp_path: Path) -> Iterator[Table]:
    yield Table(tmp_path, rest=uri)
    catalog = load_catalog("lake", type="rest", uri=uri)
    catalog.drop_table("sales.orders")
    catalog.drop_namespace("sales")


@pytest.fixture
def orders(tmp_path: Path) -> Location:
    """A stream with batches 0 to 6."""
    return plant(open_location(str(tmp_path / "orders")), stream(6))


@pytest.mark.parametrize("name", [name for name, (_, held, _) in by_sql.HISTORIES.items() if held is not None])
@pytest.mark.parametrize("target", [0, 2])
def test_the_verdict_is_what_happens(name: str, target: int, table: Table) -> None:
    by_sql.test_the_verdict_is_what_happens(name, target, table)


def test_rolled_back_and_replayed_it_is_exact(table: Table) -> None:
    by_sql.test_rolled_back_and_replayed_it_is_exact(table)


def test_somebody_writes_at_the_same_moment(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    by_sql.test_somebody_writes_at_the_same_moment(table, monkeypatch)


def test_every_requirement_of_the_commit(table: Table) -> None:
    """Another head, another table of the same name, a tag that is there: each alone is refused by the catalog."""
    table.batch(0, 1, 2)
    head, first = table.head or 0, table.table.snapshots()[0].snapshot_id
    right = {
        "uuid": str(table.table.metadata.table_uuid),
        "head": head,
        "snapshot": first,
        "tag": "t",
        "tag_age_ms": 9**9,
    }
    table.table.manage_snapshots().create_tag(first, "there").commit()
    before = table.table.metadata.refs
    for wrong in ({"head": first}, {"uuid": "199ce9d3-fd64-4a41-a1cf-23002acf0134"}, {"tag": "there"}):
        with pytest.raises(RefusedError, match="the table was not changed"):
            commit_by_name(NAME, table.properties, **{**right, **wrong})  # type: ignore[arg-type]
        assert table.table.metadata.refs == before
    commit_by_name(NAME, table.properties, **right)  # type: ignore[arg-type]
    assert (table.head, table.table.metadata.refs["t"].snapshot_id) == (first, head)


def test_back_and_forward_again(table: Table, orders: Location) -> None:
    table.batch(*range(7), query=QUERY_ID)
    with table.table.transaction() as change:
        change.set_properties({"owner": "finance"})
    held, before, repository = table.held, contents(orders), Repository.open_or_create(default_repository(orders))
    to = Specifier("to_batch", "4")
    plan = plan_rewind(Checkpoint.at(orders), to, sink=table.sink, sink_exit=SinkPolicy.ROLLBACK, guards=())
    assert plan.sink_verdict is Verdict.SAFE
    apply_rewind(plan, Checkpoint.at(orders), repository, sink=table.sink, rest=STOPPED)
    assert table.held == held[:5]
    undo(orders, repository, sink=table.sink, rest=STOPPED)
    assert (table.held, contents(orders)) == (held, before)
    assert table.table.properties["owner"] == "finance"


def test_without_its_catalog_it_waits_and_the_same_command_ends_it(tmp_path: Path, orders: Location) -> None:
    """The catalog ends after the plan was made: the table is as it was, and the plan is carried out when it is back."""
    place = tmp_path / "own"
    place.mkdir()
    to = Specifier("to_batch", "4")
    with running_rest_catalog(place) as uri:
        table = Table(tmp_path, rest=uri).batch(*range(7), query=QUERY_ID)
        held = table.held
        plan = plan_rewind(Checkpoint.at(orders), to, sink=table.sink, sink_exit=SinkPolicy.ROLLBACK, guards=())
    repository = Repository.open_or_create(default_repository(orders))
    before = contents(orders)
    with pytest.raises(StorageError, match="could not be loaded"):
        apply_rewind(plan, Checkpoint.at(orders), repository, sink=table.sink, rest=STOPPED)
    assert contents(orders) == before
    with running_rest_catalog(place) as uri:
        table.properties["uri"] = uri
        assert table.sink.storage_options["uri"] == uri
        apply_rewind(plan, Checkpoint.at(orders), repository, sink=table.sink, rest=STOPPED)
        left = (
            load_catalog("lake", type="rest", uri=uri).load_table("sales.orders").scan().to_arrow()["row"].to_pylist()
        )
    assert sorted(left) == held[:5]
