"""The manifest: one JSON document that says all about a backup. A backup exists when its manifest does.

Version 1 has all files as JSON objects (``file_list``), which a person can read. Version 2 has them as a
:mod:`table <airflow_ckpt_provider.backup.file_table>` (``file_table``), a fifth of the size, and is else the same; it is
written for backups of many files. Version 3 is one or the other with contents in packs
(:mod:`~airflow_ckpt_provider.storage.packs`). Earlier releases have to refuse it: they would take packs for objects
that nobody lists.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import chain
from typing import Any

from airflow_ckpt_provider.backup.file_entry import OBJECTS, FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable, ReadLater
from airflow_ckpt_provider.backup.packed import Packed
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, RepositoryError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.units import zoned_time

_FORMAT = "airflow-ckpt-manifest"
#: Newest version that is written, and versions read.
VERSION = 3
_READABLE = frozenset({1, 2, 3})
#: From so many files on version 2 is written.
COMPACT_FROM = 1000
_ID_TIME = "%Y%m%dT%H%M%SZ"
#: What comes last in a document: the hash of it without this and with a brace.
_HASH = re.compile(rb',"sha256":"([0-9a-f]{64})"\}')
_HASH_LENGTH = 77
#: What comes before and after a table, which is the last of a document's values before its hash.
_TABLE, _END_OF_TABLE = b',"file_table":"', b'"'
#: By how much the clock of whoever took a backup may be ahead of ours.
CLOCKS_DIFFER = timedelta(minutes=5)
#: Among the facts: when the position was read, with a time zone. All that was committed until then is in the backup. Manifests of
#: earlier versions do not have it.
PINNED_AT = "pinned_at"
#: Of what is used in a document without a further look.
_TYPES: dict[str, type] = {
    "batch_id": int,
    "restorable_batches": list,
    "facts": dict,
    "tags": dict,
    **dict.fromkeys(("backup_id", "checkpoint", "query_id", "reason", "made_by", "tool_version"), str),
}
#: Of the facts.
_FACTS: dict[str, type] = {
    "batch_times": dict,
    "start_offsets": list,
    "end_offsets": list,
    "watermark_ms": int,
    "operators": list,
    "sources": dict,
    PINNED_AT: str,
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything known of a backup without reading its objects.

    :param backup_id: sorts after those of all earlier backups of the stream, and names the batch, such as
        ``20261121T083000Z-b000223``. Its time is that of the backup, unless an earlier one has a later id.
    :param name: name of the stream.
    :param created: when the backup was finished, in UTC.
    :param checkpoint: URI of the checkpoint it was taken from.
    :param query_id: the streaming query's id.
    :param batch_id: the batch that was pinned: the newest that can be restored.
    :param restorable: all batches that can be restored, ascending.
    :param files: its files.
    :param facts: what the log entries said: versions, times, offsets, watermark, operators.
    :param tags: words of whoever made it.
    :param reason: why it was made.
    :param made_by: the run or user that made it.
    :param tool_version: version of this package.
    :param claim: id of the claim it was made under; see :mod:`~airflow_ckpt_provider.backup.claims`.
    :param query_ids: the ids that the stream's query has had, oldest first; the last is ``query_id``. Empty in manifests of
        version 0.1.0, which knew no chain.
    :param sequence: one more than that of the newest backup that could be read; 1 in the first. 0 in manifests of version 0.1.0,
        which knew none.
    """

    backup_id: str
    name: str
    created: datetime
    checkpoint: str
    query_id: str
    batch_id: int
    restorable: tuple[int, ...]
    files: Sequence[FileEntry]
    facts: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    made_by: str = ""
    tool_version: str = ""
    claim: str = ""
    query_ids: tuple[str, ...] = ()
    sequence: int = 0

    @property
    def lives(self) -> tuple[str, ...]:
        """The ids that the stream's query has had as far as this backup knows, oldest first; the last is its own."""
        return self.query_ids or (self.query_id,)

    @property
    def bytes(self) -> int:
        """Total size of its files."""
        return self.files.bytes if isinstance(self.files, FileTable) else sum(file.size for file in self.files)

    @property
    def pinned_at(self) -> datetime | None:
        """When its position was read: all that was committed until then is in it. ``None``: of an earlier version."""
        return zoned_time(self.facts[PINNED_AT]) if PINNED_AT in self.facts else None

    @property
    def complete_at(self) -> datetime:
        """When all of its batches were committed at the latest: the end of the backup where it does not say :attr:`pinned_at`."""
        return self.pinned_at or self.created

    @property
    def path(self) -> str:
        """Path in the repository."""
        return manifest_path(self.name, self.backup_id)

    def files_of(self, batch_id: int) -> Sequence[FileEntry]:
        """Files that a restore of one batch needs.

        :raises RefusedError: the batch cannot be restored from this backup.
        """
        if batch_id not in self.restorable:
            span = ", ".join(map(str, self.restorable))
            raise RefusedError(
                f"backup {self.backup_id} cannot restore batch {batch_id}", hint=f"it can restore: {span}"
            )
        if len(self.restorable) == 1:
            return self.files
        needed = (f for f in self.files if f.batches is None or batch_id in f.batches)
        return FileTable(self.name, needed) if isinstance(self.files, FileTable) else tuple(needed)

    def summary(self) -> dict[str, Any]:
        """The backup in a few plain JSON values."""
        return {
            "backup_id": self.backup_id,
            "name": self.name,
            "batch_id": self.batch_id,
            "restorable_batches": list(self.restorable),
            "created": self.created.isoformat(),
            "checkpoint": self.checkpoint,
            "query_id": self.query_id,
            "files": len(self.files),
            "bytes": self.bytes,
            "tags": dict(self.tags),
            "reason": self.reason,
            "made_by": self.made_by,
            "sequence": self.sequence,
        }

    def to_document(self) -> builtins.bytes:
        """The document, with a hash over itself."""
        compact = len(self.files) >= COMPACT_FROM
        content: dict[str, Any] = {
            "format": _FORMAT,
            "version": VERSION if has_packed(self.files) else 2 if compact else 1,
            **self.summary(),
            "facts": dict(self.facts),
            "tool_version": self.tool_version,
            "claim": self.claim,
            **({"query_ids": list(self.query_ids)} if self.query_ids else {}),
        }
        if not self.sequence:
            del content["sequence"]
        if not compact:
            content["file_list"] = [file.to_json() for file in self.files]
        begin = json.dumps(content, separators=(",", ":")).encode()[:-1]
        document, sha256 = BytesIO(), hashlib.sha256()
        for piece in chain((begin,), self._table() if compact else ()):
            document.write(piece)
            sha256.update(piece)
        sha256.update(b"}")
        document.write(f',"sha256":"{sha256.hexdigest()}"}}'.encode())
        return document.getvalue()  # the very bytes, no copy of them: a million files take a hundred megabytes

    def _table(self) -> Iterator[builtins.bytes]:
        """What a document of many files has in the place of ``file_list``, in pieces."""
        files = self.files
        if not isinstance(files, FileTable) or files.name != self.name:
            files = FileTable(self.name, files)
        yield _TABLE
        yield from files.write()
        yield _END_OF_TABLE


