"""dags/safe_upgrade.py: its form, and `make demo-upgrade`, which runs it on a real stream of real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, TaskGroup
from deltalake import write_deltalake

from demo.orders import orders_of
from demo.upgrade.checks import check_rows, wrong_seconds
from demo.upgrade.commands import deploy, roll_back
from demo.upgrade.place import Place
from demo.upgrade.versions import BAD
from tests.support.airflow_runs import DAGS, load_dags
from tests.support.left_running import still_running

CHECKOUT = Path(__file__).parents[2]
#: Which kind of bad version is refused before anything has changed; the others are undone.
REFUSED = {"operator-changed"}


def load() -> DAG:
    return load_dags(DAGS / "safe_upgrade.py")["safe_upgrade"]


@pytest.mark.airflow
def test_form_and_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_STREAM_DEPLOY", 'orders-ctl deploy "$VERSION"')
    dag = load()
    for name in list(dag.params):
        if dag.params.get_param(name).value == "" and dag.params.get_param(name).schema.get("minLength"):
            dag.params[name] = "2" if name == "version" else f"/{name}"
    dag.params.validate()
    group = dag.task_group.children["upgrade"]
    assert isinstance(group, TaskGroup)
    assert dag.task_dict["upgrade.deploy"].bash_command == 'orders-ctl deploy "$VERSION" '
    assert dag.task_dict["upgrade.deploy"].env == {"VERSION": "{{ params.version }}"}
    # A stream that nobody stops is not stopped by a task that says nothing.
    assert dag.task_dict["upgrade.stop"].bash_command.endswith("exit 1 ")
    assert {"upgrade.checks", "upgrade.compatible"}.isdisjoint(dag.task_dict)
    fields = {field for task in dag.tasks for field in task.template_fields}
    rendered = json.dumps([[str(getattr(task, field, "")) for field in fields] for task in dag.tasks])
    assert [name for name in dag.params if f"params.{name} " not in rendered] == []


@pytest.mark.airflow
def test_parts_that_are_there_when_their_variable_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_STREAM_CHECK", "true")
    monkeypatch.setenv("CKPT_STREAM_DESCRIPTION", "s3://lake/descriptions/{{ params.version }}.json")
    monkeypatch.setenv("CKPT_STREAM_PROGRESS", "s3://lake/progress/orders.jsonl")
    dag = load()
    assert dag.task_dict["upgrade.compatible"].description == "s3://lake/descriptions/{{ params.version }}.json"
    assert dag.task_dict["upgrade.healthy"].progress_log == "s3://lake/progress/orders.jsonl"
    assert dag.task_dict["upgrade.checks"].bash_command == "true "


@pytest.mark.airflow
def test_a_version_has_to_be_entered() -> None:
    with pytest.raises(ValueError, match="version"):
        load().params.validate()


@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bad", sorted(BAD))
def test_demo_upgrade(bad: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    demo = subprocess.run(
        [sys.executable, "-m", "demo.upgrade.main", "--bad", bad, "--output", str(output)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout
    assert "\nrows lost 0, rows doubled or wrong 0, of " in demo.stdout
    report = json.loads((output / "report.json").read_text())
    assert report["good"]["downtime"] > 0
    assert report["bad"]["kind"] == ("untouched" if bad in REFUSED else "taken_back")
    assert report["result"]["is_exact"] is True
    assert (output / "releases").read_text().split() == ["1", "2"]
    assert still_running(output) == []


def _row(number: int, order: dict[str, Any], *, taxed: bool) -> dict[str, Any]:
    at = datetime.fromisoformat(order["at"])
    return {**order, "at": at, "vat": round(order["cents"] * 0.19) if taxed else None}


def _table(path: Path, rows: list[dict[str, Any]]) -> Path:
    schema = pa.schema(
        [
            ("order_id", pa.string()),
            ("customer", pa.string()),
            ("cents", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("vat", pa.int64()),
        ]
    )
    write_deltalake(str(path), pa.Table.from_pylist(rows, schema))
    return path


def test_the_row_check_finds_what_it_should(tmp_path: Path) -> None:
    orders = [(n, order) for n in range(3) for order in orders_of(n)]
    right = [_row(n, order, taxed=n > 0) for n, order in orders]
    expected = _table(tmp_path / "expected", [_row(n, order, taxed=True) for n, order in orders])
    found = check_rows(_table(tmp_path / "right", right), expected)
    assert found.is_exact
    assert (found.rows, found.taxed_from) == (300, right[100]["at"])
    assert wrong_seconds(tmp_path / "right") == []
    for name, rows, differs in (
        ("lost", right[:-1], (1, 0, 0)),
        ("doubled", [*right, right[-1]], (0, 1, 0)),
        ("other", [*right[:-1], {**right[-1], "cents": 7}], (1, 1, 0)),
        ("other tax", [*right[:-1], {**right[-1], "vat": 7}], (1, 1, 0)),
        ("old code again", [*right[:-1], {**right[-1], "vat": None}], (0, 0, 1)),
    ):
        found = check_rows(_table(tmp_path / name, rows), expected)
        assert (found.lost, found.wrong, found.mixed) == differs, name
        assert not found.is_exact
    assert [count for _, count in wrong_seconds(tmp_path / "lost")] == [99]
    assert [count for _, count in wrong_seconds(tmp_path / "doubled")] == [101]


def test_versions_are_deployed_and_taken_back_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for version in ("1", "2", "2"):
        deploy(place, version)
    assert place.deployed == ["1", "2"]
    for _ in range(2):
        roll_back(place, "2")
        assert place.deployed == ["1"]
    with pytest.raises(SystemExit, match="there is no version 9"):
        deploy(place, "9")
    assert place.driver is None
    with place.driver_runs():
        assert place.driver == os.getpid()
        with pytest.raises(BlockingIOError), Place(tmp_path).driver_runs():
            pass
    assert place.driver is None
