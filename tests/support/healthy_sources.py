"""Healthy tables and sources: everything harmless that people do to what a stream reads or writes, at random, without Spark.

Each maker returns what the guards or the sink say of it, and what happened to it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import parse_offset
from airflow_ckpt_provider.guards.delta import DeltaGuard
from airflow_ckpt_provider.guards.files import FileGuard
from airflow_ckpt_provider.guards.iceberg import IcebergGuard
from airflow_ckpt_provider.guards.kafka_log import LogEnds, Topic
from airflow_ckpt_provider.guards.kafka_verdicts import Seen, judge_partitions
from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings, judge_source
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink, inspect_sink
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict, worst
from tests.support import iceberg_tables
from tests.support.checkpoints import compact
from tests.support.delta_tables import delta_checkpoint, put
from tests.support.file_sinks import file_sink

QUERY = "query-1"
Said = tuple[Verdict, tuple[str, ...], list[str]]


class DeltaTableOfPeople:
    """A Delta table, and what people do to it that harms no stream.

    :param is_read: a stream reads it: nobody deletes rows then, unless it reads changes.
    :param changes: that stream reads the change data feed.
    """

    def __init__(self, path: Path, chance: random.Random, *, is_read: bool = False, changes: bool = False) -> None:
        self.path, self.chance, self.changes = path, chance, changes
        self.made = self.others = 0
        self.told: list[str] = []
        configuration = {"delta.enableChangeDataFeed": "true"} if changes else {}
        write_deltalake(path, self._rows(), configuration=configuration)
        self.deeds = {
            "append": self.append,
            "optimize": lambda: DeltaTable(path).optimize.compact(),
            "properties": lambda: self.table.alter.set_table_properties(
                {f"owner{self.made}": "finance"}, raise_if_not_exists=False
            ),
            "constraint": lambda: self.table.alter.add_constraint({f"c{self.made}": "id >= 0"}),
            "column": lambda: self.table.alter.add_columns(Field(f"more{self.made}", PrimitiveType("long"))),
            "log checkpoint": lambda: self.table.create_checkpoint(),
            "another stream": self._another_stream,
        }
        if not is_read or changes:
            self.deeds |= {
                "delete": lambda: self.table.delete(f"id % 7 = {chance.randrange(7)}"),
                "update": lambda: self.table.update({"id": "id + 1000"}, predicate=f"id % 5 = {chance.randrange(5)}"),
                "merge": self._merge,
            }

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def _rows(self) -> pa.Table:
        self.made += 1
        return pa.table({"id": pa.array(range(self.made * 10, self.made * 10 + 10), pa.int64())})

    def append(self, *transactions: Transaction) -> None:
        properties = CommitProperties(app_transactions=list(transactions))
        write_deltalake(self.path, self._rows(), mode="append", schema_mode="merge", commit_properties=properties)

    def _another_stream(self) -> None:
        """The next batch of another stream, whose batches begin with 0."""
        self.append(Transaction("another", self.others))
        self.others += 1

    def _merge(self) -> None:
        source = pa.table({"id": pa.array([11, self.made * 10_000], pa.int64())})
        merge = self.table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update({"id": "t.id"}).when_not_matched_insert({"id": "s.id"}).execute()

    def people(self, count: int) -> None:
        for _ in range(count):
            name = self.chance.choice(list(self.deeds))
            self.made += 1
            self.deeds[name]()
            self.told.append(name)

    def vacuum(self) -> None:
        """Every file that left the table is deleted."""
        self.table.vacuum(0, enforce_retention_duration=False, dry_run=False)
        self.told.append("vacuum")

    def clean_log(self, below: int) -> None:
        """What log clean-up does: a checkpoint of the log, and commits before it are gone."""
        self.table.create_checkpoint()
        for version in range(below):
            (self.path / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)
        self.told.append(f"log clean-up below {below}")


def delta_sink(root: Path, chance: random.Random) -> Said:
    """A stream appends, by Delta's sink or by a ``foreachBatch`` whose batches without rows leave no commit."""
    named = chance.random() < 0.4
    table = DeltaTableOfPeople(root / "table", chance)
    batch = -1
    versions = []
    for _ in range(chance.randint(2, 6)):
        batch += 1 + (named and chance.random() < 0.3)
        table.append(Transaction("orders" if named else QUERY, batch))
        versions.append(table.table.version())
        table.people(chance.randint(0, 2))
    if chance.random() < 0.4:
        table.vacuum()
    if chance.random() < 0.4:
        table.clean_log(chance.randint(0, versions[-1]))
    sink = Sink(open_location(str(root / "table")), "", "orders" if named else None)
    report = inspect_sink(sink, QueryIds.of(QUERY, app_id=sink.app_id), batch, batch)
    return report.verdict, report.reasons, table.told


