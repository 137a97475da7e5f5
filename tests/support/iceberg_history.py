"""An Iceberg table that a real stream and others write to, with a model beside it that says which rows belong there.

The model knows what each snapshot did to the rows, and learns from the table's metadata only which snapshots there are.
"""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.types import LongType

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.guards.iceberg_retention import time_to_expiry
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.iceberg_history import EPOCH_ID, QUERY_ID
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support import iceberg_tables
from tests.support.checkpoints import commit_log
from tests.support.checkpoints import metadata as query_metadata
from tests.support.delta_history import FEW_TASKS, plan_batch
from tests.support.sink_model import Change, Event, Line, Rows, added, mapped, merged
from tests.support.streams.data import put_files, stateless_rows
from tests.support.streams.spark_host import SparkHost, coordinates


def iceberg_host(root: Path) -> SparkHost:
    """A Spark with two catalogs on a disk: ``lake``, of Hadoop tables, and ``prod``, of SQL."""
    root.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(root / "prod.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")  # whoever reads does not keep Spark from writing
    spark_catalog = "org.apache.iceberg.spark.SparkCatalog"
    conf = {
        **FEW_TASKS,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": spark_catalog,
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"file://{root}/lake",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.prod": spark_catalog,
        "spark.sql.catalog.prod.type": "jdbc",
        "spark.sql.catalog.prod.uri": f"jdbc:sqlite:{root}/prod.db?busy_timeout=30000",
        "spark.sql.catalog.prod.jdbc.schema-version": "V1",
        "spark.sql.catalog.prod.warehouse": f"file://{root}/prod",
        "spark.sql.catalog.prod.cache-enabled": "false",
    }
    packages = (*coordinates("spark-jars.txt"), *coordinates("iceberg-jars.txt"))
    return SparkHost(root / "spark.log", packages=packages, conf=conf)


