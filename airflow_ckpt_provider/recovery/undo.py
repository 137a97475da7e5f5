"""Taking a change back, whatever verb made it: from the plan that is kept to the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_ckpt_provider.backup.repository import SAFETY_SUFFIX, Repository
from airflow_ckpt_provider.change.engine import Change, SinkAction
from airflow_ckpt_provider.change.plan import chain_command
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.change.undo import UndoPlan, plan_to_undo, plan_undo
from airflow_ckpt_provider.errors import NoSuchBackupError, RefusedError
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.recovery.outcome import RecoveryOutcome
from airflow_ckpt_provider.recovery.restore.safety import kept_by_earlier_version
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.sink import BringForward
from airflow_ckpt_provider.sinks.sink import Sink, named_sinks
from airflow_ckpt_provider.storage.location import Location, plain_uri


@dataclass(frozen=True, slots=True)
class UndoOutcome(RecoveryOutcome):
    """A change that was undone.

    :param plan_id: the plan that was undone.
    :param kind: what it was: ``rewind``, ``reset``, ``repair``, ``restore``, ``flow-reset``.
    :param checkpoint: URI of the checkpoint.
    :param put_back: files of the checkpoint that were put back.
    :param deleted: files that the change had written and that were removed.
    :param table_version: the commit that brought the table forward; ``None`` without one, and with several sinks.
    :param seconds: how long it took.
    :param already_done: it had been undone before.
    :param sinks: of several sinks, what was done to each: ``uri`` and ``table_version``; empty for one.
    """

    plan_id: str
    kind: str
    checkpoint: str
    put_back: int
    deleted: int
    table_version: int | None
    seconds: float
    already_done: bool
    sinks: tuple[Mapping[str, Any], ...] = field(default=())


def undo(
    checkpoint: Location,
    repository: Repository,
    *,
    plan_id: str | None = None,
    sink: Sink | Sequence[Sink] | None = None,
    rest: RestRule | None = None,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
    open_place: Callable[[str], Location] | None = None,
    on_plan: Callable[[UndoPlan], None] | None = None,
    of_chain: str | None = None,
    moved: Callable[[UndoPlan], Mapping[str, str]] | None = None,
) -> UndoOutcome:
    """Undo a change, or resume an undo that was stopped.

    :param checkpoint: the checkpoint; of a flow, the version that the change made, or the one that was live before.
    :param repository: the one that the change was carried out with.
    :param plan_id: the change; by default the one that is half-way, else the newest of this checkpoint.
    :param sink: the sink, where a rewind rolled one back; all of them where it rolled several back.
    :param rest: how the query is known to be stopped.
    :param made_by: the run or user that undoes it.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :param open_place: opens the other version of a flow; by default in the store of the checkpoint.
    :param on_plan: called with the plan before it is carried out.
    :param of_chain: the chain that is undone, of which this is a part: the seal then stays.
    :param moved: of a part, gives the log entries that get other source positions than they had.
    :raises NoSuchBackupError: there was no such change.
    :raises RefusedError: something was written since, a later change has to be undone first, or the sink cannot be brought
        forward; nothing was changed.
    :raises CkptError: as :meth:`~airflow_ckpt_provider.change.engine.Change.apply` raises.
    """
    change = undoing(checkpoint, repository, plan_id=plan_id, sink=sink, open_place=open_place, of_chain=of_chain)
    plan = change.plan
    if on_plan:
        on_plan(plan)
    if moved and not plan.already_done:
        plan = replace(plan, moved=moved(plan))
    change = replace(change, plan=plan, rest=rest or RestRule(), made_by=made_by, reason=reason, workers=workers)
    done = change.apply()
    return UndoOutcome(
        plan_id=plan.undone,
        kind=str(plan.of["kind"]),
        checkpoint=plan.checkpoint,
        put_back=0 if done.already_done else len(plan.kept),
        deleted=done.removed,
        table_version=done.sink.get("table_version"),
        seconds=done.seconds,
        already_done=done.already_done,
        sinks=tuple(done.sink.get("sinks", ())),
    )


@dataclass(frozen=True, slots=True)
class Undoing(Change):
    """A change that takes another one back."""

    plan: UndoPlan


def undoing(
    checkpoint: Location,
    repository: Repository,
    *,
    plan_id: str | None = None,
    sink: Sink | Sequence[Sink] | None = None,
    open_place: Callable[[str], Location] | None = None,
    of_chain: str | None = None,
) -> Undoing:
    """Plan to take a change back; reads only. Parameters and errors: see :func:`undo`."""
    try:
        document = plan_to_undo(checkpoint, repository, plan_id)
    except NoSuchBackupError:
        _refuse_old_restore(checkpoint, repository)
        raise
    if document.get("observed") == checkpoint.uri:
        checkpoint = _sibling(checkpoint, str(document["checkpoint"]), open_place)
    chain = document.get("chain")
    if chain and chain["plan_id"] != of_chain:
        raise RefusedError(
            f"{document['kind']} {document['plan_id']} of {checkpoint} is a part of chain {chain['plan_id']}: undone alone, "
            "the streams that were changed together would be at different rows",
            hint=f"undo all: `{chain_command('undo', chain)}`",
        )
    former = document.get("observed")
    observed = _sibling(checkpoint, str(former), open_place) if former else None
    plan = plan_undo(checkpoint, repository, document, observed=observed)
    action: SinkAction | None = None
    if document["kind"] == RewindPlan.kind and not plan.already_done:
        action = BringForward(RewindPlan.of_document(document), named_sinks(sink), repository, plan.record)
    return Undoing(plan, checkpoint, repository, observed=observed, sink=action, lifts_seal=of_chain is None)


def _sibling(version: Location, uri: str, open_place: Callable[[str], Location] | None) -> Location:
    """Another version of the same flow, which a plan names.

    :raises RefusedError: it does not lie beside this one.
    """
    own, (parent, _, number) = plain_uri(version.uri).rpartition("/")[0], plain_uri(uri).rpartition("/")
    if parent != own or not number.isdecimal():
        raise RefusedError(
            f"the plan in the repository is of {uri}, which is no version of the flow of {version}; nothing was changed",
            hint="it was damaged or forged: put it back from a copy of the repository",
        )
    if open_place:
        return open_place(uri)
    return Location(version.store, f"{version.root.rstrip('/').rpartition('/')[0]}/{number}")


def _refuse_old_restore(checkpoint: Location, repository: Repository) -> None:
    """Say where a restore that version 0.1.0 has begun keeps what it replaced: it kept no plan that could be undone.

    :raises RefusedError: the checkpoint is sealed by such a restore.
    """
    mark = inspect_target(checkpoint).seal
    if mark is None:
        return
    for name in repository.names():
        kept = kept_by_earlier_version(repository, name=name.removesuffix(SAFETY_SUFFIX), plan_id=mark.plan_id)
        if kept:
            raise RefusedError(
                f"{checkpoint} is sealed by restore {mark.plan_id} of version 0.1.0, which is not undone file by file; what it "
                f"replaced is kept: {kept}",
                hint="run the same restore again, which completes it; then restore what it kept",
            )
