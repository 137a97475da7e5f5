"""Kafka: an offset of the checkpoint is the next one to read, and so is one of ``startingOffsets``: the same number.

Spark refuses ``startingOffsets`` that do not name every partition of the topics. A partition that was added since the batch
is read from its earliest offset (-2), as the old query would have done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.guards.kafka_verdicts import NO_BROKER, NOT_ALL_PARTITIONS
from airflow_ckpt_provider.recovery.positions.position import Alternative, SourcePosition
from airflow_ckpt_provider.verdict import Verdict

#: What Spark reads as "the earliest offset of the partition".
EARLIEST = -2


def kafka_position(
    source: str, offset: KafkaOffset, *, time: datetime | None, partitions: Mapping[str, int] | None
) -> SourcePosition:
    """Start where the batch ended.

    :param source: the source.
    :param offset: end offsets of the batch.
    :param time: when the batch was planned, for the alternative by timestamp.
    :param partitions: topic -> how many partitions it has now; ``None``: not known.
    """
    start, added = _with_added(offset.partitions, partitions)
    reasons = [NOT_ALL_PARTITIONS] if partitions is None else []
    if added:
        reasons.append(f"partitions added since, read from their earliest offset: {', '.join(added)}")
    text = offsets_json(start)
    alternatives: tuple[Alternative, ...] = ()
    if time:
        by_time = Alternative(
            name="by_timestamp",
            use="where the offsets are gone or of another topic: Kafka's time index decides; take startingOffsets out",
            options=_by_timestamp(start, _ms(time)),
            # What was read and what not does not follow the records' timestamps exactly.
            verdict=Verdict.UNKNOWN,
        )
        alternatives = (by_time,)
    return SourcePosition(
        source=source,
        kind=KafkaOffset.kind,
        options={"startingOffsets": text},
        verdict=Verdict.UNKNOWN,
        reasons=(*reasons, NO_BROKER),
        until={"endingOffsets": offsets_json(offset.partitions)},
        alternatives=alternatives,
    )


def kafka_position_by_clock(
    source: str, offset: KafkaOffset, *, time: datetime, partitions: Mapping[str, int] | None
) -> SourcePosition:
    """Start at the first record of each partition whose timestamp is at or after a time, by Kafka's own index.

    ``endingOffsets`` of the oldest batch in the log lets a batch read fill in what lies between.
    """
    start, added = _with_added(offset.partitions, partitions)
    reasons = [
        "each partition starts at its first record at or after the time, by the records' timestamps; with "
        "CreateTime these are the "
        "producers' and need not rise",
        "a partition without such a record starts at its latest offset (startingOffsetsByTimestampStrategy)",
    ]
    reasons += [NOT_ALL_PARTITIONS] if partitions is None else []
    reasons += [f"partitions added since: {', '.join(added)}"] if added else []
    return SourcePosition(
        source=source,
        kind=KafkaOffset.kind,
        options=_by_timestamp(start, _ms(time)),
        verdict=Verdict.UNKNOWN,
        reasons=(*reasons, NO_BROKER),
        repeats=None,
        until={"endingOffsets": offsets_json(offset.partitions)},
    )


def _by_timestamp(start: Mapping[str, Mapping[int, int]], ms: int) -> dict[str, str]:
    times = {topic: dict.fromkeys(partitions, ms) for topic, partitions in start.items()}
    return {"startingOffsetsByTimestamp": offsets_json(times), "startingOffsetsByTimestampStrategy": "latest"}


def _with_added(
    offsets: Mapping[str, Mapping[int, int]], partitions: Mapping[str, int] | None
) -> tuple[dict[str, dict[int, int]], list[str]]:
    start = {topic: dict(ends) for topic, ends in offsets.items()}
    added = []
    for topic, count in (partitions or {}).items():
        for number in range(count):
            if topic in start and number not in start[topic]:
                start[topic][number] = EARLIEST
                added.append(f"{topic}-{number}")
    return start, added


def offsets_json(value: Mapping[str, Mapping[int, int]]) -> str:
    """Write offsets as Spark takes them."""
    ordered: dict[str, Any] = {t: {str(p): ps[p] for p in sorted(ps)} for t, ps in sorted(value.items())}
    return json.dumps(ordered, separators=(",", ":"))


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
