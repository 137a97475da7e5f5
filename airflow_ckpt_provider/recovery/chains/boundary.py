"""The newest batches at which all streams of a chain are at one boundary.

A stream that is rewound takes its table back to a version. Each reader of that table must then stand where it had read exactly
what the table has, so that its state and its own table are made of these rows and no others:

* Delta: its batch ends exactly where that version ends, or one with the same rows. A position before it is not enough: the
  rows in between would be read together with those of the commits that were rolled back. The position then moves behind the
  rollback, see :mod:`~airflow_ckpt_provider.recovery.chains.positions`.
* Iceberg: its batch ends in an ancestor of that snapshot. After a rollback Iceberg reads on among the ancestors of the new
  current snapshot, so nothing that was rolled back is read.
* File sink: its batch has read no file that is removed.

Where a reader has no such batch, an older batch of the writer is tried: its replay brings the later ones again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, FileOffset, IcebergOffset
from airflow_ckpt_provider.errors import RefusedError, command
from airflow_ckpt_provider.recovery.chains.edges import Edge, all_files_read
from airflow_ckpt_provider.recovery.chains.positions import BEFORE_ALL
from airflow_ckpt_provider.recovery.chains.stream import ReadStream
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.report import SinkReport, SinkRollback
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.storage.location import inside
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Choice:
    """Where one stream goes.

    :param batch_id: its batch.
    :param reports: what each of its sinks says to it.
    :param behind: source -> the version of the rollback behind which the source continues (Delta).
    :param reads_changed: sources whose table is rolled back.
    """

    batch_id: int
    reports: tuple[SinkReport, ...]
    behind: Mapping[str, int]
    reads_changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """Streams and what they read of each other.

    :param streams: name -> the stream, writers before their readers.
    :param edges: what they read of each other.
    """

    streams: Mapping[str, ReadStream]
    edges: tuple[Edge, ...]

    def reads(self, name: str) -> list[Edge]:
        """The edges into a stream."""
        return [edge for edge in self.edges if edge.reader == name]

    def roots(self) -> list[str]:
        """The streams that read no other of the chain."""
        return [name for name in self.streams if not self.reads(name)]


def find_boundary(chain: Chain, targets: Mapping[str, Sequence[int]]) -> dict[str, Choice]:
    """Choose the batch of each stream: the newest ones that fit together.

    :param chain: the streams.
    :param targets: stream that the rewind begins with -> the batches it may go to, newest first.
    :return: stream -> its choice, writers first; a stream that reads nothing that changes is not in it.
    :raises RefusedError: there is none; the message names the stream that cannot, and why.
    """
    search = _Search(chain, targets, list(chain.streams))
    found = search.choose(0, {})
    if found is None:
        raise search.refused()
    return found


class _Search:
    """A search with backtracking: a few streams with some hundred batches each."""

    def __init__(self, chain: Chain, targets: Mapping[str, Sequence[int]], order: list[str]) -> None:
        self.chain, self.targets, self.order = chain, targets, order
        #: Place in the order -> why the newest batches that were tried do not fit.
        self.why: dict[int, list[str]] = {}

    def choose(self, at: int, chosen: dict[str, Choice]) -> dict[str, Choice] | None:
        """Choose the streams from a place in the order on; ``None`` where nothing fits what was chosen before."""
        if at == len(self.order):
            return chosen
        name = self.order[at]
        changed = [edge for edge in self.chain.reads(name) if _changes(edge, chosen)]
        if not changed and name not in self.targets:
            return self.choose(at + 1, chosen)
        why: list[str] = []
        for choice in self._choices(name, changed, chosen, why):
            found = self.choose(at + 1, {**chosen, name: choice})
            if found is not None:
                return found
        if why:
            self.why.setdefault(at, why)
        return None

    def _choices(
        self, name: str, changed: list[Edge], chosen: Mapping[str, Choice], why: list[str]
    ) -> Iterator[Choice]:
        stream = self.chain.streams[name]
        batches = self.targets.get(name)
        for batch_id in stream.committed if batches is None else batches:
            obstacle = next(filter(None, (self._obstacle(edge, batch_id, chosen) for edge in changed)), None)
            moves = {edge.source: _rollback_commit(edge, chosen) for edge in changed if self._is_delta(edge)}
            if obstacle is None and changed:
                obstacle = _cannot_start(stream, batch_id, moves=bool(moves))
            reports = stream.reports(batch_id) if obstacle is None else ()
            obstacle = obstacle or _cannot_go_back(stream, batch_id, reports, self.chain.edges)
            if obstacle is None:
                yield Choice(batch_id, reports, moves, tuple(edge.source for edge in changed))
            elif len(why) < 3:
                why.append(obstacle)

    def _is_delta(self, edge: Edge) -> bool:
        history = self.chain.streams[edge.writer].asked[edge.sink].history
        return history is not None and history.format == "delta"

    def _obstacle(self, edge: Edge, batch_id: int, chosen: Mapping[str, Choice]) -> str | None:
        """Why a batch of a reader does not end where the writer's table goes to; ``None`` where it does."""
        reader, writer = self.chain.streams[edge.reader], self.chain.streams[edge.writer]
        history = writer.asked[edge.sink].history
        report = chosen[edge.writer].reports[edge.sink]
        position = reader.position(batch_id, edge.source)
        offset = position.offset if position else None
        rollback = report.rollback
        if rollback is None:
            return f"{edge.table} cannot be rolled back"
        if isinstance(offset, DeltaOffset) and history is not None:
            return _delta_obstacle(offset, history, rollback, batch_id, edge) or _has_read(
                reader, history, batch_id, edge
            )
        if isinstance(offset, IcebergOffset) and history is not None:
            return _iceberg_obstacle(offset, history, rollback, batch_id, edge) or _has_read_what_left(
                reader, history, batch_id, edge
            )
        if isinstance(offset, FileOffset) and rollback.paths:
            return _file_obstacle(reader, offset, rollback, batch_id, edge, writer.asked[edge.sink].sink)
        if offset is None:
            return f"batch {batch_id} has no offset of source {edge.source}"
        return f"a source of kind {offset.kind} that reads {edge.table} cannot be judged"

    def refused(self) -> RefusedError:
        """The error that names the stream that cannot be rewound with the others."""
        at = max(self.why, default=0)
        name, why = self.order[at], self.why.get(at, ["it has no committed batch"])
        table = ", ".join(dict.fromkeys(edge.table for edge in self.chain.reads(name)))
        of = f" with {', '.join(dict.fromkeys(e.writer for e in self.chain.reads(name)))}" if table else ""
        return RefusedError(
            f"{name} cannot be rewound{of} row-exactly: {'; '.join(why)}",
            hint=f"build {name} and what reads it again: rewind the others without it, empty its table, and reset it "
            f"(`{command('reset', self.chain.streams[name].stream.checkpoint, '--from-scratch')}`)"
            if table
            else "choose another batch",
        )


