"""The seal of one plan: put before its first change, on exactly what it was made for, and lifted as its last.

All that change a checkpoint begin here: look whose seal is there; see that it is what the plan was made for and that
nobody writes; seal; look again. A run that was killed finds its own seal and goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from airflow_ckpt_provider.change.fail_closed_order import highest_offsets
from airflow_ckpt_provider.change.sealing import TRIES, put_seal, remove_seal
from airflow_ckpt_provider.change.target import Target, inspect_target
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError
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
    :param attempt: number of the attempt that carries the plan out; a seal of an earlier attempt is replaced.
    :param begun: a run before this one may have changed files already: the fingerprint says nothing any more.
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
        mark = _taken_over(now, mark, plan_id=plan_id, attempt=attempt, reason=reason, made_by=made_by)
    else:
        if fingerprint is not None and not begun and now.fingerprint != fingerprint:
            raise _moved_on(location, plan_id, hint)
        number = max(now.newest_offsets, highest_offsets(above) if now.is_empty else -1) + 1
        for candidate in range(number, number + (TRIES if fingerprint is None else 1)):
            with suppress(FileExistsError):
                mark = put_seal(location, candidate, plan_id=plan_id, reason=reason, made_by=made_by, attempt=attempt)
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
        higher = put_seal(
            location, number, plan_id=mark.plan_id, reason=mark.reason, made_by=made_by, attempt=mark.attempt
        )
    except FileExistsError:
        raise StorageError(
            f"{location}/{OFFSETS}/{number} appeared beyond the seal {mark.path}: somebody else writes there",
            hint=f"it stays sealed by plan {mark.plan_id}; see who that is, then run the same command again",
        ) from None
    remove_seal(location, mark)
    return higher


def _taken_over(now: Target, mark: Seal, *, plan_id: str, attempt: int | None, reason: str, made_by: str) -> Seal:
    """Put our own words into a seal of an earlier attempt, or of the plan that is undone."""
    if (mark.plan_id, mark.attempt) == (plan_id, attempt):
        return mark
    ours = Seal(mark.batch_id, plan_id, reason, made_by, datetime.now(UTC).replace(microsecond=0), attempt)
    now.location.replace_listed(now.files[mark.path], ours.sentence.encode())
    return ours


def give_back(location: Location, mark: Seal) -> None:
    """Put the words of a seal that was taken over back, as its plan is not undone after all.

    :param location: the place.
    :param mark: the seal as it was found. One that was raised since stays where it is.
    """
    now = inspect_target(location)
    if now.seal is None:
        raise RefusedError(
            f"the seal of {location} is gone", hint="somebody else changes this checkpoint: inspect it first"
        )
    back = replace(mark, batch_id=now.seal.batch_id)
    location.replace_listed(now.files[now.seal.path], back.sentence.encode())


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
