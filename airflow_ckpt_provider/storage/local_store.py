"""Local disks, and whatever is mounted as one (``/Volumes`` on Databricks, NFS)."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile


class LocalStore(Store):
    """A POSIX filesystem.

    fsspec's local filesystem neither creates a file atomically nor flushes it to the disk, so this store goes to the
    operating system: write a hidden temporary file, ``fsync``, then link (create) or rename (replace) it into place.
    """

    creates_if_absent = True

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
        with _translated(f"read {path}"):
            return Path(path).read_bytes()

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        with _translated(f"read {path}"), open(path, "rb") as file:
            file.seek(start)
            return file.read(length)

    def create(self, path: str, data: bytes) -> None:
        """Write a new file: whole, exclusive, on the disk when this returns."""
        with _translated(f"create {path}"):
            temporary = self._write_temporary(path, data)
            try:
                os.link(temporary, path)
                _flush_directory(path)
            except OSError as e:
                if e.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                    raise
                self._create_without_links(path, data)
            finally:
                os.unlink(temporary)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there: whole, on the disk when this returns."""
        with _translated(f"write {path}"):
            temporary = self._write_temporary(path, data)
            try:
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
            _flush_directory(path)

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        with _translated(f"delete {path}"):
            Path(path).unlink(missing_ok=True)

    def remove_empty_directories(self, path: str) -> None:
        """Remove ``path`` and the directories below it where they hold nothing."""
        with _translated(f"remove directory {path}"):
            for directory, _, _ in os.walk(path, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError as e:
                    if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
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

    def _write_temporary(self, path: str, data: bytes) -> str:
        directory, _, name = path.rpartition("/")
        try:
            os.makedirs(directory, exist_ok=True)
        except FileExistsError as e:
            # A file where a directory should be; for the caller "exists" is about the file to be written.
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from e
        # Spark's own form of temporary names, which every Spark ignores.
        temporary = f"{directory}/.{name}.{uuid.uuid4()}.tmp"
        try:
            with open(temporary, "wb") as file:
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
    except PermissionError:  # a symbolic link to a place that may not be entered: whoever does is told so, by its name
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
    return StoredFile(
        path=entry.path,
        size=status.st_size,
        identity=f"inode:{status.st_ino}:{status.st_mtime_ns}",
        modified=datetime.fromtimestamp(status.st_mtime, UTC),
    )


@contextmanager
def _translated(action: str) -> Iterator[None]:
    """Leave file-not-found and file-exists as they are; give every other failure a next step."""
    free = "free some space, then run the same command again: what was copied already is used"
    permissions = "check the permissions of the user that runs this"
    hints = {
        errno.ENOSPC: free,
        errno.EDQUOT: free,
        errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another place",
        errno.EACCES: permissions,
        errno.EPERM: permissions,
        errno.EROFS: "the file system is mounted read-only: choose another place",
        errno.ENOTDIR: "a part of this path is a file: correct the address",
        errno.EISDIR: "this is a directory: correct the address",
    }
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as e:
        reason = e.strerror or str(e)
        raise StorageError(
            f"could not {action}: {reason}", hint=hints.get(e.errno or 0, "check the address and the disk")
        ) from e
