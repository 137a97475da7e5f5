"""The pages that lead a newcomer: what they say to type exists, and the tutorial works as it is printed."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from pkgutil import iter_modules
from textwrap import dedent
from typing import NamedTuple

import pytest

from airflow_ckpt_provider.cli.definition.examples import EXAMPLES
from airflow_ckpt_provider.cli.program import build_parser
from airflow_ckpt_provider.jobs import rehearse
from dev.diagrams import DIAGRAMS
from tests.support.command_line import run
from tests.support.command_lines import parsed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "airflow_ckpt_provider"
#: Folders whose public classes a DAG author uses.
FOLDERS = ("operators", "sensors", "task_groups", "notifications", "hooks", "triggers", "links")


class Row(NamedTuple):
    """A row of the table: what happened, and what to use."""

    situation: str
    command: str
    operator: str
    dag: str
    page: str


ROWS = [
    Row(*(cell.strip() for cell in line.strip("|").split(" | ")))
    for line in (DOCS / "by-situation.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| situation |")
]


def named(cell: str) -> str | None:
    return None if cell == "-" else cell.strip("`")


def test_enough_situations() -> None:
    assert len(ROWS) >= 80
    assert len({row.situation for row in ROWS}) == len(ROWS)


#: What tutorials on the recovery of checkpoints write about.
IN_TUTORIALS = (
    "driver was lost",
    "executor was lost",
    "corrupted",
    "state file is missing",
    "schema of the source changed",
    "stateful operator was added",
    "every start runs out of memory",
    "retention is exceeded",
    "topic was deleted and recreated",
    "table was dropped and created again",
    "sink duplicates",
    "checkpoint moves",
    "another bucket or cloud",
    "Spark was upgraded",
    "state is slow",
    "checkpoint grows",
    "repository grows",
    "`startingOffsets` is ignored",
    "`dbutils.fs.cp`",
    "`history()`",
    "reset the checkpoint of one flow",
    "full refresh of a pipeline",
    "rewind a pipeline",
)


@pytest.mark.parametrize("situation", IN_TUTORIALS)
def test_each_situation_of_the_tutorials_is_there(situation: str) -> None:
    assert [row for row in ROWS if situation in row.situation]


@pytest.mark.filterwarnings("error")
def test_every_command_is_right_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is run where nothing is: it ends because of that, and not because its options exclude each other."""
    monkeypatch.chdir(tmp_path)
    for row in ROWS:
        if command := named(row.command):
            program, *arguments = shlex.split(re.sub(r"\b(s3a?|gs)://", "", command))
            if program == "spark-submit":  # it would need a Spark
                assert arguments.pop(0) == "rehearse.py"
                rehearse._parser().parse_args(arguments)
                continue
            assert program == "airflow-ckpt"
            if arguments[0] == "pipelines":  # it would ask a workspace
                parsed(arguments)
            else:
                assert run(*arguments).code in (1, 3), command


