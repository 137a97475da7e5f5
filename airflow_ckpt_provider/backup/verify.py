"""Is a backup what its manifest says? Structure always; contents whole, in turn, the oldest reads first, or by sample."""

from __future__ import annotations

import hashlib
import heapq
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider.backup.content_checks import (
    Contents,
    check_packs,
    is_computable,
    structure_damage,
    whole_by_other_names,
)
from airflow_ckpt_provider.backup.copy_progress import OnProgress
from airflow_ckpt_provider.backup.damaged import Damage, DamagedObjects, read_damaged
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.file_table import FileTable, kept_in_memory
from airflow_ckpt_provider.backup.manifest import Manifest, has_packed
from airflow_ckpt_provider.backup.pack_reads import MovedContents
from airflow_ckpt_provider.backup.places import misplaced
from airflow_ckpt_provider.backup.read_engine import ReadEngine, ThreadReads
from airflow_ckpt_provider.backup.reads import Reads, read_reads
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.errors import DamagedBackupError, NoSuchBackupError, RefusedError, StorageError
from airflow_ckpt_provider.parallel import WORKERS, side_by_side
from airflow_ckpt_provider.storage.packs import Moved, file_of, read_moved
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import format_time

#: Says when an object was last read, or else written: seconds since the epoch, 0 where neither is known.
LastRead = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class ReadData:
    """Which part of the contents to read.

    :param part: 1-based number of a part, of ``parts``. Each object is always in the same part, so that n runs read all; but
        the first of several parts is, as soon as anything was read, the part that was read longest ago.
    :param percent: share of a random sample; ``None`` for a part.
    """

    part: int = 1
    parts: int = 1
    percent: float | None = None

    @classmethod
    def parse(cls, text: str) -> ReadData:
        """Understand ``all``, ``1/t`` (the t-th part that was read longest ago), ``n/t`` (the n-th of t parts) or ``x%``
        (a random sample).

        :raises RefusedError: it is none of them.
        """
        if text in ("all", "100%"):
            return cls()
        if match := re.fullmatch(r"(\d{1,6})/(\d{1,6})", text):
            part, parts = int(match[1]), int(match[2])
            if 1 <= part <= parts:
                return cls(part, parts)
        if (match := re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?)%", text)) and 0 < float(match[1]) <= 100:
            return cls(percent=float(match[1]))
        raise RefusedError(f"cannot read {text!r} of the data", hint="use all, n/t with 1 <= n <= t <= 999999, or x%")

    @property
    def days(self) -> int | None:
        """In how many runs, one a day, everything is read; ``None`` where it does not go by what was read before."""
        return self.parts if self.percent is None and self.part == 1 < self.parts else None

    def choose(self, entries: Sequence[FileEntry]) -> Iterable[FileEntry]:
        """The entries to read, if it is not known what was read before."""
        if self.percent is not None:
            count = max(1, round(len(entries) * self.percent / 100)) if entries else 0
            return (entries[at] for at in sorted(random.sample(range(len(entries)), count)))
        return (e for e in entries if self.parts == 1 or self._part_of(e.object) == self.part)

    def oldest(self, entries: Sequence[FileEntry], last_read: LastRead) -> Iterable[FileEntry]:
        """The part of the entries whose objects were read longest ago: of a backup with files, at least one.

        :param entries: all of them.
        :param last_read: when each object was last read.
        """
        objects = {entry.object for entry in entries}
        count = -(-len(objects) // self.parts)
        # Where many were read at once, as by another part, the ones of this part come first.
        chosen = set(heapq.nsmallest(count, objects, key=lambda path: (last_read(path), self._part_of(path), path)))
        return (entry for entry in entries if entry.object in chosen)

    def _part_of(self, path: str) -> int:
        # All contents of a pack are in the same part: they are read at once.
        return int(hashlib.sha256(file_of(path).encode()).hexdigest(), 16) % self.parts + 1


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what there is was read within some days.

    :param days: the days.
    :param objects: objects that backups list.
    :param read: of these, the ones that were read within the days.
    :param new: others that were written within the days, and not read yet.
    :param never_read: those of which it is not known that they ever were read.
    :param oldest_read: when that was read which was read longest ago; ``None``: nothing was.
    """

    days: int
    objects: int
    read: int
    new: int
    never_read: int
    oldest_read: datetime | None

    def to_json(self) -> dict[str, Any]:
        """The coverage as plain JSON."""
        oldest = self.oldest_read.isoformat() if self.oldest_read else None
        return {
            "days": self.days, "objects": self.objects, "read": self.read, "new": self.new,
            "never_read": self.never_read, "oldest_read": oldest,
        }  # fmt: skip

    def __str__(self) -> str:
        oldest = f"oldest read {format_time(self.oldest_read)}" if self.oldest_read else "none was ever read"
        new = f", {self.new} others were written since" if self.new else ""
        never = f"; {self.never_read} never read" if self.never_read and self.oldest_read else ""
        return f"{self.read} of {self.objects} objects read within {self.days} days{new}; {oldest}{never}"


@dataclass(frozen=True, slots=True)
class Before:
    """What was known of a stream before a verify began.

    :param damaged: its damaged objects.
    :param reads: when objects were read; empty where nothing is to be read now.
    :param at: when it began.
    """

    damaged: DamagedObjects
    reads: Reads
    at: datetime

    @classmethod
    def of(cls, repository: Repository, name: str, read_data: ReadData | None) -> Before:
        """Read it."""
        at, place = datetime.now(UTC), repository.location
        damaged, reads = side_by_side(
            lambda: read_damaged(place, name), lambda: read_reads(place, name) if read_data else Reads()
        )
        return cls(damaged, reads, at)

    def last_read(self, there: Mapping[str, StoredFile]) -> LastRead:
        """When objects were last read, or else when they were written: a new one is as good as one that was read then.

        :param there: the objects that are there.
        """

        def last(path: str) -> float:
            if (read := self.reads.last(path)) is not None:
                return read
            file = there.get(file_of(path))
            # Reads are known to the second. What was written in the same one and not read comes first.
            return int(file.modified.timestamp()) - 0.5 if file and file.modified else 0.0

        return last

    def choose(
        self, read_data: ReadData, entries: Sequence[FileEntry], there: Mapping[str, StoredFile]
    ) -> Iterable[FileEntry]:
        """The entries to read."""
        if read_data.days is None:
            return read_data.choose(entries)
        return read_data.oldest(entries, self.last_read(there))

    def coverage(
        self, read_data: ReadData, objects: Collection[str], now: Collection[str], there: Mapping[str, StoredFile]
    ) -> Coverage | None:
        """How much was read within the days of a verify that goes by what was read before; else ``None``.

        :param objects: objects that backups list.
        :param now: of these, the ones that were read just now.
        :param there: the objects that are there.
        """
        if read_data.days is None:
            return None
        since, last_read = (self.at - timedelta(days=read_data.days)).timestamp(), self.last_read(there)
        known = {path: self.at.timestamp() if path in now else self.reads.last(path) for path in objects}
        times = [time for time in known.values() if time is not None]
        return Coverage(
            days=read_data.days,
            objects=len(known),
            read=sum(time >= since for time in times),
            new=sum(time is None and last_read(path) >= since for path, time in known.items()),
            never_read=len(known) - len(times),
            oldest_read=datetime.fromtimestamp(min(times), UTC) if times else None,
        )


@dataclass(frozen=True, slots=True)
class Learned:
    """What one verify has to tell the next one.

    :param before: what was known before.
    :param damaged: path in the repository -> problem.
    :param whole: objects that were known to be damaged, were read, and are whole.
    :param contents: what was read.
    :param there: the objects that are there; ``None``: not all are known.
    """

    before: Before
    damaged: Mapping[str, str]
    whole: frozenset[str]
    contents: Contents
    there: Iterable[str] | None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verifying found.

    :param files: files of the backup, all of whose presence and size was checked.
    :param read_files: files whose content was read and compared with what was backed up.
    :param findings: what is damaged, what could not be read, and what an earlier verify found damaged.
    :param uncompared_files: files whose content was read with nothing to compare it with: the store has only an ETag that
        is no hash of it.
    :param contents_read: whether all contents were read and compared, by this verify or by those before.
    :param coverage: how much was read within some days, where the verify goes by what was read before.
    :param learned: what the next one has to know; :func:`~airflow_ckpt_provider.backup.notes.record_verification` notes it.
    """

    backup_id: str
    name: str
    files: int
    bytes: int
    read_files: int
    read_bytes: int
    findings: tuple[Damage, ...]
    uncompared_files: int = 0
    contents_read: bool = field(default=False, compare=False)
    coverage: Coverage | None = field(default=None, compare=False)
    learned: Learned | None = field(default=None, compare=False, repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and all that was to be read could be read."""
        return not self.findings

    @property
    def damaged(self) -> bool:
        """Whether something is damaged; what could not be read may be whole."""
        return any(finding.is_damage for finding in self.findings)

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
            "uncompared_files": self.uncompared_files,
            "coverage": self.coverage.to_json() if self.coverage else None,
            "findings": [finding.to_json() for finding in self.findings],
        }


def verify_backup(
    repository: Repository,
    manifest: Manifest,
    *,
    read_data: ReadData | None = None,
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
    engine: ReadEngine | None = None,
) -> VerifyReport:
    """Check a backup. What an earlier verify found damaged is a finding until it was read whole.

    :param repository: the repository.
    :param manifest: the backup; its own hash was checked when it was read.
    :param read_data: which contents to read and hash; what is known to be damaged is read with them. ``None`` for none.
    :param workers: requests under way at once.
    :param on_progress: called after each file that was read.
    :param engine: who reads the contents; ``None``: threads of this process.
    :raises TooMuchForThreadsError: the engine may not read so much; nothing was read and nothing is known of it.
    :raises NoSuchBackupError: it was removed meanwhile.
    """
    with kept_in_memory(manifest.files):
        return _verified(repository, manifest, read_data, engine or ThreadReads(workers), on_progress)


def _verified(
    repository: Repository,
    manifest: Manifest,
    read_data: ReadData | None,
    engine: ReadEngine,
    on_progress: OnProgress | None,
) -> VerifyReport:
    name, entries = manifest.name, manifest.files
    there, before = side_by_side(
        lambda: repository.location.walk(f"objects/{name}"), lambda: Before.of(repository, name, read_data)
    )
    moved = MovedContents(repository)
    structure = check_structure(repository, manifest, entries, listed=there)
    cut_off = check_packs(entries, there, moved)
    wrong = {damage.path for damage in structure}
    known = before.damaged.of(manifest)
    chosen: Iterable[FileEntry] = ()
    if read_data == ReadData():
        chosen = (e for e in entries if e.path not in wrong)
    elif read_data:
        # At first the part of this number: somebody may be reading the others at this moment.
        first = list(read_data.choose(entries)) if not before.reads.times else ()
        picked = {entry.path for entry in first or before.choose(read_data, entries, there)}
        chosen = (e for e in entries if e.path not in wrong and (e.path in picked or e.path in known))
    contents = engine.read(repository, FileTable(name, chosen), moved=moved, on_progress=on_progress)
    whole = {entry.object for entry in contents.whole() if entry.path in known}
    not_whole = {damage.object for damage in (*structure, *contents.findings)}
    whole |= whole_by_other_names(repository, whole, before.damaged.objects.keys() - not_whole, moved)
    whole |= contents.packs & before.damaged.objects.keys()
    if not structure and sum(1 for _ in contents.whole()) == len(entries):
        whole.add(manifest.path)
    found = (*structure, *contents.findings, *cut_off)
    if any(damage.problem == "missing" for damage in found) and manifest.backup_id not in repository.backup_ids(name):
        raise NoSuchBackupError(  # a prune may have deleted what only this backup needed: that is no damage
            f"backup {manifest.backup_id} of {name} was removed from {repository.location} while it was verified",
            hint="verify another one; `airflow-ckpt backups REPOSITORY` lists what there is",
        )
    new = {damage.object or manifest.path: damage for damage in found if damage.is_damage}
    still = [damage for damage in known.values() if damage.object not in new and damage.object not in whole]
    unsure = {damage.path for damage in still}
    compared = FileTable(name, contents.compared())
    all_read = len(compared) == len(entries)
    coverage = None
    if read_data and (read_data.days is not None or not all_read):
        now = {entry.object for entry in contents.read()}
        all_read = all_read or all(
            is_computable(e) and (e.object in now or before.reads.last(e.object)) for e in entries
        )
        coverage = before.coverage(read_data, {entry.object for entry in entries}, now, there)
    return VerifyReport(
        backup_id=manifest.backup_id,
        name=name,
        files=len(entries),
        bytes=manifest.bytes,
        read_files=len(compared),
        read_bytes=compared.bytes,
        findings=(*structure, *(d for d in contents.findings if d.path not in unsure), *still, *cut_off),
        uncompared_files=sum(1 for _ in contents.read()) - len(compared),
        contents_read=all_read,
        coverage=coverage,
        learned=Learned(
            before,
            {path: d.problem for path, d in new.items()},
            frozenset(whole),
            contents,
            None if repository.packs or has_packed(entries) else there,
        ),
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
    moved: Moved | None = None
    since: dict[str, StoredFile | None] = {}
    for entry in entries:
        absent.discard(entry.path)
        damage = structure_damage(entry, listed.get(file_of(entry.object)))
        # Of one that no hash is known of only its store can say that it is whole, and that says nothing of a copy.
        if damage and is_computable(entry):  # it may have been moved: then it is read there first
            moved = moved or read_moved(repository.location, manifest.name)
            for each in moved.elsewhere(entry.object):
                if (file := file_of(each)) not in since:
                    since[file] = listed.get(file) or repository.location.find(each)
                elsewhere = structure_damage(entry._replace(object=each), since[file])
                # What is still where it was is named there, by which everybody knows it.
                damage = elsewhere if elsewhere is None or damage.problem == "missing" else damage
                if damage is None:
                    break
        if damage:
            damaged.append(damage)
    if absent:
        absent.difference_update(entry.path for entry in manifest.files)
    if wrong := misplaced(entries):
        damaged.append(Damage(wrong.path, "", "misplaced", wrong.why))
    return [*(Damage(p, "", "missing", f"{p} is not in the backup at all") for p in logs if p in absent), *damaged]


def refuse_findings(manifest: Manifest, findings: Sequence[Damage]) -> None:
    """Refuse a backup in which something is wrong, or of which something could not be read.

    :raises DamagedBackupError: something is damaged.
    :raises StorageError: nothing is known to be, and something could not be read.
    """
    refuse_damage(manifest, [finding.message for finding in findings if finding.is_damage])
    if findings:
        raise StorageError(
            f"backup {manifest.backup_id} of {manifest.name} could not be read: {findings[0].message}; nothing was changed",
            hint="run the same command again; where that does not help, choose another backup",
        )


def refuse_damage(manifest: Manifest, problems: list[str]) -> None:
    """Refuse a backup in which something is wrong.

    :param problems: one line for each damaged file; none: nothing is refused.
    """
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise DamagedBackupError(
            f"backup {manifest.backup_id} of {manifest.name} is damaged: {problems[0]}{more}; nothing was changed",
            findings=tuple(problems),
            hint="choose another backup; `airflow-ckpt verify --read-data` shows which are whole",
        )
