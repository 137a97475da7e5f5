"""A Delta table as the sink of a query: what it will skip, and to which version it has to go back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_ckpt_provider.sinks.delta_history import TableCommit, TableHistory
from airflow_ckpt_provider.sinks.report import SinkReport, SinkRollback
from airflow_ckpt_provider.verdict import Verdict

#: Table features under which ``deltalake`` restores a table rightly; with any other Spark does it.
RESTORED_WITHOUT_SPARK = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "timestampNtz"}
)


def is_append_only(configuration: Mapping[str, str]) -> bool:
    """Whether a table's properties forbid that rows are taken out of it (``delta.appendOnly``).

    Spark refuses ``RESTORE`` then; ``deltalake`` does not look, and breaks what the table's owner has set.
    """
    return str(configuration.get("delta.appendOnly", "")).lower() == "true"


def inspect_delta(
    history: TableHistory,
    app_id: str,
    batch_id: int,
    *,
    remembered: int | None = None,
    later: Collection[str | None] = (),
) -> SinkReport:
    """Judge a start after ``batch_id``.

    :param history: the table's log.
    :param app_id: the query id, or the ``txnAppId`` that ``foreachBatch`` writes with.
    :param batch_id: the batch after which the query will start.
    :param remembered: newest ``txn`` of the app id as a client knows it, for a log that was cleaned up.
    :param later: ids of queries that have taken this one's place since: all of theirs lies beyond the batch.
    """
    memory = history.remembered(app_id)
    memory = remembered if memory is None else memory
    lineage = history.lineage()
    unknown = SinkReport("delta", history.uri, Verdict.UNKNOWN, (), remembered=memory)
    if memory is None and not history.is_whole:
        return replace(
            unknown,
            reasons=(
                f"the table's log begins at version {history.first} and does not name the query {app_id}: whether it "
                "remembers batches from before cannot be told from the log alone",
            ),
            obstacle="what the table remembers is not known; install airflow-ckpt-provider[delta], which reads log checkpoints",
        )
    if lineage is None:
        return replace(
            unknown,
            reasons=("the table was restored to a version that its log does not have any more",),
            obstacle="which batches the table holds cannot be told from its log",
        )
    held = max((c.txns[app_id] for c in lineage if app_id in c.txns), default=None)
    skips = memory is not None and memory > batch_id
    followed = any(not c.txns.keys().isdisjoint(later) for c in lineage)
    holds = held is not None and held > batch_id
    if not skips and not holds and not followed:
        return _nothing_in_the_way(replace(unknown, batch_id=held), app_id, batch_id, history)

    def is_beyond(commit: TableCommit) -> bool:
        return commit.txns.get(app_id, -1) > batch_id or not commit.txns.keys().isdisjoint(later)

    first = next((i for i, c in enumerate(lineage) if is_beyond(c)), len(lineage))
    rollback, obstacle = _rollback(history, lineage[:first], lineage[first:], {app_id, *later}, app_id, batch_id)
    return SinkReport(
        kind="delta",
        uri=history.uri,
        verdict=Verdict.WILL_SKIP if skips else Verdict.WILL_DUPLICATE,
        reasons=_reasons(batch_id, held, memory, skips=skips, holds=holds)
        if skips or holds
        else (f"the query that took the place of {app_id} has written rows into the table: its input is read again",),
        batch_id=held,
        remembered=memory,
        rollback=rollback,
        obstacle=obstacle,
    )


def _nothing_in_the_way(report: SinkReport, app_id: str, batch_id: int, history: TableHistory) -> SinkReport:
    """Where nothing is in the way of the replay: whether the table has all that was before it."""
    held = report.batch_id
    if held is None and history.is_whole:
        reason = (
            f"the table has no commit of the query {app_id}: it is not its sink, or the query writes to it by foreachBatch "
            "without txnAppId, or with another id (name it: --txn-app-id)"
        )
    elif held is not None and held < batch_id:
        reason = (
            f"the table holds batches up to {held}, the checkpoint goes on after {batch_id}: rows of batches {held + 1} to "
            f"{batch_id} are missing if those batches had any"
        )
    else:
        return replace(report, verdict=Verdict.SAFE)
    return replace(report, reasons=(reason,))


def _reasons(batch_id: int, held: int | None, memory: int | None, *, skips: bool, holds: bool) -> tuple[str, ...]:
    start = batch_id + 1
    if skips and holds:
        return (
            f"the table holds batches up to {held} and remembers {memory}: Delta skips the replay of batches {start} to "
            f"{memory} without a word, so their old rows stay and nothing of the replay is written",
        )
    if skips:
        return (
            f"the table holds batches up to {held} but remembers {memory} (it was restored without that memory): Delta skips "
            f"batches {start} to {memory} without a word, and their rows are missing",
        )
    return (
        f"the table holds batches up to {held} but does not remember them: the replay of batches {start} to {held} is "
        "written beside the rows that are there",
    )


def _rollback(
    history: TableHistory,
    before: Sequence[TableCommit],
    after: Sequence[TableCommit],
    own: Collection[str | None],
    app_id: str,
    batch_id: int,
) -> tuple[SinkRollback | None, str | None]:
    """Find the version to go back to.

    :param before: the table's lineage up to the target batch.
    :param after: the rest of it.
    :param own: the ids under which the stream has written.
    """
    if is_append_only(history.configuration):
        return None, (
            "the table is append-only (delta.appendOnly=true), so no row may be taken out of it; its owner can change that: "
            "ALTER TABLE … SET TBLPROPERTIES ('delta.appendOnly' = 'false')"
        )
    known = [c.txns[app_id] for c in before if app_id in c.txns]
    first_own = next((c.txns[app_id] for c in after if app_id in c.txns), None)
    if not known and not history.is_whole and first_own != batch_id + 1:
        return None, (
            f"the table's log begins at version {history.first}, after batch {batch_id} was written: the version of that "
            "batch cannot be found any more"
        )
    if before:
        target = before[-1].version
    elif after:
        target = after[0].version - 1
    else:
        target = history.newest
    if target < 0:
        return None, f"the table was created by a batch after {batch_id}: there is no version to go back to"
    foreign = [c for c in after if c.txns.keys().isdisjoint(own)]
    beyond = sorted(history.features - RESTORED_WITHOUT_SPARK)
    rows = [c.rows for c in after]
    return (
        SinkRollback(
            to_version=target,
            from_version=history.newest,
            rows=None if None in rows else sum(row or 0 for row in rows),
            batches=len(after) - len(foreign),
            foreign=tuple(c.describe() for c in foreign),
            feature=beyond[0] if beyond else None,
        ),
        None,
    )