def parse_manifest(data: bytes, *, path: str, read_later: ReadLater | None = None) -> Manifest:
    """Read a manifest.

    :param data: the document.
    :param path: where it is, for messages.
    :param read_later: leave a table of files alone; this is asked for them when somebody wants one. Only then can it turn
        out damaged, which takes a wrong table under the right hash.
    :raises DamagedBackupError: it is cut off or was changed since it was written; or it was forged: it is that of another backup,
        or names a place outside a checkpoint or the objects of its stream.
    :raises RepositoryError: a newer version of this package wrote it.
    """

    def wrong(what: str) -> DamagedBackupError:
        return DamagedBackupError(
            f"manifest {path} is damaged{what}",
            findings=(path,),
            hint="this backup cannot be used; choose another one (`airflow-ckpt backups REPOSITORY`)",
        )

    damaged = wrong(": it is not what was written")
    length = max(0, len(data) - _HASH_LENGTH)
    end = _HASH.fullmatch(data, length)
    sha256 = hashlib.sha256(memoryview(data)[:length])
    sha256.update(b"}")
    if end is None or sha256.hexdigest().encode() != end[1]:
        raise damaged
    try:
        content, table = _taken_apart(data, length)
    except ValueError as e:
        raise damaged from e
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise damaged
    if type(content.get("version")) is not int:
        raise wrong(f" or forged, though its hash is right: its version is {content.get('version')!r}")
    if content["version"] not in _READABLE:
        raise RepositoryError(
            f"manifest {path} has format version {content['version']}, known here: {VERSION}",
            hint="upgrade airflow-ckpt-provider",
        )
    try:
        return _manifest(content, table, path, read_later)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        why = str(e) if type(e) is ValueError else f"{type(e).__name__}: {e}"
        raise wrong(f" or forged, though its hash is right: {why}") from e


