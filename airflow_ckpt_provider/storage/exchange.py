"""Two files exchange their names in one step, where that is offered: on Linux, by ext4, XFS, Btrfs, tmpfs and others.

NFS, SMB and macOS do not offer it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
#: What kernels, file systems and containers answer that do not offer it. Where nobody may rename, ``rename`` reports the same.
_NOT_OFFERED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)
#: Seconds between two tries to get a lock.
_PAUSE = 0.002


def exchange(one: str, other: str) -> bool:
    """Exchange the names of two files in one step.

    :returns: whether that is offered here; if not, nothing was done.
    :raises FileNotFoundError: one of them is missing.
    :raises OSError: it failed; nothing was done.
    """
    if (rename := _renameat2()) is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    if (number := ctypes.get_errno()) in _NOT_OFFERED:
        return False
    raise OSError(number, os.strerror(number), other)


@contextmanager
def locked(directory: str, *, wait: float) -> Iterator[bool]:
    """Keep others that call this out of a directory, in this process and in others on this machine.

    The lock ends with the process that holds it.

    :param wait: seconds to wait for the lock. A process that is paused keeps it.
    :returns: whether it is held. Not where it was not released in time, or where the file system has no such locks.
    """
    descriptor = -1
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
    is_locked = descriptor >= 0 and _lock(descriptor, wait)
    try:
        yield is_locked
    finally:
        if is_locked:  # a process that was forked meanwhile keeps the descriptor
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        if descriptor >= 0:
            os.close(descriptor)


def _lock(descriptor: int, wait: float) -> bool:
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_PAUSE)
        except OSError:
            return False
        else:
            return True


@lru_cache(maxsize=1)
def _renameat2() -> Callable[..., int] | None:
    """The call of the C library; ``None`` where it has none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    call.restype = ctypes.c_int
    return call
