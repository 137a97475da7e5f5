"""For how long ``expire_snapshots`` leaves what an Iceberg stream needs: a lower bound by the table's own settings.

Nothing expires by itself: somebody runs ``expire_snapshots``, and may name other limits than the table has. Whether anybody does
is not known from the table. The rules are those of Iceberg's ``RemoveSnapshots``: each branch is followed from its head to the
first snapshot that is neither among its newest ones nor young enough; a tag keeps its own snapshot. A stream goes from its
snapshot to the current one by their parents, so it needs all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from airflow_ckpt_provider.guards.iceberg_metadata import MAIN, ancestors, snapshots_of

_AGE, _KEPT, _REF_AGE = (
    f"history.expire.{name}" for name in ("max-snapshot-age-ms", "min-snapshots-to-keep", "max-ref-age-ms")
)
#: With ``false`` Iceberg refuses to expire anything.
_GC = "gc.enabled"
#: Iceberg's defaults (``TableProperties``).
_FIVE_DAYS_MS = 5 * 24 * 60 * 60 * 1000
#: What a report says of every bound.
NOBODY_KNOWS = (
    "snapshots expire only when somebody runs expire_snapshots, which the table does not show; one with its own older_than does "
    "not keep to the table's settings"
)


@dataclass(frozen=True, slots=True)
class TimeToExpiry:
    """How long the snapshots of a stream will be kept.

    :param seconds: from now, as a lower bound; 0 if the next run may remove one; ``None`` if no run ever may.
    :param snapshots: so many more snapshots of branch main keep them whatever their age (``min-snapshots-to-keep``).
    :param limited_by: the setting that ends it, or ``gc.enabled`` where it forbids that anything expires.
    :param max_age_ms: for how long branch main keeps a snapshot.
    :param oldest_age_ms: how old the oldest of them is that can expire.
    :param min_kept: how many of its newest snapshots it keeps.
    :param has_expired: the line of ancestors does not reach back to the table's first snapshot, so somebody expires them.
    """

    seconds: float | None
    snapshots: int
    limited_by: str
    max_age_ms: int
    oldest_age_ms: int
    min_kept: int
    has_expired: bool

    @property
    def keeps_all(self) -> bool:
        """Whether nothing ever expires. A tag keeps its own snapshot, and none that comes."""
        return self.limited_by == _GC

    def to_json(self) -> dict[str, Any]:
        """The facts of a report."""
        return {
            "limited_by": self.limited_by,
            "max_snapshot_age_s": self.max_age_ms / 1000,
            "min_snapshots_to_keep": self.min_kept,
            "kept_for_snapshots": self.snapshots,
            "older_snapshots_gone": self.has_expired,
            "time_to_loss_reason": NOBODY_KNOWS,
            **({"keeps_all": True} if self.keeps_all else {}),
        }


def time_to_expiry(metadata: Mapping[str, Any], snapshot: int, *, now_ms: int) -> TimeToExpiry:
    """Say how long a stream can still go from a snapshot to the current one.

    :param metadata: the table's metadata.
    :param snapshot: where the stream stands: an ancestor of the current snapshot, or that itself.
    :param now_ms: the present, milliseconds since the epoch.
    """
    snapshots, properties = snapshots_of(metadata), metadata.get("properties") or {}
    line, is_whole = ancestors(metadata)
    needed = line[line.index(snapshot) :]
    main = (metadata.get("refs") or {}).get(MAIN) or {}
    age = int(main.get("max-snapshot-age-ms") or properties.get(_AGE) or _FIVE_DAYS_MS)
    kept = int(main.get("min-snapshots-to-keep") or properties.get(_KEPT) or 1)
    until = {id_: _until(metadata, snapshots, properties, id_, age) for id_ in needed}
    soonest = min(until.values())
    has_gc = str(properties.get(_GC, "true")).lower() != "false"
    by_branch = "max-snapshot-age-ms of branch main" if main.get("max-snapshot-age-ms") else _AGE
    return TimeToExpiry(
        seconds=max(0.0, (soonest - now_ms) / 1000) if has_gc and soonest < inf else None,
        snapshots=max(0, kept - len(needed)),
        limited_by=by_branch if has_gc else _GC,
        max_age_ms=age,
        oldest_age_ms=max((now_ms - _made(snapshots[id_]) for id_, end in until.items() if end < inf), default=0),
        min_kept=kept,
        has_expired=not is_whole,
    )


def _until(
    metadata: Mapping[str, Any],
    snapshots: Mapping[int, Mapping[str, Any]],
    properties: Mapping[str, Any],
    id_: int,
    age: int,
) -> float:
    """Up to when a snapshot is kept, milliseconds since the epoch: by its age in branch main, or by a tag on it.

    Other branches keep ancestors too, for as long as they exist; they are not counted, as a branch is dropped at any time.
    """
    made = _made(snapshots[id_])
    found: list[float] = [made + age]
    for reference in (metadata.get("refs") or {}).values():
        if reference.get("type") == "tag" and int(reference["snapshot-id"]) == id_:
            limit = reference.get("max-ref-age-ms") or properties.get(_REF_AGE)
            found.append(made + int(limit) if limit else inf)
    return max(found)


def _made(snapshot: Mapping[str, Any]) -> int:
    """When a snapshot was made, milliseconds since the epoch."""
    return int(snapshot["timestamp-ms"])
