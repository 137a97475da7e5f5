"""Returns free memory of packs to the system at once.

The allocator of glibc keeps free blocks of up to 32 MiB once the process has freed one that big, and keeps them apart for
different threads: a backup of packs of 16 MiB by 64 threads had several hundred megabytes that nobody used. With a limit of
its own, it takes each bigger block from the system and returns it.
"""

from __future__ import annotations

import ctypes
import functools
import os

#: Of ``mallopt`` (3): blocks of so many bytes and more are taken from the system one by one.
_M_MMAP_THRESHOLD = -3
_BIG = 1024**2
#: Settings of whoever started the process, which are left as they are.
_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def give_back_big_blocks() -> bool:
    """Have each free block of a megabyte and more returned to the system, until this process ends.

    :return: whether that was set: not where the C library is not glibc, or where the environment sets it.
    """
    if any(os.environ.get(name) for name in _SETTINGS):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _BIG))
    except (AttributeError, OSError, TypeError):
        return False
