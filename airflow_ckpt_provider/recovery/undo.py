"""Taking a rewind back: the checkpoint becomes, file by file, what it was before, and the sink too.

Only as long as nothing was written since: a stream that was started again has made a history of its own. A rewind that was killed
half-way can be taken back as well.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.sealing import remove_seal, seal, sealed_by_another
from airflow_ckpt_provider.backup.set_aside import SetAside
from airflow_ckpt_provider.backup.target import look_at
from airflow_ckpt_provider.backup.transfer import WORKERS
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import NoSuchBackupError, RefusedError, StorageError
from airflow_ckpt_provider.recovery.rewind import Sink, read_plan
from airflow_ckpt_provider.recovery.rewind_apply import put_above
from airflow_ckpt_provider.recovery.rewind_plan import RewindPlan
from airflow_ckpt_provider.recovery.sinks.delta_log import read_table_history
from airflow_ckpt_provider.recovery.sinks.delta_rollback import TableTarget, committed_by, roll_back_table

log = logging.getLogger(__name__)

#: What the id of an undo is made of, so that a second run finds the first one's seal and commit.
_SUFFIX = "-undo"


@dataclass(frozen=True, slots=True)
class UndoOutcome:
    """A rewind that was taken back.

    :param plan_id: the plan that was taken back.
    :param checkpoint: URI of the checkpoint.
    :param put_back: files of the checkpoint that were put back.
    :param deleted: files that the rewind had written and that went.
    :param table_version: the commit that rolled the table forward, or ``None``.
    :param seconds: how long it took.
    :param already_done: it had been taken back before.
    """

    plan_id: str
    checkpoint: str
    put_back: int
    deleted: int
    table_version: int | None
    seconds: float
    already_done: bool

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


def undo_rewind(
    checkpoint: Checkpoint,
    repository: Repository,
    *,
    plan_id: str | None = None,
    sink: Sink | None = None,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> UndoOutcome:
    """Take a rewind back.

    :param checkpoint: the checkpoint.
    :param repository: the one that the rewind was carried out with.
    :param plan_id: the rewind; by default the newest one of this checkpoint.
    :param sink: the sink, where the rewind rolled one back.
    :param made_by: the run or user that takes it back.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :raises NoSuchBackupError: there was no such rewind.
    :raises RefusedError: something was written since; nothing was changed.
    :raises SealedError: something else has sealed the checkpoint.
    :raises StorageError: reading or writing failed; the checkpoint stays sealed, and the same command again finishes.
    """
    began = time.monotonic()
    location = checkpoint.location
    sink = sink or Sink()
    progress = checkpoint.progress()
    half_done = progress.seal.plan_id.removesuffix(_SUFFIX) if progress.seal else None
    plan = _plan(repository, location.uri, plan_id or half_done)
    if half_done not in (None, plan.plan_id):
        raise sealed_by_another(progress)
    records = [r for r in repository.records() if r.get("plan_id") in (plan.plan_id, plan.plan_id + _SUFFIX)]
    if half_done is None and any(record["kind"] == "undo" for record in records):
        return UndoOutcome(plan.plan_id, location.uri, 0, 0, None, time.monotonic() - began, already_done=True)
    aside = SetAside(repository, plan.name, plan.plan_id, "checkpoint")
    record = next((r for r in records if r["kind"] == "rewind"), None)
    if half_done is None:
        _check_untouched(checkpoint, plan, record, sink)
    mark = progress.seal or seal(
        checkpoint, reason=f"undo of rewind {plan.plan_id}", made_by=made_by, plan_id=plan.plan_id + _SUFFIX
    )
    mark = put_above(location, mark, plan.before, made_by=made_by)
    put_back = sorted(aside.sizes or {})
    table_version = _sink_forward(plan, sink, repository, workers)
    extra = [path for path in look_at(location).visible if path not in plan.before and path != mark.path]
    for path in sorted(extra, reverse=True):
        location.delete(path)
    aside.put_back(location, put_back, workers=workers)
    _check(checkpoint, plan, mark)
    facts = {"made_by": made_by, "reason": reason, "checkpoint": location.uri, "table_version": table_version}
    repository.record(plan.plan_id + _SUFFIX, {"kind": "undo", "of": plan.plan_id, **facts})
    remove_seal(location, mark)
    log.info("%s is what it was before rewind %s; seal lifted", location, plan.plan_id)
    return UndoOutcome(
        plan_id=plan.plan_id,
        checkpoint=location.uri,
        put_back=len(put_back),
        deleted=len(extra),
        table_version=table_version,
        seconds=time.monotonic() - began,
        already_done=False,
    )


def _plan(repository: Repository, uri: str, plan_id: str | None) -> RewindPlan:
    if plan_id is None:
        rewinds = (r for r in repository.records() if r.get("kind") == "rewind" and r.get("checkpoint") == uri)
        plan_id = next((str(record["plan_id"]) for record in rewinds), None)
    plan = read_plan(repository, plan_id) if plan_id else None
    if plan is None:
        what = f"no rewind {plan_id}" if plan_id else f"no rewind of {uri}"
        raise NoSuchBackupError(
            f"{repository.location} knows {what}",
            hint="name the repository that the rewind was carried out with (--repository)",
        )
    return plan


def _check_untouched(checkpoint: Checkpoint, plan: RewindPlan, record: dict[str, Any] | None, sink: Sink) -> None:
    """See that the rewind was carried out, and that neither checkpoint nor sink were written to since."""
    now = look_at(checkpoint.location)
    if record is None:
        if now.fingerprint == plan.fingerprint:
            raise RefusedError(
                f"rewind {plan.plan_id} changed nothing: it was refused or never carried out",
                hint="there is nothing to undo",
            )
        raise RefusedError(
            f"rewind {plan.plan_id} has no audit record and the checkpoint carries no seal of it",
            hint="somebody lifted its seal half-way: restore the safety copy by hand from the repository's set-aside/ directory",
        )
    if now.fingerprint != record["after"]:
        raise RefusedError(
            f"{checkpoint.location} was written to since rewind {plan.plan_id}: the stream went on",
            hint="rewind again instead, to a batch of the new history",
        )
    if plan.rolls_sink_back and plan.sink.kind == "delta":
        if sink.place is None:
            raise RefusedError(
                f"rewind {plan.plan_id} rolled {plan.sink.uri} back too", hint=f"name it: --sink {plan.sink.uri}"
            )
        history = read_table_history(sink.place)
        if committed_by(sink.place, plan.plan_id + _SUFFIX) is None and history.newest != record["table_version"]:
            raise RefusedError(
                f"{sink.place} was written to since rewind {plan.plan_id}: it is at version {history.newest}, the rollback was "
                f"{record['table_version']}",
                hint="rewind again instead",
            )


def _sink_forward(plan: RewindPlan, sink: Sink, repository: Repository, workers: int) -> int | None:
    rollback = plan.sink.rollback
    if not plan.rolls_sink_back or rollback is None:
        return None
    if sink.place is None:
        raise RefusedError(
            f"rewind {plan.plan_id} rolled {plan.sink.uri} back too", hint=f"name it: --sink {plan.sink.uri}"
        )
    if rollback.to_version is None:
        aside = SetAside(repository, plan.name, plan.plan_id, "sink")
        # Data first, and the log upwards: a reader sees a whole number of batches at every moment.
        for path in reversed(rollback.paths):
            if aside.sizes is not None:
                aside.put_back(sink.place, [path], workers=1)
        return None
    if committed_by(sink.place, plan.plan_id) is None or rollback.from_version is None:
        return None  # killed before the table was rolled back
    target = TableTarget(
        table=sink.place,
        version=rollback.from_version,
        app_id=plan.app_id,
        batch_id=plan.sink.remembered if plan.sink.remembered is not None else plan.newest,
        plan_id=plan.plan_id + _SUFFIX,
        storage_options=dict(sink.storage_options),
    )
    return roll_back_table(target)


def _check(checkpoint: Checkpoint, plan: RewindPlan, mark: Seal) -> None:
    found = {path: file.size for path, file in look_at(checkpoint.location).visible.items()}
    differing = sorted(path for path in {*plan.before, *found} if plan.before.get(path) != found.get(path))
    if differing:
        raise StorageError(
            f"{checkpoint.location}/{differing[0]} is not what it was before rewind {plan.plan_id} ({len(differing)} differ)",
            hint=f"it stays sealed by plan {mark.plan_id}; see who else writes there, then run the same command again",
        )
