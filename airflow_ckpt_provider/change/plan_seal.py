"""The seal of one plan: put before its first change, on exactly what it was made for, and lifted as its last.

All that change a checkpoint begin here: look whose seal is there; see that it is what the plan was made for and that
nobody writes; seal; look again. A run that was killed finds its own seal and goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import TypeVar

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.fail_closed_order import highest_offsets
from airflow_ckpt_provider.change.sealing import TRIES, put_seal, remove_seal, seal
from airflow_ckpt_provider.change.target import check_at_rest, inspect_target, wait_until_at_rest
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

#: How long a sealed query may take to finish its batch, seconds.
STOP_WITHIN = 600.0
_STOPPING = "stopping the query for a "

Result = TypeVar("Result")


def seal_for_plan(
    location: Location,
    *,
    plan_id: str,
    reason: str,
    made_by: str,
    fingerprint: str | None,
    begun: bool = False,
    quiet_for: float | None = None,
    above: Iterable[str] = (),
    own: Collection[str] = (),
    hint: str = "stop the query, then make a new plan",
) -> Seal:
    """Seal a place for a plan, and see that it still is what the plan was made for.

    :param location: the place.
    :param plan_id: the plan.
    :param reason: why; Spark's own error will show it.
    :param made_by: the run or user that carries the plan out.
    :param fingerprint: of the place when the plan was made; ``None`` where a running query may have moved on since.
    :param begun: a run before this one may have changed files already: the fingerprint says nothing any more.
    :param quiet_for: seconds without a change after which the place counts as at rest; ``None``: not looked at.
    :param above: paths that are going to be written. An empty place is sealed above them at once; another at its next
        number, which stops a running query: there :func:`raise_above` follows.
    :param own: other plans whose seal does as well.
    :param hint: what to do where it is not any more what the plan was made for.
    :return: the seal, the only one of this plan.
    :raises SealedError: another plan has sealed it.
    :raises RefusedError: it is not any more what the plan was made for, or somebody writes to it; nothing was changed.
    """
    now = inspect_target(location)
    mark = now.seal
    if mark and mark.plan_id not in {plan_id, *own}:
        raise SealedError(
            f"{location} was sealed by plan {mark.plan_id} ({mark.reason}) in the meantime",
            hint="let that plan finish first",
        )
    if mark:
        _remove_lower_seals(location, mark)
    else:
        if fingerprint is not None and now.fingerprint != fingerprint:
            raise _moved_on(location, plan_id, hint)
        if quiet_for is not None:
            check_at_rest(now, quiet_for=quiet_for)
        number = max(now.newest_offsets, highest_offsets(above) if now.is_empty else -1) + 1
        for candidate in range(number, number + (TRIES if fingerprint is None else 1)):
            with suppress(FileExistsError):
                mark = put_seal(location, candidate, plan_id=plan_id, reason=reason, made_by=made_by)
                break
            log.info("%s/%s/%d appeared: the stream was faster", location, OFFSETS, candidate)
        else:
            raise _moved_on(location, plan_id, hint)
    if fingerprint is not None and not begun and inspect_target(location).fingerprint != fingerprint:
        remove_seal(location, mark)
        raise _moved_on(location, plan_id, hint)
    return mark


def raise_above(location: Location, mark: Seal, paths: Iterable[str], *, made_by: str) -> Seal:
    """Move a seal above every number that is going to be written into ``offsets/``; a lower one would be overwritten.

    Stopped in between, it leaves both seals; :func:`seal_for_plan` then takes the lower one away.

    :param mark: the seal that is there.
    :param paths: files that are going to be written.
    :return: the seal that is there then.
    """
    number = highest_offsets(paths) + 1
    if mark.batch_id >= number:
        return mark
    try:
        higher = put_seal(location, number, plan_id=mark.plan_id, reason=mark.reason, made_by=made_by)
    except FileExistsError:
        raise StorageError(
            f"{location}/{OFFSETS}/{number} appeared beyond the seal {mark.path}: somebody else writes there",
            hint=f"it stays sealed by plan {mark.plan_id}; see who that is, then run the same command again",
        ) from None
    remove_seal(location, mark)
    return higher


def with_query_stopped(
    location: Location,
    repository: Repository,
    work: Callable[[str | None], Result],
    *,
    change: str,
    stop_running: bool,
    quiet_for: float,
    made_by: str,
) -> Result:
    """Do ``work``, after a query that still runs was stopped by the seal at its batch boundary, where that is allowed.

    :param location: the checkpoint.
    :param repository: keeps the plan of ``work``, once it has begun.
    :param work: plans and carries out, given the id under which the checkpoint was sealed to stop its query; ``None`` where
        it was not, or another seal is there: planning says whose it is, or goes on with it. Where it is refused or has nothing
        to do before a plan was kept, the seal is lifted: nothing was changed, and the query may be started again.
    :param change: what it is stopped for, in a word: ``rewind``, ``reset``.
    :param stop_running: whether it may be stopped.
    :param quiet_for: seconds without a change after which it counts as stopped.
    :raises RefusedError: it is still written to after ten minutes; or what ``work`` raises.
    """
    under = _stop_query(location, _STOPPING + change, quiet_for=quiet_for, made_by=made_by) if stop_running else None
    try:
        result = work(under)
    except RefusedError:
        _lift_unused(location, repository, under)
        raise
    _lift_unused(location, repository, under)  # there was nothing to do
    return result


def _lift_unused(location: Location, repository: Repository, under: str | None) -> None:
    if under is None or repository.kept_plan(under) is not None:
        return
    mark = inspect_target(location).seal
    if mark and mark.plan_id == under:
        remove_seal(location, mark)


def _stop_query(location: Location, reason: str, *, quiet_for: float, made_by: str) -> str | None:
    """Seal, and wait; a second call finds the seal of the first one."""
    mark = inspect_target(location).seal or seal(Checkpoint.at(location), reason=reason, made_by=made_by)
    if mark.reason != reason:
        return None
    wait_until_at_rest(location, quiet_for=quiet_for, at_most=STOP_WITHIN)
    return mark.plan_id


def _remove_lower_seals(location: Location, mark: Seal) -> None:
    """Take away what a run leaves that is stopped while it puts its seal higher."""
    numbers = (batch_id_of(path.partition("/")[2]) for path in location.walk(OFFSETS))
    for number in sorted((n for n in numbers if n is not None and n < mark.batch_id), reverse=True):
        lower = parse_seal(location.read(f"{OFFSETS}/{number}"), batch_id=number)
        if lower is None or lower.plan_id != mark.plan_id:
            return
        remove_seal(location, lower)


def _moved_on(location: Location, plan_id: str, hint: str) -> RefusedError:
    return RefusedError(f"{location} is not any more what plan {plan_id} was made for; nothing was changed", hint=hint)
