"""Queries that tests describe: which sources with which options, and how they are put together."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.streams.sink import batches
from tests.support.streams.spark_host import Run, SparkHost

_CONF = {"spark.databricks.delta.snapshotPartitions": "2", "spark.sql.shuffle.partitions": "2"}


@dataclass(frozen=True)
class Source:
    """One source.

    :param format: such as ``kafka``.
    :param select: its columns; the first is ``id``, by which a join goes.
    :param path: what it loads; empty for Kafka.
    :param options: options of its reader.
    :param schema: its schema, for files.
    """

    format: str
    select: tuple[str, ...] = ("id",)
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)
    schema: str = ""

    def at(self, options: dict[str, str]) -> Source:
        """The same source with more options."""
        return Source(self.format, self.select, self.path, {**self.options, **options}, self.schema)


@dataclass
class Stream:
    """A query with its checkpoint and its sink below one directory.

    :param place: the directory.
    :param sources: what it reads.
    :param combine: ``union``, ``join`` by ``id``, ``count`` by ``id``, or ``distinct`` by ``id``.
    :param conf: settings of its session.
    :param sink: ``batches``, or ``delta`` or ``files``: a sink of Spark's at ``place/out``.
    """

    host: SparkHost
    place: Path
    sources: tuple[Source, ...]
    combine: str = "union"
    conf: dict[str, str] = field(default_factory=dict)
    sink: str = "batches"

    @property
    def checkpoint(self) -> Path:
        return self.place / "checkpoint"

    def begin(self) -> Run:
        """Have it read all there is."""
        self.place.mkdir(parents=True, exist_ok=True)
        told: dict[str, Any] = {
            "sources": [vars(source) for source in self.sources],
            "combine": self.combine,
            "conf": {**_CONF, **self.conf},
        }
        description = self.place / "query.json"
        description.write_text(json.dumps(told))
        kind = "described_updates" if self.combine == "count" else "described"
        kind = kind if self.sink == "batches" else f"described_to_{self.sink}"
        return self.host.start(
            kind, source=description, checkpoint=self.checkpoint, out=self.place / "out", available_now=True
        )

    def run(self) -> Stream:
        """Have it read all there is, without an error."""
        self.begin().finished()
        return self

    def fails(self) -> str:
        """Run it and return its error."""
        return self.begin().wait().error_text

    def rows(self, *, first: int = 0, last: int | None = None) -> list[list[Any]]:
        """What came out of some batches, sorted."""
        found = batches(self.place / "out")
        wanted = [b for b in found if b >= first and (last is None or b <= last)]
        return sorted(json.loads(row) for b in wanted for row in found[b])

    @property
    def ids(self) -> list[int]:
        """The first column of what came out."""
        return [row[0] for row in self.rows()]
