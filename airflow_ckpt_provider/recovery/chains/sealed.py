"""The seals of a chain: set on every checkpoint before the first one is changed, and lifted after the last.

Each seal carries the id of its stream's part, which begins with the id of the chain. So whoever finds one of them knows the
chain, and a run that was killed is resumed by the same command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from airflow_ckpt_provider.backup.repository import repository_for_change
from airflow_ckpt_provider.change.fence import Fence, fenced
from airflow_ckpt_provider.change.plan import undone_by
from airflow_ckpt_provider.change.plan_seal import seal_for_plan
from airflow_ckpt_provider.change.rest import RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.sealing import remove_seal, seal, sealed_by_another
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import RefusedError
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
    """

    chain_id: str
    plan: JointPlan | None
    seals: Mapping[str, Seal]

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
    return Begun(chain_id, kept_chain(streams, chain_id), marks)


def kept_chain(streams: Sequence[ChainStream], chain_id: str) -> JointPlan | None:
    """The plan of several streams, from whichever of their repositories keeps it."""
    for stream in streams:
        held = stream.held
        document = held.kept_plan(chain_id) if held else None
        kind = document.get("kind") if document else None
        if document is not None and kind in KINDS:
            return KINDS[kind].of_document(document)
    return None


def seal_all(
    streams: Sequence[ChainStream],
    ids: Mapping[str, str],
    *,
    rest: RestOf,
    stop_running: bool,
    what: str,
    made_by: str,
) -> dict[str, RestProof]:
    """Seal each checkpoint, and know that each query is stopped. Where one is not, the seals of this call are lifted again.

    With ``stop_running`` they stay then, as they stop the queries: the same command finds them.

    :param streams: the streams that are changed.
    :param ids: stream -> the id that its seal carries.
    :param rest: says of a checkpoint how its query is known to be stopped.
    :param stop_running: queries that still run are stopped by the seals.
    :param what: why, in words.
    :param made_by: the run or user.
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
                with alone_at(stream) as fence:
                    rest(stream.checkpoint).check_word(fence, stopping=True)
                    if there.seal is None:
                        place = fence.guarding(stream.checkpoint)
                        seal(Checkpoint.at(place), reason=what, made_by=made_by, plan_id=ids[stream.name])
                asked.add(stream.name)
        for stream in streams:
            place, plan_id, rule = stream.checkpoint, ids[stream.name], rest(stream.checkpoint)
            if stream.name in asked:
                proofs[stream.name] = prove_rest(place, rule, stopping=True)
                continue
            with alone_at(stream) as fence:
                rule.check_word(fence)
                there = inspect_target(place)
                stopping = there.seal is not None
                proofs[stream.name] = prove_rest(place, rule)
                if not stopping:
                    before = there.fingerprint
                    mark = seal_for_plan(
                        fence.guarding(place), plan_id=plan_id, reason=what, made_by=made_by, fingerprint=before
                    )
                    placed.append((stream, mark))
    except RefusedError as e:
        for stream, mark in placed:
            remove_seal(stream.checkpoint, mark)
        if asked:
            sealed = ", ".join(str(stream.checkpoint) for stream in streams if stream.name in asked)
            e.add_hint(
                f"the seals stay on {sealed}: run the same command again; or, to give it up, `airflow-ckpt unseal CHECKPOINT "
                "--for-start` for each, right before its query is started"
            )
        raise
    return proofs


def lift_all(streams: Sequence[ChainStream], chain_id: str) -> None:
    """Lift the seals of a chain that are there."""
    for stream in streams:
        mark = inspect_target(stream.checkpoint).seal
        match = _PART.fullmatch(undone_by(mark.plan_id)) if mark else None
        while mark and match and match["chain"] == chain_id:
            remove_seal(stream.checkpoint, mark)
            # One that was stopped while it put its seal higher has left the lower one.
            below = inspect_target(stream.checkpoint).seal
            mark = below if below and undone_by(below.plan_id) == undone_by(mark.plan_id) else None
        stream.checkpoint.remove_empty_directories()
