"""What the operators on a checkpoint and its sink have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.change.set_aside import default_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.fields import required, text
from airflow_ckpt_provider.operators.spark_restore import restore_by_connection
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.sinks.sink import Sink

if TYPE_CHECKING:
    from airflow_ckpt_provider.storage.location import Location


class SinkOperator(BaseOperator):
    """Base of the operators that change a checkpoint together with its sink: the places, and the sink."""

    checkpoint: str
    checkpoint_conn_id: str | None
    repository: str | None
    repository_conn_id: str | None
    sink: str | None
    sink_conn_id: str | None
    txn_app_id: str | None
    sink_options: dict[str, str] | None
    spark_conn_id: str | None = None
    spark_settings: dict[str, Any] | None = None

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint.at(open_place(required(self.checkpoint, "checkpoint"), text(self.checkpoint_conn_id)))

    def _repository(self, checkpoint: Checkpoint) -> Location:
        given = text(self.repository)
        if given:
            return open_place(given, text(self.repository_conn_id))
        return default_repository(checkpoint.location)

    def _sink(self) -> Sink:
        conn_id = text(self.spark_conn_id)
        return Sink.named(
            text(self.sink),
            lambda uri: open_place(uri, text(self.sink_conn_id)),
            app_id=text(self.txn_app_id),
            storage_options=self.sink_options or {},
            by_spark=restore_by_connection(conn_id, **(self.spark_settings or {})) if conn_id else None,
        )
