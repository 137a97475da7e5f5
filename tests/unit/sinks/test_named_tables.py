"""What a name of a table is, and which engine is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.errors import RefusedError, StorageError, WorkspaceError
from airflow_ckpt_provider.lakeflow.queries import warehouse_queries
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget, roll_back_table
from airflow_ckpt_provider.sinks.described_history import described_history
from airflow_ckpt_provider.sinks.named_tables import (
    Described,
    engine_for,
    in_sql,
    parts_of,
    path_in_sql,
    prefixed,
    quoted,
)
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.sinks.spark_restore import APPLICATION
from airflow_ckpt_provider.sinks.spark_tables import DESCRIBE
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.checkpoints import QUERY_ID
from tests.support.delta_batches import append, delta_table


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("main.sales.orders", ("main", "sales", "orders")),
        ("`my cat`.sales.`a``b.c`", ("my cat", "sales", "a`b.c")),
    ],
)
def test_parts(text: str, parts: tuple[str, ...]) -> None:
    assert parts_of(text) == parts
    assert parts_of(quoted(text)) == parts
    assert parts_of(in_sql(text)) == parts


def test_a_directory_in_a_statement_that_a_person_runs(tmp_path: Path) -> None:
    assert path_in_sql(open_location("s3://lake/orders")) == "delta.`s3://lake/orders`"
    assert path_in_sql(open_location(f"{tmp_path}/a`b")) == f"delta.`{tmp_path}/a``b`"


def test_a_name_in_a_statement_that_a_person_runs() -> None:
    """Databricks takes a hyphen without backticks for a minus."""
    assert in_sql("my-catalog.sales.orders") == "`my-catalog`.sales.orders"
    assert in_sql("`my cat`.sales.`a``b.c`") == "`my cat`.sales.`a``b.c`"


@pytest.mark.parametrize(
    "text",
    [
        "orders",
        "/lake/main.sales.orders",
        "./main.sales.orders",
        "s3://lake/a.b.c",
        "a.b.c.d",
        "main..orders",
        ".a.b",
        "C:\\a.b.c",
    ],
)
def test_places_are_no_names(text: str) -> None:
    assert engine_for(text, (), lambda: False) is None


def test_a_directory_stays_a_directory_where_nothing_is_configured() -> None:
    assert engine_for("main.sales.orders", (), lambda: True) is None
    assert engine_for("orders.delta", (), lambda: False) is None, "two parts: a path, as before"


def test_prefixes() -> None:
    assert prefixed("unity:main.sales.orders") == ("unity", "main.sales.orders")
    assert prefixed("spark:sales.orders") == ("spark", "sales.orders")
    assert prefixed("kafka") is None
    with pytest.raises(RefusedError, match="does not name a table"):
        prefixed("unity:")


def test_a_plain_name_of_a_catalog_of_pyiceberg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", "sqlite:///nowhere")
    monkeypatch.chdir(tmp_path)
    assert Sink.named("prod.sales.orders", open_location).name == "iceberg:prod.sales.orders"
    with pytest.raises(RefusedError, match="nothing is configured that knows it"):
        Sink.named("other.sales.orders", open_location)
    (tmp_path / "prod.sales.orders").mkdir()
    (tmp_path / "prod.sales.orders" / "part").write_text("x")
    with pytest.raises(RefusedError, match="is a directory here"):
        Sink.named("prod.sales.orders", open_location)


def history(*rows: dict[str, Any]) -> Any:
    detail = {"format": "delta", "id": "t", "properties": "{}"}
    return described_history("unity:a.b.c", Described(detail, rows), feature="restored by a test")


def batch(version: int, epoch: int) -> dict[str, Any]:
    about = {"queryId": QUERY_ID, "epochId": str(epoch)}
    return {"version": str(version), "operation": "STREAMING UPDATE", "operationParameters": about}


def test_a_hole_in_a_history() -> None:
    """Below a version that is missing nothing counts."""
    found = history(batch(5, 5), batch(4, 4), batch(2, 2), batch(1, 1))
    assert (found.first, found.newest, found.remembered(QUERY_ID)) == (4, 5, 5)
    assert not found.is_whole


def test_an_unknown_operation_changes_rows() -> None:
    found = history(batch(1, 0), {"version": 2, "operation": "SOMETHING NEW"}, {"version": 3, "operation": "OPTIMIZE"})
    assert [commit.changes_data for commit in found.commits] == [True, True, False]


def test_a_restore_to_a_time_is_not_known() -> None:
    to = {"version": None, "timestamp": "2026-11-22 08:00:00"}
    found = history(batch(0, 0), batch(1, 1), {"version": 2, "operation": "RESTORE", "operationParameters": to})
    assert found.lineage() is None


def test_it_is_no_delta_table() -> None:
    with pytest.raises(RefusedError, match="of the format parquet, not delta"):
        described_history("unity:a.b.c", Described({"format": "parquet"}, ()), feature="x")


class HalfAnAnswer:
    """A warehouse that loses a part of the rows."""

    def send_statement(self, statement: str, warehouse_id: str, *, once: bool = False) -> str:
        return "1"

    def get_statement(self, statement_id: str) -> dict[str, Any]:
        manifest = {"schema": {"columns": [{"name": "version"}]}, "total_row_count": 2}
        return {"status": {"state": "SUCCEEDED"}, "manifest": manifest, "result": {"data_array": [["1"]]}}

    def get_statement_chunk(self, statement_id: str, index: int) -> dict[str, Any]:
        raise AssertionError

    def cancel_statement(self, statement_id: str) -> None:
        raise AssertionError


class NeverEnds(HalfAnAnswer):
    """A warehouse that does not start: a statement waits until it is cancelled."""

    state = "PENDING"

    def get_statement(self, statement_id: str) -> dict[str, Any]:
        return {"status": {"state": self.state}}

    def cancel_statement(self, statement_id: str) -> None:
        self.state = "CANCELED"


def test_a_restore_that_does_not_end_is_cancelled() -> None:
    """Else it would run at a later time, when the query has written again."""
    with pytest.raises(WorkspaceError, match="has not ended"):
        warehouse_queries(NeverEnds(), "w", sleep=lambda _: None)("DESCRIBE HISTORY a.b.c")
    with pytest.raises(RefusedError, match="the warehouse says CANCELED"):
        warehouse_queries(NeverEnds(), "w", sleep=lambda _: None, once=True)("RESTORE TABLE a.b.c TO VERSION AS OF 1")


def test_rows_that_did_not_come_back_are_no_history() -> None:
    with pytest.raises(WorkspaceError, match="2 rows, and 1 of them came back"):
        warehouse_queries(HalfAnAnswer(), "w")("DESCRIBE HISTORY a.b.c")


def test_spark_takes_out_what_somebody_wrote_at_the_same_moment(tmp_path: Path) -> None:
    """Spark compares the version before it restores; what comes in between is named."""
    table = delta_table(tmp_path / "t", range(4))

    def by_spark(target: TableTarget, expected: int) -> None:
        append(table.uri, 9, app_id=None)
        from deltalake import CommitProperties

        words = CommitProperties(custom_metadata={"airflowCkptPlan": target.plan_id})
        DeltaTable(table.uri).restore(target.version, commit_properties=words)

    target = TableTarget(table, 1, QUERY_ID, 1, "plan", {})
    with pytest.raises(StorageError, match=r"(?s)somebody wrote version 4 \(WRITE.*RESTORE TABLE.*VERSION AS OF 4"):
        roll_back_table(target, expected=3, by_spark=by_spark, undo_command="undo")


@pytest.mark.parametrize("application", [APPLICATION, DESCRIBE])
def test_the_applications_are_there(application: str) -> None:
    """Spark is given their paths: a module that is moved must not leave them behind."""
    assert Path(application).is_file()
