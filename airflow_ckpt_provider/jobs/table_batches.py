"""What each batch of a query added to the Delta table that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.jobs.trial import as_text
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.storage.opening import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class TableBatches:
    """A Delta table by the batches of one query.

    :param spark: a session.
    :param uri: the table, by a name that Spark and this package both know.
    :param query_id: the query.
    """

    def __init__(self, spark: SparkSession, uri: str, query_id: str) -> None:
        self.uri = uri
        self._spark, self._query_id = spark, query_id
        self._versions: dict[int, int] = {}

    def has(self, batch: int) -> bool:
        """Whether the table's log has a commit of a batch."""
        if batch not in self._versions:
            lineage = read_table_history(open_location(self.uri)).lineage() or ()
            self._versions = {c.txns[self._query_id]: c.version for c in lineage if self._query_id in c.txns}
        return batch in self._versions

    def rows_of(self, batch: int) -> tuple[DataFrame, StructType]:
        """The rows that a batch added, as text, and their schema."""
        version = self._versions[batch]
        after = self._at(version)
        schema, rows = after.schema, as_text(after)
        return (rows.exceptAll(as_text(self._at(version - 1))) if version else rows), schema

    def _at(self, version: int) -> DataFrame:
        return self._spark.read.format("delta").option("versionAsOf", version).load(self.uri)
