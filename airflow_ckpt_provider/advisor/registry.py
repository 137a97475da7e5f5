"""All that the advisor knows: the entries of each part of a stream, and how they are found by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from airflow_ckpt_provider.advisor import (
    log_conditions,
    pipeline_conditions,
    query_conditions,
    source_conditions,
    state_conditions,
)
from airflow_ckpt_provider.advisor.condition import ErrorCondition
from airflow_ckpt_provider.json_text import load_json

#: What the documentation calls the parts, and their entries; the first of two that fit equally well is the better one.
PARTS: dict[str, tuple[ErrorCondition, ...]] = {
    "Logs and metadata": log_conditions.CONDITIONS,
    "State": state_conditions.CONDITIONS,
    "Sources and sinks": source_conditions.CONDITIONS,
    "Pipelines": pipeline_conditions.CONDITIONS,
    "The query": query_conditions.CONDITIONS,
}
CONDITIONS: tuple[ErrorCondition, ...] = tuple(c for conditions in PARTS.values() for c in conditions)
WRAPPERS = frozenset(query_conditions.WRAPPERS)

_BY_NAME = {name: condition for condition in CONDITIONS for name in condition.names}
#: Fewer characters of a message's own words say too little.
_LEAST = 24
_PARAMETER = re.compile(r"<[A-Za-z][A-Za-z0-9_]*>")


def pattern_of(message: str) -> re.Pattern[str] | None:
    """Return a pattern for a message of an error-conditions file: its first sentences as far as they have no parameter, or with
    anything short in place of parameters; ``None`` where the message has too few words of its own.

    :param message: with parameters such as ``<fileName>``.
    """
    words = _PARAMETER.split(message)
    longest = max(words, key=len).strip()
    if len(longest) >= _LEAST:
        return re.compile(_spaced(longest))
    own = [part for part in words if part.strip()]
    if sum(len(part.strip()) for part in own) < _LEAST:
        return None
    return re.compile(r"[^\n]{1,300}?".join(_spaced(part.strip()) for part in own))


def _spaced(text: str) -> str:
    return r"\s+".join(re.escape(word) for word in text.split())


_BY_PATTERN = [(re.compile(pattern), condition) for condition in CONDITIONS for pattern in condition.patterns]
#: A name of an error condition, with its sub-condition: words in capitals, joined by underscores.
_NAME = re.compile(r"(?<![A-Za-z0-9_./-])_?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?:\.[A-Z][A-Z0-9_]*)?(?![A-Za-z0-9_])")


@dataclass(frozen=True, slots=True)
class Match:
    """A place in a text where a condition was recognised.

    :param name: the condition's own name there; empty where its wording gave it away.
    :param position: where in the text.
    """

    condition: ErrorCondition
    name: str
    position: int


def by_name(name: str) -> ErrorCondition | None:
    """Find the entry of an error condition: of its sub-condition, or else of all of it."""
    return _BY_NAME.get(name) or _BY_NAME.get(name.partition(".")[0])


def names_in(text: str) -> Iterator[tuple[str, int]]:
    """All that looks like the name of an error condition, and where."""
    for found in _NAME.finditer(text):
        yield found.group(), found.start()


def matches_in(text: str) -> list[Match]:
    """Recognise conditions, in the order of the text."""
    found = [Match(condition, name, at) for name, at in names_in(text) if (condition := by_name(name))]
    for pattern, condition in _BY_PATTERN:
        found += [Match(condition, "", at.start()) for at in pattern.finditer(text)]
    for name, pattern in _by_wording():
        if condition := by_name(name):
            found += [Match(condition, name, at.start()) for at in pattern.finditer(text)]
    return sorted(found, key=lambda m: m.position)


@cache
def _by_wording() -> list[tuple[str, re.Pattern[str]]]:
    """Messages of Spark's own error-conditions files, for errors whose name got lost; made by dev/make_wordings.py."""
    wordings: dict[str, str] = load_json((files(__package__) / "wordings.json").read_text(encoding="utf-8"))
    return [(name, pattern) for name, message in wordings.items() if (pattern := pattern_of(message))]
