"""Planning a rewind of a checkpoint, its state and its sink, to a batch or a time. Reads only.

Every obvious way is wrong: deleting commits skips batches silently; state snapshots left behind corrupt the state; a
table that is restored still remembers its batches and skips their replay. So the plan takes all three together: it names
every file that goes, asks the sources (guards) and looks at the sink.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.identity import is_same_stream
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository, new_plan_id, repository_at
from airflow_ckpt_provider.backup.stream_names import stream_name
from airflow_ckpt_provider.backup.streams import is_place, stream_in_words
from airflow_ckpt_provider.backup.verify import check_contents, content_damage
from airflow_ckpt_provider.change.sealing import sealed_by_another
from airflow_ckpt_provider.change.target import Target, inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, parse_offsets
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError
from airflow_ckpt_provider.guards.registry import Guard
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.restore.relocate import holds_absolute_paths, original_place
from airflow_ckpt_provider.recovery.rewind.beyond import files_beyond
from airflow_ckpt_provider.recovery.rewind.downstream import downstream_of
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan, RewindRequest
from airflow_ckpt_provider.recovery.rewind.planned_sink import PlannedSink, RequestedSink, policies_for
from airflow_ckpt_provider.recovery.rewind.replay import replay_after
from airflow_ckpt_provider.recovery.rewind.sources import judge_sources
from airflow_ckpt_provider.recovery.rewind.specifiers import Specifier, resolve
from airflow_ckpt_provider.recovery.rewind.targets import (
    RewindTarget,
    merged,
    repartitions,
    span,
    targets_of_backups,
    targets_of_checkpoint,
    targets_of_manifest,
)
from airflow_ckpt_provider.recovery.rewind.undo_preview import undo_preview
from airflow_ckpt_provider.sinks.delta_history import TableHistory
from airflow_ckpt_provider.sinks.is_this_all import is_this_all
from airflow_ckpt_provider.sinks.kinds import Recognised
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkPolicy, SinkReport
from airflow_ckpt_provider.sinks.sink import Sink, judge, look_at, named_sinks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)


def reachable(
    checkpoint: Checkpoint, repository: Repository | None = None, *, name: str | None = None
) -> list[RewindTarget]:
    """Every batch that the stream can go back to, oldest first: those of the checkpoint and those of its backups."""
    query_id = checkpoint.progress().query_id
    stream = stream_name(repository, checkpoint.location, name, query_id=query_id)
    ids = read_query_ids(query_id, place=checkpoint.location, repository=repository, name=stream)
    return merged(targets_of_checkpoint(checkpoint.tree()), _of_backups(repository, stream, ids))


def plan_rewind(
    checkpoint: Checkpoint,
    specifier: Specifier,
    *,
    sink: Sink | Sequence[Sink] | None = None,
    sink_exit: SinkPolicy | Sequence[SinkPolicy | None] | None = None,
    repository: Location | None = None,
    name: str | None = None,
    exact_replay: bool = True,
    backup: str | None = None,
    guards: Sequence[Guard] | None = None,
    downstream: Iterable[Location] = (),
    seal_id: str | None = None,
) -> RewindPlan:
    """Plan a rewind; reads only.

    :param checkpoint: the checkpoint.
    :param specifier: where to.
    :param sink: what the query writes to, one sink or several; unknown by default.
    :param sink_exit: what is to be done about rows that the sinks have beyond the target: one policy for all of them, or one for
        each in the same order.
    :param repository: place of the repository. It keeps removed and replaced files, and its backups are targets too. By default
        beside the checkpoint, in ``<checkpoint>.rewinds``.
    :param name: name of the stream in the repository; by default the one that the checkpoint has there, see
        :func:`~airflow_ckpt_provider.backup.stream_names.stream_name`.
    :param exact_replay: where the log entry of the next batch is there, keep it, so that it runs again over the same data.
    :param backup: id of the backup to go back to, also where the checkpoint still has that batch: everything is then as it was
        when the backup was made, whatever other code has written since, under whatever query id.
    :param guards: those that judge whether the sources still have the data; by default all that are installed, without
        settings, which for Kafka means that it is not known.
    :param downstream: checkpoints of streams that may read the sink, or folders that hold such.
    :param seal_id: id under which the checkpoint was sealed already, to stop its query; the plan takes it.
    :raises NotACheckpointError: there is no checkpoint.
    :raises RefusedError: the target is out of range; the sink cannot be rolled back or moved forward to.
    :raises SealedError: the checkpoint is sealed by something else.
    """
    location = checkpoint.location
    sinks = named_sinks(sink)
    policies = policies_for(sinks, sink_exit)
    held = repository_at(repository, location)
    request = RewindRequest(
        target=str(specifier),
        sinks=tuple(
            RequestedSink(each.name, policy.value if policy else "", each.app_id or "")
            for each, policy in zip(sinks, policies, strict=True)
        ),
        exact_replay=exact_replay,
        backup=backup or "",
    )
    progress = checkpoint.progress()
    if progress.seal and (progress.seal.plan_id != seal_id or (held and read_plan(held, seal_id))):
        return _continued(progress, progress.seal, held, name, request)
    name = stream_name(held, location, name, query_id=progress.query_id)
    given = _given_backup(held, name, backup, location, progress.query_id) if backup else None
    query_id = given.query_id if given else progress.query_id
    if query_id is None or (progress.latest_committed is None and not given):
        missing = "metadata is missing" if progress.query_id is None else "no batch was committed yet"
        raise RefusedError(
            f"{location} cannot be rewound: {missing}",
            hint="restore a backup; `airflow-ckpt inspect` shows what is there",
        )
    looked = [look_at(each) for each in sinks]
    histories = [found.content.history if found else None for found in looked]
    before, tree = inspect_target(location), checkpoint.tree()
    if specifier.kind == "to_latest":
        exact_replay = False  # what was logged and not committed is dropped
    ids = read_query_ids(
        progress.query_id,
        place=location,
        repository=held,
        name=name,
        becomes=given,
        app_ids=[each.app_id for each in sinks],
        histories=histories,
        tree=tree,
    ) or QueryIds.of(query_id)
    asked = [_Asked(each, found, policy) for each, found, policy in zip(sinks, looked, policies, strict=True)]
    wanted = _for_table_version(specifier, asked, ids)
    if given:
        found = resolve(wanted, targets_of_manifest(given), newest=given.batch_id)
        target, notes = found.target, found.notes
    else:
        target, notes = _target(tree, held, name, progress, wanted, asked, ids)
        if target.backup:  # its metadata comes with it
            query_id = target.backup.query_id
            ids = ids.starting_as(query_id)
    replays = exact_replay and target.replays
    deletes, writes = _changes(tree, before, target, held, replays=replays)
    if specifier.kind == "to_current" and SinkPolicy.FORWARD not in policies:
        deletes, writes = (), ()
    logged = (progress.latest_logged, progress.latest_committed, target.batch_id if given else None)
    newest = max(b for b in logged if b is not None)
    unwritten = repartitions(tree)
    planned = tuple(each.planned(ids, target.batch_id, newest, query_id, unwritten) for each in asked)
    replay = replay_after(tree, target.batch_id, target.sources)
    nothing_to_read = replay.batches == 0 and not target.backup
    plan = RewindPlan(
        plan_id=seal_id or new_plan_id(),
        request=request,
        name=name,
        checkpoint=location.uri,
        query_id=query_id,
        batch_id=target.batch_id,
        newest=newest,
        source_of_state=target.where,
        exact_replay=replays,
        before={path: file.size for path, file in before.visible.items()},
        fingerprint=before.fingerprint,
        deletes=deletes,
        writes=writes,
        sinks=planned,
        replay=replay.to_json(),
        sources=None
        if nothing_to_read
        else judge_sources(tree, target, replays=replays, repository=held, name=name, query_ids=ids.all, guards=guards),
        downstream=_downstream(asked, planned, list(downstream)),
        notes=(*notes, *_is_all(asked, ids)),
        ended=target.ended,
    )
    _check_exits(plan)
    return replace(plan, undo=undo_preview(plan, sinks))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A sink that was named, as it was read, and what is to be done to it."""

    sink: Sink
    found: Recognised | None
    policy: SinkPolicy | None

    @property
    def history(self) -> TableHistory | None:
        return self.found.content.history if self.found else None

    def report(self, ids: QueryIds, batch_id: int, newest: int, unwritten: frozenset[int] = frozenset()) -> SinkReport:
        own = ids.known_as(self.sink.app_id)
        return judge(self.sink, self.found, own, batch_id, newest, unwritten=unwritten)

    def planned(
        self, ids: QueryIds, batch_id: int, newest: int, query_id: str, unwritten: frozenset[int]
    ) -> PlannedSink:
        history, named = self.history, self.sink.app_id
        app_id = ids.known_as(named).writes_as(history) if history else named or query_id
        return PlannedSink(self.sink.name, self.report(ids, batch_id, newest, unwritten), self.policy, app_id)


