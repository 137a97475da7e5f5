"""The sink of a query as a person names it, and what it says to a start after a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError
from airflow_ckpt_provider.guards import delta_client
from airflow_ckpt_provider.guards.delta_log import is_delta_table, read_delta_log
from airflow_ckpt_provider.guards.iceberg_client import metadata_by_name
from airflow_ckpt_provider.guards.iceberg_metadata import SCHEME, is_iceberg_table
from airflow_ckpt_provider.sinks.data_files import missing_for_version
from airflow_ckpt_provider.sinks.delta import equal_versions, inspect_delta
from airflow_ckpt_provider.sinks.delta_history import TableHistory, features_of, read_table_history
from airflow_ckpt_provider.sinks.delta_rollback import RestoreBySpark
from airflow_ckpt_provider.sinks.file_sink import inspect_file_sink, is_file_sink
from airflow_ckpt_provider.sinks.iceberg_history import history_of_metadata, read_iceberg_history
from airflow_ckpt_provider.sinks.other_tables import inspect_other_table, other_table
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
    :param storage_options: settings of the table's store as ``deltalake`` names them; of an Iceberg table by its name the
        properties of its catalog as ``pyiceberg`` names them.
    :param table: ``CATALOG.NAMESPACE.TABLE`` of an Iceberg table that is given by its name; else empty.
    :param by_spark: restores a table that ``deltalake`` cannot restore; ``None``: there is no Spark to do it.
    """

    place: Location | None = None
    kind: str = "unknown"
    app_id: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    by_spark: RestoreBySpark | None = None
    table: str = ""

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

        :param text: a path or URI; ``iceberg:CATALOG.NAMESPACE.TABLE``; or one of ``foreachBatch``, ``foreach``, ``kafka``.
            Empty or ``None``: unknown.
        :param open_place: opens a place.
        """
        if not text:
            return cls()
        if text in WITHOUT_MEMORY:
            return cls(kind=text)
        if text.startswith(SCHEME):
            return cls(None, "iceberg", storage_options=storage_options or {}, table=text.removeprefix(SCHEME))
        return cls(open_place(text), "", app_id or None, storage_options or {}, by_spark)

    @property
    def name(self) -> str:
        """How a request names it."""
        if self.table:
            return f"{SCHEME}{self.table}"
        return self.place.uri if self.place else "" if self.kind == "unknown" else self.kind


def history_of(sink: Sink) -> TableHistory | None:
    """The log of the table that a sink is; ``None`` if it is neither a Delta nor an Iceberg table.

    :raises MissingExtraError: an Iceberg table is given by its name, and pyiceberg is not installed.
    """
    if sink.table:
        metadata = metadata_by_name(sink.table, sink.storage_options)
        return history_of_metadata(metadata, sink.name, path=sink.name)
    if sink.place is None:
        return None
    if is_delta_table(sink.place):
        return described(sink.place, read_table_history(sink.place))
    return read_iceberg_history(sink.place) if is_iceberg_table(sink.place) else None


def described(place: Location, history: TableHistory) -> TableHistory:
    """A history whose commits do not say the table's protocol and properties, with those of its log checkpoint.

    Unchanged where they say it, and where the checkpoint cannot be read: see
    :attr:`~airflow_ckpt_provider.sinks.delta_history.TableHistory.is_described`.
    """
    if history.is_described:
        return history
    try:
        state = delta_client.read_state(read_delta_log(place), history.newest)
    except (MissingExtraError, delta_client.UnreadableTableError) as e:
        log.info("%s", e)
        return history
    features = history.features | features_of({"configuration": state.configuration, "schemaString": state.schema}, {})
    return replace(history, configuration=state.configuration, features=features | state.features, is_described=True)


def beyond_the_log(sink: Sink, history: TableHistory, ids: QueryIds) -> dict[str, int | None]:
    """What the table remembers of the ids that its log does not name any more: id -> newest batch, or ``None``.

    Empty where the log is whole, and where ``deltalake``, which reads log checkpoints, is not installed.
    """
    found: dict[str, int | None] = {}
    if sink.place is None or history.format != "delta" or history.is_whole:
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
    if history:
        remembered = beyond_the_log(sink, history, ids)
        report = inspect_delta(history, ids, batch_id, remembered=remembered, unwritten=unwritten)
        return _with_whole_version(place, history, report) if place and history.format == "delta" else report
    if place is None:
        if sink.kind not in (*WITHOUT_MEMORY, "unknown"):
            raise RefusedError(
                f"{sink.kind!r} is neither a place nor one of {', '.join(WITHOUT_MEMORY)}", hint="name the sink: --sink"
            )
        return without_memory(sink.kind, batch_id, newest)
    if is_file_sink(place):
        return inspect_file_sink(place, batch_id, unwritten=unwritten)
    if kind := other_table(place):
        return inspect_other_table(place, kind, batch_id, newest)
    raise no_sink(place)


def no_sink(place: Location) -> RefusedError:
    """The error for a place that is no sink."""
    return RefusedError(
        f"{place} is neither a Delta table nor the output of a file sink nor an Iceberg table (no _delta_log/, no "
        "_spark_metadata/, no metadata/*.metadata.json)",
        hint=f"give the sink's directory, an Iceberg table by its name (iceberg:CATALOG.NAMESPACE.TABLE), or one of "
        f"{', '.join(WITHOUT_MEMORY)} where it has none",
    )


def _with_whole_version(place: Location, history: TableHistory, report: SinkReport) -> SinkReport:
    """Choose, among the versions with the same rows, one whose files are all there: ``VACUUM`` deletes what left the table."""
    rollback = report.rollback
    if rollback is None or rollback.to_version is None:
        return report
    gone: dict[int, str] = {}
    for version in equal_versions(history, rollback.to_version):
        missing = missing_for_version(place, history, version)
        if missing is None:
            return replace(report, rollback=replace(rollback, to_version=version))
        gone[version] = missing
    version, path = next(iter(gone.items()))
    obstacle = (
        f"version {version} needs the data file {path}, which is gone (VACUUM): no version with these rows is whole"
    )
    return replace(report, rollback=None, obstacle=obstacle)
