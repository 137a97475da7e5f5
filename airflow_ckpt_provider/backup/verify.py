"""Is a backup what its manifest says? Structure always; contents whole, in turn, or by sample."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import WORKERS, Meter, OnProgress, in_parallel
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.errors import DamagedBackupError, RefusedError, StorageError
from airflow_ckpt_provider.storage.store import StoredFile


@dataclass(frozen=True, slots=True)
class ReadData:
    """Which part of the contents to read.

    :param part: 1-based number of a part, of ``parts``; each object is always in the same part, so that n runs read all.
    :param percent: share of a random sample; ``None`` for a part.
    """

    part: int = 1
    parts: int = 1
    percent: float | None = None

    @classmethod
    def parse(cls, text: str) -> ReadData:
        """Understand ``all``, ``n/t`` (the n-th of t parts) or ``x%`` (a random sample).

        :raises RefusedError: it is none of them.
        """
        if text in ("all", "100%"):
            return cls()
        if match := re.fullmatch(r"(\d+)/(\d+)", text):
            part, parts = int(match[1]), int(match[2])
            if 1 <= part <= parts:
                return cls(part, parts)
        if (match := re.fullmatch(r"(\d+(?:\.\d+)?)%", text)) and 0 < float(match[1]) <= 100:
            return cls(percent=float(match[1]))
        raise RefusedError(f"cannot read {text!r} of the data", hint="use all, n/t with 1 <= n <= t, or x%")

    def choose(self, entries: Sequence[FileEntry]) -> Iterable[FileEntry]:
        """The entries to read; of a backup with files, at least one."""
        if self.percent is not None:
            count = max(1, round(len(entries) * self.percent / 100)) if entries else 0
            return (entries[at] for at in sorted(random.sample(range(len(entries)), count)))
        return (
            e
            for e in entries
            if self.parts == 1 or int(hashlib.sha256(e.object.encode()).hexdigest(), 16) % self.parts == self.part - 1
        )


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with one file of a backup.

    :param path: its path in the checkpoint.
    :param object: its path in the repository.
    :param problem: ``missing``, ``size``, ``content`` or ``unreadable``.
    :param message: the same in words.
    """

    path: str
    object: str
    problem: str
    message: str

    def to_json(self) -> dict[str, str]:
        """The finding as plain JSON."""
        return {"path": self.path, "object": self.object, "problem": self.problem, "message": self.message}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verifying found.

    :param files: files of the backup, all of whose presence and size was checked.
    :param read_files: files whose content was read.
    """

    backup_id: str
    name: str
    files: int
    bytes: int
    read_files: int
    read_bytes: int
    findings: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {
            "backup_id": self.backup_id,
            "name": self.name,
            "ok": self.ok,
            "files": self.files,
            "bytes": self.bytes,
            "read_files": self.read_files,
            "read_bytes": self.read_bytes,
            "findings": [finding.to_json() for finding in self.findings],
        }


def verify_backup(
    repository: Repository,
    manifest: Manifest,
    *,
    read_data: ReadData | None = None,
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Check a backup.

    :param repository: the repository.
    :param manifest: the backup; its own hash was checked when it was read.
    :param read_data: which contents to read and hash; ``None`` for none.
    :param workers: requests under way at once.
    :param on_progress: called after each file that was read.
    """
    entries = manifest.files
    structure = check_structure(repository, manifest, entries)
    damaged = {damage.path for damage in structure}
    chosen = FileTable(
        manifest.name, (e for e in (read_data.choose(entries) if read_data else ()) if e.path not in damaged)
    )
    content = check_contents(repository, chosen, workers=workers, on_progress=on_progress)
    return VerifyReport(
        backup_id=manifest.backup_id,
        name=manifest.name,
        files=len(entries),
        bytes=manifest.bytes,
        read_files=len(chosen),
        read_bytes=chosen.bytes,
        findings=(*structure, *content),
    )


