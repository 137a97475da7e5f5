"""Whether state grows: the oldest full snapshot on disk beside the newest one, and the watermark at either.

Only snapshots tell the size of the whole state: ``<V>.snapshot`` by its bytes, ``<V>.zip`` by the number of its keys, or
by the bytes of its tables where Spark did not count. A store with deltas or changelogs alone says nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from airflow_ckpt_provider.checkpoint.closure import Closure, StoreClosure
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, parse_offsets
from airflow_ckpt_provider.checkpoint.operators import store_directory
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.rocksdb import key_count, shared_files
from airflow_ckpt_provider.checkpoint.state_files import StateFiles, StateVersion, state_files
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError

#: Stores of one operator that are compared: growth is hardly ever that of a few partitions.
_STORES = 4
#: Below these nobody would call it growth.
_LEAST_SHARE, _LEAST_KEYS, _LEAST_BYTES = 0.1, 10_000, 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Growth:
    """Size of an operator's state at two versions.

    :param stores: how many of its stores could be compared.
    :param all_stores: how many it has.
    :param unit: ``keys`` or ``bytes``.
    :param before: size at ``from_version``.
    :param after: size at ``to_version``.
    :param watermark_ms: the watermark at the newer one; 0 without one.
    :param watermark_stands: whether it was the same at the older one.
    :param read_on: whether sources moved on in between.
    """

    operator: int
    stores: int
    all_stores: int
    unit: str
    before: int
    after: int
    from_version: int
    to_version: int
    watermark_ms: int
    watermark_stands: bool
    read_on: bool

    @property
    def is_substantial(self) -> bool:
        """Whether it is more than the state's breathing."""
        grown = self.after - self.before
        least = _LEAST_KEYS if self.unit == "keys" else _LEAST_BYTES
        return grown >= least and grown >= _LEAST_SHARE * self.before


def growth_of_state(tree: Tree, progress: Progress, closure: Closure) -> list[Growth]:
    """Compare the snapshots of each operator; an operator that has no two of them is left out."""
    by_operator: dict[int, list[StoreClosure]] = {}
    for store in closure.stores:
        by_operator.setdefault(store.operator, []).append(store)
    found = []
    for operator, stores in by_operator.items():
        growth = _growth_of(tree, progress, closure, operator, stores)
        if growth:
            found.append(growth)
    return found


def _growth_of(
    tree: Tree, progress: Progress, closure: Closure, operator: int, stores: list[StoreClosure]
) -> Growth | None:
    largest = sorted(stores, key=lambda s: -sum(file.size for file in s.files))[:_STORES]
    measured = [m for store in largest if (m := _measure(tree, store))]
    units = Counter(unit for unit, *_ in measured)
    if not units:
        return None
    unit = units.most_common(1)[0][0]
    compared = [m for m in measured if m[0] == unit]
    first, last = min(m[1] for m in compared), max(m[3] for m in compared)
    # Version V is the state after batch V-1.
    older = _entry(tree, progress, first - 1)
    if older is None:
        return None
    newer = closure.entry
    watermark = max(newer.watermark_ms, closure.commit.next_watermark_ms)
    return Growth(
        operator=operator,
        stores=len(compared),
        all_stores=len(stores),
        unit=unit,
        before=sum(m[2] for m in compared),
        after=sum(m[4] for m in compared),
        from_version=first,
        to_version=last,
        watermark_ms=watermark,
        watermark_stands=older.watermark_ms == watermark,
        read_on=[s.to_json() for s in older.sources] != [s.to_json() for s in newer.sources],
    )


def _entry(tree: Tree, progress: Progress, batch: int) -> OffsetEntry | None:
    """The log entry of a batch, or of the oldest one after it that is retained."""
    later = [b for b in progress.logged if b >= batch]
    file = tree.get(f"{OFFSETS}/{later[0]}") if later else None
    try:
        return parse_offsets(tree.read(file), batch_id=later[0]) if file else None
    except (CkptError, FileNotFoundError):
        return None


def _measure(tree: Tree, store: StoreClosure) -> tuple[str, int, int, int, int] | None:
    """Unit, oldest version and size, newest version and size."""
    directory = store_directory(store.operator, store.partition, store.store)
    files = state_files(directory, tree.files(directory))
    snapshots = files.snapshots or files.zips
    versions = sorted(v for v in snapshots if v.number <= store.version.number)
    if not versions or versions[0].number == versions[-1].number:
        return None
    try:
        sizes = [_size(tree, files, version) for version in (versions[0], versions[-1])]
    except (CkptError, FileNotFoundError):
        return None
    (unit, before), (same_unit, after) = sizes
    return (unit, versions[0].number, before, versions[-1].number, after) if unit == same_unit else None


def _size(tree: Tree, files: StateFiles, version: StateVersion) -> tuple[str, int]:
    if version in files.snapshots:
        return "bytes", files.snapshots[version].size
    archive = files.zips[version]
    content = tree.read(archive)
    keys = key_count(content, path=archive.path)
    if keys is not None:
        return "keys", keys
    return "bytes", sum(shared.size for shared in shared_files(content, path=archive.path))