def _downstream(asked: Sequence[_Asked], planned: Sequence[PlannedSink], places: Sequence[Location]) -> tuple[str, ...]:
    """What a roll-back of the tables does to the streams that read them."""
    found: list[str] = []
    for each, sink in zip(asked, planned, strict=True):
        if each.history and sink.report.rollback:
            found += downstream_of(each.history, sink.report.rollback, places)
    return tuple(found)


def _is_all(asked: Sequence[_Asked], ids: QueryIds) -> tuple[str, ...]:
    question = is_this_all([(each.sink, each.history) for each in asked], ids)
    return (question,) if question else ()


def _of_backups(repository: Repository | None, name: str, ids: QueryIds | None) -> list[RewindTarget]:
    if repository is None:
        return []
    return targets_of_backups(repository, name, query_ids=[link.query_id for link in ids.links] if ids else None)


def _given_backup(
    repository: Repository | None, name: str, backup_id: str, location: Location, query_id: str | None
) -> Manifest:
    """Find the backup that was named. Other code may have given the place another query since; of another place it is refused."""
    if repository is None:
        raise RefusedError(f"there is no repository that backup {backup_id} could be in", hint="name it: --repository")
    found = repository.manifest(backup_id, name=name)
    if (
        query_id
        and not is_place(location, found.checkpoint)
        and not is_same_stream(repository, found, location, query_id)
    ):
        raise RefusedError(
            f"backup {backup_id} is of {stream_in_words(found)}, and {location} is the checkpoint of query {query_id}",
            hint="choose a backup of this stream, or restore that one: `airflow-ckpt restore … --replace --accept other_query`",
        )
    return found


