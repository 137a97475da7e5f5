"""Batches of a streaming frame on a scratch checkpoint, with a sink that harms nobody, and their rows for a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.advisor.advice import recovery_advice
from airflow_ckpt_provider.jobs.build_function import BuildError
from airflow_ckpt_provider.upgrade.rehearsal.report import Failure, RowDifference, TrialBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Rows that are shown, of each side.
_SHOWN = 3
#: Why batches without a row are not compared.
NO_ROWS = "neither gave a row in these batches; take more (--batches), or a backup with an older batch (--batch)"
_STOP_WITHIN = "spark.sql.streaming.stopTimeout"


class _EnoughError(Exception):
    """Raised in place of a sink: no more batches are wanted."""


@dataclass
class Trial:
    """What ran.

    :param batches: in their order.
    :param failure: why it ended early; ``None``: it did not.
    :param state_rows: rows of state after the last batch, where Spark reported them.
    :param rows: batch -> its rows as JSON text, where they were kept.
    :param schema: of the rows.
    """

    batches: list[TrialBatch] = field(default_factory=list)
    failure: Failure | None = None
    state_rows: int | None = None
    rows: dict[int, str] = field(default_factory=dict)
    schema: StructType | None = None


def run_trial(
    frame: DataFrame,
    *,
    checkpoint: str,
    last: int,
    output_mode: str,
    timeout: int,
    keep_rows: str | None = None,
    into: Trial | None = None,
) -> Trial:
    """Run a frame on a checkpoint up to a batch, or until it has read all there was at the start.

    :param frame: the streaming frame.
    :param checkpoint: the scratch checkpoint, by Spark's name.
    :param last: the last batch to run; that the next one is planned harms nothing.
    :param output_mode: as the application writes.
    :param timeout: seconds for all of it.
    :param keep_rows: a directory for the rows, by Spark's name; ``None``: they are read and dropped (``noop``).
    :param into: a trial to continue with.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    trial = into or Trial()
    given: dict[int, int] = {}
    enough: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        if batch_id > last:
            enough.append(batch_id)
            raise _EnoughError
        counted = Observation()
        count = F.count(F.lit(1)).alias("rows")
        if keep_rows is None:
            rows.observe(counted, count).write.format("noop").mode("overwrite").save()
        else:
            place = f"{keep_rows}/batch={batch_id}"
            as_text(rows).observe(counted, count).write.mode("overwrite").text(place)
            trial.rows[batch_id], trial.schema = place, rows.schema
        given[batch_id] = int(counted.get["rows"])

    # A query that hangs in its source would otherwise hold its own stop.
    frame.sparkSession.conf.set(_STOP_WITHIN, "30s")
    query = None
    try:
        query = (
            frame.writeStream.outputMode(output_mode)
            .foreachBatch(sink)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(timeout):
            trial.failure = Failure(
                "TIMEOUT",
                f"still running after {timeout} s, {len(given)} batches done: a source does not answer, or the batches are long",
            )
    except PySparkException as e:
        if not enough:
            trial.failure = failure_of(e)
    finally:
        if query is not None:
            _stop(query)
            _note(trial, query, given)
    return trial


def _stop(query: Any) -> None:
    with suppress(Exception):  # it did not stop in time; the session ends with the job
        query.stop()


def _note(trial: Trial, query: Any, given: dict[int, int]) -> None:
    for progress in query.recentProgress:
        batch = int(progress["batchId"])
        # A trigger that found nothing reports as well, under the number of the batch to come.
        if batch not in given or any(b.batch_id == batch for b in trial.batches):
            continue
        seconds = progress["durationMs"].get("triggerExecution")
        trial.batches.append(
            TrialBatch(batch, None if seconds is None else seconds / 1000, int(progress["numInputRows"]), given[batch])
        )
        operators = progress["stateOperators"]
        if operators:
            trial.state_rows = sum(int(operator["numRowsTotal"]) for operator in operators)


def failure_of(error: BaseException) -> Failure:
    """A failure of Spark with what the advisor makes of it."""
    advice = recovery_advice(error)
    condition = advice.condition
    return Failure(condition.code if condition else "UNKNOWN", str(error), advice.to_json())


def as_text(rows: DataFrame) -> DataFrame:
    """Each row as one line of JSON, its columns by name: the order of columns is no difference."""
    from pyspark.sql import functions as F

    columns = [F.col(f"`{name}`") for name in sorted(rows.columns)]
    return rows.select(F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}).alias("row"))


def difference(
    spark: SparkSession,
    old: Callable[[int], tuple[DataFrame, StructType]],
    new: Trial,
    batches: Sequence[int],
    *,
    against: str,
) -> RowDifference:
    """Compare rows batch by batch, as multisets.

    :param old: gives the rows of a batch of the old code as text, and their schema.
    :param new: a trial whose rows were kept.
    :param batches: the batches.
    :param against: what the old rows are, in words.
    """
    only_old = only_new = rows = 0
    examples: list[str] = []
    gone: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    for batch in batches:
        before, schema = old(batch)
        now = spark.read.text(new.rows[batch]).toDF("row")
        if new.schema is not None and set(schema.names) != set(new.schema.names):
            gone = tuple(sorted(set(schema.names) - set(new.schema.names)))
            added = tuple(sorted(set(new.schema.names) - set(schema.names)))
            common = [f for f in sorted(schema.fields, key=lambda f: f.name) if f.name in new.schema.names]
            before, now = _only(before, common), _only(now, common)
        rows += before.count() + now.count()
        for frame, other, sign in ((before, now, "-"), (now, before, "+")):
            left = frame.exceptAll(other).cache()
            count = left.count()
            if sign == "-":
                only_old += count
            else:
                only_new += count
            if count and len(examples) < 2 * _SHOWN:
                examples += [f"{sign} batch {batch}: {row['row'][:300]}" for row in left.take(_SHOWN)]
            left.unpersist()
    if not rows:
        return RowDifference(against, tuple(batches), not_compared=NO_ROWS)
    return RowDifference(against, tuple(batches), only_old, only_new, gone, added, tuple(examples))


def _only(rows: DataFrame, columns: Sequence[Any]) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    schema = StructType(list(columns))
    return rows.select(F.to_json(F.from_json("row", schema), {"ignoreNullFields": "false"}).alias("row"))


def refuse_source_changes(frame: DataFrame, given: str) -> None:
    """Refuse code whose file source moves or deletes input files when a batch is done: those are of production.

    :raises BuildError: it has ``cleanSource``.
    """
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if not str(leaf.getClass().getSimpleName()).startswith("StreamingRelation"):
            continue
        try:
            options = leaf.dataSource().options().iterator()
        except Exception:  # noqa: S112  sources of the second interface have no such option
            continue
        while options.hasNext():
            option = options.next()
            if str(option._1()).lower() == "cleansource" and str(option._2()).lower() != "off":
                raise BuildError(
                    "BUILD-CLEANS-SOURCE",
                    f"--build {given} reads files with cleanSource={option._2()}: the rehearsal would move or delete input files",
                    hint="have the build function leave cleanSource out when it is rehearsed",
                )
