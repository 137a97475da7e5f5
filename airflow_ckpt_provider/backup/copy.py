"""Copying backups from one repository to another: a second region, a second cloud.

Every content is compared with its hash on the way. A copy has the id, the time and all else of its original, and is as whole
as a backup that was taken there; only its objects may have other names. What the target holds already is not read again at the
source, so a copy that was stopped continues where it was.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_ckpt_provider.backup.claims import claimed, in_use
from airflow_ckpt_provider.backup.content_checks import check_pack, content_damage, damage_of
from airflow_ckpt_provider.backup.contents import no_backup_of, stream_names
from airflow_ckpt_provider.backup.copy_progress import Meter, OnProgress
from airflow_ckpt_provider.backup.damaged import Damage, read_damaged
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.marker import refuse_inside, refuse_nested
from airflow_ckpt_provider.backup.notes import note_damage
from airflow_ckpt_provider.backup.objects import Objects
from airflow_ckpt_provider.backup.pack_reads import PACKS_AT_ONCE, ByPack, Span
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import DamagedBackup, readable
from airflow_ckpt_provider.backup.streams import stream_in_words, streams_among
from airflow_ckpt_provider.backup.verify import check_structure, refuse_damage
from airflow_ckpt_provider.errors import (
    BackupRunningError,
    CkptError,
    DamagedBackupError,
    DamagedFileError,
    NoSuchBackupError,
    OtherStreamError,
    RefusedError,
    StorageError,
)
from airflow_ckpt_provider.parallel import WORKERS, in_order, in_parallel
from airflow_ckpt_provider.storage.file_set import order
from airflow_ckpt_provider.storage.packs import Moved, Part, content_path, read_moved
from airflow_ckpt_provider.storage.store import StoredFile

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopiedBackup:
    """A backup that is in the target now.

    :param copied_files: contents that were written.
    :param already_there: the target had this backup before.
    """

    name: str
    backup_id: str
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int
    already_there: bool

    def to_json(self) -> dict[str, Any]:
        """The backup as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def to_copy(source: Repository, name: str | None = None) -> list[Manifest | DamagedBackup]:
    """All backups of a repository, oldest first; of those whose manifest cannot be read, what is wrong.

    :param source: the repository.
    :param name: those of one stream.
    :raises NoSuchBackupError: it has none of that name.
    """
    names = stream_names(source, name)
    found = [each for one in names for each in readable(source, one, source.backup_ids(one), with_files=False)]
    if name is not None and not found:
        raise no_backup_of(source, name)
    return found


def copy_backups(
    source: Repository,
    target: Repository,
    manifests: Sequence[Manifest | DamagedBackup],
    *,
    made_by: str = "",
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
) -> list[CopiedBackup]:
    """Copy backups, in the order given; oldest first shares the most.

    :param source: the repository that has them.
    :param target: the repository that gets them.
    :param manifests: backups of ``source``; those that cannot be read are not copied, and all others are.
    :param made_by: the run or user that copies.
    :param workers: files under way at once.
    :param on_progress: called after each file of a backup.
    :raises RefusedError: both are the same repository, or one lies inside the other; the target has another backup under the
        same id, or another stream under the same name. All others are copied.
    :raises DamagedBackupError: an object is not what was backed up; this backup is not copied, all others are.
    :raises StorageError: reading or writing failed, which ends it; the same command again continues.
    """
    if source.repository_id == target.repository_id and source.location.uri == target.location.uri:
        raise RefusedError(f"{source.location} would be copied to itself", hint="give another target")
    refuse_nested(source.location, target.location)
    refuse_inside(target.location)
    target.refuse_unsigned()
    numbers: dict[str, int] = {}
    copied: list[CopiedBackup] = []
    failed: dict[str, RefusedError] = {}
    for manifest in manifests:
        try:
            if isinstance(manifest, DamagedBackup):
                raise _unreadable(manifest)
            copied.append(
                _copied(source, target, manifest, numbers, made_by=made_by, workers=workers, on_progress=on_progress)
            )
        except RefusedError as e:
            if len(manifests) == 1:
                raise
            failed[f"{manifest.name} {manifest.backup_id}"] = e
            log.warning("backup %s of %s is not copied: %s", manifest.backup_id, manifest.name, e.message)
    if failed:
        raise _not_copied(failed, of=len(manifests))
    return copied


def _unreadable(backup: DamagedBackup) -> CkptError:
    message = "; ".join(backup.problems)
    if backup.is_unread:
        return StorageError(message, hint="repeat it: what is copied by then is not copied again")
    return DamagedBackupError(message, hint="`airflow-ckpt repair` of the repository says what can be saved of it")


