"""Planning a rewind of a checkpoint, its state and its sink, to a batch or a time. Reads only.

Every obvious way is wrong: deleting commits skips batches without a word; state snapshots left behind corrupt the state; a
table that is restored still remembers its batches and skips their replay. So the plan takes all three together: it names
every file that goes, asks the sources (guards) and looks at the sink.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest, checked_name
from airflow_ckpt_provider.backup.relocate import holds_absolute_paths, original_place
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.sealing import new_plan_id, sealed_by_another
from airflow_ckpt_provider.backup.target import Target, look_at
from airflow_ckpt_provider.backup.verify import check_contents, content_damage
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, parse_offsets
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import MissingExtraError, RefusedError, SealedError
from airflow_ckpt_provider.guards import delta_client
from airflow_ckpt_provider.guards.delta_log import is_delta_table
from airflow_ckpt_provider.guards.registry import Guard
from airflow_ckpt_provider.plan import Verdict
from airflow_ckpt_provider.recovery.beyond import files_beyond
from airflow_ckpt_provider.recovery.downstream import downstream_of
from airflow_ckpt_provider.recovery.replay import replay_after
from airflow_ckpt_provider.recovery.rewind_plan import RewindPlan, RewindRequest
from airflow_ckpt_provider.recovery.rewind_sources import judge_sources
from airflow_ckpt_provider.recovery.sinks.delta import look_at_delta
from airflow_ckpt_provider.recovery.sinks.delta_history import TableHistory, read_table_history
from airflow_ckpt_provider.recovery.sinks.delta_rollback import RestoreBySpark
from airflow_ckpt_provider.recovery.sinks.file_sink import is_file_sink, look_at_file_sink
from airflow_ckpt_provider.recovery.sinks.sink import WITHOUT_MEMORY, SinkExit, SinkReport, look_at_nothing
from airflow_ckpt_provider.recovery.specifiers import Specifier, resolve
from airflow_ckpt_provider.recovery.targets import (
    RewindTarget,
    merged,
    repartitions,
    span,
    targets_of_backups,
    targets_of_checkpoint,
    targets_of_manifest,
)
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

#: Where what is set aside goes when no repository is named: beside the checkpoint.
REWINDS = ".rewinds"


@dataclass(frozen=True, slots=True)
class Sink:
    """The sink of a query, as the person names it.

    :param place: the table or directory it writes to, or ``None``.
    :param kind: ``foreachBatch``, ``foreach`` or ``kafka`` for a sink without a place; ``unknown`` where nothing is known.
    :param app_id: the ``txnAppId`` with which ``foreachBatch`` writes to a Delta table; by default the query id.
    :param storage_options: settings of the table's store as ``deltalake`` names them.
    :param by_spark: restores a table that ``deltalake`` cannot restore; ``None``: there is no Spark to do it.
    """

    place: Location | None = None
    kind: str = "unknown"
    app_id: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    by_spark: RestoreBySpark | None = None

    @classmethod
    def named(
        cls,
        text: str | None,
        open_place: Callable[[str], Location],
        *,
        app_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        by_spark: RestoreBySpark | None = None,
    ) -> Sink:
        """The sink that a person names: a place, or the kind of one without a place.

        :param text: a path or URI, or one of ``foreachBatch``, ``foreach``, ``kafka``; empty or ``None``: unknown.
        :param open_place: opens a place.
        """
        if not text:
            return cls()
        if text in WITHOUT_MEMORY:
            return cls(kind=text)
        return cls(open_place(text), "", app_id or None, storage_options or {}, by_spark)

    @property
    def name(self) -> str:
        """How a request names it."""
        return self.place.uri if self.place else "" if self.kind == "unknown" else self.kind


def default_repository(checkpoint: Location) -> Location:
    """Where what a rewind sets aside is kept when no repository is named."""
    return Location(checkpoint.store, checkpoint.root.rstrip("/") + REWINDS)


def reachable(
    checkpoint: Checkpoint, repository: Repository | None = None, *, name: str | None = None
) -> list[RewindTarget]:
    """Every batch that the stream can go back to, oldest first: those of the checkpoint and those of its backups."""
    progress = checkpoint.progress()
    of_backups = _of_backups(repository, checkpoint, name, progress)
    return merged(targets_of_checkpoint(checkpoint.tree()), of_backups)


def plan_rewind(
    checkpoint: Checkpoint,
    specifier: Specifier,
    *,
    sink: Sink | None = None,
    sink_exit: SinkExit | None = None,
    repository: Location | None = None,
    name: str | None = None,
    exact_replay: bool = True,
    backup: str | None = None,
    guards: Sequence[Guard] | None = None,
    downstream: Iterable[Location] = (),
    under: str | None = None,
) -> RewindPlan:
    """Plan a rewind; reads only.

    :param checkpoint: the checkpoint.
    :param specifier: where to.
    :param sink: what the query writes to; unknown by default.
    :param sink_exit: what is to be done about rows that the sink has beyond the target.
    :param repository: place of the repository that keeps what goes, and whose backups count as targets too. By default
        beside the checkpoint, in ``<checkpoint>.rewinds``.
    :param name: name of the stream in the repository; by default the last segment of the checkpoint's path.
    :param exact_replay: where the log entry of the next batch is there, keep it, so that it runs again over the same data.
    :param backup: id of the backup to go back to, also where the checkpoint still has that batch: everything is then as it was
        when the backup was made, whatever other code has written since, under whatever query id.
    :param guards: those that judge whether the sources still have the data; by default all that are installed, without
        settings, which for Kafka means that it is not known.
    :param downstream: checkpoints of streams that may read the sink, or folders that hold such.
    :param under: id under which the checkpoint was sealed already, to stop its query; the plan takes it.
    :raises NotACheckpointError: there is no checkpoint.
    :raises RefusedError: the target is out of range; the sink cannot be rolled back or moved forward to.
    :raises SealedError: the checkpoint is sealed by something else.
    """
    location = checkpoint.location
    sink = sink or Sink()
    name = checked_name(name or location.name)
    held = Repository.open_if_there(repository or default_repository(location))
    request = RewindRequest(
        target=str(specifier),
        sink=sink.name,
        sink_exit=sink_exit.value if sink_exit else "",
        app_id=sink.app_id or "",
        exact_replay=exact_replay,
        backup=backup or "",
    )
    progress = checkpoint.progress()
    if progress.seal and (progress.seal.plan_id != under or (held and read_plan(held, under))):
        return _continued(progress, progress.seal, held, name, request)
    given = _given_backup(held, name, backup) if backup else None
    query_id = given.query_id if given else progress.query_id
    if query_id is None or (progress.latest_committed is None and not given):
        missing = "metadata is missing" if progress.query_id is None else "no batch was committed yet"
        raise RefusedError(
            f"{location} cannot be rewound: {missing}",
            hint="restore a backup; `airflow-ckpt inspect` shows what is there",
        )
    history = read_table_history(sink.place) if sink.place and is_delta_table(sink.place) else None
    before, tree = look_at(location), checkpoint.tree()
    if specifier.kind == "to_latest":
        exact_replay = False  # what was logged and not committed is dropped
    app_id = sink.app_id or query_id
    wanted = _for_table_version(specifier, history, app_id)
    if given:
        found = resolve(wanted, targets_of_manifest(given), newest=given.batch_id)
        target, notes = found.target, found.notes
    else:
        target, notes = _target(tree, held, checkpoint, name, progress, wanted, sink_exit, sink, history)
    replays = exact_replay and target.replays
    deletes, writes = _changes(tree, before, target, held, replays=replays)
    if specifier.kind == "to_current" and sink_exit is not SinkExit.FORWARD:
        deletes, writes = (), ()
    logged = (progress.latest_logged, progress.latest_committed, target.batch_id if given else None)
    newest = max(b for b in logged if b is not None)
    # Another query has taken the place of the one in the backup: what it wrote goes as well.
    later = {progress.query_id} - {query_id, None}
    report = _look_at_sink(sink, history, app_id, target.batch_id, newest, tree=tree, later=later)
    replay = replay_after(tree, target.batch_id, target.sources)
    nothing_to_read = replay.batches == 0 and not target.backup
    plan = RewindPlan(
        plan_id=under or new_plan_id(),
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
        sink=report,
        sink_exit=sink_exit,
        app_id=app_id,
        replay=replay.to_json(),
        sources=None
        if nothing_to_read
        else judge_sources(tree, target, replays=replays, repository=held, guards=guards),
        downstream=downstream_of(history, report.rollback, downstream) if history and report.rollback else (),
        notes=notes,
        ended=target.ended,
    )
    _check_exit(plan)
    return plan


def _of_backups(
    repository: Repository | None, checkpoint: Checkpoint, name: str | None, progress: Progress
) -> list[RewindTarget]:
    if repository is None:
        return []
    return targets_of_backups(repository, checked_name(name or checkpoint.location.name), query_id=progress.query_id)


def _given_backup(repository: Repository | None, name: str, backup_id: str) -> Manifest:
    if repository is None:
        raise RefusedError(f"there is no repository that backup {backup_id} could be in", hint="name it: --repository")
    return repository.manifest(backup_id, name=name)


def _for_table_version(specifier: Specifier, history: TableHistory | None, app_id: str) -> Specifier:
    """Turn a table version into the newest batch that the table held then."""
    if specifier.kind != "to_table_version":
        return specifier
    if history is None:
        raise RefusedError("--to-table-version needs a Delta table as the sink", hint="name it: --sink TABLE")
    try:
        version = int(specifier.value)
    except ValueError:
        raise RefusedError(f"--to-table-version {specifier.value!r} is not a whole number") from None
    if history.at(version) is None:
        raise RefusedError(
            f"version {version} is not in the table's log, which has {history.first} to {history.newest}",
            hint="choose one of these",
        )
    lineage = history.lineage(version)
    batches = [c.txns[app_id] for c in lineage or () if app_id in c.txns]
    if not batches:
        raise RefusedError(
            f"version {version} of the table holds no batch of the query {app_id}", hint="use --to-batch"
        )
    return Specifier("to_batch", str(max(batches)))


def _target(
    tree: Tree,
    repository: Repository | None,
    checkpoint: Checkpoint,
    name: str,
    progress: Progress,
    specifier: Specifier,
    sink_exit: SinkExit | None,
    sink: Sink,
    history: TableHistory | None,
) -> tuple[RewindTarget, tuple[str, ...]]:
    newest = progress.latest_committed or 0
    only = int(specifier.value) if specifier.kind == "to_batch" and specifier.value.lstrip("-").isdigit() else None
    if specifier.kind in ("to_latest", "to_current"):
        only = newest
    own = targets_of_checkpoint(tree, only=only)
    enough = only is not None and own and sink_exit is not SinkExit.FORWARD
    backups = [] if enough else _of_backups(repository, checkpoint, name, progress)
    targets = merged(own, backups)
    if only is not None and only not in {t.batch_id for t in targets}:
        targets = merged(targets_of_checkpoint(tree), backups)  # for the range in the message
    resolved = resolve(specifier, targets, newest=newest)
    if sink_exit is not SinkExit.FORWARD:
        return resolved.target, resolved.notes
    target = _where_the_sink_is(sink, history, progress, merged(targets_of_checkpoint(tree), backups), resolved.target)
    moved = f"the sink stays and the checkpoint goes to batch {target.batch_id}, where the sink is"
    return target, (*resolved.notes, moved)


def _where_the_sink_is(
    sink: Sink, history: TableHistory | None, progress: Progress, targets: list[RewindTarget], asked: RewindTarget
) -> RewindTarget:
    newest = progress.latest_logged or 0
    report = _look_at_sink(sink, history, sink.app_id or progress.query_id or "", asked.batch_id, newest)
    if report.batch_id is None or report.remembered != report.batch_id:
        raise RefusedError(
            f"{report.uri} does not tell to which batch the checkpoint would have to go forward "
            f"(it holds {report.batch_id}, remembers {report.remembered})",
            hint="roll the sink back (--sink-exit rollback), or accept what will happen",
        )
    for target in targets:
        if target.batch_id == report.batch_id:
            return target
    raise RefusedError(
        f"the sink is at batch {report.batch_id}, which the checkpoint cannot go to; reachable: {span(targets)}",
        hint="roll the sink back to one of these (--sink-exit rollback)",
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
    writes = []
    for entry in entries:
        there = before.visible.get(entry.path)
        if (
            there is None
            or there.size != entry.size
            or content_damage(entry, before.location.read(entry.path)) is not None
        ):
            writes.append(entry)
    return tuple(sorted(set(before.visible) - {entry.path for entry in entries})), tuple(writes)


def _check_backup(repository: Repository, entries: Sequence[FileEntry], location: Location) -> None:
    problems = check_contents(repository, entries)
    if problems:
        raise RefusedError(
            f"the backup to go back to is damaged: {problems[0].message}",
            hint="choose another batch; `airflow-ckpt verify --read-data` tells which backups are whole",
        )
    for entry in entries:
        if holds_absolute_paths(entry.path):
            place = original_place(repository.location.read(entry.object), path=entry.path)
            if place is not None and not place.rstrip("/").endswith(location.root.rstrip("/")):
                raise RefusedError(
                    f"{entry.path} of the backup names {place}, not {location}",
                    hint="restore it instead, which rewrites such paths: `airflow-ckpt restore … --replace`",
                )


def look_at_sink(sink: Sink, query_id: str, batch_id: int, newest: int) -> SinkReport:
    """Judge a start of a query after a batch, by its sink.

    :param sink: the sink.
    :param query_id: id of the query.
    :param batch_id: the batch after which it will start.
    :param newest: the newest batch that it may have written.
    :raises RefusedError: the place that is named is no sink.
    """
    history = read_table_history(sink.place) if sink.place and is_delta_table(sink.place) else None
    return _look_at_sink(sink, history, sink.app_id or query_id, batch_id, newest)


def _look_at_sink(
    sink: Sink,
    history: TableHistory | None,
    app_id: str,
    batch_id: int,
    newest: int,
    *,
    tree: Tree | None = None,
    later: Collection[str | None] = (),
) -> SinkReport:
    place = sink.place
    if place is None:
        if sink.kind not in (*WITHOUT_MEMORY, "unknown"):
            raise RefusedError(
                f"{sink.kind!r} is neither a place nor one of {', '.join(WITHOUT_MEMORY)}", hint="name the sink: --sink"
            )
        return look_at_nothing(sink.kind, batch_id, newest)
    if history:
        remembered = None
        if history.remembered(app_id) is None and not history.is_whole:
            try:
                remembered = delta_client.remembered(place, app_id, storage_options=sink.storage_options)
            except MissingExtraError as e:
                log.info("%s", e)
        return look_at_delta(history, app_id, batch_id, remembered=remembered, later=later)
    if is_file_sink(place):
        return look_at_file_sink(place, batch_id, unwritten=repartitions(tree) if tree else frozenset())
    raise RefusedError(
        f"{place} is neither a Delta table nor the output of a file sink (no _delta_log/, no _spark_metadata/)",
        hint=f"give the sink's directory, or one of {', '.join(WITHOUT_MEMORY)} where it has none",
    )


def _check_exit(plan: RewindPlan) -> None:
    """Refuse an exit that the sink does not have."""
    if plan.sink_exit is not SinkExit.ROLLBACK or plan.rolls_sink_back or plan.sink.verdict is Verdict.SAFE:
        return
    obstacle = plan.sink.obstacle or "; ".join(plan.sink.reasons)
    raise RefusedError(
        f"the sink cannot be rolled back to batch {plan.batch_id}: {obstacle}",
        hint="go to another batch, keep the sink and move the checkpoint to it (--sink-exit forward), or accept what will happen "
        f"(--sink-exit accept): {'; '.join(plan.sink.reasons)}",
    )


def _continued(
    progress: Progress, seal: Seal, repository: Repository | None, name: str, request: RewindRequest
) -> RewindPlan:
    """Go on with a rewind that was killed: its seal says which one it was, the repository keeps its plan."""
    plan = read_plan(repository, seal.plan_id) if repository else None
    if plan is None or plan.name != name:
        raise sealed_by_another(progress.uri, seal)
    if plan.request != request:
        raise SealedError(
            f"{progress.uri} is sealed by plan {plan.plan_id}, a rewind ({plan.request.target}) that was not ended",
            hint="run that one again, which goes on with it, or take it back: `airflow-ckpt undo "
            f"{progress.uri} --plan {plan.plan_id}`",
        )
    log.info("%s carries the seal of plan %s: going on with it", progress.uri, plan.plan_id)
    return replace(plan, continued=True)


def read_plan(repository: Repository, plan_id: str) -> RewindPlan | None:
    """The plan of a rewind, as it was carried out or begun; ``None`` if there is none of that id."""
    document = repository.kept_plan(plan_id)
    return RewindPlan.of_document(document) if document and document.get("kind") == "rewind" else None
