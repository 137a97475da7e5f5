"""The fence of an upgrade: from the stop to the start no Spark starts from the checkpoint, with old code or new.

A stream that still runs is stopped by it at its batch boundary, whatever its own stop did; a driver that a cluster manager
brings up again refuses to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import newest_readable
from airflow_ckpt_provider.backup.streams import is_place
from airflow_ckpt_provider.change.sealing import check_sealable, put_seal, seal, sealed_by_another, unseal
from airflow_ckpt_provider.change.target import Target, inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.poll import list_logs
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import RefusedError, RepositoryError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.upgrade.drained import facts_of_seal
from airflow_ckpt_provider.upgrade.record import (
    Event,
    Upgrade,
    begin_upgrade,
    being_upgraded,
    check_step,
    end_upgrade,
    is_needed,
    newest_upgrade,
    note,
    streams_upgraded,
    upgrade_of,
)

#: The steps after which a query may be started.
_LETS_START = (Event.RELEASED, Event.BACK, Event.KEPT)


def begin(checkpoint: Checkpoint, repository: Repository, name: str, upgrade_id: str, **facts: Any) -> Upgrade:
    """Take a stream for an upgrade, or find the one that this run has begun.

    :param checkpoint: the checkpoint, which nobody has sealed.
    :param repository: keeps the upgrade's record.
    :param name: name of the stream in the repository.
    :param upgrade_id: the run that performs it.
    :param facts: what is known at its beginning.
    :raises SealedError: somebody has sealed the checkpoint, and is at work there.
    :raises RefusedError: another run upgrades the stream, under this name or another one; or its query runs in continuous
        mode, which no seal stops.
    """
    before = newest_upgrade(repository, name)
    progress = checkpoint.progress()
    check_sealable(progress)
    mark = progress.seal
    own = before.plan_ids if before and before.is_open and before.upgrade_id == upgrade_id else ()
    if mark and mark.plan_id not in own:
        raise sealed_by_another(checkpoint.location.uri, mark)
    _refuse_under_another_name(checkpoint, repository, name)
    upgrade = begin_upgrade(repository, name, upgrade_id, checkpoint=checkpoint.location.uri, **facts)
    try:
        # The other one may have begun since: then at least one of the two finds the other here.
        _refuse_under_another_name(checkpoint, repository, name)
    except RefusedError:
        if not is_needed(upgrade):
            why = "the checkpoint is being upgraded under another name"
            end_upgrade(repository, upgrade, kind="untouched", made_by=upgrade_id, reason=why)
        raise
    return upgrade


def _refuse_under_another_name(checkpoint: Checkpoint, repository: Repository, name: str) -> None:
    """See that no upgrade of the same checkpoint is open under another name: the record of a name is its lock."""

    def is_here(place: str | None) -> bool | None:
        return None if place is None else is_place(checkpoint.location, place)

    def backed_up(other: str) -> str | None:
        newest = newest_readable(repository, other)
        return newest.checkpoint if newest else None

    def open_here(other: str) -> Upgrade | None:
        try:
            found = newest_upgrade(repository, other)
        except RepositoryError:
            if is_here(backed_up(other)) is False:
                return None
            raise
        if found is None or not found.is_open:
            return None
        # The note of an older release does not name the checkpoint.
        return found if is_here(found.fact(Event.BEGUN, "checkpoint") or backed_up(other)) else None

    others = [other for other in streams_upgraded(repository) if other != name]
    for found in in_parallel(open_here, others):
        if found is not None:
            raise being_upgraded(repository, found, f"{checkpoint.location}, under the name {found.name},")


def fence(checkpoint: Checkpoint, repository: Repository, upgrade: Upgrade, *, made_by: str = "") -> Seal:
    """Seal the checkpoint for an upgrade, on the way forward or back; a seal of this upgrade that is there stays.

    :param checkpoint: the checkpoint; its place may be empty where new code was to start from the beginning.
    :param repository: keeps the upgrade's record.
    :raises SealedError: somebody else has sealed it.
    :raises RefusedError: meanwhile another attempt has continued the upgrade beyond this step, or it has ended; or the new
        code is kept.
    """
    there = inspect_target(checkpoint.location)
    mark = own_seal(there, upgrade)
    if mark is None:
        back = upgrade.has(Event.RELEASED) or upgrade.has(Event.GOING_BACK)
        if back:
            check_step(upgrade, Event.GOING_BACK)
        reason = f"upgrade {upgrade.upgrade_id}{', rolling back' if back else ''}"
        plan_id = upgrade.plan_id(back=back)

        def wanted() -> None:
            now = upgrade_of(repository, upgrade.name, upgrade.upgrade_id)
            if now.plan_id(back=back) != plan_id or any(
                now.has(step) and not upgrade.has(step) for step in _LETS_START
            ):
                raise RefusedError(
                    f"another attempt has continued upgrade {upgrade.upgrade_id} since: the stream may run, and is not sealed",
                    hint="see how far the upgrade is; clear the run from its first task on, or start a new one",
                )

        if there.is_empty:
            mark = put_seal(checkpoint.location, 0, plan_id=plan_id, reason=reason, made_by=made_by, wanted=wanted)
        else:
            mark = seal(checkpoint, reason=reason, made_by=made_by, plan_id=plan_id, wanted=wanted)
    forward = mark.plan_id == upgrade.plan_id(back=False)
    facts = facts_of_seal(checkpoint, mark) if forward and not upgrade.has(Event.SEALED) else {}
    note(repository, upgrade, Event.SEALED, plan_id=mark.plan_id, **facts)
    return mark


def own_seal(there: Target, upgrade: Upgrade) -> Seal | None:
    """The seal of an upgrade at a place; ``None`` if there is none.

    :raises SealedError: it is somebody else's, who is at work there.
    """
    if there.seal and there.seal.plan_id not in upgrade.plan_ids:
        raise sealed_by_another(there.location.uri, there.seal)
    return there.seal


@dataclass(frozen=True, slots=True)
class Release:
    """One stream whose new code is to be let start.

    :param checkpoint: the checkpoint, sealed by this upgrade.
    :param repository: keeps the upgrade's record and the backup.
    :param upgrade: its upgrade.
    :param backup_id: the backup of the drained checkpoint, which a way back goes to.
    """

    checkpoint: Checkpoint
    repository: Repository
    upgrade: Upgrade
    backup_id: str


def release(
    checkpoint: Checkpoint, repository: Repository, upgrade: Upgrade, *, backup_id: str, lift: bool = True
) -> Upgrade:
    """Let the new code of one stream start. Parameters, result and errors: see :func:`release_all`."""
    return release_all([Release(checkpoint, repository, upgrade, backup_id)], lift=lift)[0]


def release_all(releases: Sequence[Release], *, lift: bool = True) -> list[Upgrade]:
    """Let the new code start: note of each stream what it starts from, and lift all seals, or none.

    :param releases: the streams of one application, or one.
    :param lift: lift the seals; not where a new checkpoint is put in place under it first.
    :return: the upgrades with the step.
    :raises RefusedError: an upgrade was undone already, or its way back has begun; its seal was lifted, so that somebody may have
        started the stream; the backup is of another batch. No seal was lifted.
    :raises SealedError: somebody else has sealed one.
    """
    marks = [_check_release(each) for each in releases]
    # Noted first: killed in between, the way back finds that new code may have started.
    noted = [_note_release(each) for each in releases]
    for each, mark in zip(releases, marks, strict=True):
        if lift and mark:
            # Sealed again after it was let start, it has the id of the way back, which has not begun.
            unseal(each.checkpoint, plan_id=mark.plan_id)
    return noted


def _check_release(release: Release) -> Seal | None:
    checkpoint, upgrade = release.checkpoint, release.upgrade
    check_step(upgrade, Event.RELEASED)
    mark = own_seal(inspect_target(checkpoint.location), upgrade)
    if mark is None and not upgrade.has(Event.RELEASED):
        raise RefusedError(
            f"{checkpoint.location} is not sealed any more by upgrade {upgrade.upgrade_id}: the stream may have been started",
            hint="see who lifted the seal; the run rolls back, then start a new one",
        )
    manifest = release.repository.manifest(release.backup_id, name=upgrade.name)
    newest = checkpoint.progress().latest_committed
    if manifest.batch_id != newest and not upgrade.has(Event.RELEASED):
        raise RefusedError(
            f"backup {release.backup_id} is of batch {manifest.batch_id}, and {checkpoint.location} is at {newest}",
            hint="see who has continued the stream; the run rolls back, then start a new one",
        )
    return mark


def _note_release(release: Release) -> Upgrade:
    manifest = release.repository.manifest(release.backup_id, name=release.upgrade.name)
    commit = list_logs(release.checkpoint.location).commits.get(manifest.batch_id)
    return note(
        release.repository,
        release.upgrade,
        Event.RELEASED,
        backup_id=manifest.backup_id,
        batch_id=manifest.batch_id,
        query_id=manifest.query_id,
        last_commit=commit.modified.isoformat() if commit and commit.modified else None,
    )
