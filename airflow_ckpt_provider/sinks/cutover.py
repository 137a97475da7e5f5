"""The cutover: what the sink does where a checkpoint under a new name takes over from the old one.

A new checkpoint has a new query id and begins at batch 0 again. Both matter to a sink that remembers: Delta's ``txn`` is kept by
query id, so it does not protect a new checkpoint against what the old one has written already, whatever tutorials say; a
file sink's ``_spark_metadata`` goes by batch number alone, so it silently skips the new checkpoint's batches up to the
number that the old one had reached. A checkpoint that only gets a new query id keeps its batch numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError
from airflow_ckpt_provider.guards import delta_client
from airflow_ckpt_provider.guards.delta_log import is_delta_table
from airflow_ckpt_provider.sinks.delta import inspect_delta
from airflow_ckpt_provider.sinks.delta_history import TableHistory, read_table_history
from airflow_ckpt_provider.sinks.file_sink import inspect_file_sink, is_file_sink
from airflow_ckpt_provider.sinks.report import WITHOUT_MEMORY, without_memory
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)

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
    :param doubled: what the sink gets a second time: ``batches``, and ``rows`` where its log tells.
    """

    kind: str
    uri: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    held: int | None = None
    remembered: int | None = None
    skipped: int = 0
    doubled: Mapping[str, int] = field(default_factory=dict)

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
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cutover:
        """Read what :meth:`to_json` wrote."""
        return cls(**{**value, "verdict": Verdict(value["verdict"]), "reasons": tuple(value["reasons"])})


@dataclass(frozen=True, slots=True)
class Known:
    """A sink, read once.

    :param sink: as the person names it.
    :param history: its log, where it is a Delta table.
    :param is_file_sink: it is the output of a file sink.
    """

    sink: Sink
    history: TableHistory | None = None
    is_file_sink: bool = False

    @classmethod
    def of(cls, sink: Sink) -> Known:
        """Look at a sink.

        :raises RefusedError: a place is given that is neither a Delta table nor the output of a file sink; or a word that
            is no sink.
        """
        place = sink.place
        if place is None:
            if sink.kind not in (*WITHOUT_MEMORY, "unknown"):
                raise RefusedError(
                    f"{sink.kind!r} is neither a place nor one of {', '.join(WITHOUT_MEMORY)}",
                    hint="name the sink: --sink",
                )
            return cls(sink)
        if is_delta_table(place):
            return cls(sink, history=read_table_history(place))
        if is_file_sink(place):
            return cls(sink, is_file_sink=True)
        raise RefusedError(
            f"{place} is neither a Delta table nor the output of a file sink (no _delta_log/, no _spark_metadata/)",
            hint=f"give the sink's directory, or one of {', '.join(WITHOUT_MEMORY)} where it has none",
        )

    def held(self, app_id: str | None) -> int | None:
        """Newest batch of a query whose rows are in the table; ``None`` where that is not known or there is none."""
        lineage = self.history.lineage() if self.history else None
        return max((c.txns[app_id] for c in lineage or () if app_id in c.txns), default=None) if app_id else None

    def others(self, app_id: str) -> tuple[str, ...]:
        """Other ids under which batches are in the table: other streams, or earlier checkpoints of this one."""
        lineage = self.history.lineage() if self.history else None
        return tuple(dict.fromkeys(other for c in lineage or () for other in c.txns if other != app_id))

    def rows_after(self, app_id: str, batch_id: int) -> int | None:
        """Rows in the table of batches after one; ``None`` where the log does not tell."""
        lineage = self.history.lineage() if self.history else None
        rows = [c.rows for c in lineage or () if c.txns.get(app_id, NOTHING_READ) > batch_id]
        return None if None in rows else sum(row or 0 for row in rows)


