"""What becomes known of a backup after it was made: holds, and what verifying it found.

Manifests are immutable. So each fact is a new file beside them, numbered in the order in which they came, whatever the
clocks say; a repository that only takes new files can keep them::

    holds/<name>/<backup id>/<nnnnnn>.json               {"event": "held" | "released" | "going", …}
    verified/<name>/<backup id>/<nnnnnn>-<outcome>.json  outcome: contents, structure, damaged or unread

Notes of what was verified say which backups are good ones. Which are damaged follows from the objects that they list: see
:mod:`~airflow_ckpt_provider.backup.damaged`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from airflow_ckpt_provider.backup.damaged import VERIFIED, Damage, learn_damaged
from airflow_ckpt_provider.backup.disputed import to_note
from airflow_ckpt_provider.backup.manifest import Manifest, manifest_path
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.numbered import leading_number, number_of, numbered
from airflow_ckpt_provider.backup.reads import note_reads
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import Learned, VerifyReport
from airflow_ckpt_provider.errors import RefusedError, RepositoryError, StorageError, UntrustedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.units import shown_time

log = logging.getLogger(__name__)

_HOLDS = "holds"


class HoldEvent(StrEnum):
    """What happened to a backup's hold."""

    HELD = "held"
    RELEASED = "released"
    #: An expire is about to remove it; it cannot be held any more.
    GOING = "going"


@dataclass(frozen=True, slots=True)
class Hold:
    """The newest word on a backup's hold.

    :param number: of the event; the next one is one more.
    :param expires: ids of the expires that are about to remove it, for ``GOING``. Each adds its own to those that it finds.
    :param is_new: this call has written it; else it was there already, or there is none.
    """

    event: HoldEvent
    number: int
    reason: str
    made_by: str
    at: str
    expires: tuple[str, ...] = ()
    is_new: bool = field(default=False, compare=False)

    @property
    def is_held(self) -> bool:
        """Whether the backup must stay."""
        return self.event is HoldEvent.HELD

    def to_json(self) -> dict[str, Any]:
        """The word as plain JSON."""
        return {"held": self.is_held, "reason": self.reason, "made_by": self.made_by, "at": self.at}


class Verified(StrEnum):
    """What the newest checks of a backup found."""

    #: Everything is there, with its size; not all contents were read.
    STRUCTURE = "structure"
    #: All contents were read as well.
    CONTENTS = "contents"
    DAMAGED = "damaged"
    #: Something could not be read: that makes it neither a good backup nor a damaged one.
    UNREAD = "unread"

    @classmethod
    def now(cls, noted: Verified | None, *, is_damaged: bool) -> Verified | None:
        """What is known of a backup now; ``None``: nothing.

        :param noted: what its newest checks found. One that was damaged then may have been repaired since.
        :param is_damaged: whether damage of it is known that nobody has repaired.
        """
        if is_damaged:
            return cls.DAMAGED
        return None if noted is cls.DAMAGED else noted


def hold(repository: Repository, manifest: Manifest, *, reason: str, made_by: str = "") -> Hold:
    """Keep a backup whatever the policy says, until it is released.

    :param reason: why; whoever wants to release it will read it.
    :raises RefusedError: there is no reason; an expire is removing the backup at this moment.
    """
    if not reason.strip():
        raise RefusedError("a hold without a reason helps nobody", hint="say why with --reason")
    return _set(repository, manifest, HoldEvent.HELD, reason, made_by)


def release(
    repository: Repository, manifest: Manifest, *, reason: str, made_by: str = "", dead_expires: Collection[str] = ()
) -> Hold:
    """Release a hold; without one nothing is changed.

    :param reason: why it is not needed any more.
    :param dead_expires: ids of expires whose processes have ended. What these were about to remove stays then.
    :raises RefusedError: another expire is removing the backup.
    """
    return _set(repository, manifest, HoldEvent.RELEASED, reason, made_by, dead_expires)


def _set(
    repository: Repository,
    manifest: Manifest,
    event: HoldEvent,
    reason: str,
    made_by: str,
    dead_expires: Collection[str] = (),
) -> Hold:
    while True:
        now = hold_of(repository, manifest.name, manifest.backup_id)
        if event is HoldEvent.HELD and now and now.event is HoldEvent.GOING:
            raise RefusedError(
                f"backup {manifest.backup_id} of {manifest.name} is being removed ({now.made_by}, {shown_time(now.at)})",
                hint="hold another one. If the process of that expire is dead, release this one first: the refusal of "
                "`airflow-ckpt release` says how",
            )
        if event is HoldEvent.RELEASED and now and now.event is HoldEvent.GOING and set(now.expires) - {*dead_expires}:
            raise RefusedError(
                f"backup {manifest.backup_id} of {manifest.name} is being removed by expire {', '.join(now.expires)} "
                f"(noted by {now.made_by}, {shown_time(now.at)})",
                hint="wait until it has ended. If its process is dead, run the same expire again, or keep the backup with "
                + " ".join(f"--expire-is-dead {each}" for each in now.expires),
            )
        if (now.event if now else HoldEvent.RELEASED) is event:
            return now or Hold(event, 0, reason, made_by, "")
        if made := write_event(repository, manifest.name, manifest.backup_id, now, event, reason, made_by):
            # Written before this look: an expire that had not seen it would have had to take the same number.
            repository.read_manifest(manifest.name, manifest.backup_id, with_files=False)
            return replace(made, is_new=True)


