"""Rebuilding objects that are missing, cut off or known to be damaged, where their content still exists somewhere.

From another object of the repository that holds the same; from the live checkpoint, at the path it was backed up from; or from
a second repository, such as one that backups are copied to. A content is taken only if it is proven to be the one that was backed
up, by its SHA-256 or by a store's MD5. What was found damaged is read first: it may have come back with its disk. An object of
which manifests say different things is left as it is: one of them is forged or damaged, and the object may be right.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_ckpt_provider.backup.content_checks import (
    check_contents,
    content_damage,
    is_computable,
    whole_by_other_names,
)
from airflow_ckpt_provider.backup.contents import listed_by, objects_there, stream_names
from airflow_ckpt_provider.backup.damaged import learn_damaged, read_damaged
from airflow_ckpt_provider.backup.disputed import claims_of, suspects
from airflow_ckpt_provider.backup.file_entry import OBJECTS, FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.pack_file import read_index, with_index
from airflow_ckpt_provider.backup.pack_reads import PACKS_AT_ONCE, ByPack, MovedContents, Span
from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import readable
from airflow_ckpt_provider.backup.repository_repair_plan import (
    CHECKPOINT,
    REPOSITORY,
    SECOND,
    ObjectsRepairPlan,
    Rebuilt,
)
from airflow_ckpt_provider.backup.verify import check_structure
from airflow_ckpt_provider.errors import DamagedFileError, FileChangedError, StorageError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import Moved, Part, file_of, pack_size, part_of, read_moved

log = logging.getLogger(__name__)

#: How often a pack is written again where others repair contents of it at the same moment.
_TIMES = 20


def plan_objects_repair(
    repository: Repository, checkpoint: Location, *, name: str | None = None, second: Repository | None = None
) -> ObjectsRepairPlan:
    """Look for the contents of missing and damaged objects; reads only.

    :param checkpoint: a live checkpoint of the streams' backups; other checkpoints prove nothing and do no harm.
    :param name: only this stream.
    :param second: another repository that may hold the same contents.
    :raises NoSuchBackupError: nothing is there of that name.
    """
    places = _Places(repository, checkpoint, second)
    rebuilt: list[Rebuilt] = []
    lost: list[tuple[str, tuple[str, ...]]] = []
    whole_again: list[FileEntry] = []
    disputed: list[tuple[str, tuple[str, ...]]] = []
    for each in stream_names(repository, name):
        wrong = _wrong(repository, each)
        disputed += wrong.disputed
        elsewhere = _in_second(second, each, wrong) if second is not None and wrong.entries else {}
        whole = _whole(repository, [e for path, e in wrong.entries.items() if path not in wrong.structure])
        again = [entry for path, entry in wrong.entries.items() if path in whole]
        whole_again += again
        for entry in again:
            wrong.whole |= dict.fromkeys(_marks(entry), entry.object)
        moved_from_or_to = _moved_from_or_to(repository, each) if len(again) < len(wrong.entries) else {}
        sources: dict[str, list[Rebuilt]] = {}
        for path, entry in wrong.entries.items():
            if path in whole:
                continue
            sources[path] = [Rebuilt(entry, twin, REPOSITORY) for m in _marks(entry) if (twin := wrong.whole.get(m))]
            sources[path] += [Rebuilt(entry, found, REPOSITORY) for found in _other_places(moved_from_or_to, path)]
            sources[path].append(Rebuilt(entry, entry.path, CHECKPOINT))
            sources[path] += [Rebuilt(entry, found, SECOND) for found in elsewhere.get(path, ())]
        found = _proven(places, sources)
        rebuilt += [found[path] for path in sources if path in found]
        lost += [(path, tuple(dict.fromkeys(wrong.needed_by[path]))) for path in sources if path not in found]
    if lost and not checkpoint.list().directories:
        log.warning("no checkpoint is at %s: is the address right? What it may hold counts as lost", checkpoint)
    return ObjectsRepairPlan(
        new_plan_id(),
        repository.location.uri,
        checkpoint.uri,
        tuple(rebuilt),
        tuple(lost),
        tuple(whole_again),
        tuple(disputed),
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """Where contents are taken from."""

    repository: Repository
    checkpoint: Location
    second: Repository | None

    def read(self, sources: Sequence[Rebuilt], take: Callable[[int, bytes], None]) -> None:
        """Read contents, each pack once.

        :param take: given the number of each source whose content is there and proven, and the content; from any thread.
        """

        def look(number: int, read: Callable[[], bytes]) -> None:
            try:
                content = read()
            except (FileNotFoundError, DamagedFileError):
                return
            if content_damage(sources[number].entry, content) is None:
                take(number, content)

        def from_span(span: Span) -> None:
            for entry in span.entries:
                look(int(entry.path), partial(span.read, entry))

        # What nothing computed here says what it was is proven by nothing.
        known = [(number, source) for number, source in enumerate(sources) if is_computable(source.entry)]
        for origin, repository in ((REPOSITORY, self.repository), (SECOND, self.second)):
            if repository is None:
                continue
            packed, single = ByPack(repository), []
            for number, source in known:
                entry = source.entry._replace(path=str(number), object=source.source)
                if source.origin == origin and not packed.add(entry):
                    single.append(entry)
            place = repository.location
            in_parallel(lambda e, place=place: look(int(e.path), partial(place.read, e.object)), single)  # type: ignore[misc]
            in_parallel(from_span, packed.spans(), workers=PACKS_AT_ONCE)
        files = [(number, source.source) for number, source in known if source.origin == CHECKPOINT]
        in_parallel(lambda file: look(file[0], partial(self.checkpoint.read, file[1])), files)


def _proven(places: _Places, sources: Mapping[str, Sequence[Rebuilt]]) -> dict[str, Rebuilt]:
    """The first source of each object whose content is there and proven."""
    found: dict[str, Rebuilt] = {}
    for turn in range(max(map(len, sources.values()), default=0)):
        left = {path: each[turn] for path, each in sources.items() if path not in found and turn < len(each)}
        paths, now = list(left), list(left.values())
        right: set[int] = set()
        places.read(now, lambda number, content, right=right: right.add(number))  # type: ignore[misc]
        found |= {paths[number]: now[number] for number in sorted(right)}
    return found


def _whole(repository: Repository, entries: Sequence[FileEntry]) -> set[str]:
    """Of some objects, those that can be read and are proven to be what was backed up."""
    known = [entry._replace(path=entry.object) for entry in entries if is_computable(entry)]
    wrong = {damage.object for damage in check_contents(repository, known)}
    return {entry.object for entry in known} - wrong


@dataclass(slots=True)
class _Wrong:
    """What is wrong with the objects of a stream.

    :param entries: those that are wrong, each with a manifest's entry of it.
    :param structure: of these, the ones that are missing or of another size or checksum than they were.
    :param needed_by: backups that list them.
    :param whole: content -> an object that holds it, of those that are not wrong.
    :param disputed: those of which manifests say different things, with backups; they are not among the entries.
    """

    entries: dict[str, FileEntry] = field(default_factory=dict)
    structure: set[str] = field(default_factory=set)
    needed_by: dict[str, list[str]] = field(default_factory=dict)
    whole: dict[tuple[str, int], str] = field(default_factory=dict)
    disputed: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


def _wrong(repository: Repository, name: str) -> _Wrong:
    there = objects_there(repository, name)
    known = read_damaged(repository.location, name).objects
    wrong = _Wrong()
    for manifest in readable(repository, name, repository.backup_ids(name)):
        if not isinstance(manifest, Manifest):
            continue
        damaged = {d.object for d in check_structure(repository, manifest, list(manifest.files), listed=there)}
        wrong.structure |= damaged
        for entry in manifest.files:
            if entry.object in damaged or entry.object in known:
                wrong.entries[entry.object] = entry
                wrong.needed_by.setdefault(entry.object, []).append(manifest.backup_id)
            else:
                wrong.whole |= dict.fromkeys(_marks(entry), entry.object)
    for path, claims in claims_of(repository, name, wrong.entries.keys()).items():
        if len(claims) > 1:
            del wrong.entries[path]
            wrong.disputed.append((path, suspects(repository, claims)))
    for path in _contradicted(repository, name, [path for path in wrong.entries if part_of(path)]):
        del wrong.entries[path]
        wrong.disputed.append((path, tuple(dict.fromkeys(wrong.needed_by[path]))))
    return wrong


def _contradicted(repository: Repository, name: str, paths: Sequence[str]) -> list[str]:
    """Contents in packs in whose places manifests list others: those that the index of their pack does not have."""
    packs = {file_of(path) for path in paths}
    listed: dict[str, list[Part]] = {pack: [] for pack in packs}
    moved = read_moved(repository.location, name) if packs else Moved()
    objects = listed_by(repository, name).objects if packs else ()
    for place in {each for path in objects for each in moved.places(path)}:
        if (part := part_of(place)) and part.length and part.pack in packs:
            listed[part.pack].append(part)
    overlapping: set[Part] = set()
    for parts in listed.values():
        last: Part | None = None
        for part in sorted(parts, key=lambda each: (each.start, each.end)):
            if last is not None and part.start < last.end:
                overlapping |= {last, part}
            if last is None or part.end > last.end:
                last = part
    held = {part for pack in {part.pack for part in overlapping} for part in _held(repository, pack, overlapping)}
    return [path for path in paths if (part := part_of(path)) in overlapping and part not in held]


def _held(repository: Repository, pack: str, parts: Iterable[Part]) -> list[Part]:
    """Of some contents in packs, those that the index of one pack has."""
    rows = {(part.sha256, part.start, part.length): part for part in parts if part.pack == pack}
    try:
        return [rows[row] for row in read_index(repository.location.read_pack(pack)) if row in rows]
    except (FileNotFoundError, DamagedFileError, ValueError):
        return []


def _in_second(second: Repository, name: str, wrong: _Wrong) -> dict[str, list[str]]:
    """Objects of a second repository that may hold the contents of wrong ones: they are of the same file, with its size."""
    known = read_damaged(second.location, name).objects
    wanted: dict[tuple[str, int], list[str]] = {}
    for path, entry in wrong.entries.items():
        wanted.setdefault((entry.path, entry.size), []).append(path)
    found: dict[str, list[str]] = {}
    for manifest in readable(second, name, second.backup_ids(name)):
        for entry in manifest.files if isinstance(manifest, Manifest) else ():
            for path in wanted.get((entry.path, entry.size), ()) if entry.object not in known else ():
                if entry.object not in found.setdefault(path, []):
                    found[path].append(entry.object)
    return found


def _moved_from_or_to(repository: Repository, name: str) -> dict[str, set[str]]:
    """Place of each content that was moved -> the places that it was moved from or to, by any record."""
    found: dict[str, set[str]] = {}
    for says in read_moved(repository.location, name).records.values():
        for old, new in says.items():
            found.setdefault(old, set()).add(new)
            found.setdefault(new, set()).add(old)
    return found


def _other_places(moved_from_or_to: Mapping[str, set[str]], path: str) -> list[str]:
    """All other places that a content has or had: an earlier one may not be deleted yet."""
    found: set[str] = set()
    left = [path]
    while left:
        if (each := left.pop()) not in found:
            found.add(each)
            left += moved_from_or_to.get(each, ())
    return sorted(found - {path})


def _marks(entry: FileEntry) -> list[tuple[str, int]]:
    """By what a content is known, where that can be computed."""
    checksum = entry.checksum if entry.sha256 is None and is_computable(entry) else None
    return [(mark, entry.size) for mark in (entry.sha256, checksum) if mark is not None]


def _mended(repository: Repository, pack: str, contents: Sequence[tuple[FileEntry, bytes]]) -> bytes:
    """A pack with some contents put in their places; byte for byte as it was written, where all of it is known.

    A reader prefers a pack that is there to where its contents were moved to. So a missing one gets these as well.
    """
    size, place, name = pack_size(pack) or 0, repository.location, pack.split("/")[1]
    moved = read_moved(place, name)
    try:
        data = bytearray(place.read_pack(pack))
        data += bytes(size - len(data))
    except DamagedFileError:
        data = bytearray(size)
    except FileNotFoundError:
        data = bytearray(size)
        for path in moved.paths:
            if (
                (part := part_of(path))
                and part.pack == pack
                and (content := _whole_part(place, path, part)) is not None
            ):
                data[part.start : part.end] = content
    for entry, content in contents:
        if part := part_of(entry.object):
            data[part.start : part.end] = content
    listed = listed_by(repository, name).objects
    parts = {
        part for path in listed for each in (path, moved.now(path)) if (part := part_of(each)) and part.pack == pack
    }
    return with_index(data, ((part.sha256, part.start, part.length) for part in parts))


def _write(repository: Repository, path: str, contents: Sequence[tuple[FileEntry, bytes]]) -> None:
    """Write a file in which contents are wrong; another repair may be writing others of the same pack at this moment.

    :raises StorageError: it cannot be written.
    """
    place = repository.location
    if not contents[0][0].is_packed:
        place.replace(path, contents[0][1])
        return
    for _ in range(_TIMES):
        there = place.find(path)  # before it is read: what others write after this is not written over
        pack = _mended(repository, path, contents)
        try:
            if there is None:
                place.create(path, pack)
            else:
                place.replace_listed(there, pack)
            return
        except (FileChangedError, FileExistsError) as e:
            log.info("%s changed while it was repaired: %s", path, e)
    raise StorageError(
        f"{path} changed {_TIMES} times while it was repaired", hint="somebody else repairs it: run it again"
    )


def _whole_part(place: Location, path: str, part: Part) -> bytes | None:
    try:
        content = place.read(path)
    except (FileNotFoundError, DamagedFileError):
        return None
    return content if hashlib.sha256(content).hexdigest() == part.sha256 else None


def _by_file(repository: Repository, rebuilt: Sequence[Rebuilt]) -> dict[str, list[tuple[Rebuilt, FileEntry]]]:
    """What is rebuilt by the file that it is read from, with its place there: another pack, if its own was repacked."""
    found: dict[str, list[tuple[Rebuilt, FileEntry]]] = {}
    gone = {
        pack
        for pack in {file_of(each.entry.object) for each in rebuilt if each.entry.is_packed}
        if repository.location.find(pack) is None
    }
    moved = {name: read_moved(repository.location, name) for name in {pack.split("/")[1] for pack in gone}}
    for each in rebuilt:
        path = each.entry.object
        if file_of(path) in gone:
            path = moved[path.split("/")[1]].now(path)
        found.setdefault(file_of(path), []).append((each, each.entry._replace(object=path)))
    return found


def apply_objects_repair(
    repository: Repository,
    checkpoint: Location,
    plan: ObjectsRepairPlan,
    *,
    second: Repository | None = None,
    made_by: str = "",
    reason: str = "",
) -> dict[str, Any]:
    """Write the objects, and return how many there were. One that is wrong is replaced: nothing can need it as it is.

    :raises StorageError: a content is gone since the plan was made, or cannot be written; the same command again continues.
    """
    places = _Places(repository, checkpoint, second)
    names = {
        path.split("/")[1] for path in (*(r.entry.object for r in plan.rebuilt), *(e.object for e in plan.whole_again))
    }
    known = {name: read_damaged(repository.location, name) for name in names}
    whole: list[str] = []
    for name in names:
        # A pack that is written has its size again, whatever is in the place of a content that is lost.
        lost = [path for path, _ in plan.lost if part_of(path) and path.startswith(f"{OBJECTS}/{name}/")]
        if lost:
            learn_damaged(repository.location, name, damaged=dict.fromkeys(lost, "content"), whole=(), since=0)
    for path, of_file in _by_file(repository, plan.rebuilt).items():
        contents: dict[int, bytes] = {}
        places.read([each for each, _ in of_file], contents.__setitem__)
        if missing := next((r for number, (r, _) in enumerate(of_file) if number not in contents), None):
            raise StorageError(
                f"{missing.source} is not any more what {missing.entry.object} was",
                hint="make a new plan: run it again",
            )
        right = [(entry, contents[number]) for number, (_, entry) in enumerate(of_file)]
        _write(repository, path, right)
        written = [each.entry for each, _ in of_file]
        found = _whole(repository, written)
        if wrong := next((entry for entry in written if entry.object not in found), None):
            raise StorageError(
                f"{wrong.object} was written, and does not read back as what was written",
                hint="check the store: it does not keep what it is given",
            )
        whole += found
    whole += _whole(repository, plan.whole_again)
    moved = MovedContents(repository)
    for name, before in known.items():
        of_name = [path for path in whole if path.split("/")[1] == name]
        others = whole_by_other_names(repository, of_name, before.objects.keys(), moved)
        if cleared := before.objects.keys() & {*of_name, *others}:
            learn_damaged(repository.location, name, damaged={}, whole=cleared, since=before.number)
    outcome = {
        "plan_id": plan.plan_id, "rebuilt": len(plan.rebuilt), "lost": len(plan.lost), "whole_again": len(plan.whole_again)
    }  # fmt: skip
    if whole:
        record = {"kind": "repository repair", "made_by": made_by, "reason": reason, "plan": plan.to_json()}
        repository.record(plan.plan_id, record)
    return outcome
