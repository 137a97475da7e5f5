"""Stopping a query that still runs: by the seal, at its batch boundary, where somebody has allowed that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.rest import RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.sealing import remove_seal, seal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import ChangeRunningError, RefusedError
from airflow_ckpt_provider.storage.location import Location

#: How the seal that stops a query begins; whoever finds it knows that nothing was changed yet.
STOPPING = "stopping the query for a "

Result = TypeVar("Result")


def with_query_stopped(
    location: Location,
    repository: Repository,
    work: Callable[[str | None, RestProof | None], Result],
    *,
    change: str,
    stop_running: bool,
    rest: RestRule,
    made_by: str,
) -> Result:
    """Do ``work``, after a query that still runs was stopped by the seal at its batch boundary, where that is allowed.

    The seal stays where the query is not known to be stopped: whoever starts the stream lifts it (``unseal --for-start``).

    :param location: the checkpoint.
    :param repository: keeps the plan of ``work``, once it has begun.
    :param work: plans and carries out, given the id under which the checkpoint was sealed to stop its query and the proof that
        it is stopped; both ``None`` where it was not sealed here: planning then says whose seal is there, or resumes its plan.
        Where it is refused or has nothing to do before a plan was kept, the seal is lifted: nothing was changed. Where another
        attempt is at work it stays.
    :param change: what it is stopped for, in a word: ``rewind``, ``reset``.
    :param stop_running: whether it may be stopped.
    :param rest: how it is known to be stopped.
    :param made_by: the run or user that stops it.
    :raises QueryNotStoppedError: it is not known to be stopped within the stated wait; or what ``work`` raises.
    """
    seal_id, proof = _stop(location, STOPPING + change, rest=rest, made_by=made_by) if stop_running else (None, None)
    try:
        result = work(seal_id, proof)
    except ChangeRunningError:
        raise  # the other attempt has found the same seal, and counts on it
    except RefusedError:
        _lift_unused(location, repository, seal_id)
        raise
    _lift_unused(location, repository, seal_id)  # there was nothing to do
    return result


def _stop(location: Location, reason: str, *, rest: RestRule, made_by: str) -> tuple[str | None, RestProof | None]:
    """Seal, and wait for proof that the query is stopped; a second call finds the seal of the first one."""
    there = inspect_target(location)
    if there.is_empty and there.seal is None:
        return None, None
    mark = there.seal or seal(Checkpoint.at(location), reason=reason, made_by=made_by)
    if mark.reason != reason:
        return None, None
    proof = prove_rest(location, rest, stopping=True)
    now = inspect_target(location).seal
    if now is None or now.plan_id != mark.plan_id:
        raise RefusedError(
            f"the seal {mark.path} of {location} was lifted while its query was being stopped: somebody may have started it",
            hint="see who lifted it, then run the same command again",
        )
    return mark.plan_id, proof


def _lift_unused(location: Location, repository: Repository, seal_id: str | None) -> None:
    if seal_id is None or repository.kept_plan(seal_id) is not None:
        return
    mark = inspect_target(location).seal
    if mark and mark.plan_id == seal_id:
        remove_seal(location, mark)
