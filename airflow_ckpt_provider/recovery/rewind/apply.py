"""Carrying a rewind out: the change engine does it; here stands what is done to the sink, and what the outcome says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.backup.claims import entries_in_use
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.engine import Change
from airflow_ckpt_provider.change.rest import RestProof, RestRule
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.recovery.outcome import RecoveryOutcome
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.sink import RollBack
from airflow_ckpt_provider.sinks.sink import Sink, named_sinks


@dataclass(frozen=True, slots=True)
class RewindOutcome(RecoveryOutcome):
    """A rewind that was carried out.

    :param plan_id: the plan; ``undo`` undoes it by this id.
    :param checkpoint: URI of the checkpoint.
    :param batch_id: the batch it is at; the next to run is one more.
    :param deleted: files of the checkpoint that were removed.
    :param written: files of the checkpoint that came from a backup.
    :param table_version: the commit that rolled the table back; ``None`` without one, and with several sinks.
    :param kept: where what was removed is kept, in the repository.
    :param seconds: how long it took.
    :param already_done: nothing had to be done.
    :param sinks: of several sinks, what was done to each: ``uri`` and ``table_version``; empty for one.
    """

    plan_id: str
    checkpoint: str
    batch_id: int
    deleted: int
    written: int
    table_version: int | None
    kept: str | None
    seconds: float
    already_done: bool
    sinks: tuple[Mapping[str, Any], ...] = field(default=())


def apply_rewind(
    plan: RewindPlan,
    checkpoint: Checkpoint,
    repository: Repository,
    *,
    sink: Sink | Sequence[Sink] | None = None,
    accept: Collection[str] = (),
    fingerprint: str | None = None,
    rest: RestRule | None = None,
    proof: RestProof | None = None,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
    lifts_seal: bool = True,
) -> RewindOutcome:
    """Carry a rewind out, or resume it.

    :param plan: from :func:`~airflow_ckpt_provider.recovery.rewind.planning.plan_rewind`.
    :param checkpoint: the checkpoint that it was made for.
    :param repository: keeps what is removed, the plan and the audit record.
    :param sink: the sink that the plan was made for, or all of them.
    :param accept: words of the risks that somebody accepts, as the plan names them.
    :param fingerprint: of the plan that was approved; ``None``: not compared.
    :param rest: how the query is known to be stopped.
    :param proof: that it is, where that was proven before.
    :param made_by: the run or user that rewinds.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :param lifts_seal: the seal is lifted at the end; ``False`` in a chain, which lifts all of them after the last stream.
    :raises CkptError: as :meth:`~airflow_ckpt_provider.change.engine.Change.apply` raises.
    """
    change = Change(
        plan,
        checkpoint.location,
        repository,
        sink=RollBack(plan, named_sinks(sink), repository),
        rest=rest or RestRule(),
        proof=proof,
        in_use=lambda: entries_in_use(repository, plan.writes, what="rewind", made_by=made_by),
        made_by=made_by,
        reason=reason,
        workers=workers,
        lifts_seal=lifts_seal,
    )
    done = change.apply(accept=accept, fingerprint=fingerprint)
    return RewindOutcome(
        plan_id=plan.plan_id,
        checkpoint=plan.checkpoint,
        batch_id=plan.batch_id,
        deleted=len(plan.deletes),
        written=len(plan.writes),
        table_version=done.sink.get("table_version"),
        kept=done.kept,
        seconds=done.seconds,
        already_done=done.already_done,
        sinks=tuple(done.sink.get("sinks", ())),
    )
