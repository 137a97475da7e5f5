"""Taking a rewind or a restore of several streams back: each by its own undo; of a chain, writers before their readers.

Undoing the rollback of a table adds one more commit to it. A Delta reader that is put back byte for byte stands before both, and
stops at the first. So its position moves behind the second one; everything else in its checkpoint is what it was. That is
exact where it had read all of the table before. Where it had not, it stops at the rollback: somebody has to accept that.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.fence import Fence
from airflow_ckpt_provider.change.plan import undo_of
from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.change.undo import UndoPlan
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.errors import ChangeRunningError, CkptError, LeaseLostError, NoSuchBackupError, RefusedError
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.recovery.chains.plan import ChainPart, ChainPlan, JointPart, JointPlan
from airflow_ckpt_provider.recovery.chains.positions import moved_entries
from airflow_ckpt_provider.recovery.chains.sealed import KINDS, RestOf, find_begun, kept_chain, lift_all, seal_all
from airflow_ckpt_provider.recovery.chains.stream import ChainStream, named_streams
from airflow_ckpt_provider.recovery.chains.together import ChainOutcome, alone, guarded, keeper
from airflow_ckpt_provider.recovery.undo import undo, undoing
from airflow_ckpt_provider.sinks.delta_rollback import committed_by
from airflow_ckpt_provider.sinks.sink import named_sinks
from airflow_ckpt_provider.storage.location import plain_uri

KIND = "chain-undo"
#: What has to be accepted where a stream would not be as before.
RISK = "source_failure"


def undo_chain(
    streams: Sequence[ChainStream],
    *,
    plan_id: str | None = None,
    accept: Collection[str] = (),
    rest: RestOf | None = None,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> ChainOutcome:
    """Undo a rewind of a chain or a restore of a set, wherever it was stopped; or resume the undo.

    :param streams: the streams, as for the rewind or the restore.
    :param plan_id: the chain; by default the one that is half-way, else the newest.
    :param accept: ``source_failure`` where a stream is known to stop at the rollback of a table afterwards.
    :param rest: says of a checkpoint how its query is known to be stopped.
    :param made_by: the run or user.
    :param reason: why, for the audit records.
    :param workers: requests under way at once.
    :raises NoSuchBackupError: there was no such chain.
    :raises RefusedError: one of the streams was started since, or a table was written to; nothing was changed. Or, once it was
        begun, one refuses: all stay sealed.
    """
    began, streams, rest = time.monotonic(), named_streams(tuple(streams)), rest or (lambda _: RestRule())
    with alone(streams, made_by=made_by, what="undo of a chain") as fence:
        plan, outcomes = _undo_chain(streams, plan_id, accept, rest, made_by, reason, workers, fence)
    done = outcomes is None
    return ChainOutcome(plan.plan_id, tuple(outcomes or ()), time.monotonic() - began, already_done=done)


def chain_undone_by(streams: Sequence[ChainStream], made_by: str) -> str | None:
    """The chain that a run has undone to its end; ``None`` if it has undone none.

    :param streams: the streams.
    :param made_by: the run.
    """
    held = min(streams, key=lambda stream: stream.name).held
    for record in held.records() if held else ():  # newest first
        if (record.get("kind"), record.get("made_by")) == (KIND, made_by) and isinstance(record.get("of"), str):
            return str(record["of"])
    return None


def _undo_chain(
    streams: tuple[ChainStream, ...],
    plan_id: str | None,
    accept: Collection[str],
    rest: RestOf,
    made_by: str,
    reason: str,
    workers: int,
    fence: Fence,
) -> tuple[JointPlan, list[dict[str, Any]] | None]:
    plan = _plan(streams, plan_id)
    by_name = {stream.name: stream for stream in streams}
    missing = [name for name, _ in plan.change_ids if name not in by_name]
    if missing:
        raise RefusedError(f"chain {plan.plan_id} changed {missing[0]} too", hint=f"name it: `{plan.undo_command}`")
    named = {part.name: part for part in plan.parts}
    parts = [(named[name], plan_id, by_name[name]) for name, plan_id in reversed(plan.change_ids)]
    touched = [each for each in parts if _is_touched(*each)]
    changed, ids = [stream for _, _, stream in parts], {part.name: part_id for part, part_id, _ in parts}
    if _ended(streams, plan):
        lift_all(changed, ids, fence, undo=True)
        return plan, None
    _check_exact(plan, touched, accept)
    for part, part_id, stream in touched:
        if _held(stream).audit_of(undo_of(part_id)) is None:
            _check(part, part_id, stream, plan)
    was_sealed = find_begun(streams) is not None
    seal_all(
        changed,
        {name: undo_of(part_id) for name, part_id in ids.items()},
        rest=rest,
        stop_running=False,
        what=f"undo of chain {plan.plan_id}",
        made_by=made_by,
        fence=fence,
    )
    outcomes = []
    try:
        for part, part_id, stream in touched:
            if _held(stream).audit_of(undo_of(part_id)) is not None:
                continue  # by a run that was killed
            fence.check()
            outcome = undo(
                stream.checkpoint,
                _held(stream),
                plan_id=part_id,
                sink=named_sinks(stream.sinks),
                # What was said was checked when it was sealed, by an attempt of this undo that is done since.
                rest=replace(rest(stream.checkpoint), said=None),
                made_by=made_by,
                reason=reason,
                workers=workers,
                of_chain=plan.plan_id,
                moved=lambda made, part=part, stream=stream: _moved(made, part, stream, plan, by_name),  # type: ignore[misc]
            )
            outcomes.append({"name": part.name, **outcome.to_json()})
    except (ChangeRunningError, LeaseLostError):
        raise
    except CkptError as e:
        begun = find_begun(streams)
        if not (was_sealed or outcomes or begun is None or begun.is_half_way):
            lift_all(changed, ids, fence, undo=True)  # nothing was changed
            raise
        names = ", ".join(part.name for part, _, _ in parts)
        e.add_hint(f"{names} stay sealed: run the same undo again: `{plan.undo_command}`")
        raise
    guarded(keeper(streams), fence).record(
        undo_of(plan.plan_id), {"kind": KIND, "of": plan.plan_id, "made_by": made_by, "reason": reason}
    )
    lift_all(changed, ids, fence, undo=True)
    return plan, outcomes


def _plan(streams: Sequence[ChainStream], plan_id: str | None) -> JointPlan:
    """The plan that is undone.

    :raises NoSuchBackupError: there is none.
    """
    begun = find_begun(streams)
    wanted = plan_id or (begun.chain_id if begun else _newest(streams))
    found = kept_chain(streams, wanted) if wanted else None
    if found is None:
        raise NoSuchBackupError(
            "the repositories of these streams keep "
            f"{f'no chain {wanted}' if wanted else 'no rewind of a chain and no restore of a set'}",
            hint="name the streams as for the rewind or the restore, with its repository; where nothing but seals was written, "
            "`airflow-ckpt unseal CHECKPOINT --for-start` lifts them",
        )
    return found


def _newest(streams: Sequence[ChainStream]) -> str | None:
    """The newest chain of these streams that was carried out, also where it was undone.

    So an undo that is sent twice undoes one chain; an older one is named by its id.
    """
    checkpoints = {plain_uri(stream.checkpoint.uri) for stream in streams}
    newest: dict[str, str] = {}
    for place in {plain_uri(stream.place.uri): stream for stream in streams}.values():
        held = place.held
        for record in held.records() if held else ():
            if record.get("kind") in KINDS:
                changed = (p.get("target") or (p["checkpoint"] if p["rewind"] else "") for p in record["plan"]["parts"])
                if checkpoints & {plain_uri(str(uri)) for uri in changed}:
                    newest[str(record["plan_id"])] = str(record["at"])
    return max(newest, key=lambda plan_id: newest[plan_id]) if newest else None


def _held(stream: ChainStream) -> Repository:
    held = stream.held
    if held is None:
        raise NoSuchBackupError(f"there is no repository at {stream.place}", hint="name the one of the rewind")
    return held


def _ended(streams: Sequence[ChainStream], plan: JointPlan) -> bool:
    return keeper(streams).audit_of(undo_of(plan.plan_id)) is not None


def _is_touched(part: JointPart, part_id: str, stream: ChainStream) -> bool:
    """Whether the change of a stream was begun: it took the seal over before it changed anything."""
    held = stream.held
    if held is None:
        return False
    mark = inspect_target(stream.checkpoint).seal
    if mark and mark.attempt is not None:
        return True
    aside = SetAside(held, part.stream_name, part_id, "checkpoint")
    return aside.sizes is not None or held.audit_of(part_id) is not None


def _check_exact(
    plan: JointPlan, touched: Sequence[tuple[JointPart, str, ChainStream]], accept: Collection[str]
) -> None:
    inexact = [part for part, _, _ in touched if part.undo_needs]
    if inexact and RISK not in accept:
        raise RefusedError(
            f"after an undo of chain {plan.plan_id} {inexact[0].name} {inexact[0].undo_needs}; nothing was changed",
            hint=f"run the chain on, or accept explicitly that it stops there: --accept {RISK} (accept=['{RISK}'])",
        )


def _check(part: JointPart, part_id: str, stream: ChainStream, plan: JointPlan) -> None:
    """Check that a part can be undone, before any of them is."""
    try:
        change = undoing(
            stream.checkpoint,
            _held(stream),
            plan_id=part_id,
            sink=named_sinks(stream.sinks),
            of_chain=plan.plan_id,
        )
        if change.sink and not change.plan.already_done:
            change.sink.check()
    except RefusedError as e:
        raise RefusedError(f"{part.name}: {e.message}", hint=e.hint) from e


def _moved(
    undone: UndoPlan, part: JointPart, stream: ChainStream, plan: JointPlan, by_name: Mapping[str, ChainStream]
) -> Mapping[str, str]:
    """The newest log entries of before, with the positions behind the commits that brought the tables forward again."""
    if not (isinstance(plan, ChainPlan) and isinstance(part, ChainPart)):
        return {}  # a restore changes no table
    behind = _brought_forward(part, plan, by_name)
    if not behind or part.undo_needs:
        return {}
    aside = SetAside(_held(stream), undone.name, undone.undone, "checkpoint")

    def read(path: str) -> bytes:
        return aside.read(path) if path in undone.kept else stream.checkpoint.read(path)

    offsets = (batch_id_of(path.partition("/")[2]) for path in undone.before if path.startswith("offsets/"))
    newest = max(batch for batch in offsets if batch is not None)
    return moved_entries(read, newest, behind)


def _brought_forward(part: ChainPart, plan: ChainPlan, by_name: Mapping[str, ChainStream]) -> dict[str, int]:
    """Source of a stream -> the version that brought the table forward which it reads."""
    found = {}
    for source, table in part.reads.items():
        for writer in plan.parts:
            for sink in writer.rewind.sinks if writer.rewind else ():
                if sink.name != table or not sink.rolls_back or sink.report.kind != "delta" or not writer.rewind:
                    continue
                place = next(s.place for s in named_sinks(by_name[writer.name].sinks) if s.name == table)
                version = committed_by(place, undo_of(writer.rewind.plan_id)) if place else None
                if version is not None:
                    found[source] = version
    return found
