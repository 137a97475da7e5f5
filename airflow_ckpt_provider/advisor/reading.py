"""From what people have in hand to one text: an exception, a log, an event of a pipeline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.advisor.facts import Facts
from airflow_ckpt_provider.json_text import load_json

#: Causes of causes that are followed; some chains bite their own tail.
_DEPTH = 20
#: Where a query's last run ended.
_ENDED = re.compile(r"(?:\[STREAM_FAILED\]|Query [^\n]{0,200}?terminated with (?:error|exception))")
_RUN_ID = re.compile(r"runId = ([0-9a-f-]{36})")


@dataclass(frozen=True, slots=True)
class Report:
    """An error as text.

    :param text: all that was said, causes included.
    :param facts: what was given beside the text.
    """

    text: str
    facts: Facts


def read(error: BaseException | str) -> Report:
    """Read an exception, a text, a log, or JSON of Databricks: an event, a page of events, an answer of its interface."""
    if isinstance(error, BaseException):
        return Report("\n".join(_messages(error)), Facts())
    events = _events(error)
    if not events:
        return Report(_last_failure(error), Facts())
    # The interface gives the newest first; the newest of them that names an exception is the one to explain.
    failed = [e for e in events if _exceptions(e)]
    if len(failed) > 1:
        failed.sort(key=lambda e: str(e.get("timestamp", "")))
    chosen = (failed or events)[-1]
    return Report("\n".join(_texts(chosen)), _origin(chosen))


def text_of(error: object) -> str:
    """What an error says; where its own text cannot be made, that."""
    try:
        return str(error)
    except Exception as e:  # whatever the code of others raises
        return f"its message cannot be shown: {type(error).__name__}.__str__ raised {type(e).__name__}"


def _messages(error: BaseException) -> Iterator[str]:
    """The messages of an exception and of its causes, Python's and Java's."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _DEPTH:
        seen.add(id(current))
        yield f"{type(current).__name__}: {text_of(current)}"
        yield from _java_causes(getattr(current, "_origin", None))
        current = current.__cause__ or current.__context__


def _java_causes(throwable: Any) -> Iterator[str]:
    """What Java says below an exception that PySpark has caught; nothing once its process is gone."""
    for _ in range(_DEPTH):
        if throwable is None:
            return
        try:
            yield f"Caused by: {throwable.toString()}"
            throwable = throwable.getCause()
        except Exception:  # any that the connection to Java has
            return


def _last_failure(text: str) -> str:
    """The part of a log that belongs to the last run that failed; all of it where runs cannot be distinguished."""
    ends = list(_ENDED.finditer(text))
    if not ends:
        return text
    runs = [(m.start(), run[1] if (run := _RUN_ID.search(text, m.start(), m.start() + 500)) else "") for m in ends]
    last = runs[-1][1]
    start = next(at for at, run in runs if run == last)
    # The line it begins in: loggers put time and thread before the words.
    return text[text.rfind("\n", 0, start) + 1 :]


def _events(text: str) -> list[dict[str, Any]]:
    """JSON objects: one, a list, a page (``{"events": […]}``), or one a line."""
    stripped = text.strip()
    if not stripped.startswith(("{", "[")):
        return []
    try:
        loaded = load_json(stripped)
    except ValueError:
        loaded = [_json_or_none(line) for line in stripped.splitlines()]
        if None in loaded:
            return []
    if isinstance(loaded, dict):
        inner = loaded.get("events")
        loaded = inner if isinstance(inner, list) else [loaded]
    return [e for e in loaded if isinstance(e, dict)] if isinstance(loaded, list) else []


def _json_or_none(line: str) -> Any:
    try:
        return load_json(line)
    except ValueError:
        return None


def _exceptions(event: dict[str, Any]) -> list[dict[str, Any]]:
    error = event.get("error")
    found = error.get("exceptions") if isinstance(error, dict) else None
    return [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []


def _texts(event: dict[str, Any]) -> Iterator[str]:
    for key in ("error_code", "message"):
        if event.get(key):
            yield str(event[key])
    for exception in _exceptions(event):
        yield f"{exception.get('class_name', '')}: {exception.get('message', '')}"
    if not _exceptions(event):
        yield json.dumps(event)


def _origin(event: dict[str, Any]) -> Facts:
    origin = event.get("origin")
    if not isinstance(origin, dict):
        return Facts()
    given = {key: str(origin.get(key) or "") for key in ("pipeline_id", "flow_name", "dataset_name")}
    return Facts(pipeline_id=given["pipeline_id"], flow=given["flow_name"], dataset=given["dataset_name"])