def _not_copied(failed: Mapping[str, RefusedError], *, of: int) -> RefusedError:
    """Make the error of backups that were not copied: of one its own, of several one that names all of them.

    :param failed: name and id of each -> why.
    :param of: how many were to be copied.
    """
    if len(failed) == 1:
        ((what, error),) = failed.items()
        error.add_subject(what)
        return error
    message = f"{len(failed)} of {of} backups were not copied: " + "; ".join(
        f"{what}: {error.message}" for what, error in failed.items()
    )
    hint = "; ".join(dict.fromkeys(error.hint for error in failed.values() if error.hint)) or None
    damaged = {what: error for what, error in failed.items() if isinstance(error, DamagedBackupError)}
    if damaged:
        findings = (f"{what}: {each}" for what, e in damaged.items() for each in e.findings or (e.message,))
        return DamagedBackupError(message, findings=tuple(findings), hint=hint)
    if all(isinstance(error, BackupRunningError) for error in failed.values()):
        return BackupRunningError(message, hint=hint)  # it passes by itself
    return RefusedError(message, hint=hint)


def _copied(
    source: Repository,
    target: Repository,
    manifest: Manifest,
    numbers: dict[str, int],
    *,
    made_by: str,
    workers: int,
    on_progress: OnProgress | None,
) -> CopiedBackup:
    """Copy one backup.

    :param numbers: the highest number that a backup of a stream has in the target, by stream, as far as this copy knows.
    """
    name = manifest.name
    refuse_damage(manifest, [d.message for d in check_structure(source, manifest, manifest.files)])
    there, taken = target.ids(name)
    if manifest.backup_id in there:
        same = _there(target, manifest)
        _check_same(same, manifest, target)
        _refuse_known_damage(same, target)
        return CopiedBackup(name, manifest.backup_id, len(manifest.files), manifest.bytes, 0, 0, True)
    with (
        in_use(source, manifest, what="copy", made_by=made_by),
        claimed(target.location, name, what="copy", made_by=made_by) as claim,
    ):
        marks = read_marks(target.location, name)
        others = sorted(target.backup_ids(name))
        near = _nearest(target, manifest, others)
        if name not in numbers:  # a copy may be older than others, and then the newest has not the highest
            there_already = readable(target, name, tuple(others), with_files=False)
            numbers[name] = max((m.sequence for m in there_already if isinstance(m, Manifest)), default=0)
        _check_stream(source, target, manifest, near)
        damaged = read_damaged(target.location, name).objects.keys()
        objects = Objects(
            target.location,
            name,
            vouched=near.files if near else (),
            marks=marks,
            damaged=damaged,
            moved=read_moved(target.location, name) if target.packs else Moved(),
            packs=target.packs,
        )
        meter = Meter(on_progress, files=len(manifest.files), size=manifest.bytes)

        def copy(entry: FileEntry, read: Callable[[], bytes] | None = None) -> FileEntry:
            found = partial(note_damage, source, manifest)
            copied = _copy_one(objects, entry, read or (lambda: source.location.read(entry.object)), found)
            meter.add(entry.size)
            return copied

        def copy_span(span: Span) -> list[FileEntry]:
            if target.packs and span.is_whole and (whole := _copy_pack(objects, span)):
                meter.add(sum(entry.size for entry in whole), len(whole))
                return whole
            return [copy(entry, partial(span.read, entry)) for entry in span.entries]

        stored, packed = FileTable(name), ByPack(source)
        single = (e for e in manifest.files if not packed.add(e))
        in_order(copy, single, stored.append, workers=workers)
        for of_span in in_parallel(copy_span, packed.spans(whole=target.packs), workers=min(workers, PACKS_AT_ONCE)):
            for entry in of_span:
                stored.append(entry)
        if packed or objects.packs:
            stored = FileTable(name, sorted(objects.settled(stored), key=lambda entry: order(entry.path)))
        # The numbers are those of the repository: one that gets some of the backups only has no gap in them.
        made = replace(manifest, files=stored, claim=claim.claim_id, sequence=numbers[name] + 1)
        try:
            claim.write_copy(made.path, made.to_document(), was_given_up=made.backup_id in {*taken} - {*there})
            numbers[name] = made.sequence
        except FileExistsError:
            _check_same(_there(target, manifest), manifest, target)  # another copy was faster
    written = {entry.object: entry.size for entry in stored if objects.is_new(entry.object)}
    log.info("copied backup %s of %s to %s", made.backup_id, name, target.location)
    return CopiedBackup(name, made.backup_id, len(made.files), made.bytes, len(written), sum(written.values()), False)


def _nearest(target: Repository, manifest: Manifest, others: Sequence[str]) -> Manifest | None:
    """The backup in the target that shares the most with one: the next older one, else the next newer one.

    One that cannot be read is passed over: what it shares is copied again.

    :param others: ids of the backups in the target, oldest first.
    """
    older = [i for i in reversed(others) if i < manifest.backup_id]
    for backup_id in (*older, *(i for i in others if i > manifest.backup_id)):
        try:
            return target.read_manifest(manifest.name, backup_id)
        except (DamagedBackupError, NoSuchBackupError) as e:
            log.warning(
                "backup %s of %s in %s is passed over: %s", backup_id, manifest.name, target.location, e.message
            )
    return None