def _changes(edge: Edge, chosen: Mapping[str, Choice]) -> bool:
    """Whether the table that is read is rolled back; a rollback that changes only what the table remembers does not count.

    A sink that others read has the policy ``rollback``, see :func:`_cannot_go_back`.
    """
    if edge.writer not in chosen:
        return False
    rollback = chosen[edge.writer].reports[edge.sink].rollback
    return rollback is not None and (rollback.to_version is None or rollback.to_version != rollback.from_version)


def _rollback_commit(edge: Edge, chosen: Mapping[str, Choice]) -> int:
    """The version that the rollback of a Delta table will be: it is committed only right after the newest one."""
    rollback = chosen[edge.writer].reports[edge.sink].rollback
    if rollback is None or rollback.from_version is None:
        raise ValueError("the rollback of a Delta table has versions")
    return rollback.from_version + 1


def _delta_obstacle(
    offset: DeltaOffset, history: TableHistory, rollback: SinkRollback, batch_id: int, edge: Edge
) -> str | None:
    if offset.initial_snapshot:
        return (
            f"its batch {batch_id} was still reading the first snapshot of {edge.table}, version {offset.table_version}"
        )
    if offset.index not in BEFORE_ALL:
        return f"its batch {batch_id} ends in the middle of version {offset.table_version} of {edge.table}"
    if rollback.to_version is not None and same_rows(history, offset.table_version - 1, rollback.to_version):
        return None
    return (
        f"its batch {batch_id} ends at version {offset.table_version - 1} of {edge.table}, which goes to version "
        f"{rollback.to_version}"
    )


