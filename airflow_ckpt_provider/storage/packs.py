"""Packs: files of a repository that hold many small contents, each of which is named and read like a file of its own.

::

    objects/<stream>/<xx>/<SHA-256>-<bytes>[-g<generation>].pack                               a pack
    objects/<stream>/<xx>/<SHA-256>-<bytes>[-g<generation>].pack/<SHA-256>-<offset>-<bytes>    a content in it

The path of a content says all that reading it takes: which file, which part of it, and what the hash of that part is.
The name of a pack has the SHA-256 and the bytes of the whole file, so that a listing shows one that is cut off, and
one read another one under its name. What a pack is like inside: :mod:`~airflow_ckpt_provider.backup.pack_file`.

Contents that a prune has repacked, and objects that were packed later, are found by the records in
``moved/<stream>/``; manifests never change::

    moved/<stream>/<nnnnnn>.json    {"moved": {pack: {new pack: {"<SHA-256>-<offset>-<bytes>": new offset}}},
                                     "packed": {new pack: {"<xx>/<key>": "<SHA-256>-<offset>-<bytes>"}}}

Version 1 of a record has no ``packed``. Both have ``sha256``, the hash of all else in it; the first records had none.
Whoever reads a content compares its SHA-256, and looks where it was as well, so a forged record can hide no content that
is there. A record that cannot be read is named and says nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from airflow_ckpt_provider.errors import DamagedFileError, TooLargeError, UntrustedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.units import format_size

if TYPE_CHECKING:
    from airflow_ckpt_provider.storage.location import Location
    from airflow_ckpt_provider.storage.store import StoredFile

log = logging.getLogger(__name__)

MOVED = "moved"
#: Contents that a record names at most; of a pack that has more all of them. They take about 100 bytes each, objects 200.
MOVED_AT_ONCE = 50_000
#: Bytes that a pack may have: more than any that is written.
LARGEST = 128 * 1024**2
#: The highest number that a record gets.
HIGHEST_RECORD = 99_999_999
#: What to do about a record that cannot be read.
WITHOUT_RECORD = (
    "Put this file back from a copy of the repository; without one, move it out of the repository and keep it. Then "
    "`airflow-ckpt verify --read-data` reports which backups are whole, and a prune keeps the packs that may hold the others"
)
#: Records that are read at once.
RECORDS_AT_ONCE = 16
#: What a record says, or why it cannot be read; ``None``: it does not count.
Record = dict[str, str] | str | None
_FORMAT = "airflow-ckpt-moved"
_VERSION = 2
_PACK = re.compile(r"objects/([^/]+)/[0-9a-f]{2}/([0-9a-f]{64})-([0-9]{1,12})(?:-g[0-9]{1,9})?\.pack(?:\.[0-9]{1,2})?")
_CONTENT = re.compile(r"([0-9a-f]{64})-([0-9]{1,12})-([0-9]{1,12})")
_RECORD_DIGITS = re.compile(rf"[0-9]{{6,{len(str(HIGHEST_RECORD))}}}")
#: The name of an object whose content passed through this program begins with the content's SHA-256.
OBJECT_SHA256 = re.compile(r"[0-9a-f]{64}(?=$|[-.])")
PACK_SUFFIX = ".pack"
#: Characters of a path in a repository that are no more than names of streams and hashes take.
_LONGEST = 600


class Part(NamedTuple):
    """A content in a pack.

    :param pack: path of the pack in the repository.
    :param pack_sha256: hash of the whole pack.
    :param pack_size: its bytes.
    :param sha256: hash of the content.
    :param start: where it begins in the pack.
    :param length: its bytes.
    """

    pack: str
    pack_sha256: str
    pack_size: int
    sha256: str
    start: int
    length: int

    @property
    def end(self) -> int:
        """Where it ends in the pack."""
        return self.start + self.length


def part_of(path: str) -> Part | None:
    """The content in a pack that a path names; ``None``: it names something else."""
    if PACK_SUFFIX not in path:
        return None
    return _read_part(path) if len(path) <= _LONGEST else _part(path)


def _part(path: str) -> Part | None:
    pack, _, content = path.rpartition("/")
    if not (of_pack := _of_pack(pack)) or not (of_content := _CONTENT.fullmatch(content)):
        return None
    return Part(pack, *of_pack, of_content[1], int(of_content[2]), int(of_content[3]))


def _of_pack(path: str) -> tuple[str, int] | None:
    """Hash and bytes of a pack by its name; ``None``: a file of this path is no pack."""
    return _read_pack(path) if len(path) <= _LONGEST else _pack(path)


def _pack(path: str) -> tuple[str, int] | None:
    found = _PACK.fullmatch(path)
    return (found[2], int(found[3])) if found else None


#: Hundreds of contents name the same pack.
_read_pack = lru_cache(maxsize=64)(_pack)
#: The steps of a restore ask for the same paths again and again. What is kept takes 15 MB at most.
_read_part = lru_cache(maxsize=16_384)(_part)


def checked_part(path: str) -> Part | None:
    """As :func:`part_of`, for a path that a document holds.

    :raises ValueError: it names a content that no pack can hold. The message says why, without the path.
    """
    if PACK_SUFFIX not in path or _of_pack(path.rpartition("/")[0]) is None:
        return None
    part = part_of(path)
    if part is None:
        raise ValueError("it names a pack, and no content in it")
    if part.pack_size > LARGEST:
        raise ValueError(f"no pack has {format_size(part.pack_size)}")
    if part.end > part.pack_size:
        raise ValueError("it ends behind the end of its pack")
    return part


def pack_size(path: str) -> int | None:
    """Bytes of a pack by its name; ``None``: a file of this path is no pack."""
    found = _of_pack(path) if PACK_SUFFIX in path else None
    return found[1] if found else None


def pack_sha256(path: str) -> str:
    """Hash of a pack by its name."""
    found = _of_pack(path)
    if found is None:
        raise ValueError(f"{path} is no pack")
    return found[0]


def file_of(path: str) -> str:
    """The file that holds an object: a pack, or the object itself."""
    return path if PACK_SUFFIX not in path or part_of(path) is None else path.rpartition("/")[0]


def content_path(pack: str, sha256: str, start: int, length: int) -> str:
    """Path of a content in a pack."""
    return f"{pack}/{sha256}-{start}-{length}"


@dataclass(frozen=True, slots=True)
class Moved:
    """Where contents are that were packed, or repacked, after their backups were made.

    :param paths: path of a content or an object -> its new path, that of a content.
    :param records: path of each record -> what it says; nothing in the place of one whose repack was given up.
    :param number: of the newest record; 0 if there is none.
    :param unreadable: records that cannot be read, in words.
    :param listed: the files of the records, as they were listed.
    :param most: how often a content can have been moved, if the records are not given.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    records: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    number: int = 0
    unreadable: tuple[str, ...] = ()
    listed: tuple[StoredFile, ...] = ()
    most: int = 0

    def now(self, path: str) -> str:
        """Where an object is now."""
        return self.chain(path)[-1] if path in self.paths else path

    def chain(self, path: str) -> list[str]:
        """Where an object was, in order, and is now; of one that was never moved its path alone.

        Each record moves a content once. So a chain that is longer than there are records is forged, and ends there: else
        one record could take the time of its length, for each file of a backup.
        """
        found = {path: None}
        last = path
        while (further := self.paths.get(last)) and further not in found and len(found) <= self._most:
            found[last := further] = None
        return list(found)

    @property
    def _most(self) -> int:
        return self.most or len(self.records) or len(self.paths)

    def elsewhere(self, path: str) -> Iterator[str]:
        """Where an object was moved to, the newest place first, and at last what only records say that contradict others."""
        chain = self.chain(path)
        yield from reversed(chain[1:])
        yield from sorted(self.places(path).difference(chain))

    def part(self, paths: Iterable[str]) -> Moved:
        """Where some objects are, without the records: plain values, for another process."""
        if not self.paths:
            return Moved()
        chains = (self.chain(path) for path in paths)
        return Moved({old: new for chain in chains for old, new in pairwise(chain)}, most=self._most)

    def places(self, path: str) -> set[str]:
        """Where an object is or was by any record: of two that contradict each other, one may be forged."""
        found = {path}
        new = found
        for _ in self.records:  # each moves it once, as in a chain
            new = {says[each] for each in new for says in self.records.values() if each in says} - found
            if not new:
                break
            found = found | new
        return found


