"""Compares the table of a stream, row by row, with the one of a run that never failed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

Row = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """How a table differs from the one it should be.

    :param rows: rows of the table, one for each customer.
    :param rows_equal: equal in every column to the one that should be there.
    :param rows_lost: input rows (orders) missing in the totals.
    :param rows_doubled: input rows in the totals more than once.
    :param orders: input rows in the totals.
    :param cents: sum over the table.
    :param expected_orders: what it should be.
    :param expected_cents: what it should be.
    """

    rows: int
    rows_equal: int
    rows_lost: int
    rows_doubled: int
    orders: int
    cents: int
    expected_orders: int
    expected_cents: int

    @property
    def is_exact(self) -> bool:
        """Whether every row is as it should be and none is there that should not."""
        return (
            not self.rows_lost
            and not self.rows_doubled
            and self.rows == self.rows_equal
            and (self.orders, self.cents) == (self.expected_orders, self.expected_cents)
        )


def read(table: Path) -> list[Row]:
    """Read a Delta table, without Spark.

    :param table: where it is.
    """
    rows: list[Row] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return rows


def compare(rows: list[Row], expected: list[Row]) -> Comparison:
    """Compare a table with the one it should be.

    :param rows: of the table.
    :param expected: those of a run that never failed.
    """
    wanted = {row["customer"]: row for row in expected}
    lost = doubled = equal = 0
    seen: set[str] = set()
    for row in rows:
        customer = row["customer"]
        there = 0 if customer in seen else wanted.get(customer, {}).get("orders", 0)
        seen.add(customer)
        lost += max(0, there - row["orders"])
        doubled += max(0, row["orders"] - there)
        if there and row == wanted[customer]:
            equal += 1
        elif there == row["orders"]:
            # As many orders, but not the same ones.
            lost, doubled = lost + 1, doubled + 1
    lost += sum(row["orders"] for customer, row in wanted.items() if customer not in seen)
    return Comparison(
        rows=len(rows),
        rows_equal=equal,
        rows_lost=lost,
        rows_doubled=doubled,
        orders=sum(row["orders"] for row in rows),
        cents=sum(row["cents"] for row in rows),
        expected_orders=sum(row["orders"] for row in expected),
        expected_cents=sum(row["cents"] for row in expected),
    )


def totals_of(orders: Path) -> tuple[int, int]:
    """Count the input itself: orders and cents. The run that never failed is held against it.

    :param orders: directory of the input.
    """
    lines = [json.loads(line) for file in orders.glob("*.json") for line in file.read_text().splitlines()]
    return len({line["order_id"] for line in lines}), sum(line["cents"] for line in lines)
