"""Checks of the state that the next batch reads: every file of every store has to be there, and whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_ckpt_provider.checkpoint.commits import CommitEntry
from airflow_ckpt_provider.checkpoint.doctor import kinds
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination
from airflow_ckpt_provider.checkpoint.findings import Finding, FindingKind, Severity
from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry
from airflow_ckpt_provider.checkpoint.operators import (
    DEFAULT_STORE,
    STATE,
    operator_metadata,
    partitions,
    store_directory,
    stores,
)
from airflow_ckpt_provider.checkpoint.state_files import StateVersion, state_files
from airflow_ckpt_provider.checkpoint.whole_state import WholeState, whole_state
from airflow_ckpt_provider.errors import CkptError, MissingFileError, RefusedError, UnreadableLogError

#: Findings of one kind are put together by operator; so many paths are named.
_PATHS = 20


@dataclass(slots=True)
class _Grouped:
    """Findings of one kind in one operator, which can be as many as it has stores."""

    first: str = ""
    message: str = ""
    paths: list[str] = field(default_factory=list)

    def add(self, path: str, message: str) -> None:
        if not self.paths:
            self.first, self.message = path, message
        self.paths.append(path)

    def finding(self, kind: FindingKind, batch: int) -> Finding:
        more = f" (and {len(self.paths) - 1} more)" if len(self.paths) > 1 else ""
        figures = {"files": len(self.paths), "paths": self.paths[:_PATHS]}
        return Finding(kind, self.first, self.message + more, batch, figures)


def state(seen: Examination) -> Iterator[Finding]:
    """8, 10, 11 and 14: what is missing or damaged of the state that the next batch reads."""
    base, entry = seen.base, seen.newest
    if base is None or entry is None:
        return
    commit = seen.commits.get(base)
    operators = seen.tree.numbered_directories(STATE)
    expected = {*(commit.state_ids if commit else ()), *range(max(operators, default=-1) + 1)}
    for operator in sorted(expected - set(operators)):
        yield Finding(
            kinds.STATE_PARTITION_MISSING,
            f"{STATE}/{operator}",
            f"{STATE}/{operator} is missing: operator {operator} has no state at all",
            base,
        )
    # The settings of the batch that wrote the state; those of the next one may belong to a repartition.
    settings = seen.offsets.get(base, entry)
    for operator in operators:
        yield from _operator(seen, operator, settings, base, commit)


def _operator(
    seen: Examination, operator: int, entry: OffsetEntry, base: int, commit: CommitEntry | None
) -> Iterator[Finding]:
    missing, lost, bad, checksums = _Grouped(), _Grouped(), _Grouped(), _Grouped()
    not_judged: list[str] = []
    tree = seen.tree
    try:
        for path, message in _schema_files(seen, operator, base):
            if path.endswith("/_metadata/metadata"):
                yield _not_needed(path, message, base)
            else:
                lost.add(path, message)
        ids = commit.state_ids.get(operator) if commit else None
        in_partitions = partitions(tree, operator, logged=len(ids) if ids else entry.state_partitions, batch_id=base)
        names = stores(tree, operator, in_partitions) or (DEFAULT_STORE,)
        for partition in in_partitions:
            for index, name in enumerate(names):
                directory = store_directory(operator, partition, name)
                unique_id = commit.state_id(operator, partition, index) if commit else None
                if unique_id is None and _is_format_2(seen, directory):
                    continue  # ids unknown: the commit that has them is gone, which is a finding of its own
                if not state_files(directory, tree.files(directory)).newest:
                    missing.add(directory, f"{directory} holds no state files")
                    continue
                version = StateVersion(base + 1, unique_id)
                found = whole_state(
                    tree,
                    directory,
                    version,
                    provider=entry.state_provider or "",
                    codec=entry.state_codec,
                    contents=seen.contents,
                )
                _sort(found, version, directory, lost=lost, bad=bad, checksums=checksums)
                not_judged += [found.not_judged] if found.not_judged else []
    except (UnreadableLogError, MissingFileError) as e:
        lost.add(e.path, e.message)
    except RefusedError as e:
        yield _not_judged(operator, e.message, base)
        return
    if not_judged:
        yield _not_judged(operator, not_judged[0], base)
    for kind, group in (
        (kinds.STATE_PARTITION_MISSING, missing),
        (kinds.STATE_INCOMPLETE, lost),
        (kinds.SNAPSHOT_DAMAGED, bad),
        (kinds.CHECKSUM_MISMATCH, checksums),
    ):
        if group.paths:
            yield group.finding(kind, base)


def _not_judged(operator: int, message: str, base: int) -> Finding:
    return Finding(
        kinds.FORMAT_UNKNOWN,
        f"{STATE}/{operator}",
        message,
        base,
        effect="Works as ever; only this program cannot judge the files.",
        remedy="Nothing to do. What is said here of the rest of the checkpoint holds.",
        level=Severity.WARNING,
    )


def _not_needed(path: str, message: str, base: int) -> Finding:
    """Operator metadata of version 1, which Spark does not need for a start."""
    return Finding(
        kinds.STATE_INCOMPLETE,
        path,
        message,
        base,
        effect="Starts: it does not read this file then. Its `state-metadata` and `statestore` readers fail.",
        remedy="`--repair` removes it, or fetches it from a backup; Spark writes it again.",
        level=Severity.WARNING,
    )


def _sort(
    found: WholeState, version: StateVersion, directory: str, *, lost: _Grouped, bad: _Grouped, checksums: _Grouped
) -> None:
    if found.missing:
        path = next(iter(sorted(found.damaged)), found.missing[0])
        why = f"{path}: {found.damaged[path]}" if found.damaged else found.missing[1]
        lost.add(path, f"state version {version.number} in {directory} cannot be put together: {why}")
        return
    for path, reason in sorted(found.damaged.items()):
        bad.add(path, f"{path}: {reason}")
    for path, reason in sorted(found.stale_checksums.items()):
        checksums.add(path, f"{path}: {reason}")


def _is_format_2(seen: Examination, directory: str) -> bool:
    files = state_files(directory, seen.tree.files(directory))
    versions = {*files.changelogs, *files.zips}
    return bool(versions) and all(v.unique_id is not None for v in versions)


def _schema_files(seen: Examination, operator: int, base: int) -> Iterator[tuple[str, str]]:
    """Schema files that the operator's metadata names, where the metadata is of a version that needs them."""
    tree = seen.tree
    try:
        described = operator_metadata(tree, operator, batch_id=base)
    except CkptError as e:
        yield getattr(e, "path", f"{STATE}/{operator}/_metadata"), e.message
        return
    directory = f"{STATE}/{operator}"
    if tree.directories(f"{directory}/_stateSchema") and not (described and described.schema_files):
        yield f"{directory}/_metadata/v2", f"{directory}/_metadata/v2 has no file for batch {base}"
    for uri in described.schema_files if described else ():
        path = f"{directory}/_stateSchema/{uri.rpartition('/_stateSchema/')[2]}"
        if tree.get(path) is None:
            yield path, f"{path} is missing: the operator's metadata names it"
