"""A Spark whose sources let it down: streams on Delta and Kafka that continue after their source was damaged.

python -m tests.support.failing_sources    one JSON request a line: {"do": …, "place": …, "broker": …, "topic": …}

``prepare`` runs a stream to its end; the test then damages the source, or has ``damage`` do it; ``go_on`` starts the stream
again. The answer of each is ``{"message": …}``, with the causes in it; empty where nothing failed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from tests.support.streams.host import _whole
from tests.support.streams.session import start_session
from tests.support.streams.spark_host import coordinates


class Streams:
    """Runs them."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def put(self, place: Path, first: int = 0) -> None:
        """Append a version to the source table."""
        rows = self._spark.range(first, first + 10).selectExpr("id", "id * 2 AS v").coalesce(1)
        rows.write.format("delta").mode("append").save(f"{place}/source")

    def run(self, place: Path, broker: str | None, topic: str | None) -> None:
        """Run the stream over what there is."""
        if topic:
            options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
            frame = self._spark.readStream.format("kafka").options(**options).load()
        else:
            frame = self._spark.readStream.format("delta").load(f"{place}/source")
        writer = frame.writeStream.format("noop").option("checkpointLocation", f"{place}/ck")
        writer.trigger(availableNow=True).start().awaitTermination()

    def damage(self, place: Path, how: str) -> None:
        """Damage the source table."""
        source = place / "source"
        table = f"delta.`{source}`"
        if how == "made_again":
            shutil.rmtree(source)
            self.put(place)
            self.put(place, 10)
            self.put(place, 20)
        elif how == "rows_updated":
            self._spark.sql(f"UPDATE {table} SET v = 0 WHERE id < 5")
        elif how == "rows_deleted":
            self._spark.sql(f"DELETE FROM {table} WHERE id < 5")
        elif how == "log_expired":
            for first in (10, 20, 30, 40):
                self.put(place, first)
            self._spark.sql(f"OPTIMIZE {table}")
            # A checkpoint of the table's log, and the versions before it gone, as retention leaves it.
            jvm = self._spark._jvm
            log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, str(source))
            log.checkpoint()
            versions = sorted((source / "_delta_log").glob("*.json"))
            for version in versions[1:-1]:
                version.unlink()
        elif how == "files_vacuumed":
            self.put(place, 10)
            before = {p.name for p in source.glob("*.parquet")}
            self.put(place, 20)
            for file in source.glob("*.parquet"):
                if file.name not in before:
                    file.unlink()
        else:
            raise ValueError(how)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    streams = Streams(start_session(packages=coordinates("spark-jars.txt")))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        place = Path(request["place"])
        answer = {"message": ""}
        try:
            if request["do"] == "prepare":
                if not request.get("topic"):
                    streams.put(place)
                streams.run(place, request.get("broker"), request.get("topic"))
            elif request["do"] == "damage":
                streams.damage(place, request["how"])
            else:
                streams.run(place, request.get("broker"), request.get("topic"))
        except Exception as e:
            answer = {"message": _whole(e) if isinstance(e, PySparkException) else repr(e)}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
