"""A stream of a chain: as a person names it, and as it was read."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from airflow_ckpt_provider.backup.beside import default_repository, repository_at
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import stream_name
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.seal import parse_seal
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.guards.registry import Guard
from airflow_ckpt_provider.recovery.newest_batch import NewestBatch, newest_batch
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.rewind.asked_sink import AskedSink
from airflow_ckpt_provider.recovery.rewind.planned_sink import policies_for
from airflow_ckpt_provider.recovery.rewind.targets import logged_batches
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink, look_at, named_sinks
from airflow_ckpt_provider.storage.location import Location, plain_uri


@dataclass(frozen=True, slots=True)
class ChainStream:
    """A stream as a person names it.

    :param name: its name in the plan, such as ``bronze``.
    :param checkpoint: its checkpoint.
    :param sinks: what it writes to.
    :param policies: what is done about rows that the sinks have beyond the batch: one for all of them, or one for each.
        ``FORWARD`` is refused: the streams of a chain are rewound together.
    :param repository: keeps what its change removes; ``None``: beside the checkpoint, in ``<checkpoint>.rewinds``.
    :param guards: makes those that judge its sources; ``None``: those of the plan.
    """

    name: str
    checkpoint: Location
    sinks: tuple[Sink, ...] = (Sink(),)
    policies: tuple[SinkPolicy | None, ...] = (SinkPolicy.ROLLBACK,)
    repository: Location | None = None
    guards: Callable[[], Sequence[Guard]] | None = None

    @property
    def place(self) -> Location:
        """The place of its repository."""
        return self.repository or default_repository(self.checkpoint)

    @property
    def held(self) -> Repository | None:
        """Its repository, where that is there."""
        return repository_at(self.repository, self.checkpoint)

    @property
    def argument(self) -> str:
        """The stream as ``--stream`` names it."""
        parts = [f"{self.name}={self.checkpoint.uri}"]
        for sink, policy in zip(self.sinks, policies_for(self.sinks, self.policies), strict=True):
            parts += [f"sink={sink.name}"] if sink.name else []
            parts += [f"txn-app-id={sink.app_id}"] if sink.app_id else []
            parts += ["policy=keep"] if sink.name and policy is not SinkPolicy.ROLLBACK else []
        return shlex.quote(",".join(parts))


def same_streams(ones: Iterable[str], others: Iterable[str]) -> bool:
    """Whether streams are the same ones, as ``--stream`` names them.

    :param ones: from a plan; earlier versions wrote a policy where there was no sink.
    :param others: from the streams.
    """

    def plain(argument: str) -> str:
        return argument if ",sink=" in argument else argument.replace(",policy=keep", "")

    return set(map(plain, ones)) == set(map(plain, others))


def check_arguments(streams: Iterable[ChainStream]) -> None:
    """See that a command can name the streams: the one that resumes a change of them, or undoes it.

    :raises RefusedError: a name or a place has a character that ends it there.
    """
    for stream in streams:
        names = [sink.name for sink in stream.sinks] + [sink.app_id or "" for sink in stream.sinks]
        wrong = [each for each in (stream.name, stream.checkpoint.uri, *names) if "," in each]
        if wrong or "=" in stream.name:
            raise RefusedError(
                f"no command can name the stream {stream.name!r} together with others: {(wrong or [stream.name])[0]!r} has a "
                f"{',' if wrong else '='}",
                hint="change this stream alone, or put it under a name and in a place without one first",
            )


def named_streams(streams: tuple[ChainStream, ...]) -> tuple[ChainStream, ...]:
    """The streams, at least one, each with a name and a checkpoint of its own.

    :raises RefusedError: they are not; or the policy ``forward`` was chosen for one.
    """
    if not streams:
        raise RefusedError("no stream is named", hint="name each: --stream NAME=CHECKPOINT,sink=SINK")
    for what, values in (
        ("name", [s.name for s in streams]),
        ("checkpoint", [plain_uri(s.checkpoint.uri) for s in streams]),
    ):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise RefusedError(f"two streams have the {what} {twice}", hint="name each stream once")
    for stream in streams:
        if SinkPolicy.FORWARD in policies_for(named_sinks(stream.sinks), stream.policies):
            raise RefusedError(
                f"{stream.name}: the policy 'forward' is not for the streams of a chain, which are rewound together",
                hint="choose rollback or keep, or rewind this stream alone",
            )
    return streams


@dataclass(frozen=True)
class ReadStream:
    """A stream as it was read once, for planning.

    :param stream: as it was named.
    :param progress: of its checkpoint.
    :param tree: the checkpoint's files.
    :param ids: every id of its query.
    :param asked: its sinks.
    :param written: the newest batch that it may have written.
    """

    stream: ChainStream
    progress: Progress
    tree: Tree
    ids: QueryIds
    asked: tuple[AskedSink, ...]
    written: NewestBatch
    _reports: dict[int, tuple[SinkReport, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name."""
        return self.stream.name

    @property
    def newest(self) -> int:
        """The newest batch in its logs."""
        return self.progress.latest_begun or 0

    @cached_property
    def entries(self) -> dict[int, OffsetEntry]:
        """Batch -> its offset log entry, for those that can be read."""
        found = {}
        for batch_id in self.tree.batches(OFFSETS):
            file = self.tree.get(f"{OFFSETS}/{batch_id}")
            try:
                data = self.tree.read(file) if file else b""
                if parse_seal(data, batch_id=batch_id) is None:
                    found[batch_id] = parse_offsets(data, batch_id=batch_id)
            except (CkptError, FileNotFoundError):
                continue  # a batch whose entry cannot be read is no target
        return found

    @property
    def committed(self) -> list[int]:
        """Committed batches with a log entry, newest first."""
        return [b for b in reversed(self.progress.committed) if b in self.entries]

    def position(self, batch_id: int, source: str) -> SourceOffset | None:
        """Where a source stands after a batch."""
        entry = self.entries.get(batch_id)
        return next((s for s in entry.sources if s.source == source), None) if entry else None

    def has_closure(self, batch_id: int) -> bool:
        """Whether the checkpoint has all that a start after a batch needs, with the next batch planned again."""
        try:
            resolve_closure(self.tree, batch_id, replays_next=False)
        except (CkptError, FileNotFoundError):
            return False
        return True

    def reports(self, batch_id: int) -> tuple[SinkReport, ...]:
        """What each sink says to a start after a batch."""
        if batch_id not in self._reports:
            entries, latest = logged_batches(self.tree), self.written.after(batch_id)
            self._reports[batch_id] = tuple(each.report(self.ids, batch_id, latest, entries) for each in self.asked)
        return self._reports[batch_id]


