"""Moving a checkpoint: rewriting the absolute paths in it.

``state/<op>/_metadata/v2/<batch>`` (transformWithState, join state formats 3 and 4) names its schema files by absolute URIs
of the checkpoint's original place. Spark follows them: where that place is gone it fails, where it still exists it reads
the schema files of the old checkpoint.
"""

from __future__ import annotations

import json
import re
from typing import Any

from airflow_ckpt_provider.checkpoint.doctor.operators import names_place
from airflow_ckpt_provider.checkpoint.logs import parse_object, split_log
from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.storage.location import Location

_METADATA = re.compile(r"state/\d+/_metadata/v2/\d+")
_SCHEMA_URI = re.compile(r"(?P<root>.*)/(?P<path>state/\d+/_stateSchema/.*)")
#: fsspec protocol -> the schemes that Hadoop may use for the same path.
_HADOOP_SCHEMES = {"s3": ("s3a", "s3", "s3n"), "gcs": ("gs",), "gs": ("gs",), "hdfs": ("hdfs",)}


def holds_absolute_paths(path: str) -> bool:
    """Whether the file at ``path`` of a checkpoint names absolute places."""
    return _METADATA.fullmatch(path) is not None


def relocated(data: bytes, *, path: str, target: str) -> bytes:
    """Rewrite an operator metadata file for another place.

    :param data: content of ``state/<op>/_metadata/v2/<batch>``.
    :param path: its path, for messages.
    :param target: the new place as Spark names it, such as ``s3a://bucket/checkpoints/orders``.
    :raises UnreadableLogError: the file cannot be parsed.
    """
    version, content = _parsed(data, path)
    for store in content["stateStoreInfo"]:
        uris = store.get("stateSchemaFilePaths") or []
        store["stateSchemaFilePaths"] = [_moved(uri, target) for uri in uris]
    return f"v{version}\n{json.dumps(content, separators=(',', ':'))}".encode()


def _parsed(data: bytes, path: str) -> tuple[int, dict[str, Any]]:
    version, lines = split_log(data, path=path, batch_id=None, known=frozenset({1, 2}))
    content = parse_object("".join(lines[:1]), path=path, batch_id=None)
    try:
        if not all(isinstance(uri, str) for uri in _schema_uris(content)):
            raise TypeError("a path that is no text")
    except (KeyError, TypeError, AttributeError) as e:
        raise UnreadableLogError(
            f"{path}: not readable operator metadata ({type(e).__name__}: {e})",
            path=path,
            hint="restore the file from a backup",
        ) from e
    return version, content


def _schema_uris(content: dict[str, Any]) -> list[str]:
    return [uri for store in content["stateStoreInfo"] for uri in store.get("stateSchemaFilePaths") or ()]


def _moved(uri: str, target: str) -> str:
    match = _SCHEMA_URI.fullmatch(uri)
    return f"{target}/{match['path']}" if match else uri


def original_place(data: bytes, *, path: str) -> str | None:
    """The place that an operator metadata file names, as Spark wrote it; ``None`` where it names none."""
    found = map(_SCHEMA_URI.fullmatch, _schema_uris(_parsed(data, path)[1]))
    return next((match["root"] for match in found if match), None)


def foreign_place(data: bytes, *, path: str, location: Location) -> str | None:
    """The place that an operator metadata file names, where that is not, or may not be, a checkpoint; ``None``: it is.

    :param data: content of ``state/<op>/_metadata/v2/<batch>``.
    :param path: its path, for messages.
    :param location: the checkpoint. Where its store goes by a name that Hadoop does not have, all of its path has to be named.
    """
    own = f"/{location.root.strip('/')}"
    for uri in _schema_uris(_parsed(data, path)[1]):
        match = _SCHEMA_URI.fullmatch(uri)
        if match and not (names_place(uri, location) and match["root"].rstrip("/").endswith(own)):
            return match["root"]
    return None


def spark_uri(location: Location, *, like: str) -> str:
    """Name a place as Spark does.

    :param location: the place.
    :param like: the original place as Spark wrote it, whose scheme is kept where it fits.
    :raises RefusedError: Spark's name cannot be derived; it has to be given.
    """
    scheme = like.partition(":")[0]
    protocol = location.store.protocol
    if protocol == "file":
        return f"file:{location.root}"
    schemes = _HADOOP_SCHEMES.get(protocol, ())
    if not schemes:
        raise RefusedError(
            f"the checkpoint names absolute places, and how Spark names {location} cannot be derived",
            hint="give it to a restore: --target-uri, as the query will have it in checkpointLocation",
        )
    return f"{scheme if scheme in schemes else schemes[0]}://{location.root}"
