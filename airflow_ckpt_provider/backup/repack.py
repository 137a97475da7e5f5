"""Repacking what is still needed of packs that are mostly garbage, so that a prune can delete these.

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
from airflow_ckpt_provider.backup.contents import Listed, Places, listed_by, objects_there
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
    MOVED_AT_ONCE,
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

#: Packs of which at least this share is not needed are repacked.
MOSTLY_GARBAGE = 0.5


@dataclass(frozen=True, slots=True)
class PackUse:
    """How much of the packs of a stream is needed.

    :param live: pack -> bytes that backups need, with their part of its index.
    :param damaged: of these, the packs that were found damaged as such: their index, or what no backup needs.
    :param stuck: of these, the packs that stay: a content was moved from there, and is damaged in its new place.
    """

    live: Mapping[str, int] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()
    stuck: frozenset[str] = frozenset()

    def unused(self, pack: str) -> int:
        """Bytes of a pack that no backup needs."""
        return (pack_size(pack) or 0) - OVERHEAD - self.live[pack]

    def mostly_garbage(self) -> list[str]:
        """The packs to pack anew, the one with the most garbage first."""
        sizes = {p: pack_size(p) or 0 for p in self.live.keys() - self.stuck}
        found = [p for p, size in sizes.items() if self.unused(p) > 0 and self.unused(p) >= MOSTLY_GARBAGE * size]
        return sorted(found, key=lambda pack: (-self.unused(pack), pack))


def pack_use(objects: Iterable[str], places: Places, *, damaged: Collection[str] = ()) -> PackUse:
    """See how much of each pack is needed.

    :param objects: paths of objects that backups list.
    :param places: where they are.
    :param damaged: what was found damaged; packs among it were found damaged as such.
    """
    live: dict[str, int] = {}
    stuck: set[str] = set()
    for path in {places.of(path) for path in objects}:
        if (part := part_of(path)) and part.pack in places.there:
            live[part.pack] = live.get(part.pack, 0) + part.length + ROW
            if path in places.moved.paths:  # a second record of the same content would not count
                stuck.add(part.pack)
    return PackUse(live, frozenset(live.keys() & damaged) - stuck, frozenset(stuck))


def repack(repository: Repository, name: str, packs: Collection[str], *, made_by: str) -> tuple[frozenset[str], int]:
    """Repack what backups need of some packs.

    :param packs: paths of the packs.
    :return: those of which nothing is needed any more, and the bytes that were written. None where somebody else packs
        again at the same moment, if it is not known what is needed, or where these credentials may not write. A pack
        with a damaged content stays as it is.
    """
    going: frozenset[str] = frozenset()
    written, left = 0, frozenset(packs)
    try:
        while left:
            done = _repacked(repository, name, left, made_by)
            going, written, left = going | done.going, written + done.written, left - done.tried
    except (FileExistsError, BackupRunningError) as e:
        log.info("packs of %s are repacked by somebody else at this moment: %s", name, e)
    except StorageError as e:  # without the right to write objects a prune still deletes
        log.warning("packs of %s that are mostly garbage stay: %s", name, e.message)
    return going, written


@dataclass(frozen=True, slots=True)
class _Done:
    """What one record was written of.

    :param tried: the packs that were looked at.
    :param going: of these, those of which nothing is needed any more.
    :param written: bytes that were written.
    """

    tried: frozenset[str]
    going: frozenset[str] = frozenset()
    written: int = 0


def _repacked(repository: Repository, name: str, packs: frozenset[str], made_by: str) -> _Done:
    """Pack anew as many of some packs as one record can name the contents of."""
    place = repository.location
    with claimed(place, name, what="repack", made_by=made_by) as claim:
        marks = read_marks(place, name)
        there = objects_there(repository, name)
        listed = listed_by(repository, name)
        places = Places.read(repository, name, there, read_damaged(place, name))
        if listed.unreadable or places.moved.unreadable:
            return _Done(packs)
        use = pack_use(listed.objects, places)
        wanted = packs & there.keys() - marks.condemned - use.stuck
        locked, unknown = locks_on(place, wanted, now=datetime.now(UTC))  # also since the plan was made
        tried, needed = _entries(listed, places, frozenset() if unknown else wanted - locked.keys())
        objects = Objects(
            place, name, vouched=(), marks=marks, listed=there.values(), damaged=places.damaged, packs=True
        )
        kept, written = _kept(repository, objects, needed)
        going = tried - {file_of(entry.object) for entry in needed if entry.object not in kept}
        new = {old: to for old, to in kept.items() if file_of(old) in going}
        if new:
            document = json.dumps(moved_document(new)).encode()
            claim.write(moved_path(name, places.moved.number + 1), document)
        return _Done(tried or packs, going if new else frozenset(), written if new else 0)


def _entries(listed: Listed, places: Places, packs: frozenset[str]) -> tuple[frozenset[str], FileTable]:
    """What backups need of some packs, each content once, for as many packs as one record can name the contents of.

    :return: these packs, and the contents; the path of each is that of the object.
    """
    tried: set[str] = set()
    found = FileTable(listed.name)
    for path in sorted({places.of(path) for path in listed.objects}):
        if (part := part_of(path)) is None or part.pack not in packs:
            continue
        if part.pack not in tried and len(found) >= MOVED_AT_ONCE:
            break
        tried.add(part.pack)
        found.append(FileEntry(path, part.length, path, part.sha256))
    return frozenset(tried), found


def _kept(repository: Repository, objects: Objects, entries: FileTable) -> tuple[dict[str, str], int]:
    """Write contents again, and read them back: old path -> new path of each that is whole, and the bytes written."""
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
                log.warning("%s cannot be repacked: %s", entry.object, e)
                return []
            if hashlib.sha256(content).hexdigest() != entry.sha256:
                log.warning("%s is damaged: its pack stays as it is", entry.object)
                return []
            found.append((entry, content))
    return found


def unproven(
    repository: Repository, listed: Listed, places: Places, going: Collection[str], *, workers: int
) -> tuple[set[str], dict[str, str]]:
    """Packs to be deleted that hold a content which backups list and which is not whole where it is said to be.

    That includes one of which nothing says where it is: its record may be missing, or not signed by a trusted key.

    :param places: where contents are.
    :param going: paths of the files to be deleted.
    :return: the packs; and what is damaged where it was moved to, path -> problem.
    """
    wanted = {pack for pack in going if pack_size(pack) is not None}
    entries = FileTable(listed.name)
    lost: set[str] = set()
    for path in listed.objects if wanted else ():
        part = part_of(path)
        if part is None or (part.pack in places.there and part.pack not in wanted):
            continue
        now = places.of(path)
        if file_of(now) not in places.there:
            lost.add(part.sha256)
        elif any(file_of(each) in wanted for each in places.moved.places(path)):
            entries.append(FileEntry(path, part.length, now, part.sha256))
    damaged: dict[str, str] = {}
    for damage in check_contents(repository, entries, workers=workers):
        log.warning("what was moved is not whole: %s", damage.message)
        if part := part_of(damage.path):
            lost.add(part.sha256)
        if damage.is_damage:
            damaged[damage.object] = damage.problem
    return {pack for pack in wanted if _may_hold(repository, pack, lost)} if lost else set(), damaged


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

    :param listed: what manifests listed before; this process may have been suspended since, so they are read again.
    """
    moved = read_moved(repository.location, name)
    if (
        moved.unreadable
        or not _unneeded(moved, listed)
        or (now := listed_by(repository, name)).unreadable
        or open_claims(repository, name)
    ):
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
