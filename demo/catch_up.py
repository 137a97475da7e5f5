"""Runs streams to the end of the input, one after the other in one Spark: the run that never failed, and the control's copies.

    python -m demo.catch_up INPUT RESULTS NAME=DIRECTORY ...

Each directory holds the ``checkpoint`` and the ``table`` of a stream. RESULTS becomes a JSON file: name -> Spark's error, or
null where the stream ran to the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from demo.spark_errors import reason
from demo.stream import start_spark, start_stream


def main(orders: Path, results: Path, streams: dict[str, Path]) -> int:
    """Run the streams.

    :param orders: the input, complete.
    :param results: file to write.
    :param streams: directory of each, by name.
    """
    from pyspark.errors import PySparkException

    spark = start_spark()
    errors: dict[str, str | None] = {}
    for name, directory in streams.items():
        try:
            query = start_stream(spark, orders, directory / "checkpoint", directory / "table", available_now=True)
            query.awaitTermination()
            errors[name] = None
        except PySparkException as e:
            errors[name] = reason(str(e))
        print(name, errors[name])
    results.write_text(json.dumps(errors, indent=2))
    spark.stop()
    return 0


if __name__ == "__main__":
    named = dict(argument.split("=", 1) for argument in sys.argv[3:])
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), {name: Path(path) for name, path in named.items()}))
