"""An application with two queries on real Spark: lost and restored as one set, and upgraded as one by a real Airflow."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, BaseOperator

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.sets import create_set
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.recovery.chains.set_restore import restore_set
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.stream import SinkPlace, Stream
from airflow_ckpt_provider.task_groups.safe_upgrade import safe_upgrade
from tests.support.airflow_runs import RunDag, known, metadata_database, run_dag
from tests.support.rewinding import Story, difference
from tests.support.safe_upgrades.upgrades import UpgradeRun
from tests.support.stopped import STOPPED, wait_until_quiet
from tests.support.streams.data import put_files
from tests.support.streams.spark_host import Run, SparkHost
from tests.support.waiting import wait_until

__all__ = ["known", "metadata_database", "run_dag"]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

KINDS = {"orders": "dedup_to_delta", "returns": "windows_to_delta"}
EXACT = dict.fromkeys(KINDS, (0, 0))


class Shop:
    """Two queries with state in one application, each with a Delta table.

    :ivar runs: the queries that run.
    """

    def __init__(self, host: SparkHost, root: Path) -> None:
        self.root = root
        self.stories = {name: Story(host, root / name, kind) for name, kind in KINDS.items()}
        self.kept = Repository.open_or_create(open_location(str(root / "backups")))
        self.runs: dict[str, Run] = {}
        for story in self.stories.values():
            story.run(4)

    def quiet(self) -> None:
        """The JVM lives on: its maintenance may still be at work on the state of the queries that have ended."""
        for story in self.stories.values():
            wait_until_quiet(story.place, quiet_for=1.0, at_most=60)

    def compared(self) -> dict[str, tuple[int, int]]:
        """Rows that are lost, and rows that are wrong, of each table."""
        return {name: difference(story.reference(), story.rows()) for name, story in self.stories.items()}

    def feed(self, files: int) -> None:
        for story in self.stories.values():
            put_files(story.source, files, start=story.made)
            story.made += files

    def start(self, *, faulty: bool = False) -> None:
        for name, story in self.stories.items():
            self.runs[name] = story.host.start(
                story.kind, source=story.source, checkpoint=story.checkpoint, out=story.out, faulty=faulty
            )

    def stop(self) -> None:
        """Stop them between batches: an upgrade takes a stream with a batch under way back."""
        for run in self.runs.values():
            run.drain()
        for run in self.runs.values():
            run.wait()
        self.runs.clear()

    def read_all(self) -> None:
        """Wait until the queries that run have read what there is."""
        wait_until(lambda: all(s.newest >= s.made - 1 for s in self.stories.values()), "all files were read")


@pytest.fixture
def shop(spark_host: SparkHost, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(spark_host, tmp_path)
    yield made
    made.stop()


def test_lost_and_restored_as_one(shop: Shop) -> None:
    """Both checkpoints are gone; both go on from the set, and each table has every row once."""
    shop.quiet()
    made = create_set({name: story.ckpt for name, story in shop.stories.items()}, shop.kept)
    for story in shop.stories.values():
        shutil.rmtree(story.checkpoint)
    streams = [ChainStream(name, story.place, (story.sink,)) for name, story in shop.stories.items()]
    plan, _ = restore_set(streams, shop.kept, rest=lambda _: STOPPED)
    assert plan.set_id == made.set_id
    shop.feed(3)
    for story in shop.stories.values():
        story.go_on()
    assert shop.compared() == EXACT


class Upgraded(UpgradeRun):
    """An upgrade of the shop to code that may have a bug."""

    def __init__(self, shop: Shop, run_dag: RunDag, *, faulty: bool) -> None:
        self.shop, self.deployed, self.did = shop, {"faulty": False}, list[str]()
        acts: dict[str, Callable[[], object]] = {
            "stop": shop.stop,
            "deploy": lambda: self.deployed.update(faulty=faulty),
            "start": self.start,
            "roll_back_code": lambda: self.deployed.update(faulty=False),
            "checks": self.check,
        }
        with DAG(f"upgrade_{uuid.uuid4().hex[:8]}", schedule=None) as dag:
            safe_upgrade(
                "u",
                streams=[
                    Stream(
                        name,
                        checkpoint=str(story.checkpoint),
                        repository=str(shop.root / "backups"),
                        sinks=(SinkPlace(sink=str(story.out)),),
                    )
                    for name, story in shop.stories.items()
                ],
                preflight=None,
                approval=False,
                quiet_for=1.0,
                rest_timeout=120.0,
                stuck_after=30.0,
                retries=0,
                health={
                    **{"new_batches": 1, "warm_up": 0, "poll_interval": 0.5, "timeout": 120.0},
                    **dict.fromkeys(("duration_within", "input_within", "lag_within")),
                },
                **{name: self.task(act) for name, act in acts.items()},
            )
        self.dag = dag
        self.run = run_dag(dag)

    def task(self, act: Callable[[], object]) -> Callable[[str], BaseOperator]:
        def call(task_id: str) -> None:
            self.did.append(task_id)
            act()

        def make(task_id: str) -> BaseOperator:
            return PythonOperator(task_id=task_id, python_callable=call, op_args=[task_id], retries=0)

        return make

    def start(self) -> None:
        self.shop.feed(2)
        self.shop.start(**self.deployed)

    def check(self) -> None:
        self.shop.read_all()
        wrong = {name: found[1] for name, found in self.shop.compared().items() if found[1]}
        if wrong:
            raise ValueError(f"wrong rows: {wrong}")


@pytest.mark.airflow
@pytest.mark.parametrize("faulty", [False, True])
def test_upgraded_as_one(shop: Shop, run_dag: RunDag, faulty: bool) -> None:
    """Kept or taken back, each table is that of a query that never had the bug; both run the same code in the end."""
    shop.start()
    shop.feed(1)
    shop.read_all()
    found = Upgraded(shop, run_dag, faulty=faulty)
    back = ["stop_new", "roll_back_code", "start_old"] if faulty else []
    kind: Any = found.report["kind"]
    assert (kind, found.run.state) == (("taken_back", "failed") if faulty else ("kept", "success"))
    assert found.did == ["stop", "deploy", "start", "checks", *back]
    assert not any(inspect_target(story.place).seal for story in shop.stories.values())
    shop.read_all()
    shop.stop()
    assert shop.compared() == EXACT
