"""Every example DAG: it can be imported, its form can be filled in, and nothing of the form is missing or for nothing."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from jinja2 import nodes
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "dags").glob("*.py"))
#: What a DAG file reads from the environment to make all of its DAGs.
ENVIRONMENT = {"CKPT_WATCHED_CHECKPOINT": "/checkpoints/orders"}

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@cache
def loaded(file: Path) -> tuple[DAG, ...]:
    """The DAGs of a file, as the DAG processor loads it."""
    from airflow.dag_processing.dagbag import DagBag

    with pytest.MonkeyPatch.context() as patched:
        for name, value in ENVIRONMENT.items():
            patched.setenv(name, value)
        bag = DagBag(dag_folder=str(file))
    assert bag.import_errors == {}
    return tuple(bag.dags.values())


def texts(value: Any) -> Iterator[str]:
    """Every string in a field of an operator."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from texts(each)


def params_of_templates(dag: DAG) -> set[str]:
    """Names of the params that the templates of the tasks read; a template that Jinja cannot read is an error."""
    env = dag.get_template_env()
    found = set()
    for task in dag.tasks:
        given = getattr(task, "partial_kwargs", None) or {}
        for name in task.template_fields:
            for text in texts(getattr(task, name, None) or given.get(name)):
                tree = env.parse(text)
                found |= {n.attr for n in tree.find_all(nodes.Getattr) if _is_params(n.node)}
                found |= {n.arg.as_const() for n in tree.find_all(nodes.Getitem) if _is_params(n.node)}
    return found


