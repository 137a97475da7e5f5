"""A Delta table that a stream and others write to, with a model beside it that says which rows belong there.

The model follows the log: it knows what each commit did to the rows, because the test has asked for it, and learns from the
log only whether it was committed at all. Spark says what the table really holds.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from airflow_ckpt_provider.backup.beside import default_repository
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import batch_metadata, commit_log, compact, file_source_log, metadata, offsets_log
from tests.support.delta_log_files import (
    commit_file,
    committed_ms,
    json_versions,
    new_commits,
    newest_version,
    settings_of,
)
from tests.support.sink_model import Change, Event, Line, Rows, added, mapped, merged, rows_after
from tests.support.streams.data import put_files, stateless_rows
from tests.support.streams.spark_host import SparkHost

#: Session time zones in which somebody runs ``RESTORE … TO TIMESTAMP``.
ZONES = ("UTC", "America/St_Johns", "Pacific/Auckland")
#: Values of properties that are not ``true``; an empty one is made up.
_VALUES = {
    "owner": "",
    "delta.setTransactionRetentionDuration": "interval 9 days",
    "delta.checkpointPolicy": "v2",
    "delta.columnMapping.mode": "name",
}
#: VACUUM lists with as many tasks, 10,000 by default.
FEW_TASKS = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2", "spark.ui.showConsoleProgress": "false"}


@dataclass
class History:
    """One table and the stream that writes to it, batch by batch as Delta's sink does: with the ``txn`` of the batch.

    :param host: the Spark that does it.
    :param root: directory for all of it.
    :param chance: what happens.
    :param kind: ``sink``, or ``append`` or ``merge`` of a ``foreachBatch`` with a ``txnAppId``; empty: any.
    """

    host: SparkHost | None
    root: Path
    chance: random.Random
    kind: str = ""
    line: Line = ()
    settings: dict[str, str] = field(default_factory=dict)
    at: dict[int, Line] = field(default_factory=dict)
    version: int = -1
    made: int = 0
    #: Batches of another stream, which begin at 0 as every stream's do.
    others_batches: int = 0
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.query_id = str(uuid.UUID(int=self.chance.getrandbits(128)))
        kind = self.kind or self.chance.choice(["sink", "sink", "sink", "append", "merge"])
        self.by_merge = kind == "merge"
        #: The ``txnAppId`` of a ``foreachBatch``; ``None``: Delta's own sink.
        self.app_id = None if kind == "sink" else "orders"
        self.create()

    # --- places ---

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def place(self) -> Location:
        return open_location(str(self.root / "checkpoints" / "orders"))

    @property
    def ckpt(self) -> Checkpoint:
        return Checkpoint.at(self.place)

    @property
    def repository(self) -> Repository:
        return Repository.open_or_create(default_repository(self.place))

    @property
    def sink(self) -> Sink:
        return Sink(open_location(str(self.out)), "", self.app_id, by_spark=self._restore_by_spark)

    @property
    def newest(self) -> int:
        newest = self.ckpt.progress().latest_committed
        return -1 if newest is None else newest

    @property
    def oldest_told(self) -> int:
        left = new_commits(self.out, -1)
        if left[0][0] == 0:
            return 0
        txns = (action["txn"] for _, actions in left for action in actions if "txn" in action)
        ids = {self.query_id, self.id_in_table}
        return min((int(txn["version"]) for txn in txns if txn["appId"] in ids), default=self.newest + 1)

    def plan(self, batch: int, policy: SinkPolicy) -> RewindPlan:
        to = Specifier("to_batch", str(batch))
        return plan_rewind(self.ckpt, to, sink=self.sink, sink_exit=policy, guards=())

    def fingerprint(self) -> str:
        """Of every file of the table and of the checkpoint."""
        found = hashlib.sha256()
        for top in (self.out, self.root / "checkpoints" / "orders"):
            for file in sorted(path for path in top.rglob("*") if path.is_file()):
                found.update(f"{file.relative_to(top)} ".encode() + file.read_bytes())
        return found.hexdigest()

    # --- the stream ---

    def create(self) -> None:
        """Create the table, as a shallow clone of another one now and then, and an empty checkpoint."""
        self.place.replace("metadata", metadata(self.query_id))
        if self.chance.random() < 0.15:
            base = self.root / "base"
            self.sql(f"CREATE TABLE delta.`{base}` (id STRING, v BIGINT) USING delta")
            self.sql(f"INSERT INTO delta.`{base}` VALUES ('base', 1)")
            self.sql(f"CREATE TABLE delta.`{self.out}` SHALLOW CLONE delta.`{base}`")
            self.sync(added(Counter({("base", 1): 1})))
            return
        interval = self.chance.choice(["", "TBLPROPERTIES ('delta.checkpointInterval' = '3')"])
        self.sql(f"CREATE TABLE delta.`{self.out}` (id STRING, v BIGINT) USING delta {interval}")
        self.sync()

    def rows_of(self, batch: int, *, faulty: bool = False) -> Rows:
        """What the stream makes of its input; some batches have no rows."""
        if batch % 5 == 3 and not self.by_merge:
            return Counter()
        value = -batch if faulty else batch
        return Counter({(f"{batch if not self.by_merge else 'k'}-{r}", value * 10 + r): 1 for r in range(3)})

    def run(self, batches: int, *, faulty: bool = False) -> list[int]:
        """Run the next batches; return those that Delta has committed and not skipped."""
        before = self.version
        for _ in range(batches):
            batch = self.newest + 1
            plan_batch(self.place, batch)
            self.write(self.out, batch, faulty=faulty)
            self.place.replace(f"commits/{batch}", commit_log())
        return self.committed_after(before, faulty=faulty)

    def committed_after(self, version: int, *, faulty: bool) -> list[int]:
        """Take in what the stream has committed; return its batches."""
        self.sync(faulty=faulty)
        lines = [self.at[v] for v in sorted(self.at) if v > version]
        return [line[-1].batch for line in lines if line and line[-1].batch is not None]

    def write(self, table: Path, batch: int, *, faulty: bool = False) -> None:
        """Write a batch into a table with its ``txn``, as Delta's sink does: nothing is written if the table remembers it."""
        (self.merge_rows if self.by_merge else self.insert)(
            table, self.rows_of(batch, faulty=faulty), (self.id_in_table, batch)
        )

    @property
    def id_in_table(self) -> str:
        return self.app_id or str(json.loads(self.place.read("metadata"))["id"])

    # --- the table ---

    def sql(self, *statements: str) -> list[list[Any]]:
        assert self.host
        return self.host.sql(*statements)

    def held(self, table: Path | None = None) -> Rows:
        """What Spark reads of the table."""
        return Counter((str(id_), int(v)) for id_, v in self.sql(f"SELECT id, v FROM delta.`{table or self.out}`"))

    def sync(self, change: Change | None = None, *, faulty: bool = False, line: Line | None = None) -> None:
        """Take in what was committed since.

        :param change: what somebody else did to the rows.
        :param faulty: the stream ran the code with a bug.
        :param line: the commits that make up the table after it, where a version was restored.
        """
        id_ = self.id_in_table
        for version, actions in new_commits(self.out, self.version):
            for action in actions:
                if "metaData" in action:
                    self.settings = settings_of(action["metaData"])
            batch = next((int(a["txn"]["version"]) for a in actions if a.get("txn", {}).get("appId") == id_), None)
            if line is not None:
                self.line = line
            elif batch is not None:
                rows = self.rows_of(batch, faulty=faulty)
                self.line += (Event(merged(rows) if self.by_merge else added(rows), batch),)
            elif change is not None and any(a.keys() & {"add", "remove", "txn"} for a in actions):
                self.line += (Event(change),)
                change = None
            self.at[version] = self.line
            self.version = version

    def control(self, target: int) -> tuple[set[int], set[int]] | None:
        """What a replay after a batch would do to the table as it is: batches that are skipped, and those that are doubled."""
        copy = self.root / "control"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.out, copy)
        skipped, doubled = set(), set()
        held = {event.batch for event in self.line}
        for batch in range(target + 1, self.newest + 1):
            before = newest_version(copy)
            self.write(copy, batch)
            if newest_version(copy) == before:
                skipped.add(batch)
            elif batch in held:
                doubled.add(batch)
        return skipped, doubled

    def _restore_by_spark(self, target: TableTarget, expected: int) -> None:
        assert newest_version(Path(target.table.root)) == expected
        about = f"SET spark.databricks.delta.commitInfo.userMetadata=airflowCkptPlan={target.plan_id}"
        self.sql(about, f"RESTORE TABLE delta.`{target.table.root}` TO VERSION AS OF {target.version}")

    # --- the others ---

    def others(self, *names: str) -> str:
        """Somebody does something with the table, of some things or of all; return what."""
        name = self.chance.choice(names or list(OTHERS))
        before = self.version
        try:
            OTHERS[name](self)
        except AssertionError as e:  # Spark refused: a version whose files are gone, an append-only table
            self.sync()
            return f"{name} refused ({str(e).partition('failed: ')[2][:40]!r})"
        return name if self.version > before else f"{name} (nothing)"

    def append(self) -> None:
        self.made += 1
        rows: Rows = Counter({(f"f{self.made}-{n}", n): 1 for n in range(2)})
        self.insert(self.out, rows)
        self.sync(added(rows))

    def _merge(self) -> None:
        self.made += 1
        ids = sorted({id_ for id_, _ in rows_after(self.line)}) or ["none"]
        rows: Rows = Counter({(self.chance.choice(ids), 5000 + self.made): 1, (f"m{self.made}", self.made): 1})
        self.merge_rows(self.out, rows)
        self.sync(merged(rows))

    def _delete(self) -> None:
        of = self.chance.randrange(5)
        self.delete_rows(f"((v % 5) + 5) % 5 = {of}")
        self.sync(mapped(lambda id_, v: None if v % 5 == of else (id_, v)))

    def _update(self) -> None:
        of = self.chance.randrange(5)
        self.update_rows(f"((v % 5) + 5) % 5 = {of}")
        self.sync(mapped(lambda id_, v: (id_, v + 100) if v % 5 == of else (id_, v)))

    def _overwrite(self) -> None:
        if self.chance.random() < 0.7:
            return
        self.made += 1
        rows: Rows = Counter({(f"o{self.made}", self.made): 1})
        self.overwrite(rows)
        self.sync(lambda before: rows)

    def _other_stream(self) -> None:
        self.made += 1
        rows: Rows = Counter({(f"s{self.made}", self.made): 1})
        self.insert(self.out, rows, ("others", self.others_batches))
        self.others_batches += 1
        self.sync(added(rows))

    def _property(self) -> None:
        self.made += 1
        name = self.chance.choice([*self.rare, *["owner"] * 3] if self.chance.random() < 0.3 else self.common)
        if self.by_merge and name == "delta.appendOnly":
            return
        self.set_property(name, _VALUES.get(name, "true") or f"team {self.made}")
        self.sync()

    def _constraint(self) -> None:
        self.made += 1
        self.add_constraint(f"c{self.made}")
        self.sync()

    def _column(self) -> None:
        self.made += 1
        self.add_column(f"extra{self.made}")
        self.sync()

    def _optimize(self) -> None:
        self.optimize()
        self.sync()

    def _vacuum(self) -> None:
        self.vacuum()
        self.sync()

    # --- by Spark ---

    common = ("owner", "delta.enableChangeDataFeed", "delta.setTransactionRetentionDuration", "delta.checkpointPolicy")
    common += ("delta.enableDeletionVectors", "delta.enableInCommitTimestamps", "delta.columnMapping.mode")
    rare: tuple[str, ...] = ("delta.enableRowTracking", "delta.appendOnly")

    def insert(self, table: Path, rows: Rows, txn: tuple[str, int] | None = None) -> None:
        """Append rows, with ``txnAppId`` and ``txnVersion``, which Delta compares as for a batch of its sink."""
        self.sql(*_txn(txn), f"INSERT INTO delta.`{table}` (id, v) {values(rows)}")

    def merge_rows(self, table: Path, rows: Rows, txn: tuple[str, int] | None = None) -> None:
        self.sql(
            *_txn(txn),
            f"MERGE INTO delta.`{table}` t USING (SELECT col1 AS id, col2 AS v FROM ({values(rows)})) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)",
        )

    def delete_rows(self, where: str) -> None:
        self.sql(f"DELETE FROM delta.`{self.out}` WHERE {where}")

    def update_rows(self, where: str) -> None:
        self.sql(f"UPDATE delta.`{self.out}` SET v = v + 100 WHERE {where}")

    def overwrite(self, rows: Rows) -> None:
        self.sql(f"INSERT OVERWRITE delta.`{self.out}` (id, v) {values(rows)}")

    def set_property(self, name: str, value: str) -> None:
        self.sql(f"ALTER TABLE delta.`{self.out}` SET TBLPROPERTIES ('{name}' = '{value}')")

    def add_constraint(self, name: str) -> None:
        self.sql(f"ALTER TABLE delta.`{self.out}` ADD CONSTRAINT {name} CHECK (id IS NOT NULL)")

    def add_column(self, name: str) -> None:
        self.sql(f"ALTER TABLE delta.`{self.out}` ADD COLUMNS ({name} INT)")

    def optimize(self) -> None:
        self.sql(f"OPTIMIZE delta.`{self.out}`")

    def vacuum(self) -> None:
        checks = "SET spark.databricks.delta.retentionDurationCheck.enabled=false"
        self.sql(checks, f"VACUUM delta.`{self.out}` RETAIN 0 HOURS")

    def _restore_by_version(self) -> None:
        self._restored(lambda version: self.sql(f"RESTORE TABLE delta.`{self.out}` TO VERSION AS OF {version}"))

    def _restore_by_time(self) -> None:
        """In one of three session time zones, of which Delta writes none into the log."""
        zone = f"SET spark.sql.session.timeZone={self.chance.choice(ZONES)}"

        def restore(version: int) -> None:
            stamp = self.sql(zone, f"SELECT CAST(timestamp_millis({committed_ms(self.out, version)}) AS STRING)")[0][0]
            self.sql(zone, f"RESTORE TABLE delta.`{self.out}` TO TIMESTAMP AS OF '{stamp}'")

        self._restored(restore)

    def _restore_by_delta_rs(self) -> None:
        def restore(version: int) -> None:
            checkpoints = (int(path.name[:20]) for path in (self.out / "_delta_log").glob("*.checkpoint*.parquet"))
            if 0 not in json_versions(self.out) and not any(number <= version for number in checkpoints):
                # Without the first commits delta-rs restores a part: tests/unit/sinks/test_restored_partly.py.
                raise AssertionError(f"failed: version {version} cannot be put together")
            try:
                DeltaTable(str(self.out)).restore(version)
            except Exception as e:
                raise AssertionError(f"failed: {e}") from e

        self._restored(restore)

    def _restored(self, restore: Callable[[int], object]) -> None:
        there = [version for version in json_versions(self.out) if version < self.version]
        if not there:
            return
        version = self.chance.choice(there[-6:])
        restore(version)
        self.sync(line=self.at[version])

    def _clone(self) -> None:
        """Somebody clones the table; the clone is of no interest to it."""
        clone = self.root / f"clone{self.made}"
        self.made += 1
        self.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{self.out}`")
        self.sql(f"INSERT INTO delta.`{clone}` (id, v) VALUES ('clone', 1)")
        self.sync()

    def _clean_log(self) -> None:
        """What log clean-up does, some weeks later: commits before a checkpoint of the log are gone."""
        try:
            DeltaTable(str(self.out)).create_checkpoint()
        except Exception as e:
            raise AssertionError(f"failed: {e}") from e
        below = self.chance.randint(0, self.version)
        for version in json_versions(self.out):
            if version < below:
                commit_file(self.out, version).unlink()


class StreamHistory(History):
    """The same with a real query: it reads a file a batch, and writes by Delta's sink."""

    def create(self) -> None:
        self.app_id, self.by_merge = None, False
        self.told.append("a stream")
        self.place.replace("metadata", metadata(self.query_id))
        self.sql(f"CREATE TABLE delta.`{self.out}` (id STRING, k STRING, v BIGINT, ts TIMESTAMP) USING delta")
        self.sync()

    def rows_of(self, batch: int, *, faulty: bool = False) -> Rows:
        return stateless_rows(batch, faulty=faulty)

    def run(self, batches: int, *, faulty: bool = False) -> list[int]:
        before, newest, source = self.version, self.newest, self.root / "input"
        there = len(list(source.glob("a/f*")))
        put_files(source, max(0, newest + 1 + batches - there), start=there)
        checkpoint = self.root / "checkpoints" / "orders"
        assert self.host
        self.host.start(
            "delta_sink", source=source, checkpoint=checkpoint, out=self.out, available_now=True, faulty=faulty
        ).finished()
        return self.committed_after(before, faulty=faulty)

    def control(self, target: int) -> None:
        """A stream knows its table by its place: there is no replay into a copy."""


OTHERS: dict[str, Callable[[History], None]] = {
    "append": History.append,
    "merge": History._merge,
    "delete": History._delete,
    "update": History._update,
    "overwrite": History._overwrite,
    "other stream": History._other_stream,
    "property": History._property,
    "property again": History._property,
    "constraint": History._constraint,
    "column": History._column,
    "optimize": History._optimize,
    "vacuum": History._vacuum,
    "restore": History._restore_by_version,
    "restore to a time": History._restore_by_time,
    "restore by delta-rs": History._restore_by_delta_rs,
    "clone": History._clone,
    "log clean-up": History._clean_log,
}


def plan_batch(checkpoint: Location, batch: int) -> None:
    """Log a batch of a file source, as Spark does before it runs it."""
    checkpoint.replace(f"sources/0/{batch}", file_source_log(batch))
    offsets = offsets_log(compact({"logOffset": batch}), metadata=batch_metadata(batch))
    checkpoint.replace(f"offsets/{batch}", offsets)


def values(rows: Rows) -> str:
    """Rows as SQL."""
    if not rows:
        return "SELECT 'none', CAST(0 AS BIGINT) WHERE false"
    return "VALUES " + ", ".join(f"('{id_}', {v}L)" for (id_, v), n in sorted(rows.items()) for _ in range(n))


def _txn(txn: tuple[str, int] | None) -> tuple[str, ...]:
    start = "SET spark.databricks.delta.write."
    return (f"{start}txnAppId={txn[0]}", f"{start}txnVersion={txn[1]}") if txn else ()
