"""Local disks, and whatever is mounted as one (``/Volumes`` on Databricks, NFS)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.exchange import exchange, locked
from airflow_ckpt_provider.storage.hidden_name import hidden_name
from airflow_ckpt_provider.storage.mounts import file_system_of
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile
from airflow_ckpt_provider.storage.write_check import changes_store, with_check

#: What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
#: Seconds to wait for others that replace a listed file in the same directory. After that the file is renamed away.
_LOCK_WAIT = 2.0
_Version = tuple[int, int, int]


class LocalStore(Store):
    """A POSIX filesystem.

    fsspec's local filesystem neither creates a file atomically nor flushes it to the disk, so this store goes to the
    operating system: write a hidden temporary file, ``fsync``, then link (create) or rename (replace) it into place.

    A file system cannot compare and delete in one step. So ``delete_listed`` renames the file to a hidden name of its own and
    compares it there. If it is another one than was listed, it is linked back. If somebody wrote a new file under its name in
    that moment, both stay, and the error names the hidden one. A process that is killed in between leaves the file under the
    hidden name.

    ``replace_listed`` lets the new file and the old one exchange their names, and compares the old one under the hidden name. If
    it is another one than was listed, they exchange their names again; if the process is killed before that, the other one stays
    under the hidden name. So there is always a file under the name. Where this is not offered (NFS, SMB, macOS), it does as
    ``delete_listed``: for a moment there is none, and a process that is killed in that moment leaves the old file under the
    hidden name only.

    On FUSE mounts, where a rename may change what identifies a file, both compare first and then act.

    :param place: a path that the store is used for, so that :attr:`deletes_if_same` is right for it.
    """

    creates_if_absent = True
    reads_parts = True
    deletes_if_same = True

    def __init__(self, place: str | None = None) -> None:
        if place is not None:
            self.deletes_if_same = not _renames_show(place)

    @property
    def protocol(self) -> str:
        """Scheme of the store's URIs."""
        return "file"

    def list(self, path: str) -> Listing:
        """List one directory."""
        files: list[StoredFile] = []
        directories: list[str] = []
        with _translated(f"list {path}"):
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        if _is_directory(entry):
                            directories.append(entry.name)
                        elif (file := _stored_file(entry)) is not None:
                            files.append(file)
            except (FileNotFoundError, NotADirectoryError):
                return Listing((), ())
        return Listing(tuple(files), tuple(sorted(directories)))

    def walk(self, path: str) -> tuple[StoredFile, ...]:
        """List all files below ``path``."""
        found: list[StoredFile] = []
        pending = [path.rstrip("/")]
        while pending:
            directory = pending.pop()
            listing = self.list(directory)
            found += listing.files
            pending += [f"{directory}/{name}" for name in listing.directories]
        return tuple(found)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with _translated(f"read {path}"), _opened_to_read(path) as file:
            return file.read()

    def read_at_most(self, path: str, most: int) -> bytes:
        """Return the content of a file that may have so many bytes."""
        with _translated(f"read {path}"), _opened_to_read(path) as file:
            if os.fstat(file.fileno()).st_size > most:
                raise self.too_large(path, most)
            return self.require_most(path, file.read(most + 1), most)

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        with _translated(f"read {path}"), _opened_to_read(path) as file:
            file.seek(start)
            return file.read(length)

    def find(self, path: str) -> StoredFile | None:
        """Return one file as a listing shows it now."""
        with _translated(f"read {path}"):
            try:
                status = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return None if stat.S_ISDIR(status.st_mode) else _as_listed(path, status)

    @changes_store
    def create(self, path: str, data: bytes) -> None:
        """Write a new file: whole, exclusive, on the disk when this returns."""
        with _translated(f"create {path}"):
            temporary = self._write_temporary(path, data)
            try:
                self.write_check()
                self._link(temporary, path)
            finally:
                os.unlink(temporary)

    @changes_store
    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there: whole, on the disk when this returns."""
        with _translated(f"write {path}"):
            _refuse_device(path)
            temporary = self._write_temporary(path, data)
            try:
                self.write_check()
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
            _flush_directory(path)

    @changes_store
    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        with _translated(f"delete {path}"):
            self.write_check()
            Path(path).unlink(missing_ok=True)

    @changes_store
    def delete_listed(self, file: StoredFile) -> None:
        """Delete a file if it is still the one that was listed: rename it away, compare, unlink."""
        if _renames_show(file.path):
            return super().delete_listed(file)
        with _translated(f"delete {file.path}"):
            if (found := self.find(file.path)) is None:
                return None
            self.require_same(file, found)
            self.write_check()
            with suppress(FileNotFoundError):  # somebody else has deleted it
                self._taken_away(file, lambda: None)
        return None

    @changes_store
    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        """Write a file over the one that was listed: exchange the two, compare, and delete the old one.

        Where names cannot be exchanged: rename the old one away, compare, link the new one in its place.
        """
        if _renames_show(file.path):
            return super().replace_listed(file, data)
        with _translated(f"write {file.path}"):
            self.require_same(file, self.find(file.path))
            temporary = self._write_temporary(file.path, data)
            new = _version(temporary)
            try:
                # Two that exchange at once could each put back what the other one has put there.
                with locked(os.path.dirname(file.path), wait=_LOCK_WAIT) as is_locked:
                    self.write_check()
                    if not (is_locked and self._exchanged(file, temporary, new)):
                        self._taken_away(file, lambda: self._link(temporary, file.path))
            except FileNotFoundError:
                raise self.changed(file, self.find(file.path)) from None
            finally:
                self._discard(temporary, file, new)
            return self.find(file.path)

    @changes_store
    def remove_empty_directories(self, path: str) -> None:
        """Remove ``path`` and the directories below it where they hold nothing."""
        with _translated(f"remove directory {path}"):
            for directory, _, _ in os.walk(path, topdown=False):
                self.write_check()
                # Asked for one that holds something, the system would first say whose its parent is, or that it is mounted.
                if os.listdir(directory):
                    continue
                try:
                    os.rmdir(directory)
                except OSError as e:
                    if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):  # a mount point stays
                        raise

    def copy(self, source: str, target: str, size: int) -> None:
        """Not offered: a local copy passes through the process, where it is hashed on the way."""
        raise NotImplementedError("LocalStore.copies_within is false")

    def canonical(self, path: str) -> str:
        """Resolve symbolic links, also those above a path that does not exist yet."""
        return os.path.realpath(path)

    def same_as(self, other: Store) -> bool:
        """All local paths are in one store."""
        return isinstance(other, LocalStore)

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Store:
        """The same store with a check before each change; the operating system has no time-out for one."""
        return with_check(self, check, request_timeout)

    def _exchanged(self, file: StoredFile, temporary: str, new: _Version) -> bool:
        """Exchange a file and a new one, if it is the one that was listed.

        :param temporary: hidden name of the new file; afterwards that of the old one.
        :param new: the new file.
        :returns: whether that is offered here; if not, nothing was done.
        :raises FileNotFoundError: it is missing.
        :raises FileChangedError: it is another one.
        """
        self.require_same(file, self.find(file.path))  # what others wrote before now is never moved
        if not exchange(temporary, file.path):
            return False
        try:
            found = self.find(temporary)
        except BaseException:
            self._exchange_back(temporary, file.path, new)
            raise
        if found is None or not file.is_same(found):
            kept = self._exchange_back(temporary, file.path, new)
            raise self.changed(file, self.find(file.path), kept=kept)
        _flush_directory(file.path)
        return True

    def _exchange_back(self, temporary: str, path: str, new: _Version) -> str | None:
        """Put a file that is not the one that was listed back in its place, without a check: it only restores.

        Whoever writes there at this moment wrote last: that file stays in its place.

        :returns: hidden name of a file that is neither the new one nor in its place; ``None``: there is none.
        """
        put, expected = _version(temporary), new
        while True:
            try:
                if not exchange(temporary, path):
                    return temporary
            except FileNotFoundError:  # somebody has deleted the new file
                return None if self._put_back(temporary, path) else temporary
            if (out := _version(temporary)) == expected:
                break
            put, expected = out, put
        _flush_directory(path)
        return None if expected == new else temporary

    def _discard(self, temporary: str, file: StoredFile, new: _Version) -> None:
        """Remove a hidden file if it is the new one or the one that was listed; any other stays."""
        with suppress(FileNotFoundError):
            if _version(temporary) != new:
                found = self.find(temporary)
                if found is None or not file.is_same(found):
                    return
            os.unlink(temporary)

    def _taken_away(self, file: StoredFile, then: Callable[[], None]) -> None:
        """Rename a file away, without a check, and, if it is the one that was listed, do something and remove it.

        :param then: what to do while the name is free.
        :raises FileNotFoundError: it is missing.
        :raises FileChangedError: it is another one, or somebody took the free name.
        """
        taken = hidden_name(file.path)
        os.rename(file.path, taken)
        found = self.find(taken)
        if found is None or not file.is_same(found):
            kept = None if self._put_back(taken, file.path) else taken
            raise self.changed(file, self.find(file.path), kept=kept)
        try:
            self.write_check()
            then()
        except FileExistsError:
            raise self.changed(file, self.find(file.path), kept=taken) from None
        except BaseException:
            self._put_back(taken, file.path)
            raise
        os.unlink(taken)

    def _put_back(self, taken: str, path: str) -> bool:
        """Undo the renaming of a file, without a check: it only restores. Never over a new file of that name.

        :returns: whether it is back.
        """
        try:
            self._link(taken, path)
        except FileExistsError:
            return False
        os.unlink(taken)
        return True

    def _link(self, temporary: str, path: str) -> None:
        """Give a file a second name, which must be free, and put the name on the disk."""
        try:
            os.link(temporary, path, follow_symlinks=False)
            _flush_directory(path)
        except OSError as e:
            if e.errno not in _NO_LINKS:
                raise
            self._create_without_links(path, Path(temporary).read_bytes())

    def _write_temporary(self, path: str, data: bytes) -> str:
        self.write_check()
        temporary = hidden_name(path)
        opened = _opened(temporary)
        try:
            with opened as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return temporary

    def _create_without_links(self, path: str, data: bytes) -> None:
        """Some mounts (FUSE, SMB) know no hard links: exclusive, though a crash may leave a part of the file."""
        with open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _opened(path: str) -> BinaryIO:
    """Open a new file; the directories above it are made where they are missing."""
    try:
        return open(path, "wb")
    except (FileNotFoundError, NotADirectoryError):
        directory = os.path.dirname(path)
        try:
            os.makedirs(directory, exist_ok=True)
        except FileExistsError as e:
            # A file where a directory should be; for the caller "exists" is about the file to be written.
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from e
        return open(path, "wb")


def _opened_to_read(path: str) -> BinaryIO:
    """Open a file, and nothing else: a pipe under the name of a file would be waited for without end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise StorageError(
                f"could not read {path}: it is a device, a pipe or a socket, and no file",
                hint="find out who has made it there; move it away",
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_device(path: str) -> None:
    """See that a path is no device or pipe: root would rename a file over ``/dev/null``, and break the machine for everybody."""
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.lstat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise StorageError(
                f"could not write {path}: it is a device, a pipe or a socket", hint="give the name of a file"
            )


def _version(path: str) -> _Version:
    """What identifies a version of a file, or of a symbolic link."""
    status = os.lstat(path)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _renames_show(path: str) -> bool:
    """Whether a rename may change what identifies a file."""
    directory = os.path.dirname(path)
    try:
        device = os.stat(directory).st_dev
    except OSError:  # a directory that does not exist yet
        device = -1
    return _is_fuse(device, directory)


@lru_cache(maxsize=64)
def _is_fuse(device: int, directory: str) -> bool:
    """Whether a directory is on a FUSE mount; the mounts are read once for each directory on a device."""
    return (file_system_of(directory) or "").startswith("fuse")


def _flush_directory(path: str) -> None:
    """Put a name on the disk: ``fsync`` of a file covers its content only."""
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        # Network and FUSE mounts may not know it for directories; they write names through.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except (
        PermissionError
    ):  # a symbolic link to a place that may not be entered: whoever does gets an error that names it
        return True
    except OSError as e:
        if e.errno == errno.ELOOP:  # a symbolic link to itself leads nowhere, as one to a missing place does
            return False
        raise


