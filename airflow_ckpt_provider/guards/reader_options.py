"""Options of a query's readers, as far as somebody gives them: no checkpoint records them."""

from __future__ import annotations

from collections.abc import Mapping


def option(options: Mapping[str, str], name: str) -> str | None:
    """One option of a source; Spark takes its name in any case."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def is_on(options: Mapping[str, str], name: str) -> bool:
    """Whether an option is ``true``, in any case."""
    return (option(options, name) or "").lower() == "true"
