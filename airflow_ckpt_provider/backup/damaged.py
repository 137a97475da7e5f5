"""Which objects of a stream are known to be damaged: the part of what verifying learned that everybody goes by.

A backup takes none of them for its content, :data:`~airflow_ckpt_provider.backup.latest.LATEST` passes over backups that
list one, an expire gives those no place, a check names them::

    damaged/<name>/<nnnnnn>.json    all that is known to be damaged, as of this record

The newest record counts, and says everything: one listing, and one read unless its size shows that nothing is damaged. A record
is written where something has changed, under the next number and only if that is free, so two at once both add what they found.
An object leaves it when it was read again, after its damage was known, and was whole; or when it is deleted and no backup lists
it any more.

Backups may have been verified by a version before this, which wrote only notes of its findings
(``verified/<name>/<backup id>/<nnnnnn>-damaged.json``). Until there is a first record, these say what is damaged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.backup.file_entry import OBJECTS
from airflow_ckpt_provider.backup.manifest import Manifest, manifest_path
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.numbered import leading_number, number_of, numbered
from airflow_ckpt_provider.errors import RefusedError, RepositoryError, StorageError, TooLargeError, UntrustedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import LARGE, Location, safe_relative
from airflow_ckpt_provider.storage.packs import Moved, file_of, read_moved
from airflow_ckpt_provider.storage.store import StoredFile

log = logging.getLogger(__name__)

_DAMAGED = "damaged"
_FORMAT = "airflow-ckpt-damaged-objects"
_VERSION = 1
#: The record that nothing is damaged. Every other one is longer.
_NOTHING = f'{{"format":"{_FORMAT}","version":{_VERSION},"objects":{{}}}}\n'.encode()
#: The problem of what could not be read.
UNREADABLE = "unreadable"
#: Where notes of what verifying a backup found are kept; see :mod:`~airflow_ckpt_provider.backup.notes`.
VERIFIED = "verified"


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with one file of a backup.

    :param path: its path in the checkpoint; of a manifest that does not list all, its path in the repository.
    :param object: its path in the repository; empty where the manifest does not list it.
    :param problem: ``missing``, ``size``, ``content``, or ``unreadable``: it could not be read, and may be whole.
    :param message: the same in words.
    """

    path: str
    object: str
    problem: str
    message: str

    @property
    def is_damage(self) -> bool:
        """Whether the file is known to be damaged, and not only unread."""
        return self.problem != UNREADABLE

    def to_json(self) -> dict[str, str]:
        """The finding as plain JSON."""
        return {"path": self.path, "object": self.object, "problem": self.problem, "message": self.message}


@dataclass(frozen=True, slots=True)
class Damaged:
    """What is known of one damaged object.

    :param problem: ``missing``, ``size``, ``content`` or ``unreadable``, as :class:`~airflow_ckpt_provider.backup.verify.Damage`
        has it.
    :param found: when it was found first.
    :param number: the record in which it was found last; who began to read before that cannot know that it is whole.
    """

    problem: str
    found: str
    number: int


@dataclass(frozen=True, slots=True)
class DamagedObjects:
    """What is known to be damaged of a stream.

    :param number: of the newest record; 0 if there is none.
    :param objects: path in the repository -> what is known. A manifest that does not list all that a restore needs is among
        them by its own path.
    """

    number: int = 0
    objects: Mapping[str, Damaged] = field(default_factory=dict)

    def of(self, manifest: Manifest) -> dict[str, Damage]:
        """What is known to be damaged of a backup, by the path in the checkpoint.

        Where nothing of the stream is damaged its files are not read, for that may take another read.
        """
        if not self.objects:
            return {}
        listed = ((entry.path, entry.object, f"{entry.path}: its object {entry.object}") for entry in manifest.files)
        found = {}
        for path, object_, what in ((manifest.path, manifest.path, f"backup {manifest.backup_id}"), *listed):
            if known := self.objects.get(object_):
                words = f"{what} was found damaged on {known.found} ({known.problem}), and was not read whole since"
                found[path] = Damage(path, object_, known.problem, words)
        return found


def read_damaged(repository: Location, name: str) -> DamagedObjects:
    """Read what is known to be damaged: one listing, and where something is, one read; without a record, another listing.

    A content that was moved has several names, and backups list it under any of them. What was found under one is known under
    each that leads nowhere else: while an earlier place is there, a reader takes the content from that one.

    :param repository: the repository's place.
    :param name: name of the stream.
    :raises RepositoryError: it cannot be known.
    """
    while True:
        records = _records(repository, name)
        number = max(records, default=0)
        if not number:
            known = _of_earlier_notes(repository, name)
            break
        try:
            known = _known(repository, name, [records[n] for n in sorted(records, reverse=True)])
            break
        except FileNotFoundError:  # a newer one has taken its place since it was listed
            continue
    return DamagedObjects(number, _with_other_names(repository, name, known))


