"""Rolling an Iceberg table back: one atomic commit that sets branch main to a snapshot, and tags the former one.

Iceberg compares a replay with the ancestors of the current snapshot, so content and memory are rolled back together and the query
keeps its id. The tag names the plan: a second run finds it, and until it expires the undo has what it needs.

* A table by its name: pyiceberg's catalog makes the commit, and requires that main is still what the plan saw.
* A Hadoop table by its directory: the next ``v<N>.metadata.json`` is created, which fails where another writer was first. That is
  how Iceberg itself commits to such a table.
* A table of a catalog by its directory: refused, for its catalog would not know of the commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.iceberg_client import commit_by_name, metadata_by_name
from airflow_ckpt_provider.guards.iceberg_metadata import (
    MAIN,
    SCHEME,
    ancestors,
    head_of,
    newest_metadata,
    read_metadata,
    snapshots_of,
)
from airflow_ckpt_provider.sinks.iceberg_directory import commit_to_directory
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

#: For how long a tag keeps the snapshot that left the table, for the undo: 30 days after the rollback.
_KEPT_MS = 30 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """A table, as it was named.

    :param place: its directory, or ``None``.
    :param name: ``CATALOG.NAMESPACE.TABLE``, or empty.
    :param properties: of the catalog.
    """

    place: Location | None
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{SCHEME}{self.name}" if self.name else str(self.place)

    def metadata(self) -> dict[str, Any]:
        """The current metadata, as its JSON."""
        if self.place is None:
            return metadata_by_name(self.name, self.properties)
        return read_metadata(self.place, newest_metadata(self.place)[0])

    @property
    def takes_commits(self) -> bool:
        """Whether a commit of ours can reach it: not that of a catalog which is given by its directory."""
        return self.place is None or newest_metadata(self.place)[1]


def tag_of(plan_id: str) -> str:
    """The tag that a plan leaves in the table."""
    return f"airflow-ckpt-{plan_id}"


def snapshot_is_set_by(table: IcebergTable, plan_id: str) -> bool:
    """Whether a plan's commit is in the table."""
    return tag_of(plan_id) in (table.metadata().get("refs") or {})


def current_snapshot(table: IcebergTable) -> int | None:
    """Id of the table's current snapshot; ``None`` without one."""
    return head_of(table.metadata())


def holds_snapshot(table: IcebergTable, snapshot: int, *, as_head: bool) -> bool:
    """Whether a snapshot is the current one.

    :param as_head: ``False``: an ancestor of the current one counts too.
    """
    metadata = table.metadata()
    return head_of(metadata) == snapshot or (not as_head and snapshot in ancestors(metadata)[0])


def set_snapshot(
    table: IcebergTable,
    snapshot: int,
    *,
    expected: int,
    plan_id: str,
    unless: str = "",
    check_lease: Callable[[], None] = lambda: None,
) -> int:
    """Make a snapshot the current one; the second time it does nothing.

    Where it is the current one already, the commit only adds the tag of the plan.

    :param table: the table.
    :param snapshot: id of the snapshot that branch main is to have.
    :param expected: id of the one it has to have before.
    :param plan_id: the plan; a second run of it finds the tag of the first.
    :param unless: a plan whose tag must not be in the table, up to the commit itself: the undo of this one. Empty: there is none.
    :param check_lease: raises where this attempt may not write any more; called right before the commit.
    :return: ``snapshot``.
    :raises RefusedError: somebody wrote into the table since the plan was made; the snapshot has expired; the table belongs to a
        catalog. Nothing was changed.
    :raises MissingExtraError: pyiceberg is not installed.
    :raises StorageError: the table could not be read or written.
    """
    path, is_hadoop = newest_metadata(table.place) if table.place else ("", False)
    metadata = read_metadata(table.place, path) if table.place else table.metadata()
    if tag_of(plan_id) in (metadata.get("refs") or {}):
        _expect_still_set(table, metadata, snapshot, expected, plan_id)
        log.info("%s was set to snapshot %d by plan %s already", table, snapshot, plan_id)
        return snapshot
    if unless and tag_of(unless) in (metadata.get("refs") or {}):
        raise RefusedError(
            f"{table} has the tag {tag_of(unless)}: plan {plan_id} was undone; the table was not changed",
            hint="make a new plan",
        )
    head = head_of(metadata)
    if head != expected:
        raise RefusedError(
            f"{table} is at snapshot {head}, and the plan was made at snapshot {expected}: somebody wrote into it; the table "
            "was not changed",
            hint="see who writes (its snapshots table), then make a new plan",
        )
    _expect_snapshot(table, metadata, snapshot)
    tag_age = _tag_age_ms(metadata, expected)
    if table.place is None:
        commit_by_name(
            table.name,
            table.properties,
            uuid=str(metadata["table-uuid"]),
            head=expected,
            snapshot=snapshot,
            tag=tag_of(plan_id),
            tag_age_ms=tag_age,
            unless=tag_of(unless) if unless else "",
            check_lease=check_lease,
        )
    elif is_hadoop:
        changed = _changed(metadata, path, snapshot, head=expected, tag=tag_of(plan_id), tag_age_ms=tag_age)
        commit_to_directory(table.place, path, changed, check_lease=check_lease)
    else:
        raise RefusedError(
            f"{table} belongs to a catalog, which would not know of a commit in its directory",
            hint="name the table: --sink iceberg:CATALOG.NAMESPACE.TABLE",
        )
    log.info("%s set from snapshot %d to %d", table, expected, snapshot)
    return snapshot


