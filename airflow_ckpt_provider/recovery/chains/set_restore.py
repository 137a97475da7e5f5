"""Restoring a set of backups: every stream of it, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider.backup.claims import in_use
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.sets import LATEST_SET, find_set
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError, RefusedError
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.recovery.chains.plan import JointPlan
from airflow_ckpt_provider.recovery.chains.sealed import not_ended, part_ids
from airflow_ckpt_provider.recovery.chains.set_plan import SetPart, SetRestorePlan
from airflow_ckpt_provider.recovery.chains.stream import ChainStream, check_arguments, named_streams
from airflow_ckpt_provider.recovery.chains.together import ChainOutcome, Together, Verb
from airflow_ckpt_provider.recovery.restore.apply import RestoreOutcome, apply_restore
from airflow_ckpt_provider.recovery.restore.plan import RestorePlan
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink import sink_says
from airflow_ckpt_provider.sinks.sink import named_sinks


def plan_set_restore(
    streams: Sequence[ChainStream],
    repository: Repository,
    *,
    set_id: str = LATEST_SET,
    replace_there: bool = False,
    chain_id: str | None = None,
) -> SetRestorePlan:
    """Plan to restore a set; reads only.

    :param streams: the streams of the set, by their names in the repository. Each is restored to its checkpoint, or to an empty
        place that is named instead. Sinks are asked, and stay as they are.
    :param repository: the repository that holds the set.
    :param set_id: the set; by default the newest one of these streams that is whole.
    :param replace_there: checkpoints that are there may be replaced.
    :param chain_id: id under which the checkpoints were sealed; ``None``: they were not.
    :raises DamagedBackupError: the set is not whole; the message names what is missing or damaged.
    :raises RefusedError: one of the streams cannot be restored; the message names it.
    :raises CkptError: as :func:`~airflow_ckpt_provider.recovery.restore.planning.plan_restore` raises.
    """
    streams = _in(repository, streams)
    check_arguments(streams)
    found = find_set(repository, set_id, [stream.name for stream in streams])
    found.check_whole()
    made = chain_id or new_plan_id()
    ids = part_ids(made, streams)
    manifests = [found.backups[stream.name] for stream in streams]
    parts = tuple(
        SetPart(s.name, s.argument, ids[s.name], m.backup_id, m.batch_id, s.checkpoint.uri)
        for s, m in zip(streams, manifests, strict=True)
    )
    plan = SetRestorePlan(made, found.set_id, repository.location.uri, replace_there, parts)
    is_sealed = chain_id is not None
    return _with(
        plan, {s.name: _restore(plan, s, repository, found.backups[s.name], is_sealed=is_sealed) for s in streams}
    )


def restore_set(
    streams: Sequence[ChainStream],
    repository: Repository,
    *,
    set_id: str = LATEST_SET,
    replace_there: bool = False,
    workers: int = WORKERS,
    **how: Any,
) -> tuple[SetRestorePlan, ChainOutcome]:
    """Restore a set, or resume a restore that was begun. Parameters of the plan: see :func:`plan_set_restore`.

    Every backup is read and found whole under the seals of all checkpoints, before the first of them is changed.

    :param workers: requests under way at once.
    :param how: see :class:`~airflow_ckpt_provider.recovery.chains.together.Together`, which also says what is raised.
    """
    streams = _in(repository, streams)
    verb = _Restore(streams, repository, set_id, replace_there, workers, str(how.get("made_by", "")))
    return Together(streams=streams, verb=verb, workers=workers, **how).apply()


@dataclass
class _Restore(Verb[SetRestorePlan]):
    """The restore of a set. It stays with the set that it has found first, also where a newer one is written meanwhile."""

    streams: Sequence[ChainStream]
    repository: Repository
    set_id: str
    replace_there: bool
    workers: int
    made_by: str
    kind: str = SetRestorePlan.kind
    what: str = "restore of a set"

    def plan(self, chain_id: str | None) -> SetRestorePlan:
        """Make the plan."""
        made = plan_set_restore(
            self.streams,
            self.repository,
            set_id=self.set_id,
            replace_there=self.replace_there,
            chain_id=chain_id,
        )
        self.set_id = made.set_id
        return made

    def check(self, made: SetRestorePlan, streams: Mapping[str, ChainStream], held: ExitStack) -> SetRestorePlan:
        """Read every backup, and keep all of them from being pruned until the last one is restored."""
        for name, change in made.changes:
            held.enter_context(in_use(self.repository, change.manifest, what="restore", made_by=self.made_by))
            try:
                change.prepare(workers=self.workers)
            except RefusedError as e:
                e.add_hint(f"nothing was changed of any stream; it is the backup of {name} in set {made.set_id}")
                raise
        return _with(made, {name: replace(change, is_prepared=True) for name, change in made.changes})

    def resume(self, kept: JointPlan, streams: Mapping[str, ChainStream]) -> SetRestorePlan:
        """Plan again the restores that are left, each from the backup that the plan has chosen.

        :raises SealedError: another set was asked for; or checkpoints were to be replaced, and are not to be now.
        """
        if not isinstance(kept, SetRestorePlan):
            raise TypeError(f"{kept.plan_id} is no restore")
        if self.set_id not in (LATEST_SET, kept.set_id) or (kept.replace and not self.replace_there):
            raise not_ended(kept)
        left = [part for part in kept.parts if self.repository.audit_of(part.plan_id) is None]
        backups = {part.name: self._kept_backup(kept, part) for part in left}
        return _with(
            kept,
            {
                name: _restore(kept, streams[name], self.repository, manifest, is_sealed=True)
                for name, manifest in backups.items()
            },
        )

    def _kept_backup(self, kept: SetRestorePlan, part: SetPart) -> Manifest:
        """The backup that the plan has chosen: the set may have got another one since.

        :raises CkptError: it is gone or damaged.
        """
        try:
            return self.repository.read_manifest(part.name, part.backup_id)
        except (NoSuchBackupError, DamagedBackupError) as e:
            names = ", ".join(each.name for each in kept.parts)
            e.add_hint(
                f"the {kept.title} is half-way and cannot be ended without it, and {names} stay sealed; undo it: "
                f"`{kept.undo_command}`"
            )
            raise

    def apply(self, change: Any, stream: ChainStream, *, continued: bool, **how: Any) -> RestoreOutcome:
        """Restore one stream."""
        return apply_restore(change, lifts_seal=False, **how)

    def check_ended(self, made: SetRestorePlan, change: Any, done: Mapping[str, Any]) -> None:
        """No part counts on what another one has done."""


def _in(repository: Repository, streams: Sequence[ChainStream]) -> tuple[ChainStream, ...]:
    """The streams in order, with the repository that holds the set, which also keeps what is replaced."""
    named = named_streams(tuple(replace(stream, repository=repository.location) for stream in streams))
    return tuple(sorted(named, key=lambda stream: stream.name))


def _restore(
    plan: SetRestorePlan, stream: ChainStream, repository: Repository, manifest: Manifest, *, is_sealed: bool
) -> RestorePlan:
    """The restore of one stream, as it is planned alone."""
    plan_id = next(part.plan_id for part in plan.parts if part.name == stream.name)
    target = stream.checkpoint
    try:
        made = plan_restore(
            repository,
            manifest,
            target,
            replace=plan.replace,
            sink=sink_says(named_sinks(stream.sinks), manifest, target, repository=repository),
            seal_id=plan_id if is_sealed else None,
            chain=plan.chain,
        )
    except RefusedError as e:
        raise RefusedError(f"{stream.name}: {e.message}", hint=e.hint) from e
    return replace(made, plan_id=plan_id)


def _with(plan: SetRestorePlan, restores: Mapping[str, RestorePlan]) -> SetRestorePlan:
    return replace(plan, parts=tuple(replace(part, restore=restores.get(part.name)) for part in plan.parts))
