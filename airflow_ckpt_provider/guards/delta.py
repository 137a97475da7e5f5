"""The guard of Delta sources: whether the table still has what the checkpoint promises to read, or will stop the stream.

What Spark does in each case was run with Spark 4.0.0 and Delta 4.4.0 (``tests/integration/test_delta_guard.py``):

* A commit that is gone fails the start (``DELTA_MISSING_FILES_UNEXPECTED_VERSION``), and that goes for the versions of the newest
  *committed* batch too, which Spark asks for again at its start. With ``failOnDataLoss=false`` it is left out silently,
  unless the last version of what is asked for and the one after it are both gone (``DELTA_STREAMING_TRAILING_COMMIT_MISSING``).
* A data file that is gone fails the batch, whatever ``failOnDataLoss`` says.
* Another table under the same path: ``DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, Offset
from airflow_ckpt_provider.errors import CkptError, MissingExtraError
from airflow_ckpt_provider.guards.delta_begin import first_batch
from airflow_ckpt_provider.guards.delta_changes import judge_changes, judge_changes_again, reads_changes
from airflow_ckpt_provider.guards.delta_client import TableState, UnreadableTableError, read_state
from airflow_ckpt_provider.guards.delta_described import read_described
from airflow_ckpt_provider.guards.delta_feed import judge_feed
from airflow_ckpt_provider.guards.delta_log import (
    CATALOG_MANAGED,
    CLOCKS,
    DELTA_LOG,
    AddedFile,
    DeltaCommit,
    DeltaLog,
    directories_of,
    in_words,
    read_delta_log,
)
from airflow_ckpt_provider.guards.delta_retention import time_left
from airflow_ckpt_provider.guards.delta_schemas import judge_schemas
from airflow_ckpt_provider.guards.reader_options import is_on, located
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings, not_guarded
from airflow_ckpt_provider.guards.report import Judgement, PartReport, SourceReport
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.source_settings import SourceSettings
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

KIND = DeltaOffset.kind
_NO_TIME = datetime.fromtimestamp(0, UTC)
_READERS = 16


class DeltaGuard:
    """Judges Delta sources.

    :param settings: its own options, under ``delta``: ``tables`` (source -> the table's directory as a URI or an open
        :class:`Location`; no checkpoint records it), ``options`` (source -> options of the query's reader, such as
        ``{"skipChangeCommits": "true"}``, ``{"readChangeFeed": "true"}`` or ``{"startingVersion": "1"}``), ``described``
        (source -> what ``jobs/describe_delta.py`` wrote, for a table that delta-rs cannot read). From a shell:
        ``table.<source>``, ``option.<source>.<name>`` and ``described.<source>``. A
        source without a table is ``UNKNOWN``.
    :raises RefusedError: a setting is not known, or not of its form.
    """

    kind = KIND

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings
        told = SourceSettings(KIND, settings.options.get(KIND, {}), mappings=("options", "tables", "described"))
        self._tables: dict[str, str | Location] = told.by_source("tables")
        self._described: dict[str, str] = told.by_source("described")
        self._options = told.reader_options()

    def recognises(self, source: GuardedSource) -> bool:
        """Whether its offsets are those of Delta's source."""
        return isinstance(source.start.offset or source.end, DeltaOffset)

    def judge(self, source: GuardedSource) -> SourceReport:
        """Read the table's log and check the files that it promises.

        :raises CkptError: the table could not be reached.
        """
        place = self._tables.get(source.name)
        if place is None:
            return not_guarded(
                source,
                f"no table was given for source {source.name} (guard --option delta.table.{source.name}=TABLE): a checkpoint "
                "holds the id of a Delta table and not its path",
            )
        table = located(place, kind=KIND, source=source.name)
        start, end = _delta(source.start.offset), _delta(source.end)
        known = start or end
        if known is None:
            return not_guarded(source, "it has read nothing yet: where it starts is for its own options to say")
        log = read_delta_log(table)
        facts: dict[str, Any] = {"table": table.uri, "table_id": known.table_id}
        if log.is_empty:
            reason = f"there is no Delta table at {table}: it has no _delta_log"
            return SourceReport(source.name, KIND, (Judgement(Verdict.WILL_FAIL, reason),), lost=None, facts=facts)
        options = dict(self._options.get(source.name, {}))
        offset, reread_from, found = _begin(log, source, known, options)
        described = self._described.get(source.name)
        return _Look(log, source, offset, end, reread_from, self._settings, options, described, found).report(facts)


