"""Spark's file sink: its log ``_spark_metadata`` skips every batch it knows, and names the data files of each.

The log is one of Spark's compactible logs (``CompactibleFileStreamLog``): ``<batch>`` holds the files of one batch, and
``<batch>.compact`` the files of all batches up to it. ``FileStreamSink.addBatch`` skips a batch that is not newer than the newest
entry, and the commit is still written. Rolling it back means deleting the entries beyond the target; their data files are
set aside, for readers that do not go through the log would see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from airflow_ckpt_provider.checkpoint.gaps import gaps
from airflow_ckpt_provider.checkpoint.logs import batch_id_of, parse_object, split_log
from airflow_ckpt_provider.errors import RefusedError, StorageError, UnreadableLogError
from airflow_ckpt_provider.sinks.earlier_run import NONE_PLANNED, OF_ANOTHER_CLOCK, of_a_later_run, of_an_earlier_run
from airflow_ckpt_provider.sinks.kinds import SinkChange, SinkContent, SinkKind, SinkStart
from airflow_ckpt_provider.sinks.report import SinkReport, SinkRollback
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.hadoop_checksums import hidden_checksum
from airflow_ckpt_provider.storage.location import Location, inside
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.verdict import Verdict

SINK_LOG = "_spark_metadata"
_COMPACT = ".compact"
_KNOWN = frozenset({1})


@dataclass(frozen=True, slots=True)
class FileSinkContent(SinkContent):
    """The output of a file sink; its log is read when it is judged.

    :param place: the directory that the query writes to.
    """

    place: Location

    def verdict(self, start: SinkStart) -> SinkReport:
        """Judge a start."""
        return inspect_file_sink(
            self.place, start.batch_id, unwritten=start.unwritten, planned=start.planned, complete_at=start.complete_at
        )


class FileSink(SinkKind):
    """Outputs of Spark's file sink. Log entries and data files are set aside, then deleted."""

    kind = "file"

    def look(self, sink: Sink) -> FileSinkContent | None:
        """Recognise it by its log."""
        return FileSinkContent(sink.place) if sink.place and is_file_sink(sink.place) else None

    def check(self, change: SinkChange) -> None:
        """See that nobody wrote into the sink, also half-way, and that no file is gone that is to be set aside."""
        place = _output(change)
        newest = newest_in_log(place)
        if newest != change.report.batch_id and not change.continued:
            raise RefusedError(
                f"{place} has batches up to {newest}, and the plan was made when it had {change.report.batch_id}: somebody wrote "
                "into it; the sink was not changed",
                hint="see who writes, then make a new plan",
            )
        _refuse_others(change, place)
        if change.aside is not None and change.aside.sizes is None:
            _refuse_gone(change, place.walk())

    def roll_back(self, change: SinkChange) -> int | None:
        """Set the files aside, then delete them in the plan's order: the log first, from its newest entry on."""
        place, aside, paths = change.guarding(_output(change)), change.kept, change.rollback.paths
        _refuse_others(change, place)
        there = place.walk()
        if aside.sizes is None:
            _refuse_gone(change, there)
            aside.keep(place, [there[path] for path in paths], workers=change.workers)
        for path in paths:
            for name in (path, hidden_checksum(path)):
                if name in there:
                    place.delete_listed(there[name])
        return None

    def is_rolled_back(self, change: SinkChange) -> bool:
        """Whether a file is gone; nothing is removed before all is set aside."""
        if change.kept.sizes is None:
            return False
        there = _output(change).walk()
        return any(path not in there for path in change.rollback.paths)

    def undo_needs(self, change: SinkChange) -> tuple[list[str], list[str]]:
        """The files that are set aside."""
        files = len(change.rollback.paths)
        return [
            f"{files} files of the sink are set aside in the repository and put back: nothing may delete them before"
        ], []

    def check_undo(self, change: SinkChange) -> None:
        """See that nobody wrote into the sink since the plan removed files of it, and that all can be put back."""
        _refuse_written_since(change)
        place, aside = _output(change), change.aside
        if aside is None or aside.sizes is None:
            return  # no file was deleted
        there = place.walk()
        damaged = aside.damaged([path for path in change.rollback.paths if path not in there])
        if damaged:
            raise RefusedError(
                f"{aside.place}/files/{damaged[0]} is missing or is not what was kept ({len(damaged)} files): it "
                f"cannot be put back into {place}; the sink was not changed now",
                hint="put these files back from a copy of the repository, then run the same undo again",
            )

    def undo(self, change: SinkChange) -> int | None:
        """Put the files back: data first, and the log upwards, so a reader sees a whole number of batches at every moment."""
        _refuse_written_since(change)
        place, aside, paths = change.guarding(_output(change)), change.kept, change.rollback.paths
        kept = aside.sizes
        if kept is None:
            return None  # killed before a file was deleted
        lost = [path for path in paths if path not in kept]
        if lost:
            raise StorageError(
                f"{aside.place} does not keep {lost[0]}, which rewind {change.plan_id} was to remove ({len(lost)} files)",
                hint="the plan or the marker in the repository was damaged: put it back from a copy, then run the undo again",
            )
        there = place.walk()
        for path in reversed(paths):
            content = aside.read(path)
            checksum = there.get(hidden_checksum(path))
            if checksum is not None:
                place.delete_listed(checksum)
            if path not in there:
                place.create(path, content)
            elif place.read(path) != content:
                raise StorageError(
                    f"{place}/{path} is not the file that rewind {change.plan_id} removed: somebody else writes into the sink",
                    hint="inspect the sink; then run the same undo again",
                )
        return None

    def is_undone(self, change: SinkChange) -> bool | None:
        """Whether a file is there again; not known where the rewind was not ended, which may have left it there."""
        if (kept := change.kept.sizes) is None:
            return False
        if change.record is None:
            return None
        place, aside = _output(change), change.kept
        there = place.walk()
        put_back = (path for path in change.rollback.paths if path in there and path in kept)
        return any(aside.is_kept(path, place.read(path)) for path in put_back)


