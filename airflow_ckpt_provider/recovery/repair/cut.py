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
from airflow_ckpt_provider.checkpoint.commits import COMMITS, parse_commit
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination
from airflow_ckpt_provider.checkpoint.doctor.leftovers import files_beyond as versions_beyond
from airflow_ckpt_provider.checkpoint.doctor.operators import is_repartition
from airflow_ckpt_provider.checkpoint.doctor.sources import torn_entry
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, parse_offsets
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.sources import SOURCES, is_read, log_ends
from airflow_ckpt_provider.checkpoint.state_files import StateVersion
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.checkpoint.whole_state import damage_of, incomplete_zips
from airflow_ckpt_provider.errors import MissingFileError, NotJudgedError, RefusedError, UnreadableLogError
from airflow_ckpt_provider.recovery.repair.sources import Elsewhere
from airflow_ckpt_provider.recovery.rewind.beyond import files_beyond
from airflow_ckpt_provider.storage.store import StoredFile

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
    :param elsewhere: files that are needed and have to come from elsewhere, each by what it is there.
    :param moved: whether the query starts elsewhere than the logs say now.
    """

    batch_id: int
    exact_replay: bool
    needed: frozenset[str]
    deletes: tuple[str, ...]
    elsewhere: tuple[StoredFile, ...] = ()
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """What came of looking for a cut.

    :param cut: the cut, or ``None``.
    :param failures: batch -> why it is not whole, of those that were tried before.
    :param rejected: files from elsewhere that are damaged themselves, and why.
    """

    cut: Cut | None
    failures: dict[int, str] = field(default_factory=dict)
    rejected: dict[StoredFile, str] = field(default_factory=dict)


def find_cut(
    seen: Examination, elsewhere: list[Elsewhere], *, broken: Collection[str] = (), contents: bool = True
) -> Search:
    """Look for the newest batch that is whole, or can be made so.

    :param seen: the checkpoint.
    :param broken: paths of files that do not count, besides log entries that cannot be read.
    :param elsewhere: files that can be put back; of several with one path the first that is whole.
    :param contents: whether state files are read to see that they are whole; what comes from elsewhere is read in any case.
    :raises NotJudgedError: the compression of state cannot be undone here.
    """
    failures: dict[int, str] = {}
    broken = {*seen.unreadable, *seen.newer, *broken}
    base = seen.tree.without(broken)
    rejected: dict[StoredFile, str] = {}
    for batch_id, exact in _candidates(seen, Offers.of(elsewhere, {}).fill(base)):
        for more in ([], elsewhere) if elsewhere else ([],):
            try:
                cut = _cut(seen, base, Offers.of(more, rejected), batch_id, exact=exact, contents=contents)
            except NotJudgedError:
                raise  # an older batch would take state away that may be whole
            except _NOT_WHOLE as e:
                failures.setdefault(batch_id, e.message)
            else:
                return Search(cut, failures, rejected)
    return Search(None, failures, rejected)


@dataclass(frozen=True, slots=True)
class Offers:
    """Files that can come from elsewhere: of each path the one to take first, then those to take if that is damaged itself.

    :param by_path: path -> what is offered, the best first.
    :param rejected: those that are damaged, and why.
    """

    by_path: dict[str, list[Elsewhere]]
    rejected: dict[StoredFile, str]

    @classmethod
    def of(cls, elsewhere: list[Elsewhere], rejected: dict[StoredFile, str]) -> Offers:
        """Offer files, the best first.

        :param rejected: those that are known to be damaged; what is rejected here is added.
        """
        by_path: dict[str, list[Elsewhere]] = {}
        for file, read in elsewhere:
            if file not in rejected:
                by_path.setdefault(file.path, []).append((file, read))
        return cls(by_path, rejected)

    def fill(self, tree: Tree) -> Tree:
        """The tree with what it lacks."""
        return tree.with_files(offers[0] for path, offers in self.by_path.items() if offers and tree.get(path) is None)

    def has_given(self, file: StoredFile) -> bool:
        """Whether a file of a tree that was filled comes from here."""
        return any(offered == file for offered, _ in self.by_path.get(file.path, ())[:1])

    def reject(self, file: StoredFile, why: str | None) -> None:
        """Take another one for its path from now on, if there is any.

        :param why: what is wrong with it; ``None``: nothing is but that it does not go with the others.
        """
        self.by_path[file.path].pop(0)
        if why:
            self.rejected[file] = why


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


def _cut(seen: Examination, base: Tree, offers: Offers, batch_id: int, *, exact: bool, contents: bool) -> Cut:
    """The cut at one batch.

    :raises MissingFileError, UnreadableLogError, RefusedError: the batch is not whole.
    """
    newest, committed = seen.latest_logged, seen.latest_committed
    end = batch_id + 1 if exact else batch_id
    moved = (newest, committed) != (end if end >= 0 else None, batch_id if batch_id >= 0 else None)
    if batch_id < 0:
        needed = frozenset({METADATA_FILE, *(f"{OFFSETS}/{b}" for b in range(end + 1))})
        tree = offers.fill(base)
        while unreadable := _unreadable(tree, _given(tree, offers, needed)):
            for file in filter(None, map(tree.get, unreadable)):
                offers.reject(file, unreadable[file.path])
            tree = offers.fill(base)
        for path in needed:
            if tree.get(path) is None:
                raise MissingFileError(f"{path} is missing", path=path)
        gone = [f.path for f in seen.tree.below(STATE)] if moved else []
        gone += [f"{OFFSETS}/{b}" for b in seen.logged if b > end]
        return Cut(batch_id, exact, needed, tuple(sorted(gone)), tuple(_given(tree, offers, needed)), moved)
    before = f"{OFFSETS}/{batch_id - 1}"
    # Torn, committed, or of a query with state: no gap that asynchronous progress tracking leaves.
    was_there = batch_id > 0 and (seen.has_state or batch_id - 1 in {*seen.logged, *seen.committed})

    def check_previous(tree: Tree) -> None:
        if not exact and was_there and tree.get(before) is None:
            raise MissingFileError(f"{before} is missing or cannot be read: Spark reads it at its start", path=before)

    check_previous(offers.fill(base))
    closure, tree, damaged, stale = _whole(base, offers, batch_id, exact=exact, contents=contents)
    check_previous(tree)  # what was offered for it may be damaged itself
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
    return Cut(batch_id, exact, needed, tuple(sorted(here - needed)), tuple(_given(tree, offers, needed)), moved)


def _given(tree: Tree, offers: Offers, paths: Collection[str]) -> list[StoredFile]:
    """Those of some files that come from elsewhere."""
    return [file for file in map(tree.get, sorted(paths)) if file is not None and offers.has_given(file)]


def _whole(
    base: Tree, offers: Offers, batch_id: int, *, exact: bool, contents: bool
) -> tuple[Closure, Tree, set[str], set[str]]:
    """The closure of a batch from files that are whole; the damaged ones, and checksum files that are wrong.

    Of what comes from elsewhere a file that is damaged is not taken: the next one that is offered for its path is.
    """
    damaged: set[str] = set()
    stale: set[str] = set()
    while True:
        tree = offers.fill(base.without({*damaged, *stale}))
        worse: dict[str, str | None]
        try:
            closure = resolve_closure(tree, batch_id, replays_next=exact)
        except MissingFileError as e:
            # It is there with another size, or it is what a snapshot needs.
            worse = {e.path: e.message} if tree.get(e.path) else dict.fromkeys(_incomplete(tree, e.path, batch_id))
            if not worse:
                raise
        except UnreadableLogError as e:
            file = tree.get(e.path)
            if not e.path.startswith(f"{STATE}/") and not (file and offers.has_given(file)):
                raise
            worse = {e.path: e.message}
        else:
            worse, wrong = _damage(tree, closure, offers, contents=contents)
            if not worse and wrong <= stale:
                return closure, tree, damaged, stale
            stale |= wrong
        for path, why in worse.items():
            file = tree.get(path)
            if file is not None and offers.has_given(file):
                offers.reject(file, why)
            elif path in damaged:
                raise UnreadableLogError(f"{path}: {why}", path=path)
            else:
                damaged |= {path, f"{path}.crc"}


def _incomplete(tree: Tree, path: str, batch_id: int) -> set[str]:
    """Snapshots that lack a table file, where that is what was missing."""
    for directory in ("/SSTs/", "/logs/"):
        store, found, _ = path.partition(directory)
        if found:
            return set(incomplete_zips(tree, store, StateVersion(batch_id + 1)))
    return set()


def _damage(tree: Tree, closure: Closure, offers: Offers, *, contents: bool) -> tuple[dict[str, str | None], set[str]]:
    """What is damaged of a closure, and why; and checksum files that are wrong."""
    damaged: dict[str, str | None] = {}
    stale: set[str] = set()
    for store in closure.stores:
        files = tuple(file for file in store.files if contents or offers.has_given(file))
        worse, wrong = damage_of(tree, files, closure.entry.state_codec)
        damaged.update(worse)
        stale.update(wrong)
    given = [file for file in closure.files if offers.has_given(file)]
    return {**damaged, **_unreadable(tree, given, log_ends(tree, closure.entry))}, stale


def _unreadable(tree: Tree, files: list[StoredFile], sources: Collection[str] = ()) -> dict[str, str | None]:
    """Which of some files are log entries that cannot be read, and why.

    :param sources: names of the file sources, whose logs are known here.
    """
    logs = {f"{SOURCES}/{source}" for source in sources}
    paths = [file.path for file in files]
    found: dict[str, str | None] = {}
    for file in files:
        directory, _, name = file.path.rpartition("/")
        if directory in (OFFSETS, COMMITS):
            why = unreadable_entry(tree.read(file), file.path)
        elif directory in logs and batch_id_of(name.removesuffix(".compact")) is not None and is_read(file.path, paths):
            why = torn_entry(tree.read(file), path=file.path)
        else:
            continue
        if why is not None:
            found[file.path] = why
    return found


def unreadable_entry(data: bytes, path: str) -> str | None:
    """What is wrong with an entry in ``offsets/`` or ``commits/``, or ``None``.

    :param data: its content.
    :param path: its path.
    """
    log, _, name = path.partition("/")
    batch_id = batch_id_of(name)
    if batch_id is None:
        return None
    try:
        if log == OFFSETS:
            parse_offsets(data, batch_id=batch_id)
        else:
            parse_commit(data, batch_id=batch_id)
    except UnreadableLogError as e:
        return e.message
    return None
