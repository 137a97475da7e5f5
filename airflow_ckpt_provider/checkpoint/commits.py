"""``commits/<N>``: written when batch N is done (``CommitLog``, versions 1 to 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.logs import parse_object, split_log

COMMITS = "commits"
_KNOWN = frozenset({1, 2, 3})


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """One entry of the commit log.

    :param batch_id: the batch.
    :param version: 1; 2 with state checkpoint format 2 (Spark 4.0+); 3 with sink evolution (Spark 4.3).
    :param metadata: the JSON as written, unknown keys included.
    """

    batch_id: int
    version: int
    metadata: dict[str, Any]

    @property
    def next_watermark_ms(self) -> int:
        """Watermark of the batch that follows, milliseconds since the epoch."""
        return int(self.metadata.get("nextBatchWatermarkMs", 0))

    @property
    def state_ids(self) -> dict[int, list[list[str]]]:
        """Operator -> partition -> one id per store: the uuid in the names of state version ``batch_id + 1``.

        Empty unless the state is in checkpoint format 2.
        """
        ids: dict[str, list[list[str]]] = self.metadata.get("stateUniqueIds") or {}
        return {int(operator): partitions for operator, partitions in ids.items()}


def parse_commit(data: bytes, *, batch_id: int) -> CommitEntry:
    """Parse ``commits/<batch_id>``; the JSON line may be absent.

    :raises UnreadableLogError: empty, cut off, or of an unknown version.
    """
    path = f"{COMMITS}/{batch_id}"
    version, lines = split_log(data, path=path, batch_id=batch_id, known=_KNOWN)
    return CommitEntry(batch_id, version, parse_object("".join(lines[:1]), path=path, batch_id=batch_id))
