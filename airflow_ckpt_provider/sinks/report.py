"""What a rewind to a batch means for the sink: the verdict, and what a rollback of the sink would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.storage.location import safe_paths
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class SinkRollback:
    """What rolling a sink back to the target batch would do.

    :param to_version: the table version whose content is restored, of Iceberg the snapshot; ``None`` for a file sink.
    :param from_version: the table version or snapshot that the plan was made from; ``None`` for a file sink.
    :param rows: rows that leave the sink, as far as its log shows.
    :param batches: how many batches of the stream leave it.
    :param foreign: what others wrote meanwhile and would leave too, in words.
    :param paths: files that are set aside, relative to the sink (file sink only).
    :param feature: the table feature because of which Spark has to perform it, or ``None``.
    :param reverts: what others set on the table since and a rollback removes: properties, columns, protocol.
    :param how: what the rollback does, in words, where it is of a kind of another package.
    :param facts: what that kind needs to perform it, as plain JSON.
    """

    to_version: int | None = None
    from_version: int | None = None
    rows: int | None = None
    batches: int = 0
    foreign: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    feature: str | None = None
    reverts: tuple[str, ...] = ()
    how: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The rollback as plain JSON."""
        return {
            "to_version": self.to_version,
            "from_version": self.from_version,
            "rows": self.rows,
            "batches": self.batches,
            "foreign": list(self.foreign),
            "paths": list(self.paths),
            "feature": self.feature,
            "reverts": list(self.reverts),
            # Earlier releases read the plans of the kinds that they have, which need neither.
            **({"how": self.how} if self.how else {}),
            **({"facts": dict(self.facts)} if self.facts else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SinkRollback:
        """Read what :meth:`to_json` wrote.

        :raises ValueError: a path leads out of the sink.
        """
        lists = {name: tuple(value.get(name, ())) for name in ("foreign", "reverts")}
        return cls(**{**value, **lists, "paths": safe_paths(value["paths"])})


@dataclass(frozen=True, slots=True)
class SinkReport:
    """A sink, judged for a start after one batch.

    :param kind: ``delta``, ``iceberg``, ``file``, ``hudi``, ``paimon``, ``foreachBatch``, ``foreach``, ``kafka`` or ``unknown``.
    :param uri: where it is, or its kind where it has no place.
    :param verdict: what happens if the query starts after the target batch and nothing is done to the sink.
    :param reasons: why, in words.
    :param batch_id: newest batch of the query whose rows the sink holds; ``None`` where that is unknown or there is none.
    :param remembered: newest batch that the sink would skip; ``None`` where it keeps no memory.
    :param rollback: what a rollback would do; ``None`` if there is none needed or possible.
    :param obstacle: why a rollback is not possible, where it would be needed.
    :param query_ids: every id of the stream under which batches were searched; empty for sinks that do not keep ids.
    :param memories: id -> newest batch that the sink remembers of it, for older ids of which that lies beyond the target.
    :param doubts: what is not right, or not known, of the batches up to the target; a rollback does not change it.
    """

    kind: str
    uri: str
    verdict: Verdict
    reasons: tuple[str, ...]
    batch_id: int | None = None
    remembered: int | None = None
    rollback: SinkRollback | None = None
    obstacle: str | None = None
    query_ids: tuple[str, ...] = ()
    memories: Mapping[str, int] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {
            "kind": self.kind,
            "uri": self.uri,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "batch_id": self.batch_id,
            "remembered": self.remembered,
            "rollback": self.rollback.to_json() if self.rollback else None,
            "obstacle": self.obstacle,
            "query_ids": list(self.query_ids),
            "memories": dict(self.memories),
            "doubts": list(self.doubts),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SinkReport:
        """Read what :meth:`to_json` wrote, or an older version of it."""
        rollback = value["rollback"]
        return cls(
            **{
                **value,
                "verdict": Verdict(value["verdict"]),
                "reasons": tuple(value["reasons"]),
                "query_ids": tuple(value.get("query_ids", ())),
                "doubts": tuple(value.get("doubts", ())),
                "rollback": SinkRollback.from_json(rollback) if rollback else None,
            }
        )


#: Sinks without a memory: what is replayed is written again.
WITHOUT_MEMORY = ("foreachBatch", "foreach", "kafka")


def without_memory(kind: str, batch_id: int, newest: int) -> SinkReport:
    """Judge a sink that keeps no memory of batches, or of which nothing is known.

    :param kind: one of :data:`WITHOUT_MEMORY`, or ``unknown``.
    :param batch_id: the target batch.
    :param newest: the newest batch that the query may have written.
    """
    if newest <= batch_id:
        return SinkReport(kind, kind, Verdict.SAFE, ("no batch after the target was ever begun",))
    span = f"batch {newest}" if newest == batch_id + 1 else f"batches {batch_id + 1} to {newest}"
    if kind == "unknown":
        return SinkReport(
            kind,
            kind,
            Verdict.UNKNOWN,
            (
                f"the sink is not known: a Delta table, an Iceberg table or a file sink that is written directly silently skips "
                f"what it remembers of {span}; without such a memory their rows are written again",
            ),
            obstacle="the sink is not known; name it (--sink)",
        )
    return SinkReport(
        kind,
        kind,
        Verdict.WILL_DUPLICATE,
        (
            f"{kind} keeps no memory of batches: the rows of {span} are written again; only a sink that is idempotent by itself "
            "(MERGE by key, overwrite by batch id, consumers that drop duplicates) corrects this",
        ),
        obstacle=f"a {kind} sink cannot be rolled back from here",
    )
