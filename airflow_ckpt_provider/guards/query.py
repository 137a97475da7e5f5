"""One report for a whole query: from a checkpoint, from what a backup recorded, or from offsets given by hand."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.kafka_start import FILE, parse_kafka_start
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.progress import Progress, read_progress
from airflow_ckpt_provider.checkpoint.resume import ResumePoint, read_resume_point
from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset, Offset, OpaqueOffset, parse_offset
from airflow_ckpt_provider.checkpoint.sources import SOURCES, SOURCES_EVOLVE, log_directory
from airflow_ckpt_provider.errors import NoSourceOfKindError, RefusedError, UnreadableLogError, did_you_mean
from airflow_ckpt_provider.guards.kafka_identity import KIND, KnownTopics
from airflow_ckpt_provider.guards.kafka_verdicts import EARLIEST
from airflow_ckpt_provider.guards.registry import Guard, GuardedSource, GuardSettings, installed_guards, judge_source
from airflow_ckpt_provider.guards.report import GuardReport, Judgement, SourceReport
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.source_settings import sources_named
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class GuardedQuery:
    """What will be read first, and from where.

    :param subject: what it was taken from, for people.
    :param sources: its sources.
    :param batch_id: the batch that will run first; ``None`` where offsets were given by hand.
    :param judgements: what is to be said of the checkpoint itself.
    :param not_compared: why its Kafka topics are not compared with those that a backup recorded, where a repository was given.
    :param kinds: name -> kind of all sources of the query, also of those that are not asked about; by default of ``sources``.
    """

    subject: str
    sources: tuple[GuardedSource, ...]
    batch_id: int | None = None
    judgements: tuple[Judgement, ...] = ()
    not_compared: str | None = None
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Note the kinds."""
        if not self.kinds:
            object.__setattr__(self, "kinds", {source.name: _kind(source) for source in self.sources})

    def refuse_other_sources(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        """See that every source that settings of our guards name is one of the query, and of that kind as far as is known.

        :param options: kind -> settings, as :class:`GuardSettings` has them.
        :raises RefusedError: one is not: nothing would heed what was said of it.
        """
        for kind, named in sources_named(options).items():
            fitting = {name for name, there in self.kinds.items() if there in (kind, OpaqueOffset.kind)}
            if self.kinds and (others := sorted(named - fitting)):
                there = ", ".join(f"{name} ({of})" for name, of in self.kinds.items())
                raise RefusedError(
                    f"{self.subject} has no {kind} source {others[0]!r}, for which options are given",
                    hint=f"its sources are: {there}",
                )

    def of_kind(self, kind: str, source: str | None = None) -> GuardedQuery:
        """Only the sources of a kind, or one of them; the checkpoint itself is then not judged.

        :param kind: such as ``kafka``.
        :param source: its position (``"0"``) or name; ``None``: all of the kind.
        :raises NoSourceOfKindError: every source is known, and is of another kind.
        :raises RefusedError: there is no such source, as far as is known.
        """
        chosen = [s for s in self.sources if _kind(s) == kind and source in (None, s.name)]
        kinds = {_kind(s) for s in self.sources}
        if kinds and not kinds & {kind, OpaqueOffset.kind}:
            there = ", ".join(f"{s.name} ({_kind(s)})" for s in self.sources)
            raise NoSourceOfKindError(f"{self.subject} has no {kind} source", hint=f"its sources are: {there}")
        return dataclasses.replace(self._with(chosen, f"{kind} source", source), judgements=())

    def one(self, source: str) -> GuardedQuery:
        """Only one source, by its position (``"0"``) or name.

        :raises RefusedError: there is no such source.
        """
        return self._with([s for s in self.sources if s.name == source], "source", source)

    def _with(self, chosen: list[GuardedSource], what: str, source: str | None) -> GuardedQuery:
        if not chosen:
            there = ", ".join(f"{s.name} ({_kind(s)})" for s in self.sources) or "none"
            name = "" if source is None else f" {source!r}"
            raise RefusedError(f"{self.subject} has no {what}{name}", hint=f"its sources are: {there}")
        return dataclasses.replace(self, sources=tuple(chosen))


def _kind(source: GuardedSource) -> str:
    return (source.start.offset or source.end or OpaqueOffset("")).kind


def from_checkpoint(
    location: Location, *, known: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> GuardedQuery:
    """What a query will read first when it is started from its checkpoint as it is.

    :param location: the checkpoint. A seal is looked through: it will be lifted before the start.
    :param known: ``facts`` of a backup's manifest, to compare the sources with; without them a source that was replaced
        under its name can go unnoticed.
    :param progress: how far it is, where that was read just now.
    :raises NotACheckpointError: there is no checkpoint.
    :raises UnreadableLogError: a log entry that Spark will read cannot be parsed.
    """
    progress = progress or read_progress(location)
    resume = read_resume_point(location, dataclasses.replace(progress, seal=None))
    judgements = [Judgement(resume.verdict, reason) for reason in resume.reasons]
    if progress.seal:
        judgements.append(
            Judgement(Verdict.SAFE, f"sealed by plan {progress.seal.plan_id}: judged as if the seal were lifted")
        )
    starts = {s.source: s for s in resume.start_offsets}
    ends = {s.source: s.offset for s in resume.end_offsets}
    facts = _sources_of(known)
    logged_at = _logged_at(location, progress, resume)
    planned_at = _time_of(location, progress, resume.batch_id) if ends else None
    reread = _reread(location, progress, resume)
    sources = []
    names = [*starts, *(n for n in ends if n not in starts)]
    # Elsewhere the directories are known without asking for them.
    named = progress.newest is not None and progress.newest.conf.get(SOURCES_EVOLVE) == "true"
    directories = location.list(SOURCES).directories if named else ()
    for name in names:
        directory = log_directory(name, len(names), directories)
        log = location / SOURCES / directory if directory else None
        start = starts.get(name, SourceOffset(name, None))
        if start.offset is None and log:
            start = SourceOffset(name, _kafka_start(log))
        again = () if reread is None else (reread.get(name),)
        known_of = facts.get(name, {})
        sources.append(GuardedSource(start, ends.get(name), log, known_of, logged_at, again, planned_at))
    if not sources:
        judgements.append(
            Judgement(Verdict.UNKNOWN, "nothing was planned yet: the sources start where their own options say")
        )
    return GuardedQuery(location.uri, tuple(sources), resume.batch_id, tuple(judgements))


def from_facts(
    facts: Mapping[str, Any], *, subject: str, batch_id: int, first_files: Mapping[str, bytes] | None = None
) -> GuardedQuery:
    """What a query will read first after a restore of a backup's newest batch.

    :param facts: ``facts`` of its manifest.
    :param subject: what to call the backup.
    :param batch_id: its newest batch.
    :param first_files: ``sources/<n>/0`` of the backup, by source, where that was read.
    """
    known = _sources_of(facts)
    time = facts.get("batch_times", {}).get(str(batch_id))
    logged_at = datetime.fromisoformat(time) if time else None
    starts = [_source_offset(value) for value in facts.get("end_offsets", ())]
    before = {each.source: each.offset for each in map(_source_offset, facts.get("start_offsets", ()))}
    asks_again = bool(before) or batch_id == 0
    sources = (
        GuardedSource(
            start,
            known=known.get(start.source, {}),
            logged_at=logged_at,
            reread=(before.get(start.source),) if asks_again else (),
            first_file=(first_files or {}).get(start.source),
        )
        for start in starts
    )
    return GuardedQuery(subject, tuple(sources), batch_id + 1)


def from_kafka_offsets(offsets: str | Mapping[str, Any], *, known: Mapping[str, Any] | None = None) -> GuardedQuery:
    """Offsets given by hand, as Spark's ``startingOffsets`` has them: ``{"orders": {"0": 23, "1": -2}}``.

    :param offsets: the same as text or as a mapping; -2 is the earliest, -1 the latest.
    :param known: ``facts`` of a backup's manifest, to compare the topics with, of whichever source they are.
    :raises RefusedError: they are not of that form.
    """
    try:
        value = load_json(offsets) if isinstance(offsets, str) else offsets
        offset = parse_offset(json.dumps(value))
        if not isinstance(offset, KafkaOffset) or not all(offset.partitions.values()):
            raise ValueError("not topic -> partition -> offset")
        if any(o < EARLIEST for partitions in offset.partitions.values() for o in partitions.values()):
            raise ValueError("an offset below -2")
    except (ValueError, TypeError, AttributeError) as e:
        raise RefusedError(
            f"offsets are malformed ({e}): {str(offsets)[:120]!r}",
            hint='give them as Spark\'s startingOffsets: {"topic": {"0": 23, "1": -2}}',
        ) from e
    recorded = [KnownTopics.from_json(each) for each in _sources_of(known).values()]
    facts = KnownTopics.merged(recorded).to_json() if any(each.fingerprints for each in recorded) else {}
    return GuardedQuery("given offsets", (GuardedSource(SourceOffset("0", offset), known=facts),))


def guard_query(query: GuardedQuery, settings: GuardSettings, *, guards: Sequence[Guard] | None = None) -> GuardReport:
    """Have every source judged.

    :param query: what will be read first.
    :param settings: the settings of the guards.
    :param guards: by default all that are installed.
    :raises SourceError: a source could not be asked.
    """
    asked = installed_guards(settings) if guards is None else guards
    judgements = [*query.judgements, *_of_no_guard(settings, asked)]
    kinds: dict[str, list[GuardedSource]] = {}
    for source in query.sources:
        kinds.setdefault(_kind(source), []).append(source)

    def judged(sources: list[GuardedSource]) -> list[tuple[str, SourceReport]]:
        return [(source.name, judge_source(source, asked)) for source in sources]

    if len(kinds) < 2:
        found = dict(judged(list(query.sources)))
    else:  # different systems at once, for each is waited for; one system's sources one after the other
        found = dict(report for of_kind in in_parallel(judged, kinds.values()) for report in of_kind)
    reports = tuple(found[source.name] for source in query.sources)
    if query.not_compared and KIND in kinds:
        judgements.append(Judgement(Verdict.SAFE, query.not_compared))
    return GuardReport(query.subject, reports, tuple(judgements), query.batch_id, settings.max_downtime)


def _of_no_guard(settings: GuardSettings, guards: Sequence[Guard]) -> list[Judgement]:
    """Say of what kinds there are settings and no guard: what they were to bring to light is not known."""
    known = sorted({guard.kind for guard in guards})
    told = sorted(kind for kind, given in settings.options.items() if given and kind not in known)
    return [
        Judgement(
            Verdict.UNKNOWN, f"options are given for {kind!r}, for which there is no guard; {did_you_mean(kind, known)}"
        )
        for kind in told
    ]


def _sources_of(facts: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """What a manifest says of the sources, by source; manifests of before have nothing."""
    found = (facts or {}).get("sources", {})
    return dict(found) if isinstance(found, Mapping) else {}


def _source_offset(value: Mapping[str, Any]) -> SourceOffset:
    name = str(value["name"]) if "name" in value else str(value["index"])
    offset = value.get("offset")
    if offset is None:
        return SourceOffset(name, None)
    try:
        return SourceOffset(name, parse_offset(offset if isinstance(offset, str) else json.dumps(offset)))
    except ValueError:
        return SourceOffset(name, OpaqueOffset(str(offset)))


def _logged_at(location: Location, progress: Progress, resume: ResumePoint) -> datetime | None:
    """When the batch before the next one was planned: what it read was there by then."""
    before = [b for b in progress.logged if b < resume.batch_id]
    return _time_of(location, progress, before[-1]) if before and resume.start_offsets else None


def _time_of(location: Location, progress: Progress, batch_id: int) -> datetime | None:
    """When a batch was planned; ``None`` where its entry is gone."""
    newest = progress.newest
    if newest is not None and newest.batch_id == batch_id:
        return newest.time
    try:
        return parse_offsets(location.read(f"{OFFSETS}/{batch_id}"), batch_id=batch_id).time
    except FileNotFoundError:
        return None


def _reread(location: Location, progress: Progress, resume: ResumePoint) -> dict[str, Offset | None] | None:
    """Offsets before the newest committed batch; ``None`` where Spark does not ask for it again, or they are gone.

    With async progress tracking they are in the newest entry before that batch, whatever its number.

    A source without an offset there was read from its beginning by the newest batch, whatever the others had read by then: Spark
    asks it again for its first batch (``MicroBatchExecution.populateStartOffsets``: ``committedOffsets.get(source)``).
    """
    if resume.replay or not resume.start_offsets:
        return None
    committed = resume.batch_id - 1
    before = max((batch for batch in progress.logged if batch < committed), default=None)
    if before is None:
        return {} if committed == 0 else None
    try:
        entry = parse_offsets(location.read(f"{OFFSETS}/{before}"), batch_id=before)
    except FileNotFoundError:
        return None
    return {source.source: source.offset for source in entry.sources}


def _kafka_start(log: Location) -> Offset | None:
    try:
        return parse_kafka_start(log.read(FILE), path=FILE)
    except (FileNotFoundError, UnreadableLogError):
        return None  # the guard of Kafka says which, if it is one of Kafka
