"""Objects: the contents of a stream's files in the repository, immutable and shared by its backups.

An object is named by its content: by the SHA-256 of what passed through this program, or by the checksum of the
store that copied it. Where the store would copy over what is there, each backup has names of its own besides. An object is never
overwritten, and never trusted because of its name alone: one that no manifest vouches
for (left by a backup that was killed) is read and hashed before it is used; one that is not what its name says is
left alone, and the content gets another name. So does the content of one that was found damaged, also where nothing is left of
it: see :mod:`~airflow_ckpt_provider.backup.damaged`. Nor is one used that a prune may be deleting: see
:mod:`~airflow_ckpt_provider.backup.prune_marks`.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.packing import PACKED_BELOW, Packer, is_pending
from airflow_ckpt_provider.backup.prune_marks import Marks
from airflow_ckpt_provider.backup.way import Way
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import DamagedFileError, RepositoryError, StorageError
from airflow_ckpt_provider.storage.file_set import FileSet, order
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import PACK_SUFFIX, Moved, Part, file_of, pack_size, part_of
from airflow_ckpt_provider.storage.store import StoredFile


@dataclass(frozen=True, slots=True)
class Stored:
    """A file's entry, and whether its content had to be written."""

    entry: FileEntry
    copied: bool
    #: Copied by the store itself: what arrived has still to be compared with what was listed.
    unproven: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a stream's objects, as far as some files are concerned: plain values, for another process."""

    listed: tuple[StoredFile, ...]
    vouched: tuple[FileEntry, ...]
    marks: Marks
    #: By all the names that a content has or had.
    damaged: frozenset[str]
    moved: Moved
    packs: bool


