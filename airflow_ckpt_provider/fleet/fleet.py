"""Inspect many streams at once, each by itself: an error of one is in its row and hides no other stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.recorded_sources import sources_at
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError, NotACheckpointError
from airflow_ckpt_provider.fleet.backups import BackupsOfFleet, LastBackup
from airflow_ckpt_provider.fleet.discovery import Discovery, Found, OnCount, State, Unread, inspect_target, named, said
from airflow_ckpt_provider.fleet.limits import WORKERS
from airflow_ckpt_provider.fleet.options import OptionsOfGuards, merged
from airflow_ckpt_provider.fleet.stream import Limits, Stream
from airflow_ckpt_provider.fleet.time_to_loss import TimeToLoss, not_known, time_to_loss
from airflow_ckpt_provider.guards.query import GuardedQuery, from_checkpoint, guard_query
from airflow_ckpt_provider.guards.registry import Guard, GuardSettings
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.recovery.kept_changes import places_beside
from airflow_ckpt_provider.recovery.status import RewindStatus, rewind_records, status_among
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.stream import Objectives

_NOT_DECLARED = Objectives()
Part = TypeVar("Part")
MakeGuards = Callable[[GuardSettings], Sequence[Guard]]


@dataclass(frozen=True, slots=True)
class Missing:
    """A checkpoint that has backups, and that is missing.

    :param name: name of the stream in the repository.
    :param uri: address of the checkpoint: below a place that was searched.
    """

    name: str
    uri: str

    @property
    def message(self) -> str:
        """What is wrong, in words."""
        return f"the checkpoint is missing, and has backups named {self.name!r}"

    def to_json(self) -> dict[str, str]:
        """The checkpoint as plain JSON."""
        return {"name": self.name, "checkpoint": self.uri}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Many streams at one moment.

    :param repository: address of the repository that they were compared with.
    :param looked_at: when, in UTC.
    :param streams: one row each, by address.
    :param limits: what they were judged by.
    :param unread: directories that could not be listed: streams may be missing here.
    :param too_deep: addresses of directories below which nobody looked.
    :param others: names of the repository that none of these streams goes by.
    :param own_limits: address of a stream -> limits that it is judged by instead.
    :param objectives: address of a stream -> what is declared of its recovery.
    :param missing: checkpoints of some of these names: they are not where they were backed up, below a place that was searched.
    """

    repository: str
    looked_at: datetime
    streams: tuple[Stream, ...]
    limits: Limits
    unread: tuple[Unread, ...] = ()
    too_deep: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    own_limits: Mapping[str, Limits] = field(default_factory=dict)
    objectives: Mapping[str, Objectives] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()

    def limits_of(self, stream: Stream) -> Limits:
        """What a stream is judged by."""
        return self.own_limits.get(stream.found.place.uri, self.limits)

    def objectives_of(self, stream: Stream) -> Objectives:
        """What is declared of the recovery of a stream."""
        return self.objectives.get(stream.found.place.uri, _NOT_DECLARED)

    def problems(self) -> dict[str, tuple[str, ...]]:
        """Address of a stream, of a directory that could not be listed, or of a missing checkpoint -> what is wrong with it."""
        found = {stream.found.place.uri: stream.problems(self.limits_of(stream)) for stream in self.streams}
        found |= {each.uri: (each.message,) for each in self.unread}
        found |= {each.uri: (each.message,) for each in self.missing}
        return {uri: problems for uri, problems in found.items() if problems}

    def to_json(self) -> dict[str, Any]:
        """The documented keys of ``airflow-ckpt fleet --json``."""
        return {
            "repository": self.repository,
            "looked_at": self.looked_at.isoformat(),
            "limits": self.limits.to_json(),
            "streams": [stream.to_json(self.limits_of(stream), self.objectives_of(stream)) for stream in self.streams],
            "unread": [each.to_json() for each in self.unread],
            "too_deep": list(self.too_deep),
            "others": list(self.others),
            "missing": [each.to_json() for each in self.missing],
            "problems": {uri: list(problems) for uri, problems in self.problems().items()},
        }


