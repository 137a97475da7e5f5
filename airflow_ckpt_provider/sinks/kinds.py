"""Which kind of sink a query writes to: our own kinds, and those of other packages.

A package adds a kind by an entry point of the group :data:`GROUP`, whose value is called without arguments and returns a
:class:`SinkKind`::

    [project.entry-points."airflow_ckpt_provider.sinks"]
    ledger = "my_package.ledger_sink:LedgerSink"

Delta tables, Iceberg tables and Spark's file sink are found in the same way, after those of other packages. ``docs/sinks.md``
has an example.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from airflow_ckpt_provider.errors import CkptError, RefusedError, StorageError
from airflow_ckpt_provider.guards.entry_points import entry_points_of
from airflow_ckpt_provider.sinks.answers import is_report
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import WITHOUT_MEMORY, SinkReport, SinkRollback
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile

Answer = TypeVar("Answer")

GROUP = "airflow_ckpt_provider.sinks"
#: Names that no other package can give its kind: tables that are only named here, and sinks without a memory.
_TAKEN = frozenset({*WITHOUT_MEMORY, "unknown", "hudi", "paimon"})


@dataclass(frozen=True, slots=True)
class SinkStart:
    """A start of the query, for which a sink is judged.

    :param ids: ids by which the sink may know the query.
    :param batch_id: the batch after which the query starts.
    :param newest: the newest batch that it may have written.
    :param unwritten: batches that write nothing, such as an offline repartition of the state.
    :param planned: batch -> when the checkpoint says that it was planned, in UTC; empty where its log is not read.
    :param complete_at: when the backup that the checkpoint comes from had all its batches, in UTC; ``None``: it is from none.
    """

    ids: QueryIds
    batch_id: int
    newest: int
    unwritten: frozenset[int] = frozenset()
    planned: Mapping[int, datetime] = field(default_factory=dict)
    complete_at: datetime | None = None


class KeptFiles(Protocol):
    """Keeps files of a sink in the repository before they are removed."""

    @property
    def sizes(self) -> dict[str, int] | None:
        """Path -> bytes of what is kept; ``None`` until all of it is. Remove nothing before."""

    @property
    def place(self) -> str:
        """Path in the repository, for messages."""

    def keep(self, source: Location, files: Iterable[StoredFile], *, workers: int = ...) -> None:
        """Copy files into the repository; the second time it does nothing."""

    def read(self, path: str) -> bytes:
        """Content of a file that was kept; raises ``DamagedFileError`` if it is another one by now."""

    def is_kept(self, path: str, content: bytes) -> bool:
        """Whether a content is that of a file that was kept."""

    def damaged(self, paths: Collection[str]) -> list[str]:
        """Those of some files that are missing, or are not what was kept. See to it before the sink is changed by an undo."""


@dataclass(frozen=True, slots=True)
class SinkChange:
    """A roll-back of one sink, or its undo.

    :param sink: the sink, as the person names it.
    :param report: what the plan says of it; its ``rollback`` is what :meth:`SinkContent.verdict` has planned.
    :param rollback: the same ``rollback``.
    :param plan_id: the plan. What is written into the sink should carry it: a second run finds by it what the first one did.
    :param undo_id: what the undo of the plan should carry.
    :param checkpoint: URI of the checkpoint, for messages.
    :param undo_command: the command that undoes the plan, for messages.
    :param query_id: the query's id.
    :param app_id: the id by which the sink knows the query.
    :param batch_id: the batch that is rewound to.
    :param newest: the newest batch that had been logged.
    :param continued: the plan was begun before.
    :param record: what the audit record keeps of the roll-back; ``None`` where the plan was not ended.
    :param aside: keeps files before they are removed. :meth:`SinkKind.check` and :meth:`SinkKind.check_undo` only read it;
        ``None`` while the change is planned.
    :param guarding: the same place, in which each request sees first that this attempt may still write.
    :param check_lease: raises ``LeaseLostError`` where this attempt may not write any more. Call it before a write that does
        not go through a place of ``guarding``.
    :param workers: requests under way at once.
    :param table_id: the id of the table when the plan was made; empty where that is not known.
    :param is_half_undone: in :meth:`SinkKind.check_undo`: another sink was brought forward already, so that no rewind
        continues. A refusal then has to name what a person does to this sink by hand before the same undo is run again.
    """

    sink: Sink
    report: SinkReport
    rollback: SinkRollback
    plan_id: str
    undo_id: str
    checkpoint: str
    undo_command: str
    query_id: str
    app_id: str
    batch_id: int
    newest: int
    continued: bool = False
    record: Mapping[str, Any] | None = None
    aside: KeptFiles | None = None
    guarding: Callable[[Location], Location] = lambda place: place
    check_lease: Callable[[], None] = lambda: None
    workers: int = 1
    is_half_undone: bool = False
    table_id: str = ""

    def instead_of_undo(self, by_hand: str) -> str:
        """The hint of a sink that was written to since the roll-back.

        :param by_hand: what a person does to it, after which the same undo is carried out.
        """
        by_hand = f"{by_hand}, then run the same undo again"
        if self.is_half_undone:
            return by_hand
        if self.record:
            return f"rewind again instead; or {by_hand}"
        return f"run the same rewind again, which ends it and keeps what was written; or {by_hand}"

    @property
    def kept(self) -> KeptFiles:
        """What keeps files.

        :raises ValueError: the change is only planned, so there is none.
        """
        if self.aside is None:
            raise ValueError("files are kept only while a sink is rolled back or brought forward")
        return self.aside


class SinkContent(Protocol):
    """A sink that was recognised, as it was read. Subclass it: ``history`` has a default."""

    @property
    def history(self) -> TableHistory | None:
        """Its log, where it keeps query ids in a log of commits; ``None``, the default, for any other."""
        return None

    def untold(self, ids: QueryIds) -> str | None:
        """Why it may hold batches of a query that its ``history`` does not name; ``None``, the default: it names all.

        :param ids: the ids of the query.
        """
        return None

    def verdict(self, start: SinkStart) -> SinkReport:
        """Judge a start. Reads only.

        :return: ``kind`` is that of the :class:`SinkKind`. Without a verdict of ``SAFE`` it has a ``rollback``, or an
            ``obstacle`` that says why it cannot be rolled back.
        """
        raise NotImplementedError


class SinkKind(Protocol):
    """Sinks of one kind. Subclass it: what is not abstract here has a default.

    Every method may run again after the process was killed at any moment, and then does only what is left.
    """

    #: What a report calls it. A person can also name a sink ``<kind>:<name>``, where it has no directory.
    kind: str
    #: Whether :meth:`check` and :meth:`check_undo` refuse any sink but that of the plan, by an id or a commit in it. Otherwise it
    #: has to be named as the plan names it; another one would be taken for it.
    has_identity: bool = False

    def look(self, sink: Sink) -> SinkContent | None:
        """Read a sink of this kind; ``None`` for anything else. Reads only.

        :raises CkptError: it is of this kind and cannot be read.
        """
        raise NotImplementedError

    def check(self, change: SinkChange) -> None:
        """See that the sink can still be rolled back as planned. All sinks of a plan are checked before the first one is changed.

        :raises RefusedError: it cannot: somebody wrote into it, or something is missing that it takes.
        """

    def roll_back(self, change: SinkChange) -> int | None:
        """Take the batches after ``change.batch_id`` out of the sink, and out of its memory.

        :return: the version of the commit that did it, for the audit record; ``None`` if there is no such number.
        :raises CkptError: it was not done, or not as a whole; the checkpoint stays sealed where something was changed.
        """
        raise NotImplementedError

    def is_rolled_back(self, change: SinkChange) -> bool | None:
        """Whether the plan has changed the sink, also in part; ``None``: that cannot be determined, and the
        checkpoint stays sealed.
        """
        return None

    def undo_needs(self, change: SinkChange) -> tuple[list[str], list[str]]:
        """What an undo will need, and what forbids it; asked when the roll-back is planned."""
        return [], []

    def check_undo(self, change: SinkChange) -> None:
        """See that the sink can be brought forward: it was rolled back by the plan, wholly or in part, and not written to since.

        :raises RefusedError: it cannot.
        """

    def undo(self, change: SinkChange) -> int | None:
        """Make the sink what it was before :meth:`roll_back`, its memory too; nothing where that did nothing yet.

        :return: the version of the commit that did it, or ``None``.
        """
        raise NotImplementedError

    def is_undone(self, change: SinkChange) -> bool | None:
        """Whether the undo has changed the sink, also in part; ``None``: that cannot be determined."""
        return None


def installed_kinds() -> tuple[SinkKind, ...]:
    """All kinds, those of other packages first.

    :raises RefusedError: one of another package cannot be loaded, or has a name that is taken.
    """
    own = _own_kinds()
    taken = {*_TAKEN, *(kind.kind for kind in own)}
    others: list[SinkKind] = []
    for entry in entry_points_of(GROUP):
        try:
            made: SinkKind = entry.load()()
            name = made.kind
        except Exception as e:
            raise RefusedError(
                f"the sink {entry.name!r} cannot be loaded: {type(e).__name__}: {e}",
                hint=f"repair or remove the package that names it in its entry points ({GROUP})",
            ) from e
        if name in taken:
            raise RefusedError(
                f"the sink {entry.name!r} of another package has the kind {name!r}, which there is already",
                hint="give it a kind of its own, or remove the package",
            )
        taken.add(name)
        others.append(made)
    return (*others, *own)


def _own_kinds() -> tuple[SinkKind, ...]:
    from airflow_ckpt_provider.sinks.delta_sink import DeltaSink
    from airflow_ckpt_provider.sinks.described_sink import DescribedSink
    from airflow_ckpt_provider.sinks.file_sink import FileSink
    from airflow_ckpt_provider.sinks.iceberg_sink import IcebergSink
    from airflow_ckpt_provider.sinks.named_tables import SPARK, UNITY

    return (DeltaSink(), DescribedSink(UNITY), DescribedSink(SPARK), IcebergSink(), FileSink())


def kind_named(name: str) -> SinkKind:
    """The kind of a sink that a plan rolls back.

    :raises RefusedError: the package that has it is not installed.
    """
    found = next((kind for kind in installed_kinds() if kind.kind == name), None)
    if found is None:
        raise RefusedError(
            f"the plan rolls back a sink of the kind {name!r}, which is not installed here",
            hint=f"install the package that has it (entry points {GROUP}), then run the same command again",
        )
    return found


@dataclass(frozen=True, slots=True)
class Recognised:
    """A sink that a kind has recognised.

    :param kind: the kind.
    :param content: what it read.
    """

    kind: SinkKind
    content: SinkContent

    def verdict(self, start: SinkStart) -> SinkReport:
        """Judge a start.

        :raises RefusedError: a kind of another package failed, or speaks for another one.
        """
        report = asked(self.kind, lambda: self.content.verdict(start), expect=is_report)
        if report.kind != self.kind.kind:
            raise RefusedError(
                f"the sink {self.kind.kind!r} reports the kind {report.kind!r}",
                hint="this is a defect of the package that has this kind: report it there",
            )
        return report


def recognised(sink: Sink) -> Recognised | None:
    """What the first kind reads that recognises a sink; ``None`` where none does.

    :raises RefusedError: a kind of another package failed.
    """
    for kind in installed_kinds():
        content = asked(kind, lambda kind=kind: kind.look(sink))  # type: ignore[misc]
        if content is not None:
            return Recognised(kind, content)
    return None


def _is_own(kind: SinkKind) -> bool:
    return kind.__class__.__module__.startswith(f"{__package__}.")


def asked(
    kind: SinkKind,
    ask: Callable[[], Answer],
    *,
    expect: Callable[[Any], None] | None = None,
    error: type[CkptError] = RefusedError,
) -> Answer:
    """Ask a kind; a failure of another package becomes an error that names it.

    :param kind: the kind.
    :param ask: asks it.
    :param expect: raises where the answer is not what was asked for; see :mod:`airflow_ckpt_provider.sinks.answers`.
    :param error: the error for anything that is neither a ``CkptError`` nor an ``OSError``.
    :raises StorageError: another package raised an ``OSError``, as where a connection fails.
    """
    try:
        answer = ask()
        if expect is not None:
            expect(answer)
        return answer
    except CkptError:
        raise
    except Exception as e:
        if _is_own(kind):
            raise
        if isinstance(e, OSError):
            raise StorageError(
                f"the sink {kind.kind!r} of another package could not be reached: {type(e).__name__}: {e}",
                hint="see that it can be reached from here, then run the same command again",
            ) from e
        raise error(
            f"the sink {kind.kind!r} of another package failed: {type(e).__name__}: {e}",
            hint="this is a defect of the package that has this kind: report it there",
        ) from e