def _begin(
    log: DeltaLog, source: GuardedSource, known: DeltaOffset, options: Mapping[str, str]
) -> tuple[DeltaOffset, DeltaOffset | None, list[Judgement]]:
    """From where the source is read, from where it is asked for again, and what is to be said of a first batch."""
    again = _delta(source.reread[0]) if source.reread else None
    if _delta(source.start.offset) is None:
        first = first_batch(log, known, options)
        return first.offset, None, [judgement for judgement in (first.on_start, first.on_replay) if judgement]
    if source.reread and again is None:
        first = first_batch(log, known, options)
        return known, first.offset, [first.on_start] if first.on_start else []
    return known, again, []


@dataclass(slots=True)
class _Look:
    """One check of one table.

    :param offset: from where it is read.
    :param planned: up to where the next batch reads, where it was planned before.
    :param reread_from: where the newest committed batch began, where Spark asks for it again.
    """

    log: DeltaLog
    source: GuardedSource
    offset: DeltaOffset
    planned: DeltaOffset | None
    reread_from: DeltaOffset | None
    settings: GuardSettings
    options: dict[str, str]
    described: str | None = None
    found: list[Judgement] = field(default_factory=list)
    parts: list[PartReport] = field(default_factory=list)
    lost: int | None = 0
    #: Paths of the files that are to be read.
    needed: set[str] = field(default_factory=set)
    #: Path -> when it was written, of files of the change data feed, which no ``remove`` names: VACUUM goes by that.
    untracked: dict[str, datetime] = field(default_factory=dict)
    #: Spark fails at its start whatever ``failOnDataLoss`` says, so nothing is lost silently.
    blocked: bool = False

    def report(self, facts: dict[str, Any]) -> SourceReport:
        """Judge everything.

        :param facts: what is known of the source so far.
        """
        state = self._state()
        facts |= {"latest_version": self.log.latest, "earliest_version": min(self.log.commits, default=None)}
        facts |= {"start_version": self.offset.table_version, "start_index": self.offset.index}
        ids = [offset.table_id for offset in (self.offset, self.planned) if offset]
        if state and (others := [id_ for id_ in ids if id_ != state.table_id]):
            self._add(
                Verdict.WILL_FAIL,
                f"the table at {self.log.table} is another one (id {state.table_id}; the checkpoint read "
                f"{others[0]}): "
                "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE; start a new checkpoint",
            )
            return self._made(facts, None)
        # What delta-rs has not read itself may have features that it does not know.
        named = self.log.named_features() if not state or self.described else None
        features = state.features if state and not self.described else named or frozenset()
        managed = sorted(features & CATALOG_MANAGED)
        if managed or (self.log.staged and not state and named is None):
            self.lost = None
            has = f"the table has the feature {managed[0]}" if managed else f"{DELTA_LOG}/{self.log.staged} has commits"
            self._add(
                Verdict.UNKNOWN,
                f"{has}: its newest versions may not be in its log yet, so neither where it "
                "ends nor what changed there is known",
            )
            return self._made(facts, None)
        self._judge_history()
        self._judge_planned()
        self._judge_reread()
        commits = self._judge_commits()
        asked_for = self._asked_for(commits)
        self.found += judge_changes(commits, self.options)
        self.found += judge_changes_again(self._read_before(asked_for), self.options)
        if state:
            self.found += judge_schemas(self.log, asked_for, state, self._asked_from(), self.options)
        if state and reads_changes(self.options):
            self.found += judge_feed(self.log, state, self._asked_from(), readers=_READERS)
        self._judge_files(commits)
        left = self._time_left(commits, state, facts) if state else None
        return self._made(facts, left)

    def _made(self, facts: dict[str, Any], left: float | None) -> SourceReport:
        return SourceReport(self.source.name, KIND, tuple(self.found), tuple(self.parts), self.lost, left, facts)

    def _add(self, verdict: Verdict, reason: str) -> None:
        self.found.append(Judgement(verdict, reason))

    def _state(self) -> TableState | None:
        """The table as it is now; ``None``, and a judgement, where it cannot be read."""
        try:
            if self.described:
                return read_described(self.described, latest=self.log.latest)
            return read_state(self.log, self.log.latest)
        except MissingExtraError:
            raise
        except (UnreadableTableError, FileNotFoundError) as e:
            reason = e.message if isinstance(e, CkptError) else f"{e} is gone"
            # Without its id nothing says whether it is the table at all.
            self._add(Verdict.UNKNOWN, f"{reason}; whether it is the table that the checkpoint read is not known")
            return None

    def _judge_history(self) -> None:
        """See whether the part of the log that was read is still the same."""
        read = self.offset.last_read
        latest = self.log.latest
        if read > latest:
            self.lost = None
            self._add(
                Verdict.WILL_FAIL,
                f"the table ends at version {latest}, and the checkpoint has read version {read}: the table was "
                "restored to an older version or is a "
                "copy of an older day. DELTA_STREAMING_TRAILING_COMMIT_MISSING until it has grown past it, and "
                "then its versions "
                f"{latest + 1} to {read} are left out silently; start a new checkpoint",
            )
            return
        logged_at = self.source.logged_at
        if written := self._written_since(read, logged_at):
            self.lost = None
            self._add(
                Verdict.WILL_LOSE,
                f"version {read} was committed at {written.isoformat()}, after the batch of {logged_at} that is logged to "
                "have read it: the table was restored and written again under the same id; what changed there is not read",
            )

    def _judge_planned(self) -> None:
        """See whether the part of the log that the next batch is planned to read is the one that was planned."""
        if self.planned is None:
            return
        read, latest, planned_at = self.planned.last_read, self.log.latest, self.source.planned_at
        if read > latest:
            self.blocked = True
            self.lost = None
            self._add(
                Verdict.WILL_FAIL,
                f"the table ends at version {latest}, and the next batch is planned up to version {read}: the table was restored "
                "to an older version or is a copy of an older day. DELTA_STREAMING_TRAILING_COMMIT_MISSING, also with "
                "failOnDataLoss=false, until it has grown past it, and then the batch has other rows; start a new checkpoint",
            )
        elif written := self._written_since(read, planned_at):
            self.lost = None
            self._add(
                Verdict.UNKNOWN,
                f"version {read} was committed at {written.isoformat()}, after the next batch was planned up to it "
                f"({planned_at}): the table was restored and written again under the same id; the batch has other rows now, "
                "which a sink that has the batch already does not take",
            )

    def _written_since(self, version: int, logged_at: datetime | None) -> datetime | None:
        """When a version was committed, where that was after the entry that names it was logged."""
        if logged_at is None or version not in self.log.commits:
            return None
        written = self.log.commit(version).time
        return written if written and written > logged_at + CLOCKS else None

    def _judge_reread(self) -> None:
        """Spark asks for the newest committed batch again when it starts, and throws it away."""
        before, end = self.reread_from, self.offset
        last = end.last_read
        if before is None or last > self.log.latest or before.text == end.text:
            return
        first = before.table_version
        if before.initial_snapshot:
            if not self.log.can_rebuild(first):
                self._add(Verdict.WILL_FAIL, _no_snapshot(first))
                return
            first += 1
        gone = self.log.missing(first, last)
        if gone and self._ends_missing(end):
            self.blocked = True
            self._add(
                Verdict.WILL_FAIL,
                f"the log no longer has {_versions(gone)}, which the newest committed batch read, nor the version after: "
                "DELTA_MISSING_FILES_UNEXPECTED_VERSION, and with failOnDataLoss=false "
                "DELTA_STREAMING_TRAILING_COMMIT_MISSING (an older Delta leaves rows out silently); start a new checkpoint",
            )
        elif gone and self.settings.fail_on_data_loss:
            self._add(
                Verdict.WILL_FAIL,
                f"the log no longer has {_versions(gone)}, which the newest committed batch read. Nothing there is to be "
                "read again, but Spark asks for it at its start: DELTA_MISSING_FILES_UNEXPECTED_VERSION; start it once "
                "with failOnDataLoss=false",
            )
        elif gone:
            self._add(Verdict.SAFE, f"the log no longer has {_versions(gone)}, which the newest committed batch read")

    def _ends_missing(self, end: DeltaOffset) -> bool:
        """Delta wants to see the last version that it asks for, or the one after it where the range ends before it."""
        return not {end.last_read, end.table_version} & self.log.commits.keys()

    def _judge_commits(self) -> list[DeltaCommit]:
        """Read what is to be read of the log, and say what is gone."""
        first = self.offset.table_version
        if self.offset.initial_snapshot:
            if not self.log.can_rebuild(first):
                self.lost = None
                self._add(Verdict.WILL_FAIL, _no_snapshot(first))
            first += 1
        latest = self.log.latest
        gone = self.log.missing(first, latest)
        if gone:
            self.lost = None
            kept = "delta.logRetentionDuration removed their commits"
            silent = not (self.settings.fail_on_data_loss or self.blocked)
            silent = silent and not (self.planned and self._ends_missing(self.planned))
            if not silent:
                self._add(
                    Verdict.WILL_FAIL,
                    f"the log no longer has {_versions(gone)}, still to be read: {kept}. "
                    "DELTA_MISSING_FILES_UNEXPECTED_VERSION; start a new checkpoint, without their rows",
                )
            else:
                self._add(
                    Verdict.WILL_LOSE,
                    f"the log no longer has {_versions(gone)}, still to be read: {kept}; Spark leaves their rows out",
                )
            verdict = Verdict.WILL_LOSE if silent else Verdict.WILL_FAIL
            self.parts += [PartReport(_versions([each]), verdict, {"commit": "gone"}) for each in gone]
        there = [version for version in self.log.commits if version >= first]
        return in_parallel(self.log.commit, there, workers=_READERS)

    def _judge_files(self, commits: list[DeltaCommit]) -> None:
        """See whether the data files of what is to be read are still there, and as long as the log says."""
        wanted = self._wanted(commits)
        self.needed = {file.path for _, file in wanted}
        elsewhere = sum(file.is_elsewhere for _, file in wanted)
        if elsewhere:
            self._add(
                Verdict.UNKNOWN,
                f"{elsewhere:,} data files lie outside of the table's directory and were not looked for",
            )
        listings = in_parallel(self.log.table.list, directories_of(file for _, file in wanted), workers=_READERS)
        there = {file.path: file for listing in listings for file in listing.files}
        for commit in commits:
            for file in commit.changes:
                times = (commit.time, there[file.path].modified if file.path in there else None)
                self.untracked[file.path] = min((time for time in times if time), default=_NO_TIME)
        gone: dict[str, list[AddedFile]] = {}
        cut: dict[str, list[AddedFile]] = {}
        other: list[str] = []
        for name, file in wanted:
            found = there.get(file.path)
            if file.is_elsewhere:
                continue
            if found is None:
                gone.setdefault(name, []).append(file)
            elif file.size and found.size < file.size:
                cut.setdefault(name, []).append(file)
            elif file.size and found.size > file.size:
                other.append(f"{file.path} has {found.size} bytes, and {file.size} in the log")
        self._add_harmed(
            gone, "are gone, by VACUUM or by hand", "with spark.sql.files.ignoreMissingFiles they are left out"
        )
        self._add_harmed(cut, "are cut off", "with spark.sql.files.ignoreCorruptFiles they are left out")
        if other:
            self._add(
                Verdict.UNKNOWN,
                f"{len(other):,} data files are not those that the log names: {'; '.join(other[:3])}{'; …' if other[3:] else ''}",
            )

    def _wanted(self, commits: list[DeltaCommit]) -> list[tuple[str, AddedFile]]:
        """The data files that are to be read, each with what it is a part of."""
        wanted: list[tuple[str, AddedFile]] = []
        if self.offset.initial_snapshot and self.log.can_rebuild(self.offset.table_version):
            wanted += [(f"snapshot {self.offset.table_version}", file) for file in self._snapshot_files(commits)]
        skips = is_on(self.options, "skipChangeCommits")
        for commit in commits:
            if skips and commit.removed:
                continue
            if reads_changes(self.options):
                # What an index counts in a change data feed differs between commits: all files of the version are looked for.
                gone_rows = tuple(AddedFile(path, None, vector=commit.vectors[path]) for path in commit.removed)
                of_commit = commit.changes or (*commit.added, *gone_rows)
                wanted += [(f"version {commit.version}", file) for file in of_commit]
                continue
            from_index = self.offset.index + 1 if commit.version == self.offset.table_version else 0
            wanted += [(f"version {commit.version}", file) for file in commit.added[max(from_index, 0) :]]
        return wanted + [(name, AddedFile(file.vector, None)) for name, file in wanted if file.vector]

    def _add_harmed(self, harmed: dict[str, list[AddedFile]], what: str, way_out: str) -> None:
        if not harmed:
            return
        rows = [file.rows for files in harmed.values() for file in files]
        counted = None if any(n is None for n in rows) else sum(n or 0 for n in rows)
        self.lost = None if self.lost is None or counted is None else self.lost + counted
        self._add(
            Verdict.WILL_FAIL,
            f"{len(rows):,} data files ({'rows not known' if counted is None else f'{counted:,} rows'}) of "
            f"{', '.join(list(harmed)[:5])}{', …' if len(harmed) > 5 else ''} {what}: the batch fails whatever failOnDataLoss "
            f"says; {way_out}",
        )
        for name, files in harmed.items():
            facts = {"missing_files": len(files), "rows": sum(f.rows or 0 for f in files), "example": files[0].path}
            self.parts.append(PartReport(name, Verdict.WILL_FAIL, facts))

    def _snapshot_files(self, commits: list[DeltaCommit]) -> tuple[AddedFile, ...]:
        """The files of the first snapshot that are left to be read, with the deletion vectors that the table has no more."""
        try:
            files = read_state(self.log, self.offset.table_version, with_files=True).files
        except (UnreadableTableError, FileNotFoundError) as e:
            self._add(Verdict.UNKNOWN, f"the files of the first snapshot cannot be listed: {e}")
            return ()
        had: dict[str, str | None] = {}
        for commit in commits:
            had = {**commit.vectors, **had}
        return tuple(replace(file, vector=had.get(file.path)) for file in files[self.offset.index + 1 :])

    def _time_left(self, commits: list[DeltaCommit], state: TableState, facts: dict[str, Any]) -> float | None:
        """How long log and data files will be there, as a lower bound."""
        left: dict[str, datetime] = {}
        for commit in commits:
            left |= commit.dropped
            for file in commit.added:
                left.pop(file.path, None)
                left.pop(file.vector or "", None)
        needed = [self.offset, *([self.reread_from] if self.reread_from else [])]
        found = time_left(
            state,
            self.settings,
            log_since=[self.log.written_for(o.table_version, rebuilt=o.initial_snapshot) for o in needed],
            files_since=[time for path, time in (left | self.untracked).items() if path in self.needed],
        )
        facts |= found.facts
        self.found += [found.judgement] if found.judgement else []
        return found.seconds

    def _asked_for(self, commits: list[DeltaCommit]) -> list[DeltaCommit]:
        """What a start asks for: what is to be read, and before it what the newest committed batch has read."""
        first = self.offset.table_version + self.offset.initial_snapshot
        again = [version for version in self.log.commits if self._asked_from() <= version < first]
        return [*in_parallel(self.log.commit, again, workers=_READERS), *commits]

    def _read_before(self, asked_for: list[DeltaCommit]) -> list[DeltaCommit]:
        """What of it the newest committed batch has read as changes; of a first snapshot no commit is asked for."""
        again = self.reread_from
        if again is None:
            return []
        first = again.table_version + again.initial_snapshot
        return [commit for commit in asked_for if first <= commit.version < self.offset.table_version]

    def _asked_from(self) -> int:
        """The first version that a start asks for: of the newest committed batch, which it asks for again."""
        return (self.reread_from or self.offset).table_version


def _delta(offset: Offset | None) -> DeltaOffset | None:
    return offset if isinstance(offset, DeltaOffset) else None


def _no_snapshot(version: int) -> str:
    return (
        f"the query was reading its first snapshot, version {version}, whose state cannot be put together any more: "
        "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE; start a new checkpoint"
    )


def _versions(gone: list[range]) -> str:
    return in_words(gone, one="version", many="versions")
