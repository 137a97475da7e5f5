"""Several sinks of one query, and rewinds of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import QUERY_ID
from tests.support.delta_batches import batches_in, delta_table
from tests.support.file_sinks import file_sink
from tests.support.rewinds import NEWEST, repository
from tests.support.stopped import STOPPED

ROLLBACK, FORWARD, KEEP = SinkPolicy.ROLLBACK, SinkPolicy.FORWARD, SinkPolicy.ACCEPT


class Sinks:
    """Two Delta tables and the output of a file sink, each with batches 4 to 6 and more."""

    def __init__(self, root: Path) -> None:
        self.first = delta_table(root / "first", range(4, NEWEST + 1))
        self.second = delta_table(root / "second", range(4, NEWEST + 1), app_id="copies")
        self.files = file_sink(open_location(str(root / "files")), NEWEST)
        self.all = [Sink(place=self.first), Sink(place=self.second, app_id="copies"), Sink(place=self.files)]

    def state(self) -> tuple[Any, ...]:
        """What readers see of each, and what the tables remember."""
        return (
            batches_in(self.first),
            batches_in(self.second),
            DeltaTable(self.first.uri).transaction_version(QUERY_ID),
            DeltaTable(self.second.uri).transaction_version("copies"),
            {path: self.files.read(path) for path in self.files.walk()},
        )


def plan_of(orders: Location, sinks: Sequence[Sink], batch: int = 4, **options: Any) -> RewindPlan:
    options.setdefault("sink_exit", ROLLBACK)
    return plan_rewind(Checkpoint.at(orders), Specifier("to_batch", str(batch)), sink=sinks, guards=(), **options)


def carry_out(orders: Location, sinks: Sequence[Sink], held: Repository | None = None, **options: Any) -> Any:
    plan = plan_of(orders, sinks, **options)
    return apply_rewind(plan, Checkpoint.at(orders), held or repository(orders), sink=sinks, rest=STOPPED)
