"""Reading objects and comparing them with what was backed up, and in words what is wrong with them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from airflow_ckpt_provider.backup.copy_progress import Meter, OnProgress
from airflow_ckpt_provider.backup.damaged import UNREADABLE, Damage
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.kept_contents import KeptContents
from airflow_ckpt_provider.backup.manifest import has_packed
from airflow_ckpt_provider.backup.pack_file import read_index
from airflow_ckpt_provider.backup.pack_reads import PACKS_AT_ONCE, ByPack, MovedContents, Span
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import DamagedBackupError, DamagedFileError, StorageError
from airflow_ckpt_provider.parallel import WORKERS, in_parallel
from airflow_ckpt_provider.storage.file_set import order
from airflow_ckpt_provider.storage.packs import file_of, pack_sha256, part_of, read_moved
from airflow_ckpt_provider.storage.store import StoredFile


class Contents:
    """What reading objects has shown.

    :param entries: what was to be read.
    :param findings: what was found; also of packs as such, whose contents may all be whole.
    :param packs: packs that were read as a whole, and are what was written.
    """

    def __init__(self, entries: Sequence[FileEntry], findings: Sequence[Damage], packs: Collection[str] = ()) -> None:
        self.entries = entries
        self.findings = findings
        self.packs = frozenset(packs)
        self._not_whole = {damage.object for damage in findings}
        self._unread = {d.object for d in findings if d.problem in (UNREADABLE, "missing")}

    def of(self, objects: Collection[str]) -> Contents:
        """What it has shown of some objects, and of their packs.

        :param objects: paths of the objects.
        """
        files = {file_of(path) for path in objects}
        findings = [d for d in self.findings if d.object in objects or (d.object == d.path and d.object in files)]
        return Contents([entry for entry in self.entries if entry.object in objects], findings, self.packs & files)

    def read(self) -> Iterator[FileEntry]:
        """Those that were read."""
        return (entry for entry in self.entries if entry.object not in self._unread)

    def compared(self) -> Iterator[FileEntry]:
        """Those that were read and compared with a hash."""
        return filter(is_computable, self.read())

    def whole(self) -> Iterator[FileEntry]:
        """Those that were read, compared, and are what was backed up."""
        return (entry for entry in self.compared() if entry.object not in self._not_whole)


def check_contents(
    repository: Repository,
    entries: Sequence[FileEntry],
    *,
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
    packs: set[str] | None = None,
    moved: MovedContents | None = None,
    kept: KeptContents | None = None,
) -> list[Damage]:
    """Read objects and compare them with what was stored.

    :param packs: gets the packs that were read as a whole, and are what was written; ``None``: only contents are read, and no
        index.
    :param moved: where contents have been moved to, if that is known.
    :param kept: gets the contents that are right, for whoever writes them afterwards.
    :returns: what is damaged, and what could not be read.
    """
    meter = Meter(on_progress, files=len(entries), size=sum(e.size for e in entries))

    def check(entry: FileEntry, read: Callable[[], bytes]) -> Damage | None:
        try:
            content = read()
            found = content_damage(entry, content)
            if found is None and kept is not None:
                kept.keep(entry, content)
        except FileNotFoundError:
            found = damage_of(entry, "missing", "is missing")
        except DamagedFileError as e:
            found = damage_of(entry, "content", f"has another content than was backed up: {e.message}")
        except StorageError as e:
            found = damage_of(entry, UNREADABLE, f"could not be read: {e.message}")
        meter.add(entry.size)
        return found

    def check_object(entry: FileEntry) -> Damage | None:
        return check(entry, lambda: repository.location.read(entry.object))

    def check_span(span: Span) -> list[Damage]:
        found = [damage for entry in span.entries if (damage := check(entry, partial(span.read, entry)))]
        if packs is not None and span.is_whole:
            of_pack = check_pack(span, {damage.object for damage in found})
            found += of_pack
            if span.was_read and not any(damage.path == span.pack for damage in of_pack):
                packs.add(span.pack)
        return found

    packed = ByPack(repository, moved)
    single = (e for e in entries if not packed.add(e)) if repository.packs or has_packed(entries) else entries
    found = [damage for damage in in_parallel(check_object, single, workers=workers) if damage]
    spans = packed.spans(whole=packs is not None)
    for of_span in in_parallel(check_span, spans, workers=min(workers, PACKS_AT_ONCE)):
        found += of_span
    return in_one_order(found)


def whole_by_other_names(
    repository: Repository, whole: Collection[str], known: Collection[str], moved: MovedContents
) -> set[str]:
    """Of objects that are known to be damaged, the other names of contents that were read whole, where these are whole too.

    Each is read under its own name: who reads another one may have found the content where nobody looks for this one.

    :param whole: objects that were read and are whole.
    :param known: objects that are known to be damaged.
    :param moved: where contents have been moved to.
    """
    others = [path for path in known if path not in whole] if whole else ()
    shared = {each for path in whole for each in moved.of(path).chain(path)} if others else set()
    entries = [
        FileEntry(path, part.length, path, part.sha256)
        for path in others
        if not shared.isdisjoint(moved.of(path).chain(path)) and (part := part_of(moved.now(path)))
    ]
    wrong = {damage.object for damage in check_contents(repository, entries, moved=moved)}
    return {entry.object for entry in entries} - wrong


def in_one_order(findings: Iterable[Damage]) -> list[Damage]:
    """Findings in the order of the files of a checkpoint, whoever has found them and when."""
    return sorted(findings, key=lambda damage: (order(damage.path), damage.object))


def check_pack(span: Span, damaged: Collection[str]) -> list[Damage]:
    """What is wrong with a pack of which all was read: as such, or with what manifests say of it.

    :param damaged: objects of which it is known already.
    """
    try:
        pack = span.data()
    except (FileNotFoundError, StorageError):
        return []  # that was said of each of its contents
    # What was moved here need not be here, as long as it is where it was.
    parts = ((entry, part_of(entry.object)) for entry in span.entries if entry.object not in damaged)
    listed = [
        (entry, (part.sha256, part.start, part.length)) for entry, part in parts if part and part.pack == span.pack
    ]
    try:
        absent = {row for _, row in listed}.difference(read_index(pack))
    except ValueError as e:
        return [damage_of_pack(span.pack, "content", str(e))]
    if hashlib.sha256(pack).hexdigest() != pack_sha256(span.pack):
        # Its index may be what is wrong, so that says nothing of contents, which are proven by their own hashes.
        return [damage_of_pack(span.pack, "content", "it is not what was written")]
    return [
        damage_of(entry, "content", "is none of the contents that the index of its pack has")
        for entry, row in listed
        if row in absent
    ]


def check_packs(entries: Iterable[FileEntry], listed: Mapping[str, StoredFile], moved: MovedContents) -> list[Damage]:
    """See that the packs of some files have the sizes that they were written with.

    A backup may need nothing of what is damaged of a pack, so this is no reason to refuse a restore.

    :param listed: the objects of the stream.
    :param moved: where contents have been moved to.
    """
    paths = (path for entry in entries for path in (entry.object, moved.now(entry.object)))
    sizes = {part.pack: part.pack_size for path in paths if (part := part_of(path))}
    wrong = ((pack, size, listed[pack].size) for pack, size in sizes.items() if pack in listed)
    return [
        damage_of_pack(pack, "size", f"it has {found} bytes instead of {size}")
        for pack, size, found in wrong
        if found != size
    ]


def damage_of_pack(pack: str, problem: str, what: str) -> Damage:
    """What is wrong with a pack as such."""
    words = (
        f"pack {pack} is damaged: {what}; its contents that no other finding names can be restored, and the next prune writes "
        "them again"
    )
    return Damage(pack, pack, problem, words)


def content_damage(entry: FileEntry, content: bytes) -> Damage | None:
    """Compare a content with its entry; ``None`` if it is right, as far as that can be computed here."""
    if len(content) != entry.size:
        return damage_of(entry, "size", f"has {len(content)} bytes instead of {entry.size}")
    return None if entry.is_content(content) else damage_of(entry, "content", "has another content than was backed up")


def read_content(repository: Repository, entry: FileEntry) -> bytes:
    """Read one file of a backup, wherever its content is now, and compare it with what was backed up; before any change.

    :raises DamagedBackupError: it is missing, or is not what was backed up; ``findings`` say that alone.
    :raises StorageError: it could not be read.
    """
    place = repository.location
    try:
        content = place.read(entry.object)
        damage = content_damage(entry, content)
    except FileNotFoundError:
        damage = damage_of(entry, "missing", "is missing")
    except DamagedFileError as e:
        damage = damage_of(entry, "content", f"has another content than was backed up: {e.message}")
    if damage is None:
        return content
    if entry.is_computable and not entry.is_packed:  # an object that was put into a pack, and is not deleted yet
        with suppress(DamagedFileError):
            elsewhere = place.read_elsewhere(entry.object, read_moved(place, entry.object.split("/")[1]))
            if elsewhere is not None and entry.is_content(elsewhere):
                return elsewhere
    raise DamagedBackupError(
        f"{damage.message}; nothing was changed",
        findings=(damage.message,),
        hint="choose another backup; `airflow-ckpt verify --read-data` shows which are whole",
    )


def whole_content(entry: FileEntry, content: bytes, *, right_when: str) -> bytes:
    """Return what a backup has of a file, for a plan whose objects were found whole before its first change.

    :param content: as it was read.
    :param right_when: when it was found whole, in words.
    :raises StorageError: it was damaged since.
    """
    if damage := content_damage(entry, content):
        raise StorageError(
            f"{damage.message}; it was right when {right_when}",
            hint="the seal stays; fix the store, then run the same command again",
        )
    return content


def is_computable(entry: FileEntry) -> bool:
    """As :attr:`FileEntry.is_computable <airflow_ckpt_provider.backup.file_entry.FileEntry.is_computable>`."""
    return entry.is_computable


def structure_damage(entry: FileEntry, file: StoredFile | None) -> Damage | None:
    """Compare an entry with the file that holds its content, as it was listed; ``None`` if it is right as far as that shows."""
    if file is None:
        return damage_of(entry, "missing", "is missing")
    if part := part_of(entry.object):
        if part.end <= file.size:
            return None
        return damage_of(
            entry, "size", f"lies beyond the end of its pack, which has {file.size} bytes instead of {part.pack_size}"
        )
    if file.size != entry.size:
        return damage_of(entry, "size", f"has {file.size} bytes instead of {entry.size}")
    if entry.checksum is not None and file.checksum != entry.checksum:
        return damage_of(entry, "content", f"has another content than was backed up ({file.checksum})")
    return None


def damage_of(entry: FileEntry, problem: str, what: str) -> Damage:
    """What is wrong with the content of a file."""
    return Damage(entry.path, entry.object, problem, f"{entry.path}: its object {entry.object} {what}")
