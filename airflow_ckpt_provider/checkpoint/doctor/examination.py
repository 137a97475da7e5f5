"""What the checks read: one sweep of listings, and the log entries read from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from airflow_ckpt_provider.checkpoint.commits import COMMITS, CommitEntry, parse_commit
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, parse_offsets
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.parallel import in_parallel

Entry = TypeVar("Entry")

#: How many entries of each log are read, the newest ones: Spark keeps about a hundred.
NEWEST = 200
_READERS = 16
_VERSION = re.compile(rb"\x00?v(\d{1,9})(\n|$)")
#: Newest version known of each log.
_KNOWN_VERSIONS = {OFFSETS: 2, COMMITS: 3}


@dataclass(frozen=True, slots=True)
class Examination:
    """A checkpoint at one moment.

    :param tree: its files.
    :param logged: batch ids in ``offsets/``, ascending, a seal left out.
    :param committed: batch ids in ``commits/``, ascending.
    :param seal: a seal it carries.
    :param offsets: readable offset log entries, the newest ones.
    :param commits: readable commit log entries, the newest ones.
    :param unreadable: path -> why a log entry cannot be read.
    :param newer: path -> log version, of entries that a newer Spark wrote.
    :param contents: whether state files may be read to look for damage.
    """

    tree: Tree
    logged: tuple[int, ...]
    committed: tuple[int, ...]
    seal: Seal | None
    offsets: dict[int, OffsetEntry]
    commits: dict[int, CommitEntry]
    unreadable: dict[str, UnreadableLogError]
    newer: dict[str, int]
    contents: bool = True

    @property
    def latest_logged(self) -> int | None:
        """Newest batch with an offset log entry, readable or not."""
        return self.logged[-1] if self.logged else None

    @property
    def latest_committed(self) -> int | None:
        """Newest batch with a commit log entry, readable or not."""
        return self.committed[-1] if self.committed else None

    @property
    def newest(self) -> OffsetEntry | None:
        """Newest readable offset log entry."""
        return self.offsets[max(self.offsets)] if self.offsets else None

    @property
    def is_continuous(self) -> bool:
        """Whether the query runs in continuous mode."""
        return self.newest is not None and self.newest.is_continuous

    @property
    def has_state(self) -> bool:
        """Whether there is state; asynchronous progress tracking, where gaps are legal, allows none."""
        return bool(self.tree.numbered_directories(STATE))

    @property
    def has_gaps(self) -> bool:
        """Whether batches are missing from both logs, which asynchronous progress tracking leaves out."""
        both = set(self.logged) | set(self.committed)
        return bool(both) and not self.has_state and len(both) < max(both) - min(both) + 1

    @property
    def base(self) -> int | None:
        """The batch whose state the next start reads: the one before the batch that Spark will run.

        ``None`` where that is the first batch, or where the logs do not show.
        """
        newest = max(self.offsets, default=None)
        if newest is None or self.is_continuous:
            return None
        committed = max(self.commits, default=-1)
        base = newest if newest == committed else newest - 1
        return base if base >= 0 else None


def examine(tree: Tree, *, contents: bool = True) -> Examination:
    """Read the logs of a checkpoint.

    :param tree: its files.
    :param contents: whether state files may be read to look for damage.
    :raises FileNotFoundError: a file vanished since it was listed: list again.
    """
    logged, seal = _without_seal(tree, tree.batches(OFFSETS))
    committed = tree.batches(COMMITS)
    unreadable: dict[str, UnreadableLogError] = {}
    newer: dict[str, int] = {}

    def entries(log: str, batches: tuple[int, ...], parse: Callable[..., Entry]) -> dict[int, Entry]:
        def one(batch: int) -> Entry | None:
            path = f"{log}/{batch}"
            file = tree.get(path)
            data = tree.read(file) if file else b""
            try:
                return parse(data, batch_id=batch)
            except UnreadableLogError as e:
                version = _VERSION.match(data)
                if version and int(version[1]) > _KNOWN_VERSIONS[log]:
                    newer[path] = int(version[1])
                else:
                    unreadable[path] = e
                return None

        newest = batches[-NEWEST:]
        found = zip(newest, in_parallel(one, newest, workers=_READERS), strict=True)
        return {batch: entry for batch, entry in found if entry is not None}

    return Examination(
        tree=tree,
        logged=logged,
        committed=committed,
        seal=seal,
        offsets=entries(OFFSETS, logged, partial(parse_offsets)),
        commits=entries(COMMITS, committed, partial(parse_commit)),
        unreadable=unreadable,
        newer=newer,
        contents=contents,
    )


def _without_seal(tree: Tree, logged: tuple[int, ...]) -> tuple[tuple[int, ...], Seal | None]:
    seal = None
    while logged:
        file = tree.get(f"{OFFSETS}/{logged[-1]}")
        mark = parse_seal(tree.read(file), batch_id=logged[-1]) if file else None
        if mark is None:
            break
        seal, logged = seal or mark, logged[:-1]
    return logged, seal


def batch_of(path: str) -> int | None:
    """The batch that a path in a log stands for."""
    return batch_id_of(path.rpartition("/")[2])
