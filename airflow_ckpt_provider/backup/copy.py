"""Copying backups from one repository to another: a second region, a second cloud.

Every content is compared with its hash on the way. A copy has the id, the time and all else of its original, and is as whole
as a backup that was taken there; only its objects may have other names. What the target holds already is not read again at the
source, so a copy that was stopped continues where it was.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_ckpt_provider.backup.claims import claimed, in_use
from airflow_ckpt_provider.backup.content_checks import check_pack, content_damage
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.objects import Objects
from airflow_ckpt_provider.backup.pack_reads import PACKS_AT_ONCE, ByPack, Span
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import readable
from airflow_ckpt_provider.backup.streams import stream_in_words, streams_among
from airflow_ckpt_provider.backup.transfer import WORKERS, Meter, OnProgress, in_order, in_parallel
from airflow_ckpt_provider.backup.verify import check_structure, refuse_damage
from airflow_ckpt_provider.errors import DamagedBackupError, DamagedFileError, OtherStreamError, RefusedError
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


def copy_backups(
    source: Repository,
    target: Repository,
    manifests: Sequence[Manifest],
    *,
    made_by: str = "",
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
) -> list[CopiedBackup]:
    """Copy backups, in the order given; oldest first shares the most.

    :param source: the repository that has them.
    :param target: the repository that gets them.
    :param manifests: backups of ``source``.
    :param made_by: the run or user that copies.
    :param workers: files under way at once.
    :param on_progress: called after each file of a backup.
    :raises RefusedError: both are the same repository; the target has another backup under the same id, or another stream under
        the same name.
    :raises DamagedBackupError: an object is not what was backed up; this backup is not copied, those before are.
    :raises StorageError: reading or writing failed; the same command again continues.
    """
    if source.repository_id == target.repository_id and source.location.uri == target.location.uri:
        raise RefusedError(f"{source.location} would be copied to itself", hint="give another target")
    target.refuse_unsigned()
    numbers: dict[str, int] = {}
    return [
        _copied(source, target, manifest, numbers, made_by=made_by, workers=workers, on_progress=on_progress)
        for manifest in manifests
    ]


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
    there = target.taken_ids(name)
    if manifest.backup_id in there:
        _check_same(target.read_manifest(name, manifest.backup_id), manifest, target)
        return CopiedBackup(name, manifest.backup_id, len(manifest.files), manifest.bytes, 0, 0, True)
    with (
        in_use(source, manifest, what="copy", made_by=made_by),
        claimed(target.location, name, what="copy", made_by=made_by) as claim,
    ):
        marks = read_marks(target.location, name)
        # The backups around it in time share the most with it.
        others = sorted(target.backup_ids(name), key=lambda i: (i > manifest.backup_id, i))
        before = [i for i in others if i < manifest.backup_id][-1:] or others[:1]
        near = target.read_manifest(name, before[0]) if before else None
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
            copied = _copy_one(objects, entry, read or (lambda: source.location.read(entry.object)))
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
            claim.write(made.path, made.to_document())
            numbers[name] = made.sequence
        except FileExistsError:
            _check_same(target.read_manifest(name, made.backup_id), manifest, target)  # another copy was faster
    written = {entry.object: entry.size for entry in stored if objects.is_new(entry.object)}
    log.info("copied backup %s of %s to %s", made.backup_id, name, target.location)
    return CopiedBackup(name, made.backup_id, len(made.files), made.bytes, len(written), sum(written.values()), False)


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
        replace(
            entry, object=content_path(pack, part.sha256, part.start, part.length), sha256=part.sha256, checksum=None
        )
        for entry, part in parts
    ]


def _is_there(entry: FileEntry, part: Part, pack: bytes) -> bool:
    """Whether a content is where it is said to be in a pack, and is the one that the path there names."""
    content = pack[part.start : part.end]
    return entry.is_content(content) and hashlib.sha256(content).hexdigest() == part.sha256


def _copy_one(objects: Objects, entry: FileEntry, read: Callable[[], bytes]) -> FileEntry:
    # The identity is of the checkpoint, and stays: a backup of it into the target reuses the object by it.
    file = StoredFile(entry.path, entry.size, entry.identity)
    if entry.sha256 and (held := objects.held_content(file, entry.sha256)):
        return replace(held.entry, batches=entry.batches)
    try:
        content = read()
    except FileNotFoundError:
        raise DamagedBackupError(
            f"{entry.path}: its object {entry.object} is missing",
            findings=(entry.object,),
            hint="`airflow-ckpt check` shows which backups are whole",
        ) from None
    if damage := content_damage(entry, content):
        raise DamagedBackupError(
            damage.message,
            findings=(damage.message,),
            hint="`airflow-ckpt verify --read-data` shows which backups are whole",
        )
    stored = objects.write(file, content)
    return replace(stored.entry, batches=entry.batches)


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
