"""Deleting objects that no manifest lists, while backups, restores and other prunes continue.

1. Name what will be deleted in a mark. Backups that begin from now on leave it alone.
2. See who began before: while one of them is at work, nothing of this stream is deleted. The mark stays; the next prune
  continues.
3. Read all manifests again: what one of those backups has listed meanwhile stays. List the objects again: nothing is deleted that
   is not among them, and nothing that the plan does not show.
4. See that the mark is still there; delete; take the mark away.

No step asks a clock, but for how long a backup without an end counts as alive, and that is the store's own: the time of
its claim against that of the mark. Killed after any step this leaves objects that no manifest lists, and a mark, with
which the next prune continues. Why nothing can go wrong where processes are suspended for days between two steps is in
:mod:`~airflow_ckpt_provider.backup.claims` and :mod:`~airflow_ckpt_provider.backup.prune_marks`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from airflow_ckpt_provider.backup.claims import OpenClaim, give_up, open_claims, tidy_claims
from airflow_ckpt_provider.backup.contents import Listed, Places, listed_by, objects_there
from airflow_ckpt_provider.backup.damaged import DamagedObjects, forget_damaged, note_damaged, read_damaged
from airflow_ckpt_provider.backup.file_entry import OBJECTS
from airflow_ckpt_provider.backup.immutability import locks_on
from airflow_ckpt_provider.backup.manifest import manifest_path
from airflow_ckpt_provider.backup.notes import forget_notes, noted_ids
from airflow_ckpt_provider.backup.prune_marks import finish, read_marks, write_mark, written_at
from airflow_ckpt_provider.backup.reads import tidy_reads
from airflow_ckpt_provider.backup.repack import tidy_moved, unproven
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import safe_relative
from airflow_ckpt_provider.storage.packs import file_of
from airflow_ckpt_provider.units import format_time

log = logging.getLogger(__name__)


def delete_unlisted(
    repository: Repository, name: str, named: Collection[str], abandoned_after: timedelta, made_by: str, workers: int
) -> tuple[list[str], tuple[str, ...]]:
    """Delete the objects of a stream that a plan names, as far as no manifest lists them by now.

    :param name: name of the stream.
    :param named: paths of the objects.
    :param abandoned_after: a backup or restore that began longer ago and has not ended is given up.
    :param made_by: the run or user that does it.
    :param workers: requests under way at once.
    :return: what was deleted; and who has to be waited for, or why something stays.
    :raises RefusedError: an object is none of the stream; nothing was deleted.
    """
    place = repository.location
    damaged = read_damaged(place, name)  # before the mark: who begins behind it lists none of these
    marks = read_marks(place, name, for_prune=True)
    # Nothing but what the plan shows: that has what an earlier prune had named. What a later one has named may stay, for its mark
    # goes and it deletes nothing without that; and no backup takes up what is of an older generation and listed nowhere.
    named = set(named)
    _check_objects(name, named)
    if not named and not marks.unfinished:
        _tidy(repository, name, listed_by(repository, name), DamagedObjects())
        return [], ()
    number = write_mark(place, name, marks, named, made_by=made_by)
    waiting = _at_work(repository, name, number, abandoned_after)
    if waiting:
        return [], tuple(claim.words(place) for claim in waiting)
    listed = listed_by(repository, name)
    if listed.unreadable:
        return [], listed.unreadable
    if number not in read_marks(place, name, for_prune=True).unfinished:
        # This process was suspended, and another prune has carried the mark to its end: what it named may be in use again.
        return [], ("another prune, which has done this one's work",)
    there = objects_there(repository, name)
    places = Places.read(repository, name, there, damaged)
    if places.moved.unreadable:
        return [], places.moved.unreadable
    going = named & there.keys() - places.files_needed(listed.objects)
    stay = _stay(repository, listed, places, going, workers)
    in_parallel(place.delete, sorted(going - stay.keys()), workers=workers)
    # Also where something stays. No backup that began after it was moved lists it where it is: it may go at any time.
    finish(place, name, number, [n for n in {*marks.unfinished, *marks.done} if n < number])
    _tidy(repository, name, listed, damaged)
    return sorted(going - stay.keys()), tuple(f"{path}, {why}" for path, why in sorted(stay.items()))


def _stay(
    repository: Repository, listed: Listed, places: Places, going: Collection[str], workers: int
) -> dict[str, str]:
    """What was moved and cannot be deleted: path of each file, and why."""
    name, place = listed.name, repository.location
    lost, damaged = unproven(repository, listed, places, going, workers=workers)
    note_damaged(place, name, damaged)
    why = "which has a content that is damaged or missing where it was moved to (airflow-ckpt verify --read-data)"
    stay = dict.fromkeys(lost, why)
    # Since the plan was made somebody may have locked a backup that lists it.
    moved = sorted({file_of(path) for path in listed.objects}.intersection(going) - lost)
    locked, unknown = locks_on(place, moved, now=datetime.now(UTC))
    if unknown:
        return stay | dict.fromkeys(moved, unknown)
    return stay | {path: f"which is locked until {format_time(until)}" for path, until in locked.items()}


def _check_objects(name: str, named: Collection[str]) -> None:
    """See that a plan names objects of its stream and nothing else.

    :raises RefusedError: it does not.
    """
    for path in named:
        try:
            safe_relative(path, below=f"{OBJECTS}/{name}")
        except ValueError as e:
            raise RefusedError(
                f"the plan of the prune names {path!r}: {e}; nothing was deleted", hint="make a new plan: run it again"
            ) from None


def _at_work(repository: Repository, name: str, number: int, abandoned_after: timedelta) -> list[OpenClaim]:
    """Who began before the mark was written and has not ended; those that show no end for too long are given up."""
    now = written_at(repository.location, name, number)
    alive = []
    for claim in open_claims(repository, name):
        if not _is_abandoned(claim, now, abandoned_after):
            alive.append(claim)
            continue
        log.warning("%s of %s shows no end: it is given up", claim.words(repository.location), name)
        give_up(repository, claim)
    return alive


def _is_abandoned(claim: OpenClaim, now: datetime | None, after: timedelta) -> bool:
    if after <= timedelta(0):
        return True
    return claim.since is not None and now is not None and now - claim.since >= after


def _tidy(repository: Repository, name: str, listed: Listed, damaged: DamagedObjects) -> None:
    """Claims of backups that are there, and notes about backups and objects that are gone, have nothing left to say.

    :param damaged: what was known to be damaged before it was seen that nobody is at work who might list it.
    """
    tidy_claims(repository, name, finished=listed.claims)
    noted = noted_ids(repository, name)  # before the listing of what is there: nothing is noted of a backup that is not
    forget_notes(repository, name, noted - set(repository.backup_ids(name)))
    try:
        manifests = {manifest_path(name, backup_id) for backup_id in listed.backup_ids}
        forget_damaged(repository.location, name, damaged, listed=listed.objects | manifests)
        tidy_reads(repository.location, name)
        if repository.packs:
            tidy_moved(repository, name, listed)
    except StorageError as e:
        log.warning("what is known of objects of %s is not tidied up: %s", name, e.message)