@dataclass
class IcebergHistory:
    """One table and the stream that writes to it.

    :param host: from :func:`iceberg_host`.
    :param root: directory of the host's catalogs.
    :param name: of the history, and of its table.
    :param chance: what happens.
    """

    host: SparkHost | None
    root: Path
    name: str
    chance: random.Random
    line: Line = ()
    settings: dict[str, str] = field(default_factory=dict)
    at: dict[int, Line] = field(default_factory=dict)
    faulty: set[int] = field(default_factory=set)
    files: int = 0
    made: int = 0
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.catalog = self.chance.choice(["lake", "prod"])
        #: MERGE in a foreachBatch: Iceberg remembers nothing of it.
        self.by_merge = self.chance.random() < 0.15
        self.told.append(f"{self.catalog}{', by MERGE' if self.by_merge else ''}")
        query_id = str(uuid.UUID(int=self.chance.getrandbits(128)))
        self.place.replace("metadata", query_metadata(query_id))
        self.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}.sales")
        self.sql(f"CREATE TABLE {self.table} (id STRING, k STRING, v BIGINT, ts TIMESTAMP) USING iceberg")

    # --- places ---

    @property
    def table(self) -> str:
        return f"{self.catalog}.sales.{self.name}"

    @property
    def directory(self) -> Path:
        return self.root / self.catalog / "sales" / self.name

    @property
    def own(self) -> Path:
        return self.root / "streams" / self.name

    @property
    def place(self) -> Location:
        return open_location(str(self.own / "checkpoint"))

    @property
    def ckpt(self) -> Checkpoint:
        return Checkpoint.at(self.place)

    @property
    def repository(self) -> Repository:
        return Repository.open_or_create(default_repository(self.place))

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.root}/prod.db", "warehouse": f"file://{self.root}/prod"}

    @property
    def sink(self) -> Sink:
        if self.catalog == "lake":
            return Sink(open_location(str(self.directory)), "")
        return Sink.named(f"iceberg:{self.table}", open_location, storage_options=self.properties)

    @property
    def newest(self) -> int:
        newest = self.ckpt.progress().latest_committed
        return -1 if newest is None else newest

    @property
    def oldest_told(self) -> int:
        metadata = self.metadata()
        snapshots = {int(s["snapshot-id"]): s for s in metadata.get("snapshots") or ()}
        line = [snapshots[id_] for id_ in line_of(metadata)]
        if not line or (line[0].get("parent-snapshot-id") is None and line[0].get("sequence-number", 1) == 1):
            return 0
        told = (int(s["summary"][EPOCH_ID]) for s in line if EPOCH_ID in s["summary"])
        return min(told, default=self.newest + 1)

    def plan(self, batch: int, policy: SinkPolicy) -> RewindPlan:
        to = Specifier("to_batch", str(batch))
        return plan_rewind(self.ckpt, to, sink=self.sink, sink_exit=policy, guards=())

    def fingerprint(self) -> str:
        """Of every file of the checkpoint and of the table's metadata, and of what the catalog says."""
        found = hashlib.sha256(json.dumps(self.metadata(), sort_keys=True).encode())
        for top in (self.directory / "metadata", self.own / "checkpoint"):
            for file in sorted(path for path in top.rglob("*") if path.is_file()):
                found.update(f"{file.relative_to(top)} ".encode() + file.read_bytes())
        return found.hexdigest()

    def metadata(self) -> dict[str, Any]:
        """The table's metadata, read without the code under test."""
        if self.catalog == "prod":
            table = load_catalog("prod", **self.properties).load_table(f"sales.{self.name}")
            path = Path(table.metadata_location.removeprefix("file:").replace("//", "/"))
        else:
            versions = {int(file.name[1:].partition(".")[0]): file for file in self.directory.glob("metadata/v*.json")}
            path = versions[max(versions)]
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    # --- the stream ---

    def rows_of(self, batch: int, *, faulty: bool = False) -> Rows:
        return stateless_rows(batch, faulty=faulty)

    def run(self, batches: int, *, faulty: bool = False) -> list[int]:
        """Let the stream read what is there, and more files up to so many batches; return those that are new in the table."""
        before = self.newest
        more = max(0, before + 1 + batches - self.files)
        put_files(self.own / "input", more, start=self.files)
        self.files += more
        known = set(self.at)
        kind = "stateless_merged_into_iceberg" if self.by_merge else "stateless_to_iceberg"
        assert self.host
        self.host.start(
            kind,
            source=self.own / "input",
            checkpoint=self.own / "checkpoint",
            out=Path(self.table),
            available_now=True,
            faulty=faulty,
        ).finished()
        if self.by_merge:
            written = range(before + 1, self.newest + 1)
            line = line_of(self.metadata())
            for batch, id_ in zip(written, line[len(line) - len(written) :], strict=True):
                self.line += (Event(merged(self.rows_of(batch, faulty=faulty)), batch),)
                self.at[id_] = self.line
            return list(written)
        self.sync(faulty=faulty)
        return [e.batch for id_, line in self.at.items() if id_ not in known for e in line[-1:] if e.batch is not None]

    # --- the table ---

    def sql(self, *statements: str) -> list[list[Any]]:
        assert self.host
        return self.host.sql(*statements)

    def held(self) -> Rows:
        return Counter((str(id_), int(v)) for id_, v in self.sql(f"SELECT id, v FROM {self.table}"))

    def sync(self, change: Change | None = None, *, faulty: bool = False, line: Line | None = None) -> None:
        """Take in the snapshots that are new.

        :param change: what somebody else's did to the rows.
        :param faulty: the stream ran the code with a bug.
        :param line: what the table is to hold, where it was set to a snapshot.
        """
        metadata = self.metadata()
        snapshots = {int(s["snapshot-id"]): s for s in metadata.get("snapshots") or ()}
        new = [s for id_, s in snapshots.items() if id_ not in self.at]
        for snapshot in sorted(new, key=lambda s: int(s.get("sequence-number", 0))):
            parent = snapshot.get("parent-snapshot-id")
            before = self.at[int(parent)] if parent is not None else ()
            summary: Mapping[str, str] = snapshot["summary"]
            picked = summary.get("source-snapshot-id")
            events: Line = ()
            if QUERY_ID in summary:
                batch = int(summary[EPOCH_ID])
                events = (Event(added(self.rows_of(batch, faulty=faulty)), batch),)
            elif picked:
                events = self.at[int(picked)][-1:]
            elif summary["operation"] != "replace":
                assert change is not None, f"a snapshot that nobody made: {summary}"
                events = (Event(change),)
            self.at[int(snapshot["snapshot-id"])] = before + events
        head = int(metadata.get("current-snapshot-id") or -1)
        self.line = line if line is not None else self.at.get(head, ())
        columns = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])["fields"]
        self.settings = {**metadata["properties"], **{f"column {c['name']}": str(c["type"]) for c in columns}}

    def control(self, target: int) -> None:
        """A table cannot be copied: its metadata has absolute paths."""

    # --- the others ---

    deeds: ClassVar[dict[str, Callable[[Any], None]]]

    def others(self, *names: str) -> str:
        """Somebody does something with the table, of some things or of all; return what."""
        name = self.chance.choice(names or list(self.deeds))
        try:
            self.deeds[name](self)
        except AssertionError as e:
            if "failed: " not in str(e):
                raise
            self.sync()
            return f"{name} refused ({str(e).partition('failed: ')[2][:60]!r})"
        return name

    def append(self) -> None:
        self.sync(added(self._insert(self.table)))

    def _insert(self, table: str, *before: str) -> Rows:
        self.made += 1
        rows: Rows = Counter({(f"f{self.made}-{n}", n): 1 for n in range(2)})
        metadata = self.metadata()
        schema = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
        columns = [str(field["name"]) for field in schema["fields"]]  # others may have added some: Spark fills in none
        values = ", ".join(
            f"({', '.join({'id': repr(id_), 'k': repr('k'), 'v': f'{v}L'}.get(name, 'NULL') for name in columns)})"
            for id_, v in rows
        )
        self.sql(*before, f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values}")
        return rows

    def _merge(self) -> None:
        self.made += 1
        rows: Rows = Counter({(f"e0-{self.chance.randrange(8)}", 5000 + self.made): 1, (f"m{self.made}", self.made): 1})
        values = ", ".join(f"('{id_}', {v}L)" for id_, v in rows)
        self.sql(
            f"MERGE INTO {self.table} t USING (SELECT col1 AS id, col2 AS v FROM (VALUES {values})) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
        )
        self.sync(merged(rows))

    def _delete(self) -> None:
        of = self.chance.randrange(5)
        self.sql(f"DELETE FROM {self.table} WHERE v % 5 = {of}")
        self.sync(mapped(lambda id_, v: None if v % 5 == of else (id_, v)))

    def _column(self) -> None:
        self.made += 1
        self.sql(f"ALTER TABLE {self.table} ADD COLUMN extra{self.made} INT")
        if self.chance.random() < 0.5:
            self.sql(f"ALTER TABLE {self.table} RENAME COLUMN extra{self.made} TO renamed{self.made}")
        self.sync()

    def _property(self) -> None:
        self.made += 1
        self.sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ('owner{self.made}' = 'finance')")
        self.sync()

    def _partition(self) -> None:
        self.made += 1
        self.sql(f"ALTER TABLE {self.table} ADD PARTITION FIELD bucket({self.made + 1}, id)")
        self.sync()

    def _compact(self) -> None:
        self._call("rewrite_data_files", "options => map('rewrite-all', 'true')")
        self.sync()

    def _rewrite_manifests(self) -> None:
        self._call("rewrite_manifests")
        self.sync()

    def _expire(self) -> None:
        self._call("expire_snapshots", f"older_than => now(), retain_last => {self.chance.randint(1, 5)}")
        self.sync()

    def _expire_by_settings(self) -> None:
        """Somebody runs it with the table's own limits: what the guard says is kept, is kept."""
        self.sync()
        metadata = self.metadata()
        made = {int(s["snapshot-id"]): int(s["timestamp-ms"]) for s in metadata.get("snapshots") or ()}
        if not made:
            return
        age = int(time.time() * 1000) - self.chance.choice(sorted(made.values())) + self.chance.choice([0, 20_000])
        limits = f"'history.expire.max-snapshot-age-ms' = '{max(age, 1)}'"
        limits += f", 'history.expire.min-snapshots-to-keep' = '{self.chance.randint(1, 4)}'"
        self.sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ({limits})")
        before, now = self.metadata(), time.time_ns() // 1_000_000
        found = {id_: time_to_expiry(before, id_, now_ms=now) for id_ in line_of(before)}
        self._call("expire_snapshots")
        after, took = line_of(self.metadata()), (time.time_ns() // 1_000_000 - now) / 1000
        line = line_of(before)
        for id_, left in found.items():
            by_count = len(line) - line.index(id_) <= left.min_kept
            if left.seconds is None or left.seconds > took or by_count:
                assert after[after.index(id_) :] == line[line.index(id_) :], f"{id_} expired, of which we said {left}"
        self.sync()

    def _rollback(self) -> None:
        """Somebody sets the table back, by Spark; the stream knows nothing of it."""
        line = line_of(self.metadata())
        if len(line) > 1:
            self._call("rollback_to_snapshot", f"snapshot_id => {self.chance.choice(line[-5:-1])}")
            self.sync()

    def _set_current(self) -> None:
        """Somebody sets main to any snapshot that there is."""
        there = [int(s["snapshot-id"]) for s in self.metadata().get("snapshots") or ()]
        if there:
            self._call("set_current_snapshot", f"snapshot_id => {self.chance.choice(there)}")
            self.sync()

    def _branch(self) -> None:
        """Somebody writes beside main, and now and then publishes it."""
        if not self.metadata().get("snapshots"):
            return
        self.made += 1
        branch = f"audit{self.made}"
        self.sql(f"ALTER TABLE {self.table} CREATE BRANCH {branch}")
        self.sync(added(self._insert(f"{self.table}.branch_{branch}")))
        if self.chance.random() < 0.5:
            self.sql(f"CALL {self.catalog}.system.fast_forward('sales.{self.name}', 'main', '{branch}')")
            self.sync()

    def _tag(self) -> None:
        if self.metadata().get("snapshots"):
            self.made += 1
            self.sql(f"ALTER TABLE {self.table} CREATE TAG month{self.made}")
            self.sync()

    def _staged(self) -> None:
        """Write, audit, publish: staged by somebody, and published now and then."""
        self.sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
        wap = f"w{self.made + 1}"
        rows = self._insert(self.table, f"SET spark.wap.id={wap}")
        self.sync(added(rows))
        if self.chance.random() < 0.5:
            self._call("publish_changes", f"wap_id => '{wap}'")
            self.sync(added(rows))

    def _call(self, procedure: str, *arguments: str) -> None:
        given = ", ".join([f"table => 'sales.{self.name}'", *arguments])
        self.sql(f"CALL {self.catalog}.system.{procedure}({given})")


IcebergHistory.deeds = {
    "append": IcebergHistory.append,
    "append again": IcebergHistory.append,
    "merge": IcebergHistory._merge,
    "delete": IcebergHistory._delete,
    "column": IcebergHistory._column,
    "property": IcebergHistory._property,
    "partitioning": IcebergHistory._partition,
    "compaction": IcebergHistory._compact,
    "manifests": IcebergHistory._rewrite_manifests,
    "expire": IcebergHistory._expire,
    "expire by settings": IcebergHistory._expire_by_settings,
    "rollback": IcebergHistory._rollback,
    "set current": IcebergHistory._set_current,
    "branch": IcebergHistory._branch,
    "tag": IcebergHistory._tag,
    "staged": IcebergHistory._staged,
}


class PyIcebergHistory(IcebergHistory):
    """The same by pyiceberg alone, which is fast: a batch is written as Spark's sink does it, with its query id and epoch."""

    def __post_init__(self) -> None:
        self.by_merge, self.catalog = False, "prod"
        self.query_id = str(uuid.UUID(int=self.chance.getrandbits(128)))
        self.place.replace("metadata", query_metadata(self.query_id))
        self.made_by = iceberg_tables.Table(self.own / "lake", columns=[("id", pa.string()), ("v", pa.int64())])
        self.sync()

    @property
    def directory(self) -> Path:
        return self.made_by.directory

    @property
    def sink(self) -> Sink:
        return self.made_by.sink

    def metadata(self) -> dict[str, Any]:
        path = self.made_by.table.metadata_location.removeprefix("file://")
        found: dict[str, Any] = json.loads(Path(path).read_text())
        return found

    def held(self) -> Rows:
        return Counter((str(r["id"]), int(r["v"])) for r in self.made_by.table.scan().to_arrow().to_pylist())

    def run(self, batches: int, *, faulty: bool = False) -> list[int]:
        known = set(self.at)
        for _ in range(batches):
            batch = self.newest + 1
            plan_batch(self.place, batch)
            remembered = self.made_by.remembered(self.query_id)
            if remembered is None or remembered < batch:
                about = {QUERY_ID: self.query_id, EPOCH_ID: str(batch)}
                self.made_by.table.append(_arrow(self.rows_of(batch, faulty=faulty)), snapshot_properties=about)
                self.sync(faulty=faulty)
            self.place.replace(f"commits/{batch}", commit_log())
        return [e.batch for id_, line in self.at.items() if id_ not in known for e in line[-1:] if e.batch is not None]

    def append(self) -> None:
        self.made += 1
        rows: Rows = Counter({(f"f{self.made}-{n}", n): 1 for n in range(2)})
        self.made_by.table.append(_arrow(rows))
        self.sync(added(rows))

    def _delete(self) -> None:
        of = self.chance.choice(sorted(self.held()) or [("none", 0)])[1]
        self.made_by.table.delete(f"v = {of}")
        self.sync(mapped(lambda id_, v: None if v == of else (id_, v)))

    def _column(self) -> None:
        self.made += 1
        with self.made_by.table.update_schema() as change:
            change.add_column(f"extra{self.made}", LongType())
        self.sync()

    def _property(self) -> None:
        self.made += 1
        with self.made_by.table.transaction() as change:
            change.set_properties({f"owner{self.made}": "finance"})
        self.sync()

    def _expire(self) -> None:
        """As ``expire_snapshots`` with ``retain_last``: what a tag or a branch has stays."""
        metadata, keep = self.metadata(), self.chance.randint(1, 5)
        referred = {int(reference["snapshot-id"]) for reference in (metadata.get("refs") or {}).values()}
        kept = {*line_of(metadata)[-keep:], *referred}
        for id_ in [
            int(s["snapshot-id"]) for s in metadata.get("snapshots") or () if int(s["snapshot-id"]) not in kept
        ]:
            self.made_by.table.maintenance.expire_snapshots().by_id(id_).commit()
        self.sync()

    def _set_current(self) -> None:
        if there := [int(s["snapshot-id"]) for s in self.metadata().get("snapshots") or ()]:
            self.made_by.table.manage_snapshots().set_current_snapshot(self.chance.choice(there)).commit()
            self.sync()

    def _branch(self) -> None:
        if (head := self.made_by.head) is None:
            return
        self.made += 1
        name, rows = f"audit{self.made}", Counter({(f"b{self.made}", self.made): 1})
        self.made_by.table.manage_snapshots().create_branch(head, name).commit()
        self.made_by.table.append(_arrow(rows), branch=name)
        self.sync(added(rows))

    def _tag(self) -> None:
        if (head := self.made_by.head) is not None:
            self.made += 1
            self.made_by.table.manage_snapshots().create_tag(head, f"month{self.made}").commit()
            self.sync()


PyIcebergHistory.deeds = {
    "append": PyIcebergHistory.append,
    "append again": PyIcebergHistory.append,
    "delete": PyIcebergHistory._delete,
    "column": PyIcebergHistory._column,
    "property": PyIcebergHistory._property,
    "expire": PyIcebergHistory._expire,
    "set current": PyIcebergHistory._set_current,
    "branch": PyIcebergHistory._branch,
    "tag": PyIcebergHistory._tag,
}


def _arrow(rows: Rows) -> pa.Table:
    found = list(rows.elements())
    ids, numbers = [id_ for id_, _ in found], [v for _, v in found]
    return pa.table({"id": pa.array(ids, pa.string()), "v": pa.array(numbers, pa.int64())})


def line_of(metadata: Mapping[str, Any]) -> list[int]:
    """The current snapshot and its ancestors, oldest first."""
    parents = {int(s["snapshot-id"]): s.get("parent-snapshot-id") for s in metadata.get("snapshots") or ()}
    found, at = [], metadata.get("current-snapshot-id")
    while at is not None and int(at) in parents:
        found.append(int(at))
        at = parents[int(at)]
    return found[::-1]
