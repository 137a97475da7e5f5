"""What of the audit needs no Spark: views, comparison, reports. The rest is in tests/integration/test_audit_state.py."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.jobs import audit_state
from airflow_ckpt_provider.jobs.audit_state import compare, earlier_report, percent, spread, table, views_of, write

JOIN = ["left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue"]
#: As Spark 4.0.0 writes them for a processor with a value, a list with a TTL, a map and timers.
VARIABLES = [
    {"stateName": "total", "stateVariableType": "ValueState", "ttlEnabled": False},
    {"stateName": "values", "stateVariableType": "ListState", "ttlEnabled": True},
    {"stateName": "$procTimers_keyToTimestamp", "stateVariableType": "TimerState", "ttlEnabled": False},
]


def test_it_is_one_file_that_a_cluster_can_run_alone():
    """Neither Airflow nor this package is installed there, and pyspark only once it runs."""
    tree = ast.parse(Path(audit_state.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    tops = {name.partition(".")[0] for name in names}
    assert "airflow_ckpt_provider" not in tops
    assert "airflow" not in tops
    at_the_top = {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not {name for name in at_the_top if name.startswith(("pyspark", "fsspec"))}


def test_views_of_a_plain_operator():
    (view,) = views_of("stateStoreSave", ["default"], {})
    assert (view.name, view.kind, view.options, view.feed, view.directories) == ("default", "store", (), (), ("",))


def test_views_of_a_join():
    left, right = views_of("symmetricHashJoin", JOIN, {})
    assert (left.name, right.name) == ("left", "right")
    assert left.options == left.feed == (("storeName", "left-keyWithIndexToValue"),)
    assert left.directories == ("left-keyToNumValues", "left-keyWithIndexToValue")


def test_views_of_a_join_that_keeps_both_sides_in_one_store():
    left, right = views_of("symmetricHashJoin", ["default"], {})
    assert (left.options, left.feed) == ((("joinSide", "left"),), None)
    assert left.directories == right.directories == ("",)


@pytest.mark.parametrize("variables", [VARIABLES, json.dumps(VARIABLES)], ids=["list", "text"])
def test_views_of_a_stateful_processor(variables: Any):
    found = list(views_of("transformWithStateExec", ["default"], {"stateVariables": variables}))
    assert [(v.name, v.kind) for v in found] == [("total", "variable"), ("values", "variable"), ("timers", "timers")]
    assert found[0].options == (("stateVarName", "total"),)
    assert found[2].feed is None


def test_a_spread():
    assert spread({0: 10, 1: 0, 2: 50}) == {
        "partitions": 3,
        "min": 0,
        "median": 10,
        "max": 50,
        "largest_partition": 2,
        "skew": 2.5,
    }
    assert spread({}) is None
    assert spread({0: 0})["skew"] == 1.0


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(100, 150, 50.0), (100, 50, -50.0), (0, 10, None), (None, 10, None), (3, 4, 33.33)],
)
def test_percent(before: int | None, after: int, expected: float | None):
    assert percent(before, after) == expected


def report(rows: int, *, batch: int = 5) -> dict[str, Any]:
    store = {
        "name": "default",
        "kind": "store",
        "rows": rows,
        "bytes": 1000,
        "by_partition": {"0": rows},
        "rows_per_partition": spread({0: rows}),
        "event_time": {
            "column": "window.end",
            "oldest": "2024-01-01T00:00:00+00:00",
            "newest": "2024-01-01T00:05:00+00:00",
        },
        "growth": None,
    }
    return {
        "format": "airflow-ckpt-state-audit",
        "version": 1,
        "checkpoint": "s3a://lake/ck/orders",
        "spark": "4.0.0",
        "taken": "2026-11-21T08:31:07+00:00",
        "batch_id": batch,
        "unreadable": [],
        "rows": rows,
        "bytes": 1000,
        "operators": [{"id": 0, "name": "stateStoreSave", "files": 2, "bytes": 1000, "stores": [store]}],
        "compared_with": None,
    }


def test_a_comparison():
    now = report(150)
    compare(now, report(100, batch=3), source="before.json")
    assert now["compared_with"] == {
        "report": "before.json",
        "batch_id": 3,
        "taken": "2026-11-21T08:31:07+00:00",
        "rows": 100,
        "bytes": 1000,
        "rows_percent": 50.0,
        "bytes_percent": 0.0,
    }
    store = now["operators"][0]["stores"][0]
    assert (store["rows_before"], store["rows_percent"]) == (100, 50.0)


def test_the_table_is_for_people():
    now = report(1500)
    compare(now, report(1000), source="x")
    now["unreadable"] = [{"batch_id": 6, "reason": "gone"}]
    lines = table(now).splitlines()
    assert lines[0] == "s3a://lake/ck/orders  batch 5  1,500 rows  1,000 bytes"
    columns = "operator store rows bytes min median max skew oldest newest growth"
    assert " ".join(lines[2].split()) == columns
    assert " ".join(lines[3].split()) == (
        "0 stateStoreSave default 1,500 1,000 1,500 1,500 1,500 1.0 2024-01-01T00:00:00 2024-01-01T00:05:00 +50.0 %"
    )
    assert lines[4] == "batch 6 could not be read: gone"
    assert table({**now, "operators": []}) == "s3a://lake/ck/orders  no stateful operators"


@pytest.mark.parametrize(
    ("before", "now", "growth"), [(0, 7, "from 0"), (0, 0, "2024-01-01T00:05:00"), (7, 0, "-100.0 %")]
)
def test_the_table_shows_growth_from_nothing(before: int, now: int, growth: str):
    found = report(now)
    compare(found, report(before, batch=3), source="x")
    assert table(found).splitlines()[3].endswith(f"  {growth}")


def test_the_report_before_is_found_by_name(tmp_path: Path):
    for name, rows in (("20261119", 1), ("20261120", 2), ("20261122", 4)):
        write(report(rows), str(tmp_path / f"{name}.json"))
    (tmp_path / "notes.txt").write_text("not a report")
    found = earlier_report(str(tmp_path), than=str(tmp_path / "20261121.json"))
    assert found is not None
    assert (found[0]["rows"], Path(found[1]).name) == (2, "20261120.json")
    # A run that is done again compares with the same one.
    assert earlier_report(str(tmp_path), than=str(tmp_path / "20261119.json")) is None
    newest = earlier_report(str(tmp_path), than=None)
    assert newest is not None
    assert newest[0]["rows"] == 4


def test_reports_on_any_store():
    write(report(7), "memory://audits/orders/1.json")
    found = earlier_report("memory://audits/orders", than="memory://audits/orders/2.json")
    assert found is not None
    assert found[0]["rows"] == 7
    assert earlier_report("memory://audits/returns", than=None) is None


def test_a_file_that_is_no_report(tmp_path: Path):
    (tmp_path / "1.json").write_text('{"format": "something else"}')
    with pytest.raises(ValueError, match="is no report of this job"):
        earlier_report(str(tmp_path / "1.json"), than=None)