def _is_params(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == "params"


def params_of_functions(file: Path) -> set[str]:
    """Names of the params that the functions of a file read: ``params["x"]``, also by way of ``form = params or {}``."""
    tree = ast.parse(file.read_text())
    names = {"params"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _names(node.value) & {"params"} and isinstance(node.targets[0], ast.Name):
            names.add(node.targets[0].id)
    return {
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and _names(node.value) & names
    }


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    return {each.id for each in node.values if isinstance(each, ast.Name)} if isinstance(node, ast.BoolOp) else set()


def has_to_be_filled_in(param: Any) -> bool:
    """Whether a field of the form is left empty on purpose: nobody can guess what belongs there."""
    return param.value == "" and param.schema.get("minLength", 0) > 0


@every_file
def test_it_is_imported(file: Path) -> None:
    dags = loaded(file)
    assert file.stem in {dag.dag_id for dag in dags}
    for dag in dags:
        assert dag.tags
        assert dag.doc_md == ast.get_docstring(ast.parse(file.read_text()), clean=False)
        assert dag.tasks


@every_file
def test_its_form(file: Path) -> None:
    for dag in loaded(file):
        for name in dag.params:
            param = dag.params.get_param(name)
            where = f"{dag.dag_id}: {name}"
            Draft202012Validator.check_schema(param.schema)
            assert param.schema.get("title"), where
            assert "type" in param.schema or "enum" in param.schema, where
            if has_to_be_filled_in(param):
                # A run that nobody asked for has nobody to fill it in.
                assert dag.schedule is None, where
                with pytest.raises(ParamValidationError):
                    param.resolve()
            else:
                assert param.resolve() == param.value, where


def may_be_left_empty(param: Any) -> bool:
    """Whether Airflow's form takes the field without a value: one with a type is required unless that allows null."""
    kinds = param.schema.get("type")
    return kinds is None or "null" in kinds


@every_file
def test_the_form_can_be_submitted_once_the_fields_with_a_star_are_filled_in(file: Path) -> None:
    for dag in loaded(file):
        params = copy.deepcopy(dag.params)
        for name in params:
            param = params.get_param(name)
            where = f"{dag.dag_id}: {name}"
            if may_be_left_empty(param):
                assert param.resolve(None) is None, where  # what the form sends for a field that was cleared
            elif has_to_be_filled_in(param):
                # A person sees what belongs there, and that nothing is there yet.
                assert param.schema.get("description") or param.description, where
                assert param.resolve("x") == "x", where
            else:
                # The form counts an empty text as missing: Trigger would stay grey for a field that nobody has to fill in.
                assert param.value not in ("", None), where
                param.resolve()


@every_file
def test_no_example_is_preset_as_a_value(file: Path) -> None:
    for dag in loaded(file):
        for name in dag.params:
            param = dag.params.get_param(name)
            told = f"{param.schema.get('description') or ''} {param.description or ''}"
            for value in texts(param.value):
                assert "://" not in value, f"{dag.dag_id}: {name}"
                assert f"e.g. {value}" not in told or not value, f"{dag.dag_id}: {name}"
                # A name or an address belongs to one installation; the ids of connections are Airflow's own defaults.
                assert name not in ("checkpoint", "repository", "target", "name", "sink", "version") or not value


@every_file
def test_a_form_that_is_filled_in_is_taken_and_a_wrong_one_refused(file: Path) -> None:
    for dag in loaded(file):
        params = copy.deepcopy(dag.params)  # what is resolved is kept in them
        filled = {
            name: "x" if has_to_be_filled_in(params.get_param(name)) else params.get_param(name).value
            for name in params
        }
        for name, value in filled.items():
            param = params.get_param(name)
            assert param.resolve(value) == value, f"{dag.dag_id}: {name}"
            with pytest.raises(ParamValidationError):
                param.resolve({"neither": "a choice", "nor": "a field"} if param.schema.get("type") != "object" else 1)


@every_file
def test_every_param_of_a_template_is_in_the_form_and_every_field_of_the_form_is_used(file: Path) -> None:
    by_functions = params_of_functions(file)
    fields: set[str] = set()
    for dag in loaded(file):
        by_templates = params_of_templates(dag)
        assert by_templates <= set(dag.params), dag.dag_id
        assert set(dag.params) <= by_templates | by_functions, dag.dag_id
        fields |= set(dag.params)
    assert by_functions <= fields


@every_file
def test_it_is_run_under_dag_test_and_shown_in_a_howto(file: Path) -> None:
    # The short ways of one matter are tested together.
    test = ROOT / "tests" / "system" / f"test_{re.sub('_short_.*', '_short', file.stem)}.py"
    assert test.exists()
    text = test.read_text()
    # By the fixture, or by a demo: `demo.dag_runner` calls `dag.test()` in a process of its own.
    assert re.search(r"\brun_dag\(|\.test\(|\bdemo\.\w+\.main\b", text)
    assert file.stem in text
    howtos = "".join(howto.read_text() for howto in (ROOT / "docs" / "howto").glob("*.md"))
    assert f"<!-- include: dags/{file.name} " in howtos


@pytest.mark.parametrize(("name", "stop"), [("rewind_replay", "stop_stream"), ("rewind_chain", "stop_streams")])
def test_the_statement_is_dated_from_the_stop_and_not_from_the_form(name: str, stop: str) -> None:
    """The stream commits batches until it is stopped, hours after the form was sent where the approval takes hours."""
    (dag,) = loaded(ROOT / "dags" / f"{name}.py")
    stopped = dag.get_task("stopped")
    assert stopped.upstream_task_ids == {stop}
    assert "rewind" in stopped.get_flat_relative_ids(upstream=False)
    before = datetime.now(UTC)
    said: Any = stopped.python_callable()  # type: ignore[attr-defined]
    assert before <= datetime.fromisoformat(said) <= datetime.now(UTC)
    ti = SimpleNamespace(xcom_pull=lambda task_ids: {"stopped": said}[task_ids])
    rewind: Any = dag.get_task("rewind")
    assert rewind.render_template(rewind.stopped_since, {"ti": ti}) == said


@pytest.mark.parametrize("command", ["./stop.sh", "/opt/orders/act.bash", "orders-ctl stop"])
@pytest.mark.parametrize(
    ("name", "prefix", "task_ids"),
    [
        ("rewind_replay", "CKPT_STREAM", ["stop_stream", "start_stream"]),
        ("rewind_chain", "CKPT_CHAIN", ["stop_streams", "start_streams"]),
        (
            "safe_upgrade",
            "CKPT_STREAM",
            [
                f"upgrade.{each}"
                for each in ("stop", "deploy", "start", "checks", "stop_new", "roll_back_code", "start_old")
            ],
        ),
    ],
)
def test_a_command_may_be_the_path_of_a_script(
    name: str, prefix: str, task_ids: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow takes one that ends in `.sh` for the file of a template, which it does not find: half-way, under the seal."""
    from airflow.dag_processing.dagbag import DagBag

    for what in ("STOP", "START", "DEPLOY", "ROLL_BACK", "CHECK"):
        monkeypatch.setenv(f"{prefix}_{what}", command)
    dag = DagBag(dag_folder=str(ROOT / "dags" / f"{name}.py")).dags[name]
    for task_id in task_ids:
        task: Any = copy.copy(dag.get_task(task_id))
        task.render_template_fields({"params": {"version": "2.7"}})
        assert task.bash_command.strip() == command