def read_stream(stream: ChainStream) -> ReadStream:
    """Read a stream: its logs and its sinks.

    :raises NotACheckpointError: there is no checkpoint.
    :raises RefusedError: it has no committed batch, or a sink cannot be read.
    """
    checkpoint, held = Checkpoint.at(stream.checkpoint), stream.held
    progress, sinks = checkpoint.progress(), named_sinks(stream.sinks)
    if progress.query_id is None or progress.latest_committed is None:
        missing = "its metadata is missing" if progress.query_id is None else "it has no committed batch"
        raise RefusedError(
            f"{stream.name} ({stream.checkpoint}) cannot be rewound: {missing}",
            hint="leave it out where it never ran; else restore a backup, or reset it (`airflow-ckpt reset --from-scratch`)",
        )
    looked, tree = [look_at(sink) for sink in sinks], checkpoint.tree()
    name = stream_name(held, stream.checkpoint, None, query_id=progress.query_id)
    ids = read_query_ids(
        progress.query_id,
        place=stream.checkpoint,
        repository=held,
        name=name,
        app_ids=[sink.app_id for sink in sinks],
        histories=[found.content.history if found else None for found in looked],
        tree=tree,
    ) or QueryIds.of(progress.query_id)
    policies = policies_for(sinks, stream.policies)
    asked = tuple(AskedSink(*each) for each in zip(sinks, looked, policies, strict=True))
    written = newest_batch(
        stream.checkpoint,
        progress.latest_begun,
        progress.query_id,
        starts_as=progress.query_id,
        repository=held,
        name=name,
        unlogged=progress.unlogged,
        ids=ids,
    )
    return ReadStream(stream, progress, tree, ids, asked, written)
