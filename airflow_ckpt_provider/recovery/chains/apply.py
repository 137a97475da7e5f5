"""Carrying out a rewind of several streams: each by the change engine, as alone, under seals that are lifted together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository, new_plan_id, repository_for_change
from airflow_ckpt_provider.backup.transfer import WORKERS
from airflow_ckpt_provider.change.fence import Fence, fenced
from airflow_ckpt_provider.change.rest import RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.stopping import STOPPING
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import (
    ChangeRunningError,
    CkptError,
    LeaseLostError,
    RefusedError,
    SealedError,
    StorageError,
)
from airflow_ckpt_provider.recovery.chains.plan import ChainPart, ChainPlan
from airflow_ckpt_provider.recovery.chains.planning import part_ids
from airflow_ckpt_provider.recovery.chains.sealed import Begun, RestOf, find_begun, lift_all, seal_all
from airflow_ckpt_provider.recovery.chains.stream import ChainStream, named_streams
from airflow_ckpt_provider.recovery.outcome import RecoveryOutcome
from airflow_ckpt_provider.recovery.rewind.apply import RewindOutcome, apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.sink import RollBack
from airflow_ckpt_provider.sinks.sink import named_sinks
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

#: Makes the plan, given the id under which the checkpoints are sealed; ``None``: they are not.
MakePlan = Callable[[str | None], ChainPlan]


@dataclass(frozen=True, slots=True)
class ChainOutcome(RecoveryOutcome):
    """A chain that was rewound, or undone.

    :param plan_id: the plan of the chain; ``chain undo`` undoes it by this id.
    :param streams: what was done to each stream: its ``name`` and the outcome of its rewind, or of its undo.
    :param seconds: how long it took.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    streams: tuple[Mapping[str, Any], ...]
    seconds: float
    already_done: bool

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {**RecoveryOutcome.to_json(self), "streams": [dict(stream) for stream in self.streams]}


def apply_chain(
    streams: Sequence[ChainStream],
    plan: MakePlan,
    *,
    accept: Collection[str] = (),
    fingerprint: str | None = None,
    rest: RestOf | None = None,
    stop_running: bool = False,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
    on_plan: Callable[[ChainPlan], None] | None = None,
) -> tuple[ChainPlan, ChainOutcome]:
    """Plan a rewind of several streams and carry it out, or resume one that was begun.

    :param streams: the streams, as the plan names them.
    :param plan: makes the plan.
    :param accept: words of the risks that somebody accepts.
    :param fingerprint: of the plan that was approved; ``None``: not compared.
    :param rest: says of a checkpoint how its query is known to be stopped.
    :param stop_running: queries that still run are stopped, at their batch boundaries.
    :param made_by: the run or user.
    :param reason: why, for the audit records.
    :param workers: requests under way at once.
    :param on_plan: called with the plan before it is carried out.
    :raises RefusedError: a stream cannot be rewound, or is not known to be stopped: nothing was changed. Or, once it was begun,
        one refuses: all that are changed stay sealed, and the message names what leads out.
    :raises CkptError: as :func:`~airflow_ckpt_provider.recovery.rewind.apply.apply_rewind` raises.
    """
    began, streams, rest = time.monotonic(), named_streams(tuple(streams)), rest or (lambda _: RestRule())
    with alone(streams, made_by=made_by, what="rewind of a chain") as fence:
        made, outcomes = _apply_chain(
            streams,
            plan,
            fence,
            accept=accept,
            fingerprint=fingerprint,
            rest=rest,
            stop_running=stop_running,
            made_by=made_by,
            reason=reason,
            workers=workers,
            on_plan=on_plan,
        )
    seconds = time.monotonic() - began
    return made, ChainOutcome(made.plan_id, tuple(outcomes), seconds, already_done=made.already_done)


def alone(streams: Sequence[ChainStream], *, made_by: str, what: str) -> AbstractContextManager[Fence]:
    """Be the only attempt at these streams together, besides the fence that each part has of its own.

    :raises ChangeRunningError: another attempt is at work.
    """
    first = min(streams, key=lambda stream: stream.name)
    # A key of its own: the fence of the stream's part is another one.
    key = Location(first.checkpoint.store, f"{first.checkpoint.root.rstrip('/')}.chain")
    return fenced(keeper(streams), key, plan_id="chain", what=what, made_by=made_by)


