"""Roll-backs of one sink without an engine: what an attempt does to the sink, and what happens to it in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltalake import CommitProperties, DeltaTable

from airflow_ckpt_provider.sinks.delta_history import PLAN_KEY
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget
from airflow_ckpt_provider.sinks.kinds import SinkChange
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink

UNDO = "airflow-ckpt undo …"


def change_of(sink: Sink, report: SinkReport, *, query: str, batch: int, **more: Any) -> SinkChange:
    """A rewind of a sink to a batch, by plan ``p``."""
    assert report.rollback is not None
    return SinkChange(
        sink=sink,
        report=report,
        rollback=report.rollback,
        plan_id="p",
        undo_id="p-undo",
        checkpoint="c",
        undo_command=UNDO,
        query_id=query,
        app_id=query,
        batch_id=batch,
        newest=6,
        **more,
    )


def spark_restores(target: TableTarget, expected: int) -> None:
    """As ``jobs/roll_table_back.py``, which keeps the plan as the text of the user."""
    assert DeltaTable(target.table.uri).version() == expected, "it refuses"
    restored_by_spark(target)


def restored_by_spark(target: TableTarget) -> None:
    """The same, after it has compared the version."""
    words = CommitProperties(custom_metadata={"userMetadata": f"{PLAN_KEY}={target.plan_id}"})
    DeltaTable(target.table.uri).restore(target.version, commit_properties=words)


def after_writing(write: Callable[[], object]) -> Callable[[TableTarget, int], None]:
    """Spark, that meets a writer between its comparison and its ``RESTORE``."""

    def by_spark(target: TableTarget, expected: int) -> None:
        write()
        restored_by_spark(target)

    return by_spark
