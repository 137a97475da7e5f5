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

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import WORKERS, Meter, OnProgress, in_order
from airflow_ckpt_provider.change.attempts import LeaseTerms
from airflow_ckpt_provider.change.edits import Edits, Write
from airflow_ckpt_provider.change.fail_closed_order import removal_groups, write_order
from airflow_ckpt_provider.change.fence import Fence, fenced
from airflow_ckpt_provider.change.plan import Plan, undone_by
from airflow_ckpt_provider.change.plan_seal import check_not_begun, give_back, raise_above, seal_for_plan
from airflow_ckpt_provider.change.rest import RestProof, RestRule, prove_rest
from airflow_ckpt_provider.change.sealing import remove_empty, remove_seal
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import Target, check_alone, inspect_target, is_hidden, read_seal
from airflow_ckpt_provider.change.write_engine import FilesToWrite, WriteEngine
from airflow_ckpt_provider.change.written_since import check_not_written_since
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import CkptError, LeaseLostError, RefusedError, StorageError, command
from airflow_ckpt_provider.storage.hadoop_checksums import hidden_checksum, is_checksum
from airflow_ckpt_provider.storage.location import Location, plain_uri, safe_relative
from airflow_ckpt_provider.storage.store import StoredFile

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
        self.observed = fence.guarding(change.observed) if change.observed else self.place
        self.repository = change.repository.at(fence.guarding(change.repository.location))
        self.aside = SetAside(self.repository, self.plan.name, self.plan.plan_id, "checkpoint")
        #: Seals of the plan that is undone, which are taken over; they come back where the undo is refused.
        self.found: list[tuple[Location, Seal | None]] = []

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
            elif not self._is_sealed_by_an_attempt():
                # Lifted and put again by somebody: what was proven before does not count any more.
                proof = self._proven_rest()
                self._check_not_written_since()
            marks = self._seal()
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
            removed = self._remove(edits)
            written = self._write(edits, there)
        after = inspect_target(self.place)
        try:
            plan.check(after)
        except LeaseLostError:
            raise
        except CkptError as e:
            if change.lifts_seal and not any(mark for _, mark in self.found):
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
                **plan.audit_facts(),
            },
        )
        if change.lifts_seal:
            self._lift(marks)  # performed last: until now no Spark could start
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

    def _is_sealed_by_an_attempt(self) -> bool:
        marks = [inspect_target(place).seal for place in self._sealed_places()]
        return any(mark is not None and mark.attempt is not None for mark in marks)

    def _check_not_begun(self) -> None:
        """See that nobody has begun under the id of this plan since it was made.

        Two attempts may find one seal that stops the query, or undo one change. What the other one has set aside is not what this
        plan removes.

        :raises RefusedError: somebody has; nothing was changed by this attempt.
        """
        plan = self.plan
        for place in self._sealed_places():
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

    def _sealed_places(self) -> tuple[Location, ...]:
        """The places that are sealed, in the order in which their seals are lifted."""
        return (self.place,) if self.change.observed is None else (self.place, self.observed)

    def _lift(self, marks: list[Seal], *, sweep: bool = True) -> None:
        """Lift the seals.

        :param marks: the seals, in the order in which they were set.
        :param sweep: remove empty directories of the place before the next seal is lifted: Spark takes an empty
            directory for the live version of a flow, and would start from the beginning in it. Stopped in between, the
            other seal shows that it is not ended.
        """
        for place, seal in zip(self._sealed_places(), reversed(marks), strict=True):
            remove_seal(place, seal)
            if sweep and place is self.place:
                if self.change.observed is None:
                    remove_empty(place)
                else:
                    place.remove_empty_directories()

    def _seal(self) -> list[Seal]:
        """Seal the checkpoint whose query is stopped, and the place that is changed where that is another one.

        A change that was begun is resumed only under its own seal: nothing else has kept a query from starting since.
        """
        plan = self.plan
        found = [(place, inspect_target(place)) for place in self._sealed_places()]
        ours = [there for _, there in found if there.seal and there.seal.plan_id in {plan.plan_id, *plan.own_seals}]
        begun = plan.continued
        if plan.own_seals:
            self.found = [(place, there.seal) for place, there in found]
        marks = []
        if self.change.observed is not None:
            # Sealed first and unsealed last; where a person has lifted its seal alone, that of the changed place counts.
            still = begun and not (ours and found[-1][1] not in ours)
            marks.append(self._sealed(self.observed, self.change.observed_fingerprint, begun=still, above=()))
        fingerprint, there = plan.expects, found[0][1]
        if begun and self.change.observed is not None and ours and there not in ours:
            self._check_unsealed(there)
            begun, fingerprint = False, there.fingerprint
        try:
            mark = self._sealed(self.place, fingerprint, begun=begun, above=plan.writes_offsets)
        except RefusedError:
            for other in marks if not begun and not ours else ():
                remove_seal(self.observed, other)  # nothing was changed
            raise
        return [*marks, raise_above(self.place, mark, plan.writes_offsets, made_by=self.change.made_by)]

    def _check_unsealed(self, there: Target) -> None:
        """See that a place is before the first change or after the last one: it is sealed later, and unsealed earlier, than
        the former version of its flow.

        :raises RefusedError: it is neither: somebody has lifted its seal half-way.
        """
        undone = undone_by(self.plan.plan_id)
        document = self.repository.kept_plan(undone) or {}
        records = [r for r in self.repository.records() if r.get("plan_id") == undone]
        known = {document.get("checkpoint_fingerprint"), *(r.get("after") for r in records)}
        if there.is_empty or there.fingerprint in known:
            return
        try:
            self.plan.check(there)
        except CkptError:
            raise RefusedError(
                f"the seal of plan {self.plan.plan_id} on {there.location} was lifted half-way: its query may have been started",
                hint=f"see what is there: `{command('doctor', there.location)}`; to give the plan up, lift its other seal: "
                f"`{command('unseal', self.observed, '--plan', self.plan.plan_id)}`",
            ) from None

    def _sealed(self, place: Location, fingerprint: str | None, *, begun: bool, above: Collection[str]) -> Seal:
        return seal_for_plan(
            place,
            plan_id=self.plan.plan_id,
            attempt=self.fence.attempt.number,
            reason=self.plan.seal_reason,
            made_by=self.change.made_by,
            fingerprint=fingerprint,
            begun=begun,
            sealed=self.change.proof is not None,
            above=above,
            own=self.plan.own_seals,
        )

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
        if any(mark for _, mark in self.found):
            if sink is False and isinstance(error, RefusedError):
                for place, mark in self.found:
                    if mark is not None:
                        give_back(place, mark)
            return
        # A plan that is resumed may have been made from what is half-changed; the one that was kept has the place as it was.
        try:
            before = (self.repository.kept_plan(self.plan.plan_id) or {}).get("checkpoint_fingerprint")
        except CkptError:
            before = None  # not known
        there = inspect_target(self.place)
        if before == there.fingerprint and sink is False:
            self._lift(marks, sweep=there.is_empty)
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

    def _remove(self, edits: Edits) -> int:
        removed = 0

        def remove(file: StoredFile) -> None:
            self.place.delete_listed(file)

        def count(_: None) -> None:
            nonlocal removed
            removed += 1

        for side_by_side, files in removal_groups(edits.removes):
            in_order(remove, files, count, workers=self.change.workers if side_by_side else 1)
        return sum(1 for path in edits.removes if not is_hidden(path))

    def _write(self, edits: Edits, there: Target) -> int:
        meter = Meter(self.change.on_progress, files=self.change.files, size=self.change.size)
        written = 0
        removed = edits.removes

        def write(item: Write) -> Write:
            listed = there.files.get(item.path) if item.path not in removed else None
            self._write_one(item, listed, there.files.get(hidden_checksum(item.path)), removed)
            return item

        def done(item: Write) -> None:
            nonlocal written
            written += 1
            meter.add(item.size)

        first, last = write_order(edits.written)
        apart = {*first, *last}
        by_path = {item.path: item for item in edits.writes_of(apart)}
        for path in first:
            done(write(by_path[path]))
        others = self._of_others(edits, there, apart)
        here = (i for i in edits.writes() if i.path not in apart and i.path not in others)
        in_order(write, here, done, workers=self.change.workers)
        if others and self.change.writes is not None:
            self.fence.is_lent = True  # should it fail, the next attempt waits until nothing can arrive any more
            files = FilesToWrite(tuple(others.values()), self.fence.attempt, self.fence.directory)
            self.change.writes.write(files, self.fence, self.repository, lambda entry: meter.add(entry.size))
            self.fence.is_lent = False
            written += len(others)
        for path in last:
            done(write(by_path[path]))
        return written

    def _of_others(self, edits: Edits, there: Target, apart: Collection[str]) -> dict[str, FileEntry]:
        """Files of backups that somebody else may write: those of which nothing is in the place."""
        if self.change.writes is None:
            return {}

        def is_free(path: str) -> bool:
            here = (path, hidden_checksum(path))
            return all(each not in there.files or each in edits.removes for each in here)

        return {i.path: i.entry for i in edits.writes() if i.entry and i.path not in apart and is_free(i.path)}

    def _write_one(
        self, item: Write, listed: StoredFile | None, checksum: StoredFile | None, removed: Mapping[str, StoredFile]
    ) -> None:
        """Write a file if there is none, or over exactly the one that was listed."""
        place = self.place
        if checksum is not None and checksum.path not in removed:
            place.delete_listed(checksum)  # it speaks of the content that the file had
        if listed is not None and not _is_copied(place, item):
            place.replace_listed(listed, item.read())
            return
        if listed is not None:
            place.delete_listed(listed)
        write_new(place, item, self.plan.plan_id)


