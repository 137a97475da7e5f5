"""The SQL around a full refresh."""

from __future__ import annotations

import ast

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.lakeflow.tables import (
    TableRecovery,
    backup_name,
    expired,
    list_backups,
    quoted,
)

TABLE = "main.sales.orders"
BACKUP = backup_name(TABLE, "20261121", "0a1b2c3d")


def test_statements() -> None:
    merge = TableRecovery(TABLE, BACKUP, ("id", "day"), "day < '2026'", "merge")
    assert merge.copy == (
        "CREATE TABLE IF NOT EXISTS `main`.`sales`.`orders__ckpt_20261121_0a1b2c3d` DEEP CLONE `main`.`sales`.`orders` "
        "WITH HISTORY"
    )
    assert TableRecovery(TABLE, BACKUP, by="ctas").copy.endswith("AS SELECT * FROM `main`.`sales`.`orders`")
    assert merge.bring_back == (
        "MERGE INTO `main`.`sales`.`orders` AS t USING (SELECT * FROM `main`.`sales`.`orders__ckpt_20261121_0a1b2c3d` "
        "WHERE day < '2026') AS b ON t.`id` <=> b.`id` AND t.`day` <=> b.`day` WHEN NOT MATCHED THEN INSERT *"
    )
    assert merge.doubled == (
        "SELECT count(*) AS n FROM (SELECT `id`, `day` FROM `main`.`sales`.`orders` GROUP BY `id`, `day` "
        "HAVING count(*) > 1) AS d"
    )
    whole = TableRecovery(TABLE, BACKUP, backfill="insert")
    assert whole.doubled is None
    assert whole.bring_back == (
        "INSERT INTO `main`.`sales`.`orders` SELECT * FROM `main`.`sales`.`orders__ckpt_20261121_0a1b2c3d` "
        "EXCEPT ALL SELECT * FROM `main`.`sales`.`orders`"
    )


@pytest.mark.parametrize("name", ["", "a..b", "a.b.c.d", "a`; DROP TABLE b"])
def test_no_name(name: str) -> None:
    with pytest.raises(RefusedError, match="is no name of a table"):
        quoted(name)


def test_keys_and_ways() -> None:
    with pytest.raises(RefusedError, match="a backfill by MERGE needs the columns"):
        TableRecovery(TABLE, BACKUP, backfill="merge")
    with pytest.raises(RefusedError, match="INSERT would put older versions"):
        TableRecovery(TABLE, BACKUP, ("id",), backfill="insert")


def test_clean_up_touches_nothing_else() -> None:
    assert list_backups(TABLE) == "SHOW TABLES IN `main`.`sales` LIKE 'orders__ckpt_*'"
    names = [
        "orders__ckpt_20261001_0a1b2c3d",
        "orders__ckpt_20261121_0a1b2c3d",
        "orders__ckpt_20200101_mine",
        "orders",
        "orders__ckpt_20261001_0a1b2c3d_of_mine",
    ]
    assert expired(names, "20261101") == ("orders__ckpt_20261001_0a1b2c3d",)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("orders", "orders"), ("o'r", r"o\'r"), ("a|b*", "a.b."), ("back\\slash", r"back\\slash"), ("`quoted`", "quoted")],
)
def test_names_in_a_pattern_are_escaped(name: str, pattern: str) -> None:
    assert list_backups(f"main.sales.{name}") == f"SHOW TABLES IN `main`.`sales` LIKE '{pattern}__ckpt_*'"


def test_the_snippet_is_python_whatever_the_names() -> None:
    names = 'main.sales.`o"r-1`', 'main.sales.`o"r-1__ckpt_20261121_0a1b2c3d`'
    odd = TableRecovery(*names, where='day < "2026"', backfill="append_once")
    ast.parse(odd.snippet)
    assert 'target="o\\"r-1"' in odd.snippet
    assert "def backfill_o_r_1():" in odd.snippet
