"""What a replay costs: batches, records by source, time; read off the checkpoint's own history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.source_offsets import (
    FileOffset,
    KafkaOffset,
    RateMicroBatchOffset,
)
from airflow_ckpt_provider.checkpoint.tempo import batch_seconds
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.parallel import in_parallel


@dataclass(frozen=True, slots=True)
class Replay:
    """What is read and run again.

    :param batches: how many batches had been logged beyond the target.
    :param records: source -> records (Kafka, rate per micro-batch) or log entries (files) to read again; ``None`` where the
        offsets do not count anything.
    :param seconds: how long those batches took the first time, as far as the file times tell; ``None`` where they do not.
    """

    batches: int
    records: Mapping[str, int | None]
    seconds: float | None

    def to_json(self) -> dict[str, Any]:
        """The replay as plain JSON."""
        seconds = None if self.seconds is None else round(self.seconds, 1)
        return {"batches": self.batches, "records": dict(self.records), "seconds": seconds}


def replay_after(tree: Tree, batch_id: int, start: tuple[SourceOffset, ...]) -> Replay:
    """Work out what follows a batch.

    :param tree: the checkpoint's files.
    :param batch_id: the target.
    :param start: end offsets of the target; empty where they are not known.
    """
    later = [b for b in tree.batches(OFFSETS) if b > batch_id]
    entries = [entry for entry in in_parallel(lambda b: _entry(tree, b), later) if entry]
    if not entries:
        return Replay(0, {}, 0.0)
    newest = max(entries, key=lambda entry: entry.batch_id)
    before = {source.source: source for source in start}
    records = {s.source: _between(before.get(s.source), s) for s in newest.sources}
    target = _entry(tree, batch_id)  # without it the first of them alone would tell nothing of the clocks
    begun = {e.batch_id: e.time.timestamp() for e in (*entries, *([target] if target else [])) if e.time}
    took = [seconds for batch, seconds in batch_seconds(tree, begun).items() if batch > batch_id]
    batches = newest.batch_id - batch_id
    # What was purged or has no commit yet is taken to last as long as the others on average.
    seconds = sum(took) / len(took) * batches if took else None
    return Replay(batches, records, seconds)


def _entry(tree: Tree, batch_id: int) -> OffsetEntry | None:
    file = tree.get(f"{OFFSETS}/{batch_id}")
    try:
        return parse_offsets(tree.read(file), batch_id=batch_id) if file else None
    except (CkptError, FileNotFoundError):  # a seal, a torn entry
        return None


def _between(start: SourceOffset | None, end: SourceOffset) -> int | None:
    a, b = (start.offset if start else None), end.offset
    if isinstance(a, KafkaOffset) and isinstance(b, KafkaOffset):
        return sum(
            max(0, offset - a.partitions.get(topic, {}).get(partition, 0))
            for topic, partitions in b.partitions.items()
            for partition, offset in partitions.items()
        )
    if isinstance(a, FileOffset) and isinstance(b, FileOffset):
        return b.log_offset - a.log_offset
    if isinstance(a, RateMicroBatchOffset) and isinstance(b, RateMicroBatchOffset):
        return b.rows - a.rows
    return None