def write_event(
    repository: Repository,
    name: str,
    backup_id: str,
    last: Hold | None,
    event: HoldEvent,
    reason: str,
    made_by: str,
    expires: tuple[str, ...] = (),
) -> Hold | None:
    """Add an event after the last that was seen; ``None`` if somebody else was faster."""
    number = last.number + 1 if last else 1
    at = datetime.now(UTC).isoformat(timespec="seconds")
    document: dict[str, Any] = {"event": event.value, "reason": reason, "made_by": made_by, "at": at}
    document |= {"expires": list(expires)} if expires else {}
    try:
        repository.location.create(f"{_HOLDS}/{name}/{backup_id}/{numbered(number)}", json.dumps(document).encode())
    except FileExistsError:
        return None
    return Hold(event, number, reason, made_by, at, expires)


def hold_of(repository: Repository, name: str, backup_id: str) -> Hold | None:
    """The newest word on one backup, by one listing and one read; ``None``: it was never held.

    :raises RepositoryError: a hold cannot be read. Nothing may be removed then.
    """
    return holds(repository, name, backup_id=backup_id).get(backup_id)


def holds(repository: Repository, name: str, *, backup_id: str | None = None) -> dict[str, Hold]:
    """The newest word on each backup of a stream that was ever held: backup id -> hold.

    :param backup_id: the only one to ask about; ``None``: all of the stream's.
    :raises RepositoryError: a hold cannot be read. Nothing may be removed then.
    """
    events: dict[str, list[tuple[int, str]]] = {}
    directory = f"{_HOLDS}/{checked_name(name)}" + (f"/{backup_id}" if backup_id else "")
    for path in repository.whole_files(directory):
        number = number_of(path)
        if number is not None:
            events.setdefault(path.split("/")[-2], []).append((number, path))
        elif repository.location.is_trusted(path):
            raise RepositoryError(
                f"{path} has no number of an event: whether it holds or releases a backup is not known",
                hint="find out who wrote it, then delete it",
            )

    def read(item: tuple[str, list[tuple[int, str]]]) -> tuple[str, Hold] | None:
        backup_id, numbers = item
        newest = max(numbers)[0]
        for _, path in sorted(numbers, reverse=True):
            trusted = True
            try:
                try:
                    data = repository.location.read_document(path)
                except UntrustedError as e:
                    data, trusted = e.data, False
                value = load_json(data)
                found = _parsed(value, newest)
            except FileNotFoundError:
                return None  # another expire has removed the backup since, and forgotten its notes
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                if trusted:
                    raise RepositoryError(
                        f"{path} cannot be read: {e}", hint="it holds or releases a backup; delete or fix it by hand"
                    ) from e
                found = Hold(HoldEvent.RELEASED, newest, "", "", "")
            if trusted or found.is_held:  # somebody may hold a backup, and only who can sign may release one
                return backup_id, found
            log.warning("%s is not signed by a trusted key: it releases nothing", path)
        return backup_id, Hold(HoldEvent.RELEASED, newest, "", "", "")

    return dict(filter(None, in_parallel(read, events.items())))


def _parsed(value: Mapping[str, Any], number: int) -> Hold:
    """A word as it was stored.

    :raises ValueError: it is none; or another error of those that a wrong type gives.
    """
    event, reason = HoldEvent(value["event"]), value["reason"]
    expires: list[str] = []
    if event is HoldEvent.GOING:  # earlier versions wrote no list; their reason names the expire
        expires = value.get("expires") or [reason.removeprefix("expire ")]
        if not isinstance(expires, list) or not all(isinstance(each, str) for each in expires):
            raise ValueError("an id of an expire is none")
    return Hold(event, number, reason, value["made_by"], value["at"], tuple(expires))


def note_verification(repository: Repository, report: VerifyReport) -> bool:
    """Note what verifying a backup found, where these credentials may write; return whether it was noted.

    Without the note an expire does not know that this backup is a good one, and nobody that it is a damaged one.
    """
    try:
        record_verification(repository, report)
    except (StorageError, RefusedError) as e:
        log.warning("that backup %s was verified is not noted: %s", report.backup_id, e.message)
        return False
    return True


