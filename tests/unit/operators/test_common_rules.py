"""What holds for every operator: keyword-only, templated, documented once, no work before ``execute``."""

from __future__ import annotations

import builtins
import inspect
import pkgutil
import re
import socket
from importlib import import_module
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from airflow_ckpt_provider import operators
from airflow_ckpt_provider.get_provider_info import get_provider_info
from airflow_ckpt_provider.operators.declared import UNSET, DeclaredOperator

#: Not templated, because they are no question of what is done but of how fast, or are known when the DAG is written.
#: What a stream declares has to be filled in, as templates are.
DECLARED = {"CheckpointBackupOperator": {"workers"}}
NOT_TEMPLATED = {"timeout", "workers", "quiet_for", "flows_run_for", "wait_at_most", "poll_interval", "deferrable"}
NOT_TEMPLATED |= {"streams_file"}
NOT_TEMPLATED_OF_UPGRADES = {"skipped", "steps", "lift", "after", "stopped_by", "streams"}
#: Template fields that no parameter has: what deprecated parameters were given.
NOT_PARAMETERS = {"old_accept"}
#: Operators whose results are taken whole; of all others ``backup.output["backup_id"]`` can be taken.
WHOLE = {
    "KafkaRetentionRestoreOperator",
    "CheckpointVerifyOperator",
    "CheckpointUnsealOperator",
    "CheckpointRepositoryCheckOperator",
    "DiscoverCheckpointsOperator",
}


def _classes() -> list[type[BaseOperator]]:
    """The classes of the package that are operators, bases included."""
    found = {}
    for module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        for name, value in vars(import_module(module.name)).items():
            if inspect.isclass(value) and issubclass(value, BaseOperator) and value.__module__ == module.name:
                found[name] = value
    return [found[name] for name in sorted(found)]


#: A base has no ``execute``.
OPERATORS = [cls for cls in _classes() if cls.execute is not BaseOperator.execute and not inspect.isabstract(cls)]

#: Those that leave what they share to their bases. The steps of an upgrade are used by ``safe_upgrade`` alone.
BASED = [cls for cls in OPERATORS if ".upgrade" not in cls.__module__]

every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda cls: cls.__name__)
pytestmark = pytest.mark.filterwarnings("ignore:The class .* is deprecated")


def _own_classes(operator: type[BaseOperator]) -> list[type[BaseOperator]]:
    """The operator and its bases in the package, nearest first."""
    return [cls for cls in operator.__mro__ if cls.__module__.startswith(operators.__name__)]


def _parameters(operator: type[BaseOperator]) -> dict[str, inspect.Parameter]:
    """Parameters of the whole hierarchy; the nearest class says which are required."""
    found: dict[str, inspect.Parameter] = {}
    for cls in _own_classes(operator):
        if "__init__" in vars(cls):
            found = {**inspect.signature(vars(cls)["__init__"]).parameters, **found}
    return {name: p for name, p in found.items() if name not in ("self", "kwargs")}


def _documented(cls: type) -> dict[str, str]:
    """Parameter -> its description in a class's own docstring."""
    lines = re.sub(r"\n        +", " ", vars(cls).get("__doc__") or "").splitlines()
    return dict(m.groups() for line in lines if (m := re.fullmatch(r"\s*:param (\w+): (.+)", line)))


def _make(operator: type[BaseOperator], **fields: Any) -> Any:
    required = [name for name, p in _parameters(operator).items() if p.default in (inspect.Parameter.empty, UNSET)]
    return operator(task_id="t", **{**dict.fromkeys(required, "x"), **fields})


def test_every_module_with_an_operator_is_in_the_provider_info() -> None:
    (listed,) = get_provider_info()["operators"]
    assert sorted({operator.__module__ for operator in OPERATORS}) == sorted(listed["python-modules"])


@every_operator
def test_keyword_only(operator: type[BaseOperator]) -> None:
    kinds = {p.kind for p in _parameters(operator).values()}
    assert kinds <= {inspect.Parameter.KEYWORD_ONLY}


@every_operator
def test_every_parameter_is_templated_and_documented(operator: type[BaseOperator]) -> None:
    not_templated = NOT_TEMPLATED | (NOT_TEMPLATED_OF_UPGRADES if ".upgrade" in operator.__module__ else set())
    not_templated -= DECLARED.get(operator.__name__, set())
    parameters = set(_parameters(operator))
    assert set(operator.template_fields) - NOT_PARAMETERS == parameters - not_templated
    assert len(operator.template_fields) == len(set(operator.template_fields))
    described: dict[str, str] = {}
    for cls in _own_classes(operator):
        described = {**_documented(cls), **described}
    assert set(described) == parameters
    for name, text in described.items():
        assert text.endswith("(templated)") is (name not in not_templated), f"{name}: {text}"


@pytest.mark.parametrize("operator", BASED, ids=lambda cls: cls.__name__)
def test_a_parameter_is_described_by_one_class(operator: type[BaseOperator]) -> None:
    names = [name for cls in _own_classes(operator) for name in _documented(cls)]
    assert [name for name in names if names.count(name) > 1] == []


@pytest.mark.parametrize("operator", BASED, ids=lambda cls: cls.__name__)
def test_a_class_that_leaves_parameters_to_its_bases_names_them(operator: type[BaseOperator]) -> None:
    text = " ".join(cls.__doc__ or "" for cls in _own_classes(operator))
    for cls in _own_classes(operator)[1:]:
        if _documented(cls) and cls is not DeclaredOperator:  # every operator has these two
            assert f".{cls.__name__}`" in text, f"{operator.__name__} does not refer to {cls.__name__}"


@every_operator
def test_fields_are_kept_as_given_and_rendered(operator: type[BaseOperator]) -> None:
    template = "{{ params.word }}"
    names = [name for name in operator.template_fields if name not in {*NOT_PARAMETERS, "stream"}]
    fields = {f: {"k": template} if f == "tags" else template for f in names}
    made = _make(operator, **fields)
    assert {f: getattr(made, f) for f in names} == fields
    made.render_template_fields({"params": {"word": "rendered"}})
    expected = {f: {"k": "rendered"} if f == "tags" else "rendered" for f in names}
    assert {f: getattr(made, f) for f in names} == expected


@every_operator
def test_no_work_before_execute(operator: type[BaseOperator], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"work in __init__: {args}")

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", refuse)
        patched.setattr(socket, "socket", refuse)
        _make(operator)


@every_operator
def test_a_missing_parameter_is_an_error_of_the_dag(operator: type[BaseOperator]) -> None:
    required = {name for name, p in _parameters(operator).items() if p.default in (inspect.Parameter.empty, UNSET)}
    for name in required:
        with pytest.raises(TypeError, match=name):
            operator(task_id="t", **dict.fromkeys(required - {name}, "x"))


@every_operator
def test_results_can_be_taken_key_by_key(operator: type[BaseOperator]) -> None:
    assert _make(operator).multiple_outputs is (operator.__name__ not in WHOLE)