class Objects:
    """The objects of one stream.

    :param repository: the repository's place.
    :param name: name of the stream.
    :param vouched: files of earlier backups.
    :param marks: what prunes are about to delete; read after the claim was written, and before this is made.
    :param listed: what is there, where that was listed already.
    :param damaged: paths of objects that are known to be damaged.
    :param moved: where contents are whose packs were repacked.
    :param packs: whether small contents are put into packs; then entries have to go through :meth:`settled`.
    """

    def __init__(
        self,
        repository: Location,
        name: str,
        *,
        vouched: Sequence[FileEntry],
        marks: Marks | None = None,
        listed: FileSet | Iterable[StoredFile] | None = None,
        damaged: Collection[str] = (),
        moved: Moved | None = None,
        packs: bool = False,
    ) -> None:
        self.repository = repository
        self.name = name
        self.directory = f"objects/{name}"
        self._entries = vouched
        self._by_content: dict[tuple[str, int], FileEntry] | None = None
        self._marks = marks or Marks()
        self._moved = moved or Moved()
        #: By all the names that a content has or had: older manifests list it where it was.
        self._damaged = frozenset(each for path in damaged for each in self._moved.places(path))
        self._condemned = self._marks.condemned | self._damaged
        #: Names that no new object gets: also those of packs of which only some contents are damaged.
        self._spent = self._condemned | {file_of(path) for path in self._damaged}
        #: In names that nobody else gives: where the store copies over what is there, each backup, and each task, has its own.
        self._own = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        copies = repository.store.copies_in_memory
        self._packer = Packer(self.directory, self.write_pack, copies=copies) if packs else None
        self._packed_before = FileTable(name)
        self._way: Way | None = None
        #: Hash and bytes of the packs that earlier backups list -> what they list of it.
        self._packs_held: dict[tuple[str, int], FileTable] | None = None
        if listed is None:
            listed = list_objects(repository, name)
        self._listed = self._at_first = listed if isinstance(listed, FileSet) else FileSet(listed)
        #: What was written since the listing.
        self._written = FileSet()

    @classmethod
    def like(cls, repository: Location, name: str, known: Known) -> Objects:
        """Objects like those of another process, as far as the files are concerned that it has named.

        :param known: what :meth:`known` has made there.
        """
        return cls(
            repository,
            name,
            vouched=known.vouched,
            marks=known.marks,
            listed=known.listed,
            damaged=known.damaged,
            moved=known.moved,
            packs=known.packs,
        )

    def look(self) -> None:
        """List what is there."""
        self._listed = list_objects(self.repository, self.name)
        self._written = FileSet()

    @property
    def packs(self) -> bool:
        """Whether small contents are put into packs."""
        return self._packer is not None

    def is_new(self, path: str) -> bool:
        """Whether an object did not exist at first."""
        return file_of(path) not in self._at_first

    def settled(self, entries: Iterable[FileEntry]) -> Iterable[FileEntry]:
        """Write the pack that is being filled; the entries with the final paths of their contents.

        :raises StorageError: the pack could not be written.
        """
        return entries if self._packer is None else self._packer.finish(entries)

    def write_pack(self, content: bytes) -> str:
        """See to it that the repository holds a pack; return its path.

        :raises RepositoryError: readers would not take a file of that name for a pack, and could not find its contents.
        """
        name = f"{self._path(f'{hashlib.sha256(content).hexdigest()}-{len(content)}')}{PACK_SUFFIX}"
        if pack_size(name) is None:
            raise RepositoryError(
                f"{name} would not be taken for a pack: it was not written",
                hint=f"compare the numbers of the files in {self.repository}/prune/{self.name} with those of other streams: one "
                "that is far too high was written by no prune; if there is none, report this",
            )
        return self._put(name, content)[0]

    def packed(self, entry: FileEntry, content: bytes) -> FileEntry:
        """Put a content into a pack; the entry has to go through :meth:`settled`. Only where packs are written.

        :param entry: of the content, with its SHA-256.
        """
        if self._packer is None or entry.sha256 is None:
            raise ValueError("no packs are written here, or the content has no hash")
        return entry._replace(object=self._packer.add(content, entry.sha256))

    def held_pack(self, parts: Sequence[Part]) -> str | None:
        """Path of the pack in which earlier backups list contents of a pack of another repository; ``None``: not all of them.

        :param parts: contents of that pack.
        """
        if self._packs_held is None:
            tables: dict[tuple[str, int], FileTable] = {}
            for entry in self._entries:
                if part := part_of(entry.object):
                    tables.setdefault((part.pack_sha256, part.pack_size), FileTable(self.name)).append(entry)
            self._packs_held = tables
        wanted = {(part.sha256, part.start, part.length) for part in parts}
        by_path: dict[str, list[Part]] = {}
        for entry in self._packs_held.get((parts[0].pack_sha256, parts[0].pack_size), ()):
            if part := part_of(entry.object):
                by_path.setdefault(part.pack, []).append(part)
        left = {file_of(path) for path in self._moved.paths} if by_path else set()
        for pack, held in by_path.items():
            if pack in self._spent or pack in left or not self._is_whole_pack(held[0]):
                continue
            if wanted <= {(part.sha256, part.start, part.length) for part in held}:
                return pack
        return None

    def _is_packed(self, size: int) -> bool:
        """Whether a content of so many bytes is put into a pack."""
        return self._packer is not None and size < PACKED_BELOW

    def known(self, groups: Sequence[Sequence[StoredFile]]) -> Iterator[Known]:
        """For each group of files what :meth:`store` may want to know of them, for objects like these in another process.

        Contents are only ever compared with contents of the same size. What is in the way of a content that was read shows
        when it is created. A store that copies by itself refuses too; the name is given all the same, which spares a request.
        """
        wanted = {file.size for group in groups for file in group}
        vouched: defaultdict[int, list[FileEntry]] = defaultdict(list)
        for entry in self._entries:
            if entry.size in wanted:
                vouched[entry.size].append(entry)
        listed: defaultdict[int, list[StoredFile]] = defaultdict(list)
        for file in self._listed.values():
            if file.size in wanted:
                listed[file.size].append(file)
        for group in groups:
            sizes = {file.size for file in group}
            here = {file.path: file for size in sizes for file in listed.get(size, ())}
            entries = tuple(entry for size in sizes for entry in vouched.get(size, ()))
            moved = self._moved.part(entry.object for entry in entries)
            in_packs = {file_of(now) for e in entries if part_of(now := moved.now(e.object))}
            here |= {pack: held for pack in in_packs if (held := self._there(pack))}
            for file in group:
                if file.checksum:
                    here |= {taken.path: taken for taken in self._taken(self._copy_path(file, file.checksum))}
            yield Known(
                tuple(here.values()),
                entries,
                Marks(self._marks.generation, self._marks.condemned & (here.keys() | moved.paths.keys())),
                self._damaged,  # may be missing from the listing, and are few: every process gets them
                moved,
                self.packs,
            )

    def held(self, files: FileSet) -> Iterator[tuple[StoredFile, FileEntry | None]]:
        """Each file in turn, with its entry where an earlier backup has its content, as far as its store can tell."""
        for file, entry in _same(files, self._entries):
            whole = self._whole(entry) if entry is not None else None
            if whole is not None:
                yield file, whole if whole.batches is None else whole._replace(batches=None)
            else:
                yield file, None

    def remember(self, entries: Iterable[FileEntry]) -> None:
        """Remember what this backup has put into packs, for :meth:`packed_before`: no listing shows it.

        :param entries: in the order of files.
        """
        of_packs = (entry for entry in entries if entry.is_packed or is_pending(entry.object))
        self._packed_before = FileTable(self.name, of_packs)

    def packed_before(self, files: FileSet) -> Iterator[FileEntry]:
        """What :meth:`remember` was given of some files; to be put through :meth:`settled`."""
        return (entry for _, entry in _same(files, self._packed_before) if entry is not None)

    def expect(self, files: Iterable[StoredFile]) -> None:
        """Say which files :meth:`store` will be asked for, so that no more is kept in hand than may hold their contents.

        Where packs are written, the small ones of them may be copied by the store: see :class:`Way`.
        """
        self._by_content = {}
        sizes: set[int] = set()
        checksums: set[str | None] = set()
        small = 0
        for file in files:
            sizes.add(file.size)
            checksums.add(file.checksum)
            small += self._is_packed(file.size)
        self._way = Way(small) if small else None
        if not self._entries:
            return
        for entry in self._entries:
            if entry.size in sizes and self._moved.now(entry.object) not in self._condemned:
                if sha256 := self._sha256_of(entry):
                    self._by_content[sha256, entry.size] = entry
                if entry.checksum is not None and entry.checksum in checksums:
                    self._by_content[entry.checksum, entry.size] = entry

    def store(self, tree: Tree, file: StoredFile) -> Stored:
        """See to it that the repository holds the content of a checkpoint's file.

        :raises FileNotFoundError: the file is gone, or is not the one that was listed any more.
        """
        source = tree.location
        content = tree.content_in_hand(file)
        copied_by_store = source.store.copies_within and source.store.same_as(self.repository.store)
        # Logs in hand are written at once: a copy would have to be read again. A snapshot is read to know what it needs;
        # copied by the store it need not be read when it is restored.
        if not (copied_by_store and file.checksum and (content is None or file.path.startswith(f"{STATE}/"))):
            return self._read_and_write(source, file, content)
        way = self._way if self._is_packed(file.size) else None
        by_store = way.by_store() if way else not self._is_packed(file.size)
        stored = None
        if by_store:
            try:
                stored = self._copy_within(source, file, file.checksum)
            except FileNotFoundError:
                if content is None:
                    raise  # else it went after it was read, which is as good
        stored = stored or self._read_and_write(source, file, content)
        if way and stored.unproven == by_store:  # else the store had nothing to copy, which says nothing of its pace
            way.took(by_store=by_store)
        return stored

    def _read_and_write(self, source: Location, file: StoredFile, content: bytes | None) -> Stored:
        if content is None:
            content = source.read(file.path)
        if len(content) != file.size:
            raise FileNotFoundError(
                f"{file.path} was replaced: {file.size} bytes when listed, {len(content)} when read"
            )
        return self.write(file, content)

    @property
    def way(self) -> str | None:
        """Why the store has copied small files that would have been packed; ``None`` if it has not."""
        return self._way.says if self._way else None

    def prove(self, tree: Tree, entries: Iterable[FileEntry], sources: FileSet) -> Iterator[FileEntry]:
        """List it again, compare what the store copied itself with what was listed, and note the store's checksum.

        Where the checksums cannot be compared (an encrypted copy has another ETag), both contents are read.

        :param entries: what was stored since the first listing.
        :param sources: the files that it was stored of.
        :raises FileNotFoundError: a source file was replaced while it was copied.
        """
        self.look()
        for entry in entries:
            copied_within = entry.sha256 is None and self.is_new(entry.object)
            yield self._proven(tree, entry, sources[entry.path]) if copied_within else entry

    def _is_whole(self, entry: FileEntry) -> bool:
        return self._whole(entry) is not None

    def _whole(self, entry: FileEntry, *, wanted: str | None = None) -> FileEntry | None:
        """The entry if its object is there, and is none that was condemned; if it was moved, with its new path.

        One that was moved, and of which only its store's checksum is known, is not believed: whoever can write a record could
        name another content of its size.

        :param wanted: hash or checksum of the content that is wanted. If it is the SHA-256 that the record says, that is
            believed; else the content is read.
        """
        # Also where it is still in its old place: a prune that was suspended since it was moved may delete that late.
        now = self._moved.now(entry.object)
        if now in self._condemned or entry.object in self._damaged:
            return None
        if part := part_of(now):
            if not self._is_whole_pack(part):
                return None
            if now == entry.object:
                return entry
            # What the record says may be damaged or forged: it can be right of a content of this size and hash only.
            if part.length != entry.size or entry.sha256 not in (None, part.sha256) or not entry.is_computable:
                return None
            if entry.sha256 is None and wanted != part.sha256 and not (wanted and self._reads_back(entry, now)):
                return None
            return entry._replace(object=now, sha256=part.sha256, checksum=None)
        listed = self._there(entry.object)
        if listed is None or listed.size != entry.size:
            return None
        return entry if entry.checksum is None or listed.checksum == entry.checksum else None

    def _sha256_of(self, entry: FileEntry) -> str | None:
        """Its SHA-256; where that is not known the one that a record says, if it was moved."""
        part = None if entry.sha256 else part_of(self._moved.now(entry.object))
        return part.sha256 if part else entry.sha256

    def _reads_back(self, entry: FileEntry, path: str) -> bool:
        try:
            return entry.is_content(self.repository.read(path))
        except (FileNotFoundError, DamagedFileError):
            return False

    def _is_whole_pack(self, part: Part) -> bool:
        listed = self._there(part.pack)
        return listed is not None and listed.size == part.pack_size and part.pack not in self._condemned

    def _vouched_copy(self, mark: str, file: StoredFile) -> Stored | None:
        """The entry of a content that an earlier backup has, under whatever path and whatever name."""
        known = self._contents_held().get((mark, file.size))
        whole = self._whole(known, wanted=mark) if known is not None else None
        if whole is None:
            return None
        return Stored(whole._replace(path=file.path, identity=file.identity, batches=None), copied=False)

    def _contents_held(self) -> dict[tuple[str, int], FileEntry]:
        """Made when it is first wanted: a backup with nothing new can do without."""
        with self._lock:
            if self._by_content is None:
                self._by_content = {
                    (mark, e.size): e
                    for e in self._entries
                    for mark in (self._sha256_of(e), e.checksum)
                    if mark is not None and self._moved.now(e.object) not in self._condemned
                }
            return self._by_content

    def _copy_within(self, source: Location, file: StoredFile, checksum: str) -> Stored:
        if known := self._vouched_copy(checksum, file):
            return known
        store, name = self.repository.store, self._copy_path(file, checksum)
        if not store.copies_if_absent(file.size):
            name = f"{name}.{self._own}"  # a copy would write over what another backup lists
        for path in self._names(name):
            entry = FileEntry(file.path, file.size, path, checksum=checksum, identity=file.identity)
            if self._is_whole(entry):
                return Stored(entry, copied=False)
            if self._there(path) is not None:
                continue
            try:
                store.copy((source / file.path).root, (self.repository / path).root, file.size)
            except FileExistsError:  # written since the listing
                if found := self.repository.find(path):
                    self._written.add(found)
                if self._is_whole(entry):
                    return Stored(entry, copied=False)
                continue
            return Stored(entry, copied=True, unproven=True)
        raise _too_many(name)

    def _proven(self, tree: Tree, entry: FileEntry, file: StoredFile) -> FileEntry:
        listed = self._listed.get(entry.object)
        if listed is None or listed.size != entry.size:
            raise FileNotFoundError(f"{file.path} was replaced while it was copied")
        if listed.checksum == entry.checksum:
            return entry
        content = self.repository.read(entry.object)
        if content != tree.location.read(file.path):
            raise FileNotFoundError(f"{file.path} was replaced while it was copied")
        return entry._replace(sha256=hashlib.sha256(content).hexdigest(), checksum=listed.checksum)

    def held_content(self, file: StoredFile, sha256: str) -> Stored | None:
        """The entry of a content that is here already, by its hash; what nobody vouches for is read.

        :param file: where the content belongs.
        :param sha256: its hash.
        """
        if known := self._vouched_copy(sha256, file):
            return known
        path = self._path(sha256)
        listed = self._there(path)
        if listed is None or listed.size != file.size or path in self._condemned:
            return None
        if hashlib.sha256(self._content(path) or b"").hexdigest() != sha256:
            return None
        return Stored(FileEntry(file.path, file.size, path, sha256=sha256, identity=file.identity), copied=False)

    def write(self, file: StoredFile, content: bytes) -> Stored:
        """See to it that the repository holds a content.

        :param file: where it belongs in the checkpoint.
        """
        digest = hashlib.sha256(content).hexdigest()
        if known := self._vouched_copy(digest, file):
            return known
        entry = FileEntry(file.path, file.size, "", sha256=digest, identity=file.identity)
        if self._packer is not None and self._is_packed(len(content)):
            return Stored(self.packed(entry, content), copied=True)
        path, copied = self._put(self._path(digest), content)
        return Stored(entry._replace(object=path), copied=copied)

    def _put(self, name: str, content: bytes) -> tuple[str, bool]:
        """Write a content, or find it; return its path, and whether it was written.

        :param name: the first path that it can have.
        """
        for path in self._names(name):
            if not self._there(path):
                try:
                    self.repository.create(path, content)
                except FileExistsError:  # written since the listing
                    self._written.add(StoredFile(path, len(content)))
                else:
                    self._written.add(StoredFile(path, len(content)))
                    return path, True
            if self._content(path) == content:
                return path, False
        raise _too_many(name)

    def _content(self, path: str) -> bytes | None:
        """The content of an object that nobody vouches for; ``None`` where it is none."""
        try:
            return self.repository.read(path)
        except DamagedFileError:
            return None

    def _path(self, key: str) -> str:
        shard = hashlib.sha256(key.encode()).hexdigest()[:2]
        generation = f"-g{self._marks.generation}" if self._marks.generation else ""
        return f"{self.directory}/{shard}/{key}{generation}"

    def _copy_path(self, file: StoredFile, checksum: str) -> str:
        return self._path(checksum.replace(":", "-").replace("/", "_") + f"-{file.size}")

    def _taken(self, path: str) -> Iterator[StoredFile]:
        """What bears this name, and the ones after it that are taken as well."""
        for candidate in _names(path):
            listed = self._there(candidate)
            if listed is None and candidate not in self._damaged:
                return
            if listed is not None:
                yield listed

    def _there(self, path: str) -> StoredFile | None:
        written = self._written.get(path) if self._written else None
        return written or self._listed.get(path)

    def _names(self, path: str) -> Iterator[str]:
        """The names that a content can have, its own first; not those of damaged objects, also where they are missing."""
        return (each for each in _names(path) if each not in self._spent)