def cutover_to_new_checkpoint(
    known: Known,
    query_id: str | None,
    *,
    start: int,
    newest: int,
    new_app_id: str | None = None,
    continues: bool = False,
) -> Cutover:
    """Judge a new checkpoint: a new query id, and batch numbers from 0 on.

    :param known: the sink.
    :param query_id: the old query's id, where it could be read.
    :param start: the batch of the old query after which the new checkpoint reads; :data:`NOTHING_READ` for all there is.
    :param newest: the newest batch that the old query may have written.
    :param new_app_id: ``txnAppId`` that the new query will write with, where it writes with one.
    :param continues: its batch numbers go on after all that the sink remembers.
    """
    sink = known.sink
    if known.history:
        app_id = sink.app_id or query_id
        if app_id is None:
            return _unknown_id(known.history.uri)
        writes_as = new_app_id or (sink.app_id and app_id)
        if writes_as and not continues and (memory := _memory(known, writes_as)) is not None and memory >= 0:
            return _same_app_id(known.history.uri, writes_as, memory)
        return _by_content(known, app_id, start, "a new query id" if not new_app_id else f"txnAppId {new_app_id}")
    if known.is_file_sink and sink.place:
        remembered = inspect_file_sink(sink.place, newest).remembered
        if remembered is None or remembered < 0:
            return Cutover("file", sink.place.uri, Verdict.SAFE)
        if continues:
            return _file_sink_goes_on(sink.place.uri, remembered, start)
        reason = (
            f"the sink's log _spark_metadata reaches batch {remembered} and goes by batch number alone: the new checkpoint's "
            f"batches 0 to {remembered} are skipped without a word, whatever rows they hold; have the new query write to a new "
            "directory, or go on with the numbers where it keeps no state (--continue-numbers)"
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
    if sink.kind == "unknown":
        reason = (
            "the sink is not known (--sink): a file sink skips the first batches of a new checkpoint, a Delta table "
            "takes again whatever is read again"
        )
        return Cutover("unknown", "unknown", Verdict.UNKNOWN, (reason,))
    return _without_memory(sink.kind, start, newest)


def cutover_to_new_query_id(known: Known, query_id: str | None, *, start: int, newest: int) -> Cutover:
    """Judge a checkpoint that only gets a new query id: batch numbers go on after ``start``.

    :param known: the sink.
    :param query_id: the id it had.
    :param start: its newest committed batch.
    :param newest: its newest logged batch.
    """
    sink = known.sink
    if known.history and not sink.app_id:
        if query_id is None:
            return _unknown_id(known.history.uri)
        return _by_content(known, query_id, start, "a new query id")
    cutover = cutover_of_same_query(known, query_id, start=start, newest=newest)
    if cutover.kind == "unknown":
        reason = "the sink is not known (--sink): a new query id makes a Delta table forget which batches it has"
        return replace(cutover, reasons=(reason,))
    no_use = "a new query id changes nothing here: this sink does not know the query by its id"
    return replace(cutover, reasons=(no_use, *cutover.reasons))


def cutover_of_same_query(known: Known, query_id: str | None, *, start: int, newest: int) -> Cutover:
    """Judge the same query, as a checkpoint of an older batch: its id and its batch numbers go on after ``start``.

    :param known: the sink.
    :param query_id: the query's id.
    :param start: the batch that it goes on after.
    :param newest: the newest batch that it may have written.
    """
    sink = known.sink
    if known.history:
        app_id = sink.app_id or query_id
        if app_id is None:
            return _unknown_id(known.history.uri)
        report = inspect_delta(known.history, app_id, start, remembered=_memory(known, app_id))
    elif known.is_file_sink and sink.place:
        report = inspect_file_sink(sink.place, start)
    elif sink.kind == "unknown":
        reason = "the sink is not known (--sink): what it does with batches that it may have is not known either"
        return Cutover("unknown", "unknown", Verdict.UNKNOWN, (reason,))
    else:
        return _without_memory(sink.kind, start, newest)
    return Cutover(
        report.kind,
        report.uri,
        report.verdict,
        report.reasons,
        held=report.batch_id,
        remembered=report.remembered,
    )


def _by_content(known: Known, app_id: str, start: int, unknown_as: str) -> Cutover:
    """Judge by what the table holds: it remembers nothing of the new id."""
    history = known.history
    if history is None:
        raise ValueError("not a Delta table")
    lineage = history.lineage()
    held, memory = known.held(app_id), _memory(known, app_id)
    cutover = Cutover("delta", history.uri, Verdict.UNKNOWN, held=held, remembered=memory)
    if lineage is None:
        return _with(
            cutover, Verdict.UNKNOWN, "the table was restored to a version that its log does not have any more"
        )
    if held is None:
        if not history.is_whole:
            reason = (
                f"the table's log begins at version {history.first}: which batches of {app_id} it holds cannot be told"
            )
            return _with(cutover, Verdict.UNKNOWN, reason)
        if start == NOTHING_READ and lineage and known.others(app_id):
            return _with(
                cutover, Verdict.UNKNOWN, f"the table holds nothing of the query {app_id}, {_but_of(known, app_id)}"
            )
        if memory is not None or (start == NOTHING_READ and not lineage):
            held = NOTHING_READ  # restored to before its first batch, or asked to start before it
        else:
            reason = (
                f"the table has no commit of the query {app_id}: it is not its sink, or the query writes to it by foreachBatch "
                "without txnAppId, or with another id (name it: --txn-app-id)"
            )
            return _with(cutover, Verdict.UNKNOWN, reason)
    if held > start:
        rows = known.rows_after(app_id, start)
        counted = "their rows" if rows is None else f"their {rows:,} rows"
        what = f"batch {held}" if held == start + 1 else f"batches {start + 1} to {held}"
        reason = (
            f"the table holds batches up to {held}, the new checkpoint reads after {start}; the table does not know "
            f"{unknown_as}, so {counted} ({what}) are written again"
            if start >= 0
            else f"the table holds batches 0 to {held} and does not know {unknown_as}: {counted} are written again"
        )
        if start == NOTHING_READ and known.others(app_id):
            reason += f"; {_but_of(known, app_id)}"
        doubled = {"batches": held - max(start, NOTHING_READ)} | ({} if rows is None else {"rows": rows})
        return _with(cutover, Verdict.WILL_DUPLICATE, reason, doubled=doubled)
    if held < start:
        reason = (
            f"the table holds batches up to {held}, the new checkpoint reads after {start}: rows of batches {held + 1} to "
            f"{start} are missing if those batches had any"
        )
        return _with(cutover, Verdict.UNKNOWN, reason)
    done = f"the table holds exactly the batches up to {start}, and does not know {unknown_as}: nothing is skipped"
    return _with(cutover, Verdict.SAFE, done if start >= 0 else "the table holds nothing of the old query")


def _but_of(known: Known, app_id: str) -> str:
    """What a start from scratch may double besides: a checkpoint that was reset before wrote under another id."""
    others = known.others(app_id)
    lineage = (known.history.lineage() if known.history else None) or ()
    rows = [c.rows for c in lineage if app_id not in c.txns and c.txns]
    counted = "rows" if None in rows else f"{sum(row or 0 for row in rows):,} rows"
    return (
        f"but {counted} that other query ids wrote ({', '.join(others[:3])}{', …' if len(others) > 3 else ''}): where one is an "
        "earlier checkpoint of this query, what the sources still give of them is written again too"
    )


def _same_app_id(uri: str, app_id: str, memory: int) -> Cutover:
    reason = (
        f"foreachBatch writes with txnAppId {app_id}, of which the table remembers {memory}; a new checkpoint begins at batch "
        f"0, so Delta skips its batches 0 to {memory} without a word: give the new query a new txnAppId "
        "(and say so: --new-txn-app-id), or go on with the numbers where it keeps no state (--continue-numbers)"
    )
    return Cutover("delta", uri, Verdict.WILL_SKIP, (reason,), remembered=memory, skipped=memory + 1)


def _file_sink_goes_on(uri: str, remembered: int, start: int) -> Cutover:
    cutover = Cutover("file", uri, Verdict.SAFE, held=remembered, remembered=remembered)
    if remembered <= start:
        return _with(
            cutover, Verdict.SAFE, f"the sink has batches up to {remembered}; the new numbers go on after them"
        )
    batches = remembered - start
    reason = (
        f"the sink has batches up to {remembered}, the new checkpoint reads after {start}: their rows are written again"
        if start >= 0
        else f"the sink has batches 0 to {remembered}: what the sources give again of their rows is written again"
    )
    return _with(cutover, Verdict.WILL_DUPLICATE, reason, doubled={"batches": batches})


def _unknown_id(uri: str) -> Cutover:
    reason = "the old query's id cannot be read (metadata), so which of its batches the table holds is not known"
    return Cutover("delta", uri, Verdict.UNKNOWN, (reason,))


def _without_memory(kind: str, start: int, newest: int) -> Cutover:
    if newest <= start:
        return Cutover(kind, kind, Verdict.SAFE, (_SAFE_WITHOUT_A_BATCH,))
    report = without_memory(kind, start, newest)
    return Cutover(kind, kind, report.verdict, report.reasons, doubled={"batches": newest - start})


def _memory(known: Known, app_id: str) -> int | None:
    history, place = known.history, known.sink.place
    memory = history.remembered(app_id) if history else None
    if memory is None and history and place and not history.is_whole:
        try:
            memory = delta_client.remembered(place, app_id, storage_options=known.sink.storage_options)
        except MissingExtraError as e:
            log.info("%s", e)
    return memory


def _with(cutover: Cutover, verdict: Verdict, reason: str, *, doubled: Mapping[str, int] | None = None) -> Cutover:
    return Cutover(
        cutover.kind,
        cutover.uri,
        verdict,
        (reason,),
        held=cutover.held,
        remembered=cutover.remembered,
        doubled=doubled or {},
    )