def read_moved(repository: Location, name: str, known: Moved | None = None) -> Moved:
    """Read where contents of a stream have been moved to: one listing, and a read for each record, several at once.

    A record that no trusted key has signed is left out. So is one that is damaged, or names something else than contents of
    the stream, and it is named: whoever deletes something has to know what it says. A file that has not the name of a record
    is named as well, and its number does not count: else the next record could not be written.

    :param known: what was read before. It is returned where the listing is the same.
    """
    files_there = repository.list(f"{MOVED}/{name}").files
    there = ((record_number(file.path), file) for file in files_there if not _is_hidden(file.path))
    numbered = sorted(((-1 if n is None else n, f) for n, f in there), key=lambda each: (each[0], each[1].path))
    listed = tuple(file for _, file in numbered)
    if known is not None and known.listed == listed:
        return known
    files = [file.path for number, file in numbered if number >= 0]
    paths: dict[str, str] = {}
    records: dict[str, dict[str, str]] = {}
    unreadable = [
        f"{file.path} is no record: none has this name, and nothing is read there" for n, file in numbered if n < 0
    ]
    for words in unreadable:
        log.warning("%s", words)
    said = in_parallel(lambda path: _read_record(repository, name, path), files, workers=RECORDS_AT_ONCE)
    for path, found in zip(files, said, strict=True):
        if isinstance(found, str):
            unreadable.append(f"{path} cannot be read ({found}): it says where contents of {name} have been moved to")
            log.warning("%s; it is ignored", unreadable[-1])
        elif found is not None:
            records[path] = found
            # The first record of a content counts: what it names is what prunes have left alone since.
            paths = found | paths
    return Moved(paths, records, max((n for n, _ in numbered if n >= 0), default=0), tuple(unreadable), listed)


