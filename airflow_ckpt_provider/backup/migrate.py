"""Putting the small objects of a repository of format 1 together into packs, while backups, restores and prunes continue.

Manifests never change: a record says in which pack an object is now, as for packs that a prune repacks
(:mod:`~airflow_ckpt_provider.backup.repack`), and the objects are deleted as a prune deletes them: behind a mark, after whoever
began before has ended, after all that was written was read back and compared with what backups say of it. What stays as it is:
objects that are too big for a pack, that are locked or damaged, that no hash proves, and those of which backups say different
things. If the process is killed, run the same command again: it packs what has no record yet, and deletes what has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.backup.claims import ABANDONED_AFTER
from airflow_ckpt_provider.backup.content_checks import is_computable
from airflow_ckpt_provider.backup.contents import Places, listed_by, objects_there, stream_names
from airflow_ckpt_provider.backup.copy_progress import Meter, OnProgress
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.deletion import delete_unlisted
from airflow_ckpt_provider.backup.immutability import locks_on
from airflow_ckpt_provider.backup.marker import refuse_inside
from airflow_ckpt_provider.backup.packing import PACK_SIZE, PACKED_BELOW
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repack import OnFile, damaged_in_words, pack_anew
from airflow_ckpt_provider.backup.repository import Repository, raise_format
from airflow_ckpt_provider.errors import BackupRunningError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import MOVED_AT_ONCE, WITHOUT_RECORD, pack_size, part_of
from airflow_ckpt_provider.units import format_size, format_time
from airflow_ckpt_provider.verdict import Verdict

#: Why objects stay as they are, in words.
_DAMAGED = "are known to be damaged"
_DAMAGED_PACK = "lie in packs too, where they are damaged"
_UNPROVEN = "have no hash that can be computed here, or backups say different things of them"
_LOCKED = "are locked"


@dataclass(frozen=True, slots=True)
class StreamMigration:
    """What a migration does to one stream.

    :param objects: path -> bytes of each object that is put into a pack.
    :param left: path -> bytes of each object that lies in a pack already, and has still to be deleted.
    :param stay: why small objects stay as they are -> how many.
    :param left_alone: why nothing of this stream is touched, or ``None``.
    :param remarks: what Object Lock protects, or that it is not known.
    """

    name: str
    objects: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    stay: Mapping[str, int] = field(default_factory=dict)
    left_alone: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes that are put into packs."""
        return sum(self.objects.values())

    @property
    def packs(self) -> int:
        """About how many packs are written."""
        return -(-self.bytes // PACK_SIZE) if self.objects else 0

    @property
    def requests(self) -> int:
        """About how many requests that takes: reads, packs written and read back twice, deletions, and the records."""
        rounds = -(-len(self.objects) // MOVED_AT_ONCE)
        return 2 * len(self.objects) + len(self.left) + 3 * self.packs + 25 * (rounds or bool(self.left))

    def to_json(self) -> dict[str, Any]:
        """The stream as plain JSON."""
        return {
            "name": self.name,
            "objects": len(self.objects),
            "bytes": self.bytes,
            "packs": self.packs,
            "requests": self.requests,
            "left_objects": len(self.left),
            "stay": dict(self.stay),
            "left_alone": self.left_alone,
        }


@dataclass(frozen=True, slots=True)
class MigratePlan:
    """What a migration would do.

    :param repository: URI of the repository.
    :param format: its format.
    :param streams: what would be packed, by stream.
    """

    repository: str
    format: int
    streams: tuple[StreamMigration, ...]

    @property
    def objects(self) -> int:
        """How many objects are put into packs."""
        return sum(len(s.objects) for s in self.streams)

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return sum(s.bytes for s in self.streams)

    @property
    def verdict(self) -> Verdict:
        """Always ``SAFE``: what is deleted was read where it is now."""
        return Verdict.SAFE

    @property
    def findings(self) -> tuple[str, ...]:
        """Streams that are left alone, and why."""
        return tuple(f"{s.name}: {s.left_alone}" for s in self.streams if s.left_alone)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What stays as it is, and why."""
        return tuple(f"{s.name}: {remark}" for s in self.streams for remark in _remarks(s))

    @property
    def fingerprint(self) -> str:
        """Changes with the objects."""
        going = sorted(path for s in self.streams for path in (*s.objects, *s.left))
        return fingerprint_of("\n".join([self.repository, str(self.format), *going]))

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order, for each stream."""
        left = sum(len(s.left) for s in self.streams)
        if not self.objects and not left:
            return ()
        packs, requests = sum(s.packs for s in self.streams), sum(s.requests for s in self.streams)
        raised = "make it a repository of format 2: earlier releases refuse it from then on"
        what = f"{self.objects} objects, {format_size(self.bytes)}"
        packed = f"put {what}, into about {packs} packs, with about {requests} requests"
        return (
            *((raised,) if self.format < 2 else ()),
            *(
                (packed, "read the packs back, and write records that say where each content is")
                if self.objects
                else ()
            ),
            "leave a stream for the next time where a backup or restore is at work that began before",
            f"read all contents where they are now, and delete {self.objects + left} objects",
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "kind": "migrate",
            "repository": self.repository,
            "format": self.format,
            "verdict": self.verdict.value,
            "objects": self.objects,
            "bytes": self.bytes,
            "streams": [s.to_json() for s in self.streams],
            "findings": list(self.findings),
            "remarks": list(self.remarks),
            "steps": list(self.steps),
            "fingerprint": self.fingerprint,
        }

    def to_markdown(self) -> str:
        """The plan for people."""

        def row(s: StreamMigration) -> tuple[str, ...]:
            why = "; ".join(filter(None, [s.left_alone, *_remarks(s)]))
            return s.name, f"{len(s.objects):,}", format_size(s.bytes), f"{s.packs:,}", f"{len(s.left):,}", why

        columns = ("stream", "objects", "size", "packs", "packed before, to be deleted", "stays")
        return (
            f"### Migration to packs\n\n{markdown.code(self.repository)}: {self.objects:,} objects, {format_size(self.bytes)}\n\n"
            f"{markdown.table(columns, map(row, self.streams))}\n\n{markdown.steps(self.steps)}".rstrip()
            + "\n"
        )


def _remarks(stream: StreamMigration) -> tuple[str, ...]:
    return (*stream.remarks, *(f"{count} objects {why}: they stay" for why, count in stream.stay.items()))


@dataclass(frozen=True, slots=True)
class MigrateOutcome:
    """A migration that was carried out.

    :param objects: objects that lie in packs now.
    :param bytes: their bytes.
    :param packs: packs that were written.
    :param deleted: objects that were deleted.
    :param waits_for: stream -> why some of its objects are still there, such as who is at work; the same command continues.
    """

    plan_id: str
    objects: int
    bytes: int
    packs: int
    deleted: int
    waits_for: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "objects": self.objects,
            "bytes": self.bytes,
            "packs": self.packs,
            "deleted": self.deleted,
            "waits_for": {name: list(who) for name, who in self.waits_for.items()},
        }


def plan_migrate(repository: Repository, *, name: str | None = None) -> MigratePlan:
    """Plan a migration; reads only.

    :param name: only this stream.
    :raises NoSuchBackupError: nothing is there of that name.
    :raises RepositoryError: it lies inside another repository, or inside a checkpoint.
    """
    refuse_inside(repository.location)
    names = stream_names(repository, name)
    streams = tuple(_of_stream(repository, each) for each in names)
    return MigratePlan(repository.location.uri, repository.format, streams)


def _of_stream(repository: Repository, name: str) -> StreamMigration:
    # In this order: what a backup adds between the two reads is in `listed` and not in `there`, not the other way round.
    there = objects_there(repository, name)
    # A file of its own that has the path of a content in a pack is nothing that a backup lists: somebody has planted it.
    alone = (f for path, f in there.items() if pack_size(path) is None and part_of(path) is None)
    small = {file.path: file.size for file in alone if file.size < PACKED_BELOW}
    listed = listed_by(repository, name, entries_of=small)
    if listed.unreadable:
        return StreamMigration(name, left_alone=f"what its backups need is not known: {listed.unreadable[0]}")
    places = Places.read(repository, name, there, read_damaged(repository.location, name))
    if places.moved.unreadable:
        return StreamMigration(name, left_alone=f"{places.moved.unreadable[0]}. {WITHOUT_RECORD}")
    objects: dict[str, int] = {}
    left: dict[str, int] = {}
    stay = dict.fromkeys((_DAMAGED, _DAMAGED_PACK, _UNPROVEN, _LOCKED), 0)
    for path, entry in listed.entries.items():
        if path in places.damaged:
            stay[_DAMAGED] += 1
        elif places.of(path) != path:
            left[path] = small[path]
        elif entry is None or not is_computable(entry) or entry.size != small[path]:
            stay[_UNPROVEN] += 1
        elif path in places.moved.paths:
            stay[_DAMAGED_PACK] += 1
        else:
            objects[path] = small[path]
    locked, unknown = locks_on(repository.location, [*objects, *left], now=datetime.now(UTC))
    if unknown:
        return StreamMigration(name, left_alone=unknown)
    stay[_LOCKED] = len(locked)
    remarks = (f"the last lock ends {format_time(max(locked.values()))}",) if locked else ()
    return StreamMigration(
        name,
        {path: size for path, size in objects.items() if path not in locked},
        {path: size for path, size in left.items() if path not in locked},
        {why: count for why, count in stay.items() if count},
        remarks=remarks,
    )


def apply_migrate(
    place: Location,
    plan: MigratePlan,
    *,
    made_by: str = "",
    abandoned_after: timedelta = ABANDONED_AFTER,
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
) -> MigrateOutcome:
    """Put objects into packs, and delete them.

    :param place: the repository, with the key if it is encrypted, as for :meth:`Repository.open`.
    :param plan: from :func:`plan_migrate`.
    :param made_by: the run or user that does it.
    :param abandoned_after: a backup or restore that began longer ago and has not ended is given up: it cannot end any
        more. By the store's own clock.
    :param workers: requests under way at once.
    :param on_progress: called after each content that is put into a pack.
    :raises StorageError: reading or writing failed; run the same command again to continue.
    """
    repository = Repository.open(place)
    repository.refuse_unsigned()
    plan_id = new_plan_id()
    if plan.steps and repository.format < 2:
        repository = raise_format(place, repository, 2)
    meter = Meter(on_progress, files=plan.objects, size=plan.bytes)
    total = MigrateOutcome(plan_id, 0, 0, 0, 0, {})
    for stream in plan.streams:
        if stream.left_alone is None:
            total = _migrated(repository, stream, total, abandoned_after, made_by, workers, meter.add)
    if total.objects or total.deleted:
        repository.record(plan_id, {"kind": "migrate", "made_by": made_by, **total.to_json()})
    return total


def _migrated(
    repository: Repository,
    stream: StreamMigration,
    total: MigrateOutcome,
    abandoned_after: timedelta,
    made_by: str,
    workers: int,
    done: OnFile,
) -> MigrateOutcome:
    """Migrate one stream, a record at a time; what it took is added to the total."""
    name = stream.name
    left, going = dict(stream.objects), dict(stream.left)
    waits_for: dict[str, None] = {}
    while left or going:
        if left:
            try:
                packed = pack_anew(repository, name, left, made_by=made_by, workers=workers, done=done)
            except (FileExistsError, BackupRunningError) as e:
                waits_for[f"another migration or prune, which writes packs at this moment ({e})"] = None
                break
            waits_for |= dict.fromkeys(damaged_in_words(packed.damaged))
            moved = {path: left[path] for path in packed.going}
            left = {path: size for path, size in left.items() if path not in packed.tried}
            total = replace(
                total,
                objects=total.objects + len(moved),
                bytes=total.bytes + sum(moved.values()),
                packs=total.packs + packed.packs,
            )
            going |= moved
        if going:
            deleted, waiting = delete_unlisted(repository, name, going, abandoned_after, made_by, workers)
            waits_for |= dict.fromkeys(waiting)
            total = replace(total, deleted=total.deleted + len(deleted))
            going = {}
    return replace(total, waits_for={**total.waits_for, name: tuple(waits_for)}) if waits_for else total
