"""Restore a huge backup, its files written by the executors of a cluster.

    spark-submit restore_contents.py s3a://lake/backups s3a://lake/checkpoints/orders --name orders --query-is-stopped --apply

As ``airflow-ckpt restore``: without ``--apply`` it shows the plan. The plan, the fence, the seal, what is set aside and removed,
the logs, the check of what was written and the audit record are the driver's; executors read contents and write files. Run the
same command again after it was killed. Nothing in it depends on Airflow.

Exit codes: 0 fine, 1 refused, 2 wrong usage, 3 could not read or write.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.rest import RestRule, StopProbe
from airflow_ckpt_provider.change.rest_probes import probes_of
from airflow_ckpt_provider.change.write_engine import WriteEngine
from airflow_ckpt_provider.jobs.describe_query import write
from airflow_ckpt_provider.jobs.exit_codes import exit_code_of
from airflow_ckpt_provider.jobs.repository_application import add_repository, add_tasks, open_repository
from airflow_ckpt_provider.jobs.spark_engine import address, ship_package
from airflow_ckpt_provider.jobs.spark_writes import SparkWrites
from airflow_ckpt_provider.recovery.restore.apply import apply_restore
from airflow_ckpt_provider.recovery.restore.planning import plan_restore
from airflow_ckpt_provider.recovery.restore.sink_answer import SinkAnswer
from airflow_ckpt_provider.redaction import redacted
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import parse_time


def main(argv: Sequence[str] | None = None) -> int:
    """Restore, and write plan and outcome.

    :param argv: the arguments; by default those of the process.
    :return: the exit code.
    """
    began = Clocks.of_process() if argv is None else Clocks()
    args = _parser().parse_args(argv)

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"restore {redacted(args.target)}").getOrCreate()

    def work() -> int:
        reached, repository = open_repository(spark, args)
        target = address(spark, args.target, options_file=args.storage_options)
        lines = args.progress_log and address(spark, args.progress_log, options_file=args.storage_options).open()
        ship_package(spark)
        writes = SparkWrites(
            spark,
            target,
            reached,
            workers=args.workers,
            files_per_task=args.files_per_task,
            bytes_per_task=args.bytes_per_task,
        )
        place = target.open()
        said = since_submitted(dict(spark.sparkContext.getConf().getAll()), began) if argv is None else began
        if args.stopped_since:
            said = _earlier(said, parse_time(args.stopped_since))
        probes = probes_of(place, progress_log=lines or None, spark_rest=args.spark_api)
        restored(repository, place, writes, args, said=said, probes=probes)
        return 0

    return exit_code_of(work)


def since_submitted(settings: Mapping[str, str], began: Clocks) -> Clocks:
    """Since when it is said that the query is stopped: a cluster may start the driver an hour later, or again.

    :param settings: of Spark.
    :param began: clocks that began with this process.
    :return: clocks that began when the application was submitted, as far as Spark says that.
    :raises RefusedError: that is in the future.
    """
    submitted = settings.get("spark.app.submitTime", "")
    if settings.get("spark.submit.deployMode") != "cluster" or not submitted.isdecimal():
        return began  # the driver was started by the one who says it, or its session is older than this application
    return _earlier(began, datetime.fromtimestamp(int(submitted) / 1000, UTC))


def _earlier(said: Clocks, at: datetime) -> Clocks:
    """Of two statements that the query is stopped, the clocks of the earlier one."""
    return max(said, Clocks.since_said(at), key=lambda clocks: clocks.elapsed)


def restored(
    repository: Repository,
    target: Location,
    writes: WriteEngine | None,
    args: argparse.Namespace,
    *,
    said: Clocks,
    probes: tuple[StopProbe, ...] = (),
) -> None:
    """Plan, restore where that was asked for, and write plan and outcome.

    :param repository: the repository.
    :param target: the checkpoint that is restored.
    :param writes: who writes the files; ``None``: threads of this process.
    :param args: the arguments of the application.
    :param said: since when it is said that the query is stopped. A change that was carried out since makes that void.
    :param probes: are asked whether the query has ended.
    :raises CkptError: as the restore does.
    """
    manifest = repository.manifest(args.backup, name=args.name)
    plan = plan_restore(
        repository,
        manifest,
        target,
        batch=args.batch,
        replace=args.replace,
        target_uri=args.target_uri,
        sink=args.sink_answer,
    )
    result = {"plan": plan.to_json()}
    print(plan.to_markdown(), file=sys.stderr)
    if args.apply:
        outcome = apply_restore(
            plan,
            accept=args.accept,
            fingerprint=args.fingerprint,
            rest=RestRule(
                query_is_stopped=args.query_is_stopped,
                said_by=args.made_by,
                said=said,
                # A task of Airflow is `<dag_id>/<run_id>/<task_id>/<map_index>`; its own run knows what it has changed.
                said_in=f"{args.made_by.rsplit('/', 2)[0]}/" if args.made_by.count("/") >= 3 else "",
                probes=probes,
                quiet_for=args.quiet_for,
                wait_at_most=args.wait_at_most,
            ),
            made_by=args.made_by,
            reason=args.reason,
            writes=writes,
        )
        result["outcome"] = outcome.to_json()
    write(json.dumps(result, indent=2), args.output)


def _sink_answer(text: str) -> SinkAnswer:
    try:
        return SinkAnswer.from_json(json.loads(text))
    except (AttributeError, KeyError, TypeError) as e:
        raise ValueError(text) from e


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("repository", metavar="REPOSITORY", help="the place that holds the backups")
    add(
        "target",
        metavar="TARGET",
        help="the checkpoint that is restored: an empty place, or with --replace another one",
    )
    add("--backup", default=LATEST, metavar="ID", help="id of the backup (default: latest)")
    add("--name", help="name of the stream (default: the only one)")
    add("--batch", type=int, metavar="N", help="one of the backup's restorable batches (default: its newest)")
    add("--replace", action="store_true", help="replace the checkpoint that is there; it is set aside first")
    add("--apply", action="store_true", help="apply the plan; without it the plan is shown")
    add("--accept", action="append", default=[], metavar="WORD", help="a risk that the plan names; repeatable")
    add("--fingerprint", metavar="TEXT", help="of the plan that was approved; another one is refused")
    add("--query-is-stopped", action="store_true", help="the query is stopped: without it silence is waited for")
    add(
        "--stopped-since",
        metavar="TIME",
        help="since when, in ISO 8601 (default: since this application was submitted)",
    )
    add("--progress-log", metavar="URI", help="progress lines of the query's driver: they show that it has ended")
    add("--spark-api", metavar="URL", help="the query's application in Spark's REST interface: shows that it has ended")
    add("--quiet-for", type=float, default=5.0, metavar="SECONDS", help="of silence that confirm it (default: 5)")
    add("--wait-at-most", type=float, default=600.0, metavar="SECONDS", help="for silence (default: 600)")
    add("--target-uri", metavar="URI", help="the target as Spark names it, for backups that hold absolute paths")
    add(
        "--sink-answer",
        type=_sink_answer,
        metavar="JSON",
        help="what the sinks said to the task that runs this application",
    )
    add("--reason", default="", metavar="TEXT", help="why, for the audit record")
    add("--made-by", default="", metavar="WHO", help="the run or user, for the audit record")
    add_tasks(parser, files="at most; the contents of a pack are never parted")
    add_repository(parser, signs="what is recorded")
    add("--output", metavar="URI", help="where plan and outcome go, as JSON (default: stdout)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
