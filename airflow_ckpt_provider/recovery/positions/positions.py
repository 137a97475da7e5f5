"""Starting positions for a new checkpoint, of all sources of a query at once, and what a new checkpoint means besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.file_source_log import FileSourceLog, read_file_log
from airflow_ckpt_provider.checkpoint.kafka_start import FILE, parse_kafka_start
from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry, SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, FileOffset, KafkaOffset
from airflow_ckpt_provider.checkpoint.sources import SOURCES, log_directory, unknown_log
from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.guards.kafka_identity import KnownTopics
from airflow_ckpt_provider.recovery.positions.choice import Choice
from airflow_ckpt_provider.recovery.positions.delta import delta_position, delta_position_by_clock
from airflow_ckpt_provider.recovery.positions.files import (
    auto_loader_position,
    file_position,
    file_position_by_clock,
    is_auto_loader,
)
from airflow_ckpt_provider.recovery.positions.kafka import kafka_position, kafka_position_by_clock
from airflow_ckpt_provider.recovery.positions.logs import ReadableLogs, Unread
from airflow_ckpt_provider.recovery.positions.mirror import Mirror, mirrored_position, mirrored_position_by_clock
from airflow_ckpt_provider.recovery.positions.position import FirstStart, Seed, SourcePosition
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict, worst


@dataclass(frozen=True, slots=True)
class Caution:
    """Something a new checkpoint changes, whatever its positions.

    :param code: stable name, such as ``NEW-QUERY-ID``.
    :param message: what it means, and what to do.
    """

    code: str
    message: str

    def to_json(self) -> dict[str, str]:
        """The warning as plain JSON."""
        return {"code": self.code, "message": self.message}


@dataclass(frozen=True, slots=True)
class StartingPositions(FirstStart):
    """Where every source of a new checkpoint starts.

    :param origin: the checkpoint or the backup they are of.
    :param query_id: its query's id, where it could be read.
    :param batch_id: the batch after which they start; ``None`` where the sources' own clocks decide.
    :param batch_time: when that batch was planned, or the time asked for, in UTC.
    :param sources: one position for each source, in plan order.
    :param warnings: what a new checkpoint changes besides.
    :param notes: what to know of the choice.
    :param unread: what could not be read.
    """

    origin: str
    query_id: str | None
    batch_id: int | None
    batch_time: datetime | None
    sources: tuple[SourcePosition, ...]
    warnings: tuple[Caution, ...]
    notes: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of the sources'."""
        return worst((source.verdict for source in self.sources), of_none=Verdict.UNKNOWN)

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """Files to be put into the new checkpoint."""
        return tuple(source.seed for source in self.sources if source.seed)

    def of(self, source: str) -> SourcePosition:
        """The position of one source.

        :raises RefusedError: the query has no such source.
        """
        for position in self.sources:
            if position.source == source:
                return position
        names = ", ".join(f"{p.source} ({p.kind})" for p in self.sources)
        raise RefusedError(f"{self.origin} has no source {source!r}", hint=f"it has: {names}")

    def to_json(self) -> dict[str, Any]:
        """The documented keys of ``airflow-ckpt positions --json``."""
        return {
            "origin": self.origin,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "batch_time": self.batch_time.isoformat() if self.batch_time else None,
            "verdict": self.verdict.value,
            "options": self.options,
            "conf": self.conf,
            "sources": [source.to_json() for source in self.sources],
            "warnings": [warning.to_json() for warning in self.warnings],
            "notes": list(self.notes),
            "unread": [{"path": u.path, "reason": u.reason} for u in self.unread],
        }


def starting_positions(
    logs: ReadableLogs,
    choice: Choice,
    *,
    kafka_partitions: Mapping[str, int] | None = None,
    tables: Mapping[str, Location] | None = None,
    mirror: Mirror | None = None,
) -> StartingPositions:
    """Work out the positions of all sources.

    :param logs: the logs.
    :param choice: the batch.
    :param kafka_partitions: topic -> how many partitions it has now, so that added ones are read too.
    :param tables: source -> directory of the Delta table that it reads; a position whose table is not named is ``UNKNOWN``.
    :param mirror: the mirror to the Kafka cluster that the new query reads; ``None``: the same cluster as before.
    :raises RefusedError: the batch has no sources, ``kafka_partitions`` names a topic that no source reads, or no source is
        a Kafka topic of the mirror.
    :raises SourceError: a cluster of the mirror cannot be asked.
    """
    entry = choice.entry
    if not entry.sources:
        raise RefusedError(f"{logs.origin}: batch {entry.batch_id} has no source", hint="choose another batch")
    _check_topics(entry, kafka_partitions)
    _check_tables(logs, entry, tables)
    _check_mirror(logs, entry, kafka_partitions, mirror)
    found, file_logs = [], {}
    for source in entry.sources:
        if isinstance(source.offset, FileOffset):
            file_logs[source.source] = _file_log(logs, source.source, source.offset, sources=len(entry.sources))
        table = (tables or {}).get(source.source)
        found.append(_position(logs, choice, source, file_logs.get(source.source), kafka_partitions, table, mirror))
    return StartingPositions(
        origin=logs.origin,
        query_id=logs.query_id,
        batch_id=None if choice.by_clock else entry.batch_id,
        batch_time=choice.by_clock or entry.time,
        sources=tuple(found),
        warnings=tuple(_warnings(logs, choice, file_logs)),
        notes=choice.notes,
        unread=tuple(dict.fromkeys(logs.unread)),
    )


