"""Roll a Delta table back by Spark, for tables with features that ``deltalake`` cannot restore. One file, runs alone.

    spark-submit --packages io.delta:… roll_table_back.py --table s3a://lake/tables/orders --version 222 --expected 230

A rewind runs it, under the seal of the checkpoint (``airflow-ckpt rewind --spark-submit``). ``RESTORE`` gives back content and
not memory: the table still remembers the batches of the query that leave it, and skips their replay silently. So the
query gets a new id. Whoever runs this by hand has to see to that: ``airflow-ckpt reset CHECKPOINT --new-query-id``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Restore the table; the second time it does nothing.

    :param argv: the arguments; by default those of the process.
    :return: the exit code: 0 done, 1 refused because somebody wrote into the table since.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table", help="the table's directory, as Spark names it")
    which.add_argument("--name", help="the table's name in a catalog of Spark, in backticks where it needs them")
    parser.add_argument("--version", required=True, type=int, help="the version to roll back to")
    parser.add_argument("--expected", type=int, help="the version the table has to have before (default: any)")
    parser.add_argument("--plan", help="the plan it is done for: kept with the commit, so that a second run finds it")
    args = parser.parse_args(argv)

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("roll table back").getOrCreate()
    named = args.name or args.table
    table = args.name or "delta.`" + args.table.replace("`", "``") + "`"
    newest = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0]
    words = f"airflowCkptPlan={args.plan}" if args.plan else None
    to_version = str(newest["operationParameters"].get("version")) == str(args.version)
    restored = newest["operation"] == "RESTORE" and to_version and newest["userMetadata"] == words
    if not restored and args.expected is not None and newest["version"] != args.expected:
        print(
            f"{named} is at version {newest['version']}, not {args.expected}: somebody wrote into it; nothing was changed",
            file=sys.stderr,
        )
        return 1
    if not restored:
        if words:
            spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", words)
        spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {args.version}")
        newest = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0]
    print(json.dumps({"table": named, "restored": args.version, "version": newest["version"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
