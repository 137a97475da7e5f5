"""The doctor: what is wrong with a checkpoint, what Spark will do because of it, and what helps. Reads only.

One check for each concept, in the modules of this package; every pattern is described once, in :mod:`.kinds`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from airflow_ckpt_provider.checkpoint.doctor import leftovers, logs, operators, sources, state, writers
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination, examine
from airflow_ckpt_provider.checkpoint.doctor.kinds import KINDS
from airflow_ckpt_provider.checkpoint.findings import Finding, Severity
from airflow_ckpt_provider.checkpoint.progress import NO_CHECKPOINT
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import HistoryRewrittenError, NotACheckpointError
from airflow_ckpt_provider.storage.location import Location

__all__ = ["CHECKS", "KINDS", "check", "diagnose"]

log = logging.getLogger(__name__)

Check = Callable[[Examination], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    logs.torn_files,
    logs.unknown_versions,
    logs.holes,
    logs.commits_beyond,
    logs.skipped_batches,
    logs.query_id,
    logs.state_without_logs,
    sources.source_logs,
    operators.unfinished_repartition,
    operators.foreign_paths,
    state.state,
    leftovers.stale_versions,
    writers.two_writers,
    leftovers.temporary_files,
)
_WORST_FIRST = tuple(Severity)
#: How often a checkpoint that changes while it is read is read again.
_LOOKS = 5


def diagnose(location: Location, *, contents: bool = True) -> tuple[Finding, ...]:
    """Look for every known pattern of damage. Worst first.

    A stream may run meanwhile: what is found is looked for a second time, and where files come and go, only what stays counts.

    :param location: the checkpoint.
    :param contents: read state files to find damage in them; otherwise only logs, listings and what snapshots name.
    :raises NotACheckpointError: there is none.
    :raises HistoryRewrittenError: whatever was listed was gone before it could be read, again and again: nothing is known.
    """
    tree = _tree(location)
    known = findings = _look(tree, contents)
    for _ in range(_LOOKS):
        if findings == ():
            return ()
        again = _tree(location, like=tree)
        if findings is not None and _is_same(tree, again):
            return findings
        before, tree, findings = findings, again, _look(again, contents)
        known = known if findings is None else findings
        if before is not None and findings is not None:
            stayed = {(f.kind.code, f.path) for f in before}
            if all((f.kind.code, f.path) in stayed for f in findings):
                return findings
    if known is None:
        raise HistoryRewrittenError(
            f"{location} changes faster than it can be examined: each of {_LOOKS + 1} times a file was gone before it was read",
            hint="examine it when the query is stopped, or raise spark.sql.streaming.minBatchesToRetain or the trigger interval",
        )
    log.info("%s changes all the time: what is reported was found the last time", location)
    return known


def check(seen: Examination) -> tuple[Finding, ...]:
    """Run all checks, worst findings first."""
    found = [finding for one in CHECKS for finding in one(seen)]
    return tuple(sorted(found, key=lambda f: _WORST_FIRST.index(f.severity)))


def _look(tree: Tree, contents: bool) -> tuple[Finding, ...] | None:
    """What one examination finds; ``None`` where a file vanished under it."""
    try:
        return check(examine(tree, contents=contents))
    except FileNotFoundError as e:
        log.debug("%s vanished while it was read: %s", tree.location, e)
        return None


def _tree(location: Location, *, like: Tree | None = None) -> Tree:
    tree = Tree.of(location, like=like)
    names = {*tree.directories(), *tree.files()}
    if not names & {"offsets", "commits", "metadata", "state"}:
        raise NotACheckpointError(
            f"{location} is not a checkpoint: it has no offsets/, no commits/, no state/ and no metadata",
            hint=NO_CHECKPOINT,
        )
    return tree


def _is_same(one: Tree, other: Tree) -> bool:
    def listed(tree: Tree) -> set[tuple[str, int, str | None]]:
        return {(f.path, f.size, f.identity) for f in tree.below("")}

    return listed(one) == listed(other)
