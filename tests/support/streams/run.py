"""One test stream as an application of its own.

python -m tests.support.streams.run KIND --input DIR --checkpoint URI --out DIR [--available-now]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.streams.kinds import FAULT, KINDS
from tests.support.streams.session import start_session
from tests.support.streams.sink import merger, merger_into_iceberg, splitter, writer


def start_query(
    spark: SparkSession,
    kind: str,
    *,
    source: Path,
    checkpoint: str,
    out: str,
    available_now: bool,
    faulty: bool = False,
) -> StreamingQuery:
    """Start a query of a kind at the fastest trigger.

    :param available_now: stop at the end of the input.
    :param faulty: run the version of the query that has a bug.
    """
    chosen = KINDS[kind]
    # A session of its own: settings of one query do not reach the next.
    session = spark.newSession()
    for key, value in chosen.conf.items():
        session.conf.set(key, value)
    if faulty:
        session.conf.set(FAULT, "yes")
    stream = chosen.frame(session, source).writeStream.outputMode(chosen.mode).options(**chosen.options)
    stream = stream.option("checkpointLocation", checkpoint)
    if available_now:
        stream = stream.trigger(availableNow=True)
    if chosen.sink == "batches":
        return stream.foreachBatch(writer(Path(out))).start()
    if chosen.sink == "merge":
        return stream.foreachBatch(merger(out)).start()
    if chosen.sink == "two tables":
        return stream.foreachBatch(splitter(out)).start()
    if chosen.sink == "iceberg merge":
        return stream.foreachBatch(merger_into_iceberg(out)).start()
    stream = stream.format(chosen.sink)
    if chosen.sink == "iceberg":
        # Loads the catalog: toTable finds its class only in the thread that has made Spark, and takes Spark's own catalog else.
        session.table(out)
        return stream.toTable(out)
    return stream.start() if chosen.sink == "noop" else stream.start(out)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--package", action="append", default=[])
    args = parser.parse_args(argv)
    spark = start_session(packages=tuple(args.package))
    query = start_query(
        spark, args.kind, source=args.input, checkpoint=args.checkpoint, out=args.out, available_now=args.available_now
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
