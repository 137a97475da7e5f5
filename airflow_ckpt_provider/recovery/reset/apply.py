"""Carrying a reset out: the change engine does it; here stands what the outcome says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.engine import Change
from airflow_ckpt_provider.change.rest import RestProof, RestRule
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.recovery.outcome import RecoveryOutcome
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.storage.location import Location


@dataclass(frozen=True, slots=True)
class ResetOutcome(RecoveryOutcome):
    """A reset that was carried out.

    :param plan_id: the plan; ``undo`` undoes it by this id.
    :param checkpoint: URI of the checkpoint.
    :param way: what took the place of the old checkpoint.
    :param start: the batch of the old query after which the new one reads; ``None`` from scratch.
    :param query_id: the id the query had.
    :param new_query_id: the id it has; ``None`` where Spark makes one at the first start.
    :param options: source -> options of its reader.
    :param conf: settings of the session at the first start.
    :param snippet: both as Python.
    :param deleted: files that were removed.
    :param written: files that were written.
    :param kept: where the old checkpoint is kept, in the repository.
    :param seconds: how long it took.
    """

    plan_id: str
    checkpoint: str
    way: str
    start: int | None
    query_id: str | None
    new_query_id: str | None
    options: Mapping[str, Mapping[str, str]]
    conf: Mapping[str, str]
    snippet: str
    deleted: int
    written: int
    kept: str | None
    seconds: float


def outcome_of(plan: ResetPlan, *, kept: str | None, seconds: float) -> ResetOutcome:
    """What a plan has done once it was carried out."""
    return ResetOutcome(
        plan_id=plan.plan_id,
        checkpoint=plan.checkpoint,
        way=plan.way.value,
        start=plan.start,
        query_id=plan.query_id,
        new_query_id=plan.new_query_id,
        options=plan.options,
        conf=plan.conf,
        snippet=plan.snippet,
        deleted=len(plan.deletes),
        written=len(plan.wanted),
        kept=kept,
        seconds=seconds,
    )


def apply_reset(
    plan: ResetPlan,
    checkpoint: Location,
    repository: Repository,
    *,
    accept: Collection[str] = (),
    fingerprint: str | None = None,
    rest: RestRule | None = None,
    proof: RestProof | None = None,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> ResetOutcome:
    """Carry a reset out, or resume it.

    :param plan: from :func:`~airflow_ckpt_provider.recovery.reset.planning.plan_reset`.
    :param checkpoint: the checkpoint that it was made for.
    :param repository: keeps the old checkpoint, the plan and the audit record.
    :param accept: words of the risks that somebody accepts, as the plan names them.
    :param fingerprint: of the plan that was approved; ``None``: not compared.
    :param rest: how the query is known to be stopped.
    :param proof: that it is, where that was proven before.
    :param made_by: the run or user that resets.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :raises CkptError: as :meth:`~airflow_ckpt_provider.change.engine.Change.apply` raises.
    """
    change = Change(
        plan,
        checkpoint,
        repository,
        rest=rest or RestRule(),
        proof=proof,
        made_by=made_by,
        reason=reason,
        workers=workers,
    )
    done = change.apply(accept=accept, fingerprint=fingerprint)
    return outcome_of(plan, kept=done.kept, seconds=done.seconds)
