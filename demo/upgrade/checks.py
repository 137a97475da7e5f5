"""Whether the table of the demo's stream is right: while it grows, and in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder

from demo.orders import ORDERS_A_FILE

_BY_SECOND = """
SELECT at, orders FROM (
    SELECT date_trunc('second', at) AS at, count(*) AS orders, count(DISTINCT order_id) AS ids FROM orders GROUP BY 1
) WHERE orders <> {each} OR ids <> {each} ORDER BY at
"""


def wrong_seconds(table: Path) -> list[tuple[datetime, int]]:
    """Seconds with fewer or more orders than the shop takes in one, and how many.

    :param table: the Delta table.
    """
    found = QueryBuilder().register("orders", DeltaTable(str(table))).execute(_BY_SECOND.format(each=ORDERS_A_FILE))
    rows = found.read_all()
    return list(zip(rows["at"].to_pylist(), rows["orders"].to_pylist(), strict=True))


@dataclass(frozen=True)
class RowCheck:
    """How a table differs from that of a run that never failed.

    :param rows: that it has.
    :param lost: rows that are missing.
    :param wrong: rows that are there too often, or should not be there at all.
    :param taxed_from: time of the first order that the second version wrote; ``None``: there is none.
    :param mixed: orders written by the first version after that time.
    """

    rows: int
    lost: int
    wrong: int
    taxed_from: datetime | None
    mixed: int

    @property
    def is_exact(self) -> bool:
        """Whether every row is as it should be and none is there that should not."""
        return not (self.lost or self.wrong or self.mixed)


def check_rows(table: Path, reference: Path) -> RowCheck:
    """Compare tables row by row.

    :param table: of the stream that was upgraded.
    :param reference: of the second version, over the same orders without an interruption.
    """
    there, expected = _rows(table), _rows(reference)
    wanted = Counter(expected)
    # What the first version wrote has no tax.
    found = Counter(
        (*row[:4], expected_tax if row[4] is None else row[4]) for row, expected_tax in _taxed(there, expected)
    )
    taxed_from = min((row[3] for row in there if row[4] is not None), default=None)
    mixed = sum(1 for row in there if row[4] is None and taxed_from is not None and row[3] >= taxed_from)
    return RowCheck(len(there), (wanted - found).total(), (found - wanted).total(), taxed_from, mixed)


_Row = tuple[str, str, int, datetime, int | None]


def _taxed(rows: list[_Row], expected: list[_Row]) -> list[tuple[_Row, int | None]]:
    tax = {row[0]: row[4] for row in expected}
    return [(row, tax.get(row[0])) for row in rows]


def _rows(table: Path) -> list[_Row]:
    found = DeltaTable(str(table)).to_pyarrow_table()
    columns = [found[name].to_pylist() for name in ("order_id", "customer", "cents", "at")]
    taxes = found["vat"].to_pylist() if "vat" in found.column_names else [None] * len(found)
    return list(zip(*columns, taxes, strict=True))
