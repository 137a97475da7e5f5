"""Reading template fields after they were rendered.

A rendered field is text: ``{{ params.batch }}`` gives ``"12"``, or ``"None"`` where nothing was entered. Values
written in Python arrive as they are. Both mean the same here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_rendered
from airflow_ckpt_provider.units import parse_duration, parse_flag


def text(value: Any) -> str | None:
    """Return the text of a field, ``None`` where it is empty."""
    if value is None:
        return None
    stripped = str(value).strip()
    return None if stripped in ("", "None") else stripped


def texts(value: Any, field: str) -> list[str]:
    """Return a field that is one text or several; none where it is empty.

    :param value: a text or a sequence of texts; or a text that is a list, as a template gives it: ``"['a', 'b']"``.
    :raises RefusedError: the text begins like a list and is none.
    """
    return [each for entry in _entries(value, field) if (each := text(entry))]


def separated(value: Any, field: str) -> list[Any]:
    """Return a field that is several things, as a list or as text with commas between; empty ones are left out.

    :param value: a sequence; or a text, which may also be a list as a template gives it.
    :raises RefusedError: the text begins like a list and is none.
    """
    if isinstance(value, str) and not _is_list(value):
        value = value.split(",")
    return [each for each in _entries(value, field) if text(each)]


def _is_list(value: str) -> bool:
    return value.strip().startswith("[")


def _entries(value: Any, field: str) -> list[Any]:
    if isinstance(value, str) and _is_list(value):
        value = _parsed(value, field, "give a text, or a list of texts")
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else [value]


def _parsed(value: str, field: str, hint: str) -> Any:
    try:
        return load_rendered(value)
    except ValueError as e:
        raise RefusedError(f"{field} is {value!r}", hint=hint) from e


def for_each(value: Any, count: int, field: str) -> list[Any]:
    """Return a field that is one value for all, or a list with one for each.

    :param count: how many there are.
    :raises RefusedError: it is a list of another length.
    """
    if isinstance(value, str) and _is_list(value):
        value = [each or None for each in _entries(value, field)]
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) not in (1, count):
        raise RefusedError(
            f"{field} has {len(value)} entries for {count} sinks",
            hint="give one for all, or one for each in their order",
        )
    return list(value) if len(value) == count else [value[0]] * count


def required(value: Any, field: str) -> str:
    """Return the text of a field that must not be empty.

    :raises RefusedError: it is.
    """
    found = text(value)
    if found is None:
        raise RefusedError(f"{field} is empty", hint=f"give {field}, or check the template that it comes from")
    return found


def whole_number(value: Any, field: str, *, least: int = 0) -> int | None:
    """Return a field as a number, ``None`` where it is empty.

    :raises RefusedError: it is no whole number, or below ``least``.
    """
    found = text(value)
    if found is None:
        return None
    try:
        number = int(found)
    except ValueError as e:
        raise RefusedError(f"{field} is {found!r}", hint=f"give a whole number from {least} up, or leave it out") from e
    if number < least:
        raise RefusedError(f"{field} is {number}", hint=f"give a whole number from {least} up, or leave it out")
    return number


def by_source(value: Any, field: str, sources: Iterable[str]) -> dict[str, Any]:
    """Return a field that is options for all sources, or source -> options, as the latter.

    :param value: a mapping, or text that is one.
    :param sources: the names of the sources.
    :raises RefusedError: it is no mapping, or some of it is by source and some is not.
    """
    options = mapping(value, field)
    whole = [isinstance(each, Mapping) for each in options.values()]
    if all(whole):
        return dict(options)
    if any(whole):
        raise RefusedError(f"{field} is {value!r}: some of it is by source", hint="give options, or source -> options")
    return dict.fromkeys(sources, options)


def flag(value: Any, field: str, *, empty: bool = False) -> bool:
    """Return a field as true or false.

    :param empty: what an empty field is, as of a template whose value is missing: that which is safer.
    :raises RefusedError: it is neither.
    """
    return empty if text(value) is None else parse_flag(value, field=field)


def one_of(value: Any, field: str, choices: tuple[str, ...]) -> str:
    """Return a field that has to be one of a few words.

    :raises RefusedError: it is none of them.
    """
    found = text(value)
    if found not in choices:
        raise RefusedError(f"{field} is {found!r}", hint=f"give one of: {', '.join(choices)}")
    return found


def words(value: Any, field: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    """Return a field that is a list of words; empty entries are left out.

    :param value: a sequence; or text, as a template gives it: ``"a, b"`` or ``"['a', 'b']"``.
    :param choices: the words that there are.
    :raises RefusedError: one of them is another word.
    """
    given: Iterable[Any] = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    parts = [part for each in given for part in str(text(each) or "").strip("[]()").split(",")]
    found = tuple(dict.fromkeys(part.strip().strip("'\"") for part in parts if part.strip().strip("'\"")))
    if unknown := [word for word in found if word not in choices]:
        raise RefusedError(f"{field} has {unknown[0]!r}", hint=f"give some of: {', '.join(choices)}")
    return found


def seconds(value: timedelta | float | str | None, field: str, *, least: float = 0.0) -> timedelta:
    """Return a field that is a duration as one; a number is seconds.

    :raises RefusedError: it is none, or below ``least`` seconds.
    """
    try:
        time = parse_duration(value, field=field)  # type: ignore[arg-type]  # whatever it is, it is refused by its name
    except RefusedError:
        time = timedelta(seconds=-1)
    if time.total_seconds() < least:
        raise RefusedError(
            f"{field} is {value!r}", hint=f"give seconds or a duration such as 90s or 1h, from {least:g} s up"
        )
    return time


def mapping(value: Any, field: str) -> dict[str, Any]:
    """Return a field that is a dictionary, or JSON of one as a template gives it; an empty field is an empty one.

    :raises RefusedError: it is something else.
    """
    if isinstance(value, str):
        value = _parsed(value, field, "give a dictionary, or JSON of one") if text(value) else None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RefusedError(f"{field} is {value!r}", hint="give a dictionary, or JSON of one")
    return {str(key): each for key, each in value.items()}


def text_settings(value: Any, field: str) -> dict[str, str]:
    """Return a field as :func:`mapping` does, with the settings of a library in it: each value is a text.

    :raises RefusedError: it is something else.
    """
    found = mapping(value, field)
    if wrong := next((key for key, each in found.items() if not isinstance(each, str)), None):
        raise RefusedError(
            f"{field} has {found[wrong]!r} for {wrong}", hint="write the value as a text, such as '30' or 'true'"
        )
    return found


def mapping_or_text(value: Any, field: str) -> dict[str, Any] | str | None:
    """Return a field that is one text for all, or a dictionary with one for each, which may be JSON of it.

    :raises RefusedError: the text begins like a dictionary and is none.
    """
    is_mapping = isinstance(value, Mapping) or (isinstance(value, str) and value.strip().startswith("{"))
    return mapping(value, field) if is_mapping else text(value)
