"""Verify backups as ``airflow-ckpt verify --read-data`` does, the contents read by the executors of a cluster.

    spark-submit verify_contents.py s3a://lake/backups all --name orders --read-data 1/30

What is read, what a finding is and what is remembered of it is the same as without Spark. Nothing in it depends on Airflow. What
driver and executors need, and how they reach the repository: as for ``copy_closure.py``.

Exit codes: 0 whole, 1 something is damaged or refused, 2 wrong usage, 3 could not read all of it, or not write.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.notes import note_verification
from airflow_ckpt_provider.backup.read_engine import ReadEngine
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.backup.verify_repository import verify_repository
from airflow_ckpt_provider.backup.verify_summary import VerifySummary
from airflow_ckpt_provider.jobs.describe_query import write
from airflow_ckpt_provider.jobs.exit_codes import exit_code_of
from airflow_ckpt_provider.jobs.repository_application import add_repository, add_tasks, open_repository
from airflow_ckpt_provider.jobs.spark_engine import ship_package
from airflow_ckpt_provider.jobs.spark_reads import SparkReads
from airflow_ckpt_provider.redaction import redacted

#: In the place of a backup's id: all of them.
ALL = "all"


def main(argv: Sequence[str] | None = None) -> int:
    """Verify, note what was found, and write the report, as ``airflow-ckpt verify --json`` has it.

    :param argv: the arguments; by default those of the process.
    :return: the exit code.
    """
    args = _parser().parse_args(argv)

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"verify {redacted(args.repository)}").getOrCreate()

    def work() -> int:
        reached, repository = open_repository(spark, args)
        ship_package(spark)
        engine = SparkReads(
            spark,
            reached,
            workers=args.workers,
            files_per_task=args.files_per_task,
            bytes_per_task=args.bytes_per_task,
        )
        return verified(repository, engine, args)

    return exit_code_of(work)


def verified(repository: Repository, engine: ReadEngine, args: argparse.Namespace) -> int:
    """Verify, note what was found, and write the report.

    :param repository: the repository.
    :param engine: who reads the contents.
    :param args: the arguments of the application.
    :return: the exit code.
    :raises CkptError: as the verify does.
    """
    read_data = ReadData.parse(args.read_data)
    if args.backup == ALL:
        report = verify_repository(repository, name=args.name, read_data=read_data, workers=args.workers, engine=engine)
        found = VerifySummary.of_repository(report)
    else:
        # The newest, whether it is known to be damaged or not: reading it again shows whether it still is.
        manifest = repository.manifest(args.backup, name=args.name, whole=False)
        of_one = verify_backup(repository, manifest, read_data=read_data, workers=args.workers, engine=engine)
        note_verification(repository, of_one)
        found = VerifySummary.of_backup(of_one)
    if args.report_id:
        found.leave(repository, args.report_id)
    write(json.dumps(found.report, indent=2), args.output)
    return found.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("repository", metavar="REPOSITORY", help="the place that holds the backups")
    add("backup", nargs="?", default=LATEST, metavar="BACKUP", help="id of a backup, latest, or all (default: latest)")
    add("--name", help="name of the stream (default: the only one; of all backups, all streams)")
    add(
        "--read-data",
        default="all",
        metavar="PART",
        help="all; 1/t: the t-th part that was read longest ago; n/t: the n-th of t parts; x%%: a random sample "
        "(default: %(default)s)",
    )
    add_tasks(parser, files="at most; the contents of a pack are never parted")
    add_repository(parser, signs="what is noted")
    add(
        "--report-id",
        metavar="ID",
        help="the report is written into the repository too, for the task that waits for it",
    )
    add("--output", metavar="URI", help="where the report goes, as JSON (default: stdout)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
