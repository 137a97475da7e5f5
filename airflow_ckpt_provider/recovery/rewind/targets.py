"""Which batches a stream can be rewound to: those of its checkpoint, and those of its backups, as one list."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.backup.repository_check import readable_manifests
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.doctor.operators import is_repartition
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.seal import parse_seal
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.units import is_number

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RewindTarget:
    """A committed batch that the stream can be rewound to.

    :param batch_id: the batch; the next to run is one more.
    :param planned: when the batch was planned, in UTC.
    :param ended: when it had ended at the latest, in UTC: its commit was written, or the next batch was planned, whichever came
        first (a copied commit file is younger than the batch). ``None`` where neither is known.
    :param sources: end offsets of the batch.
    :param watermark_ms: its event-time watermark, milliseconds since the epoch.
    :param backup: the backup that holds it; ``None`` for the checkpoint itself.
    :param replays: the next batch would run again with exactly its logged end offsets.
    """

    batch_id: int
    planned: datetime | None
    ended: datetime | None
    sources: tuple[SourceOffset, ...]
    watermark_ms: int
    backup: Manifest | None
    replays: bool

    @property
    def where(self) -> str:
        """``checkpoint``, or the backup's id."""
        return self.backup.backup_id if self.backup else "checkpoint"

    def to_json(self) -> dict[str, Any]:
        """The target as plain JSON."""
        offsets = [s.to_json() for s in self.sources]
        if self.backup and not offsets and self.batch_id == self.backup.batch_id:
            offsets = list(self.backup.facts.get("end_offsets") or ())
        return {
            "batch_id": self.batch_id,
            "planned": self.planned.isoformat() if self.planned else None,
            "ended": self.ended.isoformat() if self.ended else None,
            "offsets": offsets,
            "watermark_ms": self.watermark_ms,
            "where": self.where,
            "exact_replay": self.replays,
        }


