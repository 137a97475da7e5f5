"""Pipelines whose positions are looked for in a fake workspace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.lakeflow.evidence import KafkaState
from airflow_ckpt_provider.lakeflow.examine import examine
from airflow_ckpt_provider.lakeflow.found_position import Terms
from airflow_ckpt_provider.lakeflow.gathering import Readers
from airflow_ckpt_provider.lakeflow.queries import warehouse_queries
from airflow_ckpt_provider.lakeflow.recovery_steps import AboutFlow, RecoverySteps, recovery_steps
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import DROP_DUPLICATES, WAREHOUSE, Dataset, FakeWorkspace, Flow
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.sources import Kind, Source
from tests.support.attempts import Task

NAMES = {"kafka": "orders-events", "delta": "lake.raw.orders", "files": "/landing/orders"}


OPTIONS = {"kafka": "startingOffsets", "delta": "startingVersion", "files": "modifiedAfter"}


def kafka_of(workspace: FakeWorkspace, topics: Sequence[str]) -> KafkaState:
    """What a broker says of the workspace's topics, one partition each."""
    source = workspace.sources[topics[0]]

    def at(time: datetime) -> dict[str, dict[int, int]]:
        return {source.name: {0: min((r.position for r in source.kept() if r.timestamp >= time), default=source.end)}}

    first, end = {source.name: {0: source.first}}, {source.name: {0: source.end}}
    return KafkaState(first, end, source.append_time, at)


def land(workspace: FakeWorkspace, source: Source, count: int = 1) -> None:
    for _ in range(count):
        source.add(workspace.clock.now(), id=f"o{len(source.rows):04d}-{source.end}")
        workspace.clock.advance(seconds=1)


def run(workspace: FakeWorkspace, pipeline: Pipeline, **body: Any) -> None:
    pipeline.start(body, cause="USER_ACTION")
    pipeline.advance()
    workspace.clock.advance(minutes=5)


def made(
    workspace: FakeWorkspace, kind: Kind, *, keys: tuple[str, ...] = (), **settings: Any
) -> tuple[Pipeline, Source]:
    """A flow that has read 12 rows in three updates, an hour apart."""
    source = workspace.add_source(NAMES[kind], kind)
    start = {"startingOffsets": "earliest"} if kind == "kafka" else {}
    flow = Flow("orders", "orders", (NAMES[kind],), start_in_code=start)
    pipeline = workspace.add_pipeline("sales", datasets=[Dataset("orders", keys=keys)], flows=[flow], **settings)
    for _ in range(3):
        land(workspace, source, 4)
        workspace.clock.advance(minutes=10)
        run(workspace, pipeline)
        workspace.clock.advance(hours=1)
    return pipeline, source


def broken(workspace: FakeWorkspace, pipeline: Pipeline, source: Source, unread: int = 3) -> None:
    """New rows, and new code that the checkpoint does not survive."""
    workspace.clock.advance(hours=2)
    land(workspace, source, unread)
    workspace.clock.advance(minutes=10)
    pipeline.flows["orders"].operators = (DROP_DUPLICATES,) if not pipeline.flows["orders"].operators else ()
    run(workspace, pipeline)
    assert pipeline.updates[-1].state == "FAILED"
    # As the code of the flow has it that is deployed for the recovery.
    pipeline.flows["orders"].operators = ()
    pipeline.flows["orders"].checkpoint.operators = ("gone",)  # type: ignore[union-attr]


def steps(
    workspace: FakeWorkspace, pipeline: Pipeline, kind: Kind, *, kafka: bool = True, warehouse: bool = True, **said: Any
) -> RecoverySteps:
    hook = DatabricksPipelinesHook()
    margin = said.pop("margin", None)
    key = {OPTIONS[kind]: f"orders.{OPTIONS[kind]}"}
    facts = {"sources": {NAMES[kind]: kind}, "carried_by": key, "language": "python", "stateful": False} | said
    queries = warehouse_queries(hook, WAREHOUSE, sleep=lambda _: None)
    readers = Readers(queries if warehouse else None, (lambda topics: kafka_of(workspace, topics)) if kafka else None)
    examined = examine(hook, pipeline.pipeline_id)
    flow = next(iter(examined.flows.flows))
    return recovery_steps(
        hook, examined, readers, flows=[flow], about=AboutFlow.from_json({flow: facts}), terms=Terms(margin=margin)
    )


def go(pipeline: Pipeline, found: RecoverySteps) -> None:
    """Reset as the steps say, with what they accept."""
    verdict = found.verdict.value
    result = Task(
        lambda: ResetCheckpointOperator(
            task_id="reset",
            pipeline_id=pipeline.pipeline_id,
            flows=[each.flow for each in found.flows],
            starting_positions=found.starting_positions,
            configuration=found.configuration,
            parameters=found.parameters,
            accept=None if verdict == "SAFE" else verdict,
            mode="apply",
            poll_interval=0.001,
        )
    ).attempt()
    assert result["state"] == "COMPLETED"


def rows_of(workspace: FakeWorkspace) -> tuple[int, int]:
    """Rows, and different ones."""
    ids = [row["id"] for row in workspace.rows("main.sales.orders")]
    return len(ids), len(set(ids))


def only(found: RecoverySteps) -> Any:
    return found.flows[0].positions[0]
