"""Batches in a table that an earlier run of the query wrote.

After a restore or a rewind a query plans batches again, perhaps with other rows, and a table that remembers them skips them. Its
commit is then older than the time at which the checkpoint's entry in ``offsets/`` says the batch was planned
(``batchTimestampMs``); the commit of a batch comes after its plan, by the clock of the same driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from airflow_ckpt_provider.checkpoint.gaps import runs
from airflow_ckpt_provider.sinks.delta_history import TableHistory
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.verdict import Verdict


def batches_in(history: TableHistory, ids: QueryIds, batch_id: int) -> dict[int, datetime]:
    """When each batch up to one was committed, of those that the table holds and whose commit says it."""
    found: dict[int, datetime] = {}
    for commit in history.lineage() or ():
        batch = ids.batch_in(commit)
        if batch is not None and batch <= batch_id and commit.time:
            found[batch] = max(commit.time, found.get(batch, commit.time))
    return found


def of_an_earlier_run(committed: Mapping[int, datetime], planned: Mapping[int, datetime]) -> tuple[str, ...]:
    """What is not right of the batches up to the target.

    :param committed: from :func:`batches_in`.
    :param planned: batch -> when the checkpoint says that it was planned, in UTC; batches that are not known are left out.
    """
    older = sorted(batch for batch, at in committed.items() if batch in planned and at < planned[batch])
    if not older:
        return ()
    named = ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs(older))
    return (
        f"the table's commit of {'batch' if len(older) == 1 else 'batches'} {named} is older than the plan of that batch in the "
        "checkpoint: an earlier run of the query wrote it, and the table has skipped the later one; rows that only the later one "
        "read are missing",
    )


def with_doubts(report: SinkReport, doubts: tuple[str, ...]) -> SinkReport:
    """A report with more that is not right up to the target."""
    if not doubts:
        return report
    if report.verdict is Verdict.SAFE:
        return replace(report, verdict=Verdict.UNKNOWN, reasons=(*report.reasons, *doubts))
    return replace(report, doubts=(*report.doubts, *doubts))