def targets_of_checkpoint(tree: Tree, *, only: int | None = None) -> list[RewindTarget]:
    """The batches that the checkpoint itself can be rewound to, oldest first.

    A batch counts where the whole closure is there. Reads every offset log entry once.

    :param only: consider this batch alone, which spares reading the closures of the others.
    """
    entries = _entries(tree)
    found = []
    for batch_id in tree.batches(COMMITS):
        entry = entries.get(batch_id)
        if entry is None or only not in (None, batch_id):
            continue
        following = entries.get(batch_id + 1)
        # An offline repartition is started again by whoever wants it: Spark does not start from one that is not committed.
        replays = following is not None and not is_repartition(following, entry)
        replays = replays and _has_closure(tree, batch_id, replays_next=True)
        if not replays and not _has_closure(tree, batch_id, replays_next=False):
            continue
        commit = tree.get(f"{COMMITS}/{batch_id}")
        ends = [time for time in (commit and commit.modified, following and following.time) if time]
        found.append(
            RewindTarget(
                batch_id=batch_id,
                planned=entry.time,
                ended=min(ends, default=None),
                sources=entry.sources,
                watermark_ms=entry.watermark_ms,
                backup=None,
                replays=replays,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class LoggedBatches:
    """What the entries of the offset log say of batches, for a sink that is asked about them.

    :param repartitions: those that only repartitioned the state offline; a sink never hears of them.
    :param planned: batch -> when it was planned, in UTC.
    :param complete_at: when the backup that they come from had them all, in UTC; ``None``: they come from no backup.
    """

    repartitions: frozenset[int]
    planned: Mapping[int, datetime]
    complete_at: datetime | None = None


#: For a checkpoint whose log is not read.
NONE_LOGGED = LoggedBatches(frozenset(), {})


def logged_batches(tree: Tree) -> LoggedBatches:
    """Read the offset log of a checkpoint; entries that cannot be read are left out."""
    entries = _entries(tree)
    return LoggedBatches(
        frozenset(b for b, entry in entries.items() if (e := entries.get(b - 1)) and is_repartition(entry, e)),
        {b: entry.time for b, entry in entries.items() if entry.time},
    )


def logged_in_backup(manifest: Manifest) -> LoggedBatches:
    """When the batches in a backup were planned, as its manifest says."""
    times = manifest.facts.get("batch_times") or {}
    planned = {int(b): datetime.fromisoformat(time) for b, time in times.items() if is_number(b)}
    return LoggedBatches(frozenset(), planned, manifest.complete_at)


def repartitions(tree: Tree) -> frozenset[int]:
    """The batches in the log that only repartitioned the state offline; a sink never hears of them."""
    return logged_batches(tree).repartitions


def targets_of_backups(repository: Repository, name: str, *, query_ids: Collection[str] | None) -> list[RewindTarget]:
    """The batches that the backups of a stream can be rewound to, by batch and age; the newest backup of each batch.

    One that is known to be damaged is named only for a batch that no other one has. One whose manifest is damaged is logged and
    left out.

    :param name: name of the stream. The safety backups taken before changes count too.
    :param query_ids: every id that the query has had; backups of another query are left out. ``None`` takes all.
    :raises StorageError: a manifest could not be read.
    """
    found: dict[int, RewindTarget] = {}
    for stream in (name + SAFETY_SUFFIX, name):
        known = read_damaged(repository.location, stream)
        for manifest in sorted(readable_manifests(repository, stream), key=lambda m: not known.of(m)):
            if query_ids is None or manifest.query_id in query_ids:
                found |= {target.batch_id: target for target in targets_of_manifest(manifest)}
    return [found[batch_id] for batch_id in sorted(found)]


def targets_of_manifest(manifest: Manifest) -> list[RewindTarget]:
    """The batches that one backup can be rewound to, oldest first."""
    times = manifest.facts.get("batch_times") or {}
    found = []
    for batch_id in sorted(manifest.restorable):
        newest = batch_id == manifest.batch_id
        planned, after = times.get(str(batch_id)), times.get(str(batch_id + 1))
        found.append(
            RewindTarget(
                batch_id=batch_id,
                planned=datetime.fromisoformat(planned) if planned else None,
                # The newest was committed when the backup read its position, long before the end of a large backup.
                ended=datetime.fromisoformat(after) if after else manifest.complete_at if newest else None,
                sources=(),
                watermark_ms=int(manifest.facts.get("watermark_ms") or 0) if newest else 0,
                backup=manifest,
                replays=False,
            )
        )
    return found


def merged(of_checkpoint: list[RewindTarget], of_backups: list[RewindTarget]) -> list[RewindTarget]:
    """One list by batch; where both have it, the checkpoint's own is taken: nothing has to be copied."""
    by_batch = {t.batch_id: t for t in of_backups} | {t.batch_id: t for t in of_checkpoint}
    return [by_batch[batch_id] for batch_id in sorted(by_batch)]


def chosen(targets: list[RewindTarget], batch_id: int) -> RewindTarget:
    """The target of a batch.

    :raises RefusedError: the batch cannot be rewound to; the message has the range.
    """
    for target in targets:
        if target.batch_id == batch_id:
            return target
    raise RefusedError(
        f"batch {batch_id} cannot be rewound to; reachable: {span(targets)}",
        hint="`airflow-ckpt rewind CHECKPOINT --list` shows every reachable batch; older ones need a backup (--repository)",
    )


def span(targets: list[RewindTarget]) -> str:
    """The reachable batches in a few words, such as ``3 to 7, 12``."""
    runs: list[list[int]] = []
    for target in targets:
        if runs and target.batch_id == runs[-1][-1] + 1:
            runs[-1].append(target.batch_id)
        else:
            runs.append([target.batch_id])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs) or "none"


def _entries(tree: Tree) -> dict[int, OffsetEntry]:
    def read(batch_id: int) -> OffsetEntry | None:
        file = tree.get(f"{OFFSETS}/{batch_id}")
        try:
            data = tree.read(file) if file else b""
            return None if parse_seal(data, batch_id=batch_id) else parse_offsets(data, batch_id=batch_id)
        except (CkptError, FileNotFoundError):
            return None  # a batch whose entry cannot be read is no target

    return {entry.batch_id: entry for entry in in_parallel(read, tree.batches(OFFSETS)) if entry}


def _has_closure(tree: Tree, batch_id: int, *, replays_next: bool) -> bool:
    try:
        resolve_closure(tree, batch_id, replays_next=replays_next)
    except (CkptError, FileNotFoundError):
        return False
    return True
