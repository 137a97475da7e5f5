"""Describe a Delta table by Spark, for the guard of tables that ``deltalake`` cannot read. One file, runs alone.

    spark-submit --packages io.delta:… describe_delta.py --table s3a://lake/tables/orders --out s3://lake/orders.json

Reads only. The guard takes what it wrote as ``--option delta.described.<source>=URI`` (operator: ``described=``). It looks for
commits and data files itself, for the log is plain JSON whatever the features.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime


def main(argv: Sequence[str] | None = None) -> int:
    """Describe the table as it is now.

    :param argv: the arguments; by default those of the process.
    :return: the exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--table", required=True, help="the table's directory, as Spark names it")
    parser.add_argument(
        "--out", help="where to write the description: a path, or a URI that fsspec knows (default: stdout)"
    )
    args = parser.parse_args(argv)

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("describe a Delta table").getOrCreate()
    quoted = args.table.replace("`", "``")
    version = spark.sql(f"DESCRIBE HISTORY delta.`{quoted}` LIMIT 1").collect()[0]["version"]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{quoted}`").collect()[0]
    schema = spark.read.format("delta").option("versionAsOf", version).load(args.table).schema
    described = {
        "table": args.table,
        "version": version,
        "table_id": detail["id"],
        "configuration": dict(detail["properties"]),
        "schema": schema.json(),
        "partition_columns": list(detail["partitionColumns"]),
        "described": datetime.now(UTC).isoformat(),
    }
    text = json.dumps(described)
    if args.out is None:
        print(text)
    elif "://" in args.out:
        import fsspec

        with fsspec.open(args.out, "w") as file:
            file.write(text)
    else:
        with open(args.out, "w") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
