"""What a manifest says of the position that it holds, for people and for plans."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.closure import Closure
from airflow_ckpt_provider.checkpoint.inspection import operators_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError

log = logging.getLogger(__name__)

#: Given the end offsets of the pinned batch, what earlier backups have recorded (source -> plain JSON) and when the batch was
#: planned, says what the live sources are: source -> plain JSON.
ObserveSources = Callable[
    [tuple[SourceOffset, ...], Mapping[str, Mapping[str, Any]], datetime | None], Mapping[str, Mapping[str, Any]]
]


def observed_sources(
    observe: ObserveSources | None, closure: Closure, recorded: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """What the sources of a batch are; where they cannot be asked what was recorded before, as a backup is worth more than that.

    :param observe: asks the live sources; ``None``: nobody does.
    :param closure: of the newest batch.
    :param recorded: what earlier backups have recorded of its sources.
    """
    names = {source.source for source in closure.entry.sources}
    known = {name: about for name, about in recorded.items() if name in names}
    if observe is None:
        return known
    try:
        return {**known, **observe(closure.entry.sources, known, closure.entry.time)}
    except CkptError as e:
        log.warning("the sources are not recorded in this backup: %s", e.message)
        return known


def closure_facts(tree: Tree, closures: Sequence[Closure]) -> dict[str, Any]:
    """What is known of the batches by their closures: versions of the logs, times, offsets, watermark, operators.

    :param tree: the checkpoint's files.
    :param closures: of the restorable batches, newest first; at least one.
    """
    newest = closures[0]
    times = {str(c.batch_id): c.entry.time.isoformat() for c in reversed(closures) if c.entry.time}
    watermark = max(newest.entry.watermark_ms, newest.commit.next_watermark_ms)
    return {
        "offset_log_version": newest.entry.version,
        "commit_log_version": newest.commit.version,
        "batch_times": times,
        "start_offsets": _start_offsets(tree, newest),
        "end_offsets": [source.to_json() for source in newest.entry.sources],
        "watermark_ms": watermark,
        "operators": [operator.to_json() for operator in operators_of(tree, newest.entry)],
    }


def _start_offsets(tree: Tree, closure: Closure) -> list[dict[str, Any]]:
    before = [b for b in tree.batches(OFFSETS) if b < closure.batch_id]
    file = tree.get(f"{OFFSETS}/{before[-1]}") if before else None
    if not file:
        return []
    try:
        data = tree.read(file)
    except FileNotFoundError:  # purged since; it is in the backup, but this is only a note
        return []
    return [source.to_json() for source in parse_offsets(data, batch_id=before[-1]).sources]