def delta_source(root: Path, chance: random.Random) -> Said:
    """A stream reads a table, or its change data feed; files are vacuumed only where it has read all there is."""
    changes = chance.random() < 0.4
    table = DeltaTableOfPeople(root / "table", chance, is_read=True, changes=changes)
    table.people(chance.randint(2, 6))
    drained = chance.random() < 0.5
    read = table.table.version() + 1
    if not drained:
        table.people(chance.randint(1, 4))
    else:
        table.people(0)
    before = chance.randint(max(0, read - 3), read)
    place = delta_checkpoint(root / "orders", root / "table", read, before=before)
    if drained and not changes and chance.random() < 0.5:
        table.vacuum()
    if chance.random() < 0.5:
        table.clean_log(chance.randint(0, min(before, table.table.version())))
    reader = {"readChangeFeed": "true"} if changes else {}
    settings = GuardSettings(options={"delta": {"tables": {"0": str(root / "table")}, "options": {"0": reader}}})
    query = from_checkpoint(open_location(str(place)))
    report = guard_query(query, settings, guards=[DeltaGuard(settings)])
    return report.verdict, report.reasons, [f"read to {read}, {before} before", *table.told]


class IcebergTableOfPeople:
    """An Iceberg table, and what people do to it that harms no stream.

    :param is_read: a stream reads it: nobody deletes rows then.
    """

    def __init__(self, root: Path, chance: random.Random, *, is_read: bool = False) -> None:
        self.table = iceberg_tables.Table(root)
        self.chance, self.made, self.others = chance, 0, 0
        self.told: list[str] = []
        self.deeds: dict[str, Callable[[], Any]] = {
            "append": lambda: self.table.rows(f"others {self.made}"),
            "another stream": self._another_stream,
            "properties": self._property,
            "column": self._column,
            "partitioning": self._partition,
            "branch": self._branch,
            "tag": self._tag,
        }
        if not is_read:
            self.deeds |= {"delete": self._delete, "overwrite": self._overwrite}

    def people(self, count: int) -> None:
        for _ in range(count):
            name = self.chance.choice(list(self.deeds))
            self.made += 1
            self.deeds[name]()
            self.told.append(name)

    def expire(self, keep: int) -> None:
        """Expire the oldest snapshots of branch main; what a tag or another branch keeps stays."""
        table = self.table.table
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        line = self.line()
        for id_ in line[: max(0, len(line) - keep)]:
            if id_ not in kept:
                self.table.table.maintenance.expire_snapshots().by_id(id_).commit()
        self.told.append(f"expired to {keep}")

    def line(self) -> list[int]:
        """Ids of the current snapshot and its ancestors, oldest first."""
        table, found = self.table.table, []
        at = table.current_snapshot()
        while at is not None:
            found.append(at.snapshot_id)
            at = table.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id else None
        return found[::-1]

    def _another_stream(self) -> None:
        """The next batch of another stream, whose batches begin with 0."""
        self.table.batch(self.others, query="another")
        self.others += 1

    def _property(self) -> None:
        with self.table.table.transaction() as change:
            change.set_properties({f"owner{self.made}": "finance", "history.expire.min-snapshots-to-keep": "3"})

    def _column(self) -> None:
        with self.table.table.update_schema() as change:
            change.add_column(f"more{self.made}", LongType())

    def _partition(self) -> None:
        with self.table.table.update_spec() as change:
            if self.table.table.spec().fields:
                change.remove_field("by_row")
            else:
                change.add_field("row", IdentityTransform(), "by_row")

    def _branch(self) -> None:
        """Somebody tries something out beside main; it is no stream."""
        if self.table.head is None:
            return
        name = f"audit{self.made}"
        self.table.branch(name)
        self.table.table.append(pa.table({"row": [name]}), branch=name)

    def _tag(self) -> None:
        if (head := self.table.head) is not None:
            self.table.table.manage_snapshots().create_tag(head, f"month{self.made}").commit()

    def _delete(self) -> None:
        self.table.table.delete(f"row = 'others {self.made - 1}'")

    def _overwrite(self) -> None:
        self.table.table.overwrite(pa.table({"row": ["one"]}), overwrite_filter="row = 'others 1'")


def iceberg_sink(root: Path, chance: random.Random) -> Said:
    """A stream appends; older snapshots expire, at least the newest two of the stream stay."""
    people = IcebergTableOfPeople(root, chance)
    newest = chance.randint(1, 4)
    for batch in range(newest + 1):
        people.table.batch(batch)
        people.people(chance.randint(0, 2))
    if chance.random() < 0.5:
        ids = {
            s.snapshot_id
            for s in people.table.table.snapshots()
            if s.summary and s.summary.get(iceberg_tables.QUERY_ID) == QUERY
        }
        line = people.line()
        oldest = [i for i, id_ in enumerate(line) if id_ in ids][-2]
        people.expire(chance.randint(len(line) - oldest, len(line)))
    report = people.table.look(newest, newest=newest)
    return report.verdict, report.reasons, people.told


