"""Whether the sources still have what a rewind wants to read again; asked before anything is touched."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_ckpt_provider.backup.content_checks import read_content
from airflow_ckpt_provider.backup.first_files import first_files
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.recorded_sources import recorded_sources
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, parse_offsets
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset
from airflow_ckpt_provider.checkpoint.sources import SOURCES, log_directory
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.guards.query import GuardedQuery, from_facts, guard_query
from airflow_ckpt_provider.guards.registry import Guard, GuardedSource, GuardSettings, not_guarded
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.recovery.rewind.targets import RewindTarget


def judge_sources(
    tree: Tree,
    target: RewindTarget,
    *,
    replays: bool,
    repository: Repository | None = None,
    name: str = "",
    query_ids: Collection[str] = (),
    guards: Sequence[Guard] | None = None,
) -> Mapping[str, Any]:
    """Have every source judged for a start after a batch; a source that cannot be asked is ``UNKNOWN``.

    :param tree: the checkpoint's files.
    :param target: the batch.
    :param replays: the next batch runs again up to its logged end offsets.
    :param repository: holds the target's backup, where it comes from one, and what backups recorded of the sources.
    :param name: name of the stream in the repository; empty: its backups are not asked.
    :param query_ids: ids that the stream has had.
    :param guards: those to ask; by default all that are installed, without any settings.
    :return: the report as plain JSON.
    """
    query = _query(tree, target, repository, name, query_ids, replays=replays)
    try:
        report = guard_query(query, GuardSettings(), guards=guards)
    except SourceError as e:
        unknown = tuple(not_guarded(source, f"it could not be asked: {e.message}") for source in query.sources)
        report = GuardReport(query.subject, unknown, batch_id=query.batch_id)
    return report.to_json()


def _query(
    tree: Tree,
    target: RewindTarget,
    repository: Repository | None,
    name: str,
    query_ids: Collection[str],
    *,
    replays: bool,
) -> GuardedQuery:
    if target.backup:
        return from_facts(
            _facts_at(target.backup, target.batch_id, repository),
            subject=target.where,
            batch_id=target.batch_id,
            first_files=first_files(repository, target.backup, target.batch_id) if repository else None,
        )
    location = tree.location
    planned = _entry(tree, target.batch_id + 1) if replays else None
    ends = {source.source: source for source in planned.sources} if planned else {}
    # With async progress tracking numbers are left out.
    logged = max((batch for batch in tree.batches(OFFSETS) if batch < target.batch_id), default=None)
    earlier = None if replays or logged is None else _entry(tree, logged)
    before = {source.source: source.offset for source in earlier.sources} if earlier else {}
    # Of the first batch of all, Spark asks for everything again.
    asks_again = bool(before) or (not replays and target.batch_id == 0)
    known = recorded_sources(repository, name, query_ids, target.batch_id) if repository and name else {}
    sources = tuple(
        GuardedSource(
            start=source,
            known=known.get(source.source, {}),
            # Of files all that was logged since is read again, whatever the next batch takes of it.
            end=end.offset if (end := ends.get(source.source)) and not isinstance(end.offset, FileOffset) else None,
            log=location / SOURCES / directory if directory else None,
            logged_at=target.planned,
            reread=(before.get(source.source),) if asks_again else (),
            planned_at=planned.time if planned else None,
            is_target=True,
        )
        for source in target.sources
        for directory in (log_directory(source.source, len(target.sources), tree.directories(SOURCES)),)
    )
    return GuardedQuery(location.uri, sources, target.batch_id + 1)


def _facts_at(manifest: Manifest, batch_id: int, repository: Repository | None) -> Mapping[str, Any]:
    """What a backup recorded, with the offsets of one of its batches: the manifest has those of its newest."""
    if batch_id == manifest.batch_id or repository is None:
        return manifest.facts
    entries = {entry.path: entry for entry in manifest.files_of(batch_id) if entry.path.startswith(f"{OFFSETS}/")}

    def offsets(batch: int) -> list[dict[str, Any]]:
        content = read_content(repository, entries[f"{OFFSETS}/{batch}"])
        return [source.to_json() for source in parse_offsets(content, batch_id=batch).sources]

    logged = [batch for path in entries if (batch := batch_id_of(path.rpartition("/")[2])) is not None]
    before = max((batch for batch in logged if batch < batch_id), default=None)
    return {
        **manifest.facts,
        "end_offsets": offsets(batch_id),
        "start_offsets": [] if before is None else offsets(before),
    }


def _entry(tree: Tree, batch_id: int) -> OffsetEntry | None:
    file = tree.get(f"{OFFSETS}/{batch_id}")
    return parse_offsets(tree.read(file), batch_id=batch_id) if file else None
