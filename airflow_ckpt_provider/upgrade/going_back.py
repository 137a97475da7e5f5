"""The way back of an upgrade: checkpoint, state and sink become what they were before the new code.

Nothing to do where the new code was never allowed to start: then the old one continues where it stopped. Else
everything comes from the backup of the drained checkpoint, not from what the new code left of it, and what the new code
wrote leaves the sink.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.plan import RISKS, undone_by
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.sealing import unseal
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifiers import Specifier
from airflow_ckpt_provider.sinks.report import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.upgrade.fence import fence, own_seal
from airflow_ckpt_provider.upgrade.record import Event, Upgrade, note, note_refusal

log = logging.getLogger(__name__)

_OF_SOURCES = tuple(word for word in RISKS if word.startswith("source_"))


@dataclass(frozen=True, slots=True)
class WayBack:
    """How an upgrade was rolled back.

    :param restored: the checkpoint was put back; else the new code had never been allowed to start.
    :param batch_id: the batch after which the old code continues.
    :param plan: the rewind, as plain JSON; ``None`` where nothing had to be changed.
    """

    restored: bool
    batch_id: int | None
    plan: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """The way back as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def go_back(
    checkpoint: Checkpoint,
    repository: Repository,
    upgrade: Upgrade,
    *,
    sink: Sink | Sequence[Sink],
    sink_policy: SinkPolicy | Sequence[SinkPolicy | None] | None,
    accept: Collection[str] = (),
    rest: RestRule | None = None,
    made_by: str = "",
) -> WayBack:
    """Put checkpoint and sink back, and lift the seal. Done once: a second call finds that it was.

    :param checkpoint: the checkpoint, sealed by :func:`~airflow_ckpt_provider.upgrade.fence.fence`.
    :param repository: keeps the upgrade's record and its backup.
    :param sink: what the stream writes to, one sink or several.
    :param sink_policy: what is done about rows that the new code wrote: one for all sinks, or one for each.
    :param accept: what a person has accepted, beside what the record has; see :mod:`~airflow_ckpt_provider.upgrade.way_back`.
    :param rest: how the new code is known to be stopped.
    :raises RefusedError: it cannot be put back; nothing was changed, and the checkpoint is sealed.
    :raises SealedError: somebody else has sealed it; nothing was changed.
    """
    if upgrade.has(Event.BACK):
        return WayBack(bool(upgrade.fact(Event.BACK, "plan")), upgrade.fact(Event.BACK, "batch_id"), None)
    location = checkpoint.location
    backup_id, batch_id = upgrade.fact(Event.RELEASED, "backup_id"), upgrade.fact(Event.RELEASED, "batch_id")
    mark = own_seal(inspect_target(location), upgrade)
    done = _recorded(repository, upgrade)
    if mark is None and done is None:
        raise RefusedError(
            f"{location} is not sealed any more: the stream may have been started meanwhile",
            hint="clear the run from its task `seal_again` on",
        )
    plan: Mapping[str, Any] | None = done
    accept = {*accept, *upgrade.accepted}
    if backup_id is not None and mark is not None:
        plan = _rewind(
            checkpoint,
            repository,
            upgrade,
            mark,
            sink=sink,
            sink_policy=sink_policy,
            accept=accept,
            rest=rest,
            made_by=made_by,
        )
    # Noted before the seal of a way without changes is lifted: then nobody seals or rewinds again.
    note(repository, upgrade, Event.BACK, batch_id=batch_id, plan=plan["plan_id"] if plan else None)
    if left := own_seal(inspect_target(location), upgrade):
        unseal(checkpoint, plan_id=left.plan_id)
    return WayBack(plan is not None, batch_id, plan)


def _rewind(
    checkpoint: Checkpoint,
    repository: Repository,
    upgrade: Upgrade,
    mark: Seal,
    *,
    sink: Sink | Sequence[Sink],
    sink_policy: SinkPolicy | Sequence[SinkPolicy | None] | None,
    accept: Collection[str],
    rest: RestRule | None,
    made_by: str,
) -> Mapping[str, Any] | None:
    plan = plan_rewind(
        checkpoint,
        Specifier("to_batch", str(upgrade.fact(Event.RELEASED, "batch_id"))),
        sink=sink,
        sink_exit=sink_policy,
        repository=repository.location,
        name=upgrade.name,
        exact_replay=False,
        backup=str(upgrade.fact(Event.RELEASED, "backup_id")),
        seal_id=mark.plan_id,
    )
    log.info("\n%s", plan.to_markdown())
    if plan.already_done:
        return None
    try:
        apply_rewind(
            plan,
            checkpoint,
            repository,
            sink=sink,
            # Its way back is the only one there is: data that a source has lost meanwhile is lost for new code as well.
            accept={*accept, *_OF_SOURCES},
            rest=rest,
            made_by=made_by,
            reason=f"upgrade {upgrade.upgrade_id} is rolled back",
        )
    except RefusedError:
        # A rewind that is refused has changed nothing and lifts its seal; here one has to stay until somebody has decided.
        fence(checkpoint, repository, note_refusal(repository, upgrade), made_by=made_by)
        raise
    return plan.to_json()


def _recorded(repository: Repository, upgrade: Upgrade) -> Mapping[str, Any] | None:
    """The way back that was carried out, and whose worker was lost before it could note it."""
    for record in repository.records():
        if undone_by(str(record["plan_id"])) in upgrade.plan_ids and record.get("kind") in ("rewind", "undo"):
            # Newest first: one that somebody has undone is none.
            plan: Mapping[str, Any] = record["plan"]
            return plan if record["kind"] == "rewind" else None
    return None
