"""What flows read: rows at positions, with times, some of which retention has taken."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from tests.fake_databricks.clock import parse
from tests.fake_databricks.errors import FlowFailed

Kind = Literal["files", "kafka", "delta"]

#: The options that say where a new checkpoint begins, by kind of source.
START_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "files": ("modifiedAfter", "cloudFiles.includeExistingFiles"),
    "kafka": ("startingOffsets", "startingTimestamp"),
    "delta": ("startingVersion", "startingTimestamp"),
}

_KAFKA_LOSS = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged out by Kafka or "
    "the topic may have been deleted before all the data in the topic was processed. If you don't want your streaming query to "
    'fail on such cases, set the source option "failOnDataLoss" to "false". Reason:'
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a source.

    :param position: Kafka: the offset in partition 0; Delta: the version; files: the number of the file.
    :param timestamp: of the record, of the commit, of the file's last modification.
    """

    position: int
    timestamp: datetime
    values: Mapping[str, Any]


@dataclass(slots=True)
class Start:
    """Where a reader without a checkpoint begins in one source.

    :param position: first position it reads.
    :param after: files: only those modified after this time.
    :param skipped: files below ``position`` that ``after`` left out: they were listed, and never read.
    """

    position: int
    after: datetime | None = None
    skipped: set[int] = field(default_factory=set)

    def move_past(self, rows: list[Row]) -> None:
        """Remember that rows were read."""
        if not rows:
            return
        end = max(self.position, *(row.position + 1 for row in rows))
        read = {row.position for row in rows}
        self.skipped = (self.skipped | set(range(self.position, end))) - read if self.after else self.skipped - read
        self.position = end


@dataclass
class Source:
    """A source and its rows.

    :param name: table, topic or directory.
    """

    name: str
    kind: Kind = "files"
    #: Whether ``modifiedAfter`` filters each listing, so that files come back once it is gone; else the checkpoint remembers
    #: them. No page of the vendor establishes it.
    filters_each_listing: bool = True
    rows: list[Row] = field(default_factory=list)
    #: Rows below it are gone.
    first: int = 0
    #: Its rows are those of a table of the workspace.
    of_table: bool = False
    #: Delta: the table's own id. One that was dropped and recreated has another.
    table_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    #: Kafka: the broker gives the timestamps.
    append_time: bool = True

    @property
    def end(self) -> int:
        """Position that the next row gets."""
        return self.rows[-1].position + 1 if self.rows else self.first

    def add(self, timestamp: datetime, **values: Any) -> Row:
        """A new row at the end."""
        row = Row(self.end, timestamp, values)
        self.rows.append(row)
        return row

    def recreate(self) -> None:
        """Drop it and make it again, empty: a table gets another id, and versions start from the beginning."""
        self.rows.clear()
        self.first = 0
        self.table_id = str(uuid.uuid4())

    def offset(self, position: int) -> dict[str, Any]:
        """A position in the words of Spark's offsets."""
        if self.kind == "kafka":
            return {self.name: {"0": position}}
        if self.kind == "files":  # of Auto Loader: a number of its own, that shows no file
            return {"seqNum": position, "sourceVersion": 1}
        about = {"sourceVersion": 1, "reservoirId": self.table_id, "index": -1, "isStartingVersion": False}
        return {**about, "reservoirVersion": position}

    @property
    def description(self) -> str:
        """What progress calls it."""
        kinds = {"kafka": "KafkaV2[Subscribe[{}]]", "delta": "DeltaSource[{}]", "files": "CloudFilesSource[{}]"}
        return kinds[self.kind].format(self.name)

    def expire_before(self, position: int) -> None:
        """Retention: rows below the position are gone."""
        self.first = max(self.first, position)

    def expire_older_than(self, time: datetime) -> None:
        """Retention by time."""
        kept = [row.position for row in self.rows if row.timestamp >= time]
        self.expire_before(min(kept, default=self.end))

    def kept(self) -> Iterator[Row]:
        """What can still be read."""
        return (row for row in self.rows if row.position >= self.first)

    def start(self, options: Mapping[str, str]) -> Start:
        """Where a new checkpoint begins with these options of the reader; without any: each source's own habit.

        :raises FlowFailed: an option makes no sense.
        """
        try:
            return self._start(options)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise FlowFailed(
                "", f"Invalid starting position {dict(options)} for {self.name}: {e!r}", "IllegalArgumentException"
            ) from e

    def _start(self, options: Mapping[str, str]) -> Start:
        if self.kind == "files":
            fresh = options.get("cloudFiles.includeExistingFiles", "true").lower() == "false"
            after = options.get("modifiedAfter")
            return Start(self.end if fresh else 0, parse(after) if after else None)
        if time := options.get("startingTimestamp"):
            at = parse(time) if self.kind == "delta" else datetime.fromtimestamp(int(time) / 1000).astimezone()
            return Start(min((row.position for row in self.kept() if row.timestamp >= at), default=self.end))
        if self.kind == "delta":
            version = options.get("startingVersion")
            return Start(self._delta(version) if version else self.first)
        return Start(self._kafka(options.get("startingOffsets", "latest")))

    def _delta(self, version: str) -> int:
        if version == "latest":
            return self.end
        if int(version) < self.first:
            raise FlowFailed(
                "DELTA_VERSION_NOT_FOUND",
                f"Cannot time travel Delta table to version {version}. Available versions: [{self.first}, {self.end - 1}].",
                "org.apache.spark.sql.delta.VersionNotFoundException",
            )
        return int(version)

    def _kafka(self, offsets: str) -> int:
        if offsets in ("earliest", "latest"):
            return self.first if offsets == "earliest" else self.end
        offset = int(json.loads(offsets)[self.name]["0"])
        return {-2: self.first, -1: self.end}.get(offset, offset)

    def filter_again(self, start: Start, options: Mapping[str, str]) -> None:
        """Files: put the filter of this update in place of the one before."""
        if self.kind == "files" and self.filters_each_listing:
            after = options.get("modifiedAfter")
            start.after = parse(after) if after else None

    def read(self, start: Start) -> list[Row]:
        """Rows from a position on.

        :raises FlowFailed: rows that should be read are gone, and the source notices (files do not).
        """
        if start.position < self.first and self.kind != "files":
            raise self._lost(start.position)
        if start.position > self.end and self.kind == "kafka":
            reason = f"Partition {self.name}-0 offset was changed from {start.position} to {self.end}."
            raise FlowFailed("KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED", f"{_KAFKA_LOSS} {reason} SQLSTATE: 22000")
        rows = (row for row in self.kept() if row.position >= start.position or self._comes_back(row, start))
        return [row for row in rows if start.after is None or row.timestamp > start.after]

    def _comes_back(self, row: Row, start: Start) -> bool:
        return self.filters_each_listing and row.position in start.skipped

    def _lost(self, position: int) -> FlowFailed:
        if self.kind == "kafka":
            reason = f"{self.name}-0's offset was changed from {position} to {self.first}."
            return FlowFailed("KAFKA_DATA_LOSS.START_OFFSET_RESET", f"{_KAFKA_LOSS} {reason} SQLSTATE: 22000")
        return FlowFailed(
            "DELTA_FILE_NOT_FOUND_DETAILED",
            f"File part-{position:05d}.parquet of {self.name} referenced in the transaction log cannot be found. The earliest "
            f"version that can be read is {self.first}.",
            "org.apache.spark.sql.delta.DeltaFileNotFoundException",
        )
