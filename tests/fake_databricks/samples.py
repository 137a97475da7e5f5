"""The vendor's example: a table ``customers`` that two flows fill, and the day ``dropDuplicates`` was taken out of one.

``customers_initial_flow`` brought the customers of the old system once; ``customers_incremental_flow`` reads what lands in a
directory. Its code is Python and reads ``modifiedAfter`` from the pipeline's configuration.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fake_databricks.flows import DROP_DUPLICATES, Dataset, Flow
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.sources import Source
from tests.fake_databricks.workspace import FakeWorkspace

INITIAL, INCREMENTAL, TABLE = "customers_initial_flow", "customers_incremental_flow", "customers"
#: The first file lands at this time, and another one every hour.
BEGIN = datetime(2026, 8, 20, 0, 0, tzinfo=UTC)


def land(source: Source, count: int, begin: datetime = BEGIN) -> None:
    """Files with one new customer each, an hour apart."""
    for _ in range(count):
        number = source.end
        source.add(begin + timedelta(hours=number), id=f"c{number:03d}", value=f"customer {number}")


def customers(workspace: FakeWorkspace, name: str = "customers", files: int = 6, **settings: Any) -> Pipeline:
    """The pipeline, deployed and run once over what has landed.

    :param name: of the pipeline; its tables are in the schema of this name.
    :param files: how many have landed.
    :param settings: of :class:`Pipeline`.
    """
    old, landing = f"{name}.legacy", f"/landing/{name}"
    legacy = workspace.add_source(old, "delta")
    for number in range(3):
        legacy.add(BEGIN - timedelta(days=30), id=f"old{number}", value=f"customer of the old system {number}")
    land(workspace.add_source(landing), files)
    pipeline = workspace.add_pipeline(
        name,
        schema=name,
        datasets=[Dataset(TABLE)],
        flows=[
            Flow(INITIAL, TABLE, (old,), kind="once"),
            Flow(INCREMENTAL, TABLE, (landing,), operators=(DROP_DUPLICATES,)),
        ],
        **settings,
    )
    pipeline.start({}, cause="USER_ACTION")
    pipeline.advance()
    return pipeline


def remove_drop_duplicates(pipeline: Pipeline) -> None:
    """Deploy the change that the checkpoint does not survive."""
    pipeline.flows[INCREMENTAL].operators = ()


def orders(workspace: FakeWorkspace, name: str = "orders", **settings: Any) -> Pipeline:
    """A pipeline of three layers: Kafka, a cleaned table, and a count over it."""
    topic = workspace.add_source(f"{name}-events", "kafka")
    for number in range(20):
        topic.add(BEGIN + timedelta(minutes=number), id=f"o{number:03d}", value=str(number % 5))
    pipeline = workspace.add_pipeline(
        name,
        schema=name,
        datasets=[Dataset("bronze"), Dataset("silver"), Dataset("latest", keys=("id",))],
        flows=[
            Flow("bronze", "bronze", (f"{name}-events",), start_in_code={"startingOffsets": "earliest"}),
            Flow("silver", "silver", ("bronze",)),
            Flow("latest", "latest", ("bronze",)),
        ],
        **settings,
    )
    pipeline.start({}, cause="USER_ACTION")
    pipeline.advance()
    return pipeline
