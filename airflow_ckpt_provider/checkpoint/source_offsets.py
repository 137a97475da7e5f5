"""The offset of one source, as an offset log entry holds it: one line of text, opaque to Spark's engine.

The kinds that we know are typed; any other is kept byte for byte. A guess is never made: what does not fit a known
form exactly is :class:`OpaqueOffset`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.json_text import load_json

#: How Spark writes "this source has no offset yet" (``OffsetSeqLog.SERIALIZED_VOID_OFFSET``).
VOID = "-"


@dataclass(frozen=True, slots=True)
class Offset:
    """Base of the typed offsets.

    :param text: the line as Spark wrote it.
    """

    kind: ClassVar[str] = "unknown"
    text: str

    def to_json(self) -> Any:
        """The offset as JSON; text that is no JSON stays a string."""
        try:
            return load_json(self.text)
        except ValueError:
            return self.text


@dataclass(frozen=True, slots=True)
class KafkaOffset(Offset):
    """Kafka: topic -> partition -> the next offset to read (exclusive end of what was read)."""

    kind: ClassVar[str] = "kafka"
    partitions: dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class DeltaOffset(Offset):
    """Delta: position in a table's log (``DeltaSourceOffset``).

    :param table_id: id of the table, ``reservoirId``; another table under the same path is refused by Spark.
    :param table_version: ``reservoirVersion``.
    :param index: position among the files of that version; -1 is before all of them, so "end of version v" is (v+1, -1).
    :param initial_snapshot: the query is still reading the snapshot it started from.
    """

    kind: ClassVar[str] = "delta"
    table_id: str
    table_version: int
    index: int
    initial_snapshot: bool

    @property
    def last_read(self) -> int:
        """The newest version that something was read of."""
        return self.table_version if self.initial_snapshot or self.index >= 0 else self.table_version - 1


@dataclass(frozen=True, slots=True)
class FileOffset(Offset):
    """Files: an id of the source's own log in ``sources/<n>/``, which is not a batch id. -1 is before the first."""

    kind: ClassVar[str] = "file"
    log_offset: int


@dataclass(frozen=True, slots=True)
class RateOffset(Offset):
    """Rate: seconds since the source's start."""

    kind: ClassVar[str] = "rate"
    seconds: int


@dataclass(frozen=True, slots=True)
class RateMicroBatchOffset(Offset):
    """Rate per micro-batch: rows so far, and the timestamp in milliseconds of the next."""

    kind: ClassVar[str] = "rate-micro-batch"
    rows: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class IcebergOffset(Offset):
    """Iceberg: position in a snapshot (``StreamingOffset``). It has no id of the table.

    :param snapshot_id: the snapshot; -1 before the first one.
    :param position: number of its files that were read.
    :param scan_all_files: all files of the snapshot are read, not only those that it added: the first one of a stream.
    """

    kind: ClassVar[str] = "iceberg"
    snapshot_id: int
    position: int
    scan_all_files: bool


@dataclass(frozen=True, slots=True)
class OpaqueOffset(Offset):
    """Any other source: kept as it is."""


def parse_offset(text: str) -> Offset | None:
    """Type an offset line; ``None`` for a void offset (``-``).

    :raises ValueError: the line is empty, or begins as a JSON object and does not end as one: it was cut off.
    """
    if not text:
        raise ValueError("empty")
    if text == VOID:
        return None
    try:
        value = load_json(text)
    except ValueError:
        if text.startswith("{"):
            raise
        return OpaqueOffset(text)
    return (
        _rate(text, value)
        or _file(text, value)
        or _rate_micro_batch(text, value)
        or _delta(text, value)
        or _iceberg(text, value)
        or _kafka(text, value)
        or OpaqueOffset(text)
    )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _rate(text: str, value: Any) -> Offset | None:
    return RateOffset(text, value) if _is_int(value) else None


def _file(text: str, value: Any) -> Offset | None:
    fits = isinstance(value, dict) and value.keys() == {"logOffset"} and _is_int(value["logOffset"])
    return FileOffset(text, value["logOffset"]) if fits else None


def _rate_micro_batch(text: str, value: Any) -> Offset | None:
    fits = isinstance(value, dict) and value.keys() == {"offset", "timestamp"} and all(map(_is_int, value.values()))
    return RateMicroBatchOffset(text, value["offset"], value["timestamp"]) if fits else None


def _delta(text: str, value: Any) -> Offset | None:
    if not (isinstance(value, dict) and {"reservoirId", "reservoirVersion", "index"} <= value.keys()):
        return None
    if not (_is_int(value["reservoirVersion"]) and _is_int(value["index"])):
        return None
    # isStartingVersion was renamed isInitialSnapshot in the code; the JSON keeps the old name.
    initial = bool(value.get("isStartingVersion", value.get("isInitialSnapshot", False)))
    return DeltaOffset(text, str(value["reservoirId"]), value["reservoirVersion"], value["index"], initial)


def _iceberg(text: str, value: Any) -> Offset | None:
    if not (isinstance(value, dict) and value.keys() == {"version", "snapshot_id", "position", "scan_all_files"}):
        return None
    numbers = (value["version"], value["snapshot_id"], value["position"])
    if not all(map(_is_int, numbers)) or not isinstance(value["scan_all_files"], bool):
        return None
    return IcebergOffset(text, value["snapshot_id"], value["position"], value["scan_all_files"])


def _kafka(text: str, value: Any) -> Offset | None:
    if not (isinstance(value, dict) and value):
        return None
    topics: dict[str, dict[int, int]] = {}
    for topic, partitions in value.items():
        if not (isinstance(partitions, dict) and all(batch_id_of(p) is not None for p in partitions)):
            return None
        if not all(map(_is_int, partitions.values())):
            return None
        topics[topic] = {int(p): offset for p, offset in partitions.items()}
    return KafkaOffset(text, topics)