@dataclass(frozen=True, slots=True)
class _Found:
    """Where the contents of a stream are found.

    :param moved: where they have been moved to.
    :param there: paths of the files that are there.
    """

    moved: Moved
    there: Collection[str]

    def places(self, path: str) -> list[str]:
        """The places of an object that are there; if there is no such place, the one that it was moved to last."""
        chain = self.moved.chain(path)
        return [each for each in chain if file_of(each) in self.there] or chain[-1:]


def _with_other_names(repository: Location, name: str, known: dict[str, Damaged]) -> dict[str, Damaged]:
    """Add the names under which nothing else is found than what is known to be damaged."""
    moved = read_moved(repository, name) if any(path.startswith(f"{OBJECTS}/") for path in known) else Moved()
    if not moved.paths:
        return known
    found = _Found(moved, {file.path for file in repository.sweep(f"{OBJECTS}/{name}")})
    bad: dict[str, Damaged] = {}
    for path, damage in known.items():
        for place in [path] if file_of(path) in found.there else found.places(path):
            bad[place] = _both(bad.get(place, damage), damage)
    names = dict(known)
    for path in {*moved.paths, *moved.paths.values()}:
        places = found.places(path)
        if all(place in bad for place in places):
            for place in places:
                names[path] = _both(names.get(path, bad[place]), bad[place])
    return names


def _both(one: Damaged, other: Damaged) -> Damaged:
    """What two names of a content say together: found first when the earlier one was, and last when the later one was."""
    newer = one if one.number >= other.number else other
    return Damaged(newer.problem, min(one.found, other.found), newer.number)


def learn_damaged(
    repository: Location, name: str, *, damaged: Mapping[str, str], whole: Collection[str], since: int
) -> DamagedObjects:
    """Note what was found, and return what is known now.

    :param damaged: path in the repository -> problem.
    :param whole: paths of objects that were read and are whole, or that nobody needs to be whole any more. Of a content that
        was moved this says nothing about its other names: they may lead to other places.
    :param since: number of the record that was the newest before anything was read: what was found damaged after that
        stays damaged.
    :raises StorageError: these credentials may not write.
    """
    while True:
        known = read_damaged(repository, name)
        number, now = known.number + 1, datetime.now(UTC).isoformat(timespec="seconds")
        objects = {path: d for path, d in known.objects.items() if path not in whole or d.number > since}
        for path, problem in damaged.items():
            before = known.objects.get(path)
            objects[path] = Damaged(problem, before.found if before else now, number)
        if objects == known.objects and known.number:
            return known
        values = {
            path: {"problem": d.problem, "found": d.found, "number": d.number} for path, d in sorted(objects.items())
        }
        document = json.dumps({"format": _FORMAT, "version": _VERSION, "at": now, "objects": values}).encode()
        try:
            repository.create(f"{_DAMAGED}/{name}/{numbered(number)}", document if objects else _NOTHING)
            return DamagedObjects(number, objects)
        except FileExistsError:  # somebody else at the same moment: this one comes after
            continue


def note_damaged(repository: Location, name: str, damaged: Mapping[str, str]) -> None:
    """Note the damage of objects that somebody else than a verify has come upon, where these credentials may write.

    :param damaged: path in the repository -> problem.
    """
    if not damaged:
        return
    try:
        learn_damaged(repository, name, damaged=damaged, whole=(), since=0)
    except (StorageError, RefusedError) as e:
        log.warning("that objects of %s are damaged is not noted: %s", name, e.message)


def forget_damaged(repository: Location, name: str, known: DamagedObjects, *, listed: Collection[str]) -> None:
    """Leave out what is deleted and no backup lists any more, and delete the records that a newer one has taken the place of.

    What was moved is left out under none of its names while a backup lists one that leads to the same place.

    One that no trusted key has signed takes the place of none.

    :param known: what was known before it was known which backups there are, and who was at work.
    :param listed: objects that backups list, and the paths of their manifests.
    """
    if unused := known.objects.keys() - listed:
        found = _Found(read_moved(repository, name), repository.walk(f"{OBJECTS}/{name}"))
        needed = {place for path in listed for place in found.places(path)}
        gone = {path for path in unused if file_of(path) not in found.there and needed.isdisjoint(found.places(path))}
        learn_damaged(repository, name, damaged={}, whole=gone, since=known.number)
    records = _records(repository, name)
    newest = next((n for n in sorted(records, reverse=True) if repository.is_trusted(records[n].path)), 0)
    for number in sorted(records):
        if number < newest:
            repository.delete(records[number].path)