def _check_facts(facts: dict[str, Any]) -> None:
    """Refuse facts of another kind than a backup writes, of those that are used."""
    for key, kind in _FACTS.items():
        if key in facts and type(facts[key]) is not kind:
            raise ValueError(f"its {key} are {facts[key]!r:.80}")
    for time in facts.get("batch_times", {}).values():
        zoned_time(time)
    if PINNED_AT in facts:
        zoned_time(facts[PINNED_AT])
    for key in ("start_offsets", "end_offsets"):
        for source in facts.get(key, ()):
            if not isinstance(source, dict) or not {"name", "index"} & source.keys():
                raise ValueError(f"one of its {key} is {source!r:.80}")
    for operator in facts.get("operators", ()):
        if not isinstance(operator, dict) or type(operator.get("id")) is not int:
            raise ValueError(f"one of its operators is {operator!r:.80}")
    for name, source in facts.get("sources", {}).items():
        if not isinstance(source, dict):
            raise ValueError(f"its source {name!r:.80} is {source!r:.80}")


def _manifest(content: dict[str, Any], table: memoryview | None, path: str, read_later: ReadLater | None) -> Manifest:
    """Make the manifest of a document; whatever is wrong with it is one of Python's own errors."""
    if (whose := manifest_path(content["name"], content["backup_id"])) != path:
        raise ValueError(f"it is the manifest of {whose!r}")
    for key, kind in _TYPES.items():
        if type(content[key]) is not kind:
            raise ValueError(f"its {key} is {content[key]!r}")
    if type(content.get("claim", "")) is not str:
        raise ValueError(f"its claim is {content['claim']!r}")
    os.fsencode(content["checkpoint"])  # half a character names no place
    created = zoned_time(content["created"])
    _check_facts(content["facts"])
    if not all(type(batch) is int for batch in content["restorable_batches"]):
        raise ValueError(f"its restorable_batches are {content['restorable_batches']!r}")
    return Manifest(
        backup_id=content["backup_id"],
        name=content["name"],
        created=created,
        checkpoint=content["checkpoint"],
        query_id=content["query_id"],
        batch_id=content["batch_id"],
        restorable=tuple(content["restorable_batches"]),
        files=_files(content, table, read_later),
        facts=content["facts"],
        tags=content["tags"],
        reason=content["reason"],
        made_by=content["made_by"],
        tool_version=content["tool_version"],
        claim=content.get("claim", ""),
        query_ids=_query_ids(content),
        sequence=_sequence(content),
    )


def _query_ids(content: dict[str, Any]) -> tuple[str, ...]:
    """The chain of ids; empty where the document says none, as those of version 0.1.0."""
    ids = tuple(content.get("query_ids", ()))
    if ids and (
        not all(isinstance(i, str) and i for i in ids) or len({*ids}) < len(ids) or ids[-1] != content["query_id"]
    ):
        raise ValueError("the chain of query ids does not end with the query's id")
    return ids


