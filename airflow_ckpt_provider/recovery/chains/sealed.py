"""The seals of a chain: set on every checkpoint before the first one is changed, and lifted after the last.

Each seal carries the id of its stream's part, which begins with the id of the chain. So whoever finds one of them knows the
chain, and a run that was killed is resumed by the same command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.beside import repository_for_change
from airflow_ckpt_provider.change.fence import Fence, fenced
from airflow_ckpt_provider.change.plan import undone_by
from airflow_ckpt_provider.change.plan_seal import seal_for_plan
from airflow_ckpt_provider.change.rest import RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.sealing import remove_empty, remove_seal, seal, sealed_by_another
from airflow_ckpt_provider.change.target import inspect_target, read_seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.errors import RefusedError, SealedError
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan, JointPlan
from airflow_ckpt_provider.recovery.chains.set_plan import SetRestorePlan
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.storage.location import Location

#: Kind of a plan over several streams -> its class.
KINDS: dict[str, type[ChainPlan] | type[SetRestorePlan]] = {each.kind: each for each in (ChainPlan, SetRestorePlan)}
#: Says of a checkpoint how its query is known to be stopped.
RestOf = Callable[[Location], RestRule]
_PART = re.compile(r"(?P<chain>[0-9a-f]+)-s\d+")


def part_ids(chain_id: str, streams: Sequence[ChainStream]) -> dict[str, str]:
    """Stream -> the id of its plan, which its seal carries; the same in whatever order the streams are named.

    :param chain_id: the plan of all.
    :param streams: all of its streams.
    """
    names = sorted(stream.name for stream in streams)
    return {name: f"{chain_id}-s{number}" for number, name in enumerate(names, 1)}


@dataclass(frozen=True, slots=True)
class Begun:
    """A chain that an earlier run has begun.

    :param chain_id: its id.
    :param plan: its plan; ``None`` where nothing but seals was written.
    :param seals: stream -> the seal of its part.
    :param fingerprint: of the plan that was begun, as it was kept: of a restore only what is left is planned again.
    """

    chain_id: str
    plan: JointPlan | None
    seals: Mapping[str, Seal]
    fingerprint: str = ""

    @property
    def is_undone(self) -> bool:
        """Whether an undo of it was begun."""
        return any(undone_by(mark.plan_id) != mark.plan_id for mark in self.seals.values())

    @property
    def is_half_way(self) -> bool:
        """Whether a checkpoint was changed, or may have been: an attempt at its part has taken the seal over."""
        return any(mark.attempt is not None for mark in self.seals.values())


def find_begun(streams: Sequence[ChainStream]) -> Begun | None:
    """Find the chain that has sealed some of the streams; ``None`` if there is none.

    :raises SealedError: something else has sealed one of them.
    """
    marks: dict[str, Seal] = {}
    for stream in streams:
        mark = inspect_target(stream.checkpoint).seal
        if mark is not None:
            marks[stream.name] = mark
    ids = {match["chain"] for mark in marks.values() if (match := _PART.fullmatch(undone_by(mark.plan_id)))}
    for stream in streams:
        mark = marks.get(stream.name)
        if mark and (not _PART.fullmatch(undone_by(mark.plan_id)) or len(ids) > 1):
            raise sealed_by_another(stream.checkpoint.uri, mark)
    if not ids:
        return None
    chain_id = ids.pop()
    document = _kept(streams, chain_id)
    plan = KINDS[document["kind"]].of_document(document) if document else None
    return Begun(chain_id, plan, marks, str(document.get("fingerprint")) if document else "")


def kept_chain(streams: Sequence[ChainStream], chain_id: str) -> JointPlan | None:
    """The plan of several streams, from whichever of their repositories keeps it."""
    document = _kept(streams, chain_id)
    return KINDS[document["kind"]].of_document(document) if document else None


def _kept(streams: Sequence[ChainStream], chain_id: str) -> Mapping[str, Any] | None:
    for stream in streams:
        held = stream.held
        document = held.kept_plan(chain_id) if held else None
        if document is not None and document.get("kind") in KINDS:
            return document
    return None


def not_ended(kept: JointPlan, but: str = "") -> SealedError:
    """Say that something else was begun with these streams.

    :param kept: the plan of that.
    :param but: how it differs from what is asked now, where its title does not say that.
    """
    return SealedError(
        f"some of these streams are sealed by chain {kept.plan_id}, a {kept.title} that was not ended{but}",
        hint=f"run that one again: `{kept.command}`, or undo it: `{kept.undo_command}`",
    )


def seal_all(
    streams: Sequence[ChainStream],
    ids: Mapping[str, str],
    *,
    rest: RestOf,
    stop_running: bool,
    what: str,
    made_by: str,
    fence: Fence,
) -> dict[str, RestProof]:
    """Seal each checkpoint, and know that each query is stopped. Where one is not, the seals of this call are lifted again.

    With ``stop_running`` they stay then, as they stop the queries: the same command finds them.

    :param streams: the streams that are changed.
    :param ids: stream -> the id that its seal carries.
    :param rest: says of a checkpoint how its query is known to be stopped.
    :param stop_running: queries that still run are stopped by the seals.
    :param what: why, in words.
    :param made_by: the run or user.
    :param fence: of all streams together.
    :return: stream -> the proof that its query is stopped.
    :raises QueryNotStoppedError: one is not known to be stopped; the message names it.
    """
    proofs, placed, asked = {}, [], set()

    def alone_at(stream: ChainStream) -> AbstractContextManager[Fence]:
        held = repository_for_change(stream.place, stream.checkpoint)
        return fenced(held, stream.checkpoint, plan_id=ids[stream.name], what=what, made_by=made_by)

    try:
        if stop_running:
            for stream in streams:  # all of them are asked to stop before the first one is waited for
                there = inspect_target(stream.checkpoint)
                if there.is_empty and there.seal is None:
                    continue
                with alone_at(stream) as own:
                    rest(stream.checkpoint).check_word(own, stream.checkpoint, stopping=True)
                    if there.seal is None:
                        place = own.guarding(fence.guarding(stream.checkpoint))
                        seal(Checkpoint.at(place), reason=what, made_by=made_by, plan_id=ids[stream.name])
                asked.add(stream.name)
        for stream in streams:
            place, plan_id, rule = stream.checkpoint, ids[stream.name], rest(stream.checkpoint)
            if stream.name in asked:
                proofs[stream.name] = prove_rest(place, rule, stopping=True)
                continue
            with alone_at(stream) as own:
                rule.check_word(own, place)
                there = inspect_target(place)
                stopping = there.seal is not None
                proofs[stream.name] = prove_rest(place, rule)
                if not stopping:
                    before = there.fingerprint
                    mark = seal_for_plan(
                        own.guarding(fence.guarding(place)),
                        plan_id=plan_id,
                        reason=what,
                        made_by=made_by,
                        fingerprint=before,
                    )
                    placed.append((stream, mark))
    except RefusedError as e:
        for stream, mark in placed:
            remove_seal(fence.guarding(stream.checkpoint), mark)
        # They stop queries, or are those of an attempt that was killed; a seal of somebody else is not for this command to lift.
        still = [each for each in streams if (found := read_seal(each.checkpoint)) and found.plan_id == ids[each.name]]
        if still:
            sealed = ", ".join(str(stream.checkpoint) for stream in still)
            e.add_hint(
                f"the seals stay on {sealed}: run the same command again; or, to give it up, `airflow-ckpt unseal CHECKPOINT "
                "--for-start` for each, right before its query is started"
            )
        raise
    return proofs


def lift_all(streams: Sequence[ChainStream], ids: Mapping[str, str], fence: Fence, *, undo: bool = False) -> None:
    """Lift the seals of a chain.

    All are read before the first one is lifted, while no later attempt can have begun. A seal that is put afterwards stays: while
    this process was suspended, another one may have ended the chain, and begun to undo it.

    :param streams: the streams whose seals are lifted.
    :param ids: stream -> the plan of its part.
    :param fence: of all streams together.
    :param undo: by its undo, whose seals are lifted too.
    """
    places = {stream.name: fence.guarding(stream.checkpoint) for stream in streams}
    marks = {name: _seals_of(place, ids[name], undo=undo) for name, place in places.items()}
    fence.check()
    for name, place in places.items():
        for mark in marks[name]:
            remove_seal(place, mark)
        remove_empty(place)


def _seals_of(place: Location, plan_id: str, *, undo: bool) -> list[Seal]:
    """The seals of a part, lowest first: one that was stopped while it put its seal higher has left the lower one.

    :param undo: also where the newest one is that of its undo.
    """
    found: list[Seal] = []
    numbers = (batch_id_of(path.partition("/")[2]) for path in place.walk(OFFSETS))
    for number in sorted((n for n in numbers if n is not None), reverse=True):
        mark = parse_seal(place.read(f"{OFFSETS}/{number}"), batch_id=number)
        if mark is None or undone_by(mark.plan_id) != plan_id or not (found or undo or mark.plan_id == plan_id):
            break
        found.insert(0, mark)
    return found