def _read_record(repository: Location, name: str, path: str) -> Record:
    """What a record says; ``None`` for one that no trusted key has signed, and why in words for one that cannot be read."""
    try:
        return _parsed(repository, name, path)
    except UntrustedError:
        return None
    except (DamagedFileError, TooLargeError) as e:
        return e.message
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        return f"{type(e).__name__}: {e}"


def moved_document(moved: Mapping[str, str]) -> dict[str, object]:
    """The record of contents that are elsewhere now.

    :param moved: path of each content, or object of its own -> its new path.
    """
    packs: dict[str, dict[str, dict[str, int]]] = {}
    packed: dict[str, dict[str, str]] = {}
    for old, new in moved.items():
        to = part_of(new)
        if to is None:
            raise ValueError(f"{new} is no content in a pack")
        if part_of(old) is None:
            packed.setdefault(to.pack, {})[old.split("/", 2)[2]] = new.rpartition("/")[2]
        else:
            pack, _, content = old.rpartition("/")
            packs.setdefault(pack, {}).setdefault(to.pack, {})[content] = to.start
    found: dict[str, object] = {"format": _FORMAT, "version": _VERSION if packed else 1, "moved": packs}
    if packed:
        found["packed"] = packed
    return {**found, "sha256": record_sha256(found)}


def record_sha256(document: Mapping[str, object]) -> str:
    """Hash of what a record says, in one form; it is in the record itself.

    :param document: the record, with it or without.
    """
    says = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(says, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def moved_path(name: str, number: int) -> str:
    """Path of a record."""
    return f"{MOVED}/{name}/{number:06d}.json"


def can_be_packed(path: str, sha256: str) -> bool:
    """Whether a record can say of an object of its own that its content is in a pack now.

    :param path: of the object.
    :param sha256: hash of the content.
    """
    named = OBJECT_SHA256.match(path.rpartition("/")[2])
    return PACK_SUFFIX not in path.split("/", 2)[2] and (named is None or named[0] == sha256)


def record_number(path: str) -> int | None:
    """Number of a record by its path; ``None``: no record has this name."""
    digits = path.rpartition("/")[2].removesuffix(".json")
    # No number of thousands of digits is converted, and each number has one name only.
    if not (_RECORD_DIGITS.fullmatch(digits) and path.endswith(f"/{int(digits):06d}.json")):
        return None
    return int(digits)


def _is_hidden(path: str) -> bool:
    """Whether a process that was killed while it wrote a file may have left this one."""
    return path.rpartition("/")[2].startswith(".")


def _parsed(repository: Location, name: str, path: str) -> dict[str, str]:
    """What a record says; whatever is wrong with it is one of Python's own errors."""
    from airflow_ckpt_provider.storage.location import safe_relative

    try:
        value = load_json(repository.read_document(path))
    except FileNotFoundError:
        return {}  # a prune has tidied up since it was listed
    if value == {"format": "airflow-ckpt-given-up"}:
        return {}
    if value["format"] != _FORMAT or value["version"] not in (1, _VERSION):
        raise ValueError(f"format {value['format']} version {value['version']}")
    if "sha256" in value and value["sha256"] != record_sha256(value):
        raise ValueError("it is not what was written")
    found, below = {}, f"objects/{name}"
    for new_pack, objects in value["packed"].items() if value["version"] == _VERSION else ():
        for key, content in objects.items():
            old_path = safe_relative(f"objects/{name}/{key}", below=below)
            to = f"{new_pack}/{content}"
            part = checked_part(safe_relative(to, below=below))
            if part is None or not can_be_packed(old_path, part.sha256):
                raise ValueError(f"{to} cannot be the content of {old_path}")
            found[old_path] = to
    for old_pack, targets in value["moved"].items():
        for new_pack, contents in targets.items():
            for content, start in contents.items():
                old = checked_part(safe_relative(f"{old_pack}/{content}", below=below))
                if old is None or type(start) is not int or start < 0:
                    raise ValueError(f"{old_pack}/{content} is no content in a pack")
                to = content_path(new_pack, old.sha256, start, old.length)
                if checked_part(safe_relative(to, below=below)) is None:
                    raise ValueError(f"{to} is no content in a pack")
                found[f"{old_pack}/{content}"] = to
    return found
