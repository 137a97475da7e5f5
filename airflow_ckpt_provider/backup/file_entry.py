"""One file of a backup: where it belongs, and where its content is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow_ckpt_provider.storage.location import safe_relative
from airflow_ckpt_provider.storage.packs import PACK_SUFFIX, checked_part, part_of

#: ETags and other checksums of a store that are hashes of the content, and can be computed here.
_COMPUTABLE = re.compile(r"(etag|md5):[0-9a-f]{32}|sha256:[0-9a-f]{64}")
#: In the path of an object behind the name of the stream: it is a content in a pack.
_IN_PACK = re.compile(r"\.pack(?:\.[0-9]+)?/")
#: Where all objects of a repository lie.
OBJECTS = "objects"


class FileEntry(NamedTuple):
    """One file of a backup. A tuple, for a step makes some ten times as many of them as a checkpoint has files.

    :param path: path in the checkpoint.
    :param size: bytes.
    :param object: path of its content in the repository; of one in a pack see :mod:`~airflow_ckpt_provider.storage.packs`.
    :param sha256: hash of the content, where it passed through this program.
    :param checksum: checksum that the repository's store vouches for (``etag:…``), where the store copied it itself.
    :param identity: what the checkpoint's store said to tell this content from another; lets the next backup reuse it.
    :param batches: the restorable batches that need it; ``None`` for all of them.
    """

    path: str
    size: int
    object: str
    sha256: str | None = None
    checksum: str | None = None
    identity: str | None = None
    batches: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry as plain JSON, without what is not known."""
        value: dict[str, Any] = {"path": self.path, "size": self.size, "object": self.object}
        if self.sha256 is not None:
            value["sha256"] = self.sha256
        if self.checksum is not None:
            value["checksum"] = self.checksum
        if self.identity is not None:
            value["identity"] = self.identity
        if self.batches is not None:
            value["batches"] = self.batches
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FileEntry:
        """Read an entry; unknown keys are ignored.

        :raises ValueError: its path leads out of a checkpoint, its object is none of a repository, or a size is none.
        """
        get = value.get
        batches = get("batches")
        return cls(
            value["path"],
            value["size"],
            value["object"],
            get("sha256"),
            get("checksum"),
            get("identity"),
            None if batches is None else tuple(batches),
        ).checked()

    def checked(self, objects: str = OBJECTS) -> FileEntry:
        """Return the entry if it can be believed.

        :param objects: the directory of the repository in which its object has to lie.
        :raises ValueError: its path leads out of a checkpoint, its object lies elsewhere or is none that a pack can hold, or a
            size is none.
        """
        for path, below in ((self.path, ""), (self.object, objects)):
            try:
                safe_relative(path, below=below)
            except ValueError as e:
                raise ValueError(f"it lists {path!r}: {e}") from None
        if type(self.size) is not int or self.size < 0:
            raise ValueError(f"{self.path!r} has a size of {self.size!r}")
        try:
            part = checked_part(self.object)
        except ValueError as e:
            raise ValueError(f"it lists {self.object!r}: {e}") from None
        if part is None and PACK_SUFFIX in self.object and _IN_PACK.search("/".join(self.object.split("/")[2:])):
            # Else it would be taken for an object of its own, which is missing, and a prune would delete the pack.
            raise ValueError(f"it lists {self.object!r}: no such pack can be read here")
        if part is not None and (part.sha256, part.length) != (self.sha256, self.size):
            raise ValueError(f"{self.path!r} has another hash or size than {self.object!r} says")
        return self

    @property
    def is_computable(self) -> bool:
        """Whether a hash of its content is known that can be computed here.

        An ETag of 32 hexadecimal digits is the MD5 of an object written in one part and not encrypted with a key service. Other
        ETags cannot be computed here; that they are unchanged is seen in a listing, and is the store's word.
        """
        return self.sha256 is not None or _COMPUTABLE.fullmatch(self.checksum or "") is not None

    def is_content(self, content: bytes) -> bool:
        """Whether a content is its own, as far as that can be computed here."""
        if len(content) != self.size:
            return False
        if self.sha256 is not None:
            return hashlib.sha256(content).hexdigest() == self.sha256
        if not self.is_computable:
            return True
        kind, _, value = (self.checksum or "").partition(":")
        if kind == "sha256":
            return hashlib.sha256(content).hexdigest() == value
        return hashlib.md5(content, usedforsecurity=False).hexdigest() == value

    @property
    def is_packed(self) -> bool:
        """Whether its content lies in a pack."""
        return part_of(self.object) is not None