def put_seeds(positions: StartingPositions, place: Location) -> StartingPositions:
    """Put the seeds into the place of the new checkpoint, which must be empty or hold the same seeds.

    :return: the positions as they are with the seeds in place.
    :raises RefusedError: something else is there already.
    """
    wanted = {seed.path: seed.content for seed in positions.seeds}
    there = [path for path in place.walk() if not any(part.startswith(".") for part in path.split("/"))]
    strange = [path for path in there if path not in wanted or place.read(path) != wanted[path]]
    if strange:
        raise RefusedError(
            f"{place} is not empty: it holds {', '.join(sorted(strange)[:3])}{', …' if len(strange) > 3 else ''}",
            hint="a new checkpoint needs an empty place: give another one",
        )
    for path, content in wanted.items():
        if path not in there:
            place.create(path, content)
    return replace(positions, sources=tuple(_seeded(source, place) for source in positions.sources))


def _seeded(source: SourcePosition, place: Location) -> SourcePosition:
    if source.seed is None or source.repeats is None:
        return source
    damaged = source.reasons[1:]  # the first says what the seed is for
    done = f"{place}/{source.seed.path} lists {source.seed.files:,} files as read: start the query with this checkpoint"
    return replace(
        source,
        verdict=Verdict.WILL_DUPLICATE if damaged else Verdict.SAFE,
        reasons=(done, *damaged),
        repeats=None if damaged else {},
    )


def _position(
    logs: ReadableLogs,
    choice: Choice,
    source: SourceOffset,
    log: FileSourceLog | None,
    partitions: Mapping[str, int] | None,
    table: Location | None,
    mirror: Mirror | None,
) -> SourcePosition:
    name, time, clock = source.source, choice.entry.time, choice.by_clock
    directory = _directory(logs, choice.entry, name)
    offset = source.offset or _initial_offsets(logs, directory)
    match offset:
        case KafkaOffset() if mirror and clock:
            return mirrored_position_by_clock(name, offset, mirror, time=clock)
        case KafkaOffset() if mirror:
            recorded = logs.facts.get("sources", {}).get(name, {})
            return mirrored_position(name, offset, mirror, known=KnownTopics.from_json(recorded))
        case KafkaOffset() if clock:
            return kafka_position_by_clock(name, offset, time=clock, partitions=partitions)
        case KafkaOffset():
            return kafka_position(name, offset, time=time, partitions=partitions)
        case DeltaOffset() if clock:
            return delta_position_by_clock(name, offset, time=clock, table=table)
        case DeltaOffset():
            return delta_position(name, offset, table=table, logged_at=time)
        case FileOffset() if clock:
            return file_position_by_clock(name, time=clock)
        case FileOffset():
            return file_position(name, log or FileSourceLog((), ()), directory=directory)
        case None if seeded := _seeded_log(logs, directory):
            return file_position(name, seeded, directory=directory)
        case None:
            return SourcePosition(
                name,
                "unknown",
                {},
                Verdict.UNKNOWN,
                ("it had read nothing by then: it starts where its own options say, which no checkpoint records",),
                None,
            )
    if is_auto_loader(offset.text):
        return auto_loader_position(name, time=clock or time)
    return SourcePosition(
        name,
        offset.kind,
        {},
        Verdict.UNKNOWN,
        (
            f"no option is known here that starts a source of kind {offset.kind} at {offset.text[:80]}"
            if offset.kind != "unknown"
            else f"nobody here knows this source by its offset {offset.text[:80]!r}",
        ),
        None,
    )


def _directory(logs: ReadableLogs, entry: OffsetEntry, source: str) -> str:
    """The directory of a source in ``sources/``; or the name of the source if which one it is was not recorded."""
    return log_directory(source, len(entry.sources), logs.sources) or source


def _initial_offsets(logs: ReadableLogs, directory: str) -> KafkaOffset | None:
    """Where Kafka started, for a source that had no offset yet."""
    if FILE not in logs.sources.get(directory, ()):
        return None
    path = f"{SOURCES}/{directory}/{FILE}"
    try:
        return parse_kafka_start(logs.file(path) or b"", path=path)
    except UnreadableLogError:
        return None


