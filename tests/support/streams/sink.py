"""The sink of the test streams: one file a batch, overwritten when a batch is run again. And its row-exact comparison."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_NAME = re.compile(r"b=(\d+)")


def writer(out: Path) -> Callable[[DataFrame, int], None]:
    """A ``foreachBatch`` function that writes the rows of batch N to ``out/b=N``, whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = sorted(json.dumps(list(row), default=str) for row in frame.collect())
        temporary = out / f".b={batch_id}.tmp"
        temporary.write_text("".join(f"{row}\n" for row in rows))
        os.replace(temporary, out / f"b={batch_id}")

    return write


def merger(out: str) -> Callable[[DataFrame, int], None]:
    """A ``foreachBatch`` function that merges rows by key into a Delta table, as one that Delta keeps exactly-once.

    ``txnAppId`` and ``txnVersion`` go with appends and overwrites only, so the table is read, merged and overwritten whole.
    """

    def merge(frame: DataFrame, batch_id: int) -> None:
        spark = frame.sparkSession
        if (Path(out) / "_delta_log").exists():
            old = spark.read.format("delta").load(out)
            frame = old.join(frame, "k", "left_anti").unionByName(frame)
        writer = (
            frame.write.format("delta").mode("overwrite").option("txnAppId", "totals").option("txnVersion", batch_id)
        )
        writer.save(out)

    return merge


def merger_into_iceberg(table: str) -> Callable[[DataFrame, int], None]:
    """A ``foreachBatch`` function that merges rows by id into an Iceberg table: it leaves no query id in the table."""

    def merge(frame: DataFrame, batch_id: int) -> None:
        frame.dropDuplicates(["id"]).createOrReplaceTempView("arrived")
        frame.sparkSession.sql(
            f"MERGE INTO {table} t USING arrived s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.v = s.v "
            "WHEN NOT MATCHED THEN INSERT (id, k, v, ts) VALUES (s.id, s.k, s.v, s.ts)"
        )

    return merge


def splitter(out: str) -> Callable[[DataFrame, int], None]:
    """A ``foreachBatch`` function that writes into two Delta tables: all rows, and those with an even value."""

    def split(frame: DataFrame, batch_id: int) -> None:
        for name, rows in (("all", frame), ("even", frame.where("v % 2 = 0"))):
            table = rows.write.format("delta").mode("append").option("txnAppId", name).option("txnVersion", batch_id)
            table.save(f"{out}/{name}")

    return split


def batches(out: Path) -> dict[int, list[str]]:
    """Rows by batch."""
    found = {}
    for file in out.glob("b=*"):
        if match := _NAME.fullmatch(file.name):
            found[int(match[1])] = file.read_text().splitlines()
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Difference:
    """How a sink differs from that of a run that never failed.

    :param lost: rows that are missing.
    :param extra: rows that are there too often, or should not be there at all.
    """

    lost: int
    extra: int
    example: str

    def __bool__(self) -> bool:
        return bool(self.lost or self.extra)


def difference(wanted: dict[int, list[str]], found: dict[int, list[str]]) -> Difference:
    """Compare as multisets of rows."""
    expected = Counter(row for rows in wanted.values() for row in rows)
    there = Counter(row for rows in found.values() for row in rows)
    lost, extra = expected - there, there - expected
    example = next(iter([*lost, *extra]), "")
    return Difference(lost.total(), extra.total(), example)


def joined(original: dict[int, list[str]], restored: dict[int, list[str]], newest: int) -> dict[int, list[str]]:
    """The sink of a stream that was lost after batch ``newest`` and continued from its restored checkpoint."""
    return {batch: rows for batch, rows in original.items() if batch <= newest} | restored


def newest_by_key(batches: dict[int, list[str]]) -> dict[int, list[str]]:
    """What is left in a table that the rows were merged into by their first column, as one batch."""
    rows = [row for batch in sorted(batches) for row in batches[batch]]
    return {0: list({json.loads(row)[0]: row for row in rows}.values())}