def streams_with_damage_known(repository: Location) -> frozenset[str]:
    """Names of the streams of which something may be known: those with records, and those with notes."""
    found = in_parallel(repository.list, (_DAMAGED, VERIFIED))
    return frozenset(name for listing in found for name in listing.directories)


def streams_with_records(repository: Location) -> frozenset[str]:
    """Names of the streams of which this version has recorded damage, also such as was repaired since."""
    return frozenset(repository.list(_DAMAGED).directories)


def _records(repository: Location, name: str) -> dict[int, StoredFile]:
    """The records by their numbers."""
    files = repository.list(f"{_DAMAGED}/{checked_name(name)}").files
    return {number: file for file in files if (number := number_of(file.path)) is not None}


def _known(repository: Location, name: str, records: Iterable[StoredFile]) -> dict[str, Damaged]:
    """What is damaged by the newest record that is signed, and what others after it add; without keys, by the newest.

    :param records: newest first.
    """
    found: dict[str, Damaged] = {}
    for record in records:
        if record.size == len(_NOTHING) and not repository.checks_signatures:
            return found
        try:
            return _parsed(repository.read_document(record.path, most=LARGE), name, record.path) | found
        except UntrustedError as e:
            log.warning("%s: it can add damaged objects, and take none away", e.message)
            found = _parsed(e.data, name, record.path) | found
    return found


def _parsed(data: bytes, name: str, path: str) -> dict[str, Damaged]:
    try:
        value = load_json(data)
        if value["format"] != _FORMAT or value["version"] != _VERSION:
            raise RepositoryError(
                f"{path} has format {value['format']} version {value['version']}, known here: {_FORMAT} version {_VERSION}",
                hint="upgrade airflow-ckpt-provider",
            )
        objects: dict[str, dict[str, Any]] = value["objects"]
        return {
            _checked(p, name): Damaged(str(d["problem"]), str(d["found"]), int(d["number"])) for p, d in objects.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as e:
        raise RepositoryError(
            f"{path} cannot be read ({type(e).__name__}: {e}): it names the damaged objects of {name}",
            hint="delete this file, then read all: `airflow-ckpt verify REPOSITORY all --name NAME --read-data`",
        ) from e


def _checked(path: str, name: str) -> str:
    """Return a path if it can be that of an object or a manifest of a stream.

    :raises ValueError: it leads elsewhere.
    """
    return safe_relative(path, below=f"{OBJECTS if path.startswith(f'{OBJECTS}/') else 'backups'}/{name}")


def _of_earlier_notes(repository: Location, name: str) -> dict[str, Damaged]:
    """What verifies of earlier versions found damaged, and did not read as a whole since."""
    newest: dict[str, dict[int, str]] = {}
    for path in sorted(repository.walk(f"{VERIFIED}/{checked_name(name)}"), key=leading_number):
        *_, backup_id, file_name = path.split("/")
        outcome = file_name.removesuffix(".json").partition("-")[2]
        number = leading_number(path)
        if not number:
            continue
        if outcome == "contents" and repository.is_trusted(path):
            newest.pop(backup_id, None)
        elif outcome == "damaged":
            newest.setdefault(backup_id, {})[number] = path
    paths = [(backup_id, path) for backup_id, notes in newest.items() for path in notes.values()]
    found: dict[str, Damaged] = {}
    for each in in_parallel(lambda item: _of_note(repository, name, *item), paths):
        found |= {path: known for path, known in each.items() if path not in found}
    return found


def _of_note(repository: Location, name: str, backup_id: str, path: str) -> dict[str, Damaged]:
    """Of one note; where it cannot be read, all that is known is which backup is damaged."""
    manifest = manifest_path(name, backup_id)
    try:
        try:
            value = load_json(repository.read_document(path, most=LARGE))
        except UntrustedError as e:
            value = load_json(e.data)
        at = str(value["at"])
        found = {}
        for finding in value["findings"]:
            # Of what could not be read it was not said why: in an encrypted repository that was how damage showed.
            problem = "content" if finding["problem"] == UNREADABLE else str(finding["problem"])
            found[_checked(str(finding["object"]) or manifest, name)] = Damaged(problem, at, 0)
        return found
    except FileNotFoundError:
        return {}  # the backup has expired since
    except (TooLargeError, ValueError, KeyError, TypeError) as e:
        log.warning("%s cannot be read (%s): all of backup %s is taken for damaged", path, e, backup_id)
        return {manifest: Damaged("content", "an unknown day", 0)}
