"""Taking a change back: the checkpoint becomes, file by file, what it was before.

An undo is a plan like any other, for the same engine. It is made from what the change has kept: its plan, the files that it set
aside, its audit record. So it is the same for every verb, and works from wherever the change was stopped, as long as nobody has
written to the checkpoint since: a stream that was started again has made a history of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.edits import Edits, Write, listed_files, literal_writes
from airflow_ckpt_provider.change.history import UNDO, UNDOABLE, check_is_latest, is_at, newest_change
from airflow_ckpt_provider.change.plan import Plan, undo_of, undone_by
from airflow_ckpt_provider.change.plan_document import check_paths
from airflow_ckpt_provider.change.plan_page import plan_page
from airflow_ckpt_provider.change.sealing import sealed_by_another
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import Target, expect_files, inspect_target, is_hidden
from airflow_ckpt_provider.change.written_since import (
    check_not_written_since,
    first_run_since,
    written_by,
    written_since,
)
from airflow_ckpt_provider.errors import NoSuchBackupError, RefusedError, command
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class UndoPlan(Plan):
    """What taking a change back would do.

    :param plan_id: id of the undo.
    :param of: the plan that is undone, as it is kept in the repository.
    :param name: name of the stream in the repository.
    :param checkpoint: URI of the checkpoint.
    :param fingerprint: of the checkpoint when the undo was planned.
    :param before: path -> size of the files that were there before the change.
    :param kept: path -> size of the files that the change has set aside.
    :param record: the audit record of the change; ``None`` where it was not ended.
    :param half_way: the change, or an undo of it, has the checkpoint sealed.
    :param already_done: it was undone before.
    :param moved: path -> content of log entries that get other source positions than they had; see
        :mod:`~airflow_ckpt_provider.recovery.chains.positions`. Each is among the files that were set aside.
    """

    plan_id: str
    of: Mapping[str, Any]
    name: str
    checkpoint: str
    fingerprint: str
    before: Mapping[str, int]
    kept: Mapping[str, int]
    record: Mapping[str, Any] | None
    half_way: bool
    already_done: bool = False
    continued: bool = field(default=False, compare=False)
    moved: Mapping[str, str] = field(default_factory=dict)

    kind: ClassVar[str] = UNDO

    @property
    def undone(self) -> str:
        """Id of the plan that is undone."""
        return undone_by(self.plan_id)

    @property
    def sets_aside(self) -> bool:
        """What an undo removes, the change had written."""
        return False

    @property
    def own_seals(self) -> frozenset[str]:
        """The seal of a change that was stopped half-way is taken over."""
        return frozenset({self.undone})

    @property
    def seal_reason(self) -> str:
        """What the seal says."""
        return f"undo of {self.of['kind']} {self.undone}"

    @property
    def verdict(self) -> Verdict:
        """An undo changes what a change has changed, and nothing else."""
        return Verdict.SAFE

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words."""
        return (f"{self.checkpoint} becomes what it was before {self.of['kind']} {self.undone}",)

    @property
    def steps(self) -> tuple[str, ...]:
        """What carrying it out does, in order."""
        if self.already_done:
            return ()
        return (
            "see that the query is stopped, seal the checkpoint",
            "bring the sink forward again, where the change rolled one back",
            "delete what the change had written",
            f"put {len(self.kept)} files back from the repository",
            "check, write the audit record, lift the seal",
        )

    @property
    def subject(self) -> dict[str, Any]:
        """What the plan is about: the change that is undone."""
        return {**super(UndoPlan, self).subject, "of": self.undone}

    @property
    def plan_fingerprint(self) -> str:
        """Changes with the checkpoint and with what is put back."""
        return fingerprint_of(f"{self.plan_id} {self.checkpoint} {self.fingerprint} {sorted(self.kept)}")

    @property
    def writes_offsets(self) -> Collection[str]:
        """Paths in ``offsets/`` that will be there."""
        return [path for path in self.before if path.startswith("offsets/")]

    def edits(self, there: Target, repository: Repository) -> Edits:
        """Remove what did not exist before; put back what was set aside."""
        aside = SetAside(repository, self.name, self.undone, "checkpoint")
        extra = [path for path in there.visible if path not in self.before]

        def writes() -> Iterator[Write]:
            for path, size in self.kept.items():
                if path not in self.moved:
                    yield Write(path, size, lambda path=path: aside.read(path))  # type: ignore[misc]
            yield from literal_writes({path: content.encode() for path, content in self.moved.items()})

        return Edits(listed_files(there, extra), writes)

    def check(self, there: Target) -> None:
        """See that exactly the files of before are there."""
        what = f"what it was before {self.of['kind']} {self.undone}"
        wanted = {**self.before, **{path: len(content.encode()) for path, content in self.moved.items()}}
        expect_files(there, wanted.items(), plan_id=self.plan_id, what=what)

    def check_is_latest(self, place: Location, repository: Repository) -> None:
        """See that no later change is in force."""
        check_is_latest(place, repository, self.of, self.record)

    def document(self) -> dict[str, Any]:
        """The plan as it is kept in the repository."""
        return {**self.to_json(), "name": self.name, "checkpoint_fingerprint": self.fingerprint}

    def audit_facts(self, after: Target) -> dict[str, Any]:
        """What the audit record keeps of the plan."""
        return {"plan": self.to_json(), "of": self.undone}

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "kind": self.kind,
            "of": self.undone,
            "of_kind": self.of["kind"],
            "checkpoint": self.checkpoint,
            "puts_back": len(self.kept),
            "steps": list(self.steps),
            "fingerprint": self.plan_fingerprint,
            "already_done": self.already_done,
        }

    def to_markdown(self) -> str:
        """The plan for people: the log, a form."""
        made, batch = self.record or {}, self.of.get("batch_id")
        state = "half-way" if self.half_way else "carried out"
        rows = [
            ("checkpoint", f"`{self.checkpoint}`"),
            ("undoes", f"{self.of['kind']} `{self.undone}`" + ("" if batch is None else f", batch {batch}")),
            ("which was", "undone before: nothing is left to do" if self.already_done else state),
            *((key.replace("_", " "), f"{made[key]}") for key in ("at", "made_by", "reason") if made.get(key)),
            ("puts back", f"{len(self.kept)} files"),
        ]
        return plan_page("Undo", self.plan_id, rows, self.reasons, steps=self.steps)


