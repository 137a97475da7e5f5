"""Are all backups of a repository what their manifests say? Each object is read once, however many backups list it.

With ``ReadData(1, 30)``, run every day, all objects are read within thirty days: each run reads the thirtieth part that was read
longest ago. What each stream shows is noted before the next one is verified.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.backup.content_checks import (
    Contents,
    check_contents,
    check_packs,
    in_one_order,
    is_computable,
    whole_by_other_names,
)
from airflow_ckpt_provider.backup.contents import no_backup_of, objects_there
from airflow_ckpt_provider.backup.copy_progress import OnProgress
from airflow_ckpt_provider.backup.damaged import Damage
from airflow_ckpt_provider.backup.disputed import Claim, claim_of, is_manifest_wrong, is_whole
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import manifest_path
from airflow_ckpt_provider.backup.notes import Verified, record_learned, record_outcome, verifications
from airflow_ckpt_provider.backup.pack_reads import MovedContents
from airflow_ckpt_provider.backup.read_engine import ReadEngine, ThreadReads
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import DamagedBackup, readable
from airflow_ckpt_provider.backup.verify import Before, Coverage, Learned, ReadData, check_structure
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.parallel import WORKERS
from airflow_ckpt_provider.storage.packs import file_of, part_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerifiedStream:
    """What verifying all backups of a stream found.

    :param objects: objects that its backups list, and their bytes.
    :param read_objects: of these, the ones that were read now and compared with what was backed up, and their bytes.
    :param uncompared_objects: objects that were read with nothing to compare them with.
    :param damaged: its damaged backups.
    :param unread: what could not be read, in words; it may be whole.
    :param coverage: how much was read within some days, where the verify goes by what was read before.
    :param noted: whether what was found could be noted.
    """

    name: str
    backups: int
    objects: int
    bytes: int
    read_objects: int
    read_bytes: int
    uncompared_objects: int
    damaged: tuple[DamagedBackup, ...]
    unread: tuple[str, ...]
    coverage: Coverage | None
    noted: bool

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and all that was to be read could be read."""
        return not self.damaged and not self.unread

    def to_json(self) -> dict[str, Any]:
        """The stream as plain JSON."""
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "damaged": [each.to_json() for each in self.damaged],
            "unread": list(self.unread),
            "coverage": self.coverage.to_json() if self.coverage else None,
            "ok": self.ok,
        }


