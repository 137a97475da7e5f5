"""Planning a reset: a new checkpoint in the place of the old one, or a new query id for it. Reads only.

For changes that no checkpoint survives: operators added, sources added, removed or exchanged, a state that is lost. The old
checkpoint is set aside whole. Positions for every source of the new one are worked out from its logs while they are
still there; so this works for a checkpoint too broken to be started, as long as one entry of ``offsets/`` can be read.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.backup.beside import default_repository, repository_at
from airflow_ckpt_provider.backup.recorded_sources import recorded_sources
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import stream_name
from airflow_ckpt_provider.change.sealing import sealed_by_another
from airflow_ckpt_provider.change.target import Target, check_alone, inspect_target
from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry
from airflow_ckpt_provider.checkpoint.progress import read_progress, why_unlogged
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.resume import start_after
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, FileOffset, KafkaOffset
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError, SealedError, command
from airflow_ckpt_provider.guards.registry import Guard
from airflow_ckpt_provider.recovery.newest_batch import newest_batch
from airflow_ckpt_provider.recovery.positions.choice import Choice, choose_batch, choose_newest
from airflow_ckpt_provider.recovery.positions.logs import ReadableLogs, logs_of_checkpoint
from airflow_ckpt_provider.recovery.positions.position import SourcePosition
from airflow_ckpt_provider.recovery.positions.positions import StartingPositions, starting_positions
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.reset.asked import asked_of_kafka
from airflow_ckpt_provider.recovery.reset.new_numbers import logs_up_to
from airflow_ckpt_provider.recovery.reset.plan import NewSource, ResetPlan, ResetRequest
from airflow_ckpt_provider.recovery.reset.unstarted import refuse_unstarted
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.sinks.cutover import (
    NOTHING_READ,
    cutover_to_new_checkpoint,
    cutover_to_new_query_id,
    number_to_continue_after,
)
from airflow_ckpt_provider.sinks.is_this_all import notes_on
from airflow_ckpt_provider.sinks.known import Known
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink, named_sinks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import is_number
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)

_STARTS_AT = {
    KafkaOffset.kind: "it starts where the query's startingOffsets says, by default at the end of the topic: what came since the "
    "old query's last batch is then lost; set startingOffsets=earliest",
    DeltaOffset.kind: "it starts with the whole table, or where the query's startingVersion or startingTimestamp says: what is "
    "older is then not read",
}
_BY_ITS_OPTIONS = "it starts where its own options say, which no checkpoint records"

_FROM_SCRATCH = (
    "from scratch: every source starts where its own options say (Kafka: startingOffsets, by default latest, so what came since "
    "the old query's last batch is lost; Delta and files: all there is, again)"
)


def plan_reset(
    checkpoint: Location,
    way: ResetWay | None,
    *,
    batch_id: int | None = None,
    sink: Sink | Sequence[Sink] | None = None,
    new_app_id: str | None = None,
    sources: Mapping[str, str] | None = None,
    continue_numbers: bool = False,
    repository: Location | None = None,
    name: str | None = None,
    kafka_partitions: Mapping[str, int] | None = None,
    tables: Mapping[str, Location] | None = None,
    guards: Sequence[Guard] | None = None,
    seal_id: str | None = None,
) -> ResetPlan:
    """Plan a reset; reads only.

    :param checkpoint: the checkpoint, whole or broken.
    :param way: what takes its place.
    :param batch_id: with ``KEEP_POSITION``: read after this committed batch; by default after the newest one that counts as
        done: the newest committed batch, or an uncommitted one that a Delta sink has already.
    :param sink: what the query writes to, one sink or several; unknown by default.
    :param new_app_id: ``txnAppId`` that the new query will write with.
    :param sources: source of the old query -> its place or name in the new one, for sources that are moved; an empty text for
        one that is gone.
    :param continue_numbers: the new checkpoint continues with the old batch numbers, for sinks that go by them; only for queries
        without state.
    :param repository: place of the repository that keeps the old checkpoint; by default beside it.
    :param name: name of the stream in the repository; by default the one that the checkpoint has there, see
        :func:`~airflow_ckpt_provider.backup.stream_names.stream_name`.
    :param kafka_partitions: topic -> how many partitions it has now.
    :param tables: source -> directory of the Delta table that it reads; a position whose table is not named is ``UNKNOWN``.
    :param guards: ask the brokers whether Kafka topics still have a kept position, and are the same topics; ``None``: nobody is
        asked, and the position is ``UNKNOWN``.
    :param seal_id: id under which the checkpoint was sealed already, to stop its query; the plan takes it.
    :raises NotACheckpointError: there is no checkpoint.
    :raises RefusedError: no way was chosen; no position can be determined; the sink is not one; no query has been started with
        the new checkpoint that the last reset put here.
    :raises SealedError: the checkpoint is sealed by something else.
    """
    sinks = named_sinks(sink)
    if way is None:
        raise RefusedError(
            f"what is to take the place of {checkpoint} was not said",
            hint="continue at its position (--keep-position), let the sources' own options decide (--from-scratch), or keep it "
            "under a new query id (--new-query-id)",
        )
    if batch_id is not None and way is not ResetWay.KEEP_POSITION:
        raise RefusedError(f"a batch goes with keep-position, not with {way.value}", hint="leave the batch out")
    request = ResetRequest(
        way=way,
        batch_id=batch_id,
        sinks=tuple((each.name, each.app_id or "") for each in sinks),
        new_app_id=new_app_id or "",
        sources=dict(sources or {}),
        continue_numbers=continue_numbers,
    )
    before = inspect_target(checkpoint)
    held = repository_at(repository, checkpoint)
    if before.seal:
        plan = read_reset(held, before.seal.plan_id) if held else None
        if plan or before.seal.plan_id != seal_id:
            return _continued(before, plan, name, request)
    elif held:
        refuse_unstarted(held, before)
    if not before.is_checkpoint and not any(path.startswith("sources/") for path in before.visible):
        raise NotACheckpointError(
            f"{checkpoint} holds no checkpoint: there is nothing to reset", hint="give the query's checkpointLocation"
        )
    if way is not ResetWay.NEW_QUERY_ID:
        check_alone(before, before.files)
    logs = logs_of_checkpoint(checkpoint)
    name = stream_name(held, checkpoint, name, query_id=logs.query_id)
    everything = [Known.of(each) for each in sinks]
    ids = _ids(checkpoint, before, logs, everything, held, name)
    known = [_OfQuery(each, _as_known(ids, each, logs)) for each in everything]
    logged = max((*logs.logged, *logs.committed), default=NOTHING_READ)
    written = newest_batch(
        checkpoint,
        logged,
        logs.query_id,
        starts_as=logs.query_id,
        repository=held,
        name=name,
        unlogged=why_unlogged(logs.logged, logs.committed, logs.entry(logs.logged[-1]) if logs.logged else None),
    )
    newest = written.after(logged)
    plan = ResetPlan(
        plan_id=seal_id or new_plan_id(),
        request=request,
        name=name,
        checkpoint=checkpoint.uri,
        query_id=logs.query_id,
        new_query_id=None,
        start=None,
        newest=newest,
        before={path: file.size for path, file in before.visible.items()},
        fingerprint=before.fingerprint,
        sources=(),
        contents={},
        cutovers=(),
        notes=(*_is_all(known), *(written.notes(logged) if any(each.found is None for each in everything) else ())),
        repository=repository.uri if repository and repository != default_repository(checkpoint) else "",
    )
    if way is ResetWay.NEW_QUERY_ID:
        return _new_query_id(plan, checkpoint, logs, known)
    if continue_numbers and logs.is_stateful:
        raise RefusedError(
            f"{checkpoint} keeps state, and its batch numbers go with its state: a new checkpoint has to begin at batch 0",
            hint="leave --continue-numbers out, and give the new query a new directory or txnAppId",
        )
    choice = _choose(logs, known, batch_id) if way is ResetWay.KEEP_POSITION or continue_numbers else None
    start = choice.entry.batch_id if choice and way is ResetWay.KEEP_POSITION else NOTHING_READ
    app_id = new_app_id or None
    after = number_to_continue_after(everything, newest, app_id) if continue_numbers else None
    how: dict[str, Any] = {"new_app_id": app_id, "continues_after": after, "planned": _planned(logs, known)}
    cutovers = tuple(
        cutover_to_new_checkpoint(each.known, each.ids, start=start, newest=newest, **how) for each in known
    )
    plan = replace(plan, cutovers=cutovers, cautions=(_FROM_SCRATCH,), sources=_from_scratch(logs))
    if choice and way is ResetWay.KEEP_POSITION:
        found = starting_positions(logs, choice, kafka_partitions=kafka_partitions, tables=tables)
        if guards is not None:
            query_ids = next((each.ids.all for each in known if each.ids), (logs.query_id or "",))
            recorded = recorded_sources(held, name, query_ids, choice.entry.batch_id) if held else {}
            found = replace(found, sources=asked_of_kafka(found.sources, choice.entry, guards, recorded))
        plan = _keeping_position(plan, found, choice)
    return _going_on(plan, choice.entry, after) if choice and after is not None and after >= 0 else plan


def _from_scratch(logs: ReadableLogs) -> tuple[NewSource, ...]:
    """The sources that may skip rows where their own options decide: all but files, which begin with all there is."""
    entries = (logs.entry(batch) for batch in reversed(logs.logged))
    entry = next((entry for entry in entries if entry), None)
    if entry is None:
        why = "no entry of offsets/ can be read, so what its sources are is not known"
        return (NewSource("all", "unknown", {}, {}, Verdict.UNKNOWN, (why,)),) if logs.logged else ()
    kinds = {source.source: source.offset.kind if source.offset else "unknown" for source in entry.sources}
    return tuple(
        NewSource(name, kind, {}, {}, Verdict.UNKNOWN, (_STARTS_AT.get(kind, _BY_ITS_OPTIONS),))
        for name, kind in kinds.items()
        if kind != FileOffset.kind
    )


def _going_on(plan: ResetPlan, entry: OffsetEntry, after: int) -> ResetPlan:
    """Let the new checkpoint continue with the batch numbers after one."""
    moved = plan.request.sources
    sources = [name for source in entry.sources if (name := moved.get(source.source, source.source))]
    if not all(map(is_number, sources)):
        raise RefusedError(
            f"{plan.checkpoint} names its sources, and only entries by their places are known here to begin without an offset",
            hint="leave --continue-numbers out, and give the new query a new directory or txnAppId",
        )
    logs = logs_up_to(
        after,
        sources,
        conf=entry.conf,
        time_ms=int(entry.time.timestamp() * 1000) if entry.time else 0,
        query_id=str(uuid.uuid4()),
    )
    count = "1 source" if len(sources) == 1 else f"{len(sources)} sources"
    caution = f"the new query has to have {count} and keep no state: its log entries say so"
    return replace(plan, contents={**plan.contents, **logs}, cautions=(*plan.cautions, caution))


def _keeping_position(plan: ResetPlan, found: StartingPositions, choice: Choice) -> ResetPlan:
    moved = plan.request.sources
    strange = sorted(set(moved) - {source.source for source in found.sources})
    if strange:
        raise RefusedError(
            f"the query has no source {strange[0]!r}",
            hint=f"its sources: {', '.join(source.source for source in found.sources)}",
        )
    left = [(moved.get(s.source, s.source), s) for s in found.sources if moved.get(s.source, s.source)]
    taken = [name for name, _ in left]
    if len(set(taken)) < len(taken):
        twice = next(name for name in taken if taken.count(name) > 1)
        raise RefusedError(f"two sources would be {twice!r} in the new query", hint="give each a place of its own")
    # The two that speak of the cutover are said there, with this sink's own facts.
    cautions = [w.message for w in found.warnings if w.code not in ("LATER-BATCHES", "NEW-QUERY-ID", "BATCH-NUMBERS")]
    unread = [f"{u.path} cannot be read: {u.reason}" for u in found.unread]
    if any(s.seed for _, s in left):
        cautions.append(
            "the new checkpoint lists the input files that were read: its file sources have to stay at their places in the query "
            "(the seeds below), or say where they are now (--source OLD=NEW)"
        )
    return replace(
        plan,
        start=choice.entry.batch_id,
        sources=tuple(_new_source(name, source) for name, source in left),
        contents={f"sources/{name}/0": s.seed.content.decode() for name, s in left if s.seed},
        cautions=tuple(cautions),
        notes=(*found.notes, *unread, *plan.notes),
    )


def _new_source(name: str, position: SourcePosition) -> NewSource:
    """A position as it is once its seed is in place."""
    verdict, reasons = position.verdict, position.reasons
    if position.seed:
        damaged = reasons[1:]  # the first says what the seed is for
        known = f"the new checkpoint lists {position.seed.files:,} files as read; the rest is read"
        verdict, reasons = (Verdict.WILL_DUPLICATE if damaged else Verdict.SAFE), (known, *damaged)
    return NewSource(name, position.kind, position.options, position.conf, verdict, reasons)


@dataclass(frozen=True, slots=True)
class _OfQuery:
    """A sink, and the ids by which it may know the old query."""

    known: Known
    ids: QueryIds | None

    @property
    def held(self) -> int | None:
        """Newest batch of the query whose rows the sink holds, where it is a table with a log."""
        return self.known.held(self.ids)


def _planned(logs: ReadableLogs, known: Sequence[_OfQuery]) -> dict[int, datetime]:
    """When the batches in the log were planned; read only for sinks with a memory, which are compared with it."""
    if all(each.known.found is None for each in known):
        return {}
    return {b: entry.time for b in logs.logged if (entry := logs.entry(b)) and entry.time}


def _is_all(known: Sequence[_OfQuery]) -> tuple[str, ...]:
    return notes_on([(each.known.sink, each.known.history) for each in known], known[0].ids)


def _ids(
    checkpoint: Location,
    before: Target,
    logs: ReadableLogs,
    known: Sequence[Known],
    repository: Repository | None,
    name: str,
) -> QueryIds | None:
    """The ids by which tables may know the old query."""
    if logs.query_id is None or all(each.history is None for each in known):
        return QueryIds.of(logs.query_id) if logs.query_id else None
    return read_query_ids(
        logs.query_id,
        place=checkpoint,
        repository=repository,
        name=name,
        app_ids=[each.sink.app_id for each in known],
        histories=[each.history for each in known],
        tree=Tree.of(checkpoint, files=before.visible.values()),
    )


def _as_known(ids: QueryIds | None, known: Known, logs: ReadableLogs) -> QueryIds | None:
    """The ids by which one sink may know the old query."""
    app_id = known.sink.app_id if known.history else None
    if logs.query_id is None:
        return QueryIds.of(app_id, app_id=app_id) if app_id else None
    return ids.known_as(app_id) if ids else None


def _choose(logs: ReadableLogs, known: Sequence[_OfQuery], batch_id: int | None) -> Choice:
    """After which batch: the newest committed one, or one that was not committed and that all sinks have all the same."""
    if batch_id is not None:
        return choose_batch(logs, batch_id)
    # Where one of them does not have it, it is read again: rows that come twice are seen, rows that are missing are not.
    batches = {each.held for each in known}
    held = batches.pop() if len(batches) == 1 else None
    beyond = held is not None and held in logs.logged and held > max(logs.committed, default=NOTHING_READ)
    entry = logs.entry(held) if held is not None and beyond else None
    if entry is None:
        return choose_newest(logs)
    later = tuple(e for b in logs.logged if b > entry.batch_id and (e := logs.entry(b)))
    what = "the table has" if len(known) == 1 else "all tables have"
    note = f"batch {held} was not committed, but {what} it: the new checkpoint reads after it, not again"
    return Choice(entry, later, notes=(note,))


def _new_query_id(plan: ResetPlan, checkpoint: Location, logs: ReadableLogs, known: Sequence[_OfQuery]) -> ResetPlan:
    if not logs.committed and not logs.logged:
        raise RefusedError(
            f"{plan.checkpoint} has no batch yet: a new query id would be the same as a new checkpoint",
            hint="reset it from scratch (--from-scratch)",
        )
    if METADATA_FILE not in plan.before:
        raise RefusedError(
            f"{plan.checkpoint} has no metadata, so no query id to replace",
            hint="`airflow-ckpt doctor --repair --query-id` puts the old id back",
        )
    start = max(logs.committed, default=NOTHING_READ)
    verdict, reason = start_after(checkpoint, read_progress(checkpoint), start)
    if verdict not in (Verdict.SAFE, Verdict.UNKNOWN):
        raise RefusedError(
            f"a start from {checkpoint} does not continue after batch {start} ({verdict.value}): {reason}; with a new query id "
            "no sink would know what it has",
            hint=f"rewind it first (`{command('rewind', checkpoint)} --to-latest`), or see what is wrong: "
            f"`{command('doctor', checkpoint)}`",
        )
    app_id = plan.request.new_app_id or None
    how: dict[str, Any] = {"newest": plan.newest, "new_app_id": app_id, "planned": _planned(logs, known)}
    cutovers = tuple(cutover_to_new_query_id(e.known, e.ids, start=start, **how) for e in known)
    caution = "listeners, metrics and sinks that go by the query id take the query for a new one from now on"
    cautions = (caution, reason) if reason else (caution,)
    return replace(plan, new_query_id=str(uuid.uuid4()), start=start, cutovers=cutovers, cautions=cautions)


def _continued(before: Target, plan: ResetPlan | None, name: str | None, request: ResetRequest) -> ResetPlan:
    """Continue with a reset that was killed: its seal says which one it was, the repository keeps its plan."""
    mark = before.seal
    if mark is None:
        raise ValueError("there is no seal")
    if plan is None or name not in (None, plan.name):
        raise sealed_by_another(before.location.uri, mark)
    if _in_order(plan.request) != _in_order(request):
        raise SealedError(
            f"{before.location} is sealed by plan {plan.plan_id}, a reset ({plan.way.value}) that was not ended",
            hint=f"run that one again: `{plan.again}`, or undo it: `{plan.take_back}`",
        )
    log.info("%s carries the seal of plan %s: continuing with it", before.location, plan.plan_id)
    return replace(plan, continued=True)


def _in_order(request: ResetRequest) -> ResetRequest:
    """The request, its sinks in one order."""
    return replace(request, sinks=tuple(sorted(request.sinks)))


def read_reset(repository: Repository, plan_id: str) -> ResetPlan | None:
    """The plan of a reset, as it was carried out or begun; ``None`` if there is none of that id."""
    document = repository.kept_plan(plan_id)
    return ResetPlan.of_document(document) if document and document.get("kind") == "reset" else None
