"""Back up a huge checkpoint: the same backup as ``airflow-ckpt backup`` takes, its files copied by the executors of a cluster.

    spark-submit copy_closure.py s3a://lake/checkpoints/orders s3a://lake/backups --name orders --reason "before 2.7"

The stream may run. What is copied, where to and what the manifest says is the same as without Spark; run it again after it was
killed, and what is copied already is not copied again. Nothing in it depends on Airflow. The driver needs pyspark, fsspec,
cramjam and the client of the store (obstore for S3), executors the same without cramjam; this package is sent to them.

Credentials: the environment's of driver and executors (an instance profile, say), else those of the session's ``fs.s3a.*``, or
``--storage-options``.

Exit codes: 0 fine, 1 refused, 2 wrong usage, 3 could not read or write.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import timedelta

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.jobs.build_function import settings_of
from airflow_ckpt_provider.jobs.describe_query import write
from airflow_ckpt_provider.jobs.exit_codes import exit_code_of
from airflow_ckpt_provider.jobs.repository_application import (
    add_repository,
    add_tasks,
    at_least_one,
    open_repository,
)
from airflow_ckpt_provider.jobs.spark_engine import SparkEngine, address, ship_package
from airflow_ckpt_provider.redaction import redacted


def main(argv: Sequence[str] | None = None) -> int:
    """Take the backup and write its summary, as ``airflow-ckpt backup --json`` has it.

    :param argv: the arguments; by default those of the process.
    :return: the exit code.
    """
    args = _parser().parse_args(argv)

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"back up {redacted(args.checkpoint)}").getOrCreate()

    def work() -> int:
        checkpoint = address(spark, args.checkpoint, options_file=args.storage_options)
        reached, repository = open_repository(spark, args)
        ship_package(spark)
        source = Checkpoint.at(checkpoint.open())
        engine = SparkEngine(
            spark,
            checkpoint,
            reached,
            workers=args.workers,
            files_per_task=args.files_per_task,
            bytes_per_task=args.bytes_per_task,
        )
        result = create_backup(
            source,
            repository,
            name=args.name,
            tags=settings_of(args.tag, option="--tag"),
            reason=args.reason,
            made_by=args.made_by,
            restorable_batches=args.restorable_batches,
            engine=engine,
            immutable_for=timedelta(seconds=args.immutable_for) if args.immutable_for is not None else None,
            new_life=args.new_life,
        )
        write(json.dumps(result.to_json(), indent=2), args.output)
        return 0

    return exit_code_of(work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the checkpointLocation of the stream")
    add("repository", metavar="REPOSITORY", help="the place that holds the backups")
    add("--name", help="name of the stream (default: the one that CHECKPOINT has there, else an ending of its path)")
    add(
        "--new-life",
        action="store_true",
        help="CHECKPOINT continues the stream under another query id or at another place",
    )
    add("--tag", action="append", default=[], metavar="KEY=VALUE", help="to find the backup by; repeatable")
    add("--reason", default="", metavar="TEXT", help="why it is taken")
    add("--made-by", default="", metavar="WHO", help="the run or user, for the manifest")
    add("--restorable-batches", type=at_least_one, default=1, metavar="N", help="newest batches (default: %(default)s)")
    add_tasks(parser)
    add("--immutable-for", type=float, metavar="SECONDS", help="lock it by S3 Object Lock: nobody can delete it before")
    add_repository(parser, signs="the backup")
    add("--output", metavar="URI", help="where the summary goes, as JSON (default: stdout)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
