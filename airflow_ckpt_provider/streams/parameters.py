"""What a stream says of each parameter of operators, sensors and verbs: the only place that knows their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ckpt_provider.source_settings import SourceSettings
from airflow_ckpt_provider.streams.stream import Source, Stream
from airflow_ckpt_provider.units import exact_duration

#: A place -> the parameters that belong to it: whoever gives another place does not get these of the stream. That the application
#: of the stream has ended says nothing of a query in another checkpoint; progress lines name their query. Nor does the rewind of
#: a copy of the checkpoint concern the tables of the stream.
COMPANIONS: Mapping[str, tuple[str, ...]] = {
    "checkpoint": ("checkpoint_conn_id", "spark_api_url", "sink", "sink_conn_id", "txn_app_id", "sink_options"),
    "target": ("target_conn_id", "spark_api_url"),
    "progress_log": ("progress_log_conn_id",),
    "error_log": ("progress_log_conn_id",),
    "repository": ("repository_conn_id",),
    "sink": ("sink_conn_id", "txn_app_id", "sink_options"),
    "tables": ("tables_conn_id",),
    "delta_tables": ("delta_conn_id",),
}


def parameters_of(stream: Stream) -> dict[str, Any]:
    """Return what a stream says, by the name of the parameter; what it does not say is left out.

    :param stream: the stream.
    """
    storage = stream.storage_conn_id
    driver, watch = stream.driver, stream.watch
    logs = {
        "progress_log": driver.progress_log,
        "error_log": driver.log,
        "progress_log_conn_id": (driver.conn_id or storage) if driver.progress_log or driver.log else None,
    }
    delta, files = stream.sources.get("delta"), stream.sources.get("file")
    tables = _tables(delta) if delta else {}
    tables_conn_id = (delta.conn_id or storage) if delta else None
    threshold = watch.min_time_to_loss or stream.max_downtime
    found = {
        "checkpoint": stream.checkpoint,
        "checkpoint_conn_id": stream.checkpoint_connection,
        "repository": stream.repository,
        "repository_conn_id": stream.repository_connection,
        "name": stream.repository_name,
        **_sinks(stream),
        **logs,
        "driver_logs": _given(logs),
        "spark_api_url": driver.spark_api_url,
        "kafka_config_id": stream.kafka,
        "spark_conn_id": stream.spark_conn_id,
        "databricks_conn_id": stream.databricks_conn_id,
        "tables": tables,
        "tables_conn_id": tables_conn_id,
        "delta_tables": tables,
        "delta_conn_id": tables_conn_id,
        "input_conn_id": (files.conn_id or storage) if files else None,
        "options": connected_guard_options(stream),
        "isolation_level": (kafka.options if (kafka := stream.sources.get("kafka")) else {}).get("isolation_level"),
        **{f"{kind}_reader_options": _reader_options(stream, kind) for kind in ("kafka", "delta", "file")},
        "max_downtime": stream.max_downtime and exact_duration(stream.max_downtime),
        "threshold": threshold and exact_duration(threshold),
        "keep": dict(stream.retention),
        "read_data": stream.backup.verify,
        "restorable_batches": stream.backup.restorable_batches,
        "immutable_for": stream.backup.immutable_for and exact_duration(stream.backup.immutable_for),
        "create": stream.backup.create,
        "workers": stream.backup.workers,
    }
    return _given(found)


def guard_options(stream: Stream) -> dict[str, dict[str, Any]]:
    """Return what the guards need to know of the sources of a stream, by kind: each declared kind, also one with no options.

    :param stream: the stream.
    """
    return {kind: _given({"tables": _tables(source), **source.options}) for kind, source in stream.sources.items()}


def _tables(source: Source) -> dict[str, str]:
    """The table of each source. Declarations of before say `table.0` for source 0."""
    return {name.removeprefix("table."): table for name, table in source.tables.items()}


def connected_guard_options(stream: Stream) -> dict[str, dict[str, Any]]:
    """Return the same with the Airflow connection by which each kind of source is reached: ``conn_id``.

    :param stream: the stream.
    """
    found = guard_options(stream)
    connections = {
        kind: source.conn_id or (stream.storage_conn_id if source.tables or kind == "file" else None)
        for kind, source in stream.sources.items()
    }
    for kind, conn_id in {**connections, "kafka": stream.kafka}.items():
        if conn_id:
            found[kind] = {"conn_id": conn_id, **found.get(kind, {})}
    return found


def _reader_options(stream: Stream, kind: str) -> dict[str, dict[str, str]]:
    """What the stream says of the readers of one kind of source, by source."""
    source = stream.sources.get(kind)
    return SourceSettings.any(kind, source.options).reader_options() if source else {}


def _sinks(stream: Stream) -> dict[str, Any]:
    if not stream.sinks:
        return {}
    stores = [sink.conn_id or (stream.storage_conn_id if "/" in sink.sink else None) for sink in stream.sinks]
    return {
        "sink": _one_or_all([sink.sink for sink in stream.sinks]),
        "sink_conn_id": _one_or_all(stores),
        "txn_app_id": _one_or_all([sink.txn_app_id for sink in stream.sinks]),
        "sink_options": _one_or_all([dict(sink.options) for sink in stream.sinks]),
    }


def _one_or_all(values: Sequence[Any]) -> Any:
    if not any(values):
        return None
    return values[0] if len(values) == 1 else list(values)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", {}, [], ())}
