"""What the operators on the sink of a query have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_ckpt_provider.operators.fields import text
from airflow_ckpt_provider.operators.masking import MaskingOperator
from airflow_ckpt_provider.operators.spark_restore import restore_by_connection
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.sinks.sink import Sink


class SinkOperator(MaskingOperator):
    """Base of the operators that ask the sink of a query.

    :param sink: what the query writes to: the directory of a Delta table, an Iceberg table or a file sink,
        ``iceberg:CATALOG.NAMESPACE.TABLE``, or ``foreachBatch``, ``foreach``, ``kafka``. ``None``: not known, and not asked.
        (templated)
    :param sink_conn_id: Airflow connection to read the sink's log; ``None``: the environment's own credentials. (templated)
    :param txn_app_id: ``txnAppId`` with which ``foreachBatch`` writes to the table; ``None``: the query id. (templated)
    :param sink_options: settings of the table's store as ``deltalake`` names them, or of an Iceberg catalog as ``pyiceberg``
        names them. (templated)
    """

    template_fields: Sequence[str] = ("sink", "sink_conn_id", "txn_app_id", "sink_options")
    spark_conn_id: str | None = None
    spark_settings: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        sink: str | None = None,
        sink_conn_id: str | None = None,
        txn_app_id: str | None = None,
        sink_options: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.txn_app_id = txn_app_id
        self.sink_options = sink_options

    def _sink(self) -> Sink:
        conn_id = text(self.spark_conn_id)
        return Sink.named(
            text(self.sink),
            lambda uri: open_place(uri, text(self.sink_conn_id)),
            app_id=text(self.txn_app_id),
            storage_options=self.sink_options or {},
            by_spark=restore_by_connection(conn_id, **(self.spark_settings or {})) if conn_id else None,
        )


class RollBackOperator(SinkOperator):
    """Base of the operators that roll a sink back, or bring it forward again.

    Parameters of the sink: see :class:`~.sink_operator.SinkOperator`.

    :param spark_conn_id: Airflow connection of type ``spark``, by which a table with features that ``deltalake`` cannot restore
        is rolled back, under the seal; the query gets a new id then. ``None``: such a table is refused. (templated)
    :param spark_settings: what ``SparkSubmitHook`` is given: ``packages``, ``conf``, …; and ``uri``, the table as Spark names it
        where that differs. (templated)
    """

    template_fields: Sequence[str] = (*SinkOperator.template_fields, "spark_conn_id", "spark_settings")

    def __init__(
        self, *, spark_conn_id: str | None = None, spark_settings: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.spark_conn_id = spark_conn_id
        self.spark_settings = spark_settings
