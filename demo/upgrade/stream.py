"""The stream that is upgraded, in one of its versions: orders arrive as files, each of them is written once into a Delta table.

    python -m demo.upgrade.stream DIRECTORY VERSION

Runs until the file ``orders.stop`` appears, and reports how it goes in ``orders.jsonl``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from demo.stream import STATE_PARTITIONS, start_spark
from demo.upgrade.place import Place
from demo.upgrade.versions import FAULT, INPUT, VERSIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

#: A stream as most are, not one whose copies tear.
CONF = {
    STATE_PARTITIONS: "2",
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "60s",
}
#: Batches with orders that a bad version writes before its fault comes. Spark informs listeners a little later, on a busy machine
#: another batch later: the health gate waits for four.
_BATCHES_UNTIL_FAULT = 1


def settings(place: Place) -> dict[str, str]:
    """What the versions of the stream need to know.

    :param place: where all of it is.
    """
    return {**CONF, INPUT: str(place.orders)}


def start_stream(
    spark: SparkSession, version: str, checkpoint: Path, table: Path, *, available_now: bool = False
) -> StreamingQuery:
    """Start a version, or continue where the checkpoint says.

    :param spark: a Spark with :func:`settings`.
    :param version: one of :data:`~demo.upgrade.versions.VERSIONS`.
    :param available_now: stop at the end of the input that is there now.
    """
    writer = VERSIONS[version](spark).writeStream.format("delta").option("mergeSchema", "true")
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="1 second")
    return writer.option("checkpointLocation", str(checkpoint)).start(str(table))


def _fault_later(spark: SparkSession) -> StreamingQueryListener:
    """A listener that lets the fault of a bad version come."""
    from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

    class FaultLater(StreamingQueryListener):
        written = 0

        def onQueryStarted(self, event: object) -> None:  # noqa: N802 - Spark's name
            pass

        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
            self.written += event.progress.numInputRows > 0
            if self.written == _BATCHES_UNTIL_FAULT:
                spark._jvm.java.lang.System.setProperty(FAULT, "now")  # type: ignore[union-attr]

        def onQueryTerminated(self, event: object) -> None:  # noqa: N802 - Spark's name
            pass

    return FaultLater()


def main(place: Place, version: str) -> int:
    """Run until asked to stop.

    :param place: where all of it is.
    :param version: which.
    """
    from airflow_ckpt_provider.spark.progress_lines import ProgressLines
    from airflow_ckpt_provider.spark.stopping import run_until_stopped

    with place.driver_runs():
        print(f"version {version}", flush=True)
        spark = start_spark(settings(place))
        spark.streams.addListener(_fault_later(spark))
        spark.streams.addListener(ProgressLines(str(place.progress)))
        query = start_stream(spark, version, place.checkpoint, place.table)
        request = run_until_stopped(query, str(place.stop))
        spark.stop()
        print(f"stopped: {request.reason if request else 'it ended by itself'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Place(Path(sys.argv[1]).absolute()), sys.argv[2]))
