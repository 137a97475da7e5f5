"""Rehearse: does this code continue from the newest backup, and what does it give? Nothing of production is written.

    spark-submit rehearse.py s3://lake/backups --name orders --scratch s3a://lake/scratch \
        --build orders.stream:build --old-build orders_v1.stream:build --batches 3 --output s3://lake/reports/orders.json

The backup is restored below the scratch place, the code is started on it for a bounded number of batches with a sink that drops
the rows, or keeps them at the scratch place for the comparison with what the old code gives for the same offsets. The report says
whether it starts, else Spark's error and what to do; batches, rows, times, state. With ``--drill`` the code is the one in
production, and what is proven is the backup: a record of it is kept in the repository. With ``--follow`` the new code continues
beside production, over each batch that production commits, until it has caught up and the rows are the same.

Needs pyspark, this package, fsspec and cramjam on the driver, not Airflow.

Exit codes: 0 fine, 1 findings, 2 wrong usage, 3 could not read or write.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from airflow_ckpt_provider.backup.drills import record_drill
from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.jobs.build_function import settings_of
from airflow_ckpt_provider.jobs.describe_query import write
from airflow_ckpt_provider.jobs.exit_codes import exit_code_of
from airflow_ckpt_provider.jobs.rehearsal import Request, rehearse
from airflow_ckpt_provider.storage.keys import read_key
from airflow_ckpt_provider.storage.signatures import Signing


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse and write the report.

    :param argv: the arguments; by default those of the process.
    :return: the exit code.
    """
    args = _parser().parse_args(argv)

    def work() -> int:
        request = Request(
            key=read_key(args.key_file) if args.key_file else None,
            signing=Signing.read(args.signing_key_file, args.trusted_key),
            repository_id=args.repository_id,
            repository=args.repository,
            scratch=args.scratch,
            build=args.build,
            application=args.application,
            old_build=args.old_build,
            name=args.name,
            backup_id=args.backup,
            batch=args.batch,
            batches=args.batches,
            timeout=args.timeout,
            output_mode=args.output_mode,
            conf=settings_of(args.conf),
            checkpoint=args.checkpoint,
            sink=args.sink,
            watch=tuple(args.watch),
            keep=args.keep,
            drill=args.drill,
            made_by=args.made_by,
            follow=args.follow,
            idle=args.idle,
            stop_at_difference=args.stop_at_difference,
        )
        spark = None
        if request.build:
            from pyspark.sql import SparkSession

            spark = SparkSession.builder.appName(f"rehearse {request.build}").getOrCreate()
        report = rehearse(request, spark)
        if request.drill and report.verdict == "SAFE":
            record_drill(Repository.open(request.repository_place), report.to_json())
        markdown = report.to_markdown()
        print(markdown, file=sys.stderr)
        write(json.dumps({**report.to_json(), "markdown": markdown}, indent=2), args.output)
        return 0 if args.report_only or report.verdict == "SAFE" else 1

    return exit_code_of(work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("repository", metavar="REPOSITORY")
    add(
        "--scratch",
        required=True,
        metavar="URI",
        help="directory for scratch copies; what is made in it is deleted again",
    )
    add("--build", default="", metavar="MODULE:FUNCTION", help="the new code; or path/to/file.py:function")
    add("--application", default="", metavar="COMMAND", help="instead: a command that takes --checkpoint and --sink")
    add(
        "--old-build",
        default="",
        metavar="MODULE:FUNCTION",
        help="the old code: run on the same offsets, rows compared",
    )
    add("--name", help="name of the stream in the repository")
    add("--backup", default=LATEST, metavar="ID", help="the backup (default: %(default)s)")
    add("--batch", type=int, metavar="N", help="batch of the backup (default: its newest)")
    add(
        "--batches",
        type=int,
        default=3,
        metavar="N",
        help="how many at most; with --follow at least (default: %(default)s)",
    )
    add(
        "--timeout",
        type=int,
        default=600,
        metavar="SECONDS",
        help="for a run; with --follow for all (default: %(default)s)",
    )
    add("--output-mode", default="append", choices=("append", "update", "complete"))
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="setting of the code's session; repeatable")
    add(
        "--checkpoint",
        default="",
        metavar="URI",
        help="the checkpoint in production: its pace, and proof that it is untouched",
    )
    add(
        "--sink",
        default="",
        metavar="URI",
        help="the Delta table of production: rows to compare with, and the same proof",
    )
    add(
        "--watch",
        action="append",
        default=[],
        metavar="URI",
        help="further places that must stay untouched; repeatable",
    )
    add("--keep", action="store_true", help="leave the scratch copies")
    add("--key-file", metavar="FILE", help="key of an encrypted repository, on the driver")
    add("--repository-id", metavar="ID", help="id that REPOSITORY has to have; another one is refused")
    add(
        "--signing-key-file",
        metavar="FILE",
        help="private key that signs the records of restore and drill, on the driver",
    )
    add("--trusted-key", action="append", default=[], metavar="KEY", help="public key to trust; repeatable")
    add(
        "--report-only",
        action="store_true",
        help="exit with 0 whatever the verdict, once there is a report: whoever reads it decides",
    )
    add("--drill", action="store_true", help="a restore drill: where it is SAFE, record in the repository that it was")
    add(
        "--follow",
        action="store_true",
        help="continue beside production, batch by batch as it commits them, until it has caught up; compare with --sink",
    )
    add(
        "--idle",
        type=int,
        default=60,
        metavar="SECONDS",
        help="with --follow: without a new batch for so long, production has stopped (default: %(default)s)",
    )
    add("--stop-at-difference", action="store_true", help="with --follow: end at the first batch whose rows differ")
    add("--made-by", default="", metavar="WHO", help="the run or user, for audit records")
    add("--output", metavar="URI", help="where the report goes, as JSON (default: stdout)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
