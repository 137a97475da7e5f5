"""The sink of a query as a person names it, and what it says to a start after a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError
from airflow_ckpt_provider.guards import delta_client
from airflow_ckpt_provider.guards.delta_log import is_delta_table
from airflow_ckpt_provider.sinks.delta import inspect_delta
from airflow_ckpt_provider.sinks.delta_history import TableHistory, read_table_history
from airflow_ckpt_provider.sinks.delta_rollback import RestoreBySpark
from airflow_ckpt_provider.sinks.file_sink import inspect_file_sink, is_file_sink
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import WITHOUT_MEMORY, SinkReport, without_memory
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sink:
    """The sink of a query, as the person names it.

    :param place: the table or directory it writes to, or ``None``.
    :param kind: ``foreachBatch``, ``foreach`` or ``kafka`` for a sink without a place; ``unknown`` where nothing is known.
    :param app_id: the ``txnAppId`` with which ``foreachBatch`` writes to a Delta table; by default the query id.
    :param storage_options: settings of the table's store as ``deltalake`` names them.
    :param by_spark: restores a table that ``deltalake`` cannot restore; ``None``: there is no Spark to do it.
    """

    place: Location | None = None
    kind: str = "unknown"
    app_id: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    by_spark: RestoreBySpark | None = None

    @classmethod
    def named(
        cls,
        text: str | None,
        open_place: Callable[[str], Location],
        *,
        app_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        by_spark: RestoreBySpark | None = None,
    ) -> Sink:
        """The sink that a person names: a place, or the kind of one without a place.

        :param text: a path or URI, or one of ``foreachBatch``, ``foreach``, ``kafka``; empty or ``None``: unknown.
        :param open_place: opens a place.
        """
        if not text:
            return cls()
        if text in WITHOUT_MEMORY:
            return cls(kind=text)
        return cls(open_place(text), "", app_id or None, storage_options or {}, by_spark)

    @property
    def name(self) -> str:
        """How a request names it."""
        return self.place.uri if self.place else "" if self.kind == "unknown" else self.kind


def history_of(sink: Sink) -> TableHistory | None:
    """The log of the table that a sink is; ``None`` where it is no Delta table."""
    return read_table_history(sink.place) if sink.place and is_delta_table(sink.place) else None


def beyond_the_log(sink: Sink, history: TableHistory, ids: QueryIds) -> dict[str, int | None]:
    """What the table remembers of the ids that its log does not name any more: id -> newest batch, or ``None``.

    Empty where the log is whole, and where ``deltalake``, which reads log checkpoints, is not installed.
    """
    found: dict[str, int | None] = {}
    if sink.place is None or history.is_whole:
        return found
    for id_ in ids.all:
        if history.remembered(id_) is None:
            try:
                found[id_] = delta_client.remembered(sink.place, id_, storage_options=sink.storage_options)
            except MissingExtraError as e:
                log.info("%s", e)
    return found


def inspect_sink(
    sink: Sink,
    history: TableHistory | None,
    ids: QueryIds,
    batch_id: int,
    newest: int,
    *,
    unwritten: frozenset[int] = frozenset(),
) -> SinkReport:
    """Judge a start of a query after a batch, by its sink.

    :param sink: the sink.
    :param history: the log of the table, where the sink is a Delta table; see :func:`history_of`.
    :param ids: ids by which the sink may know the query.
    :param batch_id: the batch after which it will start.
    :param newest: the newest batch that it may have written.
    :param unwritten: batches that write nothing into the sink, such as an offline repartition.
    :raises RefusedError: the place that is named is no sink.
    """
    place = sink.place
    if place is None:
        if sink.kind not in (*WITHOUT_MEMORY, "unknown"):
            raise RefusedError(
                f"{sink.kind!r} is neither a place nor one of {', '.join(WITHOUT_MEMORY)}", hint="name the sink: --sink"
            )
        return without_memory(sink.kind, batch_id, newest)
    if history:
        remembered = beyond_the_log(sink, history, ids)
        return inspect_delta(history, ids, batch_id, remembered=remembered, unwritten=unwritten)
    if is_file_sink(place):
        return inspect_file_sink(place, batch_id, unwritten=unwritten)
    raise RefusedError(
        f"{place} is neither a Delta table nor the output of a file sink (no _delta_log/, no _spark_metadata/)",
        hint=f"give the sink's directory, or one of {', '.join(WITHOUT_MEMORY)} where it has none",
    )
