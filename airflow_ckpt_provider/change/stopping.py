"""Stopping a query that still runs: by the seal, at its batch boundary, where somebody has allowed that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.fence import fenced
from airflow_ckpt_provider.change.rest import RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.sealing import STOPPING, remove_seal, seal
from airflow_ckpt_provider.change.target import inspect_target, read_seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import ChangeRunningError, RefusedError
from airflow_ckpt_provider.storage.location import Location

MadePlan = TypeVar("MadePlan")
Outcome = TypeVar("Outcome")


def stop_plan_and_apply(
    location: Location,
    repository: Repository,
    plan: Callable[[str | None], MadePlan],
    apply: Callable[..., Outcome],
    *,
    change: str,
    stop_running: bool = False,
    seal_id: str | None = None,
    rest: RestRule | None = None,
    made_by: str = "",
    **how: Any,
) -> tuple[MadePlan, Outcome]:
    """Plan a change and apply it, after a query that still runs was stopped by the seal, where that is allowed.

    If the change is refused, or if there is nothing to do, the seal is lifted: nothing was changed. It stays while another
    attempt is at work, and if the query is not known to be stopped: whoever starts the stream then lifts it
    (``unseal --for-start``).

    :param location: the checkpoint.
    :param repository: keeps the plan, once the change has begun.
    :param plan: makes the plan, given the id of the seal that stopped the query. ``None``: the query was not stopped here;
        planning then reports whose seal is there, or resumes its plan.
    :param apply: applies the plan. It takes the plan, ``rest``, ``proof`` (that the query is stopped, or ``None``),
        ``made_by`` and ``how``.
    :param change: what the query is stopped for, in one word: ``rewind``, ``reset``.
    :param stop_running: a query that still runs may be stopped, at its batch boundary.
    :param seal_id: id of a seal that is there already. The plan takes it over, it stays if the change is refused, and no other
        seal is set.
    :param rest: how the query is known to be stopped; the default is :class:`~airflow_ckpt_provider.change.rest.RestRule`'s.
    :param made_by: the run or user that changes the checkpoint.
    :param how: what else ``apply`` takes.
    :raises QueryNotStoppedError: the query is not known to be stopped within the stated wait.
    :raises CkptError: as ``plan`` and ``apply`` raise.
    """
    rest = rest or RestRule()
    sealed_here, proof = None, None
    if stop_running and seal_id is None:
        sealed_here, proof = _stop(location, repository, STOPPING + change, rest=rest, made_by=made_by)
    try:
        made = plan(sealed_here.plan_id if sealed_here else seal_id)
        done = apply(made, rest=rest, proof=proof, made_by=made_by, **how)
    except ChangeRunningError:
        raise  # the other attempt has found the same seal, and counts on it
    except RefusedError as e:
        if sealed_here is not None and _lift_unused(location, sealed_here):
            e.add_hint("the query was stopped for this, and nothing was changed: start it")
        raise
    if sealed_here is not None:
        _lift_unused(location, sealed_here)  # there was nothing to do
    return made, done


def _stop(
    location: Location, repository: Repository, reason: str, *, rest: RestRule, made_by: str
) -> tuple[Seal | None, RestProof | None]:
    """Seal, and wait for proof that the query is stopped; a second call finds the seal of the first one."""
    there = inspect_target(location)
    if (there.is_empty and there.seal is None) or (there.seal and there.seal.reason != reason):
        return None, None
    with fenced(repository, location, plan_id="stop", what=reason, made_by=made_by) as fence:
        rest.check_word(fence, location, stopping=True)
        mark = read_seal(location) or seal(Checkpoint.at(fence.guarding(location)), reason=reason, made_by=made_by)
    if mark.reason != reason:
        return None, None
    proof = prove_rest(location, rest, stopping=True)
    now = inspect_target(location).seal
    if now is None or now.plan_id != mark.plan_id:
        raise RefusedError(
            f"the seal {mark.path} of {location} was lifted while its query was being stopped: somebody may have started it",
            hint="see who lifted it, then run the same command again",
        )
    return mark, proof


def _lift_unused(location: Location, mark: Seal) -> bool:
    """Lift a seal that has stopped the query, as long as no attempt has taken it over; return whether it was lifted."""
    with suppress(FileNotFoundError):  # taken over since it was listed
        now = read_seal(location)
        if now and (now.plan_id, now.attempt, now.reason) == (mark.plan_id, None, mark.reason):
            remove_seal(location, now)
            return True
    return False
