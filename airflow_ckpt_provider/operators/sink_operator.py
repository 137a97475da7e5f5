"""What the operators on the sink of a query have in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.fields import for_each, mapping, text, text_settings, texts
from airflow_ckpt_provider.operators.submitting import SubmittingOperator

if TYPE_CHECKING:
    from airflow_ckpt_provider.sinks.named_tables import TableEngine
    from airflow_ckpt_provider.sinks.sink import Sink
    from airflow_ckpt_provider.sinks.unity_catalog import UnityCatalog
    from airflow_ckpt_provider.storage.location import Location


class SinkOperator(SubmittingOperator):
    """Base of the operators that ask the sink of a query.

    :param sink: what the query writes to: the directory of a Delta table, an Iceberg table or a file sink, a table by its name
        (``CATALOG.SCHEMA.TABLE``, or with ``unity:``, ``iceberg:`` or ``spark:`` in front), or ``foreachBatch``, ``foreach``,
        ``kafka``; a list where it writes to several. ``None``: not known, and not asked. (templated)
    :param sink_conn_id: Airflow connection to read the sink's log; ``None``: the environment's own credentials. Of several sinks
        one for all, or a list with one for each; so are the next two. (templated)
    :param txn_app_id: ``txnAppId`` with which ``foreachBatch`` writes to the table; ``None``: the query id. (templated)
    :param sink_options: settings of the table's store as ``deltalake`` names them, or of an Iceberg catalog as ``pyiceberg``
        names them. (templated)
    :param databricks_conn_id: Airflow connection of type ``databricks``, to look tables of Unity Catalog up; ``None``:
        they are not. (templated)
    :param warehouse_id: SQL warehouse that describes and restores a table of Unity Catalog whose log cannot be read from here.
        (templated)
    """

    template_fields: Sequence[str] = (
        "sink",
        "sink_conn_id",
        "txn_app_id",
        "sink_options",
        "databricks_conn_id",
        "warehouse_id",
    )

    def __init__(
        self,
        *,
        sink: str | Sequence[str] | None = None,
        sink_conn_id: str | Sequence[str | None] | None = None,
        txn_app_id: str | Sequence[str | None] | None = None,
        sink_options: dict[str, str] | Sequence[dict[str, str]] | None = None,
        databricks_conn_id: str | None = None,
        warehouse_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sink = sink
        self.sink_conn_id = sink_conn_id
        self.txn_app_id = txn_app_id
        self.sink_options = sink_options
        self.databricks_conn_id = databricks_conn_id
        self.warehouse_id = warehouse_id

    def _sinks(self) -> tuple[Sink, ...]:
        from airflow_ckpt_provider.operators.spark_restore import restore_by_connection
        from airflow_ckpt_provider.sinks.sink import Sink, named_sinks

        (spark, settings_of_spark), names = self._spark_of_sinks(), texts(self.sink, "sink") or [""]
        conn_ids = for_each(self.sink_conn_id, len(names), "sink_conn_id")
        app_ids = for_each(self.txn_app_id, len(names), "txn_app_id")
        options = for_each(self.sink_options, len(names), "sink_options")
        by_spark = restore_by_connection(spark, under_way=self._submitted, **settings_of_spark) if spark else None
        engines = self._engines(spark, settings_of_spark)
        return named_sinks(
            [
                Sink.named(
                    name,
                    partial(self._open_sink, conn_id=text(conn_id)),
                    app_id=text(app_id),
                    storage_options=text_settings(given, "sink_options"),
                    by_spark=by_spark,
                    engines=engines,
                )
                for name, conn_id, app_id, given in zip(names, conn_ids, app_ids, options, strict=True)
            ]
        )

    def _spark_of_sinks(self) -> tuple[str | None, dict[str, Any]]:
        """The connection by which Spark rolls sinks back, and what else it is given; ``None``: it is not asked."""
        return None, {}

    def _engines(self, spark: str | None, settings_of_spark: dict[str, Any]) -> tuple[TableEngine, ...]:
        """What knows tables by their names; nothing is connected to yet."""
        from airflow_ckpt_provider.operators.spark_restore import spark_engines

        found: list[TableEngine] = []
        if unity := text(self.databricks_conn_id):
            found.append(_unity_catalog(unity, text(self.warehouse_id), caller=type(self).__name__))
        return (*found, *spark_engines(spark, settings_of_spark, self._submitted))

    def _open_sink(self, uri: str, *, conn_id: str | None) -> Location:
        from airflow_ckpt_provider.places import open_place

        return self.opened(open_place(uri, conn_id))

    def _sink(self) -> Sink:
        """The only sink.

        :raises RefusedError: several are given.
        """
        sinks = self._sinks()
        if len(sinks) > 1:
            raise RefusedError(f"sink has {len(sinks)} entries, and this task takes one", hint="give one sink")
        return sinks[0]


def _unity_catalog(conn_id: str, warehouse: str | None, *, caller: str) -> UnityCatalog:
    from airflow_ckpt_provider.lakeflow.queries import warehouse_queries
    from airflow_ckpt_provider.operators.databricks_workspace import open_workspace
    from airflow_ckpt_provider.sinks.unity_catalog import UnityCatalog

    workspace = open_workspace(conn_id, caller=caller)
    if warehouse is None:
        return UnityCatalog(workspace.find_table)
    return UnityCatalog(
        workspace.find_table,
        warehouse_queries(workspace, warehouse),
        warehouse_queries(workspace, warehouse, once=True),
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

    def _spark_of_sinks(self) -> tuple[str | None, dict[str, Any]]:
        return text(self.spark_conn_id), mapping(self.spark_settings, "spark_settings")