def plan_to_undo(place: Location, repository: Repository, plan_id: str | None) -> dict[str, Any]:
    """The plan that an undo is about, as it is kept in the repository.

    :param place: the checkpoint.
    :param repository: the one that the change was carried out with.
    :param plan_id: the change; ``None``: the one that is half-way, else the newest one of this checkpoint,
        also where it was undone: an undo that is sent twice undoes one change, and an older one is named by its id.
    :raises NoSuchBackupError: there is none.
    """
    if plan_id is None:
        mark = inspect_target(place).seal
        if mark and repository.kept_plan(undone_by(mark.plan_id)) is not None:
            plan_id = undone_by(mark.plan_id)
    if plan_id is None:
        plan_id = newest_change(place, repository)
    document = repository.kept_plan(plan_id) if plan_id else None
    if document is None:
        what = f"no plan {plan_id}" if plan_id else f"no change of {place}"
        raise NoSuchBackupError(
            f"{repository.location} keeps {what}",
            hint="name the repository that the change was made with (--repository). A rewind, reset or repair without one is "
            "kept beside the checkpoint: leave --repository out. Restores of version 0.1.0 are undone by restoring the backup "
            "<name>.before-restore",
        )
    return document


def plan_undo(
    place: Location, repository: Repository, document: Mapping[str, Any], *, observed: Location | None = None
) -> UndoPlan:
    """Plan to take a change back; reads only.

    :param place: the checkpoint.
    :param repository: the one that the change was carried out with.
    :param document: the plan of the change, from :func:`plan_to_undo`.
    :param observed: the live version of a flow, where the change made the next one.
    :raises RefusedError: it changed nothing, somebody has written to the checkpoint since, or a later change is in force.
    :raises RepositoryError: the plan was damaged or forged.
    :raises SealedError: something else has sealed the checkpoint.
    """
    check_paths(document)
    kind, plan_id = str(document.get("kind")), str(document["plan_id"])
    checkpoint = str(document.get("checkpoint") or document.get("path") or place.uri)
    if kind not in UNDOABLE:
        raise RefusedError(f"plan {plan_id} is a {kind}, which is not undone", hint=f"known: {', '.join(UNDOABLE)}")
    if checkpoint != place.uri:
        raise RefusedError(f"{kind} {plan_id} was of {checkpoint}, not of {place}", hint="name that one")
    now = inspect_target(place)
    marks = [now.seal, inspect_target(observed).seal if observed else None]
    for mark in marks:
        if mark and undone_by(mark.plan_id) != plan_id:
            raise sealed_by_another(place.uri, mark)
    half_way = any(marks)
    records = [r for r in repository.records() if undone_by(str(r.get("plan_id"))) == plan_id]
    record = next((r for r in records if r.get("kind") == kind), None)
    taken_back = any(r.get("kind") == UndoPlan.kind for r in records)
    aside = SetAside(repository, str(document.get("name", "")), plan_id, "checkpoint")
    kept = aside.sizes or {}
    plan = UndoPlan(
        plan_id=undo_of(plan_id),
        of=document,
        name=str(document.get("name", "")),
        checkpoint=place.uri,
        fingerprint=now.fingerprint,
        before=_before(document, kept, now, repository),
        kept=kept,
        record=record,
        half_way=half_way,
        already_done=taken_back and not half_way,
        continued=half_way,
    )
    if not plan.already_done:
        _check_whole(plan, now, aside, document)
    if plan.already_done or any(mark and mark.attempt is not None for mark in marks):
        return plan
    if half_way:
        check_not_written_since(now, aside, document, repository)
    else:
        _check_untouched(plan, now, aside, document, repository)
    plan.check_is_latest(place, repository)
    return plan