def _is_copied(place: Location, item: Write) -> bool:
    """Whether the store itself copies a file to the place."""
    return item.source is not None and place.store.copies_within and place.store.same_as(item.source[0].store)


def write_new(place: Location, item: Write, plan_id: str) -> None:
    """Write a file of a plan into a place in which it is not; one that has its content already is as good.

    :param place: guarded by a fence.
    :raises StorageError: somebody else has written another file there, or its object is missing.
    """
    if item.source is None or not _is_copied(place, item):
        _create_or_compare(place, item, plan_id)
        return
    source, path, size, recorded = item.source
    try:
        place.store.copy_new(StoredFile((source / path).root, size, checksum=recorded), (place / item.path).root)
    except FileExistsError:
        raise _appeared(place, item, plan_id) from None
    except FileNotFoundError:
        try:
            _create_or_compare(place, item, plan_id)  # its content may have been put into a pack since
        except FileNotFoundError as e:
            raise StorageError(
                f"{item.path}: its object {path} is missing; it was there before the first change",
                hint="the seal stays; a prune that takes a slow restore for dead may have deleted it: choose another backup",
            ) from e


def _create_or_compare(place: Location, item: Write, plan_id: str) -> None:
    """Create a file, or see that it is there with the same content.

    :raises StorageError: it has another one.
    """
    content = item.read()
    try:
        place.create(item.path, content)
    except FileExistsError:
        if place.read(item.path) != content:
            raise _appeared(place, item, plan_id) from None


def _appeared(place: Location, item: Write, plan_id: str) -> StorageError:
    return StorageError(
        f"{place}/{item.path} appeared while plan {plan_id} was carried out: somebody else writes there",
        hint="the checkpoint stays sealed; see who writes there, then run the same command again",
    )