def _for_table_version(specifier: Specifier, asked: Sequence[_Asked], ids: QueryIds) -> Specifier:
    """Turn a table version into the newest batch that the table held then."""
    if specifier.kind != "to_table_version":
        return specifier
    tables = [each for each in asked if each.history]
    history = tables[0].history if len(tables) == 1 else None
    if len(tables) > 1:
        raise RefusedError(
            f"--to-table-version does not say of which table: {', '.join(each.sink.name for each in tables)}",
            hint="name the batch instead: --list shows the versions of each table that hold it",
        )
    if history is None:
        raise RefusedError(
            "--to-table-version needs a Delta table as the sink, or an Iceberg table", hint="name it: --sink TABLE"
        )
    ids = ids.known_as(tables[0].sink.app_id)
    try:
        version = int(specifier.value)
    except ValueError:
        raise RefusedError(f"--to-table-version {specifier.value!r} is not a whole number") from None
    if history.format == "iceberg":
        if version not in history.snapshots:
            raise RefusedError(
                f"snapshot {version} is not an ancestor of the table's current snapshot",
                hint="choose one that is: the snapshots table of Iceberg has them",
            )
        version = history.first + history.snapshots.index(version)
    if history.at(version) is None:
        raise RefusedError(
            f"version {version} is not in the table's log, which has {history.first} to {history.newest}",
            hint="choose one of these",
        )
    lineage = history.lineage(version)
    batches = [batch for c in lineage or () if (batch := ids.batch_in(c)) is not None]
    if not batches:
        raise RefusedError(f"version {version} of the table holds no batch of {ids.in_words()}", hint="use --to-batch")
    return Specifier("to_batch", str(max(batches)))


