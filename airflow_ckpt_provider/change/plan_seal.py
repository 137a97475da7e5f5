"""The seal of one plan: put before its first change, on exactly what it was made for, and lifted as its last.

All that change a checkpoint begin here: look whose seal is there; see that it is what the plan was made for and that
nobody writes; seal; list it again. A run that was killed finds its own seal and continues.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from airflow_ckpt_provider.change.fail_closed_order import highest_offsets
from airflow_ckpt_provider.change.sealing import TRIES, put_seal, remove_seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError, command
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)


def seal_for_plan(
    location: Location,
    *,
    plan_id: str,
    reason: str,
    made_by: str,
    fingerprint: str | None,
    attempt: int | None = None,
    begun: bool = False,
    sealed: bool = False,
    above: Iterable[str] = (),
    own: Collection[str] = (),
) -> Seal:
    """Seal a place for a plan, and see that it still is what the plan was made for.

    :param location: the place.
    :param plan_id: the plan.
    :param reason: why; Spark's own error will show it.
    :param made_by: the run or user that applies the plan.
    :param fingerprint: of the place when the plan was made; ``None`` where a running query may have moved on since.
    :param attempt: number of the attempt that applies the plan; a seal of an earlier attempt is replaced.
    :param begun: a run before this one may have changed files already: the fingerprint says nothing any more. A seal of the
        plan has to be there: without it nothing has kept a query from starting since.
    :param sealed: a seal of the plan has to be there, as it was when the query was proven to be stopped.
    :param above: paths that are going to be written. An empty place is sealed above them at once; another at its next
        number, which stops a running query: there :func:`raise_above` follows.
    :param own: other plans whose seal does as well.
    :return: the seal, the only one of this plan.
    :raises SealedError: another plan has sealed it.
    :raises RefusedError: it is not any more what the plan was made for, or somebody writes to it, or the seal that had to be
        there was lifted, or an attempt that the plan does not know of has begun; nothing was changed.
    """
    now = inspect_target(location)
    mark = found = now.seal
    if mark and mark.plan_id not in {plan_id, *own}:
        raise SealedError(
            f"{location} was sealed by plan {mark.plan_id} ({mark.reason}) in the meantime",
            hint="let that plan finish first",
        )
    if not begun:
        check_not_begun(location, mark, {plan_id, *own})
    if mark:
        _remove_lower_seals(location, mark, {plan_id, *own})
        mark = _taken_over(
            location, mark, plan_id=plan_id, attempt=attempt, reason=reason, made_by=made_by, begun=begun
        )
    elif begun or sealed:
        raise _lifted(location, plan_id)
    else:
        if fingerprint is not None and now.fingerprint != fingerprint:
            raise _moved_on(location, plan_id)
        number = max(now.newest_offsets, highest_offsets(above) if now.is_empty else -1) + 1
        for candidate in range(number, number + (TRIES if fingerprint is None else 1)):
            with suppress(FileExistsError):
                mark = put_seal(location, candidate, plan_id=plan_id, reason=reason, made_by=made_by, attempt=attempt)
                break
            log.info("%s/%s/%d appeared: the stream was faster", location, OFFSETS, candidate)
        else:
            raise _moved_on(location, plan_id)
    if fingerprint is not None and not begun and inspect_target(location).fingerprint != fingerprint:
        if found is None:
            remove_seal(location, mark)
        else:  # its plan may be half-way: it stays sealed by it
            give_back(location, found)
        raise _moved_on(location, plan_id)
    return mark


def check_not_begun(location: Location, mark: Seal | None, own: Collection[str]) -> None:
    """See that no attempt has taken a seal over that was there when a plan was made.

    :param location: the place.
    :param mark: its seal.
    :param own: ids of the plan, and of those whose seal does as well.
    :raises RefusedError: one has, with a plan of its own under the same id.
    """
    if mark and mark.plan_id in own and mark.attempt is not None:
        raise RefusedError(
            f"attempt {mark.attempt} of {mark.made_by} has begun plan {mark.plan_id} ({mark.reason}) at {location} since this "
            "attempt has planned; nothing was changed by this attempt",
            hint="run the same command again, which plans again: it resumes what was begun, or says how to finish or undo it",
        )


def raise_above(location: Location, mark: Seal, paths: Iterable[str], *, made_by: str) -> Seal:
    """Move a seal above every number that is going to be written into ``offsets/``; a lower one would be overwritten.

    Stopped in between, it leaves both seals; :func:`seal_for_plan` then takes the lower one away.

    :param mark: the seal that is there.
    :param paths: files that are going to be written.
    :return: the seal that is there then.
    """
    number = highest_offsets(paths) + 1
    return mark if mark.batch_id >= number else _above(location, mark, replace(mark, batch_id=number, made_by=made_by))


def _taken_over(
    location: Location, mark: Seal, *, plan_id: str, attempt: int | None, reason: str, made_by: str, begun: bool
) -> Seal:
    """Put a seal of ours above that of an earlier attempt, or of the plan that is undone, and take that one away.

    A seal is never written over: a process that is killed in between leaves two, and never none.

    :raises RefusedError: the lower one was lifted before ours was there, and nothing had been changed yet.
    """
    if (mark.plan_id, mark.attempt) == (plan_id, attempt):
        return mark
    higher = _put_above(location, mark, Seal(mark.batch_id + 1, plan_id, reason, made_by, None, attempt))
    if not begun and not _is_there(location, mark):
        remove_seal(location, higher)
        raise _lifted(location, plan_id)
    remove_seal(location, mark)
    return higher


def _is_there(location: Location, mark: Seal) -> bool:
    try:
        still = parse_seal(location.read(mark.path), batch_id=mark.batch_id)
    except FileNotFoundError:
        return False
    return still is not None and (still.plan_id, still.attempt) == (mark.plan_id, mark.attempt)


def give_back(location: Location, mark: Seal) -> None:
    """Seal a place for its former plan again, which is not undone after all.

    :param location: the place, sealed by the undo.
    :param mark: the seal as it was found.
    """
    now = inspect_target(location).seal
    if now is None:
        raise RefusedError(
            f"the seal of {location} is gone", hint="somebody else changes this checkpoint: inspect it first"
        )
    _above(location, now, replace(mark, batch_id=now.batch_id + 1))


def _above(location: Location, lower: Seal, wanted: Seal) -> Seal:
    """Put a seal above another one, and take the lower one away."""
    higher = _put_above(location, lower, wanted)
    remove_seal(location, lower)
    return higher


def _put_above(location: Location, lower: Seal, wanted: Seal) -> Seal:
    try:
        return put_seal(
            location,
            wanted.batch_id,
            plan_id=wanted.plan_id,
            reason=wanted.reason,
            made_by=wanted.made_by,
            attempt=wanted.attempt,
        )
    except FileExistsError:
        raise StorageError(
            f"{location}/{wanted.path} appeared beyond the seal {lower.path}: somebody else writes there",
            hint=f"it stays sealed by plan {lower.plan_id}; see who that is, then run the same command again",
        ) from None


def _remove_lower_seals(location: Location, mark: Seal, own: Collection[str]) -> None:
    """Take away what a run leaves that is stopped while it puts its seal higher."""
    numbers = (batch_id_of(path.partition("/")[2]) for path in location.walk(OFFSETS))
    for number in sorted((n for n in numbers if n is not None and n < mark.batch_id), reverse=True):
        lower = parse_seal(location.read(f"{OFFSETS}/{number}"), batch_id=number)
        if lower is None or lower.plan_id not in own:
            return
        remove_seal(location, lower)


def _lifted(location: Location, plan_id: str) -> RefusedError:
    return RefusedError(
        f"the seal of plan {plan_id} on {location} was lifted in the meantime: its query may have been started; nothing was "
        "changed by this attempt",
        hint=f"see what was done: `{command('inspect', location)}`; then run the same command again, which plans again",
    )


def _moved_on(location: Location, plan_id: str) -> RefusedError:
    return RefusedError(
        f"{location} is not any more what plan {plan_id} was made for; nothing was changed",
        hint="stop the query, then make a new plan",
    )
