"""The metadata of an Iceberg table, read without a client (Iceberg's table spec)."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from typing import Any

from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import Location

METADATA = "metadata"
VERSION_HINT = f"{METADATA}/version-hint.text"
MAIN = "main"
#: How a person names a table of a catalog.
SCHEME = "iceberg:"
#: ``v7.metadata.json`` of a Hadoop table, ``00007-<uuid>.metadata.json`` of one in a catalog; either may be compressed.
_HADOOP = re.compile(r"v([0-9]+)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_IN_CATALOG = re.compile(r"([0-9]+)-.+?(?:\.gz)?\.metadata\.json(?:\.gz)?")


def is_iceberg_table(place: Location) -> bool:
    """Whether a place is the directory of an Iceberg table."""
    names = (file.path.rpartition("/")[2] for file in place.list(METADATA).files)
    return any(name == "version-hint.text" or _HADOOP.fullmatch(name) or _IN_CATALOG.fullmatch(name) for name in names)


def newest_metadata(place: Location) -> tuple[str, bool]:
    """The newest metadata file in a table's directory, and whether that is how its writers find it (a Hadoop table).

    A Hadoop table that was registered in a catalog keeps its files beside those of the catalog. So where both are there, it is
    not known which one writers find.

    :raises RefusedError: there is none.
    :raises UnreadableLogError: both are there, and one of them cannot be parsed.
    """
    by_version = hadoop_files(place)
    names = [file.path.rpartition("/")[2] for file in place.list(METADATA).files]
    by_number = [(int(match[1]), name) for name in names if (match := _IN_CATALOG.fullmatch(name))]
    # Iceberg begins with the hint, which may be old, and continues while there is a next version.
    of_hadoop = by_version[max(by_version)][0] if by_version else None
    of_catalog = f"{METADATA}/{max(by_number)[1]}" if by_number else None
    if of_hadoop and of_catalog:
        return max(of_hadoop, of_catalog, key=lambda path: _updated(read_metadata(place, path))), False
    if found := of_hadoop or of_catalog:
        return found, found == of_hadoop
    raise RefusedError(
        f"{place} is not an Iceberg table: it has no {METADATA}/*.metadata.json",
        hint="give the directory of the table, or its name: --sink iceberg:CATALOG.NAMESPACE.TABLE",
    )


def _updated(metadata: Mapping[str, Any]) -> int:
    updated = metadata.get("last-updated-ms")
    return updated if type(updated) is int else 0


def hadoop_files(place: Location) -> dict[int, list[str]]:
    """Version -> metadata files of a Hadoop table, the one that Iceberg reads first: it looks for the plain one first.

    Source: ``HadoopTableOperations.getMetadataFile``. There is more than one where writers with different codecs met.
    """
    found: dict[int, list[str]] = {}
    for file in place.list(METADATA).files:
        name = file.path.rpartition("/")[2]
        if match := _HADOOP.fullmatch(name):
            found.setdefault(int(match[1]), []).append(f"{METADATA}/{name}")
    # v7.metadata.json, then v7.gz.metadata.json, then the v7.metadata.json.gz of old versions of Iceberg.
    return {version: sorted(paths, key=lambda path: (".gz" in path, path)) for version, paths in found.items()}


def version_of(path: str) -> int:
    """The version of a Hadoop table's metadata file."""
    match = _HADOOP.fullmatch(path.rpartition("/")[2])
    if match is None:
        raise ValueError(f"{path} is no metadata file of a Hadoop table")
    return int(match[1])


def read_metadata(place: Location, path: str) -> dict[str, Any]:
    """Read one metadata file.

    :raises UnreadableLogError: it cannot be parsed, or is no metadata of a table.
    """
    try:
        data = place.read(path)
        metadata = load_json(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
        if not isinstance(metadata, dict) or "table-uuid" not in metadata:
            raise ValueError("table-uuid is missing")
    except FileNotFoundError as e:
        raise UnreadableLogError(f"{place}/{path} is gone since it was listed", path=path, hint="try again") from e
    except (ValueError, OSError, EOFError) as e:
        raise UnreadableLogError(
            f"{place}/{path} is no metadata of an Iceberg table ({e})",
            path=path,
            hint="the table itself is damaged here: restore the file",
        ) from e
    return metadata


def head_of(metadata: Mapping[str, Any]) -> int | None:
    """Id of the current snapshot; ``None`` for a table without one."""
    head = metadata.get("current-snapshot-id")
    return None if head is None or int(head) == -1 else int(head)


def snapshots_of(metadata: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Id -> each snapshot that has not expired."""
    return {int(snapshot["snapshot-id"]): snapshot for snapshot in metadata.get("snapshots") or ()}


def ancestors(metadata: Mapping[str, Any]) -> tuple[list[int], bool]:
    """The current snapshot and its ancestors, oldest first, and whether they reach back to the table's first one.

    Java's ``expire_snapshots`` leaves the id of an expired parent; pyiceberg's removes it, and only the number of the snapshot
    shows then that there was one before.

    :raises ValueError: the current snapshot is not among the snapshots.
    """
    snapshots = snapshots_of(metadata)
    head = head_of(metadata)
    if head is not None and head not in snapshots:
        raise ValueError(f"the current snapshot {head} is not among the snapshots")
    line, end = _line(snapshots, head)
    number = snapshots[line[0]].get("sequence-number") if line else None
    return line, end is None and (number is None or int(number) <= 1)


def outside_main(metadata: Mapping[str, Any]) -> set[int]:
    """Snapshots of other branches, and staged ones (WAP), that branch main neither has nor ever had.

    What a rollback took out of main is none of them: the log of snapshots names it, or a tag at most keeps it.
    """
    snapshots = snapshots_of(metadata)
    found = {id_ for id_, snapshot in snapshots.items() if "wap.id" in (snapshot.get("summary") or {})}
    for name, reference in (metadata.get("refs") or {}).items():
        if reference.get("type") == "branch" and name != MAIN:
            found.update(_line(snapshots, int(reference["snapshot-id"]))[0])
    found.difference_update(int(entry["snapshot-id"]) for entry in metadata.get("snapshot-log") or ())
    return found.difference(_line(snapshots, head_of(metadata))[0])


def _line(snapshots: Mapping[int, Mapping[str, Any]], head: int | None) -> tuple[list[int], int | None]:
    """A snapshot and its ancestors, oldest first, and the parent of the oldest one if that has expired."""
    at, line = head, dict[int, None]()  # in their order, and found without a search
    while at is not None and at in snapshots and at not in line:
        line[at] = None
        parent = snapshots[at].get("parent-snapshot-id")
        at = None if parent is None or int(parent) == -1 else int(parent)
    return list(line)[::-1], at