def _stored_file(entry: os.DirEntry[str]) -> StoredFile | None:
    try:
        status = entry.stat()
    except FileNotFoundError:  # deleted between the listing and the look
        return None
    except OSError as e:
        if e.errno == errno.ELOOP:
            return None
        raise
    return _as_listed(entry.path, status)


def _as_listed(path: str, status: os.stat_result) -> StoredFile:
    return StoredFile(
        path=path,
        size=status.st_size,
        identity=f"inode:{status.st_ino}:{status.st_mtime_ns}",
        modified=datetime.fromtimestamp(status.st_mtime, UTC),
    )


@contextmanager
def _translated(action: str) -> Iterator[None]:
    """Leave file-not-found and file-exists as they are; give every other failure a next step."""
    free = "free some space, then run the same command again"
    permissions = "check the permissions of the user that runs this"
    hints = {
        errno.ENOSPC: free,
        errno.EDQUOT: free,
        errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another place",
        errno.EACCES: permissions,
        errno.EPERM: permissions,
        errno.EROFS: "the file system is mounted read-only: choose another place",
        errno.ENOTDIR: "a part of this path is a file: correct the address",
        errno.ENAMETOOLONG: "the file system takes no name that long: choose a shorter one",
        errno.EISDIR: "this is a directory: correct the address",
    }
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except ValueError as e:  # a zero byte, half a character: what a forged document may name
        raise StorageError(f"could not {action}: no file can have this name ({e})", hint="correct the address") from e
    except OSError as e:
        reason = e.strerror or str(e)
        raise StorageError(
            f"could not {action}: {reason}", hint=hints.get(e.errno or 0, "check the address and the disk")
        ) from e
