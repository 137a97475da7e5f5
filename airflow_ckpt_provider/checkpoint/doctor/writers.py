"""Check for files of two queries in one directory: things that cannot change, or cannot decrease, within one query."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from airflow_ckpt_provider.checkpoint.doctor import kinds
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination
from airflow_ckpt_provider.checkpoint.doctor.leftovers import all_stores
from airflow_ckpt_provider.checkpoint.doctor.operators import is_repartition
from airflow_ckpt_provider.checkpoint.findings import Finding
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, FileOffset, Offset

_STREAMING = "spark.sql.streaming."
#: Pinned with the first batch; Spark takes them from the log at every later start.
_PINNED = (
    f"{_STREAMING}stateStore.providerClass",
    f"{_STREAMING}aggregation.stateFormatVersion",
    f"{_STREAMING}join.stateFormatVersion",
    f"{_STREAMING}flatMapGroupsWithState.stateFormatVersion",
    f"{_STREAMING}stateStore.compression.codec",
)
#: Clocks of two machines may differ by so much, milliseconds.
_CLOCKS = 1_000


def two_writers(seen: Examination) -> Iterator[Finding]:
    """17: logs or state that no single query writes."""
    if seen.is_continuous:
        return
    entries = [seen.offsets[batch] for batch in sorted(seen.offsets)]
    signs = [(after.batch_id, sign) for before, after in pairwise(entries) for sign in _signs(before, after)]
    if signs:
        first = signs[0][0]
        yield Finding(
            kinds.TWO_WRITERS,
            f"{OFFSETS}/{first}",
            f"from batch {first} on: " + "; ".join(dict.fromkeys(sign for batch, sign in signs if batch == first)),
            first,
            {"batches": sorted({batch for batch, _ in signs})},
        )
        return
    for store in all_stores(seen.tree):
        if (store.deltas or store.snapshots) and (store.zips or store.changelogs):
            yield Finding(
                kinds.TWO_WRITERS,
                store.directory,
                f"{store.directory} holds HDFS-backed and RocksDB state: a query has one of them",
            )
            return


def _signs(before: OffsetEntry, after: OffsetEntry) -> Iterator[str]:
    if before.time and after.time:
        back = (before.time - after.time).total_seconds() * 1000
        if back > _CLOCKS:
            yield f"it was planned {back / 1000:,.1f} s before batch {before.batch_id}"
    if after.watermark_ms < before.watermark_ms:
        yield f"its watermark is {(before.watermark_ms - after.watermark_ms) / 1000:,.1f} s behind that of {before.batch_id}"
    for key in _PINNED:
        was, now = before.conf.get(key), after.conf.get(key)
        if was is not None and now is not None and was != now:
            yield f"{key.removeprefix(_STREAMING)} changes from {was} to {now}"
    yield from _source_signs(before, after)


def _source_signs(before: OffsetEntry, after: OffsetEntry) -> Iterator[str]:
    named = any(source.is_named for source in (*before.sources, *after.sources))
    if not named and before.sources and after.sources and len(before.sources) != len(after.sources):
        yield f"it has {len(after.sources)} sources, batch {before.batch_id} has {len(before.sources)}"
        return
    if is_repartition(after, before):
        return
    earlier = {source.source: source.offset for source in before.sources}
    for source in after.sources:
        was, now = earlier.get(source.source), source.offset
        if was is not None and now is not None and (sign := _offset_sign(was, now)):
            yield f"source {source.source} {sign}"


def _offset_sign(was: Offset, now: Offset) -> str | None:
    if was.kind != now.kind and "unknown" not in (was.kind, now.kind):
        return f"changes from {was.kind} to {now.kind}"
    if isinstance(was, FileOffset) and isinstance(now, FileOffset) and now.log_offset < was.log_offset:
        return f"decreases from log id {was.log_offset} to {now.log_offset}"
    if isinstance(was, DeltaOffset) and isinstance(now, DeltaOffset):
        if was.table_id != now.table_id:
            return f"changes from table {was.table_id} to {now.table_id}"
        if (now.table_version, now.index) < (was.table_version, was.index):
            return f"decreases from table version {was.table_version} to {now.table_version}"
    return None
