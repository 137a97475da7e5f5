"""The backups of one stream as points in time, with what is known of each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_ckpt_provider.backup.damaged import DamagedObjects, read_damaged
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.notes import HoldEvent, Verified, holds, verifications
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import DamagedBackup, readable
from airflow_ckpt_provider.page.fields import inner, time

#: The newest backups of a stream that are shown.
SHOWN = 200


class Standing(StrEnum):
    """What is known of a backup."""

    #: All contents were read.
    WHOLE = "whole"
    #: Nobody has read all its contents; no damage is known.
    NOT_READ = "not read"
    DAMAGED = "damaged"
    #: An expire is about to remove it.
    EXPIRING = "expiring"
    #: Its manifest could not be read, and may be whole.
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class BackupPoint:
    """One backup.

    :param manifest: what it says of itself, without its files; ``None`` where it cannot be read.
    :param batch_time: when its newest batch was planned; where that is not known, when the backup was finished.
    :param held: why it is held; empty: it is not.
    :param why: what is damaged, or could not be read.
    :param verified: the most that verifying has found; ``None``: nobody has looked.
    """

    name: str
    backup_id: str
    standing: Standing
    manifest: Manifest | None
    batch_time: datetime | None
    held: str = ""
    why: tuple[str, ...] = ()
    verified: Verified | None = None

    @property
    def can_be_restored(self) -> bool:
        """Whether no damage is known."""
        return self.standing is not Standing.DAMAGED and self.manifest is not None


@dataclass(frozen=True, slots=True)
class Backups:
    """The backups of a stream.

    :param points: the newest ones, oldest first.
    :param older: how many there are besides.
    """

    points: tuple[BackupPoint, ...]
    older: int


def read_backups(repository: Repository, name: str, *, most: int = SHOWN) -> Backups:
    """Read the newest backups of a stream and what is noted about them.

    :param name: name of the stream; one without backups has none.
    :param most: how many.
    :raises CkptError: the repository cannot be read.
    """
    ids = repository.backup_ids(name)
    points = read_points(repository, name, ids[-most:])
    return Backups(points, len(ids) - len(points) if points else 0)


def read_points(repository: Repository, name: str, ids: tuple[str, ...]) -> tuple[BackupPoint, ...]:
    """Read some backups of a stream and what is noted about them; one that does not exist is left out.

    :param repository: the repository.
    :param name: name of the stream.
    :param ids: of the backups.
    :raises CkptError: the repository cannot be read.
    """
    there = list(readable(repository, name, ids, with_files=False))
    if not there:
        return ()
    known, verified = read_damaged(repository.location, name), verifications(repository, name)
    events = holds(repository, name)
    points = []
    for each in there:
        event = events.get(each.backup_id)
        held = (event.reason or "held") if event and event.is_held else ""
        is_going = event is not None and event.event is HoldEvent.GOING
        points.append(_point(each, known, verified, is_going=is_going, held=held))
    return tuple(points)


def read_point(repository: Repository, name: str, backup_id: str, *, has_records: bool) -> BackupPoint | None:
    """Read one backup and what is noted about it, but not what holds it: one document and one listing, where nothing is damaged.

    :param has_records: whether there are records of damage to the stream.
    :return: ``None``: it does not exist.
    :raises CkptError: the repository cannot be read.
    """
    for each in readable(repository, name, (backup_id,), with_files=False):
        known = read_damaged(repository.location, name) if has_records else DamagedObjects()
        verified = verifications(repository, name, backup_id=backup_id)
        return _point(each, known, verified, is_going=False, held="")
    return None


def _point(
    each: Manifest | DamagedBackup,
    known: DamagedObjects,
    verified: dict[str, Verified],
    *,
    is_going: bool,
    held: str,
) -> BackupPoint:
    if isinstance(each, DamagedBackup):
        known_as = Standing.UNKNOWN if each.is_unread else Standing.DAMAGED
        return BackupPoint(each.name, each.backup_id, known_as, None, None, held, each.problems)
    why = tuple(damage.message for damage in known.of(each).values())
    planned = time(inner(each.facts.get("batch_times")).get(str(each.batch_id)))
    note = Verified.now(verified.get(each.backup_id), is_damaged=bool(why))
    if note is Verified.DAMAGED:
        standing = Standing.DAMAGED
    elif is_going:
        standing = Standing.EXPIRING
    else:
        standing = Standing.WHOLE if note is Verified.CONTENTS else Standing.NOT_READ
    return BackupPoint(each.name, each.backup_id, standing, each, planned or each.created, held, why, note)
