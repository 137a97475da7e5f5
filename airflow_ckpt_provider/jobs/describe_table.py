"""Describe a Delta table that Spark knows by its name, for a change of a checkpoint whose sink it is. One file, runs alone.

    spark-submit --packages io.delta:… describe_table.py --table sales.orders --out /tmp/orders.json

Reads only. Spark's driver has to run where the file is read (client mode).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Write ``detail`` and ``history`` of the table, or what Spark ``refused``.

    :param argv: the arguments; by default those of the process.
    :return: the exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--table", required=True, help="the table's name, in backticks where it needs them")
    parser.add_argument("--out", required=True, help="the file to write")
    args = parser.parse_args(argv)

    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("describe a table").getOrCreate()
    found: dict[str, Any]
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {args.table}").collect()[0].asDict()
        history = [row.asDict() for row in spark.sql(f"DESCRIBE HISTORY {args.table}").collect()]
        found = {"detail": _plain(detail), "history": [_plain(row) for row in history]}
    except AnalysisException as e:
        found = {"refused": str(e).split("\n", 1)[0]}
    with open(args.out, "w") as file:
        json.dump(found, file)
    return 0


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat()
        return value if isinstance(value, str | int | float | bool | dict | list) or value is None else str(value)

    return {name: plain(value) for name, value in row.items()}


if __name__ == "__main__":
    sys.exit(main())
