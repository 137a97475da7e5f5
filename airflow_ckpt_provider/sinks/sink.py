"""The sink of a query as a person names it, and what it says to a start after a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.iceberg_metadata import SCHEME
from airflow_ckpt_provider.sinks.delta_rollback import RestoreBySpark
from airflow_ckpt_provider.sinks.earlier_run import NONE_PLANNED
from airflow_ckpt_provider.sinks.named_tables import TableEngine, engine_for, engine_named, place_of, prefixed
from airflow_ckpt_provider.sinks.other_tables import inspect_other_table, other_table
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import WITHOUT_MEMORY, SinkReport, without_memory
from airflow_ckpt_provider.sinks.table_history import TableHistory
from airflow_ckpt_provider.storage.location import Location, plain_uri

if TYPE_CHECKING:
    from airflow_ckpt_provider.sinks.kinds import Recognised


@dataclass(frozen=True, slots=True)
class Sink:
    """The sink of a query, as the person names it.

    :param place: the table or directory it writes to, or ``None``.
    :param kind: ``foreachBatch``, ``foreach`` or ``kafka`` for a sink without a place; the kind of one that is given by its name,
        such as ``iceberg``; ``unknown`` where nothing is known.
    :param app_id: the ``txnAppId`` with which ``foreachBatch`` writes to a Delta table; by default the query id.
    :param storage_options: settings of the table's store as ``deltalake`` names them; of an Iceberg table by its name the
        properties of its catalog as ``pyiceberg`` names them.
    :param table: name of a sink that is given by its kind and name, such as ``CATALOG.NAMESPACE.TABLE`` of an Iceberg table;
        else empty.
    :param by_spark: restores a table that ``deltalake`` cannot restore; ``None``: there is no Spark to do it.
    :param engines: know tables by their names.
    :param resolved: what became of a name: where the table lies, or why its engine is asked; else empty.
    """

    place: Location | None = None
    kind: str = "unknown"
    app_id: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    by_spark: RestoreBySpark | None = None
    table: str = ""
    engines: tuple[TableEngine, ...] = ()
    resolved: str = ""

    @classmethod
    def named(
        cls,
        text: str | None,
        open_place: Callable[[str], Location],
        *,
        app_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        by_spark: RestoreBySpark | None = None,
        engines: Sequence[TableEngine] = (),
    ) -> Sink:
        """The sink that a person names: a place, a table by its name, or the kind of one without a place.

        :param text: a path or URI; ``CATALOG.SCHEMA.TABLE``, with ``unity:``, ``spark:`` or ``iceberg:`` in front where several
            may know it; ``KIND:NAME`` of a kind of another package; or one of ``foreachBatch``, ``foreach``, ``kafka``. Empty
            or ``None``: unknown.
        :param open_place: opens a place.
        :param engines: know tables by their names.
        :raises RefusedError: it looks like a name, and is none of a Delta table that a query writes to.
        """
        if not text:
            return cls()
        if text in WITHOUT_MEMORY:
            return cls(kind=text)
        given = text
        text = engine_for(given, engines, lambda: is_there(open_place(given))) or given
        if text.startswith(SCHEME):  # it compares query ids alone
            return cls(None, "iceberg", storage_options=storage_options or {}, table=text.removeprefix(SCHEME))
        if by_name := prefixed(text):
            found = cls(None, by_name[0], app_id or None, storage_options or {}, by_spark, by_name[1], tuple(engines))
            return _resolved(found, open_place)
        kind, _, table = text.partition(":")
        if table and not table.startswith("/") and kind in _kinds():
            return cls(None, kind, app_id or None, storage_options or {}, by_spark, table)
        return cls(open_place(text), "", app_id or None, storage_options or {}, by_spark, engines=tuple(engines))

    @property
    def name(self) -> str:
        """How a request names it."""
        if self.table:
            return f"{self.kind}:{self.table}"
        return self.place.uri if self.place else "" if self.kind == "unknown" else self.kind


def _resolved(sink: Sink, open_place: Callable[[str], Location]) -> Sink:
    """A table by its name: at its location where its log can be read there, else as its engine describes it."""
    engine = engine_named(sink.kind, sink.engines)
    found = engine.resolve(sink.table)
    place, why = place_of(found, open_place)
    if place is not None:
        return replace(
            sink, place=place, kind="", table="", resolved=f"{found.name} lies at {place.uri} ({engine.words})"
        )
    how = f"{found.name}: {why}. It is judged by DESCRIBE HISTORY, and rolled back by RESTORE TABLE of {engine.words}"
    return replace(sink, table=found.name, resolved=how)


def is_there(place: Location) -> bool:
    """Whether a place has any files."""
    return next(iter(place.walk()), None) is not None


def _kinds() -> frozenset[str]:
    from airflow_ckpt_provider.sinks.kinds import installed_kinds

    return frozenset(kind.kind for kind in installed_kinds())


def named_sinks(sink: Sink | Sequence[Sink] | None) -> tuple[Sink, ...]:
    """The sinks of a query, at least one; it is unknown if there is none named.

    :param sink: one, several, or none.
    :raises RefusedError: one is named twice, or one of several is not named.
    """
    sinks = (sink,) if isinstance(sink, Sink) else tuple(sink or ())
    if len(sinks) < 2:
        return sinks or (Sink(),)
    if not all(each.name for each in sinks):
        raise RefusedError("one of several sinks has no name", hint="name each of them: --sink A --sink B")
    names = [plain_uri(each.name) for each in sinks]
    twice = next((each.name for each in sinks if names.count(plain_uri(each.name)) > 1), None)
    if twice:
        raise RefusedError(f"the sink {twice} is named twice", hint="name each sink of the query once")
    return sinks


def look_at(sink: Sink) -> Recognised | None:
    """Read a sink; ``None`` where no kind recognises it.

    :raises MissingExtraError: an Iceberg table is given by its name, and pyiceberg is not installed.
    """
    from airflow_ckpt_provider.sinks.kinds import recognised

    return recognised(sink) if sink.place is not None or sink.table else None


def history_of(sink: Sink) -> TableHistory | None:
    """The log of the table that a sink is; ``None`` if it keeps none.

    :raises MissingExtraError: an Iceberg table is given by its name, and pyiceberg is not installed.
    """
    found = look_at(sink)
    return found.content.history if found else None


def judge(
    sink: Sink,
    found: Recognised | None,
    ids: QueryIds,
    batch_id: int,
    newest: int,
    *,
    unwritten: frozenset[int] = frozenset(),
    planned: Mapping[int, datetime] = NONE_PLANNED,
    complete_at: datetime | None = None,
) -> SinkReport:
    """Judge a start of a query after a batch, by its sink.

    :param sink: the sink.
    :param found: what :func:`look_at` read of it.
    :param ids: ids by which the sink may know the query.
    :param batch_id: the batch after which it will start.
    :param newest: the newest batch that it may have written.
    :param unwritten: batches that write nothing into the sink, such as an offline repartition.
    :param planned: batch -> when the checkpoint says that it was planned, in UTC.
    :param complete_at: when the backup that the checkpoint comes from had all of its batches, in UTC.
    :raises RefusedError: the place that is named is no sink.
    """
    from airflow_ckpt_provider.sinks.kinds import SinkStart

    if found:
        return found.verdict(SinkStart(ids, batch_id, newest, unwritten, planned, complete_at))
    if sink.place is None:
        check_word(sink)
        return without_memory(sink.kind, batch_id, newest)
    if kind := other_table(sink.place):
        return inspect_other_table(sink.place, kind, batch_id, newest)
    raise no_sink(sink.place)


def inspect_sink(
    sink: Sink, ids: QueryIds, batch_id: int, newest: int, *, unwritten: frozenset[int] = frozenset()
) -> SinkReport:
    """Read a sink and judge a start, as :func:`judge` does."""
    return judge(sink, look_at(sink), ids, batch_id, newest, unwritten=unwritten)


def check_word(sink: Sink) -> None:
    """See that a sink without a place is named by a word that there is.

    :raises RefusedError: it is not.
    """
    if sink.kind not in (*WITHOUT_MEMORY, "unknown"):
        raise RefusedError(
            f"{sink.name!r} is neither a place nor one of {', '.join(WITHOUT_MEMORY)}", hint="name the sink: --sink"
        )


def no_sink(place: Location) -> RefusedError:
    """The error for a place that is no sink."""
    return RefusedError(
        f"{place} is neither a Delta table nor the output of a file sink nor an Iceberg table (no _delta_log/, no "
        "_spark_metadata/, no metadata/*.metadata.json)",
        hint=f"give the sink's directory, a table by its name (iceberg:CATALOG.NAMESPACE.TABLE, unity:…, spark:…), or one of "
        f"{', '.join(WITHOUT_MEMORY)} where it has none",
    )
