r"""``offsets/<N>``: Spark's write-ahead log. What batch N reads up to, written before the batch runs.

Version 1 (``OffsetSeqLog``) has one line per source in plan order; version 2 (``OffsetMap``, Spark 4.2+) has
``<source id>:<offset>`` lines in map order. The line of batch metadata may be empty: continuous mode leaves it so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.logs import FETCH_IT, parse_object, split_log
from airflow_ckpt_provider.checkpoint.source_offsets import Offset, parse_offset
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.units import is_number

OFFSETS = "offsets"
_KNOWN = frozenset({1, 2})
#: The highest number of partitions: a Java int.
_MOST_PARTITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Where one source stands.

    :param source: position in the plan (``"0"``, ``"1"``, …) or the source's name (Spark 4.2+, source evolution).
        ``sources/<source>`` holds its log, if it has one.
    :param offset: the offset, or ``None`` while it has none.
    """

    source: str
    offset: Offset | None

    @property
    def is_named(self) -> bool:
        """Whether the source is known by a name rather than by its position."""
        return not is_number(self.source)

    @property
    def kind(self) -> str:
        """Kind of the source as far as its offset shows: ``kafka``, ``delta``, ``file``, …, ``unknown``."""
        return self.offset.kind if self.offset else "unknown"

    def to_json(self) -> dict[str, Any]:
        """``{"index" or "name", "kind", "offset"}``."""
        key: dict[str, Any] = {"name": self.source} if self.is_named else {"index": int(self.source)}
        return {**key, "kind": self.kind, "offset": self.offset.to_json() if self.offset else None}


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One entry of the offset log.

    :param batch_id: the batch.
    :param version: log version, 1 or 2.
    :param sources: END offset of each source; a source without new data repeats its previous one.
    :param metadata: the batch metadata as written, unknown keys included; empty in continuous mode.
    """

    batch_id: int
    version: int
    sources: tuple[SourceOffset, ...]
    metadata: dict[str, Any]

    @property
    def conf(self) -> dict[str, str]:
        """Settings pinned to the checkpoint; Spark takes them from here, not from the session."""
        conf: dict[str, str] = self.metadata.get("conf") or {}
        return conf

    @property
    def watermark_ms(self) -> int:
        """Event-time watermark of the batch, milliseconds since the epoch; 0 without one."""
        return int(self.metadata.get("batchWatermarkMs", 0))

    @property
    def time(self) -> datetime | None:
        """When the batch was planned, in UTC; ``None`` in continuous mode."""
        ms = self.metadata.get("batchTimestampMs")
        return datetime.fromtimestamp(ms / 1000, UTC) if ms else None

    @property
    def is_continuous(self) -> bool:
        """Whether the query runs in continuous mode, which logs no batch metadata and follows rules of its own."""
        return not self.metadata

    @property
    def state_partitions(self) -> int | None:
        """Number of state partitions, or ``None`` where the entry does not say."""
        conf = self.conf
        number = conf.get(
            "spark.sql.streaming.internal.stateStore.partitions", conf.get("spark.sql.shuffle.partitions")
        )
        return int(number) if number else None

    @property
    def state_provider(self) -> str | None:
        """Class of the state store provider, or ``None`` where the entry does not say."""
        return self.conf.get("spark.sql.streaming.stateStore.providerClass")

    @property
    def state_codec(self) -> str:
        """Compression of state files; the fixed default of Spark where the entry does not say."""
        return self.conf.get("spark.sql.streaming.stateStore.compression.codec", "lz4")


def parse_offsets(data: bytes, *, batch_id: int) -> OffsetEntry:
    """Parse ``offsets/<batch_id>``.

    :raises UnreadableLogError: empty, cut off, or of an unknown version. A seal is none of ours to parse:
        look with :func:`~airflow_ckpt_provider.checkpoint.seal.parse_seal` first.
    """
    path = f"{OFFSETS}/{batch_id}"
    version, lines = split_log(data, path=path, batch_id=batch_id, known=_KNOWN)
    if len(lines) < 2 or (not lines[-1] and len(lines) < 3):
        raise UnreadableLogError(
            f"{path}: cut off, no source offsets after the batch metadata",
            path=path,
            batch_id=batch_id,
            hint=FETCH_IT,
        )
    metadata = parse_object(lines[0], path=path, batch_id=batch_id)
    texts = [line for line in lines[1:] if line]
    if version == 1:
        named = [(str(i), ":", text) for i, text in enumerate(texts)]
    else:
        named = [text.partition(":") for text in texts]
    sources = tuple(_source_offset(name, colon, text, path, batch_id) for name, colon, text in named)
    entry = OffsetEntry(batch_id, version, tuple(sorted(sources, key=_plan_order)), metadata)
    _check_metadata(entry, path)
    return entry


def _check_metadata(entry: OffsetEntry, path: str) -> None:
    """See that what will be asked of the batch metadata can be answered."""
    try:
        if not isinstance(entry.conf, dict):
            raise ValueError(f"conf is {entry.conf!r}")
        _ = (entry.watermark_ms, entry.time)
        for name, value in (("provider", entry.state_provider or ""), ("codec", entry.state_codec)):
            if not isinstance(value, str):
                raise ValueError(f"the {name} of the state store is {value!r:.80}")
        partitions = entry.state_partitions
        if partitions is not None and not 0 < partitions <= _MOST_PARTITIONS:
            raise ValueError(f"the number of state partitions is {partitions!r:.80}")
    except (ValueError, TypeError, OverflowError, OSError) as e:
        raise UnreadableLogError(
            f"{path}: the batch metadata holds what Spark would not write ({e})",
            path=path,
            batch_id=entry.batch_id,
            hint=FETCH_IT,
        ) from e


def _source_offset(source: str, colon: str, text: str, path: str, batch_id: int) -> SourceOffset:
    try:
        if not colon:
            raise ValueError("no colon")
        return SourceOffset(source, parse_offset(text))
    except ValueError as e:
        raise UnreadableLogError(
            f"{path}: the offset of source {source[:80]!r} is broken or cut off: {text[:80]!r}",
            path=path,
            batch_id=batch_id,
            hint=f"Spark cannot use the file either; {FETCH_IT}",
        ) from e


def _plan_order(source: SourceOffset) -> tuple[int, str]:
    return (0, source.source.zfill(10)) if is_number(source.source) else (1, source.source)