def commands(page: Path) -> list[str]:
    """The commands in the blocks of a page."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text().replace("\\\n", " "), re.MULTILINE | re.DOTALL)
    return re.findall(r"\bairflow-ckpt (.*)$", "\n".join(blocks), re.MULTILINE)


#: Verbs that change a checkpoint that is there.
CHANGES = {"doctor", "rewind", "reset", "chain", "flows"}


def test_every_command_in_a_block_parses_and_says_that_the_query_is_stopped() -> None:
    """Those that ``--help`` shows, too."""
    shown = [command for page in (*DOCS.rglob("*.md"), ROOT / "README.md") for command in commands(page)]
    assert len(shown) > 150
    for command in (*shown, *(f"{verb} {words}" for verb, lines in EXAMPLES.items() for words in lines)):
        if command.startswith("--completion"):  # it prints, and ends
            continue
        alone = re.split(" [|<>] ", command)[0].replace("$CHAIN", "--stream bronze=CHECKPOINT")
        arguments = shlex.split(alone, comments=True)
        args = parsed(arguments)
        if arguments[0] in CHANGES and args.apply:
            assert args.query_is_stopped or args.stop_running, command


def test_the_commands_that_print_a_plan_first_are_those_that_need_apply() -> None:
    (verbs,) = (a.choices for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    need_it = {verb for verb, parser in verbs.items() if any("--apply" in a.option_strings for a in parser._actions)}
    told = re.search(r"\* (.*?) print a plan first", (DOCS / "by-situation.md").read_text(), re.DOTALL)
    assert told
    assert {word.split()[0] for word in re.findall(r"`([^`]+)`", told[1])} == need_it


def test_every_dag_has_the_operator_of_its_row() -> None:
    """In its file, or in the task group that it uses."""

    def code(dag: str) -> str:
        text = (ROOT / "dags" / f"{dag}.py").read_text()
        groups = re.findall(r"airflow_ckpt_provider\.(task_groups\.\w+)", text)
        files = (ROOT / "airflow_ckpt_provider" / f"{group.replace('.', '/')}.py" for group in groups)
        return text + "".join(file.read_text() for file in files)

    rows = [(operator, dag) for row in ROWS if (operator := named(row.operator)) and (dag := named(row.dag))]
    assert len(rows) > 30
    assert [(operator, dag) for operator, dag in rows if operator not in code(dag)] == []


@pytest.fixture(scope="module")
def known() -> dict[str, object]:
    """What a DAG author imports from the folders of this package, by name."""
    found: dict[str, object] = {}
    for folder in FOLDERS:
        package = import_module(f"airflow_ckpt_provider.{folder}")
        for module in iter_modules(package.__path__):
            members = vars(import_module(f"{package.__name__}.{module.name}")).items()
            found |= {name: value for name, value in members if name[0] != "_"}
    return found


def test_every_operator_can_be_imported(known: dict[str, object]) -> None:
    asked = {operator for row in ROWS if (operator := named(row.operator))} - {"SparkSubmitOperator"}
    assert len(asked) > 25
    assert asked <= known.keys()


def parameters(operator: type) -> set[str]:
    """The names of all arguments that an operator takes, those of its bases included."""
    return {
        name for base in operator.__mro__ if "__init__" in vars(base) for name in signature(base.__init__).parameters
    }


def test_every_snippet_names_what_exists(known: dict[str, object]) -> None:
    """Modules that are imported, and arguments of operators, also in the text."""
    calls = []
    for page in (*DOCS.rglob("*.md"), ROOT / "README.md"):
        text = page.read_text()
        blocks = re.findall(r"^ *```python\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
        inline = re.findall(r"`([A-Z]\w+(?:Operator|Sensor|Notifier|Trigger)\(.*?\))`", text, re.DOTALL)
        for code in (*map(dedent, blocks), *(words.replace(", …", "").replace("…", "None") for words in inline)):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name):
                    assert {each.name for each in node.names} <= vars(import_module(node.module or "")).keys(), page
                elif isinstance(node, ast.Call):
                    partial = isinstance(node.func, ast.Attribute) and node.func.attr == "partial"
                    func = node.func.value if partial and isinstance(node.func, ast.Attribute) else node.func
                    operator = known.get(func.id) if isinstance(func, ast.Name) else None
                    if isinstance(operator, type) and operator.__module__.startswith(PACKAGE.name):
                        given = {keyword.arg for keyword in node.keywords if keyword.arg}
                        calls.append((page.name, operator.__name__, given - parameters(operator)))
    assert len(calls) > 60
    assert [call for call in calls if call[2]] == []


def test_every_dag_and_page_exists() -> None:
    assert {f"{dag}.py" for row in ROWS if (dag := named(row.dag))} <= {p.name for p in (ROOT / "dags").glob("*.py")}
    for row in ROWS:
        [page] = re.findall(r"\]\((.+)\)", row.page)
        assert (DOCS / page.partition("#")[0]).exists(), row


def test_every_example_dag_is_in_a_situation() -> None:
    shown = {row.dag.strip("`") for row in ROWS}
    assert {path.stem for path in (ROOT / "dags").glob("*.py")} <= shown


def test_every_public_class_is_in_the_reference() -> None:
    listed = set(
        re.findall(r"^\.\. auto(?:class|function):: (\S+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    )
    public = set()
    for folder in FOLDERS:
        for path in (PACKAGE / folder).glob("*.py"):
            for node in ast.parse(path.read_text()).body:
                callable_too = folder in ("task_groups", "notifications") and isinstance(node, ast.FunctionDef)
                if (isinstance(node, ast.ClassDef) or callable_too) and not node.name.startswith("_"):
                    public.add(f"{PACKAGE.name}.{folder}.{path.stem}.{node.name}")
    assert listed == public


def test_every_page_is_in_the_index() -> None:
    listed = set(re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    assert listed == pages


def masked(line: str) -> str:
    """A line without what is different in every run: names of backups and plans, times, sizes."""
    line = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b", "ID", line)
    return re.sub(r"\d+", "N", re.sub(r"\s+", " ", line.strip()))


def shows(printed: str, shown: list[str]) -> bool:
    """Whether output looks as it is shown: `…` in a line is any text, and alone any number of lines."""
    pattern = ""
    for line in shown:
        if line == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(masked(part)) for part in line.split("…")).rstrip(" ") + r"\n"
    return re.fullmatch(pattern, "".join(masked(line) + "\n" for line in printed.splitlines())) is not None


@pytest.mark.parametrize(("page", "count", "left"), [("docs/start.md", 10, []), ("README.md", 2, ["orders"])])
def test_the_tutorial(page: str, count: int, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the page, one after the other, prints what the page shows."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    steps = [step.splitlines() for block in blocks for step in re.split(r"^\$ ", block, flags=re.MULTILINE) if step]
    assert len(steps) >= count
    for command, *shown in steps:
        program, *arguments = shlex.split(command)
        if program == "airflow-ckpt":
            done = run(*arguments)
            assert done.code == (1 if "STATE-INCOMPLETE" in "".join(shown) else 0), done
            printed = done.out
        else:
            program = sys.executable if program == "python" else program
            printed = subprocess.run(
                [program, *arguments],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        assert shows(printed, shown), f"{command}\n{printed}"
    assert [path.name for path in tmp_path.iterdir()] == left


def test_diagrams_are_what_their_source_draws() -> None:
    """``python -m dev.diagrams`` writes them."""
    assert {path.name for path in (DOCS / "images").glob("concept-*.svg")} == set(DIAGRAMS)
    for name, draw in DIAGRAMS.items():
        assert (DOCS / "images" / name).read_text() == draw(), name
    shown = "".join(page.read_text() for page in (DOCS / "concepts").glob("*.md"))
    assert set(re.findall(r"images/(concept-[\w-]+\.svg)", shown)) == set(DIAGRAMS)
