"""Setting and lifting the seal, the fence that no Spark can overlook (see :mod:`airflow_ckpt_provider.checkpoint.seal`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.change.plan import undone_by
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.logs import HIGHEST
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.resume import read_resume_point
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError, command
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import shown_time
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)

#: A stream may log a batch while we look; how often we then take the next number.
TRIES = 50

#: How the reason begins of a seal that stops a query before a change, of those that a change sets, and of that of an upgrade.
STOPPING = "stopping the query for a "
_CHANGING = ("restore of ", "rewind to batch ", "repair to batch ", "reset, ", "undo of ", "flow ")
UPGRADE = "upgrade "

#: Whether the change that a seal belongs to has begun to change files; ``None``: that cannot be determined.
Begun = Callable[[Seal], bool | None]


def seal(
    checkpoint: Checkpoint,
    *,
    reason: str,
    made_by: str = "",
    plan_id: str | None = None,
    wanted: Callable[[], None] | None = None,
) -> Seal:
    """Seal a checkpoint: a running stream stops at its next batch boundary, a stopped one cannot be started.

    A running stream finishes the batch it is in. Sealing again with the same plan id finds the seal that is there.

    :param checkpoint: the checkpoint.
    :param reason: why; Spark's own error will show it.
    :param made_by: the run or user that seals.
    :param plan_id: the plan that the seal belongs to; lifting it needs this id. By default a new one.
    :param wanted: raises a ``RefusedError`` once the seal is not wanted any more, see :func:`put_seal`.
    :return: the seal.
    :raises NotACheckpointError: there is no checkpoint.
    :raises SealedError: it is sealed by another plan.
    :raises RefusedError: the query runs in continuous mode, which passes a seal.
    """
    plan_id = plan_id or new_plan_id()
    if any(character.isspace() for character in plan_id):
        raise RefusedError(f"{plan_id!r} cannot be the id of a plan", hint="use an id without blanks")
    for _ in range(TRIES):
        progress = checkpoint.progress()
        if progress.seal:
            if progress.seal.plan_id == plan_id:
                return progress.seal
            raise sealed_by_another(progress.uri, progress.seal)
        check_sealable(progress)
        number = max(-1 if progress.latest_logged is None else progress.latest_logged, -1) + 1
        try:
            return put_seal(checkpoint.location, number, plan_id=plan_id, reason=reason, made_by=made_by, wanted=wanted)
        except FileExistsError:
            log.info(
                "%s/%s/%d appeared: the stream was faster; taking the next number", checkpoint.location, OFFSETS, number
            )
    raise RefusedError(
        f"{checkpoint.location} could not be sealed: the stream logged a new batch each of {TRIES} times",
        hint="stop the stream first",
    )


def check_sealable(progress: Progress) -> None:
    """See that a seal would keep Spark from running the query.

    :param progress: of the checkpoint.
    :raises RefusedError: the query runs in continuous mode: a running one passes a seal, a stopped one starts under it.
    """
    if progress.is_continuous:
        raise RefusedError(
            f"{progress.uri} is of a query in continuous mode ({OFFSETS}/{progress.latest_logged} has no batch metadata), which "
            "passes a seal: it neither stops at it nor is it kept from starting",
            hint="stop the query by other means, and keep it stopped",
        )


def put_seal(
    location: Location,
    number: int,
    *,
    plan_id: str,
    reason: str,
    made_by: str,
    attempt: int | None = None,
    wanted: Callable[[], None] | None = None,
) -> Seal:
    """Write the seal as ``offsets/<number>``, only if nothing is there.

    :param attempt: number of the attempt that applies the plan; ``None`` without a change under way.
    :param wanted: raises a ``RefusedError`` once the seal is not wanted any more: a process can be suspended right before it
        sends the seal. Called before and after; the second time the seal is removed again.
    :raises FileExistsError: something is there.
    :raises RefusedError: Spark would not see it, for no batch has such a number.
    :raises StorageError: the store cannot create exclusively, and somebody else wrote at the same moment.
    """
    if number > HIGHEST:
        raise RefusedError(
            f"{location} has {OFFSETS}/{number - 1}, the highest number that Spark takes for a batch: no seal fits above it",
            hint=f"no stream gets that far: move {OFFSETS}/{number - 1} away, which a mistake has left there, then run the same "
            "command again",
        )
    if wanted is not None:
        wanted()
    mark = Seal(number, plan_id, reason, made_by, datetime.now(UTC).replace(microsecond=0), attempt)
    location.create(mark.path, mark.sentence.encode())
    if not location.store.creates_if_absent:
        log.warning("%s cannot create a file only if absent: looking before and after instead", location.store.protocol)
        if location.read(mark.path) != mark.sentence.encode():
            raise StorageError(
                f"{location}/{mark.path} was written by somebody else at the same moment",
                hint="stop the stream, then run the same command again",
            )
    if wanted is not None:
        try:
            wanted()
        except RefusedError:
            remove_seal(location, mark)
            raise
    return mark


def unseal(
    checkpoint: Checkpoint,
    *,
    plan_id: str | None = None,
    force: bool = False,
    for_start: bool = False,
    begun: Begun | None = None,
) -> Seal | None:
    """Lift a seal. The stream can then be started and continues as if nothing had been.

    :param checkpoint: the checkpoint.
    :param plan_id: the plan that set it.
    :param force: lift it whoever set it.
    :param for_start: lift it whoever set it, for the query is started next; not where a change has begun to change files.
    :param begun: shows that, for ``for_start``; see :func:`airflow_ckpt_provider.change.lifting.begun_by_plans`. ``None``: it
        cannot be determined, so such a seal stays.
    :return: the seal that was lifted, or ``None`` if there was none.
    :raises NotACheckpointError: there is no checkpoint.
    :raises SealedError: it belongs to another plan.
    :raises RefusedError: a batch was committed at or beyond the seal, which async progress tracking does; lifting the seal
        would leave a commit without an offset log entry. Or, for a start, a change has begun to change files, or may have.
    """
    progress = checkpoint.progress()
    mark = progress.seal
    if mark is None:
        return None
    if for_start:
        _check_startable(checkpoint, progress, mark, begun)
    elif not force and mark.plan_id != plan_id:
        raise sealed_by_another(progress.uri, mark)
    if progress.latest_committed is not None and progress.latest_committed >= mark.batch_id:
        beyond = [b for b in progress.committed if b >= mark.batch_id]
        files = ", ".join(f"commits/{b}" for b in beyond)
        raise RefusedError(
            f"{checkpoint.location} has {files} at or beyond its seal {mark.path}: the stream was stopped in async progress "
            "tracking with offsets not yet logged",
            hint=f"delete {files}, then lift the seal: those batches run again, at-least-once as that mode is anyway",
        )
    remove_seal(checkpoint.location, mark)
    # A plan that was stopped while it put its seal higher leaves the lower one beneath.
    unseal(checkpoint, plan_id=plan_id, force=force, for_start=for_start, begun=begun)
    return mark


def _check_startable(checkpoint: Checkpoint, progress: Progress, mark: Seal, begun: Begun | None) -> None:
    """See that a query which is started now finds what it left, and not what a change has left half-way."""
    whose = f"{checkpoint.location} is sealed by plan {mark.plan_id} ({mark.reason})"
    has_begun = begun(mark) if begun is not None else None
    if has_begun:
        raise RefusedError(
            f"{whose}, which has begun to change files and is not finished: a query must not start from it",
            hint="run the same command again to finish it: it lifts its seal at the end. Then start the query",
        )
    if has_begun is None:
        raise RefusedError(
            f"{whose}: it is not known whether that plan has begun to change files",
            hint="give the repository that the plan uses (repository / --repository); or run the same command again to "
            f"finish it; or, where you know that nothing was changed, lift it by its id (plan_id / --plan {mark.plan_id})",
        )
    if progress.query_id is None and not progress.logged:
        raise RefusedError(
            f"{checkpoint.location} holds nothing but its seal {mark.path}: a query would start from the beginning",
            hint="restore a backup; or, to start from the beginning, lift the seal by its id (plan_id / --plan)",
        )
    found = read_resume_point(checkpoint.location, replace(progress, seal=None))
    if found.verdict is not Verdict.SAFE:
        raise RefusedError(
            f"{whose}, and a start from what is there is not safe ({found.verdict.value}): {'; '.join(found.reasons)}",
            hint=f"finish that plan, or see what is wrong: `{command('doctor', checkpoint.location)}`; to start it all "
            f"the same, lift the seal by its id (plan_id / --plan {mark.plan_id})",
        )


def remove_seal(location: Location, mark: Seal) -> None:
    """Delete the file of a seal, after seeing that it is still the same seal.

    :raises RefusedError: it is not a seal any more, or that of another plan or attempt.
    """
    listed = location.list(OFFSETS).files
    file = next((f for f in listed if f.path == mark.path), None)
    try:
        still = parse_seal(location.read(mark.path), batch_id=mark.batch_id)
    except FileNotFoundError:
        return
    if still is None:
        raise RefusedError(
            f"{location}/{mark.path} is not a seal any more",
            hint="somebody else changes this checkpoint: inspect it first",
        )
    if (still.plan_id, still.attempt) != (mark.plan_id, mark.attempt):
        raise sealed_by_another(location.uri, still)
    if file is None:  # appeared since it was listed: not the one that we know
        raise RefusedError(f"{location}/{mark.path} was replaced just now", hint="run the same command again")
    location.delete_listed(file)
    checksum = next((f for f in listed if f.path == f"{OFFSETS}/.{mark.batch_id}.crc"), None)
    if checksum is not None:
        location.delete_listed(checksum)


def remove_empty(location: Location) -> None:
    """Remove the empty directories of a checkpoint whose seal is lifted; what lies in one of somebody else stays.

    The change has ended by then, and a query starts in an empty directory.

    :raises StorageError: the store fails by anything else.
    """
    try:
        location.remove_empty_directories()
    except StorageError as e:
        if not isinstance(e.__cause__, PermissionError):
            raise


def of_change(mark: Seal) -> bool:
    """Whether a seal is that of a change, which may have left files half-changed, or may be one.

    :param mark: the seal. One of somebody's own, of an upgrade, or one that only stops a query, is none.
    """
    return mark.since is None or mark.attempt is not None or mark.reason.startswith(_CHANGING)


def sealed_by_another(uri: str, mark: Seal) -> SealedError:
    """Say whose seal is in the way.

    :param uri: the checkpoint.
    :param mark: its seal.
    """
    hint = f"let that plan finish, or lift its seal: `{command('unseal', uri, '--plan', mark.plan_id)}`"
    if of_change(mark):
        # Lifting it by hand would let a query start from files that are half-changed.
        status = command("status", uri, "--repository", "REPOSITORY")
        hint = f"let that change finish; if it was stopped, `{status}` shows the commands that finish and undo it"
    undone = undone_by(mark.plan_id)
    if undone != mark.plan_id:
        hint = f"let that undo finish; if it was stopped, run it again: `{command('undo', uri, '--plan', undone)}`"
        hint += ", with the repository of that change (--repository) if it is not beside the checkpoint"
    return SealedError(
        f"{uri} is sealed by plan {mark.plan_id} ({mark.reason}, {mark.made_by}, {shown_time(mark.since)}): {mark.path}",
        hint=hint,
    )
