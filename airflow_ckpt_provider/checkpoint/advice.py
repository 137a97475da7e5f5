"""Advice: what works today and will hurt later. Findings of the second kind; each has the figures behind it.

Nothing is said on a guess. What cannot be determined from the files (the trigger, ``minBatchesToRetain``) is asked for, or named
as one of the possible reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from airflow_ckpt_provider.checkpoint.advice_kinds import (
    EPHEMERAL_STORAGE,
    HDFS_STATE_LARGE,
    LOGS_NOT_PURGED,
    PARTITION_IMBALANCE,
    PATH_NOT_TIED,
    SHARED_PREFIX,
    SLOWER_THAN_TRIGGER,
    SOURCE_LOG_LARGE,
    STATE_GROWS,
    STATE_HISTORY_LARGE,
    STATE_NOT_MAINTAINED,
)
from airflow_ckpt_provider.checkpoint.closure import Closure, resolve_closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.findings import Finding
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.query_id import is_checkpoint
from airflow_ckpt_provider.checkpoint.sources import SOURCES
from airflow_ckpt_provider.checkpoint.state_growth import growth_of_state
from airflow_ckpt_provider.checkpoint.tempo import tempo_of
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.checkpoint.usage import PartitionUsage, Spread, directory_usage, partition_usage
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.mounts import file_system_of, is_shared
from airflow_ckpt_provider.units import format_size

_MIB = 1024 * 1024
#: What ``spark.sql.streaming.minBatchesToRetain`` is unless somebody set it.
_RETAINED = 100


@dataclass(frozen=True, slots=True)
class _Inspected:
    tree: Tree
    progress: Progress
    closure: Closure | None
    partitions: tuple[PartitionUsage, ...]
    target: str | None
    trigger_seconds: float | None

    @property
    def location(self) -> Location:
        return self.tree.location

    @property
    def by_store(self) -> dict[tuple[int, str], list[PartitionUsage]]:
        """Usage by operator and store, of the partitions that the newest batch has."""
        found: dict[tuple[int, str], list[PartitionUsage]] = {}
        for usage in self.partitions:
            if usage.needed_bytes is not None:
                found.setdefault((usage.operator, usage.store), []).append(usage)
        return found


def advise(
    tree: Tree, progress: Progress, *, target: str | None = None, trigger_seconds: float | None = None
) -> tuple[Finding, ...]:
    """Look for what will hurt later.

    Costs, beside what ``tree`` listed: the closure of the newest batch, up to 25 log entries, up to 16 snapshots of RocksDB,
    and one small read for each directory above the checkpoint.

    :param tree: the checkpoint's files.
    :param progress: how far it is.
    :param target: name or path of the table that the query writes to, if known.
    :param trigger_seconds: the trigger's interval in seconds, if known; it is nowhere in a checkpoint.
    """
    closure = _closure(tree)
    seen = _Inspected(tree, progress, closure, partition_usage(tree, closure), target, trigger_seconds)
    return tuple(finding for rule in _RULES for finding in rule(seen))


def _closure(tree: Tree) -> Closure | None:
    committed = [batch for batch in tree.batches(COMMITS) if batch in tree.batches(OFFSETS)]
    try:
        return resolve_closure(tree, committed[-1]) if committed else None
    except (CkptError, FileNotFoundError):  # the diagnosis says so
        return None


# ---- where it lies ----------------------------------------------------------------------------


def _ephemeral_storage(seen: _Inspected) -> Iterator[Finding]:
    protocol, path = seen.location.store.protocol, "/" + seen.location.root.lstrip("/")
    dbfs = path if protocol == "dbfs" else path.removeprefix("/dbfs") if path.startswith("/dbfs/") else None
    if dbfs is not None:
        if not dbfs.startswith(("/mnt/", "/Volumes/")):
            yield Finding(
                EPHEMERAL_STORAGE, "", f"{seen.location} is in the root of DBFS", figures={"storage": "dbfs root"}
            )
    elif protocol == "file" and not path.startswith("/Volumes/"):
        kind = file_system_of(path)
        if not is_shared(kind):
            yield Finding(
                EPHEMERAL_STORAGE,
                "",
                f"{seen.location} is on a disk of this machine ({kind or 'file system unknown'})",
                figures={"storage": "local disk", "file_system": kind},
            )


def _path_not_tied(seen: _Inspected) -> Iterator[Finding]:
    if not seen.target:
        return
    name = re.split(r"[/.]", re.sub(r"\.(?:db|delta|parquet)$", "", seen.target.rstrip("/`").replace("`", "")))[-1]
    wanted = _plain(name)
    path = seen.location.root
    inside = path.rstrip("/").startswith(re.sub(r"^[a-z][a-z0-9+.-]*:/{1,3}", "", seen.target).rstrip("/") + "/")
    if wanted and not inside and not any(wanted in _plain(part) for part in path.split("/")):
        yield Finding(
            PATH_NOT_TIED,
            "",
            f"{seen.location} names nothing of the target {seen.target}",
            figures={"target": seen.target, "looked_for": name},
        )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _shared_prefix(seen: _Inspected) -> Iterator[Finding]:
    for path in seen.tree.inner_checkpoints:
        yield Finding(SHARED_PREFIX, path, f"another checkpoint lies inside this one: {path}", figures={"inner": path})
    for above in seen.location.parents:
        try:
            if not is_checkpoint(above):
                continue
        except (OSError, CkptError):  # not there, not ours to read, or something else of that name
            continue
        yield Finding(
            SHARED_PREFIX,
            "",
            f"this checkpoint lies inside another one: {above}",
            figures={"outer": above.uri},
        )


# ---- what does not go away --------------------------------------------------------------------


def _logs_not_purged(seen: _Inspected) -> Iterator[Finding]:
    logged = seen.progress.logged
    if len(logged) > 3 * _RETAINED:
        yield Finding(
            LOGS_NOT_PURGED,
            OFFSETS,
            f"{OFFSETS}/ holds {len(logged):,} batches, {logged[0]} to {logged[-1]}; by default Spark keeps {_RETAINED + 1}",
            figures={"batches": len(logged), "oldest_batch": logged[0], "newest_batch": logged[-1]},
        )


def _state_not_maintained(seen: _Inspected) -> Iterator[Finding]:
    logged = seen.progress.logged
    if not logged:
        return
    for usage in directory_usage(seen.tree):
        if not usage.path.startswith("state/") or usage.oldest_batch is None:
            continue
        # RocksDB deletes in bulk, up to 30 % late, and a base snapshot may lie before the oldest batch.
        behind = logged[0] - usage.oldest_batch
        if behind > len(logged) + _RETAINED:
            yield Finding(
                STATE_NOT_MAINTAINED,
                usage.path,
                f"{usage.path} reaches back to batch {usage.oldest_batch}, {OFFSETS}/ only to {logged[0]}: {behind:,} batches "
                f"more, in {usage.files:,} files of {format_size(usage.bytes)}",
                figures={
                    "oldest_batch": usage.oldest_batch,
                    "oldest_logged": logged[0],
                    "files": usage.files,
                    "bytes": usage.bytes,
                },
            )


def _state_history_large(seen: _Inspected) -> Iterator[Finding]:
    held = sum(usage.bytes for usage in seen.partitions)
    needed = sum(usage.needed_bytes or 0 for usage in seen.partitions)
    batches = len(seen.progress.logged)
    if seen.closure and held > 1024 * _MIB and held > 20 * needed:
        yield Finding(
            STATE_HISTORY_LARGE,
            "state",
            f"state/ holds {format_size(held)}; the newest version needs {format_size(needed)} of it, the rest is history of "
            f"{batches:,} "
            "batches",
            figures={"bytes": held, "needed_bytes": needed, "batches": batches},
        )


def _source_log_large(seen: _Inspected) -> Iterator[Finding]:
    for name in seen.tree.directories(SOURCES):
        files = seen.tree.files(f"{SOURCES}/{name}").values()
        compacted = [file for file in files if file.path.endswith(".compact")]
        largest = max(compacted, key=lambda file: file.size, default=None)
        if largest and largest.size > 64 * _MIB:
            yield Finding(
                SOURCE_LOG_LARGE,
                largest.path,
                f"{largest.path} has {format_size(largest.size)}",
                figures={"bytes": largest.size},
            )


# ---- state ------------------------------------------------------------------------------------


def _state_grows(seen: _Inspected) -> Iterator[Finding]:
    for growth in growth_of_state(seen.tree, seen.progress, seen.closure) if seen.closure else ():
        if not (growth.is_substantial and growth.watermark_stands and growth.read_on):
            continue
        unit = "keys" if growth.unit == "keys" else "bytes"
        mark = (
            "there is no watermark" if growth.watermark_ms == 0 else f"the watermark stood at {growth.watermark_ms} ms"
        )
        yield Finding(
            STATE_GROWS,
            f"state/{growth.operator}",
            f"operator {growth.operator} grew from {growth.before:,} to {growth.after:,} {unit} between state versions "
            f"{growth.from_version} and {growth.to_version} ({growth.stores} of {growth.all_stores} stores read), while "
            f"{mark}",
            figures={
                "unit": growth.unit,
                "before": growth.before,
                "after": growth.after,
                "from_version": growth.from_version,
                "to_version": growth.to_version,
                "watermark_ms": growth.watermark_ms,
                "stores": growth.stores,
                "all_stores": growth.all_stores,
            },
        )


def _partition_imbalance(seen: _Inspected) -> Iterator[Finding]:
    for (operator, store), usages in seen.by_store.items():
        if len(usages) < 2:
            continue
        keys = {usage.partition: usage.keys for usage in usages if usage.keys is not None}
        known = len(keys) == len(usages)
        spread = Spread.of(keys if known else {usage.partition: usage.needed_bytes or 0 for usage in usages})
        # With two partitions the median lies between both; the mean of the others is what the largest is compared with.
        others = (spread.total - spread.largest) / (len(usages) - 1)
        if spread.largest >= (100_000 if known else 64 * _MIB) and spread.largest >= 4 * max(others, 1):
            amount = f"{spread.largest:,} keys" if known else format_size(spread.largest)
            rest = f"{others:,.0f} keys" if known else format_size(int(others))
            yield Finding(
                PARTITION_IMBALANCE,
                f"state/{operator}/{spread.largest_partition}",
                f"operator {operator}, store {store}: partition {spread.largest_partition} of {len(usages)} has {amount}, the "
                f"others {rest} on average",
                figures={
                    "unit": "keys" if known else "bytes",
                    "partitions": len(usages),
                    "largest_partition": spread.largest_partition,
                    "largest": spread.largest,
                    "median": spread.median,
                    "others_mean": others,
                },
            )


def _hdfs_state_large(seen: _Inspected) -> Iterator[Finding]:
    provider = seen.closure.entry.state_provider if seen.closure else None
    if not provider or "HDFSBacked" not in provider:
        return
    sizes = [usage.needed_bytes or 0 for usage in seen.partitions]
    if sum(sizes) >= 512 * _MIB or max(sizes, default=0) >= 128 * _MIB:
        yield Finding(
            HDFS_STATE_LARGE,
            "state",
            f"the newest version takes {format_size(sum(sizes))} compressed, the largest store of a partition "
            f"{format_size(max(sizes))}, "
            "and several times that on the heap",
            figures={"bytes": sum(sizes), "largest_store_bytes": max(sizes)},
        )


# ---- speed ------------------------------------------------------------------------------------


def _slower_than_trigger(seen: _Inspected) -> Iterator[Finding]:
    trigger = seen.trigger_seconds
    tempo = tempo_of(seen.tree, seen.progress) if trigger else None
    if trigger and tempo and tempo.median_seconds > trigger and tempo.median_interval > trigger:
        yield Finding(
            SLOWER_THAN_TRIGGER,
            "",
            f"the last {tempo.batches} batches took {tempo.median_seconds:.1f} s (median; {tempo.slower_than(trigger)} of them "
            f"longer than the trigger), the trigger is {trigger:g} s",
            figures={
                "trigger_seconds": trigger,
                "median_seconds": round(tempo.median_seconds, 3),
                "batches": tempo.batches,
                "slower": tempo.slower_than(trigger),
            },
        )


_RULES: tuple[Callable[[_Inspected], Iterator[Finding]], ...] = (
    _ephemeral_storage,
    _path_not_tied,
    _shared_prefix,
    _logs_not_purged,
    _state_not_maintained,
    _state_history_large,
    _source_log_large,
    _state_grows,
    _partition_imbalance,
    _hdfs_state_large,
    _slower_than_trigger,
)