def _sequence(content: dict[str, Any]) -> int:
    """The sequence number; 0 where the document says none, as those of version 0.1.0."""
    sequence = content.get("sequence", 0)
    if type(sequence) is not int or ("sequence" in content and not 0 < sequence < 2**53):
        raise ValueError(f"its sequence is {sequence!r}")
    return sequence


def _taken_apart(data: bytes, length: int) -> tuple[Any, memoryview | None]:
    """The document without its table, and the table, which is not copied; all but the hash ends at ``length``."""
    begins = data.rfind(_TABLE, 0, length)
    table = memoryview(data)[begins + len(_TABLE) : length - 1]
    # A tag may be called file_table, too; but what follows it is more than one text.
    if begins < 0 or data.find(b'"', begins + len(_TABLE), length) != length - 1:
        return load_json(data[:length] + b"}"), None
    return load_json(data[:begins] + b"}"), table


def _files(content: dict[str, Any], table: memoryview | None, read_later: ReadLater | None) -> Sequence[FileEntry]:
    version, packed = content["version"], Packed(allowed=content["version"] == VERSION)
    if version == 1 or (version == VERSION and table is None and "file_list" in content):
        objects = f"{OBJECTS}/{content['name']}"
        listed = tuple(FileEntry.from_json(value).checked(objects) for value in content["file_list"])
        for file in listed:
            packed.add(file)
        packed.check()
        return listed
    name, length, size = content["name"], content["files"], content["bytes"]
    for key, value in (("files", length), ("bytes", size)):
        if type(value) is not int or value < 0:
            raise ValueError(f"its {key} is {value!r}")
    if read_later:
        return FileTable.later(read_later, name=name, length=length, size=size)
    whole = table if table is not None else content["file_table"].encode()
    files = FileTable.read(whole, name=name, length=length, packed=packed)
    packed.check()
    if (len(files), files.bytes) != (length, size):
        raise ValueError("the table does not hold what the manifest says")
    return files


def has_packed(files: Sequence[FileEntry]) -> bool:
    """Whether contents of some files lie in packs."""
    if isinstance(files, FileTable):
        files.read_now()
        return files.has_packed
    return any(file.is_packed for file in files)


def new_backup_id(now: datetime, batch_id: int) -> str:
    """Make an id that sorts by time and names the batch."""
    return f"{now.astimezone(UTC).strftime(_ID_TIME)}-b{batch_id:06d}"


def batch_in_id(backup_id: str) -> int | None:
    """The batch that the id of a backup names; ``None``: it names none, as no backup of this package does."""
    digits = backup_id.rpartition("-b")[2]
    return int(digits) if digits != backup_id and digits.isascii() and digits.isdecimal() else None


def next_backup_id(manifest: Manifest, *, last: str, repository: object) -> str:
    """Make the id of a new backup, which sorts after the last one: its time is moved where that id is of a clock that is ahead.

    :param manifest: of the new backup.
    :param last: the last id of the stream; empty where it has none.
    :param repository: where that is, for messages.
    :raises RefusedError: no id sorts after that one.
    """
    time = manifest.created.astimezone(UTC)
    with suppress(ValueError, OverflowError):
        there = datetime.strptime(last.partition("-")[0], _ID_TIME).replace(tzinfo=UTC)
        time = max(time, there)
        if new_backup_id(time, manifest.batch_id) <= last:
            time = there + timedelta(seconds=1)
    if (made := new_backup_id(time, manifest.batch_id)) <= last:
        raise RefusedError(
            f"no new backup can follow {manifest_path(manifest.name, last)} in {repository}: nothing sorts after its id, so the "
            "new backup would not be the latest",
            hint="no backup has made that file: find out who wrote it, then move it out of the repository",
        )
    return made


def manifest_path(name: str, backup_id: str) -> str:
    """Path of a manifest in a repository."""
    return f"backups/{name}/{backup_id}.json"
