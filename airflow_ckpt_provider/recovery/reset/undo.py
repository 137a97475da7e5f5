"""Taking a reset back: the old checkpoint is put where it was, file by file, as long as the new one was not started."""

from __future__ import annotations

import logging
import time

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import WORKERS
from airflow_ckpt_provider.change.fail_closed_order import delete_files
from airflow_ckpt_provider.change.plan_seal import raise_above, seal_for_plan
from airflow_ckpt_provider.change.sealing import remove_seal, sealed_by_another
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import expect_files, inspect_target
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.planning import read_reset
from airflow_ckpt_provider.recovery.rewind.undo import UndoOutcome, taken_back_by, undo_of
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)


def reset_to_undo(checkpoint: Location, repository: Repository, plan_id: str | None) -> ResetPlan | None:
    """The reset that an undo is about; ``None`` where it is about something else, such as a rewind.

    :param plan_id: as asked for; ``None``: what is half done, or else the newest change of this checkpoint.
    """
    if plan_id is None:
        mark = inspect_target(checkpoint).seal
        plan_id = taken_back_by(mark.plan_id) if mark else None
    if plan_id is None:
        changes = (r for r in repository.records() if r.get("kind") in ("rewind", "reset"))
        own = [record for record in changes if record.get("checkpoint") == checkpoint.uri]
        # By the time in the record: names of records tell seconds apart, no less.
        plan_id = str(max(own, key=lambda record: str(record["at"]))["plan_id"]) if own else None
    return read_reset(repository, plan_id) if plan_id else None


def undo_reset(
    plan: ResetPlan,
    checkpoint: Location,
    repository: Repository,
    *,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> UndoOutcome:
    """Take a reset back.

    :param plan: the reset.
    :param checkpoint: the checkpoint.
    :param repository: the one that the reset was carried out with.
    :param made_by: the run or user that takes it back.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :raises RefusedError: the new checkpoint was started; nothing was changed.
    :raises SealedError: something else has sealed the checkpoint.
    :raises StorageError: reading or writing failed; the checkpoint stays sealed, and the same command again finishes.
    """
    began = time.monotonic()
    if plan.checkpoint != checkpoint.uri:
        raise RefusedError(f"reset {plan.plan_id} was of {plan.checkpoint}, not of {checkpoint}", hint="name that one")
    now = inspect_target(checkpoint)
    mark = now.seal
    if mark and taken_back_by(mark.plan_id) != plan.plan_id:
        raise sealed_by_another(checkpoint.uri, mark)
    records = {r["kind"]: r for r in repository.records() if taken_back_by(r["plan_id"]) == plan.plan_id}
    if mark is None:
        if "undo" in records:
            return UndoOutcome(plan.plan_id, checkpoint.uri, 0, 0, None, time.monotonic() - began, already_done=True)
        if "reset" not in records:
            raise RefusedError(
                f"reset {plan.plan_id} changed nothing: it was refused or never carried out",
                hint="there is nothing to undo",
            )
        if now.fingerprint != records["reset"]["after"]:
            raise RefusedError(
                f"{checkpoint} was written to since reset {plan.plan_id}: the new checkpoint was started",
                hint="go on with it, or reset it again; the old one stays in the repository, in "
                f"{records['reset']['kept']}/files",
            )
    mark = seal_for_plan(
        checkpoint,
        plan_id=undo_of(plan.plan_id),
        reason=f"undo of reset {plan.plan_id}",
        made_by=made_by,
        fingerprint=now.fingerprint if mark is None else None,
        above=plan.before,
        own=(plan.plan_id,),
    )
    mark = raise_above(checkpoint, mark, plan.before, made_by=made_by)
    aside = SetAside(repository, plan.name, plan.plan_id, "checkpoint")
    kept = aside.sizes or {}
    extra = [path for path in inspect_target(checkpoint).visible if path not in plan.before]
    delete_files(checkpoint, extra, workers=workers)
    aside.put_back(checkpoint, sorted(kept), workers=workers)
    what = f"what it was before reset {plan.plan_id}"
    expect_files(inspect_target(checkpoint), plan.before.items(), plan_id=mark.plan_id, what=what)
    facts = {"made_by": made_by, "reason": reason, "checkpoint": checkpoint.uri}
    repository.record(undo_of(plan.plan_id), {"kind": "undo", "of": plan.plan_id, **facts})
    remove_seal(checkpoint, mark)
    log.info("%s is what it was before reset %s; seal lifted", checkpoint, plan.plan_id)
    return UndoOutcome(
        plan_id=plan.plan_id,
        checkpoint=checkpoint.uri,
        put_back=len(kept),
        deleted=len(extra),
        table_version=None,
        seconds=time.monotonic() - began,
        already_done=False,
    )
