"""Taking a reset back: the old checkpoint is put where it was, file by file, as long as the new one was not started."""

from __future__ import annotations

import logging
import time

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.sealing import put_seal, remove_seal
from airflow_ckpt_provider.backup.set_aside import SetAside
from airflow_ckpt_provider.backup.target import look_at
from airflow_ckpt_provider.backup.transfer import WORKERS
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError
from airflow_ckpt_provider.recovery.reset import read_reset
from airflow_ckpt_provider.recovery.reset_apply import remove_hidden_checksum
from airflow_ckpt_provider.recovery.reset_plan import ResetPlan
from airflow_ckpt_provider.recovery.undo import UndoOutcome
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

_SUFFIX = "-undo"


def reset_to_undo(checkpoint: Location, repository: Repository, plan_id: str | None) -> ResetPlan | None:
    """The reset that an undo is about; ``None`` where it is about something else, such as a rewind.

    :param plan_id: as asked for; ``None``: what is half done, or else the newest change of this checkpoint.
    """
    if plan_id is None:
        mark = look_at(checkpoint).seal
        plan_id = mark.plan_id.removesuffix(_SUFFIX) if mark else None
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
    now = look_at(checkpoint)
    mark = now.seal
    if mark and mark.plan_id.removesuffix(_SUFFIX) != plan.plan_id:
        raise SealedError(
            f"{checkpoint} is sealed by plan {mark.plan_id} ({mark.reason}): {mark.path}",
            hint="let that plan finish first",
        )
    records = {r["kind"]: r for r in repository.records() if r["plan_id"].removesuffix(_SUFFIX) == plan.plan_id}
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
    highest = max((b for path in plan.before if (b := _number(path)) is not None), default=-1)
    if mark is None:
        reason_of_seal = f"undo of reset {plan.plan_id}"
        mark = put_seal(checkpoint, highest + 1, plan_id=plan.plan_id + _SUFFIX, reason=reason_of_seal, made_by=made_by)
    aside = SetAside(repository, plan.name, plan.plan_id, "checkpoint")
    kept = aside.sizes or {}
    extra = [path for path in look_at(checkpoint).visible if path not in plan.before]
    for path in sorted(extra, reverse=True):
        checkpoint.delete(path)
    for path in kept:
        remove_hidden_checksum(checkpoint, path)
    aside.put_back(checkpoint, sorted(kept), workers=workers)
    found = {path: file.size for path, file in look_at(checkpoint).visible.items()}
    differing = sorted(path for path in {*plan.before, *found} if plan.before.get(path) != found.get(path))
    if differing:
        raise StorageError(
            f"{checkpoint}/{differing[0]} is not what it was before reset {plan.plan_id} ({len(differing)} differ)",
            hint=f"it stays sealed by plan {mark.plan_id}; see who else writes there, then run the same command again",
        )
    facts = {"made_by": made_by, "reason": reason, "checkpoint": checkpoint.uri}
    repository.record(plan.plan_id + _SUFFIX, {"kind": "undo", "of": plan.plan_id, **facts})
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


def _number(path: str) -> int | None:
    directory, _, name = path.partition("/")
    return batch_id_of(name) if directory == OFFSETS else None
