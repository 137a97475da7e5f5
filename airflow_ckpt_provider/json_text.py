"""Reading JSON that somebody else wrote, or damaged."""

from __future__ import annotations

import json
from typing import Any


def load_json(text: str | bytes) -> Any:
    """Parse JSON; whatever is wrong with it is a ``ValueError``.

    :raises ValueError: it is no JSON, not UTF-8, or nested so deeply that Python's parser gives up.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        raise ValueError(f"{e.msg} at character {e.pos}") from e
    except RecursionError as e:
        raise ValueError("nested too deeply") from e
