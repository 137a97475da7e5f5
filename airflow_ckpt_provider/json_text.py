"""Reading JSON that somebody else wrote, or damaged."""

from __future__ import annotations

import ast
import json
from typing import Any


def load_json(text: str | bytes) -> Any:
    """Parse JSON; whatever is wrong with it is a ``ValueError``.

    :raises ValueError: it is no JSON, not UTF-8, or nested so deeply that Python's parser gives up.
    """
    try:
        return json.loads(text)  # noqa: TID251  # the only place
    except json.JSONDecodeError as e:
        raise ValueError(f"{e.msg} at character {e.pos}") from e
    except RecursionError as e:
        raise ValueError("nested too deeply") from e


def load_rendered(text: str) -> Any:
    """Parse JSON, or Python's own spelling of it, which a template without ``| tojson`` gives: ``"{'a': None}"``.

    :raises ValueError: it is neither.
    """
    try:
        return load_json(text)
    except ValueError:
        try:
            return ast.literal_eval(text.strip())
        except (SyntaxError, TypeError, MemoryError, RecursionError) as e:
            raise ValueError("neither JSON nor a literal of Python") from e
