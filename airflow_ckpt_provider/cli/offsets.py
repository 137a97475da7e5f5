"""Offsets of sources as people read them. ``--json`` has them byte for byte."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import (
    DeltaOffset,
    FileOffset,
    KafkaOffset,
    Offset,
    RateMicroBatchOffset,
    RateOffset,
)

#: Partitions of a topic, and characters of an unknown offset, that are shown in full.
_PARTITIONS = 16
_CHARACTERS = 120


def in_words(source: SourceOffset) -> str:
    """Say where a source stands."""
    return _in_words(source.offset) if source.offset else "no offset yet"


def _in_words(offset: Offset) -> str:
    match offset:
        case KafkaOffset(partitions=topics):
            return "\n".join(_topic(topic, partitions) for topic, partitions in topics.items())
        case DeltaOffset(table_version=version, index=index, initial_snapshot=initial):
            place = "its start" if index == -1 else f"file {index}"
            return f"version {version}, {place}{', still in the first snapshot' if initial else ''}"
        case FileOffset(log_offset=number):
            return "before its first file" if number == -1 else f"entry {number} of its log of files"
        case RateOffset(seconds=number):
            return f"second {number}"
        case RateMicroBatchOffset(rows=rows):
            return f"row {rows:,}"
        case _:
            text = offset.text
            return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}… (--json shows all)"


def _topic(topic: str, partitions: dict[int, int]) -> str:
    if len(partitions) > _PARTITIONS:
        return f"{topic}: {len(partitions)} partitions (--json lists them)"
    return f"{topic}: " + "  ".join(f"{p}={offset}" for p, offset in sorted(partitions.items()))
