"""Restoring a backup: a plan first, then the plan carried out under the seal.

The order is what makes it safe (``docs/design.md``): at every moment the newest file in ``offsets/`` is the seal, so no Spark
starts; and within that, ``offsets/<N-1>``, without which no Spark starts either, is written last. Killed anywhere,
the target is as before, or refuses to start; the same command again finishes the work.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.manifest import FileEntry, Manifest
from airflow_ckpt_provider.backup.relocate import holds_absolute_paths, original_place, relocated, spark_uri
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.safety import keep_what_is_there, kept_for
from airflow_ckpt_provider.backup.sealing import new_plan_id, put_seal, remove_seal
from airflow_ckpt_provider.backup.target import Target, check_at_rest, look_at, wait_until_at_rest
from airflow_ckpt_provider.backup.transfer import WORKERS, Meter, OnProgress, in_parallel
from airflow_ckpt_provider.backup.verify import check_contents, check_structure, content_damage
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, SealedError, StorageError
from airflow_ckpt_provider.plan import Verdict
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

_INTO_EMPTY = "into an empty place"
_REPLACING = "replacing what was there"
#: How long a sealed query may take to finish its batch, seconds.
STOP_WITHIN = 600.0


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
    :param seal_running: whether a running query may be stopped by the seal.
    :param quiet_for: seconds without a change after which the target counts as at rest.
    :param already_done: the target is exactly what the plan wants.
    """

    plan_id: str
    repository: Repository
    manifest: Manifest
    batch_id: int
    target: Target
    entries: tuple[FileEntry, ...]
    rewritten: dict[str, bytes]
    replace: bool
    seal_running: bool
    quiet_for: float
    already_done: bool

    @property
    def bytes(self) -> int:
        """Bytes to write."""
        return sum(self._size(entry) for entry in self.entries)

    @property
    def fingerprint(self) -> str:
        """Changes with the backup, the target's place or the target's content."""
        parts = (self.manifest.backup_id, str(self.batch_id), self.target.location.uri, self.target.fingerprint)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    @property
    def reason(self) -> str:
        """What the seal says; a run that was killed finds its own seal by it, and whether it has to keep anything."""
        into = _INTO_EMPTY if self.target.is_empty else _REPLACING
        return f"restore of {self.manifest.backup_id} batch {self.batch_id} {into}"

    @property
    def verdict(self) -> Verdict:
        """``SAFE`` only where nothing can have been written beyond the restored batch."""
        return Verdict.SAFE if self.already_done else Verdict.UNKNOWN

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words."""
        if self.already_done:
            return ("the target already holds exactly this batch of this backup: nothing to do",)
        n = self.batch_id
        return (
            f"The query goes on with batch {n + 1} from the sources' offsets of batch {n}. Sources must still have that data.",
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
                f"delete its {len(there.visible)} files",
            ]
        steps.append(
            f"write {len(self.entries)} files, {self.bytes} bytes: offsets/{n}, metadata, commits/{n}, sources, state"
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

    def _size(self, entry: FileEntry) -> int:
        return len(self.rewritten[entry.path]) if entry.path in self.rewritten else entry.size


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """A restore that was carried out.

    :param kept: where what was replaced is kept, or ``None`` if there was nothing.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    backup_id: str
    target: str
    batch_id: int
    files: int
    bytes: int
    seconds: float
    kept: str | None
    already_done: bool

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


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
    :raises RefusedError: the batch is not in the backup; the target is in the wrong place, or not empty.
    :raises SealedError: the target is sealed by something else.
    :raises DamagedBackupError: objects of the backup are missing or of the wrong size.
    """
    batch_id = manifest.batch_id if batch is None else batch
    entries = manifest.files_of(batch_id)
    _check_place(repository, manifest, target)
    _refuse_damage(manifest, [d.message for d in check_structure(repository, manifest, list(entries))])
    there = look_at(target)
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
        seal_running=seal_running,
        quiet_for=quiet_for,
        already_done=False,
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


def apply_restore(
    plan: RestorePlan,
    *,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
) -> RestoreOutcome:
    """Carry a restore out.

    :param plan: from :func:`plan_restore`.
    :param made_by: the run or user that restores.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :param on_progress: called after each file that was written.
    :raises DamagedBackupError: an object is not what was backed up; nothing was changed.
    :raises RefusedError: the target is in use, or is not any more what the plan was made for; nothing was changed.
    :raises StorageError: reading or writing failed; the target is sealed, and the same command again finishes.
    """
    began = time.monotonic()
    if plan.already_done:
        return _outcome(plan, began, kept=None)
    problems = check_contents(plan.repository, list(plan.entries), workers=workers)
    _refuse_damage(plan.manifest, [damage.message for damage in problems])
    seal = _seal(plan, made_by)
    kept = _keep(plan, made_by)
    _clear(plan, seal, workers)
    _write(plan, workers, on_progress)
    _check(plan, seal)
    facts = {"made_by": made_by, "reason": reason, "kept": kept, "plan": plan.to_json()}
    plan.repository.record(plan.plan_id, {"kind": "restore", **facts})
    # Performed last: until now no Spark could start from the target.
    remove_seal(plan.target.location, seal)
    log.info("%s restored to batch %d of %s; seal lifted", plan.target.location, plan.batch_id, plan.manifest.backup_id)
    return _outcome(plan, began, kept=kept)


def _outcome(plan: RestorePlan, began: float, *, kept: str | None) -> RestoreOutcome:
    return RestoreOutcome(
        plan_id=plan.plan_id,
        backup_id=plan.manifest.backup_id,
        target=plan.target.location.uri,
        batch_id=plan.batch_id,
        files=len(plan.entries),
        bytes=plan.bytes,
        seconds=time.monotonic() - began,
        kept=kept,
        already_done=plan.already_done,
    )


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
    return re.sub(r"^(s3a|s3n)://", "s3://", uri).rstrip("/")


def _refuse_damage(manifest: Manifest, problems: list[str]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise DamagedBackupError(
            f"backup {manifest.backup_id} of {manifest.name} is damaged: {problems[0]}{more}; nothing was changed",
            findings=tuple(problems),
            hint="choose another backup; `airflow-ckpt verify --read-data` tells which are whole",
        )


def _rewritten(
    repository: Repository, entries: tuple[FileEntry, ...], target: Location, target_uri: str | None
) -> dict[str, bytes]:
    rewritten = {}
    for entry in entries:
        if not holds_absolute_paths(entry.path):
            continue
        content = repository.location.read(entry.object)
        if damage := content_damage(entry, content):
            raise DamagedBackupError(f"{damage.message}; nothing was changed", findings=(damage.message,))
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
    strange = sorted(set(plan.target.visible) - {entry.path for entry in plan.entries})
    if not replacing and strange:
        raise RefusedError(
            f"{place} holds files that plan {seal.plan_id} did not write, such as {strange[0]}",
            hint="see who else writes there; delete them or choose another place",
        )
    return _with(plan, plan_id=seal.plan_id, replace=replacing)


def _is_as_planned(plan: RestorePlan, there: Target) -> bool:
    """Whether the target is exactly what the plan wants: the same files, sizes, and logs to the letter."""
    wanted = {entry.path: plan._size(entry) for entry in plan.entries}
    if wanted != {path: file.size for path, file in there.visible.items()}:
        return False
    logs = [e for e in plan.entries if e.path.startswith((f"{OFFSETS}/", f"{COMMITS}/")) or e.path == METADATA_FILE]
    return all(content_damage(entry, there.location.read(entry.path)) is None for entry in logs)


def _seal(plan: RestorePlan, made_by: str) -> Seal:
    """Seal the target with a number that stays the highest in ``offsets/`` until the end, and look again."""
    place = plan.target.location
    now = look_at(place)
    if now.seal:
        if now.seal.plan_id != plan.plan_id:
            raise SealedError(
                f"{place} was sealed by plan {now.seal.plan_id} ({now.seal.reason}) in the meantime",
                hint="let that plan finish first",
            )
        seal = now.seal
    else:
        if now.fingerprint != plan.target.fingerprint and not plan.seal_running:
            raise RefusedError(
                f"{place} is not any more what plan {plan.plan_id} was made for; nothing was changed",
                hint="make a new plan, and stop the query before",
            )
        if not plan.seal_running:
            check_at_rest(now, quiet_for=plan.quiet_for)
        first = plan.batch_id + 1 if now.is_empty else now.newest_offsets + 1
        seal = _put_above(plan, first, made_by)
    if not now.is_empty and plan.seal_running:
        wait_until_at_rest(place, quiet_for=plan.quiet_for, at_most=STOP_WITHIN)
    if seal.batch_id <= plan.batch_id:
        higher = put_seal(place, plan.batch_id + 1, plan_id=plan.plan_id, reason=plan.reason, made_by=made_by)
        remove_seal(place, seal)
        seal = higher
    return seal


def _put_above(plan: RestorePlan, number: int, made_by: str) -> Seal:
    for candidate in range(number, number + 50):
        try:
            return put_seal(plan.target.location, candidate, plan_id=plan.plan_id, reason=plan.reason, made_by=made_by)
        except FileExistsError:
            log.info("offsets/%d appeared: the stream was faster; taking the next number", candidate)
    raise RefusedError(f"{plan.target.location} could not be sealed: the stream is too fast", hint="stop it first")


def _keep(plan: RestorePlan, made_by: str) -> str | None:
    if plan.target.is_empty or not plan.replace:
        return None
    there = look_at(plan.target.location)
    kept = keep_what_is_there(plan.repository, there, name=plan.manifest.name, plan_id=plan.plan_id, made_by=made_by)
    log.info("what was at %s is kept: %s", plan.target.location, kept)
    return kept


def _clear(plan: RestorePlan, seal: Seal, workers: int) -> None:
    """Delete what is there but the seal; first the entry without which no Spark starts."""
    place = plan.target.location
    paths = sorted(path for path in place.walk() if path != seal.path)
    offsets = sorted((p for p in paths if p.startswith(f"{OFFSETS}/")), key=lambda p: p.rpartition("/")[2].zfill(20))
    for path in (*offsets[-2:-1], *offsets[:-2], *offsets[-1:]):
        place.delete(path)
    in_parallel(place.delete, sorted(set(paths) - set(offsets)), workers=workers)
    place.remove_empty_directories()


def _write(plan: RestorePlan, workers: int, on_progress: OnProgress | None) -> None:
    """Write the files in the order that is loud by itself: the entry that a start needs comes last."""
    meter = Meter(on_progress, files=len(plan.entries), size=plan.bytes)
    by_path = {entry.path: entry for entry in plan.entries}
    n = plan.batch_id
    first = [by_path.pop(path) for path in (f"{OFFSETS}/{n}", METADATA_FILE, f"{COMMITS}/{n}")]
    gates = [by_path.pop(path) for path in sorted(by_path) if path.startswith(f"{OFFSETS}/")]

    def write(entry: FileEntry) -> None:
        _write_one(plan, entry)
        meter.add(plan._size(entry))

    for entry in first:
        write(entry)
    in_parallel(write, by_path.values(), workers=workers)
    log.info("writing %s last: a restore that stops before it cannot be started", ", ".join(e.path for e in gates))
    for entry in gates:
        write(entry)


def _write_one(plan: RestorePlan, entry: FileEntry) -> None:
    repository, target = plan.repository.location, plan.target.location
    rewritten = plan.rewritten.get(entry.path)
    if rewritten is not None:
        target.replace(entry.path, rewritten)
        return
    if entry.checksum is not None and target.store.copies_within and target.store.same_as(repository.store):
        target.store.copy((repository / entry.object).root, (target / entry.path).root, entry.size)
        return
    content = repository.read(entry.object)
    if damage := content_damage(entry, content):
        raise StorageError(
            f"{damage.message}; it was right when the restore began",
            hint="the target stays sealed; mend the store, then run the same command again",
        )
    target.replace(entry.path, content)


def _check(plan: RestorePlan, seal: Seal) -> None:
    """Look at what was written: exactly the files of the plan, and for Spark a whole closure of the batch."""
    there = look_at(plan.target.location)
    wanted = {entry.path: plan._size(entry) for entry in plan.entries}
    found = {path: file.size for path, file in there.visible.items()}
    differing = sorted(path for path in {*wanted, *found} if wanted.get(path) != found.get(path))
    if differing:
        raise StorageError(
            f"{plan.target.location}/{differing[0]} is not what was written ({len(differing)} files differ)",
            hint=f"the target stays sealed by plan {plan.plan_id}; see who else writes there, then run the same command again",
        )
    for entry in plan.entries:
        # Copied by the store: its checksum has to be the object's, or else the content is read.
        copied = entry.checksum is not None and entry.path not in plan.rewritten
        if copied and there.visible[entry.path].checksum != entry.checksum:
            damage = content_damage(entry, plan.target.location.read(entry.path))
            if damage:
                raise StorageError(damage.message, hint="the target stays sealed; run the same command again")
    closure = Checkpoint.at(plan.target.location).closure(plan.batch_id)
    if {file.path for file in closure.files} != set(wanted):
        raise StorageError(
            f"{plan.target.location} does not read back as batch {plan.batch_id} of the backup",
            hint=f"the target stays sealed by plan {plan.plan_id}; this is a defect: please report it",
        )
