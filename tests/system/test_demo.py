"""The main job, `make demo`, in its short form; and the parts of it that judge, on cases they must not let pass."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.opening import open_location
from demo.comparison import Comparison, compare
from demo.control import copy_recursively
from demo.orders import Arrivals, is_complete, orders_of
from demo.spark_errors import reason
from tests.support.left_running import still_running
from tests.support.one_checkpoint import unpack

CHECKOUT = Path(__file__).parents[2]


def _start(output: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo.main", "--output", str(output), *options],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_demo(tmp_path: Path) -> None:
    output = tmp_path / "out"
    demo = _start(output, "--short")
    said, _ = demo.communicate()
    assert demo.returncode == 0, said
    assert "\nrows lost 0, rows doubled 0\n" in said
    assert "Spark: [CANNOT_LOAD_STATE_STORE" in said
    assert "recursive copies failed" in said
    assert "\x1b" not in said, "no colours if there is no terminal"
    report = json.loads((output / "report.json").read_text())
    assert report["result"]["is_exact"] is True
    assert report["result"]["orders"] == 160 * 100
    assert len(report["control"]) == 1
    assert report["killed"]["committed"] > report["backup"]["batch_id"], "the restore has to reach back"
    assert report["restore"]["batch_id"] == report["backup"]["batch_id"]
    assert sum(DeltaTable(str(output / "table")).to_pyarrow_table()["orders"].to_pylist()) == 16_000
    kept = Repository.open(open_location(str(output / "repository"))).backups()
    assert [manifest.backup_id for manifest in kept] == [report["backup"]["backup_id"]]
    assert report["backup"]["backup_id"] in (output / "plan.md").read_text()
    assert "rows lost 0, rows doubled 0" in (output / "report.md").read_text()
    assert not (output / "tmp").exists()
    assert still_running(output) == []


@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.parametrize("stop", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupted(tmp_path: Path, stop: signal.Signals) -> None:
    output = tmp_path / "out"
    demo = _start(output)
    deadline = time.monotonic() + 60
    while not (output / "logs" / "stream-1.log").exists() or len(still_running(output)) < 2:
        assert time.monotonic() < deadline, "the stream has not started"
    demo.send_signal(stop)
    said, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert said.endswith("\ninterrupted; every process that was started has been ended\n")
    assert still_running(output) == []


def test_somebody_elses_directory(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    demo = _start(tmp_path)
    said, _ = demo.communicate()
    assert demo.returncode == 1
    assert f"{tmp_path} holds files that are not the demo's: name another directory" in " ".join(said.split())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def _row(customer: str, orders: int, **other: Any) -> dict[str, Any]:
    return {"customer": customer, "orders": orders, "cents": orders * 100, "last_order": None, "ids": orders, **other}


EXPECTED = [_row("a", 3), _row("b", 2)]


@pytest.mark.parametrize(
    ("rows", "lost", "doubled"),
    [
        pytest.param([_row("b", 2), _row("a", 3)], 0, 0, id="exact"),
        pytest.param([_row("a", 1), _row("b", 2)], 2, 0, id="lost"),
        pytest.param([_row("a", 3), _row("b", 5)], 0, 3, id="doubled"),
        pytest.param([_row("a", 2), _row("b", 3)], 1, 1, id="lost-here-doubled-there"),
        pytest.param([_row("a", 3), _row("b", 2, ids=9)], 1, 1, id="as-many-but-others"),
        pytest.param([_row("a", 3)], 2, 0, id="customer-missing"),
        pytest.param([_row("a", 3), _row("b", 2), _row("c", 4)], 0, 4, id="customer-invented"),
        pytest.param([_row("a", 3), _row("b", 2), _row("b", 2)], 0, 2, id="row-twice"),
        pytest.param([], 5, 0, id="empty"),
    ],
)
def test_comparison(rows: list[dict[str, Any]], lost: int, doubled: int) -> None:
    found = compare(rows, EXPECTED)
    assert (found.rows_lost, found.rows_doubled) == (lost, doubled)
    assert found.is_exact == (lost == doubled == 0)


def test_comparison_counts() -> None:
    assert compare([_row("a", 3), _row("b", 1)], EXPECTED) == Comparison(
        rows=2,
        rows_equal=1,
        rows_lost=1,
        rows_doubled=0,
        orders=4,
        cents=400,
        expected_orders=5,
        expected_cents=500,
    )


def test_reason() -> None:
    log = """
26/11/21 WARN something
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query terminated with exception: Job aborted
Caused by: org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE] An error. 3.changelog
Caused by: java.io.FileNotFoundException: File 3.changelog does not exist
"""
    assert reason(log) == "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE] An error. 3.changelog"
    general = log.replace("CANNOT_READ_STREAMING_STATE_FILE", "UNCATEGORIZED")
    assert reason(general) == (
        "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] java.io.FileNotFoundException: File 3.changelog does not exist"
    )
    assert reason("java.lang.IllegalStateException: batch 3 doesn't exist\n") == (
        "java.lang.IllegalStateException: batch 3 doesn't exist"
    )


def test_recursive_copy(tmp_path: Path) -> None:
    """The control is fair: of a checkpoint at rest it gets everything but the checksums of a local disk."""
    source = unpack(tmp_path / "source")
    assert copy_recursively(source, tmp_path / "copy", latency=0) == 0
    expected = {
        path.relative_to(source): path.read_bytes()
        for path in source.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    assert {
        p.relative_to(tmp_path / "copy"): p.read_bytes() for p in (tmp_path / "copy").rglob("*") if p.is_file()
    } == expected


def test_same_orders_in_every_run(tmp_path: Path) -> None:
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        Arrivals(tmp_path / run, files=3, every=0).run()
        assert is_complete(tmp_path / run)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / run).iterdir()} for run in ("one", "two"))
    assert one == two
    assert list(orders_of(1)) != list(orders_of(2))