def _file_log(logs: ReadableLogs, source: str, offset: FileOffset, *, sources: int) -> FileSourceLog:
    name = log_directory(source, sources, logs.sources)
    if name is None:
        return FileSourceLog((), (), (unknown_log(source),))
    directory = f"{SOURCES}/{name}"
    found = read_file_log(
        logs.sources.get(name, frozenset()),
        lambda name: logs.read(f"{directory}/{name}"),
        offset.log_offset,
        directory=directory,
    )
    logs.unread += [Unread(path, reason.removeprefix(f"{path}: ")) for path, reason in found.unread]
    return found


def _seeded_log(logs: ReadableLogs, name: str) -> FileSourceLog | None:
    """The files that a seed lists as read, of a file source that had no offset yet; ``None``: there is no seed."""
    directory, names = f"{SOURCES}/{name}", logs.sources.get(name, frozenset())
    if FILE not in names or _initial_offsets(logs, name):
        return None
    found = read_file_log(names, lambda name: logs.read(f"{directory}/{name}"), -1, directory=directory)
    return found if found.read else None


def _check_topics(entry: OffsetEntry, partitions: Mapping[str, int] | None) -> None:
    topics = {t for s in entry.sources if isinstance(s.offset, KafkaOffset) for t in s.offset.partitions}
    strange = sorted(set(partitions or {}) - topics)
    if strange:
        read = f"its topics: {', '.join(sorted(topics))}" if topics else "it has no Kafka source"
        raise RefusedError(f"the query reads no topic {strange[0]!r}", hint=read)


def _check_tables(logs: ReadableLogs, entry: OffsetEntry, tables: Mapping[str, Location] | None) -> None:
    read = {s.source for s in entry.sources if isinstance(s.offset, DeltaOffset)}
    strange = sorted(set(tables or {}) - read)
    if strange:
        there = f"its Delta sources: {', '.join(sorted(read))}" if read else "it has no Delta source"
        raise RefusedError(f"{logs.origin}: source {strange[0]!r} reads no Delta table", hint=there)


def _check_mirror(
    logs: ReadableLogs, entry: OffsetEntry, partitions: Mapping[str, int] | None, mirror: Mirror | None
) -> None:
    if mirror is None:
        return
    if partitions:
        raise RefusedError(
            "the number of partitions of a mirrored topic is asked of the new cluster",
            hint="leave out --partitions (kafka_partitions)",
        )
    kafka = [s.offset or _initial_offsets(logs, _directory(logs, entry, s.source)) for s in entry.sources]
    if not any(isinstance(offset, KafkaOffset) for offset in kafka):
        raise RefusedError(f"{logs.origin}: no source reads Kafka", hint="leave out --mirrored-from (mirrored_from)")


def _warnings(logs: ReadableLogs, choice: Choice, file_logs: Mapping[str, FileSourceLog]) -> list[Caution]:
    found = []
    if choice.later:
        found.append(Caution("LATER-BATCHES", _later(choice, file_logs)))
    found += [
        Caution(
            "NEW-QUERY-ID",
            "a new checkpoint gets a new query id, so a Delta table that the query writes to does not know the "
            "old query's "
            "batches: whatever is read again is written again",
        ),
        Caution(
            "BATCH-NUMBERS",
            "batch numbers begin at 0 again. foreachBatch: without a stable txnAppId, what is read again is "
            "written again; with the "
            "old txnAppId and the batch number as txnVersion, Delta skips every batch up to the old number "
            "silently: give a new "
            "txnAppId. A file sink skips them too while its directory holds _spark_metadata: give a new directory",
        ),
    ]
    if logs.is_stateful:
        found.append(
            Caution(
                "STATE-LOST",
                "the query keeps state, and a new checkpoint has none: counts, joins and duplicates start from the beginning "
                "with the rows after "
                "the start",
            )
        )
    return found


def _later(choice: Choice, file_logs: Mapping[str, FileSourceLog]) -> str:
    first, last = choice.later[0], choice.later[-1]
    batches = f"batch {first.batch_id}" if first is last else f"batches {first.batch_id} to {last.batch_id}"
    starts = {s.source: s.offset for s in choice.entry.sources}
    counts = []
    for end in last.sources if not choice.by_clock else ():
        start = starts.get(end.source)
        match start, end.offset:
            case KafkaOffset(partitions=a), KafkaOffset(partitions=b):
                records = sum(n - a.get(t, {}).get(p, n) for t, ps in b.items() for p, n in ps.items())
                counts.append(f"source {end.source}: {records:,} offsets")
            case DeltaOffset(table_version=a), DeltaOffset(table_version=b):
                counts.append(
                    f"source {end.source}: versions {a} to {b}" if a != b else f"source {end.source}: version {a}"
                )
            case FileOffset(), FileOffset(log_offset=b) if end.source in file_logs:
                files = sum(f.log_id <= b for f in file_logs[end.source].beyond)
                counts.append(f"source {end.source}: {files:,} files")
    what = f" ({'; '.join(counts)})" if counts else ""
    return (
        f"the old query planned {batches} after the start{what}: what of them is in the sink already comes a "
        f"second time, unless "
        "the sink is rolled back too"
    )