def _apply_chain(
    streams: tuple[ChainStream, ...],
    plan: MakePlan,
    fence: Fence,
    *,
    accept: Collection[str],
    fingerprint: str | None,
    rest: RestOf,
    stop_running: bool,
    made_by: str,
    reason: str,
    workers: int,
    on_plan: Callable[[ChainPlan], None] | None,
) -> tuple[ChainPlan, list[dict[str, Any]]]:
    by_name = {stream.name: stream for stream in streams}
    begun = find_begun(streams)
    if begun and begun.is_undone:
        command = begun.plan.undo_command if begun.plan else "airflow-ckpt chain undo"
        raise SealedError(f"chain {begun.chain_id} is being undone, and that was not ended", hint=f"`{command}`")
    if begun and begun.plan is None and begun.is_half_way:
        raise SealedError(
            f"chain {begun.chain_id} has begun to change {', '.join(begun.seals)}, and no repository that is named keeps "
            "its plan; nothing was changed by this attempt",
            hint="name the repository of the run that began it (repository / --repository; left out if it was then)",
        )
    proofs: Mapping[str, RestProof] = {}
    if begun and begun.plan:
        made = begun.plan
        _check_same(made, streams)
    else:
        made, proofs = _begin(
            streams, plan, begun, accept, fingerprint, rest, stop_running=stop_running, made_by=made_by, fence=fence
        )
    if on_plan:
        on_plan(made)
    if made.already_done:
        return made, []
    parts = [(part, rewind, by_name[part.name]) for part, rewind in made.rewinds]
    if begun and keeper(streams).audit_of(made.plan_id) is not None:
        fence.check()
        lift_all([stream for _, _, stream in parts], made.plan_id)  # which is all that was left
        return made, []
    ended = [_record(stream, rewind) for _, rewind, stream in parts]
    fence.check()  # a later attempt may have kept another plan under the id of the seals
    _keep(made, streams)
    _check_sealed(made, parts)
    outcomes = []
    try:
        for (part, rewind, stream), record in zip(parts, ended, strict=True):
            if record is not None:
                log.info("%s: its part %s was carried out before", part.name, rewind.plan_id)
                _check_versions(made, part, rewind, record)
                continue
            fence.check()
            outcome = _apply(part, rewind, stream, proofs.get(part.name), rest, accept, made_by, reason, workers)
            outcomes.append({"name": part.name, **outcome.to_json()})
            _check_versions(made, part, rewind, outcomes[-1])
    except (ChangeRunningError, LeaseLostError):
        raise
    except CkptError as e:
        names = ", ".join(part.name for part, _, _ in parts)
        e.add_hint(
            f"{names} stay sealed, so none of them can start: run the same command again, or undo it: "
            f"`{made.undo_command}`"
        )
        raise
    keeper(streams).record(
        made.plan_id, {"kind": made.kind, "made_by": made_by, "reason": reason, "plan": made.to_json()}
    )
    fence.check()
    lift_all([stream for _, _, stream in parts], made.plan_id)
    return made, outcomes


def _begin(
    streams: tuple[ChainStream, ...],
    plan: MakePlan,
    begun: Begun | None,
    accept: Collection[str],
    fingerprint: str | None,
    rest: RestOf,
    *,
    stop_running: bool,
    made_by: str,
    fence: Fence,
) -> tuple[ChainPlan, Mapping[str, RestProof]]:
    """Seal all streams that are rewound, plan again under the seals, check everything, and keep the plans."""
    chain_id = begun.chain_id if begun else new_plan_id()
    ids = part_ids(chain_id, streams)
    by_name = {stream.name: stream for stream in streams}
    if begun is None:
        shown = plan(None)
        if shown.already_done:
            return shown, {}
        going = [by_name[part.name] for part, _ in shown.rewinds]
        if not stop_running:
            shown.check_fingerprint(fingerprint)
            shown.check_accepted(accept)
    else:
        # Seals are there, and no plan: nothing was changed. Which of the streams are rewound, the plan under the seals says.
        going = list(streams)
    proofs = seal_all(
        going, ids, rest=rest, stop_running=stop_running, what=f"{STOPPING}rewind of a chain", made_by=made_by
    )
    try:
        made = plan(chain_id)
        made.check_fingerprint(fingerprint)
        made.check_accepted(accept)
        for part, rewind in made.rewinds:
            stream = by_name[part.name]
            if stream not in going:
                raise RefusedError(
                    f"{part.name} has to be rewound too, and had not when it was planned: it was written to meanwhile",
                    hint="make a new plan, and apply that",
                )
            RollBack(rewind, named_sinks(stream.sinks), stream.held).check()
    except RefusedError:
        fence.check()
        lift_all(going, chain_id)
        raise
    rewound = {part.name for part, _ in made.rewinds}
    spare = going if made.already_done else [stream for stream in going if stream.name not in rewound]
    lift_all(spare, chain_id)
    return made, proofs