def _output(change: SinkChange) -> Location:
    """The directory of the sink.

    :raises RefusedError: the sink that was named has none.
    """
    if change.sink.place is None:
        raise RefusedError(
            f"{change.report.uri} is the output of a file sink, and {change.sink.name or 'no sink'} was named",
            hint=f"name it: --sink {change.report.uri}",
        )
    return change.sink.place


def _refuse_written_since(change: SinkChange) -> None:
    """See that nobody wrote into the sink since the plan removed files of it.

    :raises RefusedError: somebody did.
    """
    place, aside = _output(change), change.aside
    if aside is None or aside.sizes is None:
        return  # no file was deleted
    paths, there = change.rollback.paths, place.walk()
    foreign = _foreign_entry(change, place) if any(path not in there for path in paths) else None
    path = foreign or _replaced(change, place, paths)
    if path:
        instead = "rewind again instead; or " if change.record and not change.is_half_undone else ""
        raise RefusedError(
            f"{place} was written to since rewind {change.plan_id}: {path} is not of it; the sink was not changed now",
            hint=f"{instead}move {_with_its_files(path)} out of the sink, then run the same undo again",
        )


def _refuse_gone(change: SinkChange, there: Mapping[str, StoredFile]) -> None:
    """See that all files are there that are to be set aside.

    :param there: what is in the sink.
    :raises RefusedError: one is gone.
    """
    gone = next((path for path in change.rollback.paths if path not in there), None)
    if gone:
        raise RefusedError(
            f"{_output(change)}/{gone} is gone though the sink's log names it", hint="see who deletes files of the sink"
        )


def _refuse_others(change: SinkChange, place: Location) -> None:
    """See that the log has no entry beyond the target that the plan does not take away, and none that was written since.

    :raises RefusedError: it has one.
    """
    path = _foreign_entry(change, place) or _replaced(change, place, [p for p in change.rollback.paths if _is_log(p)])
    if path:
        raise RefusedError(
            f"{place}/{path} is not of plan {change.plan_id}: somebody wrote into the sink; it was not changed now",
            hint=f"see who writes; move {_with_its_files(path)} out of the sink, then run the same command again",
        )


