"""Planning a rewind of several streams together. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, IcebergOffset
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.guards.registry import Guard, GuardedSource, GuardSettings, installed_guards
from airflow_ckpt_provider.guards.report import Judgement, SourceReport
from airflow_ckpt_provider.recovery.chains.boundary import Chain, Choice, find_boundary, same_rows
from airflow_ckpt_provider.recovery.chains.edges import find_edges, in_order
from airflow_ckpt_provider.recovery.chains.plan import ChainPart, ChainPlan, JointPlan, rewind_command
from airflow_ckpt_provider.recovery.chains.positions import BEFORE_ALL, moved_entries
from airflow_ckpt_provider.recovery.chains.sealed import kept_chain, not_ended, part_ids
from airflow_ckpt_provider.recovery.chains.stream import (
    ChainStream,
    ReadStream,
    check_arguments,
    named_streams,
    read_stream,
)
from airflow_ckpt_provider.recovery.rewind.asked_sink import batch_of_version
from airflow_ckpt_provider.recovery.rewind.downstream import readers_among, streams_in
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind, reachable
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.rewind.specifiers import resolve
from airflow_ckpt_provider.recovery.rewind.undo_preview import undo_preview
from airflow_ckpt_provider.sinks.sink import named_sinks
from airflow_ckpt_provider.storage.location import Location, plain_uri
from airflow_ckpt_provider.verdict import Verdict

#: Specifiers that mean something else for each stream, so that they are for one stream alone.
_OF_ONE = ("to_batch", "from_file", "to_table_version")


def plan_chain(
    streams: Sequence[ChainStream],
    specifier: Specifier,
    *,
    begins_with: Sequence[str] = (),
    exact_replay: bool = True,
    guards: Sequence[Guard] | None = None,
    look_in: Iterable[Location] = (),
    batches: Mapping[str, int] | None = None,
    chain_id: str | None = None,
) -> ChainPlan:
    """Plan a rewind of several streams; reads only.

    :param streams: the streams: those of a chain, and those of one application that read nothing of each other.
    :param specifier: where to, for the streams that the rewind begins with.
    :param begins_with: names of these; by default those that read no other of the streams.
    :param exact_replay: run the next batch again over exactly the same data, where nothing that a stream reads is rolled back.
    :param guards: those that judge whether the sources still have the data, for streams without guards of their own; by default
        all that are installed.
    :param look_in: where to look for streams that read one of the tables and were not named, beside the directories that the
        named checkpoints are in.
    :param batches: stream -> the batch that a plan which was shown before has chosen (its ``batches``): go to exactly these.
        ``None``: choose.
    :param chain_id: id under which the checkpoints were sealed; ``None``: they were not. A rewind that was begun under this id
        is resumed: its plan is returned as it was kept.
    :raises SealedError: that one was begun with another request.
    :raises RefusedError: a stream cannot be rewound with the others; the message names it.
    :raises CkptError: as :func:`~airflow_ckpt_provider.recovery.rewind.planning.plan_rewind` raises.
    """
    streams = named_streams(tuple(streams))
    check_arguments(streams)
    kept = kept_chain(streams, chain_id) if chain_id else None
    if kept is not None:
        return _continued(kept, str(specifier), begins_with, exact_replay=exact_replay, batches=batches)
    read = {stream.name: read_stream(stream) for stream in streams}
    edges = find_edges(list(read.values()))
    chain = Chain({name: read[name] for name in in_order(list(read), edges)}, edges)
    first = _begins_with(chain, begins_with, specifier)
    wanted = {name: _targets(chain, name, _shown(name, specifier, batches)) for name in first}
    choices = find_boundary(chain, wanted)
    found = {name: choice.batch_id for name, choice in choices.items()}
    if batches and found != dict(batches):
        raise RefusedError(
            f"the plan that was shown goes to the batches {dict(batches)}, and the newest ones that fit together are {found} "
            "now; nothing was changed",
            hint="make a new plan, and apply that",
        )
    made = chain_id or new_plan_id()
    ids = part_ids(made, streams)
    arguments = " ".join(f"--stream {stream.argument}" for stream in streams)
    again = rewind_command(arguments, str(specifier), first, exact_replay=exact_replay)
    parts = []
    for name, stream in chain.streams.items():
        reads = {edge.source: edge.table for edge in chain.reads(name)}
        newest, argument = stream.progress.latest_committed or 0, stream.stream.argument
        part = ChainPart(name, stream.stream.checkpoint.uri, argument, reads, newest)
        if name in choices:
            plan = _part(
                stream,
                choices[name],
                ids[name],
                is_sealed=chain_id is not None,
                exact=exact_replay,
                guards=guards,
                chain={"plan_id": made, "arguments": arguments, "again": again},
            )
            part = replace(part, rewind=plan, undo_needs=_undo_needs(chain, stream, choices, plan))
        parts.append(part)
    others, notes = _others(chain, choices, look_in)
    return ChainPlan(
        plan_id=made,
        target=str(specifier),
        begins_with=tuple(first),
        parts=tuple(parts),
        notes=(*_notes(choices, wanted), *notes),
        others=others,
    )


def _continued(
    kept: JointPlan, target: str, begins_with: Sequence[str], *, exact_replay: bool, batches: Mapping[str, int] | None
) -> ChainPlan:
    """The rewind that an earlier run has kept, where the same is asked again."""
    if isinstance(kept, ChainPlan):
        first = set(begins_with) or {part.name for part in kept.parts if not part.reads}
        asked = (target, first, exact_replay, dict(batches or kept.batches))
        if asked == (kept.target, set(kept.begins_with), kept.exact_replay, kept.batches):
            return kept
    raise not_ended(kept)


def _shown(name: str, specifier: Specifier, batches: Mapping[str, int] | None) -> Specifier:
    """Where a stream goes: a time or a number of batches means another one once the stream has run on."""
    return Specifier("to_batch", str(batches[name])) if batches and name in batches else specifier


def _begins_with(chain: Chain, names: Sequence[str], specifier: Specifier) -> list[str]:
    strange = [name for name in names if name not in chain.streams]
    if strange:
        raise RefusedError(
            f"the rewind is to begin with {strange[0]}, which is none of the streams {', '.join(chain.streams)}",
            hint="give the name of one of them (--from)",
        )
    first = [name for name in chain.streams if name in names] or chain.roots()
    if specifier.kind == "to_current":
        raise RefusedError("--to-current changes nothing, and is not for several streams", hint="check each one alone")
    if len(first) > 1 and specifier.kind in _OF_ONE:
        raise RefusedError(
            f"{specifier} does not say of which stream: {', '.join(first)} read no other of the streams",
            hint="give a time (--to-datetime, --by-duration), which is the same for all; or name one (--from)",
        )
    return first


def _targets(chain: Chain, name: str, specifier: Specifier) -> list[int]:
    """The batches that a stream may go to, newest first: what was asked for, and all before it where others read its tables."""
    stream = chain.streams[name]
    targets = reachable(Checkpoint.at(stream.stream.checkpoint), stream.stream.held)
    try:
        wanted = batch_of_version(specifier, stream.asked, stream.ids)
        found = resolve(wanted, targets, newest=stream.progress.latest_committed or 0).target.batch_id
    except RefusedError as e:
        raise RefusedError(f"{name}: {e.message}", hint=e.hint) from e
    if not any(edge.writer == name for edge in chain.edges):
        return [found]
    return [target.batch_id for target in reversed(targets) if target.batch_id <= found]


def _part(
    stream: ReadStream,
    choice: Choice,
    plan_id: str,
    *,
    is_sealed: bool,
    exact: bool,
    guards: Sequence[Guard] | None,
    chain: Mapping[str, str],
) -> RewindPlan:
    """The rewind of one stream, as it is planned alone; then with its positions behind what it reads."""
    named, sinks = stream.stream, named_sinks(stream.stream.sinks)
    known = named.guards() if named.guards else installed_guards(GuardSettings()) if guards is None else guards
    try:
        plan = plan_rewind(
            Checkpoint.at(named.checkpoint),
            Specifier("to_batch", str(choice.batch_id)),
            sink=sinks,
            sink_exit=named.policies,
            repository=named.repository,
            exact_replay=exact and not choice.reads_changed,
            guards=(_ChainGuard(frozenset(choice.reads_changed), frozenset(choice.behind)), *known),
            seal_id=plan_id if is_sealed else None,
        )
    except RefusedError as e:
        raise RefusedError(f"{named.name}: {e.message}", hint=e.hint) from e
    moved = moved_entries(named.checkpoint.read, choice.batch_id, choice.behind) if choice.behind else {}
    plan = replace(plan, plan_id=plan_id, moved=moved, chain=dict(chain))
    return replace(plan, undo=undo_preview(plan, sinks))


@dataclass(slots=True)
class _ChainGuard:
    """Knows that what a stream reads of the chain is there: the plan itself puts it there.

    :param sources: those whose table is rolled back in the same plan.
    :param behind: those among them that continue behind a rollback (Delta). How a file source reads on was not run on Spark.
    """

    sources: frozenset[str]
    behind: frozenset[str]
    kind: str = "chain"

    def recognises(self, source: GuardedSource) -> bool:
        """Whether its table is rolled back in the same plan."""
        return source.name in self.sources

    def judge(self, source: GuardedSource) -> SourceReport:
        """It reads on where its table is put back to."""
        why = "its table is rolled back in the same plan, to what this batch has read"
        if source.name in self.behind or source.start.kind == IcebergOffset.kind:
            return SourceReport(source.name, source.start.kind, (Judgement(Verdict.SAFE, why),))
        why += f"; that a source of kind {source.start.kind} reads on from there was not run on Spark"
        return SourceReport(source.name, source.start.kind, (Judgement(Verdict.UNKNOWN, why),), lost=None)


def _undo_needs(chain: Chain, stream: ReadStream, choices: Mapping[str, Choice], plan: RewindPlan) -> str:
    """Why a stream would not be as before after an undo, which adds one more commit to each table that it reads.

    Its position moves behind that commit. That is exact only where it had read all of the table before the rewind.
    """
    if plan.undo and not plan.undo["possible"]:
        return "cannot be undone: " + "; ".join(plan.undo["reasons"])
    for edge in chain.reads(stream.name):
        if edge.source not in choices[stream.name].behind:
            continue
        rollback = choices[edge.writer].reports[edge.sink].rollback
        history = chain.streams[edge.writer].asked[edge.sink].history
        newest, position = stream.newest, stream.position(stream.newest, edge.source)
        offset = position.offset if position else None
        at_end = (
            isinstance(offset, DeltaOffset)
            and not offset.initial_snapshot
            and offset.index in BEFORE_ALL
            and history is not None
            and rollback is not None
            and rollback.from_version is not None
            and same_rows(history, offset.table_version - 1, rollback.from_version)
        )
        if stream.progress.latest_committed == newest and at_end:
            continue
        why = f"it had not read all of {edge.table} before"
        if stream.progress.latest_committed != newest:
            why = f"its batch {newest} was planned and not committed"
        return (
            f"would stop at the rollback of {edge.table}: {why}; let it run to the end of the table before this rewind"
        )
    return ""


def _notes(choices: Mapping[str, Choice], wanted: Mapping[str, Sequence[int]]) -> Iterable[str]:
    for name, batches in wanted.items():
        if choices[name].batch_id != batches[0]:
            yield (
                f"{name} goes to batch {choices[name].batch_id} and not to {batches[0]}: it is the newest one at which a batch "
                "of each stream that reads its tables ends too; what lies between is replayed"
            )
    for name, choice in choices.items():
        if choice.behind:
            sources = ", ".join(f"source {source} behind version {choice.behind[source]}" for source in choice.behind)
            yield f"{name} reads on behind the rollback ({sources}); batch {choice.batch_id + 1} is planned again"


def _others(
    chain: Chain, choices: Mapping[str, Choice], look_in: Iterable[Location]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Streams that were not named and read a sink that is rolled back, or may do so, and notes on where they were looked for.

    Looked for among the neighbours of the named checkpoints.
    """
    named = {plain_uri(stream.stream.checkpoint.uri) for stream in chain.streams.values()}
    places: dict[str, Location] = {place.uri: place for place in look_in}
    for stream in chain.streams.values():
        place = stream.stream.checkpoint
        parent = place.root.rstrip("/").rpartition("/")[0]
        if parent:
            beside = Location(place.store, parent)
            places.setdefault(beside.uri, beside)
    streams, unread = [], []
    for place in places.values():
        try:
            there, not_known = streams_in([place], but=named)
        except (StorageError, OSError) as e:
            there, not_known = [], [f"{place} could not be searched for streams that are not named ({e}): UNKNOWN"]
        streams += there
        unread += not_known
    found: list[str] = []
    is_rolled_back = False
    for name, choice in choices.items():
        for asked, report in zip(chain.streams[name].asked, choice.reports, strict=True):
            back = report.rollback
            if back and (back.to_version is None or back.to_version != back.from_version):
                is_rolled_back = True
                found += readers_among(streams, asked.history, asked.sink.place, report)
    may_read = [sentence for sentence in unread if is_rolled_back and sentence.endswith(Verdict.UNKNOWN.value)]
    notes = [sentence for sentence in unread if sentence not in may_read]
    return tuple(dict.fromkeys([*found, *may_read])), tuple(notes)
