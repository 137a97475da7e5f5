"""The plan of a restore: what it would do, and every reason not to do it. Reads only."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository, new_plan_id
from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.backup.verify import check_structure, content_damage, refuse_damage
from airflow_ckpt_provider.change.target import Target, inspect_target
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, SealedError
from airflow_ckpt_provider.recovery.restore.relocate import holds_absolute_paths, original_place, relocated, spark_uri
from airflow_ckpt_provider.recovery.restore.safety import kept_for
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)

_INTO_EMPTY = "into an empty place"
_REPLACING = "replacing what was there"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore would do.

    :param plan_id: its id; the seal carries it.
    :param manifest: the backup.
    :param batch_id: the batch that is restored; the next to run is one more.
    :param target: the place, as it was when the plan was made.
    :param entries: files to write.
    :param rewritten: contents that differ from the backup's because they name absolute places, by path.
    :param replace: whether what is there may be replaced.
    :param replacing: whether there was something to replace when the restore began.
    :param seal_running: whether a running query may be stopped by the seal.
    :param quiet_for: seconds without a change after which the target counts as at rest.
    :param already_done: the target is exactly what the plan wants.
    :param sink: what the sink says to a start after the batch, and why; ``None`` where it was not looked at.
    """

    plan_id: str
    repository: Repository
    manifest: Manifest
    batch_id: int
    target: Target
    entries: Sequence[FileEntry]
    rewritten: dict[str, bytes]
    replace: bool
    replacing: bool
    seal_running: bool
    quiet_for: float
    already_done: bool
    sink: tuple[Verdict, tuple[str, ...]] | None = None

    @property
    def bytes(self) -> int:
        """Bytes to write."""
        if isinstance(self.entries, FileTable) and not self.rewritten:
            return self.entries.bytes
        return sum(self.size_of(entry) for entry in self.entries)

    @property
    def fingerprint(self) -> str:
        """Changes with the backup, the target's place or the target's content."""
        parts = (self.manifest.backup_id, str(self.batch_id), self.target.location.uri, self.target.fingerprint)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    @property
    def reason(self) -> str:
        """What the seal says; a run that was killed finds its own seal by it, and whether it has to keep anything."""
        into = _REPLACING if self.replacing else _INTO_EMPTY
        return f"restore of {self.manifest.backup_id} batch {self.batch_id} {into}"

    @property
    def verdict(self) -> Verdict:
        """What the sink says; ``UNKNOWN`` where it was not looked at."""
        if self.already_done:
            return Verdict.SAFE
        return self.sink[0] if self.sink else Verdict.UNKNOWN

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words."""
        if self.already_done:
            return ("the target already holds exactly this batch of this backup: nothing to do",)
        n = self.batch_id
        goes_on = f"The query goes on with batch {n + 1} from the sources' offsets of batch {n}."
        sources = f"{goes_on} Sources must still have that data."
        if self.sink:
            return (sources, *self.sink[1])
        return (
            sources,
            f"The sink is not looked at. If it has batches after {n}, a Delta table or file sink written directly skips their "
            "replay without a word; foreachBatch, Kafka and foreach sinks repeat them, which only an idempotent sink (MERGE by "
            "key, overwrite by batch id) puts right.",
        )

    @property
    def steps(self) -> tuple[str, ...]:
        """What ``apply`` does, in order."""
        if self.already_done:
            return ()
        n, there = self.batch_id, self.target
        steps = ["read and check every object of the backup"]
        if there.is_empty:
            steps.append(f"seal the empty target with offsets/{n + 1}")
        else:
            wait = (
                "have the seal stop the query"
                if self.seal_running
                else f"check that nobody writes for {self.quiet_for:g} s"
            )
            steps += [
                f"{wait}, seal the target",
                f"keep its {len(there.visible)} files: a safety backup, or a copy set aside if it is too broken",
                f"delete what differs of its {len(there.visible)} files",
            ]
        what = "" if there.is_empty else ", but for what is there already"
        steps.append(
            f"write {len(self.entries)} files, {self.bytes} bytes{what}: offsets/{n}, metadata, commits/{n}, sources, state"
            + (f", and last offsets/{n - 1}" if n else "")
        )
        if self.rewritten:
            steps.append(f"rewrite absolute places in {', '.join(sorted(self.rewritten))}")
        steps += ["check what was written", "write the audit record", "lift the seal"]
        return tuple(steps)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "plan_id": self.plan_id,
            "kind": "restore",
            "backup_id": self.manifest.backup_id,
            "name": self.manifest.name,
            "batch_id": self.batch_id,
            "target": self.target.location.uri,
            "target_files": len(self.target.visible),
            "replace": self.replace,
            "files": len(self.entries),
            "bytes": self.bytes,
            "rewritten": sorted(self.rewritten),
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "steps": list(self.steps),
            "fingerprint": self.fingerprint,
            "already_done": self.already_done,
        }

    def to_markdown(self) -> str:
        """The plan for people: the log, a form, a terminal."""
        m = self.manifest
        there = "empty" if self.target.is_empty else f"{len(self.target.visible)} files, to be replaced"
        if self.already_done:
            there = "as planned already"
        rows = (
            ("backup", f"`{m.backup_id}` of `{m.name}`, {m.created:%Y-%m-%d %H:%M:%S} UTC"),
            ("batch", f"{self.batch_id}; the query goes on with {self.batch_id + 1}"),
            ("taken from", f"`{m.checkpoint}`"),
            ("target", f"`{self.target.location}` ({there})"),
            ("files", f"{len(self.entries)} ({self.bytes:,} bytes)"),
            ("verdict", f"**{self.verdict.value}**"),
        )
        table = "\n".join(f"| {name} | {value} |" for name, value in rows)
        reasons = "\n".join(f"* {reason}" for reason in self.reasons)
        steps = "\n".join(f"{number}. {step}" for number, step in enumerate(self.steps, 1))
        return (
            f"### Restore, plan {self.plan_id}\n\n| | |\n|---|---|\n{table}\n\n{reasons}\n\n{steps}\n".rstrip() + "\n"
        )

    @property
    def wanted(self) -> FileSet:
        """The files that are to be there in the end, by path and size."""
        return FileSet(StoredFile(entry.path, self.size_of(entry)) for entry in self.entries)

    def size_of(self, entry: FileEntry) -> int:
        """Bytes that a file has once it is written."""
        return len(self.rewritten[entry.path]) if entry.path in self.rewritten else entry.size


def plan_restore(
    repository: Repository,
    manifest: Manifest,
    target: Location,
    *,
    batch: int | None = None,
    replace: bool = False,
    seal_running: bool = False,
    quiet_for: float = 5.0,
    target_uri: str | None = None,
    sink: tuple[Verdict, tuple[str, ...]] | None = None,
) -> RestorePlan:
    """Plan a restore; reads only.

    :param repository: the repository.
    :param manifest: the backup.
    :param target: the place to restore to.
    :param batch: the batch to go back to; by default the newest of the backup.
    :param replace: what is at the target may be replaced, after a safety backup.
    :param seal_running: a query that writes to the target may be stopped by the seal.
    :param quiet_for: seconds without a change after which the target counts as at rest.
    :param target_uri: the target as Spark names it; by default derived.
    :param sink: what the sink says to a start after the batch, and why (``recovery`` knows how to ask it).
    :raises RefusedError: the batch is not in the backup; the target is in the wrong place, or not empty.
    :raises SealedError: the target is sealed by something else.
    :raises DamagedBackupError: objects of the backup are missing or of the wrong size.
    """
    batch_id = manifest.batch_id if batch is None else batch
    entries = manifest.files_of(batch_id)
    _check_place(repository, manifest, target)
    refuse_damage(manifest, [d.message for d in check_structure(repository, manifest, entries)])
    there = inspect_target(target)
    rewritten = _rewritten(repository, entries, target, target_uri)
    plan = RestorePlan(
        plan_id=new_plan_id(),
        repository=repository,
        manifest=manifest,
        batch_id=batch_id,
        target=there,
        entries=entries,
        rewritten=rewritten,
        replace=replace,
        replacing=not there.is_empty,
        seal_running=seal_running,
        quiet_for=quiet_for,
        already_done=False,
        sink=sink,
    )
    if there.seal:
        return _continued(plan, there.seal)
    if not there.is_empty and _is_as_planned(plan, there):
        return _with(plan, already_done=True)
    if not there.is_empty and not replace:
        what = "a checkpoint" if there.is_checkpoint else "files"
        raise RefusedError(
            f"{target} is not empty: it holds {what} ({len(there.visible)} files)",
            hint="restore to an empty place, or replace what is there (replace / --replace): it is backed up first",
        )
    if not there.is_empty and not there.is_checkpoint:
        raise RefusedError(
            f"{target} holds files that are no checkpoint, such as {next(iter(there.visible))}",
            hint="replace is for checkpoints only; choose an empty place",
        )
    return plan


def _with(plan: RestorePlan, **changes: Any) -> RestorePlan:
    return RestorePlan(**{name: getattr(plan, name) for name in plan.__slots__} | changes)


def _check_place(repository: Repository, manifest: Manifest, target: Location) -> None:
    if repository.location.contains(target) or target.contains(repository.location):
        raise RefusedError(
            f"the target {target} and the repository {repository.location} lie one inside the other",
            hint="restore to a place of its own",
        )
    source, place = _plain(manifest.checkpoint), _plain(target.uri)
    if source != place and (f"{place}/".startswith(f"{source}/") or f"{source}/".startswith(f"{place}/")):
        raise RefusedError(
            f"the target {target} and the checkpoint {manifest.checkpoint} that was backed up lie one inside the other",
            hint="restore beside it, or to exactly its place",
        )


def _plain(uri: str) -> str:
    """The place that a URI names, however it is spelt."""
    if "://" not in uri:
        return os.path.realpath(uri)
    return re.sub(r"^(s3a|s3n)://", "s3://", uri).rstrip("/")


def _rewritten(
    repository: Repository, entries: Sequence[FileEntry], target: Location, target_uri: str | None
) -> dict[str, bytes]:
    rewritten = {}
    for entry in entries:
        if not holds_absolute_paths(entry.path):
            continue
        content = repository.location.read(entry.object)
        if damage := content_damage(entry, content):
            raise DamagedBackupError(
                f"{damage.message}; nothing was changed",
                findings=(damage.message,),
                hint="choose another backup; `airflow-ckpt verify --read-data` tells which are whole",
            )
        original = original_place(content, path=entry.path)
        if original is None:
            continue
        place = target_uri or spark_uri(target, like=original)
        if place != original:
            rewritten[entry.path] = relocated(content, path=entry.path, target=place)
    return rewritten


def _continued(plan: RestorePlan, seal: Seal) -> RestorePlan:
    """Go on with a restore that was killed: its seal says which one it was."""
    place = plan.target.location
    wanted = plan.reason.removesuffix(_INTO_EMPTY).removesuffix(_REPLACING)
    replacing = seal.reason == wanted + _REPLACING
    if not replacing and seal.reason != wanted + _INTO_EMPTY:
        raise SealedError(
            f"{place} is sealed by plan {seal.plan_id} ({seal.reason}, {seal.made_by}): {seal.path}",
            hint=f"let that plan finish, or lift its seal: `airflow-ckpt unseal {place} --plan {seal.plan_id}`",
        )
    log.info("%s carries the seal of plan %s: going on with it", place, seal.plan_id)
    kept = kept_for(plan.repository, name=plan.manifest.name, plan_id=seal.plan_id)
    if replacing and not kept and not plan.replace:
        raise RefusedError(
            f"plan {seal.plan_id} was to replace what is at {place} and was stopped before it had kept it",
            hint="run the same command again, with replace / --replace",
        )
    expected = plan.wanted
    strange = [path for path in plan.target.visible if path not in expected]
    if not replacing and strange:
        raise RefusedError(
            f"{place} holds files that plan {seal.plan_id} did not write, such as {strange[0]}",
            hint="see who else writes there; delete them or choose another place",
        )
    return _with(plan, plan_id=seal.plan_id, replacing=replacing)


def _is_as_planned(plan: RestorePlan, there: Target) -> bool:
    """Whether the target is exactly what the plan wants, to the letter."""
    wanted = plan.wanted
    if len(wanted) != len(there.visible):
        return False
    for file in there.visible.values():
        if (planned := wanted.get(file.path)) is None or planned.size != file.size:
            return False

    def is_right(entry: FileEntry) -> bool:
        content = there.location.read(entry.path)
        if entry.path in plan.rewritten:
            return content == plan.rewritten[entry.path]
        return content_damage(entry, content) is None

    return all(in_parallel(is_right, plan.entries))
