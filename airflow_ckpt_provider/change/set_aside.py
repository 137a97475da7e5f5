"""Files put aside before they are deleted or replaced, whole and as they are, so that they can be put back.

A backup holds a closure; this holds exactly what a change takes away, batches that were not committed included. Its marker is
written last: until it is there, nothing may be deleted. It has a hash of each file, for after the change this is the only copy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.records import checked_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import DamagedFileError, RepositoryError, StorageError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import WORKERS, in_parallel
from airflow_ckpt_provider.storage.location import LARGE, Location, safe_paths
from airflow_ckpt_provider.storage.store import StoredFile

_COMPLETE = "COMPLETE"


class _Marker(NamedTuple):
    """What the marker says; see :class:`SetAside` for the first two.

    :param hashes: path -> ``sha256:…``, or the checksum that the store vouches for where it copied the file itself. Markers of
        earlier versions have none.
    """

    sizes: dict[str, int]
    left: dict[str, str | None] | None
    hashes: dict[str, str]


@dataclass(frozen=True, slots=True)
class SetAside:
    """What one plan puts aside of one place.

    :param repository: the repository that keeps it.
    :param name: name of the stream.
    :param plan_id: the plan.
    :param part: what it is of, where a plan puts more than one thing aside: ``checkpoint``, ``sink``.
    """

    repository: Repository
    name: str
    plan_id: str
    part: str = ""
    _found: list[_Marker] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def place(self) -> str:
        """Its path in the repository."""
        return "/".join(filter(None, ("set-aside", checked_name(self.name), checked_plan_id(self.plan_id), self.part)))

    @property
    def sizes(self) -> dict[str, int] | None:
        """Path -> bytes of all that is kept; ``None`` while it is not complete.

        :raises RepositoryError: the marker is damaged, so that it cannot be determined what is kept.
        """
        marker = self._marker()
        return None if marker is None else marker.sizes

    @property
    def left(self) -> dict[str, str | None] | None:
        """Path -> identity of the files that were there and were not to be touched; ``None`` where it was not noted.

        :raises RepositoryError: the marker is damaged.
        """
        marker = self._marker()
        return None if marker is None else marker.left

    def _marker(self) -> _Marker | None:
        """What is kept and what was left; ``None`` if there is no marker. Once written it never changes, so it is read once."""
        if self._found:
            return self._found[0]
        try:
            data = self.repository.location.read_document(f"{self.place}/{_COMPLETE}", most=LARGE)
        except FileNotFoundError:
            return None
        try:
            value = load_json(data)
            files, left, hashes = value["files"], value.get("left"), dict(value.get("hashes") or {})
            for path, size in files.items():
                if type(size) is not int or not isinstance(hashes.get(path, ""), str):
                    raise ValueError(f"{path!r} has a size of {size!r} and a hash of {hashes.get(path)!r}")
            safe_paths((*files, *(left or {})))
            left = None if left is None else dict(left)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise RepositoryError(
                f"{self.repository.location}/{self.place}/{_COMPLETE} cannot be read ({type(e).__name__}: {e}): {data[:80]!r}",
                hint="put it back from a copy of the repository: without it nothing shows whether all that was removed is in "
                f"{self.place}/files",
            ) from e
        self._found.append(_Marker(files, left, hashes))
        return self._found[0]

    def read(self, path: str) -> bytes:
        """Content of a file that was kept.

        :raises FileNotFoundError: it was not.
        :raises DamagedFileError: it is not what was kept.
        """
        content = self.files.read(path)
        entry = self._entry(path)
        if entry is not None and not entry.is_content(content):
            raise DamagedFileError(
                f"{self.files}/{path} is not what was kept: it was changed or cut off since",
                hint="put it back from a copy of the repository, then run the same command again",
            )
        return content

    def is_kept(self, path: str, content: bytes) -> bool:
        """Whether a content is that of a file that was kept, also if that is damaged by now.

        :raises DamagedFileError: only the file could show it, and is damaged.
        """
        entry = self._entry(path)
        return entry.is_content(content) if entry is not None and entry.is_computable else self.read(path) == content

    def damaged(self, paths: Collection[str] | None = None) -> list[str]:
        """Files that are missing or are not what was kept. Of those without a hash only the size is compared.

        :param paths: files that were kept; by default all of them.
        """
        paths = sorted((self.sizes or {}) if paths is None else paths)
        there = self.files.walk() if paths else {}

        def is_whole(path: str) -> bool:
            file, entry = there.get(path), self._entry(path)
            if file is None or entry is None or file.size != entry.size:
                return False
            if entry.checksum in (None, file.checksum):
                return True
            try:
                return entry.is_computable and entry.is_content(self.files.read(path))
            except FileNotFoundError:
                return False

        return [path for path, whole in zip(paths, in_parallel(is_whole, paths), strict=True) if not whole]

    def _entry(self, path: str) -> FileEntry | None:
        """A file that was kept, as a backup has one; ``None``: the marker does not name it."""
        marker = self._marker()
        if marker is None or path not in marker.sizes:
            return None
        return FileEntry(path, marker.sizes[path], f"{self.place}/files/{path}", checksum=marker.hashes.get(path))

    @property
    def files(self) -> Location:
        """The place of the files that are kept."""
        return self.repository.location / f"{self.place}/files"

    def keep(
        self,
        source: Location,
        files: Iterable[StoredFile],
        *,
        left: Mapping[str, str | None] | None = None,
        workers: int = WORKERS,
    ) -> None:
        """Copy files here; does nothing when all was copied before.

        :param left: path -> identity of the other files of the place, by which an undo knows whether somebody has written since.

        :raises FileNotFoundError: a file does not exist any more: somebody else changes the place.
        :raises StorageError: what arrived is not what was read.
        """
        if self.sizes is not None:
            return
        kept, here = list(files), self.files

        def copy(file: StoredFile) -> str | None:
            return _copy(source, file, here)

        passed = in_parallel(copy, kept, workers=workers)
        arrived = here.walk()

        def hash_of(each: tuple[StoredFile, str | None]) -> str | None:
            return _hash_of_copy(*each, arrived.get(each[0].path), source, here)

        found = in_parallel(hash_of, zip(kept, passed, strict=True), workers=workers)
        hashes = {file.path: known for file, known in zip(kept, found, strict=True)}
        wrong = [path for path, known in hashes.items() if known is None]
        if wrong:
            raise StorageError(
                f"{here}/{wrong[0]} is not what {source}/{wrong[0]} was ({len(wrong)} files differ)",
                hint="nothing was deleted; see who else writes there, then run the same command again",
            )
        marker = {
            "from": source.uri,
            "files": {file.path: file.size for file in kept},
            "hashes": hashes,
            **({} if left is None else {"left": dict(left)}),
        }
        self.repository.location.replace(f"{self.place}/{_COMPLETE}", json.dumps(marker).encode())


def _hash_of_copy(
    file: StoredFile, passed: str | None, made: StoredFile | None, source: Location, target: Location
) -> str | None:
    """Hash of what arrived; ``None``: it is not what was there.

    An object that a service encrypted has another checksum: then both are read. Where a store copies and has no checksums, the
    copy is read.

    :param passed: hash of the content, where it passed through this process.
    """
    if made is None or made.size != file.size:
        return None
    has_checksums = None not in (file.checksum, made.checksum)
    if has_checksums and file.checksum == made.checksum:
        return passed or made.checksum
    if passed and not has_checksums:
        return passed
    content = target.read(file.path)
    found = _sha256(content)
    is_same = found == passed if passed else not has_checksums or source.read(file.path) == content
    return found if is_same else None


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _copy(source: Location, file: StoredFile, target: Location) -> str | None:
    """Copy a file if there is none; over one that an earlier attempt has left there only if that is another content.

    :returns: the hash of the content, where it passed through this process.
    """
    path = file.path
    try:
        if target.store.copies_within and target.store.same_as(source.store):
            if target.store.copies_if_absent(file.size):
                target.store.copy((source / path).root, (target / path).root, file.size)
            else:
                source.copy_new(file, path, into=target)
            return None
        content = source.read(path)
        target.create(path, content)
    except FileExistsError:
        content, left = source.read(path), target.find(path)
        if left is None or target.read(path) != content:
            if left is None:
                target.create(path, content)
            else:
                target.replace_listed(left, content)
    return _sha256(content)