def expect_snapshot(table: IcebergTable, snapshot: int) -> None:
    """See that a table still has a snapshot.

    :raises RefusedError: it has expired.
    """
    _expect_snapshot(table, table.metadata(), snapshot)


def _expect_snapshot(table: IcebergTable, metadata: Mapping[str, Any], snapshot: int) -> None:
    if snapshot not in snapshots_of(metadata):
        raise RefusedError(
            f"snapshot {snapshot} of {table} has expired: the table cannot go there any more; it was not changed",
            hint="make a new plan, to a batch whose snapshot is there",
        )


def _expect_still_set(
    table: IcebergTable, metadata: Mapping[str, Any], snapshot: int, expected: int, plan_id: str
) -> None:
    """See that the table still is where a plan has set it, or was written to from there.

    :raises RefusedError: main was set to something else since.
    """
    snapshots, line = snapshots_of(metadata), ancestors(metadata)[0]
    before_that = ancestors({**metadata, "current-snapshot-id": snapshot})[0] if snapshot in snapshots else []
    left = expected in line and expected not in before_that
    if left or (snapshot in snapshots and snapshot not in line):
        raise RefusedError(
            f"{table} was set to snapshot {snapshot} by plan {plan_id}, and to another one since: it is at {head_of(metadata)}; "
            "it was not changed now",
            hint="see in its refs table who set main, then make a new plan",
        )


def _tag_age_ms(metadata: Mapping[str, Any], head: int) -> int:
    """How old the tag may become: Iceberg compares with the time of the tag's *snapshot*, not with that of the tag.

    Source: ``RemoveSnapshots.computeRetainedRefs``.
    """
    made = int(snapshots_of(metadata).get(head, {}).get("timestamp-ms", 0))
    return _KEPT_MS + max(0, time.time_ns() // 1_000_000 - made)


def _changed(
    metadata: Mapping[str, Any], path: str, snapshot: int, *, head: int, tag: str, tag_age_ms: int
) -> dict[str, Any]:
    """The metadata with main at a snapshot and the former one tagged.

    :param path: the file that the metadata comes from.
    """
    now = max(time.time_ns() // 1_000_000, int(metadata["last-updated-ms"]) + 1)
    references = dict(metadata.get("refs") or {})
    main = {**references.get(MAIN, {"type": "branch"}), "snapshot-id": snapshot}
    former = {"metadata-file": f"{metadata['location']}/{path}", "timestamp-ms": metadata["last-updated-ms"]}
    return {
        **metadata,
        "last-updated-ms": now,
        "current-snapshot-id": snapshot,
        "refs": {**references, MAIN: main, tag: {"snapshot-id": head, "type": "tag", "max-ref-age-ms": tag_age_ms}},
        "snapshot-log": [*(metadata.get("snapshot-log") or ()), {"timestamp-ms": now, "snapshot-id": snapshot}],
        "metadata-log": [*(metadata.get("metadata-log") or ()), former],
    }
