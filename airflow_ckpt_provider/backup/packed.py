"""Which parts of packs a manifest lists: no two may overlap, unless they are the same content."""

from __future__ import annotations

from array import array

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.storage.packs import part_of


class Packed:
    """The parts of packs that a manifest lists, 16 bytes each.

    :param allowed: whether it may list any.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._parts: dict[str, tuple[array[int], array[int]]] = {}

    def add(self, entry: FileEntry) -> None:
        """Take note of a file.

        :raises ValueError: its content is in a pack, in a manifest that cannot list packs.
        """
        if (part := part_of(entry.object)) is None:
            return
        if not self._allowed:
            raise ValueError(f"{entry.path!r} is in a pack, which a manifest of this version cannot list")
        starts, ends = self._parts.setdefault(part.pack, (array("Q"), array("Q")))
        starts.append(part.start)
        ends.append(part.end)

    def check(self) -> None:
        """See that no two contents overlap.

        :raises ValueError: two do.
        """
        for pack, (starts, ends) in self._parts.items():
            begin = before = 0
            for start, end in sorted(zip(starts, ends, strict=True)):
                if start < before and (start, end) != (begin, before):
                    raise ValueError(f"it lists contents of {pack!r} that overlap at byte {start}")
                begin, before = start, end
