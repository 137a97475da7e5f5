"""Carrying out one plan over several streams: each part by the change engine, as alone, under seals that are lifted together.

What a verb adds is a :class:`Verb`: how the plan is made, what has to be true before the first change, how a part is carried out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from airflow_ckpt_provider.backup.beside import repository_for_change
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.fence import Fence, fenced
from airflow_ckpt_provider.change.plan import Plan
from airflow_ckpt_provider.change.rest import RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.sealing import STOPPING
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.errors import (
    ChangeRunningError,
    CkptError,
    LeaseLostError,
    RefusedError,
    SealedError,
)
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.recovery.chains.plan import JointPlan
from airflow_ckpt_provider.recovery.chains.sealed import (
    Begun,
    RestOf,
    find_begun,
    lift_all,
    not_ended,
    part_ids,
    seal_all,
)
from airflow_ckpt_provider.recovery.chains.stream import ChainStream, named_streams, same_streams
from airflow_ckpt_provider.recovery.outcome import RecoveryOutcome
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

Joint = TypeVar("Joint", bound=JointPlan)


@dataclass(frozen=True, slots=True)
class ChainOutcome(RecoveryOutcome):
    """Several streams that were changed together, or put back.

    :param plan_id: the plan; ``chain undo`` undoes it by this id.
    :param streams: what was done to each stream: its ``name`` and the outcome of its part, or of its undo.
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


class Verb(Protocol[Joint]):
    """What is done to several streams together."""

    #: The ``kind`` of its plans.
    kind: str
    #: What it is, in words: ``rewind of a chain``.
    what: str

    def plan(self, chain_id: str | None) -> Joint:
        """Make the plan, given the id under which the checkpoints are sealed; ``None``: they are not."""

    def check(self, made: Joint, streams: Mapping[str, ChainStream], held: ExitStack) -> Joint:
        """See, under all seals, that every part can be carried out; what it holds meanwhile is put on the stack.

        :raises RefusedError: one cannot.
        """

    def resume(self, kept: JointPlan, streams: Mapping[str, ChainStream]) -> Joint:
        """The plan that an earlier run has kept, with all that the parts which are left need.

        :raises SealedError: something else is asked for now.
        """

    def apply(self, change: Plan, stream: ChainStream, *, continued: bool, **how: Any) -> RecoveryOutcome:
        """Carry a part out, and leave its seal.

        :param continued: an attempt at it has begun.
        :param how: ``accept``, ``rest``, ``proof``, ``made_by``, ``reason``, ``workers``.
        """

    def check_ended(self, made: Joint, change: Plan, done: Mapping[str, Any]) -> None:
        """See that a part has done what the others count on.

        :param done: its outcome, or its audit record.
        """


@dataclass(frozen=True, kw_only=True)
class Together(Generic[Joint]):
    """One plan over several streams, and all that carrying it out needs.

    :param streams: the streams, as the plan names them.
    :param verb: what is done to them.
    :param accept: words of the risks that somebody accepts.
    :param fingerprint: of the plan that was approved; ``None``: not compared.
    :param rest: says of a checkpoint how its query is known to be stopped.
    :param stop_running: queries that still run are stopped, at their batch boundaries.
    :param made_by: the run or user.
    :param reason: why, for the audit records.
    :param workers: requests under way at once.
    :param on_plan: called with the plan before it is carried out.
    """

    streams: Sequence[ChainStream]
    verb: Verb[Joint]
    accept: Collection[str] = ()
    fingerprint: str | None = None
    rest: RestOf | None = None
    stop_running: bool = False
    made_by: str = ""
    reason: str = ""
    workers: int = WORKERS
    on_plan: Callable[[Joint], None] | None = None

    def apply(self) -> tuple[Joint, ChainOutcome]:
        """Apply the plan, or resume one that was begun.

        :raises RefusedError: a part cannot be carried out, or a query is not known to be stopped: nothing was changed. Or, once
            it was begun, one refuses: all that are changed stay sealed, and the message names what leads out.
        :raises CkptError: as :meth:`~airflow_ckpt_provider.change.engine.Change.apply` raises.
        """
        began, streams = time.monotonic(), named_streams(tuple(self.streams))
        with alone(streams, made_by=self.made_by, what=self.verb.what) as fence, ExitStack() as held:
            made, outcomes = _Attempt(self, streams, fence, held).run()
        seconds = time.monotonic() - began
        return made, ChainOutcome(made.plan_id, tuple(outcomes), seconds, already_done=made.already_done)


