"""Checks of what is said about operators: a repartition that was not finished, paths of another checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_ckpt_provider.checkpoint.doctor import kinds
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination
from airflow_ckpt_provider.checkpoint.findings import Finding, Severity
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry
from airflow_ckpt_provider.checkpoint.operators import STATE, parse_operator_metadata
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.storage.location import Location

_PARTITIONS = "spark.sql.shuffle.partitions"
_PLACE = re.compile(
    r"(?:(?P<scheme>[a-z0-9]+):)?(?://(?P<host>[^/]*))?(?P<path>/.*)/(?:state/\d+/_stateSchema/.*|sources/[^/]+)"
)
#: Hadoop's scheme -> fsspec's protocol, where both name the same path.
_PROTOCOLS = {"file": "file", "s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "hdfs": "hdfs"}


def unfinished_repartition(seen: Examination) -> Iterator[Finding]:
    """15: the newest batch is that of an offline repartition, and not committed."""
    latest = seen.latest_logged
    if latest is None or latest == seen.latest_committed or not seen.has_state:
        return
    entry, before = seen.offsets.get(latest), seen.offsets.get(latest - 1)
    if entry is not None and before is not None and is_repartition(entry, before):
        was, now = before.state_partitions, entry.state_partitions
        yield Finding(
            kinds.REPARTITION_UNFINISHED,
            f"{OFFSETS}/{latest}",
            f"batch {latest} is a repartition of the state from {was} to {now} partitions and is not committed",
            latest,
            {"from": was, "to": now},
        )


def is_repartition(entry: OffsetEntry, before: OffsetEntry) -> bool:
    """Whether an entry is the control batch of an offline repartition (``OfflineStateRepartitionRunner``, Spark 4.2+).

    It has the offsets of the batch before it and another number of partitions; nothing else changes that number.
    """
    same = [s.offset and s.offset.text for s in entry.sources] == [s.offset and s.offset.text for s in before.sources]
    return same and entry.conf.get(_PARTITIONS) != before.conf.get(_PARTITIONS)


def foreign_paths(seen: Examination) -> Iterator[Finding]:
    """16: operator metadata that names schema files of another place."""
    found: dict[str, list[str]] = {}
    for path in versioned_metadata(seen):
        file = seen.tree.get(path)
        try:
            described = parse_operator_metadata(seen.tree.read(file), path=path) if file else None
        except UnreadableLogError:
            continue  # said by the check of the state
        for uri in described.schema_files if described else ():
            if not names_place(uri, seen.tree.location):
                found.setdefault(uri.rpartition("/state/")[0], []).append(path)
                break
    for place, paths in sorted(found.items()):
        comparable = _protocol(place) == seen.tree.location.store.protocol
        yield Finding(
            kinds.STATE_FOREIGN_PATHS,
            paths[0],
            f"{paths[0]} names schema files below {place}, the checkpoint is at {seen.tree.location}",
            figures={"place": place, "paths": paths},
            level=None if comparable else Severity.WARNING,
            effect=""
            if comparable
            else "None, if both are names of one place, as a mount may have. Else it reads the files of the other checkpoint, or "
            "fails where they are gone.",
        )


def versioned_metadata(seen: Examination) -> Iterator[str]:
    """Paths of all ``state/<op>/_metadata/v2/<batch>``."""
    for operator in seen.tree.numbered_directories(STATE):
        directory = f"{STATE}/{operator}/_metadata/v2"
        for name in sorted(seen.tree.files(directory)):
            if batch_id_of(name) is not None:
                yield f"{directory}/{name}"


def names_place(uri: str, location: Location) -> bool:
    """Whether the URI of a schema file, or of a source's log, as Spark wrote it, lies in a checkpoint.

    Where the store goes by a name that Hadoop does not have, as a mount does, the last part of the path has to do.
    """
    match = _PLACE.fullmatch(uri)
    if match is None:
        return True  # not a name that shows a place
    protocol = _protocol(uri)
    path = match["path"]
    if protocol != location.store.protocol:
        return path.rpartition("/")[2] == location.name
    if protocol in ("s3", "gs"):
        path = f"{match['host']}{path}"
    canonical = location.store.canonical
    return canonical(path.rstrip("/")) == canonical(location.root.rstrip("/"))


def _protocol(uri: str) -> str:
    scheme = uri.partition(":")[0] if ":" in uri else "file"
    return _PROTOCOLS.get(scheme, scheme)