def _check_whole(plan: UndoPlan, now: Target, aside: SetAside, document: Mapping[str, Any]) -> None:
    """See that what was kept and what is there make up exactly what was there before.

    :raises RefusedError: they do not.
    """
    what, place = f"{plan.of['kind']} {plan.undone}", now.location
    wrong = aside.damaged()
    if wrong:
        raise RefusedError(
            f"{aside.files}/{wrong[0]} is missing or is not what was kept ({len(wrong)} files): {what} cannot be undone file by "
            "file; nothing was changed",
            hint="put these files back from a copy of the repository; or "
            + (f"run the same {plan.of['kind']} again, which completes it" if plan.half_way else "restore a backup"),
        )
    kept, left = {path for path in plan.kept if not is_hidden(path)}, aside.left
    if left is not None and document.get("before") is not None and {*left, *kept} != set(plan.before):
        differing = sorted({*left, *kept} ^ set(plan.before))
        raise RefusedError(
            f"the plan of {what} and {aside.place} do not agree about what was there before: {differing[0]} ({len(differing)} "
            "files); nothing was changed",
            hint="one of the two was damaged: put it back from a copy of the repository, or restore a backup",
        )
    gone = _gone(plan, now)
    if gone and (plan.half_way or plan.record is None):
        give_up = f". To give it up: `{command('unseal', place, '--plan', plan.undone)}`" if plan.half_way else ""
        raise RefusedError(
            f"{place}/{gone[0]} was there before {what}, which did not touch it, and was removed or changed since ({len(gone)} "
            "files): it cannot be put back; nothing was changed",
            hint=f"restore a backup; what the {plan.of['kind']} removed is in the repository, in {aside.place}/files{give_up}",
        )


def _gone(plan: UndoPlan, now: Target) -> list[str]:
    """Files that the change was not to touch, and that were removed or changed since."""
    return sorted(
        path
        for path, size in plan.before.items()
        if path not in plan.kept and (path not in now.visible or now.visible[path].size != size)
    )


def _before(
    document: Mapping[str, Any], kept: Mapping[str, int], now: Target, repository: Repository
) -> dict[str, int]:
    """Path -> size of the files before the change. Repairs of earlier versions did not note them."""
    if document.get("before") or document["kind"] != "repair":
        return dict(document.get("before") or {})
    written = written_by(document, repository)
    stayed = {path: file.size for path, file in now.visible.items() if path not in written}
    return {**stayed, **{path: size for path, size in kept.items() if not is_hidden(path)}}


def _check_untouched(
    plan: UndoPlan, now: Target, aside: SetAside, document: Mapping[str, Any], repository: Repository
) -> None:
    """See that the change was carried out, as a whole or in part, and that nobody else has written since.

    :raises RefusedError: it was not, or somebody has.
    """
    kind, place = plan.of["kind"], now.location
    if plan.record is not None:
        after = plan.record.get("after")
        if first_run_since(now, document) is None if after is None else is_at(str(after), now, repository):
            return
        if _is_half_undone(plan, now, aside, document, repository):
            return
        raise RefusedError(
            f"{place} was written to since {kind} {plan.undone}: the stream was started",
            hint=f"{'rewind again instead, to a batch of the new history' if kind == 'rewind' else 'let the stream continue'}; "
            f"what the {kind} removed stays in the repository, in {aside.place}/files",
        )
    if now.fingerprint == document.get("checkpoint_fingerprint"):
        raise RefusedError(
            f"{kind} {plan.undone} changed nothing: it was refused or never carried out",
            hint="there is nothing to undo",
        )
    if aside.sizes is None:
        raise RefusedError(
            f"{kind} {plan.undone} removed nothing: it was stopped before it had set aside what it was going to remove. "
            f"{place} was changed since by somebody else",
            hint="there is nothing to undo",
        )
    check_not_written_since(now, aside, document, repository)


def _is_half_undone(
    plan: UndoPlan, now: Target, aside: SetAside, document: Mapping[str, Any], repository: Repository
) -> bool:
    """Whether an undo of a change was begun, whose seal somebody has lifted, and every file is of before or of the change."""
    return (
        repository.kept_plan(plan.plan_id) is not None
        and newest_change(now.location, repository) == plan.undone
        and not _gone(plan, now)
        and written_since(now, aside, document, repository) is None
    )