def _there(target: Repository, manifest: Manifest) -> Manifest:
    """The backup that the target has under the id of another one.

    :raises DamagedBackupError: it cannot be read.
    """
    try:
        return target.read_manifest(manifest.name, manifest.backup_id)
    except DamagedBackupError as e:
        raise DamagedBackupError(
            e.message,
            findings=e.findings,
            hint=f"it is in {target.location}: move this file out of the target, then copy the backup again",
        ) from e


def _refuse_known_damage(there: Manifest, target: Repository) -> None:
    """See that a backup which the target has already is not known to be damaged there.

    :raises DamagedBackupError: it is.
    """
    damaged = [damage.message for damage in read_damaged(target.location, there.name).of(there).values()]
    if damaged:
        raise DamagedBackupError(
            f"{target.location} has backup {there.backup_id} of {there.name} already, and it is damaged there: {damaged[0]}"
            + (f" (and {len(damaged) - 1:,} more)" if len(damaged) > 1 else ""),
            findings=tuple(damaged),
            hint="rebuild it there: `airflow-ckpt repair TARGET CHECKPOINT --second SOURCE`",
        )


def _copy_pack(objects: Objects, span: Span) -> list[FileEntry] | None:
    """Copy a whole pack; ``None`` if it is not what was written: then its contents are copied one by one."""
    parts = [(entry, part) for entry in span.entries if (part := span.part(entry))]
    # Each in this very place, also where that is not read: a record of what was moved may be forged.
    is_known = all(entry.sha256 == part.sha256 for entry, part in parts)
    pack = objects.held_pack([part for _, part in parts]) if is_known else None
    if pack is None:
        try:
            content = span.data()
        except (FileNotFoundError, DamagedFileError):
            return None
        if not all(_is_there(entry, part, content) for entry, part in parts) or check_pack(span, ()):
            return None
        pack = objects.write_pack(content)
    return [
        entry._replace(
            object=content_path(pack, part.sha256, part.start, part.length), sha256=part.sha256, checksum=None
        )
        for entry, part in parts
    ]


def _is_there(entry: FileEntry, part: Part, pack: bytes) -> bool:
    """Whether a content is where it is said to be in a pack, and is the one that the path there names."""
    content = pack[part.start : part.end]
    return entry.is_content(content) and hashlib.sha256(content).hexdigest() == part.sha256


def _copy_one(
    objects: Objects, entry: FileEntry, read: Callable[[], bytes], found: Callable[[list[Damage]], None]
) -> FileEntry:
    """Copy one content.

    :param found: called with damage before that is raised.
    """
    # The identity is of the checkpoint, and stays: a backup of it into the target reuses the object by it.
    file = StoredFile(entry.path, entry.size, entry.identity)
    if entry.sha256 and (held := objects.held_content(file, entry.sha256)):
        return held.entry._replace(batches=entry.batches)
    try:
        content = read()
        damage = content_damage(entry, content)
    except DamagedFileError as e:
        damage = damage_of(entry, "content", f"has another content than was backed up: {e.message}")
    except FileNotFoundError:
        raise DamagedBackupError(
            f"{entry.path}: its object {entry.object} is missing",
            findings=(entry.object,),
            hint="`airflow-ckpt check` shows which backups are whole",
        ) from None
    if damage is not None:
        found([damage])
        raise DamagedBackupError(
            damage.message,
            findings=(damage.message,),
            hint="`airflow-ckpt verify --read-data` shows which backups are whole",
        )
    stored = objects.write(file, content)
    return stored.entry._replace(batches=entry.batches)


def _check_stream(source: Repository, target: Repository, manifest: Manifest, near: Manifest | None) -> None:
    """See that the target has no other stream under the name; one that the source has under it too is a copy.

    :param near: a backup that the target has under the name.
    """
    if near is None or len(streams_among([near, manifest])) == 1 or near.backup_id in source.backup_ids(manifest.name):
        return
    raise OtherStreamError(
        f"the backups named {manifest.name!r} in {target.location} are of another stream: {stream_in_words(near)} "
        f"({near.backup_id}); {manifest.backup_id} is of {stream_in_words(manifest)}",
        hint="copy into another repository",
        other=True,
    )


def _check_same(there: Manifest, manifest: Manifest, target: Repository) -> None:
    def what(m: Manifest) -> tuple[object, ...]:
        return m.created, m.query_id, m.batch_id, {(f.path, f.size) for f in m.files}

    if what(there) != what(manifest):
        raise RefusedError(
            f"{target.location} has another backup {manifest.backup_id} of {manifest.name}",
            hint="copy into another repository",
        )
