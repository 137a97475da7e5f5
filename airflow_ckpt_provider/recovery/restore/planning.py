"""Planning a restore, and finding one that was begun. Reads only."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as replace_fields
from typing import Any

from airflow_ckpt_provider.backup.content_checks import content_damage, read_content
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.identity import is_same_stream, other_stream_at
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import check_structure, refuse_damage
from airflow_ckpt_provider.change.plan import chain_command, undo_command
from airflow_ckpt_provider.change.sealing import sealed_by_another
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import Target, check_alone, inspect_target
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import CkptError, RefusedError, SealedError, UnreadableLogError
from airflow_ckpt_provider.parallel import in_parallel, side_by_side
from airflow_ckpt_provider.recovery.restore.plan import INTO_EMPTY, REPLACING, RestorePlan, restore_command
from airflow_ckpt_provider.recovery.restore.relocate import holds_absolute_paths, original_place, relocated, spark_uri
from airflow_ckpt_provider.recovery.restore.safety import kept_by_earlier_version
from airflow_ckpt_provider.recovery.restore.sink_answer import SinkAnswer
from airflow_ckpt_provider.storage.location import Location, plain_uri

log = logging.getLogger(__name__)


def plan_restore(
    repository: Repository,
    manifest: Manifest,
    target: Location,
    *,
    batch: int | None = None,
    replace: bool = False,
    target_uri: str | None = None,
    sink: SinkAnswer | None = None,
    seal_id: str | None = None,
    chain: Mapping[str, str] | None = None,
) -> RestorePlan:
    """Plan a restore; reads only.

    :param repository: the repository.
    :param manifest: the backup.
    :param target: the place to restore to.
    :param batch: the batch to rewind to; by default the newest of the backup.
    :param replace: what is at the target may be replaced, after a safety backup.
    :param target_uri: the target as Spark names it; by default derived, or as it was given to the restore that is resumed.
    :param sink: what the sink says to a start after the batch, and why (``recovery`` knows how to ask it).
    :param seal_id: id under which the target was sealed already, to stop its query; the plan takes it.
    :param chain: the restore of several streams that this is a part of, see :class:`RestorePlan`.
    :raises RefusedError: the batch is not in the backup; the target is in the wrong place, or not empty.
    :raises SealedError: the target is sealed by something else.
    :raises DamagedBackupError: objects of the backup are missing or of the wrong size.
    """
    batch_id = manifest.batch_id if batch is None else batch
    entries = manifest.files_of(batch_id)
    _check_place(repository, manifest, target)

    def checked() -> Target:
        refuse_damage(manifest, [d.message for d in check_structure(repository, manifest, entries)])
        return inspect_target(target)

    (backed_up, not_compared), there = side_by_side(lambda: _backed_up_query(repository, manifest, target), checked)
    begun = there.seal if there.seal and (there.seal.plan_id != seal_id or _is_of_restore(there.seal)) else None
    kept = (repository.kept_plan(begun.plan_id) if begun else None) or {}
    target_uri = target_uri or str(kept.get("target_uri") or "")
    rewritten = _rewritten(repository, manifest, entries, target, target_uri)
    plan = RestorePlan(
        plan_id=seal_id or new_plan_id(),
        repository=repository,
        manifest=manifest,
        batch_id=batch_id,
        target=there,
        entries=entries,
        rewritten=rewritten,
        replace=replace,
        replacing=not there.is_empty,
        already_done=False,
        target_uri=target_uri,
        sink=sink,
        chain=chain,
    )
    if begun:
        return _continued(plan, begun, kept)
    if not there.is_empty and _is_as_planned(plan, there):
        return replace_fields(plan, already_done=True)
    if not there.is_empty and not replace:
        what = "a checkpoint" if there.is_checkpoint else "files"
        raise RefusedError(
            f"{target} is not empty: it holds {what} ({len(there.visible)} files)",
            hint="restore to an empty place, or replace what is there (replace / --replace): it is kept first",
        )
    if not there.is_empty and not there.is_checkpoint:
        raise RefusedError(
            f"{target} holds files that are no checkpoint, such as {next(iter(there.visible))}",
            hint="replace is for checkpoints only; choose an empty place",
        )
    check_alone(there, there.files)
    if query_id := _query_at(there):
        same = is_same_stream(repository, manifest, target, query_id)
        return replace_fields(plan, other_query="" if same else query_id)
    return replace_fields(plan, other_query=backed_up, not_compared=not_compared)


def _query_at(there: Target) -> str:
    """The id of the query whose checkpoint is at the target; empty if no id of one can be read."""
    if METADATA_FILE in there.visible:
        with suppress(UnreadableLogError, FileNotFoundError):
            return parse_query_id(there.location.read(METADATA_FILE))
    return ""


def _backed_up_query(repository: Repository, manifest: Manifest, target: Location) -> tuple[str, str]:
    """The id of another stream's query that was backed up from the target, or empty; and why that is not known."""
    try:
        other = other_stream_at(repository, manifest, target)
    except CkptError as e:
        return "", e.message
    return other.query_id if other else "", ""


