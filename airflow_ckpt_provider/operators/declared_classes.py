"""Operators and notifiers that a declaration names: made as their task makes them, already when the DAGs are parsed."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Never, Union, get_args, get_origin, get_type_hints

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.streams.loading import located
from airflow_ckpt_provider.streams.problems import DeclarationError, Path, Problem
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams

#: What is written in YAML for a parameter of a type. A whole number is a text as well (`port: 22`), and a class may read a
#: number from a text. A flag is none: `"no"` would be true.
_WRITTEN: Mapping[Any, tuple[type, ...]] = {
    str: (str, int, float),
    bool: (bool,),
    int: (int, float, str),
    float: (int, float, str),
    dict: (dict,),
    Mapping: (dict,),
    list: (list,),
    Sequence: (list, str),
    NoneType: (NoneType,),
    Never: (),
}
#: Names that modules of operators import for type checkers alone; Airflow's ``ArgNotSet`` is nothing that can be written.
_FOR_CHECKERS = {"ArgNotSet": Never, "Mapping": Mapping, "Sequence": Sequence}


def by_name(dotted: str) -> Any:
    """Import what a declaration names.

    :param dotted: such as ``package.module.Class``.
    :raises RefusedError: there is none.
    """
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as e:
        raise RefusedError(
            f"{dotted} cannot be imported: {e}", hint="correct the name in streams.yaml, or install it"
        ) from e


def operator_of(operator: Any, arguments: Mapping[str, Any], *, task_id: str, deferrable: bool) -> Any:
    """Make a declared operator.

    :param operator: its class.
    :param arguments: what it is made with.
    :param task_id: its id.
    :param deferrable: handed on to an operator that has such an argument.
    """
    given = {"deferrable": deferrable} if _annotation(operator, "deferrable") else {}
    return operator(task_id=task_id, **{**given, **arguments})


def check_classes(streams: Streams) -> None:
    """Import and make each operator and notifier that is declared: a mistake is found now, not when the stream is stopped.

    :param streams: the streams.
    :raises DeclarationError: one cannot be imported, or does not take its arguments: all of them.
    """
    known: dict[str, tuple[str, str, str] | None] = {}
    problems = []
    for stream in streams.values():
        for path, kind, dotted, arguments in _named(stream):
            key = json.dumps([kind, dotted, arguments])
            if key not in known:
                known[key] = _what_is_wrong(kind, dotted, arguments)
            if found := known[key]:
                field, message, hint = found
                problems.append(Problem(("streams", stream.name, *path, field), message, hint))
    if problems:
        raise DeclarationError(located(problems, streams.source), source=streams.source)


def _named(stream: Stream) -> Iterator[tuple[Path, str, str, Mapping[str, Any]]]:
    for what in ("stop", "start", "deploy", "roll_back"):
        action = getattr(stream, what)
        if action and (named := action.operator):
            yield (what, "operator"), "operator", named.operator, named.arguments
    for number, each in enumerate(stream.notifiers):
        yield ("notifiers", number), "notifier", each.notifier, each.arguments


def _what_is_wrong(kind: str, dotted: str, arguments: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """The field, what is wrong with it, the next step."""
    try:
        of = by_name(dotted)
    except RefusedError as e:
        return kind, e.message, e.hint or ""
    if not isinstance(of, type) or (kind == "operator" and not issubclass(of, BaseOperator)):
        return kind, f"{dotted} is no class of {kind}s", "give package.module.Class as Python imports it"
    try:
        if kind == "operator":
            operator_of(of, arguments, task_id="declared", deferrable=False)
        else:
            of(**arguments)
    except Exception as e:  # whatever its constructor raises
        said = redacted_text(" ".join(str(e).split())) or type(e).__name__
        return "arguments", f"{dotted} cannot be made: {said}", "give the arguments that its documentation names"
    for name, value in arguments.items():
        if not _fits(value, annotation := _annotation(of, name)):
            said = f"{dotted} takes no {type(value).__name__} as {name}"
            return "arguments", said, f"give {inspect.formatannotation(annotation)}"
    return None


def _annotation(of: type, name: str) -> Any:
    """How a parameter is annotated where a class names it; ``None``: no class does."""
    for each in of.__mro__:
        init = inspect.unwrap(vars(each).get("__init__", object.__init__))
        if name in (parameters := inspect.signature(init).parameters):
            found = SimpleNamespace(__annotations__={name: parameters[name].annotation})
            try:
                return get_type_hints(found, getattr(init, "__globals__", {}), _FOR_CHECKERS)[name]
            except Exception:  # it names something else that is imported for type checkers alone
                return Any
    return None


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value may be of a type; ``True`` where that is not known. A template becomes what it becomes."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [_WRITTEN.get(get_origin(each) or each) for each in members]
    is_template = isinstance(value, str) and "{" in value
    return is_template or any(kind is None or isinstance(value, kind) for kind in kinds)