def discovered(
    discovery: Discovery, given: Iterable[tuple[Location, str | None]] = (), *, workers: int = WORKERS
) -> Discovery:
    """Add checkpoints that were named one by one to those that were found below roots.

    :param discovery: what was found.
    :param given: checkpoints with the name of each; ``None``: its last segment, as a backup has it.
    :param workers: checkpoints read at once.
    :raises RefusedError: a name cannot be that of a stream.
    """
    places = {place.uri: (place, checked_name(name) if name else None) for place, name in given}
    there = {each.place.uri for each in discovery.found}
    new = [place for uri, (place, _) in places.items() if uri not in there]
    rows = named([*discovery.found, *in_parallel(_looked_at, new, workers=workers)])
    chosen = {uri: name for uri, (_, name) in places.items() if name}
    rows = tuple(replace(each, name=chosen.get(each.place.uri, each.name)) for each in rows)
    return replace(discovery, found=tuple(sorted(rows, key=lambda each: each.place.uri)))


def inspect_fleet(
    discovery: Discovery,
    repository: Repository,
    *,
    limits: Limits | None = None,
    own_limits: Mapping[str, Limits] | None = None,
    objectives: Mapping[str, Objectives] | None = None,
    guards: MakeGuards | None = None,
    settings: GuardSettings | None = None,
    options: Mapping[str, OptionsOfGuards] | None = None,
    sizes: bool = False,
    workers: int = WORKERS,
    on_progress: OnCount | None = None,
) -> Fleet:
    """Return the status of each stream, compared with a repository.

    Beside what :class:`~airflow_ckpt_provider.fleet.backups.BackupsOfFleet` states, a stream costs a listing and a read
    where a backup of it was ever run on, one read more where it is sealed, and what the guards ask.

    :param discovery: the streams.
    :param repository: where their backups are.
    :param limits: what is still fine; ``None``: no limits.
    :param own_limits: address of a stream -> limits that it is judged by instead.
    :param objectives: address of a stream -> what is declared of its recovery.
    :param guards: makes the guards that tell the time to loss, once for each worker, for clients are not for several threads;
        ``None``: it is ``UNKNOWN``.
    :param settings: the settings of the guards.
    :param options: name of a stream -> options of guards, by kind, that are for this stream alone, such as its tables.
    :param sizes: list all files of each checkpoint for its size: a request for each thousand of them.
    :param workers: streams read at once.
    :param on_progress: called with the number of streams that were read and that of all.
    :raises CkptError: the repository cannot be read at all.
    """
    now = datetime.now(UTC)
    asked = guards and _Guards(guards, settings or GuardSettings(), options or {})
    look = _Poller(discovery, repository, asked, sizes, now, on_progress)
    streams = tuple(in_parallel(look.at, discovery.found, workers=workers))
    taken = {stream.backup.name for stream in streams if stream.backup}
    missing, unread = _missing(look.backups, discovery, repository, taken)
    return Fleet(
        repository=repository.location.uri,
        looked_at=now,
        streams=streams,
        limits=limits or Limits(),
        unread=(*discovery.unread, *unread),
        too_deep=discovery.too_deep,
        own_limits=own_limits or {},
        objectives=objectives or {},
        others=tuple(name for name in look.backups.others if name not in taken),
        missing=tuple(missing),
    )


def _missing(
    backups: BackupsOfFleet, discovery: Discovery, repository: Repository, taken: Collection[str]
) -> tuple[list[Missing], list[Unread]]:
    """The checkpoints below the roots that have backups and are missing, and the places where that is not known."""
    missing: list[Missing] = []
    unread: list[Unread] = []
    others, problem = _tried(backups.elsewhere) if discovery.roots and backups.others else ({}, None)
    if others is None:
        return [], [Unread(repository.location.uri, f"whether a checkpoint is missing is UNKNOWN: {problem}")]
    for backup in others.values():
        place = _below(discovery.roots, backup.checkpoint)
        if backup.name in taken or place is None:
            continue
        listed, problem = _tried(place.list)
        if listed is None:
            unread.append(Unread(place.uri, problem or "it cannot be listed"))
        elif not (listed.files or listed.directories):
            missing.append(Missing(backup.name, place.uri))
    return missing, unread


def _below(roots: Iterable[Location], uri: str) -> Location | None:
    """The place of an address below one of some roots."""
    for root in roots:
        if ("://" in uri) != ("://" in root.uri):
            continue  # a path of this machine and a URI
        above, below = root.store.canonical(root.uri).rstrip("/") + "/", root.store.canonical(uri)
        if below.startswith(above) and below != above:
            return root / below.removeprefix(above)
    return None


