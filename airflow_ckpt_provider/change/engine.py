"""The one engine that changes a checkpoint: apply, resume and undo any plan.

::

    accept → fence → proof of rest → keep the plan → seal → list again → set aside → sink → remove, write → check
    → audit record → lift the seal

From the first change to the last the newest file in ``offsets/`` is the seal, so no Spark starts. The plan is kept in the
repository before the seal is set: if the process is killed, the same command finds the seal, reads the plan, and finishes. What a
verb contributes is data: see :class:`~airflow_ckpt_provider.change.plan.Plan`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from airflow_ckpt_provider.backup.copy_progress import Meter, OnProgress
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.attempt_seals import AttemptSeals
from airflow_ckpt_provider.change.attempts import LeaseTerms
from airflow_ckpt_provider.change.edits import Edits
from airflow_ckpt_provider.change.fence import Fence, fenced
from airflow_ckpt_provider.change.plan import Plan, undone_by
from airflow_ckpt_provider.change.plan_seal import check_not_begun
from airflow_ckpt_provider.change.rest import RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import Target, check_alone, inspect_target, read_seal
from airflow_ckpt_provider.change.write_engine import WriteEngine
from airflow_ckpt_provider.change.writing import FileWriter
from airflow_ckpt_provider.change.written_since import check_not_written_since
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import CkptError, LeaseLostError, RefusedError, StorageError
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.storage.hadoop_checksums import is_checksum
from airflow_ckpt_provider.storage.location import Location, plain_uri, safe_relative

log = logging.getLogger(__name__)


class SinkAction(Protocol):
    """What a plan does to the sink, under the seal and before the first file of the checkpoint goes."""

    def check(self) -> None:
        """See that it can still be done; raises ``RefusedError`` where it cannot."""

    def run(self, repository: Repository, *, fence: Fence, workers: int) -> Mapping[str, Any]:
        """Perform it; the second time it does nothing. Returns what the audit record keeps of it."""

    def has_changed(self, repository: Repository) -> bool | None:
        """Whether the sink was changed by this plan; ``None`` where that cannot be determined."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A change that was carried out.

    :param plan_id: the plan; ``undo`` finds it by this id.
    :param checkpoint: URI of the checkpoint.
    :param removed: how many files were removed.
    :param written: how many files were written.
    :param unchanged: how many files were there already as wanted.
    :param kept: where removed and replaced files are kept, in the repository; ``None`` if there are none.
    :param sink: what was done to the sink, such as ``table_version``.
    :param seconds: how long it took.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    checkpoint: str
    removed: int = 0
    written: int = 0
    unchanged: int = 0
    kept: str | None = None
    sink: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    already_done: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A plan, and all that carrying it out needs.

    :param plan: what is to be done.
    :param place: where files are removed and written.
    :param repository: keeps the plan, removed and replaced files, and the audit record.
    :param observed: the checkpoint whose query has to be stopped, where that is another place: the live version of a flow whose
        next version is made. By default the place itself.
    :param observed_fingerprint: of that checkpoint when the plan was made; ``None``: not compared.
    :param sink: what is done to the sink.
    :param rest: how the query is known to be stopped.
    :param proof: that it is, where that was proven before.
    :param in_use: keeps backups that are read from being pruned meanwhile; ``None``: none is read.
    :param made_by: the run or user.
    :param reason: why, for the audit record.
    :param facts: what else the audit record keeps.
    :param workers: requests under way at once.
    :param on_progress: called after each file that was written.
    :param size: bytes to write, for ``on_progress``.
    :param terms: of the lease; by default those of this process.
    :param lifts_seal: the seal is lifted at the end, or where nothing was changed. ``False``: it stays, and whoever carries out
        several changes together lifts it after the last.
    :param writes: who writes files of backups that are not in the place; ``None``: threads of this process.
    """

    plan: Plan
    place: Location
    repository: Repository
    observed: Location | None = None
    observed_fingerprint: str | None = None
    sink: SinkAction | None = None
    rest: RestRule = field(default_factory=RestRule)
    proof: RestProof | None = None
    in_use: Callable[[], AbstractContextManager[None]] | None = None
    made_by: str = ""
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    workers: int = WORKERS
    on_progress: OnProgress | None = None
    files: int = 0
    size: int = 0
    terms: LeaseTerms | None = None
    lifts_seal: bool = True
    writes: WriteEngine | None = None

    def apply(self, *, accept: Collection[str] = (), fingerprint: str | None = None) -> Outcome:
        """Apply the plan, or resume it where it was begun.

        :param accept: words of the risks that somebody accepts.
        :param fingerprint: of the plan that was shown and approved; ``None``: not compared.
        :raises RefusedError: a risk was not accepted, the checkpoint or the sink are not any more what the plan was made for, or
            the query is not known to be stopped; nothing was changed.
        :raises ChangeRunningError: another attempt is changing the checkpoint.
        :raises LeaseLostError: another attempt took over; this one has written nothing since.
        :raises StorageError: reading or writing failed; the checkpoint stays sealed, and the same command finishes.
        """
        began = time.monotonic()
        plan = self.plan
        if plan.already_done:
            plan.check_accepted(accept)
            return Outcome(plan.plan_id, plan.checkpoint, already_done=True)
        begun = self.repository.kept_plan(plan.plan_id) or {} if plan.continued else {}
        plan.check_fingerprint(fingerprint, begun.get("fingerprint"))
        if not plan.continued:
            plan.check_accepted(accept)
        if plain_uri(plan.checkpoint) != plain_uri(self.place.uri):
            raise RefusedError(
                f"plan {plan.plan_id} was made for {plan.checkpoint}, not for {self.place}",
                hint=f"run it with {plan.checkpoint}. Where {self.place} is a copy, restore a backup to it",
            )
        if self.sink:
            try:
                self.sink.check()
            except CkptError as e:
                if plan.continued and undone_by(plan.plan_id) == plan.plan_id:
                    e.add_hint(f"or undo it: `{plan.command_to_undo(self.repository)}`")
                raise
        key = self.observed or self.place
        what = plan.seal_reason
        with fenced(
            self.repository,
            key,
            plan_id=plan.plan_id,
            what=what,
            made_by=self.made_by,
            terms=self.terms,
            lends=self.writes is not None,
        ) as fence:
            return _Attempt(self, fence).run(accept, began)


class _Attempt:
    """One attempt at a change, within its fence."""

    def __init__(self, change: Change, fence: Fence) -> None:
        self.change, self.fence, self.plan = change, fence, change.plan
        self.place = fence.guarding(change.place)
        self.repository = change.repository.at(fence.guarding(change.repository.location))
        self.aside = SetAside(self.repository, self.plan.name, self.plan.plan_id, "checkpoint")
        self.seals = AttemptSeals(
            self.place,
            fence.guarding(change.observed) if change.observed else None,
            self.repository,
            self.plan,
            fence.attempt.number,
            observed_fingerprint=change.observed_fingerprint,
            made_by=change.made_by,
            sealed_before=change.proof is not None,
        )
        self.writer = FileWriter(
            self.place,
            fence,
            self.repository,
            self.plan.plan_id,
            workers=change.workers,
            writes=change.writes,
        )

    def run(self, accept: Collection[str], began: float) -> Outcome:
        plan, change = self.plan, self.change
        proof = change.proof
        with self._in_use():
            plan.prepare(workers=change.workers)
            if not plan.continued:
                self._check_not_begun()
                plan.check_is_latest(self.place, self.repository)
                proof = proof or self._proven_rest()
                self.repository.keep_plan(plan.plan_id, plan.document())
            elif not self.seals.are_there():
                # Lifted and put again by somebody: what was proven before does not count any more.
                proof = self._proven_rest()
                self._check_not_written_since()
            marks = self.seals.set()
            mark = marks[-1]
            there = inspect_target(self.place)
            self._check_sealed(there, mark)
            edits = plan.edits(there, self.repository)
            try:
                self._check_paths(edits)
                check_alone(there, chain(edits.removes, edits.written() if plan.sets_aside else ()))
                self._set_aside(there, edits)
                sink = change.sink.run(self.repository, fence=self.fence, workers=change.workers) if change.sink else {}
            except LeaseLostError:
                raise
            except CkptError as e:
                self._give_up(e, marks)
                raise
            removed = self.writer.remove(edits)
            meter = Meter(change.on_progress, files=change.files, size=change.size)
            written = self.writer.write(edits, there, meter)
        after = inspect_target(self.place)
        try:
            plan.check(after)
        except LeaseLostError:
            raise
        except CkptError as e:
            if change.lifts_seal and not self.seals.has_taken_over:
                self._say_way_out(e)
            raise
        kept = self.aside.place if self.aside.sizes else None
        self.repository.record(
            plan.plan_id,
            {
                "kind": plan.kind,
                "made_by": change.made_by,
                "reason": change.reason,
                "checkpoint": plan.checkpoint,
                **({"observed": change.observed.uri} if change.observed else {}),
                "kept": kept,
                **sink,
                **change.facts,
                "unchanged": len(edits.unchanged),
                "accepted": sorted(accept),
                "rest": proof.to_json() if proof else None,
                "attempt": self.fence.attempt.to_json(),
                "after": after.fingerprint,
                **plan.audit_facts(after),
            },
        )
        if change.lifts_seal:
            self.seals.lift(marks)  # performed last: until now no Spark could start
        stays = "is lifted" if change.lifts_seal else "stays until all are done"
        log.info("%s: %s is done, the seal %s %s", plan.checkpoint, plan.seal_reason, mark.path, stays)
        return Outcome(
            plan_id=plan.plan_id,
            checkpoint=plan.checkpoint,
            removed=removed,
            written=written,
            unchanged=len(edits.unchanged),
            kept=kept,
            sink=sink,
            seconds=time.monotonic() - began,
        )

    def _proven_rest(self) -> RestProof:
        change = self.change
        if change.proof is None:  # else it was sealed since the word was checked, and has to be sealed still
            change.rest.check_word(self.fence, change.observed or change.place)
        return prove_rest(change.observed or change.place, change.rest)

    def _check_not_begun(self) -> None:
        """See that nobody has begun under the id of this plan since it was made.

        Two attempts may find one seal that stops the query, or undo one change. What the other one has set aside is not what this
        plan removes.

        :raises RefusedError: somebody has; nothing was changed by this attempt.
        """
        plan = self.plan
        for place in self.seals.places:
            check_not_begun(place, read_seal(place), {plan.plan_id, *plan.own_seals})
        if self.aside.sizes is not None:
            raise RefusedError(
                f"plan {plan.plan_id} was carried out or begun before: {self.repository.location} keeps what it set aside, in "
                f"{self.aside.place}; nothing was changed by this attempt",
                hint=f"make a new plan; if {plan.checkpoint} is sealed under this id, seal it under another one first",
            )

    def _check_not_written_since(self) -> None:
        """See that no query has run since somebody has lifted the seal of a change that was begun."""
        undone = undone_by(self.plan.plan_id)
        document = self.repository.kept_plan(undone)
        if document is not None:
            aside = SetAside(self.repository, self.plan.name, undone, "checkpoint")
            check_not_written_since(inspect_target(self.place), aside, document, self.repository)

    def _check_paths(self, edits: Edits) -> None:
        """See that nothing is written outside the place, whatever the documents say."""
        for path in edits.written():
            try:
                safe_relative(path)
            except ValueError as e:
                raise RefusedError(
                    f"plan {self.plan.plan_id} would write {path!r}, which is not in {self.place}: {e}",
                    hint=f"the plan or the backup in {self.repository.location} was damaged or forged: see who changed it",
                ) from None

    def _check_sealed(self, there: Target, mark: Seal) -> None:
        """See that the newest seal is ours: a change with another repository may have sealed an empty place higher."""
        if there.seal is None or (there.seal.plan_id, there.seal.attempt) != (mark.plan_id, mark.attempt):
            who = (
                f"is sealed by plan {there.seal.plan_id} ({there.seal.reason})"
                if there.seal
                else "is not sealed any more"
            )
            raise RefusedError(
                f"{there.location} {who}, just after plan {mark.plan_id} had sealed it; nothing was changed by this attempt",
                hint="see who else changes it, then run the same command again",
            )

    def _in_use(self) -> AbstractContextManager[None]:
        return self.change.in_use() if self.change.in_use else nullcontext()

    def _set_aside(self, there: Target, edits: Edits) -> None:
        if not self.plan.sets_aside or self.aside.sizes is not None:
            return
        replaced = (path for path in edits.written() if path in there.visible)
        going = {*(path for path in edits.removes if not is_checksum(path)), *replaced}
        files = [there.files[path] for path in sorted(going)]
        left = {p: f.identity for p, f in there.visible.items() if p not in going}
        try:
            self.aside.keep(self.place, files, left=left, workers=self.change.workers)
        except FileNotFoundError as e:
            raise StorageError(
                f"a file of {self.place} was removed while it was being set aside: {e}",
                hint="nothing was removed by this plan; see who else writes there, then run the same command again",
            ) from e

    def _give_up(self, error: CkptError, marks: list[Seal]) -> None:
        """Lift the seal where nothing was changed: neither a file nor the sink. Else say how to take the change back."""
        if not self.change.lifts_seal:
            return  # others are changed with it: whoever applies them says what leads out
        sink = self.change.sink.has_changed(self.repository) if self.change.sink else False
        if self.seals.has_taken_over:
            if sink is False and isinstance(error, RefusedError):
                self.seals.give_back()
            return
        # A plan that is resumed may have been made from what is half-changed; the one that was kept has the place as it was.
        try:
            before = (self.repository.kept_plan(self.plan.plan_id) or {}).get("checkpoint_fingerprint")
        except CkptError:
            before = None  # not known
        there = inspect_target(self.place)
        if before == there.fingerprint and sink is False:
            self.seals.lift(marks, sweep=there.is_empty)
            return
        self._say_way_out(error)

    def _say_way_out(self, error: CkptError) -> None:
        """Say that the checkpoint stays sealed, and how to undo the change."""
        said = error.hint or ""
        again = () if "stays sealed" in said else (f"{self.plan.checkpoint} stays sealed", "run the same command again")
        undo = self.plan.command_to_undo(self.repository)
        can_undo = undone_by(self.plan.plan_id) == self.plan.plan_id and undo not in said
        if ways := (*again, *((f"or undo it: `{undo}`",) if can_undo else ())):
            error.add_hint("; ".join(ways))
