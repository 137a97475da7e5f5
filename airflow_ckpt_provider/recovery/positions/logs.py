"""The logs of a checkpoint as far as they can still be read: of a live one, a backup, or a broken one.

Nothing here fails because a file is damaged: it is left out and named, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.backup.content_checks import read_content
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, parse_offsets
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.checkpoint.seal import parse_seal
from airflow_ckpt_provider.checkpoint.sources import SOURCES
from airflow_ckpt_provider.errors import DamagedBackupError, NotACheckpointError, RefusedError, UnreadableLogError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that could not be read.

    :param path: path in the checkpoint.
    :param reason: why.
    """

    path: str
    reason: str


@dataclass(slots=True)
class ReadableLogs:
    """What can be read of a checkpoint's logs.

    :param origin: the checkpoint or the backup, for people.
    :param query_id: the query's id, ``None`` where it cannot be read.
    :param logged: batches in ``offsets/``, ascending, a seal left out.
    :param committed: batches in ``commits/``, ascending.
    :param sources: directory in ``sources/`` -> names of the files in it.
    :param is_stateful: the query keeps state.
    :param read: returns the content of a file by its path in the checkpoint; ``UnreadableLogError`` if that is damaged in the
        backup.
    :param unread: what could not be read so far.
    :param facts: what the backup recorded besides, as its manifest has it; empty for a checkpoint.
    """

    origin: str
    query_id: str | None
    logged: tuple[int, ...]
    committed: tuple[int, ...]
    sources: dict[str, frozenset[str]]
    is_stateful: bool
    read: Callable[[str], bytes]
    unread: list[Unread] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    _entries: dict[int, OffsetEntry | None] = field(default_factory=dict)

    def entry(self, batch_id: int) -> OffsetEntry | None:
        """The offset log entry of a batch; ``None``, and a note in :attr:`unread`, where it cannot be read."""
        if batch_id not in self._entries:
            self._entries[batch_id] = self._read_entry(batch_id)
        return self._entries[batch_id]

    def entries(self) -> dict[int, OffsetEntry]:
        """All entries that can be read, ascending."""
        in_parallel(self.entry, self.logged)
        return {batch: entry for batch in self.logged if (entry := self._entries[batch])}

    def file(self, path: str) -> bytes | None:
        """Content of a file; ``None``, and a note in :attr:`unread`, where it cannot be read."""
        try:
            return self.read(path)
        except FileNotFoundError:
            self.unread.append(Unread(path, "the file is gone"))
        except UnreadableLogError as e:
            self.unread.append(Unread(path, e.message.removeprefix(f"{path}: ")))
        return None

    def _read_entry(self, batch_id: int) -> OffsetEntry | None:
        path = f"{OFFSETS}/{batch_id}"
        data = self.file(path)
        if data is None:
            return None
        try:
            return parse_offsets(data, batch_id=batch_id)
        except UnreadableLogError as e:
            self.unread.append(Unread(path, e.message.removeprefix(f"{path}: ")))
            return None


def logs_of_checkpoint(location: Location) -> ReadableLogs:
    """Read the logs of a checkpoint, whole or broken.

    :raises NotACheckpointError: there is nothing of a checkpoint here.
    """
    logged, committed = _numbers(location, OFFSETS), _numbers(location, COMMITS)
    directories = location.list(SOURCES).directories
    sources = {name: frozenset(_names(location, f"{SOURCES}/{name}")) for name in directories}
    found = ReadableLogs(
        origin=location.uri,
        query_id=None,
        logged=logged,
        committed=committed,
        sources=sources,
        is_stateful=bool(location.list(STATE).directories),
        read=location.read,
    )
    if not (logged or committed or any(sources.values())):
        try:
            location.read(METADATA_FILE)
        except FileNotFoundError:
            raise NotACheckpointError(
                f"{location} is not a checkpoint: it has no {OFFSETS}/, no {COMMITS}/, no {SOURCES}/ and no "
                f"{METADATA_FILE}",
                hint="give the directory that the query has as checkpointLocation, or a backup of it",
            ) from None
    found.query_id = _query_id(found)
    while found.logged and _is_seal(found, found.logged[-1]):
        found.logged = found.logged[:-1]
    return found


def logs_of_backup(repository: Repository, manifest: Manifest) -> ReadableLogs:
    """Read the logs that a backup holds: those of its restorable batches."""
    entries = {file.path: file for file in manifest.files}

    def read(path: str) -> bytes:
        if path not in entries:
            raise FileNotFoundError(path)
        try:
            return read_content(repository, entries[path])
        except DamagedBackupError as e:
            raise UnreadableLogError(e.findings[0], path=path, hint=e.hint) from e

    def numbers(log: str) -> tuple[int, ...]:
        names = (path.removeprefix(f"{log}/") for path in entries if path.startswith(f"{log}/"))
        return tuple(sorted(n for n in map(batch_id_of, names) if n is not None))

    sources: dict[str, set[str]] = {}
    for path in entries:
        top, _, rest = path.partition("/")
        if top == SOURCES:
            name, _, file = rest.partition("/")
            sources.setdefault(name, set()).add(file)
    return ReadableLogs(
        origin=f"backup {manifest.backup_id} of {manifest.checkpoint}",
        query_id=manifest.query_id,
        logged=numbers(OFFSETS),
        committed=tuple(b for b in numbers(COMMITS) if b in manifest.restorable),
        sources={name: frozenset(files) for name, files in sources.items()},
        is_stateful=any(path.startswith(f"{STATE}/") for path in entries),
        read=read,
        facts=manifest.facts,
    )


def refuse_without_offsets(logs: ReadableLogs) -> RefusedError:
    """Say that no position is left."""
    seen = "; ".join(f"{u.path}: {u.reason}" for u in logs.unread[:3])
    return RefusedError(
        f"{logs.origin}: no entry of {OFFSETS}/ can be read{f' ({seen})' if seen else ''}, so nobody knows how "
        f"far the query got",
        hint="give a backup of it (--repository), or ask by time: the sources' own clocks then decide",
    )


def _numbers(location: Location, log: str) -> tuple[int, ...]:
    return tuple(sorted(n for n in map(batch_id_of, _names(location, log)) if n is not None))


def _names(location: Location, directory: str) -> list[str]:
    return [file.path.rpartition("/")[2] for file in location.list(directory).files]


def _query_id(logs: ReadableLogs) -> str | None:
    data = logs.file(METADATA_FILE)
    try:
        return parse_query_id(data) if data is not None else None
    except UnreadableLogError as e:
        logs.unread.append(Unread(METADATA_FILE, e.message.removeprefix(f"{METADATA_FILE}: ")))
        return None


def _is_seal(logs: ReadableLogs, batch_id: int) -> bool:
    try:
        return parse_seal(logs.read(f"{OFFSETS}/{batch_id}"), batch_id=batch_id) is not None
    except FileNotFoundError:
        return False