def iceberg_source(root: Path, chance: random.Random) -> Said:
    """A stream reads; snapshots that it has read expire, but the one where it stands."""
    people = IcebergTableOfPeople(root, chance, is_read=True)
    people.table.rows("first")
    people.people(chance.randint(1, 4))
    at = people.table.head
    people.people(chance.randint(0, 4))
    if chance.random() < 0.5:
        line = people.line()
        people.expire(chance.randint(len(line) - line.index(at or 0), len(line)))
    text = {"version": 1, "snapshot_id": at, "position": 1, "scan_all_files": False}
    catalog = {f"catalog.{key}": value for key, value in people.table.properties.items()}
    settings = GuardSettings(options={"iceberg": {"table.0": f"iceberg:{iceberg_tables.NAME}", **catalog}})
    source = GuardedSource(SourceOffset("0", parse_offset(compact(text))))
    report = judge_source(source, [IcebergGuard(settings)])
    return report.verdict, report.reasons, people.told


def file_source(root: Path, chance: random.Random) -> Said:
    """Files that were read are removed or rewritten, others come; those that are planned stay."""
    files = put(root / "in", *range(chance.randint(3, 8)))
    table = root / "table"
    write_deltalake(table, pa.table({"id": [1]}))
    place = delta_checkpoint(root / "orders", table, 1, files=files)
    told = []
    for file in files[:2]:
        if chance.random() < 0.4:
            file.unlink()
            told.append(f"{file.name} was read and removed")
        elif chance.random() < 0.3:
            file.write_text('{"id": 99}\n')
            told.append(f"{file.name} was read and rewritten")
    for number in range(chance.randint(0, 3)):
        name = chance.choice(["new {}.json", "_temporary {}", ".hidden {}", "notes {}.txt"]).format(number)
        (root / "in" / name).write_text(json.dumps({"id": 1}))
        os.utime(root / "in" / name, (1_800_000_000, 1_800_000_000))
        told.append(name)
    settings = GuardSettings()
    query = from_checkpoint(open_location(str(place))).of_kind("file")
    report = guard_query(query, settings, guards=[FileGuard(settings)])
    return report.verdict, report.reasons, told


def files_written(root: Path, chance: random.Random) -> Said:
    """The output of a file sink, whose log is compacted and purged."""
    newest = chance.randint(2, 9)
    compacted = chance.choice([None, chance.randint(1, newest - 1)])
    purged = compacted is not None and chance.random() < 0.5
    place = file_sink(open_location(str(root / "out")), newest, compact=compacted, purged=purged)
    report = inspect_sink(Sink(place, ""), QueryIds.of(QUERY), newest, newest)
    return report.verdict, report.reasons, [f"compacted in {compacted}", "purged" if purged else "not purged"]


def kafka_offsets(root: Path, chance: random.Random) -> Said:
    """Retention took what was read; partitions were added; producers continued; transactions left markers."""
    topics, ends, start, planned = {}, {}, {}, {}
    for name in ("orders", "returns")[: chance.randint(1, 2)]:
        count = chance.randint(1, 4)
        added = chance.randint(0, 2)
        topics[name] = Topic(name, f"id of {name}", tuple(range(count + added)))
        for number in range(count):
            offset = chance.randint(0, 1000)
            latest = offset + chance.randint(0, 500)
            ends[name, number] = LogEnds(chance.randint(0, offset), latest, latest)
            start[name, number] = chance.choice([offset, offset, offset, -1, -2])
            planned[name, number] = chance.randint(offset, latest)
        for number in range(count, count + added):  # read from their beginning, of which nothing is gone
            ends[name, number] = LogEnds(0, chance.randint(0, 50), 50)
    seen = Seen(1_800_000_000_000, topics, ends, holey=frozenset(topics) if chance.random() < 0.3 else frozenset())
    found = judge_partitions(start, chance.choice([None, planned]), seen, if_gone=Verdict.WILL_FAIL)
    return worst(p.verdict for p in found), tuple(p.code for p in found if p.verdict is not Verdict.SAFE), []


#: Every kind; the files and offsets, which have fewer corners, once for two of the tables.
MAKERS = (delta_sink, delta_source, iceberg_sink, iceberg_source, file_source, delta_sink, delta_source, iceberg_sink)
MAKERS += (iceberg_source, files_written, kafka_offsets)  # type: ignore[assignment]