def _foreign_entry(change: SinkChange, place: Location) -> str | None:
    """A log entry beyond the target that the plan does not know."""
    planned = set(change.rollback.paths)
    beyond = (file.path for (number, _), file in sorted(_entries(place).items()) if number > change.batch_id)
    return next((path for path in beyond if path not in planned), None)


def _replaced(change: SinkChange, place: Location, paths: Sequence[str]) -> str | None:
    """The first of some files that is there and is not what was set aside."""
    kept = (change.aside.sizes if change.aside else None) or {}
    if change.aside is None or not kept:
        return None
    there = place.walk()
    for path in paths:
        if path in there and path in kept:
            same_size = there[path].size == kept[path]
            if not same_size or not change.aside.is_kept(path, place.read(path)):
                return path
    return None


def _with_its_files(path: str) -> str:
    return f"{path} and the data files that it names" if _is_log(path) else path


def _is_log(path: str) -> bool:
    return path.startswith(f"{SINK_LOG}/")


def is_file_sink(place: Location) -> bool:
    """Whether a file sink writes to a place."""
    return bool(place.list(SINK_LOG).files)


def newest_in_log(place: Location) -> int:
    """The newest batch in the sink's log; -1 without any."""
    return _newest(_entries(place))


def _newest(log: Iterable[tuple[int, bool]]) -> int:
    return max((number for number, _ in log), default=-1)


def inspect_file_sink(
    place: Location,
    batch_id: int,
    *,
    unwritten: frozenset[int] = frozenset(),
    planned: Mapping[int, datetime] = NONE_PLANNED,
    complete_at: datetime | None = None,
) -> SinkReport:
    """Judge a start after ``batch_id``; reads the log entries that tell which files are in the sink.

    :param place: the directory that the query writes to.
    :param unwritten: batches that wrote no entry, such as an offline repartition of the state. Every other batch writes one, the
        empty ones too.
    :param planned: batch -> when the checkpoint says that it was planned, in UTC.
    :param complete_at: when the backup that the checkpoint comes from had all of its batches, in UTC.
    :raises UnreadableLogError: an entry of the log that a rollback needs cannot be parsed.
    """
    log = _entries(place)
    newest = _newest(log)
    written = {
        number: file.modified for (number, _), file in sorted(log.items()) if file.modified and number <= batch_id
    }
    of_others = (
        *of_an_earlier_run(written, planned, apart=OF_ANOTHER_CLOCK),
        *of_a_later_run(written, complete_at),
    )
    doubts = (*_doubts(log, batch_id, unwritten), *of_others, *_damage(place, log, batch_id, unwritten))
    if newest <= batch_id:
        verdict = Verdict.UNKNOWN if doubts else Verdict.SAFE
        return SinkReport("file", place.uri, verdict, doubts, batch_id=newest, remembered=newest)
    start = batch_id + 1
    reasons = (
        f"the sink's log {SINK_LOG} reaches batch {newest}: batches {start} to {newest} are skipped silently when they are "
        "replayed, so their old rows stay and nothing of the replay is written",
    )
    rollback, obstacle = _rollback(place, log, batch_id, newest, unwritten)
    return SinkReport("file", place.uri, Verdict.WILL_SKIP, reasons, newest, newest, rollback, obstacle, doubts=doubts)


def _doubts(log: Iterable[tuple[int, bool]], batch_id: int, unwritten: frozenset[int]) -> tuple[str, ...]:
    """Batches up to the target whose rows a reader of the sink does not get: neither a start nor a rollback changes that."""
    numbers = {number for number, _ in log}
    base = max(
        (number for number, compact in log if compact), default=-1
    )  # it has the entries of all batches before it
    missing = gaps({*numbers, *unwritten}, base + 1, batch_id)
    if not missing:
        return ()
    first, last, count = missing[0][0], missing[-1][-1], sum(gap.stop - gap.start for gap in missing)
    words = f"batch {first}" if count == 1 else f"{count:,} batches, {first} to {last}"
    return (
        f"{SINK_LOG} has no entry of {words}, though the checkpoint resumes after {batch_id}: their rows are missing if they had "
        "any",
    )


