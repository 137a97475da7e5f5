"""docs/howto/lakeflow-symptoms.md: each line has an error that the advisor knows by the same code, and ways out that exist."""

from __future__ import annotations

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from airflow_ckpt_provider import operators, sensors
from airflow_ckpt_provider.advisor.advice import recovery_advice
from airflow_ckpt_provider.advisor.pipeline_conditions import CONDITIONS
from airflow_ckpt_provider.cli.verbs.pipelines import _TAKES
from tests.support.command_lines import parsed

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "howto" / "lakeflow-symptoms.md").read_text()
HEAD = ["error", "code", "what has happened", "command", "operator", "DAG"]
#: Error, code, what has happened, command, operator, DAG.
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]
each_row = pytest.mark.parametrize("row", ROWS, ids=[row[1].strip("`") for row in ROWS])
#: The tutorial's own words, which are not those of Spark.
TUTORIAL = (
    "Streaming stateful operator name does not match with the operator in state metadata.\n"
    "This is likely to happen when a user adds/removes/changes stateful operators of existing streaming query.\n"
    "Stateful operators in the metadata: [(OperatorId: 0 -> OperatorName: dedupe)];\n"
    "Stateful operators in current batch: []. SQLSTATE: 42K03 SQLSTATE: XXKST"
)


def code(cell: str) -> str:
    found = re.fullmatch(r"`(.*)`", cell)
    assert found, cell
    return found[1]


def event(message: str) -> str:
    """The event of a flow's failure, as the interface gives it."""
    wrapped = f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {message} SQLSTATE: XXKST"
    return json.dumps(
        {
            "event_type": "flow_progress",
            "level": "ERROR",
            "message": "Flow 'main.sales.orders' has FAILED fatally.",
            "origin": {"pipeline_id": "p1", "update_id": "u1", "flow_name": "main.sales.orders"},
            "error": {"fatal": True, "exceptions": [{"class_name": "StreamingQueryException", "message": wrapped}]},
        }
    )


def test_every_line_is_whole() -> None:
    assert len(ROWS) >= 20
    assert all(len(row) == len(HEAD) for row in ROWS)
    tables = PAGE.count("| " + " | ".join(HEAD) + " |")
    assert tables == PAGE.count("|---|---|---|---|---|---|\n") == 4


@each_row
def test_the_advisor_knows_the_error_by_the_same_code(row: list[str]) -> None:
    for text in (code(row[0]), event(code(row[0]))):
        advice = recovery_advice(text)
        assert advice.condition is not None
        assert advice.condition.code == code(row[1])


@each_row
def test_its_command_is_one(row: list[str]) -> None:
    program, *arguments = shlex.split(code(row[3]))
    assert program == "airflow-ckpt"
    said = parsed(arguments)
    for option, actions in _TAKES.items():
        assert not getattr(said, option) or said.action in actions


@each_row
def test_its_operator_and_its_dag_exist(row: list[str]) -> None:
    modules = [
        import_module(f"{package.__name__}.{module.name}")
        for package in (operators, sensors)
        for module in iter_modules(package.__path__)
    ]
    assert any(hasattr(module, code(row[4])) for module in modules)
    assert (ROOT / "dags" / f"{code(row[5])}.py").exists()


def test_every_condition_of_a_pipeline_is_on_the_page() -> None:
    """But what only Spark's own pipelines say, which are not Lakeflow's."""
    assert {c.code for c in CONDITIONS} - {code(row[1]) for row in ROWS} == {"PIPELINE-SOURCES-CHANGED"}


@pytest.mark.parametrize("text", [TUTORIAL, TUTORIAL.splitlines()[0], event(TUTORIAL)])
def test_the_words_of_the_tutorial(text: str) -> None:
    advice = recovery_advice(text)
    assert advice.condition is not None
    assert advice.condition.code == "OPERATORS-CHANGED"
