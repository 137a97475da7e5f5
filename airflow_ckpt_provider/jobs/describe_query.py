"""Describe new code, for the comparison with a checkpoint: what it would write into a new one.

    spark-submit describe_query.py --build orders.stream:build --output s3://lake/descriptions/orders-v2.json

The code is started on an empty scratch checkpoint with a sink that stops it once its first batch is planned. By then Spark has
written positions, settings, operators and the schemas of their state; not a row was read. Needs Spark 4.0 or later, and this
package, fsspec and cramjam on the driver, not Airflow.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.query_shape import read_query_shape
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.jobs.build_function import frame_of, load_build, session_of, settings_of
from airflow_ckpt_provider.jobs.exit_codes import exit_code_of
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_DATABRICKS = "spark.databricks.clusterUsageTags.sparkVersion"
#: Logical nodes that keep state, or decide what is kept.
_STATEFUL = re.compile(
    r"Aggregate|Deduplicate\w*|Distinct|Join|FlatMapGroupsWithState|FlatMapGroupsInPandasWithState|TransformWithState\w*"
    r"|EventTimeWatermark\w*|GlobalLimit|SessionWindow\w*"
)
#: Spark works windows out in a projection of its own, by this function.
_WINDOWED = "precisetimestampconversion("
#: What differs from one analysis of the same plan to the next.
_IDS = re.compile(r"#\d+L?|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b,? ?")


class _PlannedError(Exception):
    """Raised in place of a sink: the batch is planned."""


def describe(
    spark: SparkSession,
    build: Callable[[SparkSession], DataFrame],
    *,
    given: str,
    scratch: str,
    output_mode: str = "append",
    timeout: int = 300,
) -> QueryDescription:
    """Describe a query.

    :param spark: the session it is built in.
    :param build: the function that builds it.
    :param given: how the function was named.
    :param scratch: an empty directory, by a name that Spark and fsspec both know.
    :param output_mode: as the application writes: ``append``, ``update`` or ``complete``.
    :param timeout: seconds within which the first batch has to be planned.
    :raises BuildError: the function raised or gave no streaming frame.
    :raises RefusedError: the query does not start on an empty checkpoint, or there is nothing to read.
    """
    from pyspark.errors import StreamingQueryException

    if int(spark.version.partition(".")[0]) < 4:
        raise RefusedError(
            f"Spark {spark.version} writes nothing about stateful operators",
            hint="describe with Spark 4.0 or later, or rehearse, which every Spark can",
        )
    frame = frame_of(build, spark, given)
    planned: list[int] = []

    def stop(_: DataFrame, batch_id: int) -> None:
        planned.append(batch_id)
        raise _PlannedError

    query = frame.writeStream.outputMode(output_mode).foreachBatch(stop).option("checkpointLocation", scratch).start()
    try:
        ended = query.awaitTermination(timeout)
    except StreamingQueryException as e:
        if not planned:
            raise RefusedError(
                f"{given} does not start on an empty checkpoint: {e}", hint="fix the code; `explain` knows the error"
            ) from e
        ended = True
    if not ended:
        query.stop()
        raise RefusedError(
            f"{given} planned no batch within {timeout} s: its sources have nothing that a new checkpoint begins with",
            hint="have the build function start at the earliest position (startingOffsets, startingVersion) when it is described",
        )
    checkpoint = Checkpoint.at(open_location(scratch))
    newest = checkpoint.progress().newest
    if newest is None:
        raise StorageError(
            f"{scratch} holds no plan of the batch", hint="give --scratch by a name that Spark and fsspec share"
        )
    return QueryDescription(
        build=given,
        spark=spark.version,
        databricks_runtime=str(spark.conf.get(_DATABRICKS, "") or ""),
        output_mode=output_mode,
        state_format=int(str(spark.conf.get(_STATE_FORMAT, "1"))),
        plan=tuple(_stateful_parts(frame)),
        shape=read_query_shape(checkpoint.tree(), newest),
    )


def _stateful_parts(frame: DataFrame) -> Iterator[str]:
    """The stateful parts of the analysed plan, outermost first, without what changes from one analysis to the next."""

    def parts(node: Any) -> Iterator[str]:
        name = str(node.nodeName())
        text = str(node.simpleString(1000))
        if node.isStreaming() and (_STATEFUL.fullmatch(name) or _WINDOWED in text):
            yield _IDS.sub("", text)
        children = node.children()
        for number in range(children.size()):
            yield from parts(children.apply(number))

    yield from parts(frame._jdf.queryExecution().analyzed())


def main(argv: Sequence[str] | None = None) -> int:
    """Describe a query and write the description.

    :param argv: the arguments; by default those of the process.
    :return: the exit code: 0 done, 1 refused, 3 could not be written.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", required=True, metavar="MODULE:FUNCTION", help="or path/to/file.py:function")
    parser.add_argument("--output-mode", default="append", choices=("append", "update", "complete"))
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="setting of the query's session"
    )
    parser.add_argument(
        "--scratch", metavar="URI", help="empty directory for the scratch checkpoint (default: a local one)"
    )
    parser.add_argument("--timeout", type=int, default=300, metavar="SECONDS")
    parser.add_argument("--output", metavar="URI", help="where the description goes (default: stdout)")
    args = parser.parse_args(argv)

    from pyspark.sql import SparkSession

    def work() -> int:
        build = load_build(args.build)
        session = session_of(
            SparkSession.builder.appName(f"describe {args.build}").getOrCreate(), settings_of(args.conf)
        )
        with tempfile.TemporaryDirectory(prefix="describe-") as local:
            found = describe(
                session,
                build,
                given=args.build,
                scratch=args.scratch or f"file://{local}",
                output_mode=args.output_mode,
                timeout=args.timeout,
            )
        write(json.dumps(found.to_json(), indent=2), args.output)
        return 0

    return exit_code_of(work)


def write(text: str, place: str | None) -> None:
    """Write a text to a place, whole or not at all; to standard output if there is none."""
    if place is None:
        print(text)
        return
    directory, _, name = place.rpartition("/")
    open_location(directory or ".").replace(name, text.encode())


if __name__ == "__main__":
    sys.exit(main())