def _damage(
    place: Location, log: Mapping[tuple[int, bool], StoredFile], batch_id: int, unwritten: frozenset[int]
) -> tuple[str, ...]:
    """What of the newest compacted entry and of those after it is damaged: these are what every reader of the sink reads.

    A query reads them when it compacts the log, every tenth batch by default. Data files are looked for of the entries after the
    compacted one, and of its own last batches: older ones may have been deleted on purpose, and no start and no rollback changes
    that.
    """
    base = max((number for number, compact in log if compact), default=-1)
    found: list[str] = []
    recent: dict[str, int | None] = {}
    for (number, compact), file in sorted(log.items()):
        if number < base or (number == base and not compact):
            continue
        try:
            named = _named(place, file, number)
        except UnreadableLogError as e:
            found.append(f"{e.message}: readers of the sink fail, and so does the query when it compacts the log")
            continue
        if not compact:
            recent |= named
            continue
        if base > batch_id:
            continue  # a rollback removes it
        last, lost = _compared(place, log, base, named, unwritten)
        recent |= last
        if lost:
            found.append(
                f"{SINK_LOG}/{base}{_COMPACT} lacks {lost[0]} ({len(lost):,} files), which an entry before it names, and has "
                "older ones: readers do not get their rows"
            )
    there = place.walk() if recent else {}
    gone = [
        path
        for uri, size in sorted(recent.items())
        if (path := inside(place, uri)) is not None and (path not in there or size not in (None, there[path].size))
    ]
    if gone:
        found.append(
            f"{SINK_LOG} names {gone[0]}, which is missing or has another size ({len(gone):,} files): their rows are missing"
        )
    return tuple(found)


def _compared(
    place: Location,
    log: Mapping[tuple[int, bool], StoredFile],
    base: int,
    named: Mapping[str, int | None],
    unwritten: frozenset[int],
) -> tuple[dict[str, int | None], list[str]]:
    """Compare a compacted entry with those that it was made of, as far as they are left.

    Spark's output option ``retention`` leaves out the oldest files: one that is left out beside an older one is lost.

    :param named: the files that it names.
    :return: the files of its own batch, or while it is the newest entry of all batches since the compacted one before it; and the
        files that it lacks. Of entries that are gone its last line is its own batch's.
    """
    last_line = dict(list(named.items())[-1:])
    older = max((number for number, compact in log if compact and number < base), default=-1)
    numbers = sorted(number for number, compact in log if not compact and older < number < base)
    try:
        first = _named(place, log[older, True], older) if older >= 0 else {}
        taken = [_named(place, log[number, False], number) for number in numbers]
    except (UnreadableLogError, FileNotFoundError):
        return last_line, []  # no reader needs them, and Spark may have deleted one just now
    lost: list[str] = []
    has_older = not first.keys().isdisjoint(named)
    for files in taken:
        lost += sorted(files.keys() - named.keys()) if has_older else []
        has_older = has_older or not files.keys().isdisjoint(named)
    is_all = not gaps({*numbers, *unwritten}, older + 1, base - 1)
    if _newest(log) == base and (older >= 0 or is_all):
        known = set(first)
    elif is_all:
        known = {*first, *(path for files in taken for path in files)}
    else:
        return last_line, lost
    return last_line | {path: size for path, size in named.items() if path not in known}, lost


def obstacle_to_rollback(place: Location, *, unwritten: frozenset[int] = frozenset()) -> str | None:
    """Why batches that are written from now on could not be taken out again; ``None`` where they could.

    :param place: the directory that the query writes to.
    :param unwritten: as for :func:`inspect_file_sink`.
    :raises UnreadableLogError: an entry of the log cannot be parsed.
    """
    log = _entries(place)
    newest = _newest(log)
    paths = _data_files(place, log, newest, unwritten)
    if paths is None:
        return f"{SINK_LOG} lacks entries up to batch {newest}: which files belong to which batch cannot be determined"
    outside = next((path for path in sorted(paths) if inside(place, path) is None), None)
    return f"{SINK_LOG} names {outside}, which does not lie in {place}: the sink was moved" if outside else None


