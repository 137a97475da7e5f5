"""The names by which OpenLineage knows places, tables and topics, so that our runs and those of Spark meet at the same datasets.

The rules are those of https://openlineage.io/docs/spec/naming; where they leave a choice, what OpenLineage's integration of
Spark does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider.redaction import redacted
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import is_number

#: Other spellings of a scheme -> the one of the rules.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "az": "abfss", "wasb": "wasbs", "webhdfs": "hdfs"}
#: Names in a bucket begin without a slash, in any other store with one.
_BUCKETS = frozenset({"s3", "gs", "abfss", "wasbs"})
_AZURE = frozenset({"abfss", "wasbs"})
_KAFKA_PORT = "9092"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a run read or wrote.

    :param namespace: the store or system that has it.
    :param name: its name there.
    :param version: its version: of a checkpoint the batch, of a backup its id, of a table its version; empty: not known.
    :param facets: facets of ours by their names; see ``facets.schema.json``.
    :param files: files that were written; ``None``: not known.
    :param size: bytes that were written; likewise.
    """

    namespace: str
    name: str
    version: str = ""
    facets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: int | None = None
    size: int | None = None


def dataset_of(uri: str, **more: Any) -> Dataset | None:
    """Name a place; ``None`` where the rules have no name for it, such as a table that only its catalog can find.

    :param uri: a URI or an absolute path.
    :param more: the other fields of the dataset.
    """
    scheme, separator, rest = redacted(uri).partition("://")
    if not separator:
        return Dataset("file", uri.rstrip("/") or "/", **more) if uri.startswith("/") else None
    if not _SCHEME.fullmatch(scheme):
        return None
    scheme = _SCHEMES.get(scheme.lower(), scheme.lower())
    authority, _, path = rest.partition("/")
    path = path.strip("/")
    user, _, host = authority.rpartition("@")
    # Of Azure, the container stands before the account; anything else there is a login, or the id of an Airflow connection.
    if not (scheme in _AZURE and "." in host and ":" not in user):
        authority = host
    if scheme == "file":
        return Dataset(f"file://{authority}" if authority else "file", f"/{path}", **more)
    if not authority:
        return None
    return Dataset(f"{scheme}://{authority}", path or "/" if scheme in _BUCKETS else f"/{path}", **more)


def topic_of(servers: str, topic: str) -> Dataset | None:
    """Name a topic of Kafka by the first of its cluster's servers; ``None`` where they are not known.

    :param servers: ``bootstrap.servers``.
    :param topic: the topic.
    """
    first = servers.split(",")[0].strip().rpartition("://")[2]
    if not first.strip("?"):
        return None
    host, _, port = first.rpartition(":")
    return Dataset(f"kafka://{first}" if host and is_number(port) else f"kafka://{first}:{_KAFKA_PORT}", topic)


def full_uri(place: Location) -> str:
    """The URI of a place with all that its name needs: of Azure the account, which only the client knows.

    :param place: a place that was opened.
    """
    scheme, _, rest = place.uri.partition("://")
    account = getattr(getattr(place.store, "fs", None), "account_name", None)
    if _SCHEMES.get(scheme) != "abfss" or not account:
        return place.uri
    container, slash, path = rest.partition("/")
    return f"abfss://{container}@{account}.dfs.core.windows.net{slash}{path}"