@dataclass(frozen=True, slots=True)
class VerifiedRepository:
    """What verifying all backups of a repository found."""

    repository: str
    streams: tuple[VerifiedStream, ...]

    @property
    def damaged(self) -> tuple[DamagedBackup, ...]:
        """Backups that cannot be restored as they are."""
        return tuple(each for stream in self.streams for each in stream.damaged)

    @property
    def findings(self) -> tuple[str, ...]:
        """What is damaged and what could not be read, a line for each backup or file."""
        damaged = (
            f"{d.name} {d.backup_id}: {d.problems[0]}"
            + (f" (and {len(d.problems) - 1} more)" if len(d.problems) > 1 else "")
            for d in self.damaged
        )
        return (*damaged, *(f"{s.name}: {words}" for s in self.streams for words in s.unread))

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and all that was to be read could be read."""
        return all(stream.ok for stream in self.streams)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {"repository": self.repository, "ok": self.ok, "streams": [s.to_json() for s in self.streams]}


def verify_repository(
    repository: Repository,
    *,
    name: str | None = None,
    read_data: ReadData | None = None,
    workers: int = WORKERS,
    on_progress: OnProgress | None = None,
    engine: ReadEngine | None = None,
) -> VerifiedRepository:
    """Check all backups, and note what is found.

    :param name: only those of this stream.
    :param read_data: which contents to read and hash; what is known to be damaged is read with them. ``None`` for none.
    :param workers: requests under way at once.
    :param on_progress: called after each object of a stream that was read.
    :param engine: who reads the contents; ``None``: threads of this process.
    :raises TooMuchForThreadsError: the engine may not read so much of a stream; those before it are noted.
    :raises NoSuchBackupError: there is no backup of this name.
    """
    if name is not None and not repository.backup_ids(name):
        raise no_backup_of(repository, name)
    names = repository.names() if name is None else (name,)
    streams = tuple(
        _verified(repository, each, read_data, engine or ThreadReads(workers), on_progress) for each in names
    )
    return VerifiedRepository(repository.location.uri, streams)


@dataclass(slots=True)
class _Listed:
    """What the backups of a stream list, each object once.

    :param entries: an entry for each object and what it is to hold.
    :param backups: id of a backup -> which of the entries it lists.
    :param problems: id of a backup -> what is wrong with it, by the path in the checkpoint.
    :param damaged: those whose manifests are damaged.
    :param unread: those whose manifests could not be read.
    """

    entries: list[FileEntry] = field(default_factory=list)
    backups: dict[str, array[int]] = field(default_factory=dict)
    problems: dict[str, dict[str, Damage]] = field(default_factory=dict)
    damaged: list[DamagedBackup] = field(default_factory=list)
    unread: list[DamagedBackup] = field(default_factory=list)
    _numbers: dict[Claim, int] = field(default_factory=dict)

    def add(self, backup_id: str, files: Iterable[FileEntry], problems: Mapping[str, Damage]) -> None:
        """Add a backup."""
        numbers = array("L")
        for entry in files:
            number = self._numbers.setdefault(claim_of(entry), len(self.entries))
            if number == len(self.entries):
                self.entries.append(entry)
            numbers.append(number)
        self.backups[backup_id] = numbers
        self.problems[backup_id] = dict(problems)

    def without(self, gone: Collection[str]) -> _Listed:
        """What the others list.

        :param gone: ids of backups that were removed.
        """
        left = _Listed(damaged=self.damaged, unread=self.unread)
        for backup_id in self.backups:
            if backup_id not in gone:
                left.add(backup_id, self.of(backup_id), self.problems[backup_id])
        return left

    def of(self, backup_id: str) -> Iterator[FileEntry]:
        """The entries of a backup."""
        return (self.entries[number] for number in self.backups[backup_id])


def _verified(
    repository: Repository, name: str, read_data: ReadData | None, engine: ReadEngine, on_progress: OnProgress | None
) -> VerifiedStream:
    before = Before.of(repository, name, read_data)
    # The other way round, an object that a backup adds between the two listings would be missed.
    ids = repository.backup_ids(name)
    there = objects_there(repository, name)
    listed = _Listed()
    failed: dict[Claim, Damage] = {}
    incomplete: dict[str, str] = {}
    known: set[str] = set()
    for manifest in readable(repository, name, ids):
        if isinstance(manifest, DamagedBackup):
            (listed.unread if manifest.is_unread else listed.damaged).append(manifest)
            continue
        structure = {d.path: d for d in check_structure(repository, manifest, manifest.files, listed=there)}
        if structure:
            failed |= {claim_of(entry): structure[entry.path] for entry in manifest.files if entry.path in structure}
            if absent := [damage for damage in structure.values() if not damage.object]:
                incomplete[manifest.path] = absent[-1].problem
        remembered = before.damaged.of(manifest)
        known |= {damage.object for damage in remembered.values()}
        listed.add(manifest.backup_id, manifest.files, {**remembered, **structure})
    chosen: Sequence[FileEntry] = ()
    if read_data:
        picked = {entry.object for entry in before.choose(read_data, listed.entries, there)} | known
        chosen = [entry for entry in listed.entries if entry.object in picked and claim_of(entry) not in failed]
    moved = MovedContents(repository)
    contents = _read(repository, chosen, failed, engine, on_progress, moved)
    if failed and (gone := listed.backups.keys() - set(repository.backup_ids(name))):
        # They were removed since they were listed, and a prune may have deleted what only they needed.
        listed = listed.without(gone)
        left = set(map(claim_of, listed.entries))
        failed = {claim: damage for claim, damage in failed.items() if claim in left}
        incomplete = {
            path: problem for path, problem in incomplete.items() if path not in {manifest_path(name, i) for i in gone}
        }
        contents = contents.of({path for path, *_ in left})
    wrong = {path for path, *_ in failed}
    whole = {e.object for e in contents.whole() if e.object in known and e.object not in wrong}
    whole |= whole_by_other_names(repository, whole, before.damaged.objects.keys() - wrong, moved)
    whole |= contents.packs & before.damaged.objects.keys()
    packs = {damage.object: damage for damage in contents.findings if damage.object == damage.path}
    packs |= {damage.object: damage for damage in check_packs(listed.entries, there, moved)}
    for backup_id in listed.backups if packs else ():
        of_backup = {file_of(path) for e in listed.of(backup_id) for path in (e.object, moved.now(e.object))}
        listed.problems[backup_id] |= {pack: damage for pack, damage in packs.items() if pack in of_backup}
    now = {entry.object for entry in contents.read()}
    # Of a backup that is damaged as such, as far as is known, all has to be whole.
    as_such = [i for i in listed.backups if (path := manifest_path(name, i)) in known and path not in incomplete]
    right = now - wrong
    whole |= {manifest_path(name, i) for i in as_such if all(e.object in right for e in listed.of(i))}
    outcomes = dict(_outcomes(listed, before, contents, failed, whole, now))
    new = incomplete | _to_note(repository, name, listed, failed, contents)
    new |= {pack: damage.problem for pack, damage in packs.items()}
    compared = list(contents.compared())
    parts = (path for e in listed.entries if part_of(moved.now(path := e.object)) or e.is_packed)
    return VerifiedStream(
        name=name,
        backups=len(ids),
        objects=len({entry.object for entry in listed.entries}),
        bytes=sum(entry.size for entry in listed.entries),
        read_objects=len(compared),
        read_bytes=sum(entry.size for entry in compared),
        uncompared_objects=sum(1 for _ in contents.read()) - len(compared),
        damaged=(
            *listed.damaged,
            *(
                DamagedBackup(name, backup_id, tuple(damage.message for damage in in_one_order(problems.values())))
                for backup_id, problems in listed.problems.items()
                if problems
            ),
        ),
        unread=(
            *(problem for backup in listed.unread for problem in backup.problems),
            *(d.message for d in contents.findings if not d.is_damage and d.object not in known),
        ),
        coverage=before.coverage(read_data, {e.object for e in listed.entries}, now, there) if read_data else None,
        noted=_note(repository, name, Learned(before, new, frozenset(whole), contents, [*there, *parts]), outcomes),
    )


def _read(
    repository: Repository,
    chosen: Sequence[FileEntry],
    failed: dict[Claim, Damage],
    engine: ReadEngine,
    on_progress: OnProgress | None,
    moved: MovedContents,
) -> Contents:
    """Read objects; one of which manifests say different things once for each.

    :param failed: gets what is damaged.
    """
    once = list({entry.object: entry for entry in chosen}.values())
    claimed = {claim_of(entry) for entry in once}
    again = [entry for entry in chosen if claim_of(entry) not in claimed]
    first = engine.read(repository, once, moved=moved, on_progress=on_progress)
    findings = list(first.findings)
    found = {damage.object: damage for damage in findings if damage.is_damage}
    failed |= {claim_of(entry): found[entry.object] for entry in once if entry.object in found}
    for entry in again:
        more = check_contents(repository, [entry], packs=set(), moved=moved)
        failed |= {claim_of(entry): damage for damage in more if damage.is_damage}
        findings += more
    return Contents([*once, *again], findings, first.packs)


def _to_note(
    repository: Repository, name: str, listed: _Listed, failed: Mapping[Claim, Damage], contents: Contents
) -> dict[str, str]:
    """Which objects are damaged; and in their place which manifests, where these are wrong. Path -> problem."""
    objects = {path for path, *_ in failed}
    entries: dict[str, list[FileEntry]] = {path: [] for path in objects}
    for entry in listed.entries if objects else ():
        if entry.object in objects:
            entries[entry.object].append(entry)
    proven = {claim_of(entry) for entry in contents.compared() if entry.object in objects} - failed.keys()

    def is_proven(entry: FileEntry) -> bool:
        claim = claim_of(entry)
        return claim in proven or (claim not in failed and is_whole(repository, entry))

    noted: dict[str, str] = {}
    wrong: dict[int, str] = {}
    for number, entry in enumerate(listed.entries if objects else ()):
        damage, others = failed.get(claim_of(entry)), entries.get(entry.object, ())
        if damage is None:
            continue
        if damage.problem != "missing" and is_manifest_wrong(entry, others, is_proven):
            wrong[number] = damage.problem
        else:
            noted[entry.object] = damage.problem
    for backup_id, numbers in listed.backups.items() if wrong else ():
        if found := next((wrong[number] for number in numbers if number in wrong), None):
            noted[manifest_path(name, backup_id)] = found
    return noted


def _outcomes(
    listed: _Listed,
    before: Before,
    contents: Contents,
    failed: Mapping[Claim, Damage],
    whole: set[str],
    now: set[str],
) -> Iterator[tuple[str, Verified]]:
    """What is known of each backup now; its problems are brought up to date with what was read."""
    unread = {damage.object for damage in contents.findings if not damage.is_damage}
    for backup_id, problems in listed.problems.items():
        for path in [path for path, damage in problems.items() if damage.object in whole]:
            del problems[path]
        everything = True
        could_not = False
        for entry in listed.of(backup_id):
            if failed and (damage := failed.get(claim_of(entry))):
                problems[entry.path] = damage
            could_not = could_not or entry.object in unread
            everything = everything and is_computable(entry)
            everything = everything and (entry.object in now or before.reads.last(entry.object) is not None)
        if problems:
            yield backup_id, Verified.DAMAGED
        elif not could_not:
            yield backup_id, Verified.CONTENTS if everything else Verified.STRUCTURE


def _note(repository: Repository, name: str, learned: Learned, outcomes: Mapping[str, Verified]) -> bool:
    """Note what was found, and of each backup only what was not known before, as far as these credentials may write."""
    try:
        record_learned(repository, name, learned)
        before = verifications(repository, name)
        for backup_id, outcome in outcomes.items():
            if before.get(backup_id) not in (outcome, Verified.CONTENTS if outcome is Verified.STRUCTURE else outcome):
                report = {"backup_id": backup_id, "name": name, "ok": outcome is not Verified.DAMAGED}
                record_outcome(repository, name, backup_id, outcome, report)
    except (StorageError, RefusedError) as e:
        log.warning("that the backups of %s were verified is not noted: %s", name, e.message)
        return False
    return True