@dataclass(frozen=True)
class _Attempt(Generic[Joint]):
    """One attempt at it, which nobody else makes at the same time."""

    how: Together[Joint]
    streams: tuple[ChainStream, ...]
    fence: Fence
    held: ExitStack
    proofs: dict[str, RestProof] = field(default_factory=dict)

    @property
    def by_name(self) -> dict[str, ChainStream]:
        return {stream.name: stream for stream in self.streams}

    def rest(self, place: Location) -> RestRule:
        return self.how.rest(place) if self.how.rest else RestRule()

    def run(self) -> tuple[Joint, list[dict[str, Any]]]:
        how, fence = self.how, self.fence
        begun = find_begun(self.streams)
        made = self._show(self._resumed(begun)) if begun and begun.plan else self._begun(begun)
        if made.already_done:
            return made, []
        parts = [(name, change, self.by_name[name]) for name, change in made.changes]
        ids = part_ids(made.plan_id, self.streams)
        if begun and keeper(self.streams).audit_of(made.plan_id) is not None:
            lift_all(self.streams, ids, fence)  # which is all that was left
            return made, []
        ended = {name: _record(self.by_name[name], plan_id) for name, plan_id in made.change_ids}
        self._keep(made, is_kept=bool(begun and begun.plan))
        self._check_sealed(made)
        outcomes = []
        try:
            for name, change, stream in parts:
                if record := ended[name]:
                    log.info("%s: its part %s was carried out before", name, change.plan_id)
                    how.verb.check_ended(made, change, record)
                    continue
                fence.check()
                outcome = self._apply(name, change, stream)
                outcomes.append({"name": name, **outcome.to_json()})
                how.verb.check_ended(made, change, outcomes[-1])
        except (ChangeRunningError, LeaseLostError):
            raise
        except CkptError as e:
            names = ", ".join(name for name, _ in made.change_ids)
            e.add_hint(
                f"{names} stay sealed, so none of them can start: run the same command again, or undo it: "
                f"`{made.undo_command}`"
            )
            raise
        facts = {"kind": made.kind, "made_by": how.made_by, "reason": how.reason, "plan": made.to_json()}
        guarded(keeper(self.streams), fence).record(made.plan_id, facts)
        lift_all(self.streams, ids, fence)
        return made, outcomes

    def _show(self, made: Joint) -> Joint:
        """Show the plan before anything is changed.

        :raises RefusedError: whoever is shown it refuses, as it is not what was approved.
        """
        if self.how.on_plan:
            self.how.on_plan(made)
        return made

    def _resumed(self, begun: Begun) -> Joint:
        """The plan that an earlier run has kept.

        :raises SealedError: it is another one, or it is being undone.
        """
        kept = begun.plan
        if begun.is_undone:
            command = kept.undo_command if kept else "airflow-ckpt chain undo"
            raise SealedError(f"chain {begun.chain_id} is being undone, and that was not ended", hint=f"`{command}`")
        if kept is None:
            raise ValueError("nothing was kept")
        same = same_streams((part.argument for part in kept.parts), (stream.argument for stream in self.streams))
        if kept.kind != self.how.verb.kind or not same:
            raise not_ended(kept)
        if self.how.fingerprint not in (None, begun.fingerprint):
            raise not_ended(kept, f"; its plan has the fingerprint {begun.fingerprint}, not {self.how.fingerprint}")
        return self.how.verb.resume(kept, self.by_name)

    def _begun(self, begun: Begun | None) -> Joint:
        """Seal all streams that are changed, plan again under the seals, and check everything."""
        how, verb, fence = self.how, self.how.verb, self.fence
        if begun and begun.is_undone:
            raise SealedError(
                f"chain {begun.chain_id} is being undone, and that was not ended", hint="`airflow-ckpt chain undo`"
            )
        if begun and begun.is_half_way:
            raise SealedError(
                f"chain {begun.chain_id} has begun to change {', '.join(begun.seals)}, and no repository that is named keeps "
                "its plan; nothing was changed by this attempt",
                hint="name the repository of the run that began it (repository / --repository; left out if it was then)",
            )
        chain_id = begun.chain_id if begun else new_plan_id()
        if begun is None:
            shown = verb.plan(None)
            if shown.already_done:
                shown.check_accepted(how.accept)
                return self._show(shown)
            going = [self.by_name[name] for name, _ in shown.changes]
            if not how.stop_running:  # else the fingerprint changes as long as the queries run
                shown.check_fingerprint(how.fingerprint)
            shown.check_accepted(how.accept)
        else:
            # Seals are there, and no plan: nothing was changed. Which of the streams are changed, the plan under them says.
            going = list(self.streams)
        ids = part_ids(chain_id, self.streams)
        self.proofs.update(
            seal_all(
                going,
                ids,
                rest=self.rest,
                stop_running=how.stop_running,
                what=f"{STOPPING}{verb.what}",
                made_by=how.made_by,
                fence=fence,
            )
        )
        try:
            made = verb.plan(chain_id)
            made.check_fingerprint(how.fingerprint)
            made.check_accepted(how.accept)
            for name, _ in made.changes:
                if self.by_name[name] not in going:
                    raise RefusedError(
                        f"{name} has to be changed too, and had not when it was planned: it was written to meanwhile",
                        hint="inspect a new plan, and apply that",
                    )
            if not made.already_done:
                made = verb.check(made, self.by_name, self.held)
            self._show(made)
        except RefusedError as e:
            lift_all(going, ids, fence)
            if how.stop_running:
                names = ", ".join(stream.name for stream in going)
                e.add_hint(f"the queries of {names} were stopped, and nothing was changed: start them")
            raise
        changed = {name for name, _ in made.changes}
        left = going if made.already_done else [stream for stream in going if stream.name not in changed]
        lift_all(left, ids, fence)
        return made

    def _keep(self, made: Joint, *, is_kept: bool) -> None:
        """Keep the plan of all, and then that of each part, before anything is changed.

        Behind the fence: a later attempt may have kept another plan under the id of the seals.
        """
        if not is_kept:
            guarded(keeper(self.streams), self.fence).keep_plan(made.plan_id, made.document())
        for name, change in made.changes:
            stream = self.by_name[name]
            repository = repository_for_change(stream.place, stream.checkpoint)
            if repository.kept_plan(change.plan_id) is None:
                guarded(repository, self.fence).keep_plan(change.plan_id, change.document())

    def _check_sealed(self, made: Joint) -> None:
        """See that every stream of a plan that is resumed is still sealed.

        :raises RefusedError: somebody has lifted a seal: its query may have run.
        """
        for name, plan_id in made.change_ids:
            place = self.by_name[name].checkpoint
            mark = inspect_target(place).seal
            if mark is None or mark.plan_id != plan_id:
                raise RefusedError(
                    f"the seal of {name} ({place}) was lifted while chain {made.plan_id} was half-way: its query may have been "
                    "started; nothing was changed by this attempt",
                    hint=f"stop the query, and undo the chain: `{made.undo_command}`",
                )

    def _apply(self, name: str, change: Plan, stream: ChainStream) -> RecoveryOutcome:
        how, place, proof = self.how, stream.checkpoint, self.proofs.get(name)
        mark = inspect_target(place).seal
        continued = mark is not None and mark.attempt is not None
        if not continued and proof is None:
            # It was sealed by a run that was killed: a query may still be at its last batch.
            proof = prove_rest(place, self.rest(place), stopping=True)
        rest = self.rest(place)
        if name in self.proofs:
            rest = replace(rest, said=None)  # checked before it was sealed, by an attempt that is done since
        log.info("%s: %s", name, change.seal_reason)
        return how.verb.apply(
            change,
            stream,
            continued=continued,
            accept={*how.accept, *(risk.word for risk in change.risks)},
            rest=rest,
            proof=proof,
            made_by=how.made_by,
            reason=how.reason,
            workers=how.workers,
        )


