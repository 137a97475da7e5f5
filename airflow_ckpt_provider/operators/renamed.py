"""Parameters that have a new name or new values: the old ones work for one release, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from airflow import sdk
from airflow.exceptions import AirflowProviderDeprecationWarning

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.fields import text

_PASSED_OVER = (str(Path(__file__).parents[1]), str(Path(sdk.__file__).parent))


def renamed(
    kwargs: MutableMapping[str, Any],
    *,
    old: str,
    new: str,
    value: Any,
    default: Any,
    values: Mapping[str, str] | None = None,
) -> Any:
    """Take a parameter by its new name or, with a warning, by its old one.

    Call it in ``__init__`` before ``super().__init__(**kwargs)``::

        self.sink_policy = renamed(
            kwargs, old="sink_exit", new="sink_policy", value=sink_policy, default="rollback", values={"accept": "keep"}
        )

    :param kwargs: what was given besides; the old name is removed from it.
    :param old: the old name.
    :param new: the new name.
    :param value: what was given by the new name.
    :param default: the new parameter's default.
    :param values: old value -> new value, for a value that is written in the DAG; see :func:`renamed_value` for templates.
    :return: the value to use.
    :raises RefusedError: both names were given.
    """
    if old not in kwargs:
        return value
    given = kwargs.pop(old)
    if value != default:
        raise RefusedError(f"{old} and {new} are given", hint=f"give {new}: it is the new name of {old}")
    _warn(f"The parameter `{old}` is deprecated. Use `{new}` instead.")
    return (values or {}).get(given, given) if isinstance(given, str) else given


def renamed_value(value: Any, field: str, values: Mapping[str, str]) -> str | None:
    """Read a rendered field whose values were renamed.

    :param value: the field, rendered.
    :param field: its name, for the warning.
    :param values: old value -> new value.
    :return: the new value; ``None`` where the field is empty.
    """
    found = text(value)
    if found is None or found not in values:
        return found
    _warn(f"The value {found!r} of `{field}` is deprecated. Use {values[found]!r} instead.")
    return values[found]


def deprecated(name: str, *, instead: str) -> None:
    """Warn of a parameter that another one replaces, which is not only a new name of it.

    :param name: the old parameter.
    :param instead: what to write instead, such as ``accept=["foreign_loss"]``.
    """
    _warn(f"The parameter `{name}` is deprecated. Use `{instead}` instead.")


def deprecated_class(name: str, *, instead: str) -> None:
    """Warn of a class that has a new name; call it in ``__init__`` of the old one.

    :param name: the old name.
    :param instead: the new name.
    """
    _warn(f"The class `{name}` is deprecated. Use `{instead}` instead.")


def _warn(words: str) -> None:
    # The warning names the line of the DAG file: frames of this package and of Airflow's SDK are passed over.
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_code.co_filename.startswith(_PASSED_OVER):
        level, frame = level + 1, frame.f_back
    warnings.warn(words, AirflowProviderDeprecationWarning, stacklevel=level)
