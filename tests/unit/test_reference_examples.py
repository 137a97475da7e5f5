"""Every public class has an example in its docstring, and each example runs inside a DAG."""

from __future__ import annotations

import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowException
from airflow.sdk import DAG

PAGE = (Path(__file__).parents[2] / "docs/reference.md").read_text()


def section(heading: str) -> list[str]:
    """The full names that a section of the page lists."""
    return listed(re.split(r"^## ", PAGE.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0])


def listed(text: str) -> list[str]:
    return re.findall(r"^\.\. auto(?:class|function):: (\S+)$", text, re.MULTILINE)


def named(full_name: str) -> Any:
    module, _, name = full_name.rpartition(".")
    return getattr(import_module(module), name)


ALL = {name.rpartition(".")[2]: named(name) for name in listed(PAGE)}
#: Shown by the examples of the classes that are derived from them.
BASES = section("Base classes")
#: What they are called now has an example.
DEPRECATED = section("Deprecated names")
#: Classes that only say what an object has to have: shown by the example of what takes it.
PROTOCOLS = [name for name in section("Parts of operators") if getattr(named(name), "_is_protocol", False)]
OWN = [name for name in listed(PAGE) if name not in (*BASES, *DEPRECATED, *PROTOCOLS)]


def examples(thing: Any) -> list[str]:
    """The code blocks of a docstring."""
    found = re.split(r"^\.\. code-block:: python\n\n", inspect.getdoc(thing) or "", flags=re.MULTILINE)[1:]
    return [textwrap.dedent(re.match(r"(?:(?:    .*)?\n?)*", block)[0]) for block in found]  # type: ignore[index]


def made_by(code: str) -> list[Any]:
    """Run an example inside a DAG; return all objects that it made."""
    with DAG("example", schedule=None) as dag:
        names: dict[str, Any] = {**ALL}
        try:
            exec(compile(code, "example", "exec"), names)
        except AirflowException as error:  # the example of an error raises it
            names["raised"] = error
    new = [value for name, value in names.items() if ALL.get(name) is not value]
    new += [value({}) for value in new if inspect.isfunction(value) and value.__name__ == "execute"]
    tasks = [*dag.tasks, *dag.task_group.children.values()]
    links = [link for each in new for link in getattr(each, "operator_extra_links", ())]
    return [*new, *tasks, *links, *(c for task in dag.tasks for c in task.on_failure_callback)]


@pytest.mark.parametrize("name", OWN)
def test_each_example_runs_and_makes_what_it_is_about(name: str) -> None:
    thing = named(name)
    found = examples(thing)
    assert found, f"{name} has no example"
    for code in found:
        made = made_by(code)
        assert thing.__name__ in code if inspect.isfunction(thing) else any(isinstance(m, thing) for m in made)


@pytest.mark.parametrize("name", BASES)
def test_each_base_class_has_an_operator_with_an_example(name: str) -> None:
    derived = [named(own) for own in OWN if inspect.isclass(named(own)) and issubclass(named(own), named(name))]
    assert derived


@pytest.mark.parametrize("name", DEPRECATED)
def test_each_deprecated_name_is_another_class_with_an_example(name: str) -> None:
    new = named(name).__mro__[1]
    assert f"Deprecated name of :class:`~.{new.__module__.rpartition('.')[2]}.{new.__name__}`" in named(name).__doc__
    assert f"{new.__module__}.{new.__name__}" in OWN


def test_protocols_are_those_of_the_examples() -> None:
    assert {name.rpartition(".")[2] for name in PROTOCOLS} == {"Waiting", "ShownPlan"}


def test_an_example_that_is_wrong_is_found() -> None:
    with pytest.raises(TypeError):
        made_by('CheckpointBackupOperator(task_id="backup", chekpoint="s3://lake/checkpoints/orders")')