def _target(
    tree: Tree,
    repository: Repository | None,
    name: str,
    progress: Progress,
    specifier: Specifier,
    asked: Sequence[_Asked],
    ids: QueryIds,
) -> tuple[RewindTarget, tuple[str, ...]]:
    forward = asked[0].policy is SinkPolicy.FORWARD
    newest = progress.latest_committed or 0
    only = int(specifier.value) if specifier.kind == "to_batch" and specifier.value.lstrip("-").isdigit() else None
    if specifier.kind in ("to_latest", "to_current"):
        only = newest
    own = targets_of_checkpoint(tree, only=only)
    enough = only is not None and own and not forward
    backups = [] if enough else _of_backups(repository, name, ids)
    targets = merged(own, backups)
    if only is not None and only not in {t.batch_id for t in targets}:
        targets = merged(targets_of_checkpoint(tree), backups)  # for the range in the message
    resolved = resolve(specifier, targets, newest=newest)
    if not forward:
        return resolved.target, resolved.notes
    everything = merged(targets_of_checkpoint(tree), backups)
    places = [_where_the_sink_is(each, progress, everything, resolved.target, ids) for each in asked]
    target = places[0]
    if len({place.batch_id for place in places}) > 1:
        where = ", ".join(f"{each.sink.name} at {place.batch_id}" for each, place in zip(asked, places, strict=True))
        raise RefusedError(
            f"the sinks are not at one batch ({where}): the checkpoint cannot go forward to all of them",
            hint="roll them back to one batch (sink_policy / --sink-policy rollback)",
        )
    moved = f"the sink stays and the checkpoint goes to batch {target.batch_id}, where the sink is"
    return target, (*resolved.notes, moved)


def _where_the_sink_is(
    sink: _Asked,
    progress: Progress,
    targets: list[RewindTarget],
    asked: RewindTarget,
    ids: QueryIds,
) -> RewindTarget:
    newest = progress.latest_logged or 0
    report = sink.report(ids, asked.batch_id, newest)
    target = next((t for t in targets if t.batch_id == report.batch_id), None)
    there = report
    if target:
        becomes = ids.starting_as(target.backup.query_id) if target.backup else ids
        there = sink.report(becomes, target.batch_id, newest)
    if report.batch_id is None or (there.verdict in (Verdict.WILL_SKIP, Verdict.WILL_DUPLICATE) and target):
        raise RefusedError(
            f"{report.uri} does not tell to which batch the checkpoint would have to go forward "
            f"(it holds {report.batch_id}, remembers {there.remembered})",
            hint="roll the sink back (sink_policy / --sink-policy rollback), or keep it and accept what will happen",
        )
    if target:
        return target
    raise RefusedError(
        f"the sink is at batch {report.batch_id}, which the checkpoint cannot go to; reachable: {span(targets)}",
        hint="roll the sink back to one of these (sink_policy / --sink-policy rollback)",
    )


def _changes(
    tree: Tree, before: Target, target: RewindTarget, repository: Repository | None, *, replays: bool
) -> tuple[tuple[str, ...], tuple[FileEntry, ...]]:
    """What goes, and what is written. Of a batch in the checkpoint itself only what lies beyond it goes."""
    if not target.backup or repository is None:
        closure = resolve_closure(tree, target.batch_id, replays_next=replays)
        following = tree.get(f"{OFFSETS}/{target.batch_id + 1}") if replays else None
        end = parse_offsets(tree.read(following), batch_id=target.batch_id + 1) if following else closure.entry
        return files_beyond(tree, closure, end), ()
    entries = target.backup.files_of(target.batch_id)
    _check_backup(repository, entries, before.location)
    deletes = tuple(sorted(set(before.visible) - {entry.path for entry in entries}))

    def differs(entry: FileEntry) -> bool:
        there = before.visible.get(entry.path)
        if there is None or there.size != entry.size:
            return True
        return content_damage(entry, before.location.read(entry.path)) is not None

    differing = {entry.path for entry in entries if differs(entry)}
    if not differing and not deletes:
        return (), ()
    # Entries of the log are written in any case: the order in which they are keeps Spark from starting half-way.
    return deletes, tuple(e for e in entries if e.path in differing or e.path.startswith(f"{OFFSETS}/"))