def _keep(plan: ChainPlan, streams: Sequence[ChainStream]) -> None:
    """Keep the plan of the chain, and then that of each part, before anything is changed."""
    keeper(streams).keep_plan(plan.plan_id, plan.document())
    by_name = {stream.name: stream for stream in streams}
    for part, rewind in plan.rewinds:
        stream = by_name[part.name]
        repository = repository_for_change(stream.place, stream.checkpoint)
        if repository.kept_plan(rewind.plan_id) is None:
            repository.keep_plan(rewind.plan_id, rewind.document())


def keeper(streams: Sequence[ChainStream]) -> Repository:
    """The repository that keeps the plan of the chain: that of the first stream by name, in whatever order they are given."""
    first = min(streams, key=lambda stream: stream.name)
    return repository_for_change(first.place, first.checkpoint)


def _check_same(plan: ChainPlan, streams: Sequence[ChainStream]) -> None:
    """See that the streams are those of the plan that is resumed, with the sinks that it has.

    :raises SealedError: they are others.
    """
    if {part.argument for part in plan.parts} != {stream.argument for stream in streams}:
        raise SealedError(
            f"some of these streams are sealed by chain {plan.plan_id}, a rewind ({plan.target}) that was not ended",
            hint=f"run that one again: `airflow-ckpt chain rewind {plan.arguments} … --apply`, or undo it: "
            f"`{plan.undo_command}`",
        )


def _record(stream: ChainStream, rewind: RewindPlan) -> dict[str, Any] | None:
    """The audit record of a part that was carried out; ``None`` where it was not."""
    held = stream.held
    return held.audit_of(rewind.plan_id) if held else None


def carried_out_by(streams: Sequence[ChainStream], made_by: str) -> dict[str, Any] | None:
    """The audit record of a chain of these streams that a run has carried out; ``None`` where it has to continue, or
    did not begin.

    :param streams: the streams.
    :param made_by: the run.
    """
    held = min(streams, key=lambda stream: stream.name).held
    record = held.audit(made_by) if held else None
    if record is None or record.get("kind") != ChainPlan.kind:
        return None
    return record if find_begun(streams) is None else None


def _check_sealed(plan: ChainPlan, parts: Sequence[tuple[ChainPart, RewindPlan, ChainStream]]) -> None:
    """See that every stream of a chain that is resumed is still sealed.

    :raises RefusedError: somebody has lifted a seal: its query may have run.
    """
    for part, rewind, stream in parts:
        mark = inspect_target(stream.checkpoint).seal
        if mark is None or mark.plan_id != rewind.plan_id:
            raise RefusedError(
                f"the seal of {part.name} ({stream.checkpoint}) was lifted while chain {plan.plan_id} was half-way: its query "
                "may have been started; nothing was changed by this attempt",
                hint=f"stop the query, and take the chain back: `{plan.undo_command}`",
            )


def _apply(
    part: ChainPart,
    rewind: RewindPlan,
    stream: ChainStream,
    proof: RestProof | None,
    rest: RestOf,
    accept: Collection[str],
    made_by: str,
    reason: str,
    workers: int,
) -> RewindOutcome:
    mark = inspect_target(stream.checkpoint).seal
    continued = mark is not None and mark.attempt is not None
    if not continued and proof is None:
        # It was sealed by a run that was killed: a query may still be at its last batch.
        proof = prove_rest(stream.checkpoint, rest(stream.checkpoint), stopping=True)
    log.info("%s: %s", part.name, rewind.seal_reason)
    return apply_rewind(
        replace(rewind, continued=continued),
        Checkpoint.at(stream.checkpoint),
        repository_for_change(stream.place, stream.checkpoint),
        sink=named_sinks(stream.sinks),
        accept={*accept, *(risk.word for risk in rewind.risks)},
        rest=rest(stream.checkpoint),
        proof=proof,
        made_by=made_by,
        reason=reason,
        workers=workers,
        lifts_seal=False,
    )


def _check_versions(plan: ChainPlan, part: ChainPart, rewind: RewindPlan, done: Mapping[str, Any]) -> None:
    """See that the rollback of each Delta table is the commit behind which its readers stand.

    :param done: the outcome of the part, or its audit record.

    :raises StorageError: it is not.
    """
    versions = [each.get("table_version") for each in ([done] if len(rewind.sinks) == 1 else done.get("sinks", ()))]
    for sink, version in zip(rewind.sinks, versions, strict=True):
        back = sink.report.rollback if sink.rolls_back and sink.report.kind == "delta" else None
        if back and back.from_version is not None and version != back.from_version + 1:
            raise StorageError(
                f"{sink.report.uri} was rolled back in version {version}, and the streams that read it stand behind version "
                f"{back.from_version + 1}",
                hint=f"undo the chain, and plan it again: `{plan.undo_command}`",
            )
