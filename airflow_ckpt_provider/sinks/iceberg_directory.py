"""A commit to an Iceberg table of a Hadoop catalog: the next ``v<N>.metadata.json`` in its directory, if nobody else was first.

The file is created if there is none, and the rest is what that alone does not give (``HadoopTableOperations`` of Iceberg 1.10):

* Iceberg names a compressed file ``v<N>.gz.metadata.json``. Two writers with different codecs do not meet in one name, and a
  reader takes the plain one. So the name of the current file decides, and the directory is listed again after the creation.
* Iceberg's own writers rename. On an object store that is a copy, which looks before and then writes over. So the file is read
  back.
* The hint only says where a reader begins to look for newer versions, whose older ones may be deleted. It never goes down.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from typing import Any

from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.guards.iceberg_metadata import (
    METADATA,
    VERSION_HINT,
    hadoop_files,
    newest_metadata,
    version_of,
)
from airflow_ckpt_provider.storage.location import Location

#: Hadoop's checksum of the hint on a local disk, which would not fit any more.
_HINT_CHECKSUM = f"{METADATA}/.version-hint.text.crc"


def commit_to_directory(
    place: Location, path: str, metadata: Mapping[str, Any], *, check_lease: Callable[[], None] = lambda: None
) -> None:
    """Make metadata the next version of a table.

    :param place: the table's directory.
    :param path: the current metadata file, which the new one follows.
    :param metadata: the new metadata.
    :param check_lease: raises where the caller may not write any more; called right before the file is created.
    :raises RefusedError: somebody else committed; the table is as they left it.
    :raises StorageError: somebody else committed the same version under another name, and a newer version follows one of them.
    """
    version = version_of(path) + 1
    compressed = ".gz" in path.rpartition("/")[2]
    name = f"{METADATA}/v{version}{'.gz' if compressed else ''}.metadata.json"
    text = json.dumps(metadata).encode()
    data = gzip.compress(text, mtime=0) if compressed else text
    _expect_newest(place, path)
    check_lease()
    try:
        place.create(name, data)
    except FileExistsError as e:
        raise _refused(place, name) from e
    _expect_ours(place, name, data)
    others = [other for other in hadoop_files(place).get(version, ()) if other != name]
    if others:
        _withdraw(place, name, data, others)
        raise _refused(place, others[0])
    _raise_hint(place, version)


def _refused(place: Location, name: str) -> RefusedError:
    return RefusedError(
        f"{place} was written to at the same moment ({name} exists); the table was not changed",
        hint="see who else writes into the table, then make a new plan",
    )


def _expect_newest(place: Location, path: str) -> None:
    newest, _ = newest_metadata(place)
    if newest != path:
        raise _refused(place, newest)


def _expect_ours(place: Location, name: str, data: bytes) -> None:
    """See that no writer that looked before our creation has renamed its file over ours.

    :raises RefusedError: one has.
    """
    try:
        if place.read(name) == data:
            return
    except FileNotFoundError:
        pass
    raise RefusedError(
        f"another writer has written over {place}/{name} just after it was created: its commit stands, and the rollback is not "
        "in the table",
        hint="stop whoever else writes into the table, then make a new plan",
    )


def _withdraw(place: Location, name: str, data: bytes, others: list[str]) -> None:
    """Take our file back, which a reader may prefer to that of another writer who was committing the same version.

    :raises StorageError: a newer version follows already, so nobody knows which of the two it follows.
    """
    _expect_ours(place, name, data)
    newest = max(hadoop_files(place))
    if newest > version_of(name):
        raise StorageError(
            f"{place} has version {version_of(name)} twice, {name} and {others[0]}, and a version {newest} that follows one of "
            "them",
            hint=f"{name} is of this rollback: stop all writers, see which of the two the newest version follows, and remove the "
            "other",
        )
    place.delete(name)


def _raise_hint(place: Location, version: int) -> None:
    """Let the hint name a version, or a newer one if another writer has committed since; never an older one than it names."""
    while (_hinted(place) or 0) < version:
        place.delete(_HINT_CHECKSUM)
        if (_hinted(place) or 0) >= version:
            return
        place.replace(VERSION_HINT, str(version).encode())
        place.delete(_HINT_CHECKSUM)
        # If this process was suspended before it wrote, the others are ahead by now, and their hint was written over.
        version = max(hadoop_files(place), default=version)


def _hinted(place: Location) -> int | None:
    """The version that the hint names; ``None`` without one."""
    try:
        return int(place.read(VERSION_HINT).strip())
    except (FileNotFoundError, ValueError):
        return None
