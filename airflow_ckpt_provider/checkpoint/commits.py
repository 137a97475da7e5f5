"""``commits/<N>``: written when batch N is done (``CommitLog``, versions 1 to 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.logs import FETCH_IT, batch_id_of, parse_object, split_log
from airflow_ckpt_provider.errors import UnreadableLogError

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
        watermark: int = self.metadata.get("nextBatchWatermarkMs", 0)
        return watermark

    @property
    def state_ids(self) -> dict[int, list[list[str]]]:
        """Operator -> partition -> one id per store: the uuid in the names of state version ``batch_id + 1``.

        Empty unless the state is in checkpoint format 2.
        """
        ids: dict[str, list[list[str]]] = self.metadata.get("stateUniqueIds") or {}
        return {int(operator): partitions for operator, partitions in ids.items()}

    def state_id(self, operator: int, partition: int, store: int) -> str | None:
        """The id of one store's version; ``None`` where the entry names none of the operator.

        :param store: number of the store in its partition.
        :raises UnreadableLogError: the entry names other stores of the operator, and not this one.
        """
        ids = self.state_ids.get(operator)
        if not ids:
            return None
        try:
            return ids[partition][store]
        except IndexError:
            raise self._unreadable(
                f"stateUniqueIds has no id for store {store} of partition {partition} of operator {operator}"
            ) from None

    def check(self) -> None:
        """See that the entry holds what Spark writes (``CommitMetadataV2``).

        :raises UnreadableLogError: it does not.
        """
        watermark = self.metadata.get("nextBatchWatermarkMs", 0)
        if type(watermark) is not int:
            raise self._unreadable(f"nextBatchWatermarkMs is {watermark!r:.80}")
        ids = self.metadata.get("stateUniqueIds") or {}
        if not (
            isinstance(ids, dict)
            and all(
                batch_id_of(operator) is not None and isinstance(partitions, list) and all(map(_is_texts, partitions))
                for operator, partitions in ids.items()
            )
        ):
            raise self._unreadable(f"stateUniqueIds is {ids!r:.80}")

    def _unreadable(self, what: str) -> UnreadableLogError:
        path = f"{COMMITS}/{self.batch_id}"
        return UnreadableLogError(
            f"{path}: the commit holds what Spark would not write ({what})",
            path=path,
            batch_id=self.batch_id,
            hint=FETCH_IT,
        )


def parse_commit(data: bytes, *, batch_id: int) -> CommitEntry:
    """Parse ``commits/<batch_id>``; the JSON line may be absent.

    :raises UnreadableLogError: empty, cut off, of an unknown version, or with values that Spark would not write.
    """
    path = f"{COMMITS}/{batch_id}"
    version, lines = split_log(data, path=path, batch_id=batch_id, known=_KNOWN)
    entry = CommitEntry(batch_id, version, parse_object("".join(lines[:1]), path=path, batch_id=batch_id))
    entry.check()
    return entry


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
