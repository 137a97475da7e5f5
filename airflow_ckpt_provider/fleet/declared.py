"""Whether the world is as a stream is declared: places, sources, sinks, and how long backups are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from airflow_ckpt_provider.backup.lease import lease
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import UNLIMITED, Policy, Span
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.errors import BackupRunningError, CkptError, RefusedError
from airflow_ckpt_provider.fleet.declared_sources import is_guarded, kinds_without_guard, not_declared, not_read
from airflow_ckpt_provider.fleet.discovery import said
from airflow_ckpt_provider.guards.query import from_checkpoint
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.sinks.sink import Sink, judge, look_at
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.cron import average_interval
from airflow_ckpt_provider.streams.parameters import parameters_of
from airflow_ckpt_provider.streams.stream import SinkPlace, Stream
from airflow_ckpt_provider.streams.upgraded import COMMANDS, differences
from airflow_ckpt_provider.units import format_duration

#: Kinds of sinks that remember which query has written.
_KNOW_THE_QUERY = ("delta", "iceberg")
_COUNTED = {
    "hourly": timedelta(hours=1),
    "daily": timedelta(days=1),
    "weekly": timedelta(weeks=1),
    "monthly": timedelta(days=30),
    "yearly": timedelta(days=365),
}
_PRESETS = {"@hourly": "hourly", "@daily": "daily", "@weekly": "weekly", "@monthly": "monthly"}


class OpenPlace(Protocol):
    """Opens the places that a declaration names."""

    def __call__(self, uri: str, *, conn_id: str | None, role: str) -> Location:
        """Open one.

        :param uri: its address.
        :param conn_id: the Airflow connection that is declared for it.
        :param role: ``checkpoint``, ``repository``, ``sink`` or ``progress_log``.
        """


@dataclass(frozen=True, slots=True)
class Finding:
    """What is not as it is declared.

    :param stream: name of the stream.
    :param field: the field of its declaration.
    :param message: what is wrong.
    :param hint: the next step.
    """

    stream: str
    field: str
    message: str
    hint: str

    def to_json(self) -> dict[str, str]:
        """The finding as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        return f"{self.stream}.{self.field}: {self.message} ({self.hint})"


def check_declared(stream: Stream, open_place: OpenPlace) -> list[Finding]:
    """Compare a declaration with the world. Reads only, but for the lease of the stream's backups: it is taken and released.

    :param stream: the stream.
    :param open_place: opens its places.
    :return: all that is wrong. A place that cannot be reached hides no other finding.
    """
    return list(_Check(stream, open_place).findings())


def check_application(stream: Stream, streams: Sequence[Stream]) -> list[Finding]:
    """Find what keeps an application from a DAG that upgrades all its streams. Asks nobody.

    :param stream: the stream of the application that the findings are about.
    :param streams: all streams of the application.
    """
    return [
        Finding(
            stream.name,
            field,
            f"{message}: no DAG upgrades the application {stream.application!r}",
            f"give all its streams the same {field}, which is run once for all of them"
            if field in COMMANDS
            else f"declare {field} for all its streams",
        )
        for field, message in differences(stream, streams)
    ]


