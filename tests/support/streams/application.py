"""A streaming application as users write it: a build function, a Delta table, a stop marker, progress lines, a log of errors."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from airflow_ckpt_provider.jobs.build_function import load_build, session_of
from airflow_ckpt_provider.jobs.describe_query import describe
from airflow_ckpt_provider.jobs.rehearse import Request, rehearse
from airflow_ckpt_provider.spark.progress_lines import ProgressLines
from airflow_ckpt_provider.spark.stopping import run_until_stopped


def run_application(
    spark: SparkSession,
    *,
    build: str,
    conf: dict[str, str],
    checkpoint: str,
    table: str,
    on_start: Callable[[StreamingQuery], object],
    stop: str = "",
    progress: str = "",
    log: str = "",
    every: str = "",
) -> None:
    """Run it to its end.

    :param build: ``module:function``.
    :param conf: settings of its session.
    :param on_start: is given the query.
    :param stop: the stop marker; empty: it knows none.
    :param progress: file for its progress; empty: none.
    :param log: file for what it says when it dies; empty: none.
    :param every: from batch to batch; empty: until the end of the input that is there now.
    """
    session = session_of(spark, conf)  # listeners and settings are those of a session
    if progress:
        session.streams.addListener(ProgressLines(progress))
    try:
        writer = load_build(build)(session).writeStream.format("delta").option("checkpointLocation", checkpoint)
        writer = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
        query = writer.start(table)
        on_start(query)
        if stop:
            run_until_stopped(query, stop, poll_interval=0.2)
        else:
            query.awaitTermination()
    except Exception:
        if log:
            with Path(log).open("a") as lines:
                lines.write(traceback.format_exc())
        raise


def write_description(spark: SparkSession, *, build: str, conf: dict[str, str], scratch: str, to: str) -> None:
    """Describe its query into a file.

    :param build: ``module:function``.
    :param conf: settings of its session.
    :param scratch: an empty directory.
    :param to: the file.
    """
    found = describe(session_of(spark, conf), load_build(build), given=build, scratch=scratch)
    Path(to).write_text(json.dumps(found.to_json()))


def write_rehearsal(spark: SparkSession, *, request: dict[str, Any], to: str) -> None:
    """Rehearse, and write the report.

    :param request: fields of the request.
    :param to: the file.
    """
    report = rehearse(Request(**request), spark)
    Path(to).write_text(json.dumps({**report.to_json(), "markdown": report.to_markdown()}))
