"""Which Spark can read a checkpoint, as far as its files show.

A checkpoint does not name the Spark that wrote it. Its files have forms that came with a version, and the offset log pins
settings that came with one. Which is which was seen in checkpoints of Spark 3.5.9, 4.0.0, 4.1.4, 4.2.1 and 4.3.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_ckpt_provider.checkpoint.query_shape import QueryShape
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.upgrade.compatibility import kinds
from airflow_ckpt_provider.upgrade.compatibility.change import Change
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription

Release = tuple[int, int]

_P = "spark.sql.streaming."
#: Pinned setting -> the first Spark that pins it.
_PINNED_SINCE: dict[str, Release] = {
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": (3, 5),
    f"{_P}stateStore.encodingFormat": (4, 0),
    "spark.sql.function.protobufExtensions.enabled": (4, 2),
    f"{_P}queryEvolution.enableSourceEvolution": (4, 2),
    f"{_P}stateStore.rocksdb.mergeOperatorVersion": (4, 2),
    f"{_P}stateStore.rowChecksum.enabled": (4, 2),
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled": (4, 3),
    f"{_P}statefulOperator.alwaysNullableOutput.enabled": (4, 3),
}
#: Setting and value -> the first Spark that can read state of that kind.
_READ_SINCE: dict[tuple[str, str], Release] = {
    (f"{_P}stateStore.encodingFormat", "avro"): (4, 0),
    (f"{_P}stateStore.rowChecksum.enabled", "true"): (4, 2),
    (f"{_P}join.stateFormatVersion", "3"): (4, 1),
    (f"{_P}join.stateFormatVersion", "4"): (4, 2),
}
_OFFSET_LOG: dict[int, Release] = {2: (4, 2)}
_COMMIT_LOG: dict[int, Release] = {2: (4, 0), 3: (4, 3)}
_CHANGELOG = re.compile(r"state/\d+/\d+/(?:.+/)?\d+(_[0-9a-f-]{36})?\.changelog")
_UNIQUE_ID = re.compile(r"state/\d+/\d+/(?:.+/)?\d+_[0-9a-f-]{36}\.(?:changelog|zip)")
_METADATA_2 = re.compile(r"state/\d+/_metadata/v2/\d+")


def release(version: str) -> Release:
    """The release that a version belongs to: ``4.0.0`` is of ``(4, 0)``.

    :raises RefusedError: it is no version.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if not found:
        raise RefusedError(f"{version!r} is no version of Spark", hint="give one such as 4.0.0")
    return int(found[1]), int(found[2])


def written_by(shape: QueryShape) -> Release | None:
    """The oldest Spark that may have written a checkpoint; ``None`` where the offset log pins nothing."""
    return max((_PINNED_SINCE.get(key, (3, 4)) for key in shape.conf), default=None)


def needs(shape: QueryShape, tree: Tree) -> dict[str, Release]:
    """What in a checkpoint needs a Spark from some release on: file or setting -> that release.

    :param tree: the checkpoint's files.
    """
    found: dict[str, Release] = {}
    if since := _OFFSET_LOG.get(shape.offset_log):
        found[f"the offset log (version {shape.offset_log})"] = since
    if shape.commit_log and (since := _COMMIT_LOG.get(shape.commit_log)):
        found[f"the commit log (version {shape.commit_log})"] = since
    # A join's format is pinned in every query; it counts where there is a join.
    joins = any(operator.name == "symmetricHashJoin" for operator in shape.operators)
    for (key, value), since in _READ_SINCE.items():
        if shape.operators and shape.conf.get(key) == value and (joins or ".join." not in key):
            found[f"{key}={value}"] = since
    for pattern, what, since in (
        (_METADATA_2, "operator metadata of version 2", (4, 0)),
        (_UNIQUE_ID, "state files of format 2", (4, 0)),
        (_CHANGELOG, "changelogs of RocksDB", (3, 5)),
    ):
        example = next((f.path for f in tree.below("state") if pattern.fullmatch(f.path)), None)
        if example:
            found[f"{what} ({example})"] = since
    return found


def version_changes(old: QueryShape, tree: Tree, description: QueryDescription) -> Iterator[Change]:
    """Compare the Spark that the checkpoint needs with the one that the new code runs on."""
    spark = release(description.spark)
    too_new = {what: since for what, since in needs(old, tree).items() if since > spark}
    for what, since in too_new.items():
        said = f"{what} needs Spark {_text(since)} or later; the new code runs on {description.spark}"
        yield Change(kinds.NEEDS_NEWER_SPARK, what, said)
    writer = written_by(old)
    if writer and writer > spark and not too_new:
        said = f"settings pinned in offsets/ are of Spark {_text(writer)} or later; the new code runs on {description.spark}"
        yield Change(kinds.WRITTEN_BY_NEWER_SPARK, "Spark", said)
    pinned = [key for key in description.shape.conf if key in _PINNED_SINCE and key not in old.conf]
    if old.conf and pinned and not (writer and writer > spark):
        said = (
            f"an older Spark than {description.spark} wrote the checkpoint: it does not pin {', '.join(sorted(pinned))}"
        )
        yield Change(kinds.SPARK_NEWER, "Spark", said)
    if description.databricks_runtime:
        said = f"the new code runs on Databricks Runtime {description.databricks_runtime} (Spark {description.spark})"
        yield Change(kinds.DATABRICKS, "Databricks Runtime", said)


def _text(version: Release) -> str:
    return f"{version[0]}.{version[1]}"