def check_structure(
    repository: Repository,
    manifest: Manifest,
    entries: Sequence[FileEntry],
    *,
    listed: Mapping[str, StoredFile] | None = None,
) -> list[Damage]:
    """See that every object is there, with its size and the checksum that its store knows.

    :param listed: the objects of the stream; ``None``: one listing.
    """
    if listed is None:
        listed = repository.location.walk(f"objects/{manifest.name}")
    logs = [path for b in manifest.restorable for path in (METADATA_FILE, f"{OFFSETS}/{b}", f"{COMMITS}/{b}")]
    absent, damaged = set(logs), []
    for entry in entries:
        absent.discard(entry.path)
        if damage := _structure_of(entry, listed):
            damaged.append(damage)
    if absent:
        absent.difference_update(entry.path for entry in manifest.files)
    return [*(Damage(p, "", "missing", f"{p} is not in the backup at all") for p in logs if p in absent), *damaged]


def check_contents(
    repository: Repository,
    entries: Sequence[FileEntry],
    *,
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
) -> list[Damage]:
    """Read objects and compare them with what was stored."""
    meter = Meter(on_progress, files=len(entries), size=sum(e.size for e in entries))

    def check(entry: FileEntry) -> Damage | None:
        try:
            found = content_damage(entry, repository.location.read(entry.object))
        except FileNotFoundError:
            found = _damage(entry, "missing", "is missing")
        except StorageError as e:
            found = _damage(entry, "unreadable", f"cannot be read: {e.message}")
        meter.add(entry.size)
        return found

    return [damage for damage in in_parallel(check, entries, workers=workers) if damage]


def content_damage(entry: FileEntry, content: bytes) -> Damage | None:
    """Compare a content with its entry; ``None`` if it is right."""
    if len(content) != entry.size:
        return _damage(entry, "size", f"has {len(content)} bytes instead of {entry.size}")
    if entry.sha256 is not None:
        right = hashlib.sha256(content).hexdigest() == entry.sha256
    else:
        right = _matches_store_checksum(entry.checksum or "", content)
    return None if right else _damage(entry, "content", "has another content than was backed up")


def read_whole(repository: Repository, entry: FileEntry, *, right_when: str) -> bytes:
    """Read what a backup has of a file, for a plan whose objects were found whole before its first change.

    :param right_when: when that was, in words.
    :raises StorageError: it was damaged since.
    """
    content = repository.location.read(entry.object)
    if damage := content_damage(entry, content):
        raise StorageError(
            f"{damage.message}; it was right when {right_when}",
            hint="the seal stays; mend the store, then run the same command again",
        )
    return content


def _matches_store_checksum(checksum: str, content: bytes) -> bool:
    """Compare with the store's checksum where that is a hash of the content.

    An ETag of 32 hexadecimal digits is the MD5 of an object written in one part and not encrypted with a key service. Other
    ETags cannot be computed here; that they are unchanged was checked with the structure, and is the store's word.
    """
    kind, _, value = checksum.partition(":")
    md5 = hashlib.md5(content, usedforsecurity=False)
    if kind == "etag" and re.fullmatch(r"[0-9a-f]{32}", value):
        return md5.hexdigest() == value
    if kind == "md5":
        return md5.hexdigest() == value
    if kind == "sha256":
        return hashlib.sha256(content).hexdigest() == value
    return True


def _structure_of(entry: FileEntry, listed: Mapping[str, StoredFile]) -> Damage | None:
    file = listed.get(entry.object)
    if file is None:
        return _damage(entry, "missing", "is missing")
    if file.size != entry.size:
        return _damage(entry, "size", f"has {file.size} bytes instead of {entry.size}")
    if entry.checksum is not None and file.checksum != entry.checksum:
        return _damage(entry, "content", f"has another content than was backed up ({file.checksum})")
    return None


def _damage(entry: FileEntry, problem: str, what: str) -> Damage:
    return Damage(entry.path, entry.object, problem, f"{entry.path}: its object {entry.object} {what}")


def refuse_damage(manifest: Manifest, problems: list[str]) -> None:
    """Refuse a backup in which something is wrong.

    :param problems: one line for each damaged file; none: nothing is refused.
    """
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise DamagedBackupError(
            f"backup {manifest.backup_id} of {manifest.name} is damaged: {problems[0]}{more}; nothing was changed",
            findings=tuple(problems),
            hint="choose another backup; `airflow-ckpt verify --read-data` tells which are whole",
        )
