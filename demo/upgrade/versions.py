"""The versions of the demo's stream: 1 runs, 2 is a good upgrade of it, and there are several bad third ones.

Each is a function ``build(spark) -> DataFrame`` as a rehearsal or a description takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from demo.stream import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Build = Callable[["SparkSession"], "DataFrame"]

#: Setting with the directory that orders arrive in.
INPUT = "spark.orders.input"
#: Property of the driver's Java: once it is set, the bad versions whose fault comes later cannot take an order any more.
FAULT = "orders.fault"
_FILES_A_BATCH = 200


def first(spark: SparkSession) -> DataFrame:
    """Every order once: some arrive twice, and the state knows them again."""
    return _orders(spark).withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["order_id"])


def second(spark: SparkSession) -> DataFrame:
    """With the value added tax of each order: a change behind the state, which Spark allows."""
    return first(spark).selectExpr("*", "cast(round(cents * 0.19) as long) as vat")


def crash_at_start(spark: SparkSession) -> DataFrame:
    """Fails before it has a query."""
    raise KeyError("VAT_RATE is not set")


def crash_later(spark: SparkSession) -> DataFrame:
    """Fails some batches later, at the next order."""
    from pyspark.sql import functions as f

    unknown = f.raise_error(f.concat(f.lit("no tax rate for order "), "order_id")).cast("long")
    return second(spark).withColumn("vat", f.when(_fault(), unknown).otherwise(f.col("vat")))


def stall(spark: SparkSession) -> DataFrame:
    """Hangs some batches later, for a day."""
    from pyspark.sql import functions as f

    # A call to a service that never answers.
    asked = f.expr("cast(reflect('java.lang.Thread', 'sleep', 86400000L) as long)")
    return second(spark).withColumn("vat", f.when(_fault(), asked).otherwise(f.col("vat")))


def drops_rows(spark: SparkSession) -> DataFrame:
    """Loses one order in seven, and says nothing."""
    return second(spark).where("cents % 7 != 3")


def doubles_rows(spark: SparkSession) -> DataFrame:
    """Writes one order in seven twice, and says nothing."""
    return second(spark).selectExpr("*", "explode(if(cents % 7 = 3, array(1, 2), array(1))) as n").drop("n")


def operator_changed(spark: SparkSession) -> DataFrame:
    """Knows orders again in another way: Spark cannot read the state that is there."""
    once = _orders(spark).withWatermark("at", "1 hour").dropDuplicates(["order_id", "at"])
    return once.selectExpr("*", "cast(round(cents * 0.19) as long) as vat")


#: What can be wrong with the third version, by the name that ``BAD=`` takes.
BAD: dict[str, Build] = {
    "crash-at-start": crash_at_start,
    "crash-later": crash_later,
    "stall": stall,
    "drops-rows": drops_rows,
    "doubles-rows": doubles_rows,
    "operator-changed": operator_changed,
}
VERSIONS: dict[str, Build] = {"1": first, "2": second, **{f"3-{kind}": build for kind, build in BAD.items()}}


def _orders(spark: SparkSession) -> DataFrame:
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", _FILES_A_BATCH)
    return files.json(str(spark.conf.get(INPUT)))


def _fault() -> Column:
    from pyspark.sql import functions as f

    return f.expr(f"reflect('java.lang.System', 'getProperty', '{FAULT}') is not null")
