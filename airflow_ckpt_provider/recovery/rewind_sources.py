"""Whether the sources still have what a rewind wants to read again; asked before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.guards.query import GuardedQuery, from_facts, guard_query
from airflow_ckpt_provider.guards.registry import Guard, GuardedSource, GuardSettings, not_guarded
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.recovery.targets import RewindTarget


def judge_sources(
    tree: Tree, target: RewindTarget, *, replays: bool, guards: Sequence[Guard] | None = None
) -> Mapping[str, Any]:
    """Have every source judged for a start after a batch; a source that cannot be asked is ``UNKNOWN``.

    :param tree: the checkpoint's files.
    :param target: the batch.
    :param replays: the next batch runs again up to its logged end offsets.
    :param guards: those to ask; by default all that are installed, without any settings.
    :return: the report as plain JSON.
    """
    query = _query(tree, target, replays=replays)
    try:
        report = guard_query(query, GuardSettings(), guards=guards)
    except SourceError as e:
        unknown = tuple(not_guarded(source, f"it could not be asked: {e.message}") for source in query.sources)
        report = GuardReport(query.subject, unknown, batch_id=query.batch_id)
    return report.to_json()


def _query(tree: Tree, target: RewindTarget, *, replays: bool) -> GuardedQuery:
    if target.backup:
        return from_facts(target.backup.facts, subject=target.where, batch_id=target.batch_id)
    location = tree.location
    ends = {source.source: source for source in _entry(tree, target.batch_id + 1)} if replays else {}
    before = {source.source: source.offset for source in _entry(tree, target.batch_id - 1)} if not replays else {}
    sources = tuple(
        GuardedSource(
            start=source,
            # Of files all that was logged since is read again, whatever the next batch takes of it.
            end=end.offset if (end := ends.get(source.source)) and not isinstance(end.offset, FileOffset) else None,
            log=location / f"sources/{source.source}",
            logged_at=target.planned,
            reread=(before.get(source.source),) if before else (),
        )
        for source in target.sources
    )
    return GuardedQuery(location.uri, sources, target.batch_id + 1)


def _entry(tree: Tree, batch_id: int) -> tuple[SourceOffset, ...]:
    file = tree.get(f"{OFFSETS}/{batch_id}")
    return parse_offsets(tree.read(file), batch_id=batch_id).sources if file else ()
