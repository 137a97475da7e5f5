"""`safe_upgrade` of an application with two queries in a real Airflow: stopped once, started once, kept or taken back as one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.stream import SinkPlace, Stream
from airflow_ckpt_provider.upgrade.record import newest_upgrade
from tests.support.airflow_runs import Answer, RunDag, result
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.one_checkpoint import NEWEST, unpack
from tests.support.upgrade_tries import BACK, Tried, fail, skip

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

IDS = {
    "orders": "0d000000-0000-4000-8000-000000000001",
    "returns": "0e000000-0000-4000-8000-000000000002",
}


class Shop(Tried):
    """An upgrade of two streams that nobody runs, each with a Delta table."""

    def __init__(self, root: Path, run_dag: RunDag) -> None:
        self.root = root
        self.checkpoints = {name: unpack(root / "checkpoints" / name) for name in IDS}
        super().__init__(self.checkpoints["orders"], run_dag)
        for name, query_id in IDS.items():
            (self.checkpoints[name] / "metadata").write_text(f'{{"id":"{query_id}"}}')
            delta_table(self.table(name), range(NEWEST + 1), app_id=query_id)

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    @property
    def streams(self) -> list[Stream]:
        return [
            Stream(
                name,
                checkpoint=str(self.checkpoints[name]),
                repository=str(self.root / "backups"),
                sinks=(SinkPlace(sink=str(self.table(name))),),
                application="shop",
            )
            for name in IDS
        ]

    def upgrade(self, **settings: Any) -> Shop:
        given = {"streams": self.streams, "checkpoint": None, "repository": None, **settings}
        super().upgrade(**given)
        return self

    def commit_a_batch(self, *names: str) -> None:
        """What queries do that were started: the next batch of each, in the checkpoint and in the table."""
        for name in names or IDS:
            place, table = self.checkpoints[name], self.table(name)
            newest = max(int(file.name) for file in (place / "commits").glob("[0-9]*"))
            for log in ("offsets", "commits"):
                shutil.copyfile(place / log / str(newest), place / log / str(newest + 1))
            append(table, newest + 1, app_id=IDS[name])

    @property
    def all_sealed(self) -> list[str]:
        return [name for name, place in self.checkpoints.items() if inspect_target(open_location(str(place))).seal]

    def rows(self) -> dict[str, list[int]]:
        return {name: sorted(set(batches_in(open_location(str(self.table(name)))))) for name in IDS}

    def stands_at(self) -> dict[str, int | None]:
        at = (
            Checkpoint.at(open_location(str(place))).progress().latest_committed for place in self.checkpoints.values()
        )
        return dict(zip(IDS, at, strict=True))

    def ended(self) -> list[Any]:
        kept = Repository.open(open_location(str(self.root / "backups")))
        found = [newest_upgrade(kept, name) for name in IDS]
        return [upgrade and upgrade.events.get("ended", {}).get("kind") for upgrade in found]  # type: ignore[call-overload]


@pytest.fixture
def shop(tmp_path: Path, run_dag: RunDag) -> Shop:
    return Shop(tmp_path, run_dag)


@pytest.mark.slow
def test_kept(shop: Shop, answer: Answer) -> None:
    """One stop, one deploy, one start; each stream has its own seal, backup and health gate; one page is approved."""
    shop.upgrade(
        approval=True,
        before=lambda dag: answer(dag.dag_id, "Approve", "u.approve"),
        start=shop.commit_a_batch,
        version="2.7",
    )
    assert (shop.run.state, shop.report["kind"], shop.all_sealed) == ("success", "kept", [])
    assert shop.did == ["stop", "deploy", "start"]
    assert shop.stands_at() == dict.fromkeys(IDS, NEWEST + 1)
    assert shop.ended() == ["kept", "kept"]
    page = result(shop.run, "u.plan")["markdown"]
    assert page.count("### Way back") == 2
    assert "### Upgrade of orders to 2.7, savepoint" in page
    assert "### Upgrade of returns to 2.7, savepoint" in page
    assert page.count("### Then") == 1
    assert shop.tasks["healthy.returns"] == "success"
    backups = {name: result(shop.run, f"u.final_backup.{name}")["backup_id"] for name in IDS}
    assert {name: each["backup_id"] for name, each in result(shop.run, "u.keep")["streams"].items()} == backups


def test_one_of_the_queries_is_not_well(shop: Shop) -> None:
    """The new code of `returns` commits nothing: both go back, with the rows of the other one too."""
    shop.upgrade(start=lambda: shop.commit_a_batch("orders"), start_old=shop.commit_a_batch)
    assert (shop.report["kind"], shop.run.state, shop.all_sealed) == ("taken_back", "failed", [])
    assert shop.did == ["stop", "deploy", "start", *BACK]
    assert shop.tasks["healthy.orders"] == "success"
    assert shop.tasks["healthy.returns"] == "failed"
    # The old code has read the batch again, once in each table.
    assert shop.stands_at() == dict.fromkeys(IDS, NEWEST + 1)
    assert shop.rows() == {name: list(range(NEWEST + 2)) for name in IDS}
    assert shop.ended() == ["taken_back", "taken_back"]


@pytest.mark.slow
def test_one_has_no_way_back(shop: Shop) -> None:
    """It is named, and neither is stopped."""
    (shop.table("returns") / "_delta_log" / f"{0:020d}.json").unlink()
    shop.upgrade()
    assert (shop.failed, shop.did, shop.all_sealed, shop.ended()) == (["begin", "report"], [], [], [None, None])


@pytest.mark.slow
def test_one_cannot_be_put_back(shop: Shop) -> None:
    """Others have written into its table since: both stay sealed, until somebody stops them and clears the run."""
    taken_out = []

    def start() -> None:
        shop.commit_a_batch()
        if not taken_out:
            taken_out.append(append(shop.table("returns"), 77, app_id=None))
        fail()

    shop.upgrade(start=start, start_old=shop.commit_a_batch)
    assert (shop.report["kind"], shop.report["clear"], shop.all_sealed) == ("half_way", "take_back", list(IDS))
    assert shop.tasks["restore"] == "failed"
    assert shop.stands_at() == dict.fromkeys(IDS, NEWEST + 1)
    assert shop.rows()["orders"] == list(range(NEWEST + 2))  # nothing of the other one was changed
    shop.dag.get_task("u.restore").accept = ["foreign_loss"]
    shop.go_on("take_back")
    assert (shop.report["kind"], shop.all_sealed, shop.did) == ("taken_back", [], BACK)
    assert shop.rows() == {name: list(range(NEWEST + 2)) for name in IDS}


@pytest.mark.slow
def test_the_stop_is_skipped(shop: Shop) -> None:
    """The seals stop both queries, and the upgrade goes on."""
    shop.upgrade(stop=skip, start=shop.commit_a_batch)
    assert (shop.report["kind"], shop.run.state, shop.all_sealed) == ("kept", "success", [])


@pytest.mark.slow
def test_policies_of_their_own(shop: Shop) -> None:
    """The rows of one stay, those of the other leave its table."""
    shop.upgrade(
        sink_policy={"orders": "rollback", "returns": "keep"},
        accept=["no_way_back", "sink_unknown"],
        start=lambda: (shop.commit_a_batch(), fail()),
        start_old=skip,
    )
    assert shop.rows() == {"orders": list(range(NEWEST + 1)), "returns": list(range(NEWEST + 2))}
    assert shop.stands_at() == dict.fromkeys(IDS, NEWEST)


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed", ["go", "seal", "final_backup.returns", "release", "keep", "take_back", "seal_again", "restore", "report"]
)
def test_a_task_that_never_ran(shop: Shop, killed: str) -> None:
    """Marked as successful without having run, as after a worker was lost; then the run is cleared from there on."""
    pattern = rf"u\.{killed.replace('.', chr(92) + '.')}$"
    back = killed in ("take_back", "seal_again", "restore")

    def start() -> None:
        if not shop.all_sealed:
            shop.commit_a_batch()
        if back:
            fail()

    def start_old() -> None:
        if not shop.all_sealed:
            shop.commit_a_batch()

    shop.upgrade(start=start, start_old=start_old, run={"mark_success_pattern": pattern})
    if shop.report is None or shop.report["kind"] == "half_way":
        shop.go_on("take_back" if back else killed)
    assert shop.all_sealed == []
    assert shop.report["kind"] == ("taken_back" if back or shop.report["kind"] == "taken_back" else "kept")
    at = set(shop.stands_at().values())
    assert len(at) == 1  # both have the same code
    assert {tuple(rows) for rows in shop.rows().values()} == {tuple(range((at.pop() or 0) + 1))}