def _has_read(reader: ReadStream, history: TableHistory, batch_id: int, edge: Edge) -> str | None:
    """Why a reader has rows of commits that left the table before; ``None`` where no log entry that is left says so.

    With ``skipChangeCommits`` it passes a rollback and keeps what it has read. A position that a chain has moved behind a
    rollback has not read what lies before: it is in two entries, and the rollback is by a plan of ours.
    """
    found = {batch: reader.position(batch, edge.source) for batch in sorted(reader.entries) if batch <= batch_id}
    ends = {batch: s.offset for batch, s in found.items() if s and isinstance(s.offset, DeltaOffset)}
    lineage = history.lineage(ends[batch_id].table_version - 1) or ()
    stay, before = {commit.version for commit in lineage}, None
    for batch, offset in ends.items():
        end, behind = offset.table_version, history.at(offset.table_version - 1)
        after = ends.get(batch + 1)
        moved = behind and behind.plan_id and after and after.table_version == end
        if before is not None and not moved:
            for version in range(before, end):
                commit = history.at(version)
                if commit and commit.changes_data and commit.restored is None and version not in stay:
                    return (
                        f"it has read {commit.describe()} of {edge.table} by batch {batch}, which left the table since"
                    )
        before = end
    return None


def same_rows(history: TableHistory, version: int, other: int) -> bool:
    """Whether two versions of a table have the same rows by the same commits; not where the log does not reach back.

    A batch without rows leaves a commit without files, of which a reader sees nothing.
    """
    heads, found = history.heads(), []
    for each in (version, other):
        lineage = history.lineage(each) if each in heads else None
        if lineage is None:
            return False
        found.append(next((commit.version for commit in reversed(lineage) if commit.changes_data), None))
    return found[0] == found[1]


def _iceberg_obstacle(
    offset: IcebergOffset, history: TableHistory, rollback: SinkRollback, batch_id: int, edge: Edge
) -> str | None:
    if rollback.to_version in history.snapshots:
        stay = history.snapshots[: history.snapshots.index(rollback.to_version) + 1]
        if offset.snapshot_id in stay:
            return None
    return (
        f"its batch {batch_id} has read snapshot {offset.snapshot_id} of {edge.table}, which is no ancestor of snapshot "
        f"{rollback.to_version}"
    )


def _has_read_what_left(reader: ReadStream, history: TableHistory, batch_id: int, edge: Edge) -> str | None:
    """Why a reader has rows of snapshots that left branch main before; ``None`` where no log entry that is left says so."""
    left = {commit.snapshot_id for commit in history.left}
    for batch in sorted(batch for batch in reader.entries if batch <= batch_id):
        position = reader.position(batch, edge.source)
        offset = position.offset if position else None
        if isinstance(offset, IcebergOffset) and offset.snapshot_id in left:
            return (
                f"its batch {batch} has read snapshot {offset.snapshot_id} of {edge.table}, which left the table since"
            )
    return None


def _file_obstacle(
    reader: ReadStream, offset: FileOffset, rollback: SinkRollback, batch_id: int, edge: Edge, sink: Sink
) -> str | None:
    read = all_files_read(reader, edge.source, offset.log_offset)
    taken = next((uri for uri in read if sink.place and inside(sink.place, uri) in rollback.paths), None)
    return f"its batch {batch_id} has read {unquote(taken)}, which is removed" if taken else None


def _cannot_start(stream: ReadStream, batch_id: int, *, moves: bool) -> str | None:
    """Why a batch cannot be followed by one that is planned again; ``None`` where it can."""
    if moves and batch_id - 1 not in stream.entries:
        return f"its batch {batch_id} has no log entry before it, in which the position would move too"
    if not stream.has_closure(batch_id):
        return f"the checkpoint does not have all that a start after batch {batch_id} needs"
    return None


def _cannot_go_back(
    stream: ReadStream, batch_id: int, reports: Sequence[SinkReport], edges: Sequence[Edge]
) -> str | None:
    for number, (asked, report) in enumerate(zip(stream.asked, reports, strict=True)):
        if report.verdict is Verdict.SAFE:
            continue
        readers = [e.reader for e in edges if (e.writer, e.sink) == (stream.name, number)]
        if asked.policy is not SinkPolicy.ROLLBACK and readers:
            return f"{report.uri} is to stay (policy keep), and {readers[0]} reads it"
        if asked.policy is SinkPolicy.ROLLBACK and report.rollback is None:
            return f"{report.uri} cannot be rolled back to batch {batch_id}: {report.obstacle or '; '.join(report.reasons)}"
    return None
