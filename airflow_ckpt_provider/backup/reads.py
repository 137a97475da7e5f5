"""When each object of a stream was last read by a verify: by this the next one picks what to read.

::

    read/<name>/<nnnnnn>.json       the objects that one verify has read
    read/<name>/<nnnnnn>-all.json   those of all verifies up to this number, with the time of the last one

A verify reads the newest ``-all`` and what came after it. The one that finds :data:`_MERGE_FROM` records or more writes them
again as one. An object whose record is lost is read earlier than it need be. Whether all contents of a backup were read, in
the turns of several verifies, rests on these records too: so they are signed, and an unsigned one is taken for none where keys
are trusted.

An object is named by the first eight bytes of the SHA-256 of its path. That two of a million objects share them, so that one is
taken for read when the other was, has a chance of 1 in 37 million.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from airflow_ckpt_provider.backup.manifest import CLOCKS_DIFFER
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.errors import DamagedFileError, StorageError, TooLargeError, UntrustedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.location import LARGE, Location

log = logging.getLogger(__name__)

_READ = "read"
_FORMAT = "airflow-ckpt-objects-read"
_VERSION = 1
_ALL = "-all"
#: So many records are written again as one.
_MERGE_FROM = 32
_BYTES = 8


@dataclass(slots=True)
class Reads:
    """When objects were read.

    :param times: name of an object, as :func:`named` makes it -> seconds since the epoch.
    :param number: of the newest record; 0 if there is none.
    :param records: how many there are since the last that holds all.
    """

    times: dict[bytes, int] = field(default_factory=dict)
    number: int = 0
    records: int = 0

    def last(self, path: str) -> int | None:
        """When an object was last read, in seconds since the epoch; ``None``: it is not known that it ever was."""
        return self.times.get(named(path))


def named(path: str) -> bytes:
    """The short name of an object."""
    return hashlib.sha256(path.encode()).digest()[:_BYTES]


def read_reads(repository: Location, name: str) -> Reads:
    """Read what was read when: one listing, and a read for each record since the last that holds all.

    A record that cannot be read is left out, and a time in the future too: a clock was wrong.

    :param repository: the repository's place.
    :param name: name of the stream.
    """
    merged, single = _numbers(repository, name)
    begin = max(merged, default=0)
    since = [number for number in single if number > begin]
    paths = [*([_path(name, begin, _ALL)] if begin else []), *(_path(name, number) for number in since)]
    latest = (datetime.now(UTC) + CLOCKS_DIFFER).timestamp()
    times: dict[bytes, int] = {}
    for record in in_parallel(lambda path: _parsed(repository, path), paths):
        for at, objects in record:
            for start in range(0, len(objects), _BYTES) if at <= latest else ():
                each = objects[start : start + _BYTES]
                times[each] = max(at, times.get(each, at))
    return Reads(times, max((begin, *single)), len(since))


def note_reads(
    repository: Location, name: str, known: Reads, objects: Iterable[str], *, at: datetime, there: Iterable[str] | None
) -> None:
    """Note which objects were read.

    :param known: what was known before; records of others since then stay beside this one.
    :param objects: their paths; none: nothing is written.
    :param at: when.
    :param there: paths of the objects that are there. What is known of others is left out where all is written again; ``None``:
        nothing is left out.
    :raises StorageError: these credentials may not write.
    """
    seconds = int(at.timestamp())
    names = b"".join(sorted({named(path) for path in objects}))
    if not names:
        return
    if known.records >= _MERGE_FROM:
        by_time: defaultdict[int, list[bytes]] = defaultdict(list)
        for each in known.times if there is None else map(named, there):
            if each in known.times:
                by_time[known.times[each]].append(each)
        with suppress(FileExistsError):  # another verify has done it
            content = _document((time, b"".join(sorted(each))) for time, each in sorted(by_time.items()))
            repository.create(_path(name, known.number, _ALL), content)
    number = known.number
    while True:
        number += 1
        try:
            repository.create(_path(name, number), _document([(seconds, names)]))
            return
        except FileExistsError:
            continue


def tidy_reads(repository: Location, name: str) -> None:
    """Delete the records that one which holds all has taken the place of."""
    merged, single = _numbers(repository, name)
    newest = max(merged, default=0)
    for number in merged[:-1]:
        repository.delete(_path(name, number, _ALL))
    for number in single:
        if number <= newest:
            repository.delete(_path(name, number))


def _numbers(repository: Location, name: str) -> tuple[list[int], list[int]]:
    """Numbers of the records that hold all, and of the others."""
    files = repository.list(f"{_READ}/{checked_name(name)}").files
    names = [n.removesuffix(".json") for f in files if (n := f.path.rpartition("/")[2]).endswith(".json")]
    merged = sorted(int(digits) for n in names if n.endswith(_ALL) and (digits := n.removesuffix(_ALL)).isdecimal())
    return merged, sorted(int(n) for n in names if n.isdecimal())


def _path(name: str, number: int, kind: str = "") -> str:
    return f"{_READ}/{name}/{number:06d}{kind}.json"


def _document(reads: Iterable[tuple[int, bytes]]) -> bytes:
    rows = [
        {
            "at": datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"),
            "objects": base64.b64encode(objects).decode(),
        }
        for at, objects in reads
    ]
    return json.dumps({"format": _FORMAT, "version": _VERSION, "reads": rows}).encode()


def _parsed(repository: Location, path: str) -> list[tuple[int, bytes]]:
    try:
        value = load_json(repository.read_document(path, most=LARGE))
        if value["format"] != _FORMAT or value["version"] != _VERSION:
            raise ValueError(f"format {value['format']} version {value['version']}")
        return [
            (int(datetime.fromisoformat(row["at"]).timestamp()), base64.b64decode(row["objects"], validate=True))
            for row in value["reads"]
        ]
    except FileNotFoundError:
        return []  # a prune has tidied up since it was listed
    except UntrustedError as e:  # of a version before 0.2.0, or forged
        log.info("%s: what it names is taken for not read", e.message)
        return []
    except (StorageError, DamagedFileError, TooLargeError, ValueError, KeyError, TypeError) as e:
        log.warning("%s cannot be read (%s): what it names is taken for not read", path, e)
        return []