def record_verification(repository: Repository, report: VerifyReport) -> None:
    """Note what verifying a backup found.

    :raises StorageError: these credentials may not write.
    """
    if learned := report.learned:
        damaged = to_note(repository, report.name, report.backup_id, learned.damaged)
        record_learned(repository, report.name, replace(learned, damaged=damaged))
    else:  # made by hand: all that is known is what it says
        path = manifest_path(report.name, report.backup_id)
        damaged = {finding.object or path: finding.problem for finding in report.findings if finding.is_damage}
        learn_damaged(repository.location, report.name, damaged=damaged, whole=(), since=0)
    outcome = Verified.STRUCTURE
    if report.damaged:
        outcome = Verified.DAMAGED
    elif not report.ok:
        outcome = Verified.UNREAD
    elif report.contents_read:
        outcome = Verified.CONTENTS
    record_outcome(repository, report.name, report.backup_id, outcome, report.to_json())


def record_learned(repository: Repository, name: str, learned: Learned) -> None:
    """Note which objects are damaged, which no longer are, and which were read.

    :param name: name of the stream.
    :raises StorageError: these credentials may not write.
    """
    place, before = repository.location, learned.before
    # First: who is stopped behind this has lost no damage.
    learn_damaged(place, name, damaged=learned.damaged, whole=learned.whole, since=before.damaged.number)
    read = (entry.object for entry in learned.contents.read())
    note_reads(place, name, before.reads, read, at=before.at, there=learned.there)


def record_outcome(
    repository: Repository, name: str, backup_id: str, outcome: Verified, report: Mapping[str, Any]
) -> None:
    """Note what a verify found of one backup.

    :param report: what it found, as plain JSON.
    :raises StorageError: these credentials may not write.
    """
    directory = f"{VERIFIED}/{name}/{backup_id}"
    document = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **report}
    number = max((leading_number(f.path) for f in repository.location.list(directory).files), default=0)
    while True:
        number += 1
        try:
            path = f"{directory}/{number:06d}-{outcome.value}.json"
            repository.location.create(path, json.dumps(document).encode())
            return
        except FileExistsError:  # two at once: this one comes after
            continue


def note_damage(repository: Repository, manifest: Manifest, findings: Iterable[Damage]) -> None:
    """Note the damage that somebody else than a verify has come upon, where these credentials may write.

    :param manifest: the backup.
    :param findings: what was found, from reading it.
    """
    name = manifest.name
    damaged = {damage.object: damage.problem for damage in findings if damage.is_damage and damage.object}
    if not damaged:
        return
    try:
        noted = to_note(repository, name, manifest.backup_id, damaged)
        learn_damaged(repository.location, name, damaged=noted, whole=(), since=0)
    except (StorageError, RefusedError) as e:
        log.warning("that objects of %s are damaged is not noted: %s", name, e.message)


def verifications(repository: Repository, name: str, *, backup_id: str | None = None) -> dict[str, Verified]:
    """The most that is known since the last damage was found, from the names of the notes: backup id -> what.

    That it is not ``DAMAGED`` does not say that it is not damaged: other backups may list the same objects. See
    :meth:`~airflow_ckpt_provider.backup.damaged.DamagedObjects.of`.

    :param backup_id: the only one to ask about; ``None``: all of the stream's.
    """
    found: dict[str, Verified] = {}
    directory = f"{VERIFIED}/{checked_name(name)}" + (f"/{backup_id}" if backup_id else "")
    paths = sorted(repository.whole_files(directory), key=leading_number)
    place = repository.location
    trusted = in_parallel(place.is_trusted, paths) if place.checks_signatures else [True] * len(paths)
    for path, is_trusted in zip(paths, trusted, strict=True):
        backup_id = path.split("/")[-2]
        outcome = path.rpartition("-")[2].removesuffix(".json")
        if outcome not in set(Verified) - {Verified.UNREAD} or not (is_trusted or outcome == Verified.DAMAGED):
            continue
        if found.get(backup_id) is not Verified.CONTENTS or outcome == Verified.DAMAGED:
            found[backup_id] = Verified(outcome)
    return found


def forget_notes(repository: Repository, name: str, backup_ids: Iterable[str]) -> None:
    """Delete the notes about backups that are gone."""
    gone = set(backup_ids)
    for kind in (_HOLDS, VERIFIED):
        paths = [p for p in repository.location.walk(f"{kind}/{checked_name(name)}") if p.split("/")[-2] in gone]
        in_parallel(repository.location.delete, paths)


def noted_ids(repository: Repository, name: str) -> set[str]:
    """Ids of backups that there are notes about."""
    return {
        i for kind in (_HOLDS, VERIFIED) for i in repository.location.list(f"{kind}/{checked_name(name)}").directories
    }
