"""Moving a checkpoint: rewriting the absolute paths in it.

``state/<op>/_metadata/v2/<batch>`` (transformWithState, join state formats 3 and 4) names its schema files by absolute URIs
of the checkpoint's original place. Spark follows them: where that place is gone it fails, where it still exists it reads
the schema files of the old checkpoint.

``_schema_log_<table id>/<n>`` of a Delta source (``schemaTrackingLocation``) names the source's own log, ``sources/<n>``. Delta
fails at the start where that is in another place (``DeltaSourceMetadataTrackingLog.create``).
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
_SCHEMA_LOG = re.compile(r"(?:.*/)?_schema_log_[^/]+/\d+")
_SOURCE = "sourceMetadataPath"
_URI = re.compile(r"(?P<root>.*)/(?P<path>state/\d+/_stateSchema/.*|sources/[^/]+)")
#: fsspec protocol -> the schemes that Hadoop may use for the same path.
_HADOOP_SCHEMES = {"s3": ("s3a", "s3", "s3n"), "gcs": ("gs",), "gs": ("gs",), "hdfs": ("hdfs",)}


def holds_absolute_paths(path: str) -> bool:
    """Whether the file at ``path`` of a checkpoint names absolute places."""
    return bool(_METADATA.fullmatch(path) or _SCHEMA_LOG.fullmatch(path))


def relocated(data: bytes, *, path: str, target: str) -> bytes:
    """Rewrite a file that names absolute places for another place.

    :param data: content of ``state/<op>/_metadata/v2/<batch>`` or ``_schema_log_<table id>/<n>``.
    :param path: its path.
    :param target: the new place as Spark names it, such as ``s3a://bucket/checkpoints/orders``.
    :raises UnreadableLogError: the file cannot be parsed.
    """
    version, content = _parsed(data, path)
    if _SCHEMA_LOG.fullmatch(path):
        for uri in _uris(content, path):
            content[_SOURCE] = _moved(uri, target)
    else:
        for store in content["stateStoreInfo"]:
            uris = store.get("stateSchemaFilePaths") or []
            store["stateSchemaFilePaths"] = [_moved(uri, target) for uri in uris]
    return f"v{version}\n{json.dumps(content, separators=(',', ':'))}".encode()


def absolute_uris(data: bytes, *, path: str) -> list[str]:
    """The absolute URIs in such a file, as Spark wrote them."""
    return _uris(_parsed(data, path)[1], path)


def _parsed(data: bytes, path: str) -> tuple[int, dict[str, Any]]:
    version, lines = split_log(data, path=path, batch_id=None, known=frozenset({1, 2}))
    content = parse_object("".join(lines[:1]), path=path, batch_id=None)
    try:
        if not all(isinstance(uri, str) for uri in _uris(content, path)):
            raise TypeError("a path that is no text")
    except (KeyError, TypeError, AttributeError) as e:
        what = "schema log" if _SCHEMA_LOG.fullmatch(path) else "operator metadata"
        raise UnreadableLogError(
            f"{path}: not readable {what} ({type(e).__name__}: {e})",
            path=path,
            hint="restore the file from a backup",
        ) from e
    return version, content


def _uris(content: dict[str, Any], path: str) -> list[str]:
    if _SCHEMA_LOG.fullmatch(path):
        return [content[_SOURCE]] if _SOURCE in content else []
    return [uri for store in content["stateStoreInfo"] for uri in store.get("stateSchemaFilePaths") or ()]


def _moved(uri: str, target: str) -> str:
    match = _URI.fullmatch(uri)
    return f"{target}/{match['path']}" if match else uri


def original_place(data: bytes, *, path: str) -> str | None:
    """The place that a file names, as Spark wrote it; ``None`` where it names none."""
    found = map(_URI.fullmatch, absolute_uris(data, path=path))
    return next((match["root"] for match in found if match), None)


def foreign_place(data: bytes, *, path: str, location: Location) -> str | None:
    """The place that a file names, where that is not, or may not be, a checkpoint; ``None``: it is.

    :param data: content of ``state/<op>/_metadata/v2/<batch>`` or ``_schema_log_<table id>/<n>``.
    :param path: its path.
    :param location: the checkpoint. Where its store goes by a name that Hadoop does not have, all of its path has to be named;
        but in a schema log, with which nothing is read of another place: there Delta fails.
    """
    own = f"/{location.root.strip('/')}"
    fails = _SCHEMA_LOG.fullmatch(path)
    for uri in absolute_uris(data, path=path):
        match = _URI.fullmatch(uri)
        if match and not (names_place(uri, location) and (fails or match["root"].rstrip("/").endswith(own))):
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
