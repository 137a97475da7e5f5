"""Packing anew what is still needed of packs that are mostly garbage, so that a prune can delete these.

Manifests never change. So a repack is like a backup: it claims the stream, reads the marks of prunes, writes contents
into packs of the newest generation, reads them back, and then writes one record that says where each content is now,
in the place of a manifest. A prune that finds its claim waits, or gives it up, and then it can write no record any
more: see :mod:`~airflow_ckpt_provider.backup.claims`. Killed before the record, it leaves packs that nobody lists.
After the record the old packs are what no manifest needs, and a prune deletes them as it deletes everything else;
whoever reads one of them has claimed the stream, and is waited for.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from airflow_ckpt_provider.backup.claims import claimed, open_claims
from airflow_ckpt_provider.backup.contents import Listed, listed_by, objects_there
from airflow_ckpt_provider.backup.damaged import read_damaged
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.immutability import locks_on
from airflow_ckpt_provider.backup.objects import Objects
from airflow_ckpt_provider.backup.pack_file import OVERHEAD, ROW, read_index
from airflow_ckpt_provider.backup.pack_reads import spans
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import check_contents
from airflow_ckpt_provider.errors import BackupRunningError, StorageError
from airflow_ckpt_provider.storage.packs import (
    Moved,
    file_of,
    moved_document,
    moved_path,
    pack_sha256,
    pack_size,
    part_of,
    read_moved,
)  # fmt: skip

log = logging.getLogger(__name__)

#: Packs of which at least this share is not needed are packed anew.
MOSTLY_GARBAGE = 0.5


@dataclass(frozen=True, slots=True)
class PackUse:
    """How much of the packs of a stream is needed.

    :param live: pack -> bytes that backups need, with their part of its index.
    :param damaged: of these, the packs that were found damaged as such: their index, or what no backup needs.
    """

    live: Mapping[str, int] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()

    def unused(self, pack: str) -> int:
        """Bytes of a pack that no backup needs."""
        return (pack_size(pack) or 0) - OVERHEAD - self.live[pack]

    def mostly_garbage(self) -> list[str]:
        """The packs to pack anew, the one with the most garbage first."""
        found = [p for p in self.live if self.unused(p) > 0 and self.unused(p) >= MOSTLY_GARBAGE * (pack_size(p) or 0)]
        return sorted(found, key=lambda pack: (-self.unused(pack), pack))


def pack_use(
    objects: Iterable[str], there: Collection[str], moved: Moved, *, damaged: frozenset[str] = frozenset()
) -> PackUse:
    """See how much of each pack is needed.

    :param objects: paths of objects that backups list.
    :param there: paths of the files that are there.
    :param moved: where contents are whose packs were packed anew.
    :param damaged: packs that were found damaged as such.
    """
    live: dict[str, int] = {}
    for path in {_where(path, there, moved) for path in objects}:
        if (part := part_of(path)) and part.pack in there:
            live[part.pack] = live.get(part.pack, 0) + part.length + ROW
    return PackUse(live, damaged & live.keys())


def repack(repository: Repository, name: str, packs: Collection[str], *, made_by: str) -> tuple[frozenset[str], int]:
    """Pack anew what backups need of some packs.

    :param packs: paths of the packs.
    :return: those of which nothing is needed any more, and the bytes that were written. None where somebody else packs
        anew at the same moment, where it is not known what is needed, or where these credentials may not write. A pack
        with a damaged content stays as it is.
    """
    place = repository.location
    try:
        with claimed(place, name, what="repack", made_by=made_by) as claim:
            marks = read_marks(place, name)
            moved = read_moved(place, name)
            there = objects_there(repository, name)
            listed = listed_by(repository, name)
            if listed.unreadable:
                return frozenset(), 0
            wanted = [pack for pack in packs if pack in there and pack not in marks.condemned]
            locked, unknown = locks_on(place, wanted, now=datetime.now(UTC))  # also since the plan was made
            wanted = [] if unknown else [pack for pack in wanted if pack not in locked]
            damaged = read_damaged(place, name).objects.keys()
            objects = Objects(place, name, vouched=(), marks=marks, listed=there.values(), damaged=damaged, packs=True)
            needed = _entries(listed, there, moved, wanted)
            kept, written = _kept(repository, objects, needed)
            going = frozenset(wanted) - {file_of(entry.object) for entry in needed if entry.object not in kept}
            new = {old: to for old, to in kept.items() if file_of(old) in going}
            if not new:
                return frozenset(), 0
            claim.write(moved_path(name, moved.number + 1), json.dumps(moved_document(new)).encode())
            return going, written
    except (FileExistsError, BackupRunningError) as e:
        log.info("packs of %s are packed anew by somebody else at this moment: %s", name, e)
    except StorageError as e:  # without the right to write objects a prune still deletes
        log.warning("packs of %s that are mostly garbage stay: %s", name, e.message)
    return frozenset(), 0


def _where(path: str, there: Collection[str], moved: Moved) -> str:
    """Where an object is: where it was moved to, if that is there."""
    now = moved.now(path)
    return now if file_of(now) in there else path


def _entries(listed: Listed, there: Collection[str], moved: Moved, packs: Collection[str]) -> FileTable:
    """What backups need of some packs, each content once; its path is that of the object."""
    wanted = frozenset(packs)
    found = FileTable("")
    for path in sorted({_where(path, there, moved) for path in listed.objects}):
        if (part := part_of(path)) and part.pack in wanted:
            found.append(FileEntry(path, part.length, path, part.sha256))
    return found


def _kept(repository: Repository, objects: Objects, entries: FileTable) -> tuple[dict[str, str], int]:
    """Write contents anew, and read them back: old path -> new path of each that is whole, and the bytes written."""
    by_pack: dict[str, list[FileEntry]] = {}
    for entry in entries:
        by_pack.setdefault(file_of(entry.object), []).append(entry)
    stored = FileTable(objects.name)
    for pack, of_pack in by_pack.items():
        for entry, content in _contents(repository, pack, of_pack):
            stored.append(objects.packed(entry, content))
    kept = {entry.path: entry.object for entry in objects.settled(stored)}
    new = {file_of(path) for path in kept.values()}
    for pack in new:
        if hashlib.sha256(repository.location.read(pack)).hexdigest() != pack_sha256(pack):
            raise StorageError(
                f"{pack} was written, and does not read back as what was written",
                hint="check the store: it does not keep what it is given",
            )
    return kept, sum(pack_size(pack) or 0 for pack in new)


def _contents(repository: Repository, pack: str, entries: list[FileEntry]) -> list[tuple[FileEntry, bytes]]:
    """Contents of a pack; none where one of them is damaged, for then the pack stays."""
    found = []
    for span in spans(repository.location, pack, entries):
        for entry in span.entries:
            try:
                content = span.read(entry)
            except (FileNotFoundError, StorageError) as e:
                log.warning("%s cannot be packed anew: %s", entry.object, e)
                return []
            if hashlib.sha256(content).hexdigest() != entry.sha256:
                log.warning("%s is damaged: its pack stays as it is", entry.object)
                return []
            found.append((entry, content))
    return found


def unproven(
    repository: Repository,
    listed: Listed,
    there: Collection[str],
    going: Collection[str],
    moved: Moved,
    *,
    workers: int,
) -> set[str]:
    """Packs to be deleted that hold a content which backups list and which is not whole where it is said to be.

    That includes one of which nothing says where it is: its record may be missing, or not signed by a trusted key.

    :param there: paths of the files that are there.
    :param going: paths of the files to be deleted.
    """
    wanted = {pack for pack in going if pack_size(pack) is not None}
    entries = FileTable("")
    lost: set[str] = set()
    for path in listed.objects if wanted else ():
        part = part_of(path)
        if part is None or (part.pack in there and part.pack not in wanted):
            continue
        now = moved.now(path)
        if file_of(now) not in there:
            lost.add(part.sha256)
        elif any(file_of(each) in wanted for each in moved.places(path)):
            entries.append(FileEntry(path, part.length, now, part.sha256))
    for damage in check_contents(repository, entries, workers=workers):
        log.warning("what was moved is not whole: %s", damage.message)
        if part := part_of(damage.path):
            lost.add(part.sha256)
    return {pack for pack in wanted if _may_hold(repository, pack, lost)} if lost else set()


def _may_hold(repository: Repository, pack: str, contents: Collection[str]) -> bool:
    """Whether a pack has one of some contents, by their SHA-256; also where its index cannot be read."""
    try:
        return any(sha256 in contents for sha256, *_ in read_index(repository.location.read(pack)))
    except FileNotFoundError:
        return False
    except (StorageError, ValueError):
        return True


def tidy_moved(repository: Repository, name: str, listed: Listed) -> None:
    """Delete the records of contents that no manifest lists any more at their old places.

    The newest stays, so that no number comes back; and what stands in the place of a record whose repack was given up.
    All stay while somebody is at work: a restore may read by them. Records are read before manifests, and manifests
    before claims: what a process needs that begins later is not among these records.

    :param listed: what manifests listed before; this process may have stood still since, so they are read again.
    """
    moved = read_moved(repository.location, name)
    if not _unneeded(moved, listed) or (now := listed_by(repository, name)).unreadable or open_claims(repository, name):
        return
    for record in _unneeded(moved, now):
        repository.location.delete(record)


def _unneeded(moved: Moved, listed: Listed) -> list[str]:
    """The records that nothing needs of what manifests list."""
    needed: set[str] = set()
    for path in listed.objects:
        while path not in needed and (further := moved.paths.get(path)):
            needed.add(path)
            path = further
    return [record for record, says in sorted(moved.records.items())[:-1] if says and needed.isdisjoint(says)]
