"""How much of each pack is in use, and which packs are worth packing again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from airflow_ckpt_provider.backup.contents import Places
from airflow_ckpt_provider.backup.pack_file import OVERHEAD, ROW
from airflow_ckpt_provider.backup.packing import CONTENTS, PACK_SIZE
from airflow_ckpt_provider.storage.packs import pack_size, part_of

#: Packs of which at least this share is not needed are repacked.
MOSTLY_GARBAGE = 0.5
#: A pack is small while less than this share of it is filled.
SMALL_BELOW = 0.5
#: Small packs of one tier that are merged; and how many times as full a pack of the next tier is.
MERGED_FROM = 16


@dataclass(frozen=True, slots=True)
class PackUse:
    """How much of the packs of a stream is needed.

    :param live: pack -> bytes that backups need, with their part of its index.
    :param contents: pack -> how many contents that is.
    :param damaged: of these, the packs that were found damaged as such: their index, or what no backup needs.
    :param stuck: of these, the packs that stay: a content was moved from there, and is damaged in its new place.
    """

    live: Mapping[str, int] = field(default_factory=dict)
    contents: Mapping[str, int] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()
    stuck: frozenset[str] = frozenset()

    def unused(self, pack: str) -> int:
        """Bytes of a pack that no backup needs."""
        return (pack_size(pack) or 0) - OVERHEAD - self.live[pack]

    def mostly_garbage(self) -> list[str]:
        """The packs to repack, the one with the most garbage first."""
        sizes = {p: pack_size(p) or 0 for p in self.live.keys() - self.stuck}
        found = [p for p, size in sizes.items() if self.unused(p) > 0 and self.unused(p) >= MOSTLY_GARBAGE * size]
        return sorted(found, key=lambda pack: (-self.unused(pack), pack))

    def to_merge(self, *, without: Collection[str] = ()) -> list[str]:
        """The small packs to merge. Each backup leaves one, and a restore needs a request for each of them.

        A full pack has 16 MiB or 20,000 contents. A pack is small while it is less than half full. The tier of a small pack
        is 0 from 1/32 on, 1 from 1/512 on, and so on. Packs of a tier are merged where there are 16 of them or more.

        Bounds, as long as backups add contents and none expires:

        * After a prune no tier has 16 small packs. There are four tiers. So a stream has at most 60 small packs, and 2 packs
          for each 16 MiB and each 20,000 contents.
        * 16 packs of a tier make one of a lower number, or full packs. So a content is written again at most once for
          each tier: once, if its backup wrote 512 KiB or more. What is left behind full packs is less than half a pack, and
          less than what is full from then on. So on average a byte is written again at most one time more than that.

        :param without: packs that stay.
        """
        tiers: dict[int, list[str]] = {}
        for pack in self.live.keys() - self.stuck - frozenset(without):
            if self._filled(pack, pack_size(pack) or 0) < SMALL_BELOW:
                tiers.setdefault(self._tier(pack), []).append(pack)
        return sorted(pack for packs in tiers.values() if len(packs) >= MERGED_FROM for pack in packs)

    def _filled(self, pack: str, size: int) -> float:
        return max(size / PACK_SIZE, self.contents.get(pack, 0) / CONTENTS)

    def _tier(self, pack: str) -> int:
        filled, tier = self._filled(pack, self.live[pack]), 0
        while filled * MERGED_FROM < SMALL_BELOW:
            filled, tier = filled * MERGED_FROM, tier + 1
        return tier


def pack_use(objects: Iterable[str], places: Places, *, damaged: Collection[str] = ()) -> PackUse:
    """See how much of each pack is needed.

    :param objects: paths of objects that backups list.
    :param places: where they are.
    :param damaged: what was found damaged; packs among it were found damaged as such.
    """
    live: dict[str, int] = {}
    contents: dict[str, int] = {}
    stuck: set[str] = set()
    for path in {places.of(path) for path in objects}:
        if (part := part_of(path)) and part.pack in places.there:
            live[part.pack] = live.get(part.pack, 0) + part.length + ROW
            contents[part.pack] = contents.get(part.pack, 0) + 1
            if path in places.moved.paths:  # a second record of the same content would not count
                stuck.add(part.pack)
    return PackUse(live, contents, frozenset(live.keys() & damaged) - stuck, frozenset(stuck))
