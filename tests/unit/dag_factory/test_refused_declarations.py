"""``stream_dags``: what is refused when the DAGs are made, and what is accepted."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.streams.problems import DeclarationError
from airflow_ckpt_provider.streams.stream import Stream
from tests.support.declared_dags import write


def test_a_file_may_be_a_path_and_no_streams_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text("streams: {orders: {checkpoint: /c/orders}}")
    assert stream_dags(file).keys() == stream_dags(str(file)).keys()
    # Such as all that a filter has left: their backups would silently end.
    with pytest.raises(RefusedError, match="there are no streams"):
        stream_dags([])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["orders"], "'orders' is no Stream\nHINT: give a list of Stream(name, checkpoint=…), or the path of"),
        ({"orders": {"checkpoint": "/c"}}, "streams is a dict\nHINT: give the path of streams.yaml, a Stream"),
        ({"orders": Stream("orders", checkpoint="/c")}, "streams is a dict"),
        (7, "streams is a int"),
        (b"streams.yaml", "streams is a bytes"),
        ([Stream("orders", checkpoint="/c"), None], "None is no Stream"),
    ],
)
def test_what_are_no_streams_is_refused_with_what_is_expected(given: Any, message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        stream_dags(given)
    assert str(caught.value).startswith(message)


def test_one_stream_alone_is_accepted() -> None:
    one = Stream("orders", checkpoint="/c")
    assert stream_dags(one).keys() == stream_dags([one]).keys()


BASH = "airflow.providers.standard.operators.bash.BashOperator"
#: What is declared, where it is wrong, and why.
WRONG = [
    (BASH, {}, "arguments", f"{BASH} cannot be made: missing keyword argument 'bash_command' (give"),
    (BASH, {"bash_comand": "true"}, "arguments", f"{BASH} cannot be made: missing keyword argument 'bash_command'"),
    (BASH, {"bash_command": "true", "foo": 1}, "arguments", "**kwargs: {'foo': 1} (give the arguments that"),
    (BASH, {"bash_command": "true", "retries": "lots"}, "arguments", "'retries' type must be int, not str"),
    (BASH, {"bash_command": ["a"]}, "arguments", f"{BASH} takes no list as bash_command"),
    (
        BASH,
        {"bash_command": "true", "env": "a"},
        "arguments",
        f"{BASH} takes no str as env (give dict[str, str] | None)",
    ),
    (BASH, {"bash_command": "true", "append_env": "no"}, "arguments", f"{BASH} takes no str as append_env (give bool)"),
    (BASH, {"bash_command": "true", "task_id": "t"}, "arguments", "task_id is given (remove task_id"),
    ("airflow.no.such.Operator", {}, "operator", "airflow.no.such.Operator cannot be imported: No module named"),
    ("subprocess.run", {"args": "touch ran"}, "operator", "subprocess.run is no class of operators"),
    ("subprocess.Popen", {"args": "touch ran"}, "operator", "subprocess.Popen is no class of operators"),
]


@pytest.mark.parametrize(("operator", "arguments", "field", "message"), WRONG)
def test_a_wrong_operator_is_found_when_the_dags_are_parsed(
    tmp_path: Path, operator: str, arguments: dict[str, Any], field: str, message: str
) -> None:
    stop = json.dumps({"operator": {"operator": operator, "arguments": arguments}})
    text = (
        f"defaults:\n  deploy: {stop}\nstreams:\n  a: {{checkpoint: /a}}\n  b:\n    checkpoint: /b\n    stop: {stop}\n"
    )
    with pytest.raises(DeclarationError) as caught:
        stream_dags(write(tmp_path, text))
    first, second = caught.value.problems
    assert str(first).startswith(f"line 2, defaults.deploy.operator.{field}: ")
    assert str(second).startswith(f"line 7, streams.b.stop.operator.{field}: ")
    assert message in str(first)
    assert message in str(second)


@pytest.mark.parametrize("arguments", [{}, {"who": "on call", "pager": 7}])
def test_a_wrong_notifier_is_found_when_the_dags_are_parsed(arguments: dict[str, Any]) -> None:
    notifier = {"notifier": f"{__name__}.Pager", "arguments": arguments}
    with pytest.raises(
        DeclarationError, match=rf"streams.a.notifiers\[0\].arguments: {__name__}.Pager cannot be made: "
    ):
        stream_dags(Stream("a", checkpoint="/a", notifiers=[notifier]))  # type: ignore[arg-type]


def test_airflow_checks_what_is_declared_by_the_command_that_checks_streams(tmp_path: Path) -> None:
    from argparse import Namespace

    from airflow_ckpt_provider.cli.in_airflow import reader_of_streams

    stop = json.dumps({"operator": {"operator": BASH}})
    file = write(tmp_path, f"streams: {{a: {{checkpoint: /a, stop: {stop}}}}}")
    with pytest.raises(DeclarationError, match=r"line 1, streams.a.stop.operator.arguments: .* 'bash_command'"):
        reader_of_streams("streams", Namespace(action="check"))(file)
    assert list(reader_of_streams("streams", Namespace(action="list"))(file)) == ["a"]
    assert list(reader_of_streams("backup", Namespace())(file)) == ["a"]


class Pager:
    """A notifier."""

    def __init__(self, *, who: str, tries: int = 3) -> None:
        self.who, self.tries = who, int(tries)


def test_a_number_that_a_class_reads_from_a_text_is_accepted() -> None:
    notifier = {"notifier": f"{__name__}.Pager", "arguments": {"who": "on call", "tries": "5"}}
    assert stream_dags(Stream("a", checkpoint="/a", notifiers=[notifier]))  # type: ignore[arg-type]


def test_arguments_that_an_operator_takes_are_accepted(tmp_path: Path) -> None:
    fits = {
        "bash_command": "./stop.sh {{ params.stream }}",
        "env": {"A": "b"},
        "append_env": "{{ params.x }}",
        "skip_on_exit_code": [3, 4],
        "cwd": None,
        "retries": 3,
    }
    stop = json.dumps({"operator": {"operator": BASH, "arguments": fits}})
    made = stream_dags(write(tmp_path, f"streams: {{a: {{checkpoint: /a, stop: {stop}}}}}"))
    assert "declared" not in {task.task_id for dag in made.values() for task in dag.tasks}