def _check_backup(repository: Repository, entries: Sequence[FileEntry], location: Location) -> None:
    problems = check_contents(repository, entries)
    if damage := next((problem for problem in problems if problem.is_damage), None):
        raise RefusedError(
            f"the backup to go back to is damaged: {damage.message}",
            hint="choose another batch; `airflow-ckpt verify --read-data` tells which backups are whole",
        )
    if problems:
        raise StorageError(
            f"the backup to go back to could not be read: {problems[0].message}",
            hint="run the same command again; where that does not help, choose another batch",
        )
    for entry in entries:
        if holds_absolute_paths(entry.path):
            place = original_place(repository.location.read(entry.object), path=entry.path)
            if place is not None and not place.rstrip("/").endswith(location.root.rstrip("/")):
                raise RefusedError(
                    f"{entry.path} of the backup names {place}, not {location}",
                    hint="restore it instead, which rewrites such paths: `airflow-ckpt restore … --replace`",
                )


def _check_exits(plan: RewindPlan) -> None:
    """Refuse a policy that a sink does not have: all sinks go back as planned, or none does."""
    for sink in plan.sinks:
        report = sink.report
        if sink.policy is not SinkPolicy.ROLLBACK or sink.rolls_back or report.verdict is Verdict.SAFE:
            continue
        obstacle = report.obstacle or "; ".join(report.reasons)
        which = "the sink" if len(plan.sinks) == 1 else f"the sink {report.uri}"
        each = "" if len(plan.sinks) == 1 else ", with a policy for each sink, in their order"
        raise RefusedError(
            f"{which} cannot be rolled back to batch {plan.batch_id}: {obstacle}",
            hint="go to another batch, move the checkpoint to where the sink is (sink_policy / --sink-policy forward), or keep "
            f"the sink and accept what will happen (keep{each}): {'; '.join(report.reasons)}",
        )
    if plan.new_query_id:
        _check_new_query_id(plan)


def _check_new_query_id(plan: RewindPlan) -> None:
    """Refuse to give the query a new id where a sink that stays skips batches by the id that it has."""
    for sink in plan.sinks:
        by_id = sink.report.query_ids and sink.app_id == plan.query_id
        if not sink.rolls_back and by_id and sink.report.verdict is Verdict.WILL_SKIP:
            raise RefusedError(
                f"a table with the feature {plan.by_spark} is rolled back by Spark, after which the query gets a new id; "
                f"{sink.report.uri}, which is to stay, knows its batches by the id that it has, and would take them all again",
                hint="roll all sinks back, or go to a batch that this one does not have to skip",
            )


def _continued(
    progress: Progress, seal: Seal, repository: Repository | None, name: str | None, request: RewindRequest
) -> RewindPlan:
    """Go on with a rewind that was killed: its seal says which one it was, the repository keeps its plan."""
    plan = read_plan(repository, seal.plan_id) if repository else None
    if plan is None or name not in (None, plan.name):
        raise sealed_by_another(progress.uri, seal)
    if _without_acceptance(plan.request) != _without_acceptance(request):
        raise SealedError(
            f"{progress.uri} is sealed by plan {plan.plan_id}, a rewind ({plan.request.target}) that was not ended",
            hint="run that one again, which goes on with it, or take it back: `airflow-ckpt undo "
            f"{progress.uri} --plan {plan.plan_id}`",
        )
    log.info("%s carries the seal of plan %s: going on with it", progress.uri, plan.plan_id)
    return replace(plan, continued=True)


def _without_acceptance(request: RewindRequest) -> RewindRequest:
    """The request; in version 0.1 the policy ``accept`` said what ``keep`` says, which is none, and accepted the sink's risk."""
    accept = SinkPolicy.ACCEPT.value
    sinks = (replace(sink, sink_exit="") if sink.sink_exit == accept else sink for sink in request.sinks)
    return replace(request, sinks=tuple(sorted(sinks, key=lambda sink: sink.sink)))


def read_plan(repository: Repository, plan_id: str) -> RewindPlan | None:
    """The plan of a rewind, as it was carried out or begun; ``None`` if there is none of that id."""
    document = repository.kept_plan(plan_id)
    return RewindPlan.of_document(document) if document and document.get("kind") == "rewind" else None