def _check_place(repository: Repository, manifest: Manifest, target: Location) -> None:
    if repository.location.contains(target) or target.contains(repository.location):
        raise RefusedError(
            f"the target {target} and the repository {repository.location} lie one inside the other",
            hint="restore to a place of its own",
        )
    source, place = plain_uri(manifest.checkpoint), plain_uri(target.uri)
    if source != place and (f"{place}/".startswith(f"{source}/") or f"{source}/".startswith(f"{place}/")):
        raise RefusedError(
            f"the target {target} and the checkpoint {manifest.checkpoint} that was backed up lie one inside the other",
            hint="restore beside it, or to exactly its place",
        )


def _rewritten(
    repository: Repository, manifest: Manifest, entries: Sequence[FileEntry], target: Location, target_uri: str
) -> dict[str, bytes]:
    rewritten = {}
    for entry in entries:
        if not holds_absolute_paths(entry.path):
            continue
        content = read_content(repository, entry)
        original = original_place(content, path=entry.path)
        if original is None:
            continue
        try:
            place = target_uri or spark_uri(target, like=original)
        except RefusedError:
            if plain_uri(manifest.checkpoint) == plain_uri(target.uri):
                continue  # it is put back where it was
            raise
        if place != original:
            rewritten[entry.path] = relocated(content, path=entry.path, target=place)
    return rewritten


def _is_of_restore(seal: Seal) -> bool:
    """Whether a restore has sealed a place and begun; before that it may have been sealed to stop its query."""
    return seal.reason.endswith((INTO_EMPTY, REPLACING))


def _continued(plan: RestorePlan, seal: Seal, kept: Mapping[str, Any]) -> RestorePlan:
    """Continue with a restore that was killed: its seal says which one it was.

    :param kept: its document; empty where the repository keeps none.
    """
    place = plan.target.location
    chain = kept.get("chain") if plan.chain is None else None
    if chain:
        raise SealedError(
            f"{place} is sealed by plan {seal.plan_id}, its part of chain {chain['plan_id']}, which was not ended",
            hint=f"run that one again: `{chain_command('restore', chain)}`, or undo it: `{chain_command('undo', chain)}`",
        )
    wanted = plan.seal_reason.removesuffix(INTO_EMPTY).removesuffix(REPLACING)
    replacing = seal.reason == wanted + REPLACING
    if not replacing and seal.reason != wanted + INTO_EMPTY:
        raise sealed_by_another(place.uri, seal)
    if kept and (kept.get("name"), plain_uri(str(kept.get("target")))) != (plan.manifest.name, plain_uri(place.uri)):
        # Backups of two streams can have one id, which is all that the seal names; and a flow is sealed in two versions.
        raise sealed_by_another(place.uri, seal)
    if plan.target_uri != (before := kept.get("target_uri", plan.target_uri)):
        again = restore_command(kept, plan.repository.location.uri)
        raise SealedError(
            f"{place} is sealed by plan {seal.plan_id}, a restore that was not ended: its target_uri (--target-uri) was "
            f"{before!r} and is {plan.target_uri!r}",
            hint=f"run that one again: `{again}`, or undo it: `{undo_command(place.uri, seal.plan_id, plan.repository)}`",
        )
    log.info("%s carries the seal of plan %s: resuming it", place, seal.plan_id)
    aside = SetAside(plan.repository, plan.manifest.name, seal.plan_id, "checkpoint")
    kept_before = kept_by_earlier_version(plan.repository, name=plan.manifest.name, plan_id=seal.plan_id)
    if replacing and aside.sizes is None and not kept_before and not plan.replace:
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
    return replace_fields(
        plan,
        plan_id=seal.plan_id,
        replacing=replacing,
        kept_before=kept_before,
        continued=True,
        observed=str(kept.get("observed") or ""),
        other_query=str(kept.get("other_query") or ""),  # what is there now does not say it any more
    )


def _is_as_planned(plan: RestorePlan, there: Target) -> bool:
    """Whether the target is exactly what the plan wants, byte for byte."""
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