def _same(files: FileSet, entries: Sequence[FileEntry]) -> Iterator[tuple[StoredFile, FileEntry | None]]:
    """Each file in turn, with the entry of the same path and the same version of it, as far as its store can tell."""
    known = iter(_ordered(entries))
    entry = next(known, None)
    for file in files.each():
        if entry is not None and entry.path != file.path:
            here = order(file.path)
            while entry is not None and order(entry.path) < here:
                entry = next(known, None)
        if entry is not None and entry.path == file.path and file.identity:
            yield file, entry if (entry.size, entry.identity) == (file.size, file.identity) else None
        else:
            yield file, None


def _ordered(entries: Sequence[FileEntry]) -> Iterable[FileEntry]:
    """In the order of files; manifests of earlier versions have another."""
    if isinstance(entries, FileTable) and entries.is_ordered:
        return entries
    return sorted(entries, key=lambda entry: order(entry.path))


def list_objects(repository: Location, name: str) -> FileSet:
    """List the objects of a stream, by path."""
    return repository.walk(f"objects/{name}")


def _too_many(path: str) -> StorageError:
    return StorageError(f"{path}: a hundred damaged objects of this name", hint="use another repository")


def _names(path: str) -> Iterator[str]:
    yield path
    yield from (f"{path}.{number}" for number in range(1, 100))