class _Guards:
    """The guards of each worker, and of each stream that has options of its own."""

    def __init__(self, make: MakeGuards, settings: GuardSettings, options: Mapping[str, OptionsOfGuards]) -> None:
        self._make = make
        self._settings = settings
        self._options = options
        self._of_thread = threading.local()

    def ask(self, query: GuardedQuery, name: str) -> GuardReport:
        """Have the sources of a stream judged."""
        if name in self._options:
            query.refuse_other_sources(self._options[name])
            settings = replace(self._settings, options=merged(self._settings.options, self._options[name]))
            return guard_query(query, settings, guards=self._make(settings))
        if not hasattr(self._of_thread, "guards"):
            self._of_thread.guards = self._make(self._settings)
        return guard_query(query, self._settings, guards=self._of_thread.guards)


class _Poller:
    """What all streams of one report have in common."""

    def __init__(
        self,
        discovery: Discovery,
        repository: Repository,
        guards: _Guards | None,
        sizes: bool,
        now: datetime,
        on_progress: OnCount | None,
    ) -> None:
        self.repository = repository
        self.backups = BackupsOfFleet(repository, [each.name for each in discovery.found])
        self.now = now
        self._rewinds, self._roots = frozenset(discovery.repositories), discovery.roots
        self._records = _tried(lambda: rewind_records(repository))
        self._guards = guards
        self._sizes = sizes
        self._on_progress = on_progress
        self._total, self._done = len(discovery.found), 0
        self._lock = threading.Lock()

    def at(self, found: Found) -> Stream:
        """Report on one stream. Raises nothing that has its cause in this stream."""
        unknown: dict[str, str] = {}

        def part(name: str, look: Callable[[], Part]) -> Part | None:
            value, problem = _tried(look)
            if problem:
                unknown[name] = problem
            return value

        query_id = found.progress.query_id if found.progress else None
        backup = part("backup", lambda: self.backups.last_good(found.name, found.place, query_id=query_id))
        stream = Stream(
            found=found,
            looked_at=self.now,
            situation=part("situation", lambda: self._status(found)) if found.progress else None,
            backup=backup,
            drill=part("drill", lambda: self.backups.last_drill(backup.name if backup else found.name)),
            time_to_loss=self._time_to_loss(found, backup),
            size=part("size", lambda: sum(f.size for f in found.place.walk().values())) if self._sizes else None,
            unknown=unknown,
        )
        with self._lock:
            self._done += 1
            if self._on_progress:
                self._on_progress(self._done, self._total)
        return stream

    def _status(self, found: Found) -> RewindStatus | None:
        """By the records of the repository, and those of changes that are kept beside the checkpoint."""
        if found.progress is None:
            return None
        records, problem = self._records
        if records is None and not found.progress.seal:  # whose change a seal is, its plan says
            raise CkptError(problem or "the audit records cannot be read")
        keepers, unread = [(self.repository, records or [])], ""
        for place in places_beside(found.place):
            is_known = place.uri in self._rewinds
            if is_known or found.progress.seal or not self._is_searched(found):
                try:
                    kept = Repository.open_if_there(place)
                    keepers += [(kept, [] if found.progress.seal else rewind_records(kept))] if kept else []
                except CkptError as e:
                    if is_known:
                        raise
                    unread = f" Whether a change is kept beside it is not known: {e.message}."
        status = status_among(found.place, found.progress, keepers)
        return replace(status, message=f"{status.message}{unread}") if unread else status

    def _is_searched(self, found: Found) -> bool:
        """Whether it lies below a place that was searched: what is beside it was found then."""
        return any(found.place.uri.startswith(f"{root.uri.rstrip('/')}/") for root in self._roots)

    def _time_to_loss(self, found: Found, backup: LastBackup | None) -> TimeToLoss:
        if self._guards is None:
            return not_known("no guard was configured")
        if found.progress is None:
            return not_known("the checkpoint cannot be read")
        try:
            newest = found.progress.latest_committed
            sources = sources_at(self.repository, backup, -1 if newest is None else newest) if backup else {}
            query = from_checkpoint(found.place, known={"sources": sources}, progress=found.progress)
            return time_to_loss(self._guards.ask(query, found.name))
        except Exception as e:  # a guard of another package may raise anything
            return not_known(said(e))


def _looked_at(place: Location) -> Found:
    try:
        return inspect_target(place)
    except NotACheckpointError as e:
        return Found(place, State.UNREADABLE, message=e.message)


def _tried(look: Callable[[], Part]) -> tuple[Part | None, str | None]:
    """What a check found, or why it found nothing."""
    try:
        return look(), None
    except Exception as e:
        return None, said(e)
