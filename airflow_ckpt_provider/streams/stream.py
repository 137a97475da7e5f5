"""The model of one stream: where its checkpoint is, what it reads and writes, how it is run, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from airflow_ckpt_provider.backup.names import LONGEST_NAME
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.source_settings import sources_named
from airflow_ckpt_provider.streams.actions import Action
from airflow_ckpt_provider.streams.cron import PRESETS, is_cron, longest_interval
from airflow_ckpt_provider.streams.declared import Declared
from airflow_ckpt_provider.streams.kinds import (
    ConnId,
    Dotted,
    NameOfStream,
    Place,
    PlaceText,
    Rules,
    StoreOptions,
    TableName,
    Text,
)
from airflow_ckpt_provider.units import format_duration, parse_duration

_WORDS_OF_SINKS = ("foreachBatch", "foreach", "kafka")
#: Airflow computes the date after the next run as well.
_LONGEST_INTERVAL = timedelta(days=3660)
#: As Airflow takes them.
_TAG = Text("a tag of at most 100 characters", r".{1,100}", "give a shorter one")
_SHARE = r"all|\d{1,6}/[1-9]\d{0,5}|\d{1,3}(\.\d{1,9})?%"


def _is_schedule(text: str) -> bool:
    """Whether Airflow takes it: what it refuses would take the DAGs of all streams of the file away."""
    try:
        return is_cron(text) or timedelta(seconds=1) <= parse_duration(text) <= _LONGEST_INTERVAL
    except RefusedError:
        return False


@dataclass(frozen=True, kw_only=True)
class Source(Declared):
    """One kind of source that the query reads.

    :param conn_id: Airflow connection by which a guard asks it; for `kafka` a connection of type `kafka`.
    :param tables: `delta` and `iceberg`: the table of each source, by its position in the query such as `0`, or its name: its
        directory, or `iceberg:CATALOG.NAMESPACE.TABLE`.
    :param options: what else its guard needs, as `options` of RecoveryPreflightOperator has it for this kind.
    """

    title: ClassVar[str] = "Source"

    conn_id: ConnId | None = None
    tables: Mapping[str, TableName] = field(default_factory=dict)
    options: StoreOptions = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SinkPlace(Declared):
    """One sink that the query writes to.

    :param sink: the directory of a Delta table, an Iceberg table or a file sink; `iceberg:CATALOG.NAMESPACE.TABLE`;
        `foreachBatch`, `foreach` or `kafka`.
    :param conn_id: Airflow connection to read its log; the default is `storage_conn_id`.
    :param txn_app_id: `txnAppId` with which `foreachBatch` writes to a Delta table; the default is the query id.
    :param options: settings of the table's store as `deltalake` names them, or of an Iceberg catalog as `pyiceberg` does.
    """

    shorthand: ClassVar[str | None] = "sink"
    title: ClassVar[str] = "Sink"

    sink: Annotated[
        str,
        PlaceText(
            "a sink",
            rf"(/|[A-Za-z][A-Za-z0-9+.-]*://|iceberg:).*|{'|'.join(_WORDS_OF_SINKS)}",
            f"give a URI, an absolute path, iceberg:CATALOG.NAMESPACE.TABLE, {', '.join(_WORDS_OF_SINKS)}",
        ),
    ]
    conn_id: ConnId | None = None
    txn_app_id: str | None = None
    options: StoreOptions = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Driver(Declared):
    """What the query's driver reports: the proof that it has ended, and its errors.

    :param progress_log: URI of the JSON lines that ProgressLines writes in the driver.
    :param log: URI of the driver's text log.
    :param conn_id: Airflow connection to reach both; the default is `storage_conn_id`.
    :param spark_api_url: address of the query's application in Spark's REST interface.
    """

    title: ClassVar[str] = "Driver"

    progress_log: Place | None = None
    log: Place | None = None
    conn_id: ConnId | None = None
    spark_api_url: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Objectives(Declared):
    """What is wanted of the recovery of the stream.

    :param rpo: recovery point objective: the last good backup is at most this old, where anything was committed since. No
        interval of the schedule of backups may be longer.
    :param rto: recovery time objective: a restore, measured by the drill, takes at most this long.
    :param restorable_for: how far back a backup can be restored; the retention policy has to keep as much.
    """

    title: ClassVar[str] = "Objectives"

    rpo: timedelta | None = None
    rto: timedelta | None = None
    restorable_for: timedelta | None = None

    def conflicts(self) -> list[tuple[str, str, str]]:
        """An age that no schedule of backups can keep."""
        if self.rpo is None or self.rpo >= timedelta(seconds=1):
            return []
        return [("rpo", f"{format_duration(self.rpo)} is less than a second", "give at least 1s")]


@dataclass(frozen=True, kw_only=True)
class Backup(Declared):
    """How the stream is backed up.

    :param schedule: `@hourly`, `@daily`, `@weekly`, `@monthly`, five fields of cron, or a duration such as `1h`; the default is
        `rpo` where that is shorter than a day, else `@daily`.
    :param verify: which contents are read and compared after each backup: `all`, `n/t` or `x%`; the structure always is.
    :param restorable_batches: how many of the newest batches can be restored from one backup.
    :param create: make the repository if its place is empty.
    :param immutable_for: lock each backup by S3 Object Lock for so long.
    :param workers: files copied at the same time.
    """

    title: ClassVar[str] = "Backup"

    schedule: str | None = None
    verify: Annotated[str, Text("a part of the contents", _SHARE, "give all, 1/7 or 10%")] = "10%"
    restorable_batches: int = 1
    create: bool = False
    immutable_for: timedelta | None = None
    workers: int | None = None

    def conflicts(self) -> list[tuple[str, str, str]]:
        """A schedule that is none, and a part of the contents that nothing can be."""
        found = []
        if not (self.schedule is None or self.schedule in PRESETS or _is_schedule(self.schedule)):
            hint = f"give {', '.join(PRESETS)}, five fields of cron for dates that exist, or a duration from 1s to 10 years"
            found.append(("schedule", f"{self.schedule!r} is no schedule", hint))
        part, _, parts = self.verify.rpartition("/")
        if (part and not 1 <= int(part) <= int(parts)) or (parts[-1] == "%" and not 0 < float(parts[:-1]) <= 100):
            found.append(("verify", f"{self.verify} is no part of the contents", "give all, 1/7 or 10%"))
        return found


@dataclass(frozen=True, kw_only=True)
class Watch(Declared):
    """When people are notified that the stream is in trouble.

    :param stuck_after: a batch was begun, and nothing was written for so long.
    :param behind_after: the newest batch runs for longer than this; the default is not to judge it.
    :param silent_after: no batch was begun for so long; only for streams that always have something to read.
    :param max_gap: the most logged batches without a commit.
    :param min_time_to_loss: the least time for which the sources must have what is read next; the default is `max_downtime`.
    """

    title: ClassVar[str] = "Watch"

    stuck_after: timedelta = timedelta(minutes=30)
    behind_after: timedelta | None = None
    silent_after: timedelta | None = None
    max_gap: int = 10
    min_time_to_loss: timedelta | None = None


@dataclass(frozen=True, kw_only=True)
class Drill(Declared):
    """How the newest backup is proven restorable: restored to a scratch place, and the code of production run on it.

    :param build: function that builds the query, as `package.module:function`.
    :param scratch: place for the restored checkpoint, by a name that Spark knows too.
    :param output_mode: of the query.
    :param batches: batches at most.
    """

    title: ClassVar[str] = "Drill"

    build: Annotated[
        str, Text("package.module:function", r"[\w.]+:\w+", "give package.module:function, shipped with the job")
    ]
    scratch: Place
    output_mode: Literal["append", "update", "complete"] = "append"
    batches: int = 3


@dataclass(frozen=True, kw_only=True)
class Notifier(Declared):
    """Who is informed: one of Airflow's notifiers.

    :param notifier: its class by its dotted name.
    :param arguments: what it is made with; a secret belongs in its connection.
    """

    shorthand: ClassVar[str | None] = "notifier"
    title: ClassVar[str] = "Notifier"

    notifier: Dotted
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stream(Declared):
    """One stream, as `streams.yaml` and Python declare it.

    :param name: its name: the key in `streams`, and what `stream=` and `--stream` take.
    :param checkpoint: the `checkpointLocation` of the query.
    :param repository: the place of its backups.
    :param name_in_repository: its name there; the default is its name here.
    :param application: name of the application that runs the query, where it runs several: its streams are stopped and started
        together.
    :param storage_conn_id: Airflow connection to reach its stores, where no other one is given.
    :param checkpoint_conn_id: Airflow connection to reach the checkpoint.
    :param repository_conn_id: Airflow connection to reach the repository.
    :param kafka_conn_id: Airflow connection of type `kafka`; that of `sources` comes first.
    :param spark_conn_id: Airflow connection of type `spark`, for drills and for tables that only Spark can roll back.
    :param databricks_conn_id: Airflow connection of type `databricks`.
    :param sources: what the query reads, by kind: `kafka`, `delta`, `file`, `iceberg`, ….
    :param sinks: what the query writes to, all of it.
    :param driver: what its driver reports.
    :param stop: stops the query, and waits until it has ended.
    :param start: starts the query; returns once the driver runs.
    :param deploy: puts the new code in place.
    :param roll_back: puts the old code back in place.
    :param max_downtime: the longest that the stream is planned to be down; its sources have to keep as much.
    :param objectives: what is wanted of its recovery.
    :param backup: how it is backed up.
    :param retention: which backups are kept: rules of CheckpointExpireOperator, such as `daily: 30`; the default is to
        keep all of them.
    :param watch: when somebody is informed that it is in trouble.
    :param drill: how its backups are proven restorable.
    :param notifiers: who is informed of failures and incidents.
    :param tags: of its DAGs, and of the page.
    :param owner: of its tasks.
    """

    title: ClassVar[str] = "Stream"

    name: Annotated[str, NameOfStream()] = field(kw_only=False)
    checkpoint: Place
    repository: Place | None = None
    name_in_repository: Annotated[str, NameOfStream(LONGEST_NAME)] | None = None
    application: Annotated[str, NameOfStream()] | None = None
    storage_conn_id: ConnId | None = None
    checkpoint_conn_id: ConnId | None = None
    repository_conn_id: ConnId | None = None
    kafka_conn_id: ConnId | None = None
    spark_conn_id: ConnId | None = None
    databricks_conn_id: ConnId | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)
    sinks: tuple[SinkPlace, ...] = ()
    driver: Driver = field(default_factory=Driver)
    stop: Action | None = None
    start: Action | None = None
    deploy: Action | None = None
    roll_back: Action | None = None
    max_downtime: timedelta | None = None
    objectives: Objectives = field(default_factory=Objectives)
    backup: Backup = field(default_factory=Backup)
    retention: Annotated[Mapping[str, Any], Rules()] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    drill: Drill | None = None
    notifiers: tuple[Notifier, ...] = ()
    tags: tuple[Annotated[str, _TAG], ...] = ()
    owner: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def repository_name(self) -> str:
        """Its name in the repository."""
        return self.name_in_repository or self.name

    @property
    def checkpoint_connection(self) -> str | None:
        """The Airflow connection that reaches its checkpoint."""
        return self.checkpoint_conn_id or self.storage_conn_id

    @property
    def repository_connection(self) -> str | None:
        """The Airflow connection that reaches its repository."""
        return self.repository_conn_id or self.storage_conn_id

    @property
    def schedule(self) -> str | timedelta:
        """When it is backed up: a cron expression, a preset such as ``@daily``, or an interval."""
        given = self.backup.schedule
        if given is None:
            rpo = self.objectives.rpo
            return rpo if rpo and rpo < timedelta(days=1) else "@daily"
        return given if given.startswith("@") or is_cron(given) else parse_duration(given)

    @property
    def kafka(self) -> str | None:
        """Airflow connection to its Kafka cluster; ``None``: there is none."""
        source = self.sources.get("kafka")
        return (source and source.conn_id) or self.kafka_conn_id

    def conflicts(self) -> list[tuple[str, str, str]]:
        """Objectives that cannot be met, a source that nobody can ask, an application of nothing, and a drill without backups."""
        found = []
        rpo, schedule = self.objectives.rpo, self.schedule
        if rpo and isinstance(schedule, str) and (gap := longest_interval(schedule)) > rpo:
            said = f"{schedule!r} leaves up to {format_duration(gap)} between two backups, which is more than rpo, "
            hint = "back up at least as often as rpo, or leave schedule out"
            found.append(("backup", said + format_duration(rpo), hint))
        if rpo and isinstance(schedule, timedelta) and schedule > rpo:
            said = f"every {format_duration(schedule)} is less often than rpo, {format_duration(rpo)}"
            found.append(("backup", said, "back up at least as often as rpo, or leave schedule out"))
        if self.sources.get("kafka") and not self.kafka:
            found.append(("sources", "kafka has no connection", "give sources.kafka.conn_id or kafka_conn_id"))
        try:
            sources_named({kind: source.options for kind, source in self.sources.items()})
        except RefusedError as e:
            found.append(("sources", e.message, e.hint or ""))
        for what in ("stop", "start", "deploy", "roll_back"):
            action: Action | None = getattr(self, what)
            application, job = action and action.spark_application, action and action.databricks_job
            if what == "start" and ((job and job.do == "cancel") or (application and application.do == "delete")):
                done = "cancel" if job else "delete"
                found.append((what, f"`do: {done}` starts nothing", f"leave `do: {done}` out"))
            elif application and application.is_created_by(what) and not application.file:
                said = f"the application {application.name} has no file"
                found.append((what, said, "give the manifest that it is created from: file"))
        created, deleted = (each and each.spark_application for each in (self.start, self.stop))
        if created and deleted and not deleted.is_created_by("stop"):
            one, other = (f"{each.namespace}/{each.name}" for each in (created, deleted))
            if one != other:
                said = f"it deletes the application {other}, and start creates {one}"
                found.append(("stop", said, "name the same application in both"))
        if self.drill and not self.repository:
            hint = "declare repository: a drill restores the newest backup in it"
            found.append(("drill", "there is no repository", hint))
        return found
