"""The cutover: what the sink does where a checkpoint under a new name takes over from the old one.

A new checkpoint has a new query id and begins at batch 0 again. Both matter to a sink that remembers: Delta's ``txn`` is kept by
query id, so it does not protect a new checkpoint against what the old one has written already, whatever tutorials say; a
file sink's ``_spark_metadata`` goes by batch number alone, so it silently skips the new checkpoint's batches up to the
number that the old one had reached. A checkpoint that only gets a new query id keeps its batch numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.errors import package_with
from airflow_ckpt_provider.sinks.delta import unnamed
from airflow_ckpt_provider.sinks.delta_sink import beyond_the_log
from airflow_ckpt_provider.sinks.earlier_run import NONE_PLANNED
from airflow_ckpt_provider.sinks.file_sink import inspect_file_sink, newest_in_log
from airflow_ckpt_provider.sinks.kinds import SinkStart
from airflow_ckpt_provider.sinks.known import Known
from airflow_ckpt_provider.sinks.other_tables import doubt_of
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import without_memory
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.sinks.table_start import content_doubts, doubts_of
from airflow_ckpt_provider.verdict import Verdict

#: Before the first batch.
NOTHING_READ = -1
_SAFE_WITHOUT_A_BATCH = (
    "no batch after the start was ever begun: nothing of what the new checkpoint reads is in the sink"
)


@dataclass(frozen=True, slots=True)
class Cutover:
    """What the sink does with the first batches of the new checkpoint.

    :param kind: ``delta``, ``file``, ``foreachBatch``, ``foreach``, ``kafka`` or ``unknown``.
    :param uri: where it is, or its kind where it has no place.
    :param verdict: what happens.
    :param reasons: why, in words.
    :param held: newest batch of the old query whose rows the sink holds; ``None`` where that is unknown or there is none.
    :param remembered: newest batch that the sink remembers of the old query; ``None`` where it keeps no memory.
    :param skipped: how many of the new checkpoint's first batches the sink skips.
    :param doubled: what the sink gets a second time: ``batches``, and ``rows`` where its log shows.
    :param query_ids: every id of the old query that the table's log was searched for; empty for other sinks.
    """

    kind: str
    uri: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    held: int | None = None
    remembered: int | None = None
    skipped: int = 0
    doubled: Mapping[str, int] = field(default_factory=dict)
    query_ids: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The cutover as plain JSON."""
        return {
            "kind": self.kind,
            "uri": self.uri,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "held": self.held,
            "remembered": self.remembered,
            "skipped": self.skipped,
            "doubled": dict(self.doubled),
            "query_ids": list(self.query_ids),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cutover:
        """Read what :meth:`to_json` wrote, or an older version of it."""
        lists = {name: tuple(value.get(name, ())) for name in ("reasons", "query_ids")}
        return cls(**{**value, **lists, "verdict": Verdict(value["verdict"])})


def number_to_continue_after(known: Sequence[Known], newest: int, new_app_id: str | None = None) -> int:
    """The batch number after which a new checkpoint continues, so that its sinks skip none of its batches.

    Spark's file sink needs an entry of every batch in its log (``CompactibleFileStreamLog``): there the numbers continue right
    after the newest one. All others only compare.

    :param known: the sinks.
    :param newest: the newest batch that the old query may have written.
    :param new_app_id: ``txnAppId`` that the new query will write with, where it is another one.
    """
    logs = [reached for each in known if (reached := each.reached_in_log()) is not None]
    memories = [memory for each in known if (memory := each.memory_of_app_id(new_app_id)) is not None]
    return max([*logs, *memories]) if logs else max([newest, *memories])


def cutover_to_new_checkpoint(
    known: Known,
    ids: QueryIds | None,
    *,
    start: int,
    newest: int,
    new_app_id: str | None = None,
    continues_after: int | None = None,
    planned: Mapping[int, datetime] = NONE_PLANNED,
) -> Cutover:
    """Judge a new checkpoint: a new query id, and batch numbers from 0 on.

    :param known: the sink.
    :param ids: the old query's ids; ``None`` if none could be read.
    :param start: the batch of the old query after which the new checkpoint reads; :data:`NOTHING_READ` for all there is.
    :param newest: the newest batch that the old query may have written.
    :param new_app_id: ``txnAppId`` that the new query will write with, where it writes with one.
    :param continues_after: the batch number that its own continue after, from :func:`number_to_continue_after`; ``None``: they
        begin at 0.
    :param planned: batch -> when the old checkpoint says that it was planned.
    """
    sink = known.sink
    if known.history:
        if ids is None:
            return _unknown_id(known.history)
        first = 0 if continues_after is None else continues_after + 1
        return _by_app_id(known, new_app_id or known.app_id(ids), first) or _by_content(
            known, ids, start, _in_words(new_app_id), planned
        )
    if known.is_file_sink and sink.place:
        remembered = newest_in_log(sink.place)
        # At or beyond its newest batch, the reasons are what is wrong with the log.
        doubts = inspect_file_sink(sink.place, max(start, remembered), planned=planned).reasons
        if continues_after is not None:
            return _file_sink_continues(sink.place.uri, remembered, start, continues_after, doubts)
        if remembered < 0:
            return Cutover("file", sink.place.uri, Verdict.UNKNOWN if doubts else Verdict.SAFE, doubts)
        reason = (
            f"the sink's log _spark_metadata reaches batch {remembered} and goes by batch number alone: the new checkpoint's "
            f"batches 0 to {remembered} are skipped silently, whatever rows they hold; have the new query write to a new "
            "directory, or continue with the numbers where it keeps no state (--continue-numbers)"
        )
        return Cutover(
            "file",
            sink.place.uri,
            Verdict.WILL_SKIP,
            (reason,),
            held=remembered,
            remembered=remembered,
            skipped=remembered + 1,
        )
    if table := _foreign(known) or _other(known, start, newest):
        return table
    if sink.kind == "unknown":
        reason = (
            "the sink is not known (--sink): a file sink skips the first batches of a new checkpoint, a Delta or Iceberg table "
            "takes again whatever is read again"
        )
        return Cutover("unknown", "unknown", Verdict.UNKNOWN, (reason,))
    return _without_memory(sink.kind, start, newest)


def cutover_to_new_query_id(
    known: Known,
    ids: QueryIds | None,
    *,
    start: int,
    newest: int,
    new_app_id: str | None = None,
    planned: Mapping[int, datetime] = NONE_PLANNED,
) -> Cutover:
    """Judge a checkpoint that only gets a new query id: batch numbers continue after ``start``.

    :param known: the sink.
    :param ids: the ids it had; ``None`` if none could be read.
    :param start: its newest committed batch.
    :param newest: its newest logged batch.
    :param new_app_id: ``txnAppId`` that the query will write with, where it is another one.
    :param planned: batch -> when the checkpoint says that it was planned.
    """
    if known.history and (new_app_id or known.app_id(ids) is None):
        if ids is None:
            return _unknown_id(known.history)
        return _by_app_id(known, new_app_id, start + 1) or _by_content(
            known, ids, start, _in_words(new_app_id), planned
        )
    if foreign := _foreign(known):
        return foreign
    cutover = cutover_of_same_query(known, ids, start=start, newest=newest, planned=planned)
    if cutover.kind == "unknown":
        reason = (
            "the sink is not known (--sink): a new query id makes a Delta or Iceberg table forget which batches it has"
        )
        return replace(cutover, reasons=(reason,))
    if cutover.kind == known.other:
        return cutover
    no_use = "a new query id changes nothing here: this sink does not know the query by its id"
    return replace(cutover, reasons=(no_use, *cutover.reasons))


def cutover_of_same_query(
    known: Known,
    ids: QueryIds | None,
    *,
    start: int,
    newest: int,
    planned: Mapping[int, datetime] = NONE_PLANNED,
    complete_at: datetime | None = None,
) -> Cutover:
    """Judge the same query, as a checkpoint of an older batch: its id and its batch numbers continue after ``start``.

    :param known: the sink.
    :param ids: the query's ids; ``None`` if none could be read.
    :param start: the batch that it continues after.
    :param newest: the newest batch that it may have written.
    :param planned: batch -> when the checkpoint says that it was planned.
    :param complete_at: when the backup that the checkpoint comes from had all of its batches, in UTC.
    """
    if known.history and ids is None:
        return _unknown_id(known.history)
    if known.found:
        start_of = SinkStart(ids or QueryIds.of(""), start, newest, planned=planned, complete_at=complete_at)
        report = known.found.verdict(start_of)
    elif known.sink.kind == "unknown":
        reason = "the sink is not known (--sink): what it does with batches that it may have is not known either"
        return Cutover("unknown", "unknown", Verdict.UNKNOWN, (reason,))
    else:
        return _other(known, start, newest) or _without_memory(known.sink.kind, start, newest)
    return Cutover(
        report.kind,
        report.uri,
        report.verdict,
        report.reasons,
        held=report.batch_id,
        remembered=report.remembered,
        query_ids=report.query_ids,
    )


def _by_content(known: Known, ids: QueryIds, start: int, unknown_as: str, planned: Mapping[int, datetime]) -> Cutover:
    """Judge by what the table holds: it remembers nothing of the new id."""
    history = known.history
    if history is None:
        raise ValueError("not a table with a log")
    lineage = history.lineage()
    held, memory = known.held(ids), known.memory(ids)
    cutover = Cutover(history.format, history.uri, Verdict.UNKNOWN, held=held, remembered=memory, query_ids=ids.all)
    if lineage is None:
        return _with(
            cutover, Verdict.UNKNOWN, "the table was restored to a version that its log does not have any more"
        )
    if held is None:
        if not history.is_whole:
            reason = f"{history.begins}: which batches of {ids.in_words()} it holds cannot be determined"
            return _with(cutover, Verdict.UNKNOWN, reason)
        if start == NOTHING_READ and lineage and known.others(ids):
            return _with(
                cutover, Verdict.UNKNOWN, f"the table holds nothing of {ids.in_words()}, {_but_of(known, ids)}"
            )
        if memory is not None or (start == NOTHING_READ and not lineage):
            held = NOTHING_READ  # restored to before its first batch, or asked to start before it
        else:
            reason = (
                f"the table has no commit of {ids.in_words()}: it is not its sink, or it was dropped and created again, or "
                f"{unnamed(history)}"
            )
            return _with(cutover, Verdict.UNKNOWN, reason)
    if held > start:
        again = known.after(ids, start)
        counts = [c.rows for c in again]
        rows = None if None in counts else sum(count or 0 for count in counts)
        counted = "their rows" if rows is None else f"their {rows:,} rows"
        what = f"batch {held}" if held == start + 1 else f"batches {start + 1} to {held}"
        reason = (
            f"the table holds batches up to {held}, the new checkpoint reads after {start}; the table does not know "
            f"{unknown_as}, so {counted} ({what}) are written again"
            if start >= 0
            else f"the table holds batches 0 to {held} and does not know {unknown_as}: {counted} are written again"
        )
        older = sorted({id_ for c in again for id_ in c.txns if id_ in ids.all} - {ids.writes_as(history)})
        if older:
            reason += f"; some of them are in the table under older ids of the query: {', '.join(older)}"
        if start == NOTHING_READ and known.others(ids):
            reason += f"; {_but_of(known, ids)}"
        doubled = {"batches": held - max(start, NOTHING_READ)} | ({} if rows is None else {"rows": rows})
        return _with(cutover, Verdict.WILL_DUPLICATE, reason, doubled=doubled)
    if held < start:
        reason = (
            f"the table holds batches up to {held}, the new checkpoint reads after {start}: rows of batches {held + 1} to "
            f"{start} are missing if those batches had any"
        )
        return _with(cutover, Verdict.UNKNOWN, reason)
    doubts = content_doubts(history, ids, start, planned=planned) if start >= 0 else doubts_of(history)
    if known.found and (untold := known.found.content.untold(ids)):
        doubts = (*doubts, untold)
    if doubts:
        return _with(cutover, Verdict.UNKNOWN, "; ".join(doubts))
    done = f"the table holds exactly the batches up to {start}, and does not know {unknown_as}: nothing is skipped"
    return _with(cutover, Verdict.SAFE, done if start >= 0 else "the table holds nothing of the old query")


def _but_of(known: Known, ids: QueryIds) -> str:
    """What a start from scratch may double besides: a checkpoint that was reset before wrote under another id."""
    others = known.others(ids)
    rows = [c.rows for c in known.lineage if c.txns and not ids.is_own(c)]
    counted = "rows" if None in rows else f"{sum(row or 0 for row in rows):,} rows"
    return (
        f"but {counted} that other query ids wrote ({', '.join(others[:3])}{', …' if len(others) > 3 else ''}): where one is an "
        "earlier checkpoint of this query, what the sources still give of them is written again too"
    )


def _in_words(new_app_id: str | None) -> str:
    return f"txnAppId {new_app_id}" if new_app_id else "a new query id"


def _by_app_id(known: Known, app_id: str | None, first: int) -> Cutover | None:
    """What a Delta table skips of a query that writes with a ``txnAppId``; ``None``: nothing.

    :param first: the first batch of the query.
    """
    history = known.history
    if not app_id or history is None or history.format != "delta":
        return None
    memory = known.memory(QueryIds.of(app_id))
    if memory is not None:
        return _same_app_id(history.uri, app_id, memory, first) if memory >= first else None
    if history.is_whole or app_id in beyond_the_log(known.sink, history, QueryIds.of(app_id)):
        return None
    reason = (
        f"{history.begins} and does not name txnAppId {app_id}: whether the table remembers batches of it is not known; install "
        f"{package_with('delta')}, which reads log checkpoints"
    )
    return Cutover("delta", history.uri, Verdict.UNKNOWN, (reason,))


def _same_app_id(uri: str, app_id: str, memory: int, first: int) -> Cutover:
    begins = "a new checkpoint begins" if first == 0 else "this one continues"
    other = ", or continue with the numbers where it keeps no state (--continue-numbers)" if first == 0 else ""
    reason = (
        f"foreachBatch writes with txnAppId {app_id}, of which the table remembers {memory}; {begins} at batch {first}, so Delta "
        f"skips its batches {first} to {memory} silently: give the query a new txnAppId (and say so: --new-txn-app-id){other}"
    )
    return Cutover("delta", uri, Verdict.WILL_SKIP, (reason,), remembered=memory, skipped=memory + 1 - first)


def _file_sink_continues(
    uri: str, remembered: int, start: int, continues_after: int, doubts: tuple[str, ...]
) -> Cutover:
    cutover = Cutover("file", uri, Verdict.SAFE, held=remembered, remembered=remembered)
    if remembered != continues_after:
        reaches = f"reaches batch {remembered}" if remembered >= 0 else "has no batch"
        reason = (
            f"the sink's log _spark_metadata {reaches}, and the new checkpoint's first batch is {continues_after + 1}: Spark "
            "needs an entry of every batch, so readers of the sink fail, and so does the query once it compacts the log; have "
            "the new query write to a new directory"
        )
        return _with(cutover, Verdict.WILL_FAIL, reason)
    if remembered > start:
        batches = remembered - start
        reason = (
            f"the sink has batches up to {remembered}, the new checkpoint reads after {start}: their rows are written again"
            if start >= 0
            else f"the sink has batches 0 to {remembered}: what the sources give again of their rows is written again"
        )
        return _with(cutover, Verdict.WILL_DUPLICATE, "; ".join((reason, *doubts)), doubled={"batches": batches})
    if doubts:
        return _with(cutover, Verdict.UNKNOWN, "; ".join(doubts))
    return _with(cutover, Verdict.SAFE, f"the sink has batches up to {remembered}; the new numbers continue after them")


def _foreign(known: Known) -> Cutover | None:
    """A sink of a kind of another package; ``None`` for any other sink."""
    if not known.found or not known.is_of_another_package:
        return None
    kind = known.found.kind.kind
    reason = (
        f"whether a {kind} sink takes a new query id, or batches from 0 on, for another query is not known from here"
    )
    return Cutover(kind, known.sink.name, Verdict.UNKNOWN, (reason,))


def _other(known: Known, start: int, newest: int) -> Cutover | None:
    """A table whose memory is not read here; ``None`` for any other sink."""
    if not known.other or known.sink.place is None:
        return None
    if newest <= start:
        return Cutover(known.other, known.sink.place.uri, Verdict.SAFE, (_SAFE_WITHOUT_A_BATCH,))
    return Cutover(known.other, known.sink.place.uri, Verdict.UNKNOWN, (doubt_of(known.other),))


def _unknown_id(history: TableHistory) -> Cutover:
    reason = "the old query's id cannot be read (metadata), so which of its batches the table holds is not known"
    return Cutover(history.format, history.uri, Verdict.UNKNOWN, (reason,))


def _without_memory(kind: str, start: int, newest: int) -> Cutover:
    if newest <= start:
        return Cutover(kind, kind, Verdict.SAFE, (_SAFE_WITHOUT_A_BATCH,))
    report = without_memory(kind, start, newest)
    return Cutover(kind, kind, report.verdict, report.reasons, doubled={"batches": newest - start})


def _with(cutover: Cutover, verdict: Verdict, reason: str, *, doubled: Mapping[str, int] | None = None) -> Cutover:
    return Cutover(
        cutover.kind,
        cutover.uri,
        verdict,
        (reason,),
        held=cutover.held,
        remembered=cutover.remembered,
        doubled=doubled or {},
        query_ids=cutover.query_ids,
    )
