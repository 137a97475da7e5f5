"""Carrying a repair out: the change engine does it; here stands what the outcome says."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.claims import entries_in_use
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import WORKERS
from airflow_ckpt_provider.change.engine import Change
from airflow_ckpt_provider.change.rest import RestProof, RestRule
from airflow_ckpt_provider.change.stopping import with_query_stopped
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.repair.plan import RepairPlan
from airflow_ckpt_provider.recovery.repair.planning import repair_place


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """A repair that was carried out.

    :param plan_id: the plan.
    :param checkpoint: URI of the checkpoint.
    :param batch_id: the batch that the query goes on after.
    :param replayed: how many batches are run again that had been logged or committed.
    :param deleted: files that went.
    :param fetched: files that came from backups.
    :param rewritten: files that were written anew.
    :param kept: where what went is kept; ``None`` where nothing did.
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

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


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
    kept_in = repository or Repository.open_or_create(repair_place(checkpoint.location))
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
    rest: RestRule | None = None,
    made_by: str = "",
    **more: Any,
) -> tuple[RepairPlan, RepairOutcome]:
    """Plan a repair and carry it out, after the query was stopped where that is allowed.

    :param plan: makes the plan, given the id under which the checkpoint was sealed to stop its query, or ``None``.
    :param stop_running: a query that still runs may be stopped, by the seal, at its batch boundary.
    :param more: what else :func:`apply_repair` takes.
    """

    def work(seal_id: str | None, proof: RestProof | None) -> tuple[RepairPlan, RepairOutcome]:
        made = plan(seal_id)
        done = apply_repair(made, checkpoint, repository=repository, rest=rest, proof=proof, made_by=made_by, **more)
        return made, done

    if not stop_running:
        return work(None, None)
    return with_query_stopped(
        checkpoint.location,
        repository or Repository.open_or_create(repair_place(checkpoint.location)),
        work,
        change=RepairPlan.kind,
        stop_running=stop_running,
        rest=rest or RestRule(),
        made_by=made_by,
    )


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
