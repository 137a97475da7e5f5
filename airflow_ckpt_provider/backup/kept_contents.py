"""Contents that were read and compared before a change, kept in memory until they are written, so that they are read once."""

from __future__ import annotations

import hashlib
import threading

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.packing import PACKED_BELOW

#: Bytes that are kept at most, with what each content costs besides. The small files of most checkpoints fit.
KEPT = 128 * 1024**2
#: About what a content takes besides its bytes.
_EACH = 300
#: Contents that are more than this many times what is kept are not kept at all: that would save few reads, and the lists of so
#: many files take the memory.
_FEW_OF = 5


def fit(files: int, size: int) -> bool:
    """Whether so many contents of so many bytes fit well enough for keeping them to pay.

    :param files: how many.
    :param size: their bytes.
    """
    return size + files * _EACH <= _FEW_OF * KEPT


class KeptContents:
    """Contents by their SHA-256, as many as fit; what does not fit is read again. May be used from several threads.

    Big contents are not kept: they would take the place of many small ones, and cost one request each. Nothing is written to
    a disk: what comes from an encrypted repository stays in this process.

    :param most: bytes to keep.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._left = most
        self._lock = threading.Lock()
        self._contents: dict[bytes, bytes] = {}

    def keep(self, entry: FileEntry, content: bytes) -> None:
        """Keep a content that was compared with its entry, if there is room for it."""
        if entry.sha256 is None or len(content) >= PACKED_BELOW:
            return
        key = bytes.fromhex(entry.sha256)
        with self._lock:
            if key not in self._contents and len(content) + _EACH <= self._left:
                self._left -= len(content) + _EACH
                self._contents[key] = content

    def get(self, entry: FileEntry) -> bytes | None:
        """A content that was kept; ``None`` if it was not. It is compared with its hash again."""
        if entry.sha256 is None or (content := self._contents.get(bytes.fromhex(entry.sha256))) is None:
            return None
        return content if hashlib.sha256(content).hexdigest() == entry.sha256 else None
