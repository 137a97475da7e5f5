"""A table that remembers batches (Delta, Iceberg) as a sink: what it skips, and to which version it has to be rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.gaps import runs
from airflow_ckpt_provider.errors import package_with
from airflow_ckpt_provider.guards.delta_log import AddedFile
from airflow_ckpt_provider.sinks.delta_history import changed_settings
from airflow_ckpt_provider.sinks.earlier_run import NONE_PLANNED
from airflow_ckpt_provider.sinks.query_ids import QueryIds, strange_ids
from airflow_ckpt_provider.sinks.report import SinkReport, SinkRollback
from airflow_ckpt_provider.sinks.table_history import TXN_RETENTION, TableCommit, TableHistory
from airflow_ckpt_provider.sinks.table_start import TableStart, words_of
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow_ckpt_provider.sinks.kinds import SinkStart

#: Table features under which ``deltalake`` restores a table rightly; with any other Spark does it.
RESTORED_WITHOUT_SPARK = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "timestampNtz"}
)
#: In place of a feature: the table is a shallow clone, and files of its original are put back.
SHALLOW_CLONE = "shallowClone"


def is_append_only(configuration: Mapping[str, str]) -> bool:
    """Whether a table's properties forbid that rows are taken out of it (``delta.appendOnly``).

    Spark refuses ``RESTORE`` then; ``deltalake`` does not look, and breaks what the table's owner has set.
    """
    return str(configuration.get("delta.appendOnly", "")).lower() == "true"


def judge_start(
    history: TableHistory, start: SinkStart, *, remembered: Mapping[str, int | None] | None = None
) -> SinkReport:
    """Judge a start by a table's log; see :func:`inspect_delta`.

    :param history: the table's log.
    :param start: the start.
    :param remembered: what a client knows of ids that the log does not name any more.
    """
    return inspect_delta(
        history,
        start.ids,
        start.batch_id,
        remembered=remembered,
        unwritten=start.unwritten,
        planned=start.planned,
        complete_at=start.complete_at,
    )


def inspect_delta(
    history: TableHistory,
    ids: QueryIds,
    batch_id: int,
    *,
    remembered: Mapping[str, int | None] | None = None,
    unwritten: frozenset[int] = frozenset(),
    planned: Mapping[int, datetime] = NONE_PLANNED,
    complete_at: datetime | None = None,
) -> SinkReport:
    """Judge a start after ``batch_id``.

    A batch is looked for under every id of the chain. What the table skips is judged by the id that the query has at that start.

    :param history: the table's log.
    :param ids: the query ids of the stream.
    :param batch_id: the batch after which the query will start.
    :param remembered: id -> its newest ``txn`` as a client knows it, for a log that was cleaned up; ``None`` for an id that
        the table does not know.
    :param unwritten: batches that write nothing, such as an offline repartition.
    :param planned: batch -> when the checkpoint says that it was planned, in UTC.
    :param complete_at: when the backup that the checkpoint comes from had all of its batches, in UTC.
    """
    memories = _memories(history, ids, remembered or {})
    writes_as = ids.writes_as(history)
    memory = memories.get(writes_as)
    lineage = history.lineage()
    unknown = SinkReport(history.format, history.uri, Verdict.UNKNOWN, (), remembered=memory, query_ids=ids.all)
    if writes_as not in memories and not history.is_whole:
        return replace(
            unknown,
            reasons=(
                f"{history.begins}, and those that are left do not name the query {writes_as}: whether the table held "
                "batches from before is not known"
                if history.format == "iceberg"
                else f"{history.begins} and does not name the query {writes_as}: whether it "
                "remembers batches from before cannot be determined from the log alone",
            ),
            obstacle="which batches of the query the table held is not known any more"
            if history.format == "iceberg"
            else f"what the table remembers is not known; install {package_with('delta')}, which reads log checkpoints",
        )
    if lineage is None:
        return replace(
            unknown,
            reasons=("the table was restored to a version that its log does not have any more",),
            obstacle="which batches the table holds cannot be determined from its log",
        )
    start = TableStart(history, ids, batch_id, lineage, unwritten, planned, complete_at)
    found = replace(unknown, batch_id=start.held)
    skips = memory is not None and memory > batch_id
    numbers = start.numbers()
    unexplained = numbers or start.unexplained()
    if not skips and not start.beyond:
        return _as_far_as_known(_nothing_in_the_way(found, start, (unexplained,) if unexplained else ()), start)
    rollback, obstacle = (None, unexplained) if unexplained else _rollback(start)
    not_known = numbers or (_may_forget(start, memory) if skips and history.forgets(writes_as) is None else None)
    report = replace(
        found,
        verdict=Verdict.UNKNOWN if not_known else Verdict.WILL_SKIP if skips else Verdict.WILL_DUPLICATE,
        reasons=(not_known,) if not_known else _reasons(start, memory, skips=skips),
        rollback=rollback,
        obstacle=obstacle,
        memories={id_: m for id_, m in memories.items() if m is not None and m > batch_id and id_ != writes_as},
        doubts=start.doubts(),
    )
    return _as_far_as_known(report, start)


def _as_far_as_known(report: SinkReport, start: TableStart) -> SinkReport:
    """Add what the main line of the table does not say: batches on other branches, and metadata that may not be current."""
    history = start.history
    others = [c for c in history.elsewhere if start.ids.is_beyond(c, start.batch_id)]
    if others:
        reason = (
            f"{words_of(runs(start.batches_of(others)))} of the query are in snapshots that never were in branch main "
            "(a branch, or staged by spark.wap.id or spark.wap.branch); Iceberg compares a replay with main alone, so their rows "
            "are written there again"
        )
        verdict = report.verdict if report.verdict is Verdict.WILL_SKIP else Verdict.WILL_DUPLICATE
        why = "the query writes to a branch or stages its snapshots, which cannot be rolled back from here"
        report = replace(report, verdict=verdict, reasons=(*report.reasons, reason), rollback=None, obstacle=why)
    if history.doubt:
        report = replace(
            report,
            verdict=Verdict.UNKNOWN if report.verdict is Verdict.SAFE else report.verdict,
            reasons=(*report.reasons, history.doubt),
            rollback=None,
            obstacle=report.obstacle or (history.doubt if report.rollback else None),
        )
    return report


def _memories(history: TableHistory, ids: QueryIds, remembered: Mapping[str, int | None]) -> Mapping[str, int | None]:
    """Id -> the newest batch that the table remembers of it; ids of which that is not known are left out."""
    found: dict[str, int | None] = {}
    for id_ in ids.all:
        is_named = history.newest_of(id_) is not None
        if is_named or id_ in remembered or history.is_whole:
            found[id_] = history.remembered(id_) if is_named else remembered.get(id_)
    return found


def _nothing_in_the_way(report: SinkReport, start: TableStart, unexplained: tuple[str, ...]) -> SinkReport:
    """Where nothing is in the way of the replay: whether the table has all that was before it."""
    if unexplained:
        return replace(report, reasons=unexplained, obstacle=unexplained[0])
    if report.batch_id is not None:
        doubts = start.doubts()
        return replace(report, reasons=doubts) if doubts else replace(report, verdict=Verdict.SAFE)
    if not start.history.is_whole:
        return replace(
            report,
            reasons=(
                f"{start.history.begins}, and there is no commit of {start.ids.in_words()} any more: "
                f"whether the table holds the batches up to {start.batch_id} is not known",
            ),
        )
    strangers = strange_ids(start.history, start.ids.all)
    others = f"; the table has batches of {', '.join(strangers[:3])}{', …' if len(strangers) > 3 else ''}"
    return replace(
        report,
        reasons=(
            f"the table has no commit of {start.ids.in_words()}: it is not its sink, or it was dropped and created again, or "
            f"{unnamed(start.history)}{others if strangers else ''}",
        ),
    )


def unnamed(history: TableHistory) -> str:
    """How a query can write into a table that does not know it."""
    if history.format == "iceberg":
        return "the query writes to it by foreachBatch (MERGE, append), which Iceberg does not remember"
    return "the query writes to it by foreachBatch without txnAppId, or with another id (name it: --txn-app-id)"


def _may_forget(start: TableStart, memory: int | None) -> str:
    """Why it is not known whether a replay is skipped."""
    history = start.history
    commit = history.newest_of(start.ids.writes_as(history))
    kept = history.configuration.get(TXN_RETENTION)
    since = f", set in {commit.describe()}" if commit else ""
    why = f"{TXN_RETENTION} = {kept!r}" if kept else f"whether {TXN_RETENTION} is set is not known"
    return (
        f"the table holds batches up to {start.held} and has the txn of batch {memory}{since}, but Delta may have forgotten it "
        f"by the next start ({why}): it skips the replay of batches {start.batch_id + 1} to {memory} silently, or writes it "
        "beside the rows that are there"
    )


def _reasons(start: TableStart, memory: int | None, *, skips: bool) -> tuple[str, ...]:
    begin, held = start.batch_id + 1, start.held
    if not start.batches_of(start.beyond):
        reasons = []
        if skips:
            reasons.append(
                f"the table holds batches up to {held} but remembers {memory} (it was restored without that memory): "
                f"{start.history.engine} skips batches {begin} to {memory} silently, and their rows are missing"
            )
        if start.beyond:
            reasons.append(
                f"the query that took the place of {start.ids.current} has written rows into the table: its input is read again"
            )
        return tuple(reasons)
    if skips and memory is not None and (held is None or memory >= held):
        return (
            f"the table holds batches up to {held} and remembers {memory}: {start.history.engine} skips the replay of "
            f"batches {begin} to {memory} silently, so their old rows stay and nothing of the replay is written",
        )
    if skips and memory is not None:
        return (
            f"the table holds batches up to {held} and remembers {memory} of the id that the query will have: "
            f"{start.history.engine} skips the replay of batches {begin} to {memory} silently, and writes "
            f"batches {memory + 1} to {held} "
            "beside the rows that "
            "are there",
        )
    writes_as = start.ids.writes_as(start.history)
    others = {id_ for c in start.beyond for id_ in c.txns if id_ in start.ids.all} - {writes_as}
    of = f", as batches of {', '.join(sorted(others))}, and the query's id will be {writes_as}" if others else ""
    if start.history.forgets(writes_as):
        of = f" any more ({TXN_RETENTION} = {start.history.configuration[TXN_RETENTION]!r}){of}"
    return (
        f"the table holds batches up to {held} but does not remember them{of}: the replay of batches {begin} to {held} is "
        "written beside the rows that are there",
    )


def _rollback(start: TableStart) -> tuple[SinkRollback | None, str | None]:
    """Find the version to roll back to."""
    history, before, after = start.history, start.before, start.beyond
    if is_append_only(history.configuration):
        return None, (
            "the table is append-only (delta.appendOnly=true), so no row may be taken out of it; its owner can change that: "
            "ALTER TABLE … SET TBLPROPERTIES ('delta.appendOnly' = 'false')"
        )
    first_own = next(iter(start.batches_of(after)), None)
    if not start.batches_of(before) and not history.is_whole and first_own != start.batch_id + 1:
        return None, f"{history.begins}, after batch {start.batch_id} was written: {_NOT_FOUND[history.format]}"
    if not history.is_described:
        return None, (
            "the table's protocol is not in the commits that are left, and its log checkpoint could not be read "
            f"({package_with('delta')} reads those that deltalake knows): which features a rollback has to keep is not known"
        )
    # The version just before the first commit that leaves: others' changes of the table up to then stay.
    features = sorted(history.features - RESTORED_WITHOUT_SPARK)
    if not features and after and _needs_files_elsewhere(history, after[0].version - 1):
        features = [SHALLOW_CLONE]
    unchanged = _same_as_newest(history) if features else history.newest
    target = after[0].version - 1 if after else unchanged
    if target is None:
        return None, (
            "no earlier version has the rows that the table has now, and Spark makes no commit where it restores the newest "
            "version; a new query id alone leaves the rows as they are (reset --new-query-id)"
        )
    if target < 0:
        return None, f"the table was created by a batch after {start.batch_id}: there is no version to roll back to"
    if history.format == "iceberg" and target < history.first:
        return None, f"{history.begins}: the snapshot of batch {start.batch_id} is one of them"
    foreign = [c for c in after if not start.ids.is_own(c)]
    rows = [c.rows for c in after]
    return (
        SinkRollback(
            to_version=history.snapshot_of(target),
            from_version=history.snapshot_of(history.newest),
            rows=None if None in rows else sum(row or 0 for row in rows),
            batches=len(after) - len(foreign),
            foreign=tuple(_of_others(c, history) for c in foreign),
            feature=features[0] if features else None,
            reverts=_reverted(start, target),
        ),
        None,
    )


def _needs_files_elsewhere(history: TableHistory, version: int) -> bool:
    """Whether files of another table have left since a version: ``deltalake`` (1.6) does not find them where they are."""
    later = [commit for commit in history.commits if commit.version > version]
    came = {path for commit in later for path in commit.added}
    return any(AddedFile(path, None).is_elsewhere for commit in later for path in commit.removed - came)


def _of_others(commit: TableCommit, history: TableHistory) -> str:
    """What leaves with a rollback; of Delta with the ids whose batches the table still skips."""
    skipped = ", ".join(f"{id_} up to {batch}" for id_, batch in sorted(commit.txns.items()))
    if history.format != "delta" or not skipped:
        return commit.describe()
    return f"{commit.describe()}, and the table still skips batches of {skipped} when they are written again"


def _same_as_newest(history: TableHistory) -> int | None:
    """The newest version before the newest one with the same rows: Spark makes no commit where it restores the newest.

    :return: ``None`` if there is no such version: somebody has changed rows since each of the others.
    """
    heads = history.heads()
    same = (c.version for c in history.commits[:-1] if heads[c.version] == heads[history.newest])
    return max(same, default=None)


#: Why the version of a batch is not available.
_NOT_FOUND = {
    "delta": "the version of that batch cannot be found any more",
    "iceberg": "the snapshot of that batch cannot be found any more",
}


def _reverted(start: TableStart, target: int) -> tuple[str, ...]:
    """What a rollback removes of what others set on the table: properties, columns, protocol; one line for each."""
    history = start.history
    at = history.at(target)
    if at is None:
        beyond = [c for c in history.commits[1:] if c.settings != history.commits[0].settings]
        return tuple(f"{c.describe()}: what it was before is not in the log" for c in beyond if not start.ids.is_own(c))
    others: set[str] = set()
    before = at.settings
    for commit in history.commits[target - history.first + 1 :]:
        if not start.ids.is_own(commit) and not commit.plan_id:
            others |= changed_settings(before, commit.settings).keys()
        before = commit.settings
    return tuple(words for name, words in changed_settings(at.settings, before).items() if name in others)


def equal_versions(history: TableHistory, version: int) -> tuple[int, ...]:
    """Versions with the rows of a version and the settings of the table as it was then, the version itself first."""
    heads = history.heads()
    at, rows = history.at(version), heads.get(version)
    if at is None or rows is None:
        return (version,)
    others = (c.version for c in reversed(history.commits) if c.version != version and c.settings == at.settings)
    return (version, *(v for v in others if heads[v] == rows))
