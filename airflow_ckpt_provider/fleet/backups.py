"""The last good backup of each of many streams in one repository."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.backup.damaged import DamagedObjects, read_damaged, streams_with_damage_known
from airflow_ckpt_provider.backup.drills import Drill, drilled_names, last_drill
from airflow_ckpt_provider.backup.manifest import CLOCKS_DIFFER, PINNED_AT, Manifest
from airflow_ckpt_provider.backup.notes import Verified, verifications
from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError, RefusedError, command
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import zoned_time

#: How far back a good one is looked for behind damaged ones.
_BACK = 20


@dataclass(frozen=True, slots=True)
class LastBackup:
    """The newest backup of a stream that can be read and was not found damaged.

    Of the manifest only this is kept: those of a fleet together would fill the memory with names of files.

    :param name: name of the stream.
    :param backup_id: its id.
    :param batch_id: the newest batch that it can restore.
    :param created: when it was finished, in UTC.
    :param as_of: when its position was read: all that was committed until then is in it. Of a manifest of an earlier version:
        when it was finished.
    :param checkpoint: URI of the checkpoint that it was taken of.
    :param query_id: the streaming query's id.
    :param files: number of its files.
    :param size: their bytes.
    :param facts: what its manifest says of the sources, for the guards.
    :param verified: what verifying it found; ``None``: nobody has looked.
    :param damaged: ids of newer ones that are damaged.
    """

    name: str
    backup_id: str
    batch_id: int
    created: datetime
    as_of: datetime
    checkpoint: str
    query_id: str
    files: int
    size: int
    facts: Mapping[str, Any]
    verified: Verified | None = None
    damaged: tuple[str, ...] = ()

    @classmethod
    def of(cls, m: Manifest, verified: Verified | None, damaged: Sequence[str]) -> LastBackup:
        """Take what is needed of a manifest."""
        about = (m.name, m.backup_id, m.batch_id, m.created, m.complete_at, m.checkpoint, m.query_id)
        return cls(*about, len(m.files), m.bytes, m.facts, verified, tuple(damaged))

    def age(self, now: datetime) -> float | None:
        """Seconds since its position was read; ``None`` if a clock says that it will be."""
        passed = now - self.as_of
        return None if passed < -CLOCKS_DIFFER else max(passed.total_seconds(), 0.0)

    @property
    def planned(self) -> str | None:
        """When its newest batch was planned, as its manifest has it; ``None``: it is not known."""
        times = self.facts.get("batch_times")
        return times.get(str(self.batch_id)) if isinstance(times, Mapping) else None

    @property
    def held_until(self) -> datetime | None:
        """Until when it certainly has all that was committed, if its manifest does not say when its position was read.

        A backup can take hours. Its newest batch was committed after it was planned. ``None``: see :attr:`as_of`.
        """
        return None if PINNED_AT in self.facts or self.planned is None else zoned_time(self.planned)

    def to_json(self, now: datetime) -> dict[str, Any]:
        """The backup in a few plain values."""
        age = self.age(now)
        return {
            "name": self.name,
            "backup_id": self.backup_id,
            "batch_id": self.batch_id,
            "created": self.created.astimezone(UTC).isoformat(),
            "as_of": self.as_of.astimezone(UTC).isoformat(),
            "age_seconds": None if age is None else round(age, 3),
            "verified": self.verified.value if self.verified else None,
            "files": self.files,
            "bytes": self.size,
            "damaged": list(self.damaged),
        }


class BackupsOfFleet:
    """Finds the backups of streams: by the name they were given, else by the checkpoint that manifests say they are of.

    Four listings at the start. Each stream then costs a listing of its backups and a read of its newest manifest; where one was
    ever verified, two listings more, of what is damaged and of what verifying the newest found. A newer one that is damaged
    costs two reads more. Names that no stream has are looked through the same way, once, when there is a stream without backups
    under its own, or roots were searched.

    :param repository: the repository.
    :param names: the names that streams were given.
    """

    def __init__(self, repository: Repository, names: Collection[str]) -> None:
        self._repository = repository
        self._there = frozenset(repository.names())
        self._verified = streams_with_damage_known(repository.location)
        self._drilled = drilled_names(repository)
        self.others = tuple(sorted(n for n in self._there - set(names) if not n.endswith(SAFETY_SUFFIX)))
        self._by_checkpoint: dict[str, LastBackup] | None = None
        self._unread: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def last_good(self, name: str, checkpoint: Location, *, query_id: str | None) -> LastBackup | None:
        """The last good backup of a stream; ``None``: there is none.

        :param name: its name.
        :param checkpoint: its checkpoint. A backup of another one is not this one's, be it under its name.
        :param query_id: id of its query, to say whether that other one is a copy of it.
        :raises RefusedError: those under its name are of another stream; or all that were read are damaged; or those of other
            names cannot be read, and may be of this one.
        """
        found = self._newest(name)
        canonical = checkpoint.store.canonical
        if found and canonical(found.checkpoint) == canonical(checkpoint.uri):
            return found
        other = self.elsewhere().get(checkpoint.uri)
        if other is None and found is not None:
            ids = read_query_ids(query_id, place=checkpoint, repository=self._repository, name=name)
            same = ids is not None and found.query_id in ids.all
            whose = "the same query in another place" if same else "another stream"
            raise RefusedError(
                f"the backups named {name!r} are of {whose}: of {found.checkpoint}",
                hint="back it up from where it is now" if same else "back this one up under a name of its own",
            )
        if other is None and self._unread:
            raise RefusedError(
                f"no backup is named {name!r}, and those that may have another name cannot all be read: "
                f"{'; '.join(self._unread[:3])}{' …' if len(self._unread) > 3 else ''}",
                hint=f"see `{command('check', self._repository.location)}`",
            )
        return other

    def last_drill(self, name: str) -> Drill | None:
        """The newest proof that a stream's backup could be run on; ``None``: there is none.

        :raises RefusedError: the record is damaged.
        """
        return last_drill(self._repository, name) if name in self._drilled else None

    def elsewhere(self) -> Mapping[str, LastBackup]:
        """By the checkpoint, the last good backups under names that no stream was given."""
        with self._lock:
            if self._by_checkpoint is None:
                found = in_parallel(self._readable, self.others, workers=16)
                self._unread = tuple(each for each in found if isinstance(each, str))
                there = sorted((e for e in found if isinstance(e, LastBackup)), key=lambda each: each.created)
                self._by_checkpoint = {each.checkpoint: each for each in there}  # of several names the newest
            return self._by_checkpoint

    def _readable(self, name: str) -> LastBackup | str | None:
        """The last good one of a name, or why it is not known."""
        try:
            return self._newest(name)
        except RefusedError as e:
            return e.message

    def _newest(self, name: str) -> LastBackup | None:
        if name not in self._there:
            return None
        ids = self._repository.backup_ids(name)
        known = read_damaged(self._repository.location, name) if name in self._verified else DamagedObjects()
        damaged: list[str] = []
        for backup_id in reversed(ids[-_BACK:]):
            try:
                manifest = self._repository.read_manifest(name, backup_id, with_files=False)
                if not known.of(manifest):
                    return LastBackup.of(manifest, self._verified_as(name, backup_id), damaged)
            except NoSuchBackupError:
                continue  # expired since it was listed
            except DamagedBackupError:
                pass
            damaged.append(backup_id)
        if damaged:
            raise RefusedError(
                f"the newest {len(damaged)} backups named {name!r} are damaged"
                if len(damaged) > 1
                else f"the only backup named {name!r} is damaged",
                hint=f"take a new one, and see `{command('check', self._repository.location)}`",
            )
        return None

    def _verified_as(self, name: str, backup_id: str) -> Verified | None:
        """What verifying a backup found that is not damaged; of one that was, and was repaired, nothing."""
        if name not in self._verified:
            return None
        found = verifications(self._repository, name, backup_id=backup_id).get(backup_id)
        return Verified.now(found, is_damaged=False)
