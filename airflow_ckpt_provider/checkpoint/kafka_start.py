"""Where Spark's Kafka source began: a file that it writes once, before its first batch (``KafkaSourceInitialOffsetWriter``).

Without it Spark evaluates the reader's ``startingOffsets`` again (``getOrCreateInitialPartitionOffsets``).
"""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.logs import REFUSED_BY_SPARK, split_log
from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset, parse_offset
from airflow_ckpt_provider.errors import UnreadableLogError

#: The name of the file in ``sources/<n>``.
FILE = "0"


def parse_kafka_start(data: bytes, *, path: str) -> KafkaOffset:
    """Read the file.

    :param data: its content.
    :param path: its path, for messages.
    :raises UnreadableLogError: it does not hold offsets of Kafka. Spark cannot read it either.
    """
    _, lines = split_log(data, path=path, batch_id=None, known=frozenset({1}))
    try:
        offset = parse_offset(lines[0]) if len(lines) == 1 else None
    except ValueError:
        offset = None
    if not isinstance(offset, KafkaOffset):
        raise UnreadableLogError(
            f"{path}: it does not hold Kafka's offsets",
            path=path,
            batch_id=None,
            hint=REFUSED_BY_SPARK,
        )
    return offset
