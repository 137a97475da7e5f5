"""Repacking what is still needed of packs that are mostly garbage, and merging small packs, so that a prune can delete these.

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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from airflow_ckpt_provider.backup.claims import claimed, open_claims
from airflow_ckpt_provider.backup.content_checks import check_contents, content_damage, damage_of, is_computable
from airflow_ckpt_provider.backup.contents import Listed, Places, listed_by, objects_there
from airflow_ckpt_provider.backup.damaged import note_damaged, read_damaged
from airflow_ckpt_provider.backup.disputed import claims_of
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.immutability import locks_on
from airflow_ckpt_provider.backup.objects import Objects
from airflow_ckpt_provider.backup.pack_file import read_index
from airflow_ckpt_provider.backup.pack_reads import MovedContents, spans
from airflow_ckpt_provider.backup.pack_use import pack_use
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import BackupRunningError, DamagedFileError, StorageError
from airflow_ckpt_provider.parallel import WORKERS, in_order
from airflow_ckpt_provider.storage.location import SMALL, Location
from airflow_ckpt_provider.storage.packs import (
    HIGHEST_RECORD,
    MOVED_AT_ONCE,
    OBJECT_SHA256,
    Moved,
    can_be_packed,
    file_of,
    moved_document,
    moved_path,
    pack_sha256,
    pack_size,
    part_of,
    read_moved,
)  # fmt: skip

log = logging.getLogger(__name__)

#: Called with the bytes of a content.
OnFile = Callable[[int], object]


def repack(
    repository: Repository, name: str, packs: Collection[str], *, made_by: str
) -> tuple[frozenset[str], int, frozenset[str]]:
    """Repack what backups need of some packs.

    :param packs: paths of the packs.
    :return: those of which nothing is needed any more, the bytes that were written, and the contents that are damaged. None
        where somebody else packs again at the same moment, if it is not known what is needed, or where these credentials may
        not write. A pack with a damaged content stays as it is.
    """
    going: frozenset[str] = frozenset()
    damaged: frozenset[str] = frozenset()
    written, left = 0, frozenset(packs)
    try:
        while left:
            done = pack_anew(repository, name, left, made_by=made_by)
            going, written, left = going | done.going, written + done.written, left - done.tried
            damaged |= done.damaged
    except (FileExistsError, BackupRunningError) as e:
        log.info("packs of %s are repacked by somebody else at this moment: %s", name, e)
    except StorageError as e:  # without the right to write objects a prune still deletes
        log.warning("packs of %s that are mostly garbage or small stay: %s", name, e.message)
    return going, written, damaged


@dataclass(frozen=True, slots=True)
class PackedAnew:
    """What was done until one record was written.

    :param tried: the files that were inspected.
    :param going: of these, those of which nothing is needed any more.
    :param written: bytes that were written.
    :param packs: packs that were written.
    :param damaged: contents that were found damaged; that is noted, and their files stay.
    """

    tried: frozenset[str]
    going: frozenset[str] = frozenset()
    written: int = 0
    packs: int = 0
    damaged: frozenset[str] = frozenset()


def damaged_in_words(damaged: Iterable[str]) -> tuple[str, ...]:
    """Why the files of contents that were found damaged stay, in words: one line for each file."""
    found = Counter(map(file_of, damaged))
    contents = {
        file: "1 damaged content" if count == 1 else f"{count:,} damaged contents" for file, count in found.items()
    }
    return tuple(f"{file}, which has {contents[file]} (airflow-ckpt repair)" for file in sorted(found))


def pack_anew(
    repository: Repository,
    name: str,
    files: Collection[str],
    *,
    made_by: str,
    workers: int = WORKERS,
    done: OnFile = lambda size: None,
) -> PackedAnew:
    """Pack what backups need of some packs, and some objects, as far as one record can name them; the newest backup's first.

    :param files: paths of packs, and of small objects that lie alone.
    :param workers: requests under way at once.
    :param done: called with the bytes of each content that was read, from any thread.
    :raises FileExistsError: somebody else repacks at the same moment.
    :raises BackupRunningError: a prune has given this up.
    :raises StorageError: reading or writing failed.
    """
    place, wanted = repository.location, frozenset(files)
    with claimed(place, name, what="repack", made_by=made_by) as claim:
        marks = read_marks(place, name)
        there = objects_there(repository, name)
        listed = listed_by(repository, name, entries_of={path for path in wanted if pack_size(path) is None})
        places = Places.read(repository, name, there, read_damaged(place, name))
        if listed.unreadable or places.moved.unreadable:
            return PackedAnew(wanted)
        stay = marks.condemned | pack_use(listed.objects, places).stuck
        tried, needed = _entries(listed, places, wanted & there.keys() - stay)
        locked, unknown = locks_on(place, tried, now=datetime.now(UTC))  # also since the plan was made
        needed = [] if unknown else [entry for entry in needed if file_of(entry.path) not in locked]
        objects = Objects(
            place, name, vouched=(), marks=marks, listed=there.values(), damaged=places.damaged, packs=True
        )
        damaged: dict[str, str] = {}
        kept, written = _kept(repository, objects, needed, damaged, workers, done)
        note_damaged(place, name, damaged)
        going = {file_of(entry.path) for entry in needed} - {file_of(e.path) for e in needed if e.path not in kept}
        new = {old: to for old, to in kept.items() if file_of(old) in going}
        if not new:
            return PackedAnew(tried or wanted, damaged=frozenset(damaged))
        document = json.dumps(moved_document(new)).encode()
        if len(document) > SMALL:  # readers refuse it
            raise StorageError(
                f"a record of {len(new)} contents of {name} has {len(document)} bytes", hint="report this"
            )
        claim.write(_next_record(place, name, places.moved.number), document)
        size = sum(pack_size(pack) or 0 for pack in written)
        return PackedAnew(tried, frozenset(going), size, len(written), frozenset(damaged))


def _next_record(place: Location, name: str, number: int) -> str:
    """Path of the next record.

    :param number: of the newest.
    :raises StorageError: it has the highest.
    """
    if number >= HIGHEST_RECORD:
        raise StorageError(
            f"{place}/{moved_path(name, number)} has the highest number that a record can have: this one would get the next",
            hint="no repack has written that: find out who did, then delete this file",
        )
    return moved_path(name, number + 1)


def _entries(listed: Listed, places: Places, files: frozenset[str]) -> tuple[frozenset[str], list[FileEntry]]:
    """What backups need of some files, each content once, for as many files as one record can name the contents of.

    :return: these files, and the contents; the path of each is that of the object.
    """
    tried: set[str] = set()
    found: list[FileEntry] = []
    for path in sorted({places.of(path) for path in listed.objects}):
        if (part := part_of(path)) is None or part.pack not in files:
            continue
        if part.pack not in tried and len(found) >= MOVED_AT_ONCE:
            break
        tried.add(part.pack)
        found.append(FileEntry(path, part.length, path, part.sha256))
    # In the order of the newest backup: what a restore needs lies together, and what only older ones need, which expire first.
    alone = (path for path in reversed(list(listed.entries)) if path in files)
    for path in islice(alone, max(MOVED_AT_ONCE - len(found), 0)):
        tried.add(path)
        entry = listed.entries[path]
        if entry is not None and path not in places.moved.paths and path not in places.damaged and is_computable(entry):
            found.append(entry._replace(path=path))
    return frozenset(tried), found


def _kept(
    repository: Repository,
    objects: Objects,
    entries: Sequence[FileEntry],
    damaged: dict[str, str],
    workers: int,
    done: OnFile,
) -> tuple[dict[str, str], set[str]]:
    """Write contents into packs, and read these back: old path -> new path of each that is whole, and the packs.

    :param damaged: gets path -> problem of each content that is not what backups say.
    """
    by_pack: dict[str, list[FileEntry]] = {}
    for entry in entries:
        if entry.is_packed:
            by_pack.setdefault(file_of(entry.path), []).append(entry)
    stored = FileTable(objects.name)
    for pack, of_pack in by_pack.items():
        for entry, content in _contents(repository, pack, of_pack, damaged):
            stored.append(objects.packed(entry, content))
            done(len(content))

    def pack_one(entry: FileEntry) -> FileEntry | None:
        try:
            content = repository.location.read(entry.path)
            damage = content_damage(entry, content)
        except FileNotFoundError as e:
            log.warning("%s is not packed: %s", entry.path, e)
            return None
        except DamagedFileError as e:
            damage = damage_of(entry, "content", e.message)
        if damage is not None:
            log.warning("%s is not packed: %s", entry.path, damage.message)
            damaged[entry.path] = damage.problem
            return None
        sha256 = hashlib.sha256(content).hexdigest()
        if not can_be_packed(entry.path, sha256):
            log.warning("%s is not packed: no object of this content has this name; a backup may be forged", entry.path)
            return None
        done(len(content))
        return objects.packed(entry._replace(sha256=sha256), content)

    def take(entry: FileEntry | None) -> None:
        if entry is not None:
            stored.append(FileEntry(entry.path, entry.size, entry.object, entry.sha256))

    in_order(pack_one, [entry for entry in entries if not entry.is_packed], take, workers=workers)
    kept = {entry.path: entry.object for entry in objects.settled(stored)}
    packs = {file_of(path) for path in kept.values()}
    for pack in packs:
        try:
            content = repository.location.read_pack(pack)
        except FileNotFoundError as e:
            raise StorageError(
                f"{pack} was written, and is missing now",
                hint="a prune that took this one for dead may have deleted it: run it again",
            ) from e
        if hashlib.sha256(content).hexdigest() != pack_sha256(pack):
            raise StorageError(
                f"{pack} was written, and does not read back as what was written",
                hint="check the store: it does not keep what it is given",
            )
    return kept, packs


def _contents(
    repository: Repository, pack: str, entries: list[FileEntry], damaged: dict[str, str]
) -> list[tuple[FileEntry, bytes]]:
    """Contents of a pack; none where one of them is damaged, for then the pack stays.

    :param damaged: gets path -> problem of each that is damaged.
    """
    found = []
    is_whole = True
    for span in spans(repository.location, pack, entries):
        for entry in span.entries:
            try:
                content = span.read(entry)
            except DamagedFileError:
                content = None
            except (FileNotFoundError, StorageError) as e:
                log.warning("%s cannot be repacked: %s", entry.object, e)
                return []
            if content is None or hashlib.sha256(content).hexdigest() != entry.sha256:
                log.warning("%s is damaged: its pack stays as it is", entry.object)
                damaged[entry.object] = "content"
                is_whole = False
            else:
                found.append((entry, content))
    return found if is_whole else []


@dataclass(slots=True)
class _Lost:
    """Contents that are not proven to be whole in a file that stays: the packs that have one of them stay.

    :param sha256: hashes of contents.
    :param sizes: bytes of those of which no SHA-256 is known.
    :param unknown: whether there is one of which nothing is known.
    """

    sha256: set[str] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    unknown: bool = False

    def add_object(self, path: str, entries: Iterable[FileEntry]) -> None:
        """Add the content of an object that lay alone.

        :param path: its path.
        :param entries: what manifests say of it. All of it counts: one of them may be forged.
        """
        named = OBJECT_SHA256.match(path.rpartition("/")[2])
        known = {named[0]} if named else set()
        sizes = set()
        for entry in entries:
            kind, _, value = (entry.checksum or "").partition(":")
            if sha256 := entry.sha256 or (value if kind == "sha256" else None):
                known.add(sha256)
            elif not named:
                sizes.add(entry.size)
        self.sha256 |= known
        self.sizes |= sizes
        self.unknown |= not known and not sizes

    def may_be_in(self, repository: Repository, pack: str) -> bool:
        """Whether a pack may have one of them; also where its index cannot be read."""
        if self.unknown:
            return True
        if not self.sha256 and not self.sizes:
            return False
        try:
            held = read_index(repository.location.read_pack(pack))
        except FileNotFoundError:
            return False
        except (StorageError, ValueError):
            return True
        return any(sha256 in self.sha256 or length in self.sizes for sha256, _, length in held)


def unproven(
    repository: Repository, listed: Listed, places: Places, going: Collection[str], *, workers: int
) -> tuple[set[str], dict[str, str]]:
    """Files to be deleted that hold a content which backups list and which is not whole where it is said to be.

    That includes one that is known to be damaged where a backup lists it, and one of which nothing says where it is: its record
    may be missing, or not signed by a trusted key. It does not matter whether its manifest names a pack, or an object that was
    put into one.

    :param places: where contents are.
    :param going: paths of the files to be deleted.
    :return: the files; and what is damaged where it was moved to, path -> problem.
    """
    wanted = {pack for pack in going if pack_size(pack) is not None}
    entries = FileTable(listed.name)
    lost = _Lost()
    stay: set[str] = set()
    objects: set[str] = set()
    absent: set[str] = set()
    # A file that has the path of a content in a pack is none of them: somebody has planted it.
    alone = {path for path in listed.objects.intersection(going) if part_of(path) is None}
    for path in listed.objects if wanted else ():
        part = part_of(path)
        if path in alone:
            continue
        now = places.of(path)
        is_there = file_of(now) in places.there
        if (file_of(path) in places.there and file_of(path) not in wanted) or (
            is_there and not any(file_of(each) in wanted for each in places.moved.places(path))
        ):
            if path not in places.damaged:
                continue
            is_there = False  # what is there is not it
        if part is None:
            (objects if is_there else absent).add(path)
        elif is_there:
            entries.append(FileEntry(path, part.length, now, part.sha256))
        else:
            lost.sha256.add(part.sha256)
    stay |= {path for path in alone if path not in places.moved.paths}
    # A record may be forged, so what an object was is asked of the backups that list it.
    said = claims_of(repository, listed.name, objects | absent | alone - stay)
    of_objects = {path: [entry for entry, _ in claims.values()] for path, claims in said.items()}

    def keep(path: str) -> None:
        """Keep an object and all places that it has by any record; and its content, where no record says that it is."""
        stay.update({file_of(each) for each in places.moved.places(path)}.intersection(going))
        lost.add_object(path, of_objects[path])

    for path, of_path in of_objects.items():
        if path in absent:
            lost.add_object(path, of_path)
        elif len(of_path) == 1 and is_computable(of_path[0]):
            entries.append(of_path[0]._replace(path=path, object=places.of(path)))
        else:
            keep(path)
    damaged: dict[str, str] = {}
    # Each at the place that stays, and nowhere else: an earlier or later one may be among what is deleted.
    nowhere_else = MovedContents(repository, {listed.name: Moved()})
    for damage in check_contents(repository, entries, workers=workers, moved=nowhere_else):
        log.warning("what was moved is not whole: %s", damage.message)
        if part := part_of(damage.path):
            lost.sha256.add(part.sha256)
        else:
            keep(damage.path)
        if (
            damage.is_damage
        ):  # and with it its pack: no new backup uses it, and the next prune repacks what is whole in it
            damaged |= dict.fromkeys((damage.object, file_of(damage.object)), damage.problem)
    return stay | {pack for pack in wanted - stay if lost.may_be_in(repository, pack)}, damaged


def tidy_moved(repository: Repository, name: str, listed: Listed) -> None:
    """Delete the records of contents that no manifest lists any more at their old places.

    The newest stays, so that no number comes back; and what is in the place of a record whose repack was given up.
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
    """The records that nothing needs of what manifests list; never the one with the highest number."""
    needed: set[str] = set()
    for path in listed.objects:
        while path not in needed and (further := moved.paths.get(path)):
            needed.add(path)
            path = further
    return [record for record, says in list(moved.records.items())[:-1] if says and needed.isdisjoint(says)]
