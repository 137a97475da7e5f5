"""What a rewind does to its sinks, and what its undo does: always under the seal, and before the first file of the checkpoint.

One sink is a list of one. All of them are checked before the first one is changed; then they are changed one after the
other. Each kind of sink finds what an earlier run has done by the id of the plan, so a run that was killed at any
moment is resumed by the same command, and the undo brings forward those that were rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.fence import Fence
from airflow_ckpt_provider.change.plan import undo_of
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.errors import CkptError, RefusedError, StorageError, command
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planned_sink import PlannedSink, given_for
from airflow_ckpt_provider.sinks.answers import is_told, is_version
from airflow_ckpt_provider.sinks.kinds import SinkChange, SinkKind, asked, kind_named
from airflow_ckpt_provider.sinks.sink import Sink


@dataclass(frozen=True, slots=True)
class _Sinks:
    """The sinks of a rewind that it rolls back.

    :param plan: the rewind.
    :param sinks: the sinks that were given.
    :param held: the repository, in which the checks see what an earlier attempt has set aside; they only read it.
    """

    plan: RewindPlan
    sinks: tuple[Sink, ...]
    held: Repository | None = None

    def changes(
        self,
        repository: Repository | None = None,
        *,
        fence: Fence | None = None,
        workers: int = 1,
        record: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[SinkKind, SinkChange]]:
        """Each sink that is rolled back, with its kind.

        :param repository: keeps files that are removed; ``None`` while nothing is changed.
        :param fence: of this attempt.
        :param workers: requests under way at once.
        :param record: the audit record of the rewind, where it was ended.
        """
        plan, alone = self.plan, len(self.plan.sinks) == 1
        for number, planned in enumerate(plan.sinks):
            rollback = planned.report.rollback
            if not planned.rolls_back or rollback is None:
                continue
            part = "sink" if alone else f"sink-{number}"
            kind = kind_named(planned.report.kind)
            lease: dict[str, Any] = {"guarding": fence.guarding, "check_lease": fence.check} if fence else {}
            yield (
                kind,
                SinkChange(
                    sink=given_for(planned, self.sinks, however_named=alone and kind.has_identity),
                    report=planned.report,
                    rollback=rollback,
                    plan_id=plan.plan_id,
                    undo_id=undo_of(plan.plan_id),
                    checkpoint=plan.checkpoint,
                    undo_command=plan.command_to_undo(repository or self.held),
                    query_id=plan.query_id,
                    app_id=planned.app_id,
                    table_id=planned.table_id,
                    batch_id=plan.batch_id,
                    newest=plan.newest,
                    continued=plan.continued,
                    record=_of_record(record, number, alone=alone),
                    aside=SetAside(repository, plan.name, plan.plan_id, part) if repository else None,
                    workers=workers,
                    **lease,
                ),
            )

    def _done(self, versions: Mapping[str, int | None]) -> dict[str, Any]:
        """What the audit record keeps: of one sink its version, of several the versions by name."""
        if len(self.plan.sinks) == 1:
            return {"table_version": next(iter(versions.values()), None)}
        named = [(sink.report.uri, versions.get(sink.report.uri)) for sink in self.plan.sinks]
        return {"sinks": [{"uri": uri, "table_version": version} for uri, version in named]}


def _of_record(record: Mapping[str, Any] | None, number: int, *, alone: bool) -> Mapping[str, Any] | None:
    if record is None or alone:
        return record
    found: Mapping[str, Any] = record["sinks"][number]
    return found


def _any(found: Iterator[bool | None]) -> bool | None:
    """Whether one of the sinks was changed; ``None`` where that cannot be determined of all."""
    answers = set(found)
    return True if True in answers else None if None in answers else False


class RollBack(_Sinks):
    """The sinks are rolled back to the batch of the plan, where the plan says so."""

    __slots__ = ()

    def check(self) -> None:
        """See that all sinks can be rolled back with what was given, and that no undo has brought one forward again."""
        for kind, change in self.changes(self.held):
            if not change.sink.name:
                raise RefusedError(
                    f"the plan rolls {change.report.uri} back, and it was not given; nothing was changed",
                    hint=f"name it as when the plan was made: --sink {change.report.uri}",
                )
            asked(kind, partial(kind.check, change))

    def run(self, repository: Repository, *, fence: Fence, workers: int) -> Mapping[str, Any]:
        """Roll the sinks back; the second time it does nothing."""
        changes = list(self.changes(repository, fence=fence, workers=workers))
        if len(changes) > 1:
            # Again under the seal: a sink that cannot be rewound must be found before another one has.
            for kind, change in changes:
                asked(kind, partial(kind.check, change))
        done = {
            c.report.uri: asked(k, partial(k.roll_back, c), expect=is_version, error=StorageError) for k, c in changes
        }
        return self._done(done)

    def has_changed(self, repository: Repository) -> bool | None:
        """Whether a sink was rolled back by this plan; ``None`` where that cannot be determined."""
        try:
            return _any(asked(k, partial(k.is_rolled_back, c), expect=is_told) for k, c in self.changes(repository))
        except (CkptError, OSError):
            return None


@dataclass(frozen=True, slots=True)
class BringForward(_Sinks):
    """The sinks become what they were before a rewind.

    :param record: the audit record of the rewind; ``None`` where it was not ended.
    """

    record: Mapping[str, Any] | None = None

    def check(self) -> None:
        """See that all sinks can be brought forward, and that nobody has written into one since."""
        for kind, change in self.changes(self.held, record=self.record):
            if not change.sink.name:
                raise RefusedError(
                    f"rewind {self.plan.plan_id} rolled {change.report.uri} back too, and it was not given; nothing was changed",
                    hint=f"name it: {' '.join(f'--sink {sink.report.uri}' for sink in self._rolled_back)}",
                )
            self._check(kind, change, self.held)

    def _check(self, kind: SinkKind, change: SinkChange, repository: Repository | None) -> None:
        """Ask a sink. Once another one was brought forward no rewind continues, and a refusal names what leads out."""
        try:
            asked(kind, partial(kind.check_undo, change))
        except RefusedError:
            if repository is None or not self.has_changed(repository):
                raise
            try:
                asked(kind, partial(kind.check_undo, replace(change, is_half_undone=True)))
            except RefusedError as e:
                e.add_hint(
                    f"or give the undo up: `{command('unseal', change.checkpoint, '--plan', change.undo_id)}`. The checkpoint "
                    f"then stays as the rewind left it, and so does {change.report.uri}; the sinks that were brought forward "
                    f"keep what they hold after batch {change.batch_id} and skip it or get it twice, so rewind again with all "
                    "sinks before the query is started"
                )
                raise

    @property
    def _rolled_back(self) -> list[PlannedSink]:
        return [sink for sink in self.plan.sinks if sink.rolls_back]

    def run(self, repository: Repository, *, fence: Fence, workers: int) -> Mapping[str, Any]:
        """Bring the sinks forward; the second time it does nothing."""
        changes = list(self.changes(repository, fence=fence, workers=workers, record=self.record))
        if len(changes) > 1:
            for kind, change in changes:
                self._check(kind, change, repository)
        done = {c.report.uri: asked(k, partial(k.undo, c), expect=is_version, error=StorageError) for k, c in changes}
        return self._done(done)

    def has_changed(self, repository: Repository) -> bool | None:
        """Whether a sink was brought forward; ``None`` where that cannot be determined."""
        try:
            return _any(
                asked(k, partial(k.is_undone, c), expect=is_told)
                for k, c in self.changes(repository, record=self.record)
            )
        except (CkptError, OSError):
            return None