def _entries(place: Location) -> dict[tuple[int, bool], StoredFile]:
    """(batch, whether it is a compacted one) -> the file."""
    found = {}
    for file in place.list(SINK_LOG).files:
        name = file.path.rpartition("/")[2]
        number = batch_id_of(name.removesuffix(_COMPACT))
        if number is not None:
            found[number, name.endswith(_COMPACT)] = file
    return found


def _rollback(
    place: Location, log: dict[tuple[int, bool], StoredFile], batch_id: int, newest: int, unwritten: frozenset[int]
) -> tuple[SinkRollback | None, str | None]:
    kept = _data_files(place, log, batch_id, unwritten)
    everything = _data_files(place, log, newest, unwritten)
    if kept is None or everything is None:
        return None, (
            f"{SINK_LOG} was compacted and purged beyond batch {batch_id}: which files belong to the batches after it is not "
            "known any more"
        )
    data = []
    for path in sorted(everything - kept):
        relative = inside(place, path)
        if relative is None:
            return None, f"{SINK_LOG} names {path}, which does not lie in {place}: the sink was moved"
        data.append(relative)
    data += sorted(_left_out(place, log, batch_id, kept | everything))
    entries = [file.path for (number, _), file in sorted(log.items()) if number > batch_id]
    # The log goes first and from its newest entry on: a reader then sees a whole number of batches at every moment.
    return SinkRollback(batches=newest - batch_id, paths=(*reversed(entries), *data)), None


def _left_out(place: Location, log: Mapping[tuple[int, bool], StoredFile], batch_id: int, named: set[str]) -> set[str]:
    """Data files of batches after one that compacted entries left out, by Spark's output option ``retention``, and that exist.

    Readers that do not go through the log see them. One that is missing was deleted on purpose.

    :param named: files that are known already.
    """
    found: set[str] = set()
    for (number, _), file in log.items():
        if number > batch_id:
            with suppress(UnreadableLogError, FileNotFoundError):  # a compacted entry took it in
                found |= _named(place, file, number).keys() - named
    there = place.walk() if found else {}
    return {path for uri in found if (path := inside(place, uri)) is not None and path in there}


def _data_files(
    place: Location, log: dict[tuple[int, bool], StoredFile], batch_id: int, unwritten: frozenset[int]
) -> set[str] | None:
    """The files that the log names for the batches up to one; ``None`` where entries for it are gone."""
    base = max((number for number, compact in log if compact and number <= batch_id), default=-1)
    needed = [(base, True)] if base >= 0 else []
    numbers = [number for number, compact in log if not compact and base < number <= batch_id]
    if gaps({*numbers, *unwritten}, base + 1, batch_id):
        return None
    paths: set[str] = set()
    for key in (*needed, *((number, False) for number in sorted(numbers))):
        paths |= _named(place, log[key], key[0]).keys()
    return paths


def _named(place: Location, file: StoredFile, number: int) -> dict[str, int | None]:
    """The data files that an entry of the log names, and their sizes.

    :raises UnreadableLogError: it cannot be parsed.
    """
    try:
        _, lines = split_log(place.read(file.path), path=file.path, batch_id=number, known=_KNOWN)
        entries = [parse_object(line, path=file.path, batch_id=number) for line in lines]
    except UnreadableLogError as e:  # what a repair of the checkpoint fetches is its own logs
        raise UnreadableLogError(
            e.message, path=file.path, hint=f"put {file.path} of {place} back from a copy of the sink"
        ) from e
    added = (entry for entry in entries if entry.get("action", "add") == "add" and "path" in entry)
    return {str(entry["path"]): entry["size"] if type(entry.get("size")) is int else None for entry in added}
