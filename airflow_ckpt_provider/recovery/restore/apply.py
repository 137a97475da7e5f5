"""Carrying a restore out: the change engine does it; here stands what the outcome says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from airflow_ckpt_provider.backup.claims import in_use
from airflow_ckpt_provider.backup.copy_progress import OnProgress
from airflow_ckpt_provider.backup.file_table import kept_in_memory
from airflow_ckpt_provider.backup.kept_contents import KeptContents, fit
from airflow_ckpt_provider.change.engine import Change
from airflow_ckpt_provider.change.rest import RestProof, RestRule
from airflow_ckpt_provider.change.write_engine import WriteEngine
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.recovery.outcome import RecoveryOutcome
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan, restore_command
from airflow_ckpt_provider.storage.location import Location


@dataclass(frozen=True, slots=True)
class RestoreOutcome(RecoveryOutcome):
    """A restore that was carried out.

    :param kept: where what was replaced is kept, or ``None`` if there was nothing.
    :param unchanged: how many of the files were there already, and stayed.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    backup_id: str
    target: str
    batch_id: int
    files: int
    bytes: int
    seconds: float
    kept: str | None
    unchanged: int
    already_done: bool


def apply_restore(
    plan: RestorePlan,
    *,
    observed: Location | None = None,
    observed_fingerprint: str | None = None,
    accept: Collection[str] = (),
    fingerprint: str | None = None,
    rest: RestRule | None = None,
    proof: RestProof | None = None,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
    lifts_seal: bool = True,
    writes: WriteEngine | None = None,
) -> RestoreOutcome:
    """Carry a restore out, or resume it.

    :param plan: from :func:`~airflow_ckpt_provider.recovery.restore.planning.plan_restore`.
    :param observed: the checkpoint whose query has to be stopped, where that is another place than the target: the live version
        of a flow.
    :param observed_fingerprint: of that checkpoint when the plan was made; ``None``: not compared.
    :param accept: words of the risks that somebody accepts, as the plan names them.
    :param fingerprint: of the plan that was approved; ``None``: not compared.
    :param rest: how the query is known to be stopped.
    :param proof: that it is, where that was proven before.
    :param made_by: the run or user that restores.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :param on_progress: called after each file that was written.
    :param lifts_seal: the seal is lifted at the end; ``False`` where several are restored together.
    :param writes: who writes files that are not at the target; ``None``: threads of this process.
    :raises DamagedBackupError: an object is not what was backed up; nothing was changed.
    :raises RefusedError: the restore that is resumed is one of a flow, and the version that is sealed with it was not named.
    :raises CkptError: as :meth:`~airflow_ckpt_provider.change.engine.Change.apply` raises.
    """
    if plan.observed and observed is None:
        again = restore_command(plan.document(), plan.repository.location.uri)
        raise RefusedError(
            f"restore {plan.plan_id} makes {plan.checkpoint} the next version of a flow, and has sealed {plan.observed} too; "
            "nothing was changed by this attempt",
            hint=f"run that one again: `{again}`, or undo it: `{plan.command_to_undo(plan.repository)}`",
        )
    if writes is None and fit(len(plan.entries), plan.bytes):  # others read for themselves what they write
        plan = replace(plan, kept=KeptContents())
    change = Change(
        plan,
        plan.target.location,
        plan.repository,
        observed=observed,
        observed_fingerprint=observed_fingerprint,
        rest=rest or RestRule(),
        proof=proof,
        in_use=lambda: in_use(plan.repository, plan.manifest, what="restore", made_by=made_by),
        made_by=made_by,
        reason=reason,
        workers=workers,
        on_progress=on_progress,
        files=len(plan.entries),
        size=plan.bytes,
        lifts_seal=lifts_seal,
        writes=writes,
    )
    with kept_in_memory(plan.entries):
        done = change.apply(accept=accept, fingerprint=fingerprint)
    return RestoreOutcome(
        plan_id=plan.plan_id,
        backup_id=plan.manifest.backup_id,
        target=plan.checkpoint,
        batch_id=plan.batch_id,
        files=len(plan.entries),
        bytes=plan.bytes,
        seconds=done.seconds,
        kept=plan.kept_before or (done.kept if plan.replacing and not done.already_done else None),
        unchanged=len(plan.entries) if done.already_done else done.unchanged,
        already_done=done.already_done,
    )
