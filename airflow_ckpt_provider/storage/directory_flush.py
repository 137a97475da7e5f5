"""Putting names on the disk: ``fsync`` of a file covers its content only, that of its directory covers the name.

Threads that write into the same directory at the same time share a flush: one that begins after a name was made covers it,
whoever begins it. Of many small files, these flushes would else take as long as the files.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field

#: What network and FUSE mounts answer that know no flush of a directory; they write names through.
_NOT_KNOWN = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.ENOSYS)


@dataclass(slots=True)
class _Directory:
    """A directory that is being flushed.

    :param asked: how often somebody has asked.
    :param covered: how many of these are answered.
    :param waiting: threads that are in :func:`flush_directory`.
    """

    asked: int = 0
    covered: int = 0
    waiting: int = 0
    flushing: threading.Lock = field(default_factory=threading.Lock)


_directories: dict[str, _Directory] = {}
_lock = threading.Lock()


def flush_directory(path: str) -> None:
    """See to it that the names in a directory are on the disk, as they are when this is called.

    :param path: the directory.
    :raises OSError: it cannot be flushed, or does not exist.
    """
    with _lock:
        directory = _directories.setdefault(path, _Directory())
        directory.waiting += 1
        directory.asked += 1
        mine = directory.asked
    try:
        with directory.flushing:
            if directory.covered >= mine:
                return
            covers = directory.asked  # whoever asked by now has made its name already
            _flush(path)
            directory.covered = covers
    finally:
        with _lock:
            directory.waiting -= 1
            if not directory.waiting:
                del _directories[path]


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno not in _NOT_KNOWN:
            raise
    finally:
        os.close(descriptor)
