"""Planning a rewind of a checkpoint, its state and its sink, to a batch or a time. Reads only.

Every obvious way is wrong: deleting commits skips batches silently; state snapshots left behind corrupt the state; a
table that is restored still remembers its batches and skips their replay. So the plan takes all three together: it names
every file that goes, asks the sources (guards) and reads the sink.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_ckpt_provider.backup.beside import repository_at
from airflow_ckpt_provider.backup.content_checks import check_contents, content_damage, read_content
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.identity import is_same_stream
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import stream_name
from airflow_ckpt_provider.backup.streams import is_place, stream_in_words
from airflow_ckpt_provider.change.plan import chain_command
from airflow_ckpt_provider.change.sealing import sealed_by_another
from airflow_ckpt_provider.change.target import Target, check_alone, inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, parse_offsets
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.resume import start_after
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError, RefusedError, SealedError, StorageError, command
from airflow_ckpt_provider.guards.registry import Guard
from airflow_ckpt_provider.recovery.newest_batch import newest_batch
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.restore.relocate import foreign_place, holds_absolute_paths
from airflow_ckpt_provider.recovery.rewind.asked_sink import (
    AskedSink,
    batch_of_version,
    check_policies,
    downstream_of_sinks,
    question_of,
    target_of_sink,
)
from airflow_ckpt_provider.recovery.rewind.beyond import files_beyond
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan, RewindRequest
from airflow_ckpt_provider.recovery.rewind.planned_sink import RequestedSink, policies_for
from airflow_ckpt_provider.recovery.rewind.replay import replay_after
from airflow_ckpt_provider.recovery.rewind.sources import judge_sources
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.rewind.specifiers import resolve
from airflow_ckpt_provider.recovery.rewind.targets import (
    RewindTarget,
    logged_batches,
    logged_in_backup,
    merged,
    targets_of_backups,
    targets_of_checkpoint,
    targets_of_manifest,
)
from airflow_ckpt_provider.recovery.rewind.undo_preview import undo_preview
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink, look_at, named_sinks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict, worst

log = logging.getLogger(__name__)


def reachable(
    checkpoint: Checkpoint, repository: Repository | None = None, *, name: str | None = None
) -> list[RewindTarget]:
    """Every batch that the stream can be rewound to, oldest first: those of the checkpoint and those of its backups."""
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
    :param backup: id of the backup to rewind to, also where the checkpoint still has that batch: everything is then as it was
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
    if backup and (specifier.kind == "to_current" or SinkPolicy.FORWARD in policies):
        what = (
            "to_current leaves the checkpoint"
            if specifier.kind == "to_current"
            else "forward moves it to where the sink is"
        )
        raise RefusedError(
            f"{what}, and backup {backup} replaces it",
            hint="say to_latest / --to-latest for the batch of the backup, with the policy rollback or keep; or leave the backup "
            "out",
        )
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
    asked = [AskedSink(each, found, policy) for each, found, policy in zip(sinks, looked, policies, strict=True)]
    wanted = batch_of_version(specifier, asked, ids)
    if given:
        found = resolve(wanted, targets_of_manifest(given), newest=given.batch_id)
        target, notes = found.target, found.notes
    else:
        target, notes = _target(tree, held, name, progress, wanted, asked, ids)
        if target.backup:  # its metadata comes with it
            query_id = target.backup.query_id
            ids = ids.starting_as(query_id)
    replays = exact_replay and target.replays
    as_it_is = specifier.kind == "to_current" and SinkPolicy.FORWARD not in policies
    not_safe = _start_as_it_is(location, progress, tree, target) if as_it_is else ""
    deletes, writes = ((), ()) if as_it_is else _changes(tree, before, target, held, replays=replays)
    logged = (progress.latest_logged, progress.latest_committed, target.batch_id if given else None)
    newest = max(b for b in logged if b is not None)
    entries = logged_batches(tree)
    if target.backup:
        entries = replace(logged_in_backup(target.backup), repartitions=entries.repartitions)
    written = newest_batch(
        location,
        progress.latest_begun,
        progress.query_id,
        starts_as=query_id,
        repository=held,
        name=name,
        unlogged=progress.unlogged,
        ids=ids,
        backup=target.backup,
        tree=tree,
    )
    latest = written.after(target.batch_id)
    planned = tuple(each.planned(ids, target.batch_id, latest, query_id, entries) for each in asked)
    if any(each.found is None for each in asked):
        notes = (*notes, *written.notes(target.batch_id))
    replay = replay_after(tree, target.batch_id, target.sources)
    nothing_to_read = replay.batches == 0 and not target.backup
    sources = None
    if not nothing_to_read:
        sources = judge_sources(
            tree, target, replays=replays, repository=held, name=name, query_ids=ids.all, guards=guards
        )
    if not_safe:
        judged = sources or {"verdict": Verdict.SAFE.value, "reasons": []}
        verdict = worst((Verdict(judged["verdict"]), Verdict.UNKNOWN))
        sources = {**judged, "verdict": verdict.value, "reasons": [not_safe, *judged["reasons"]]}
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
        sources=sources,
        downstream=downstream_of_sinks(asked, planned, list(downstream)),
        notes=(*notes, *question_of(asked, ids)),
        ended=target.ended,
    )
    check_policies(plan)
    return replace(plan, undo=undo_preview(plan, sinks))


def _of_backups(repository: Repository | None, name: str, ids: QueryIds | None) -> list[RewindTarget]:
    if repository is None:
        return []
    return targets_of_backups(repository, name, query_ids=[link.query_id for link in ids.links] if ids else None)


def _start_as_it_is(location: Location, progress: Progress, tree: Tree, target: RewindTarget) -> str:
    """Refuse to call a checkpoint done that does not continue after its newest commit; why it is not known, or an empty text."""
    if target.backup:
        try:
            resolve_closure(tree, target.batch_id)
        except CkptError as e:
            raise RefusedError(
                f"the checkpoint cannot stay as it is: its batch {target.batch_id} is not whole ({e.message}); a backup has it",
                hint=f"repair it: `{command('doctor', location)} --repair`, or go to that backup (to_latest / --to-latest)",
            ) from e
    verdict, reason = start_after(location, progress, target.batch_id)
    if verdict in (Verdict.SAFE, Verdict.UNKNOWN):
        return reason
    raise RefusedError(
        f"the checkpoint cannot stay as it is ({verdict.value}): {reason}",
        hint=f"rewind it to its newest commit (to_latest / --to-latest), with the sink; or `{command('doctor', location)}`",
    )


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


def _target(
    tree: Tree,
    repository: Repository | None,
    name: str,
    progress: Progress,
    specifier: Specifier,
    asked: Sequence[AskedSink],
    ids: QueryIds,
) -> tuple[RewindTarget, tuple[str, ...]]:
    forward = asked[0].policy is SinkPolicy.FORWARD
    newest = progress.latest_committed or 0
    only = None
    if specifier.kind == "to_batch":
        with suppress(ValueError):  # what is no number is refused below
            only = int(specifier.value)
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
    places = [target_of_sink(each, progress, everything, resolved.target, ids) for each in asked]
    target = places[0]
    if len({place.batch_id for place in places}) > 1:
        where = ", ".join(f"{each.sink.name} at {place.batch_id}" for each, place in zip(asked, places, strict=True))
        raise RefusedError(
            f"the sinks are not at one batch ({where}): the checkpoint cannot go forward to all of them",
            hint="roll them back to one batch (sink_policy / --sink-policy rollback)",
        )
    moved = f"the sink stays and the checkpoint goes to batch {target.batch_id}, where the sink is"
    return target, (*resolved.notes, moved)


def _changes(
    tree: Tree, before: Target, target: RewindTarget, repository: Repository | None, *, replays: bool
) -> tuple[tuple[str, ...], tuple[FileEntry, ...]]:
    """What is removed, and what is written. Of a batch in the checkpoint itself only what is beyond it is removed."""
    if not target.backup or repository is None:
        closure = resolve_closure(tree, target.batch_id, replays_next=replays)
        following = tree.get(f"{OFFSETS}/{target.batch_id + 1}") if replays else None
        end = parse_offsets(tree.read(following), batch_id=target.batch_id + 1) if following else closure.entry
        # The seal that has stopped the query lies beyond the batch too, and is no file of the query.
        return tuple(path for path in files_beyond(tree, closure, end) if path in before.visible), ()
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
    writes = tuple(e for e in entries if e.path in differing or e.path.startswith(f"{OFFSETS}/"))
    check_alone(before, (*deletes, *(entry.path for entry in writes)))
    return deletes, writes


def _check_backup(repository: Repository, entries: Sequence[FileEntry], location: Location) -> None:
    problems = check_contents(repository, entries)
    if damage := next((problem for problem in problems if problem.is_damage), None):
        raise RefusedError(
            f"the backup to rewind to is damaged: {damage.message}",
            hint="choose another batch; `airflow-ckpt verify --read-data` shows which backups are whole",
        )
    if problems:
        raise StorageError(
            f"the backup to rewind to could not be read: {problems[0].message}",
            hint="run the same command again; where that does not help, choose another batch",
        )
    for entry in entries:
        if holds_absolute_paths(entry.path):
            place = foreign_place(read_content(repository, entry), path=entry.path, location=location)
            if place is not None:
                raise RefusedError(
                    f"{entry.path} of the backup names {place}, not {location}",
                    hint="restore it instead, which rewrites such paths: `airflow-ckpt restore … --replace`",
                )


def _continued(
    progress: Progress, seal: Seal, repository: Repository | None, name: str | None, request: RewindRequest
) -> RewindPlan:
    """Continue with a rewind that was killed: its seal says which one it was, the repository keeps its plan."""
    plan = read_plan(repository, seal.plan_id) if repository else None
    if plan is None or name not in (None, plan.name):
        raise sealed_by_another(progress.uri, seal)
    if plan.chain:
        raise SealedError(
            f"{progress.uri} is sealed by plan {plan.plan_id}, its part of chain {plan.chain['plan_id']}, which was not ended",
            hint=f"run that one again: `{chain_command('rewind', plan.chain)}`, or undo it: "
            f"`{plan.command_to_undo(repository)}`",
        )
    if plan.request.target == "from-file":  # begun by version 0.1, which did not distinguish one file from another
        request = replace(request, target=request.target.partition(" ")[0])
    if _without_acceptance(plan.request) != _without_acceptance(request):
        raise SealedError(
            f"{progress.uri} is sealed by plan {plan.plan_id}, a rewind ({plan.request.target}) that was not ended",
            hint=f"run that one again, which continues with it, or undo it: `{plan.command_to_undo(repository)}`",
        )
    log.info("%s carries the seal of plan %s: continuing with it", progress.uri, plan.plan_id)
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