class _Check:
    def __init__(self, stream: Stream, open_place: OpenPlace) -> None:
        self._stream = stream
        self._open = open_place
        self._said = parameters_of(stream)

    def findings(self) -> Iterator[Finding]:
        place, stands, problem = self._try("checkpoint", self._checkpoint)
        yield from problem
        repository, _, problem = self._try("repository", self._repository)
        yield from problem
        yield from self._sources(place, stands)
        if stands is not None and place is not None:
            for number, sink in enumerate(self._stream.sinks):
                yield from self._sink(f"sinks[{number}]", sink, place, stands, repository)
        for field, uri in (
            ("driver.progress_log", self._said.get("progress_log")),
            ("driver.log", self._said.get("error_log")),
        ):
            if uri:
                yield from self._log(field, uri)
        yield from self._kept()

    def _try(self, field: str, look: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any, list[Finding]]:
        try:
            return (*look(), [])
        except CkptError as e:
            return None, None, [self._finding(field, e.message, e.hint or "correct the declaration")]
        except Exception as e:  # whatever a client of a store raises
            return None, None, [self._finding(field, said(e), "check the address, the connection and the rights")]

    def _finding(self, field: str, message: str, hint: str) -> Finding:
        return Finding(self._stream.name, field, message, hint)

    def _checkpoint(self) -> tuple[Location, Progress]:
        conn_id = self._said.get("checkpoint_conn_id")
        place = self._open(self._stream.checkpoint, conn_id=conn_id, role="checkpoint")
        return place, Checkpoint.at(place).progress()

    def _repository(self) -> tuple[Repository | None, None]:
        if self._stream.repository is None:
            raise RefusedError("there is none", hint="declare repository, for the stream or in the defaults")
        place = self._open(self._stream.repository, conn_id=self._said.get("repository_conn_id"), role="repository")
        repository = Repository.open_if_there(place)
        if repository is None and not self._stream.backup.create:
            raise RefusedError(
                f"{place} holds no repository", hint="make it: airflow-ckpt init, or declare backup: {create: true}"
            )
        if repository is not None:
            # As a backup begins: by the one file that needs no right to delete.
            with suppress(BackupRunningError), lease(place, self._stream.repository_name, made_by="streams check"):
                pass
        return repository, None

    def _sink(
        self, field: str, sink: SinkPlace, place: Location, stands: Progress, repository: Repository | None
    ) -> Iterator[Finding]:
        def look() -> tuple[str | None, None]:
            conn_id = sink.conn_id or self._stream.storage_conn_id
            named = Sink.named(
                sink.sink,
                lambda uri: self._open(uri, conn_id=conn_id, role="sink"),
                app_id=sink.txn_app_id,
                storage_options=dict(sink.options),
            )
            found = look_at(named)
            ids = read_query_ids(
                stands.query_id,
                place=place,
                repository=repository,
                name=self._stream.repository_name,
                app_ids=(sink.txn_app_id,),
                histories=(found.content.history if found else None,),
            )
            newest = stands.latest_committed
            if ids is None or newest is None:
                return None, None
            report = judge(named, found, ids.known_as(sink.txn_app_id), newest, newest)
            strange = report.kind in _KNOW_THE_QUERY and report.batch_id is None and report.remembered is None
            return (f"it holds no batch of the query {ids.current}" if strange else None), None

        message, _, problems = self._try(field, look)
        yield from problems
        if message:
            yield self._finding(
                field, message, "give the table that this query writes to, and txn_app_id where foreachBatch writes it"
            )

    def _sources(self, place: Location | None, stands: Progress | None) -> Iterator[Finding]:
        stream = self._stream
        strange = dict(kinds_without_guard(stream))
        for kind, hint in strange.items():
            yield self._finding(f"sources.{kind}", "no guard for sources of this kind is installed", hint)
        if place is None or stands is None or not is_guarded(stream):
            return
        query, _, problems = self._try("sources", lambda: (from_checkpoint(place, progress=stands), None))
        yield from problems
        if query is None:
            return
        for kind, there in not_read(stream, query):
            if kind not in strange:
                said = f"the query reads no {kind}, but {there}"
                yield self._finding(f"sources.{kind}", said, "declare what it reads")
        for kind in not_declared(stream, query):
            said = f"the query reads {kind}, which is not declared: its guard can only say UNKNOWN"
            yield self._finding("sources", said, f"declare sources.{kind}")

    def _log(self, field: str, uri: str) -> Iterator[Finding]:
        def look() -> tuple[bool, None]:
            place = self._open(uri, conn_id=self._said.get("progress_log_conn_id"), role="progress_log")
            return place.store.find(place.root) is not None or bool(place.list().files), None

        there, _, problems = self._try(field, look)
        yield from problems
        if there is False:
            yield self._finding(field, f"{uri} is missing", "start the driver with it, or correct the address")

    def _kept(self) -> Iterator[Finding]:
        """Backups are kept for as long as they are needed."""
        if not self._stream.retention:
            return
        reach = kept_for(Policy.parse(self._stream.retention), self._stream.schedule)
        needs = {
            "objectives.restorable_for": self._stream.objectives.restorable_for,
            "max_downtime": self._stream.max_downtime,
        }
        for field, needed in needs.items():
            if needed and reach is not None and reach < needed:
                said = f"{field} is {format_duration(needed)}, and the rules keep backups for {format_duration(reach)}"
                yield self._finding("retention", said, "keep more, or ask for less")


def kept_for(policy: Policy, schedule: str | timedelta) -> timedelta | None:
    """How old the oldest backup is that a policy keeps, of a stream that always commits; ``None``: it keeps all.

    A cron expression counts as a regular interval, the average of its own.

    :param policy: the rules.
    :param schedule: when backups are made.
    """
    if isinstance(schedule, timedelta):
        every = schedule
    elif schedule in _PRESETS:
        every = _COUNTED[_PRESETS[schedule]]
    else:
        every = average_interval(schedule)
    reach = timedelta(0)
    for name in ("last", "replayable"):
        count: int = getattr(policy, name)
        if count == UNLIMITED:
            return None
        reach = max(reach, count * every)
    for name, length in _COUNTED.items():
        count = getattr(policy, name)
        if count == UNLIMITED:
            return None
        reach = max(reach, count * max(length, every))
    spans = (policy.within, *(getattr(policy, f"within_{name}") for name in _COUNTED))
    return max([reach, *(_length(span) for span in spans if span)])


def _length(span: Span) -> timedelta:
    return timedelta(days=365 * span.years + 30 * span.months + span.days, hours=span.hours)