def alone(streams: Sequence[ChainStream], *, made_by: str, what: str) -> AbstractContextManager[Fence]:
    """Be the only attempt at these streams together, besides the fence that each part has of its own.

    :raises ChangeRunningError: another attempt is at work.
    """
    first = min(streams, key=lambda stream: stream.name)
    # A key of its own: the fence of the stream's part is another one.
    key = Location(first.checkpoint.store, f"{first.checkpoint.root.rstrip('/')}.chain")
    return fenced(keeper(streams), key, plan_id="chain", what=what, made_by=made_by)


def keeper(streams: Sequence[ChainStream]) -> Repository:
    """The repository that keeps the plan of all: that of the first stream by name, in whatever order they are given."""
    first = min(streams, key=lambda stream: stream.name)
    return repository_for_change(first.place, first.checkpoint)


def guarded(repository: Repository, fence: Fence) -> Repository:
    """The same repository, in which every write sees first that the lease still lasts."""
    return repository.at(fence.guarding(repository.location))


def _record(stream: ChainStream, plan_id: str) -> dict[str, Any] | None:
    """The audit record of a part that was carried out; ``None`` where it was not."""
    held = stream.held
    return held.audit_of(plan_id) if held else None


def carried_out_by(streams: Sequence[ChainStream], made_by: str, *, kind: str) -> dict[str, Any] | None:
    """The audit record of what a run has carried out on these streams; ``None`` if it has to continue, or did not begin.

    :param streams: the streams.
    :param made_by: the run.
    :param kind: of the plan.
    :raises RefusedError: it has carried it out on others, or with other sinks.
    """
    for held in _held(streams):
        record = held.audit(made_by)
        if record is None or record.get("kind") != kind:
            continue
        if find_begun(streams) is not None:
            return None
        parts = record["plan"]["parts"]
        if not same_streams((part["argument"] for part in parts), (stream.argument for stream in streams)):
            raise RefusedError(
                f"this run has carried {record['plan_id']} out on {', '.join(str(part['name']) for part in parts)}, as they were "
                f"named then; now {', '.join(stream.name for stream in streams)} are named, and nothing was changed",
                hint="start a new run for the streams as they are named now, or name them as before",
            )
        return record
    return None


def _held(streams: Sequence[ChainStream]) -> list[Repository]:
    """The repositories of some streams, each once, that of the first stream by name first."""
    in_order = sorted(streams, key=lambda stream: stream.name)
    return list({held.location.uri: held for stream in in_order if (held := stream.held)}.values())
