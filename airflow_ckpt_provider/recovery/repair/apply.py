"""Carrying a repair out: the change engine does it; here stands what the outcome says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.beside import repair_place
from airflow_ckpt_provider.backup.claims import entries_in_use
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.engine import Change
from airflow_ckpt_provider.change.rest import RestProof, RestRule
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.recovery.outcome import RecoveryOutcome
from airflow_ckpt_provider.recovery.repair.plan import RepairPlan


@dataclass(frozen=True, slots=True)
class RepairOutcome(RecoveryOutcome):
    """A repair that was carried out.

    :param plan_id: the plan.
    :param checkpoint: URI of the checkpoint.
    :param batch_id: the batch that the query continues after.
    :param replayed: how many batches are run again that had been logged or committed.
    :param deleted: files that were removed.
    :param fetched: files that came from backups.
    :param rewritten: files that were written again.
    :param kept: where removed and replaced files are kept; ``None`` if there are none.
    :param seconds: how long it took.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    checkpoint: str
    batch_id: int
    replayed: int
    deleted: int
    fetched: int
    rewritten: int
    kept: str | None
    seconds: float
    already_done: bool


def apply_repair(
    plan: RepairPlan,
    checkpoint: Checkpoint,
    *,
    repository: Repository | None = None,
    accept: Collection[str] = (),
    fingerprint: str | None = None,
    rest: RestRule | None = None,
    proof: RestProof | None = None,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> RepairOutcome:
    """Carry a repair out, or resume it.

    :param plan: from :func:`~airflow_ckpt_provider.recovery.repair.planning.plan_repair`.
    :param checkpoint: the checkpoint that it was made for.
    :param repository: the one that it was made with; keeps what is removed, the plan and the audit record. Without one a
        repository is made beside the checkpoint, ``<checkpoint>.repairs``.
    :param accept: words of the risks that somebody accepts, as the plan names them.
    :param fingerprint: of the plan that was approved; ``None``: not compared.
    :param rest: how the query is known to be stopped.
    :param proof: that it is, where that was proven before.
    :param made_by: the run or user that repairs.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :raises RefusedError: it cannot be repaired.
    :raises CkptError: as :meth:`~airflow_ckpt_provider.change.engine.Change.apply` raises.
    """
    if plan.batch_id is None:
        raise RefusedError(
            f"{checkpoint.location} cannot be repaired: {plan.reasons[0]}", hint=" ".join(plan.reasons[1:]) or None
        )
    if plan.already_done:
        return _outcome(plan, plan.batch_id, kept=None, seconds=0.0)
    kept_in = _repository(checkpoint, repository)
    change = Change(
        plan,
        checkpoint.location,
        kept_in,
        rest=rest or RestRule(),
        proof=proof,
        in_use=lambda: entries_in_use(kept_in, [e for e, _ in plan.fetches], what="repair", made_by=made_by),
        made_by=made_by,
        reason=reason,
        workers=workers,
    )
    done = change.apply(accept=accept, fingerprint=fingerprint)
    kept = f"{kept_in.location}/{done.kept}" if done.kept else None
    return _outcome(plan, plan.batch_id, kept=kept, seconds=done.seconds)


def stop_plan_and_repair(
    checkpoint: Checkpoint,
    plan: Callable[[str | None], RepairPlan],
    *,
    repository: Repository | None = None,
    stop_running: bool = False,
    **how: Any,
) -> tuple[RepairPlan, RepairOutcome]:
    """Plan a repair and apply it, as :func:`~airflow_ckpt_provider.change.stopping.stop_plan_and_apply` does.

    :param plan: makes the plan, given the id of the seal that stopped the query, or ``None``.
    :param repository: the one that the plan is made with. Without one a repository is made beside the checkpoint: before the
        query is stopped or, without ``stop_running``, once there is something to keep.
    :param stop_running: a query that still runs may be stopped, by the seal, at its batch boundary.
    :param how: what else :func:`apply_repair` takes.
    """
    if not stop_running:
        made = plan(None)
        return made, apply_repair(made, checkpoint, repository=repository, **how)
    kept_in = _repository(checkpoint, repository)
    apply = functools.partial(apply_repair, checkpoint=checkpoint, repository=kept_in)
    return stop_plan_and_apply(
        checkpoint.location, kept_in, plan, apply, change=RepairPlan.kind, stop_running=True, **how
    )


def _repository(checkpoint: Checkpoint, given: Repository | None) -> Repository:
    return given or Repository.open_or_create(repair_place(checkpoint.location))


def _outcome(plan: RepairPlan, batch_id: int, *, kept: str | None, seconds: float) -> RepairOutcome:
    return RepairOutcome(
        plan_id=plan.plan_id,
        checkpoint=plan.checkpoint,
        batch_id=batch_id,
        replayed=plan.replayed,
        deleted=len(plan.deletes),
        fetched=len(plan.fetches),
        rewritten=len(plan.rewrites),
        kept=kept,
        seconds=seconds,
        already_done=plan.already_done,
    )
