"""The minimal cut: the newest batch for which everything exists, and the fewest files that have to go for Spark to start there.

A batch M is whole when its closure is: its log entries and those before or after it, the source logs up to them, and every file
of its state, undamaged. Then the query can continue in one of two ways. Where ``offsets/<M+1>`` is there and readable, batch M+1
runs again with exactly the end offsets it had, which is the better one; else it is planned again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from airflow_ckpt_provider.checkpoint.closure import Closure, resolve_closure
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination
from airflow_ckpt_provider.checkpoint.doctor.leftovers import files_beyond as versions_beyond
from airflow_ckpt_provider.checkpoint.doctor.operators import is_repartition
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, parse_offsets
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.state_files import StateVersion
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.checkpoint.whole_state import damage_of, incomplete_zips
from airflow_ckpt_provider.errors import MissingFileError, RefusedError, UnreadableLogError
from airflow_ckpt_provider.recovery.repair.sources import Elsewhere
from airflow_ckpt_provider.recovery.rewind.beyond import files_beyond

#: How many batches back are tried at most; Spark keeps about a hundred.
_TRIED = 200
#: Descriptions that Spark writes again where they are missing; it then checks no schema.
_REWRITTEN = re.compile(r"state/\d+/(_metadata/metadata|0/([^/]+/)?_metadata/schema)")
#: What makes a batch no target. A store that fails is another matter.
_NOT_WHOLE = (MissingFileError, UnreadableLogError, RefusedError)


@dataclass(frozen=True, slots=True)
class Cut:
    """A batch to continue after, and what makes it so.

    :param batch_id: the batch; -1 before the first.
    :param exact_replay: batch ``batch_id + 1`` runs again with exactly the end offsets it had.
    :param needed: paths of all that a start then reads.
    :param deletes: files that have to go.
    :param elsewhere: files that are needed and have to come from elsewhere.
    :param moved: whether the query starts elsewhere than the logs say now.
    """

    batch_id: int
    exact_replay: bool
    needed: frozenset[str]
    deletes: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """What came of looking for a cut.

    :param cut: the cut, or ``None``.
    :param failures: batch -> why it is not whole, of those that were tried before.
    """

    cut: Cut | None
    failures: dict[int, str] = field(default_factory=dict)


def find_cut(
    seen: Examination, elsewhere: list[Elsewhere], *, broken: Collection[str] = (), contents: bool = True
) -> Search:
    """Look for the newest batch that is whole, or can be made so.

    :param seen: the checkpoint.
    :param broken: paths of files that do not count, besides log entries that cannot be read.
    :param elsewhere: files that can be put back.
    :param contents: whether state files are read to see that they are whole.
    """
    failures: dict[int, str] = {}
    broken = {*seen.unreadable, *seen.newer, *broken}
    base = seen.tree.without(broken)
    for batch_id, exact in _candidates(seen, _with(base, elsewhere)):
        for more in ([], elsewhere) if elsewhere else ([],):
            try:
                cut = _cut(seen, base, more, batch_id, exact=exact, contents=contents)
            except _NOT_WHOLE as e:
                failures.setdefault(batch_id, e.message)
            else:
                return Search(cut, failures)
    return Search(None, failures)


def _with(tree: Tree, elsewhere: list[Elsewhere]) -> Tree:
    """The tree with what it lacks."""
    return tree.with_files(entry for entry in elsewhere if tree.get(entry[0].path) is None)


def _candidates(seen: Examination, tree: Tree) -> Iterator[tuple[int, bool]]:
    """Batches to continue after, the newest first; each with an exact replay of the next one where that is logged.

    None is newer than the checkpoint itself: what a backup has beyond it was removed on purpose.
    """
    newest = max((*seen.logged, *seen.committed), default=-1)
    logged = {b for b in tree.batches(OFFSETS) if b <= newest}
    committed = {b for b in tree.batches(COMMITS) if b <= newest}
    for batch_id in sorted(logged & committed, reverse=True)[:_TRIED]:
        if batch_id + 1 in logged and not _repartitions(tree, batch_id + 1):
            yield batch_id, True
        yield batch_id, False
    if not seen.committed and newest <= 0:
        if 0 in logged:
            yield -1, True
        yield -1, False


def _repartitions(tree: Tree, batch_id: int) -> bool:
    try:
        return is_repartition(_entry(tree, batch_id), _entry(tree, batch_id - 1))
    except _NOT_WHOLE:
        return False


def _entry(tree: Tree, batch_id: int) -> OffsetEntry:
    file = tree.get(f"{OFFSETS}/{batch_id}")
    return parse_offsets(tree.read(file) if file else b"", batch_id=batch_id)


def _cut(
    seen: Examination, base: Tree, elsewhere: list[Elsewhere], batch_id: int, *, exact: bool, contents: bool
) -> Cut:
    """The cut at one batch.

    :raises MissingFileError, UnreadableLogError, RefusedError: the batch is not whole.
    """
    newest, committed = seen.latest_logged, seen.latest_committed
    end = batch_id + 1 if exact else batch_id
    moved = (newest, committed) != (end if end >= 0 else None, batch_id if batch_id >= 0 else None)
    if batch_id < 0:
        needed = frozenset({METADATA_FILE, *(f"{OFFSETS}/{b}" for b in range(end + 1))})
        tree = _with(base, elsewhere)
        for path in needed:
            if tree.get(path) is None:
                raise MissingFileError(f"{path} is missing", path=path)
        gone = [f.path for f in seen.tree.below(STATE)] if moved else []
        gone += [f"{OFFSETS}/{b}" for b in seen.logged if b > end]
        missing = sorted(path for path in needed if base.get(path) is None)
        return Cut(batch_id, exact, needed, tuple(sorted(gone)), tuple(missing), moved)
    before = f"{OFFSETS}/{batch_id - 1}"
    # Torn, committed, or of a query with state: no gap that asynchronous progress tracking leaves.
    was_there = batch_id > 0 and (seen.has_state or batch_id - 1 in {*seen.logged, *seen.committed})
    if not exact and was_there and _with(base, elsewhere).get(before) is None:
        raise MissingFileError(f"{before} is missing or cannot be read: Spark reads it at its start", path=before)
    closure, tree, damaged, stale = _whole(base, elsewhere, batch_id, exact=exact, contents=contents)
    needed = frozenset(file.path for file in closure.files) - stale
    if moved:
        gone = list(files_beyond(seen.tree, closure, _entry(tree, end)))
    else:
        gone = [file.path for _, file in versions_beyond(seen.tree, end + 1)]
    # A snapshot that is not whole would be chosen, a description be read; what is missing in a chain is not.
    gone += [path for path in damaged if path.endswith((".zip", ".snapshot")) or _REWRITTEN.fullmatch(path)]
    gone += [f"{path}.crc" for path in gone]
    seal = seen.seal.path if seen.seal else None
    here = {path for path in {*gone, *stale} if path != seal and seen.tree.get(path) is not None}
    missing = sorted(path for path in needed if base.get(path) is None or path in damaged)
    return Cut(batch_id, exact, needed, tuple(sorted(here - needed)), tuple(missing), moved)


def _whole(
    base: Tree, elsewhere: list[Elsewhere], batch_id: int, *, exact: bool, contents: bool
) -> tuple[Closure, Tree, set[str], set[str]]:
    """The closure of a batch from files that are whole; the damaged ones, and checksum files that are wrong."""
    damaged: set[str] = set()
    stale: set[str] = set()
    while True:
        tree = _with(base.without({*damaged, *stale}), elsewhere)
        try:
            closure = resolve_closure(tree, batch_id, replays_next=exact)
        except MissingFileError as e:
            worse = _incomplete(tree, e.path, batch_id) - damaged
            if not worse:
                raise
        except UnreadableLogError as e:
            if not e.path.startswith(f"{STATE}/") or e.path in damaged:
                raise
            worse = {e.path}
        else:
            worse, wrong = _damage(tree, closure) if contents else (set(), set())
            worse -= damaged
            if not worse and wrong <= stale:
                return closure, tree, damaged, stale
            stale |= wrong
        damaged |= worse | {f"{path}.crc" for path in worse}


def _incomplete(tree: Tree, path: str, batch_id: int) -> set[str]:
    """Snapshots that lack a table file, where that is what was missing."""
    for directory in ("/SSTs/", "/logs/"):
        store, found, _ = path.partition(directory)
        if found:
            return set(incomplete_zips(tree, store, StateVersion(batch_id + 1)))
    return set()


def _damage(tree: Tree, closure: Closure) -> tuple[set[str], set[str]]:
    damaged: set[str] = set()
    stale: set[str] = set()
    for store in closure.stores:
        worse, wrong = damage_of(tree, tuple(store.files), closure.entry.state_codec)
        damaged.update(worse)
        stale.update(wrong)
    return damaged, stale
