"""Options of a query's readers, as far as somebody gives them: no checkpoint records them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FLAT = "option."


def reader_options(given: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the options by source.

    :param given: settings of a guard: ``options`` (source -> options), and ``option.<source>.<name>`` as a shell gives it.
    """
    found = {
        str(source): {str(k): str(v) for k, v in each.items()} for source, each in (given.get("options") or {}).items()
    }
    for key, value in given.items():
        source, dot, name = key.removeprefix(_FLAT).partition(".")
        if key.startswith(_FLAT) and dot:
            found.setdefault(source, {})[name] = str(value)
    return found


def option(options: Mapping[str, str], name: str) -> str | None:
    """One option of a source; Spark takes its name in any case."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def is_on(options: Mapping[str, str], name: str) -> bool:
    """Whether an option is ``true``, in any case."""
    return (option(options, name) or "").lower() == "true"
