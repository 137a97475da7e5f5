"""The JSON Schema of ``streams.yaml``, made from the model: editors complete and check with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.streams.declared import Declared, Record, default_of, descriptions_of, kinds_of, required_of
from airflow_ckpt_provider.streams.kinds import Items, Kind, Named
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.units import format_duration

#: The schema as it is published: a file of this package.
SCHEMA_FILE = Path(__file__).with_name("streams.schema.json")
#: What the file begins with, for editors with a YAML language server.
MODELINE = "# yaml-language-server: $schema="


def streams_schema() -> dict[str, Any]:
    """Make the schema."""
    one = _object(Stream, without=("name",))
    shared = _object(Stream, without=("name", "name_in_repository"))
    of_defaults = {**shared, "required": [], "description": "what streams share; {stream} stands for the name of each"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Streams of airflow-ckpt-provider",
        "type": "object",
        "required": ["streams"],
        "additionalProperties": False,
        "properties": {
            "version": {"enum": [1, None]},
            "defaults": {**of_defaults, "type": ["object", "null"]},
            "streams": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Stream"}, {"type": "null"}]},
            },
        },
        "$defs": {
            "Stream": {**one, "required": []},  # what is missing may be in the defaults
            **{of.__name__: _object(of) for of in records() if of is not Stream},
        },
    }


def schema_text() -> str:
    """The schema as the file of this package has it."""
    return json.dumps(streams_schema(), indent=2) + "\n"


def records(of: type[Declared] = Stream) -> Iterator[type[Declared]]:
    """The classes of the model, each once, from the stream down."""
    seen: dict[type[Declared], None] = {}

    def visit(each: type[Declared]) -> None:
        if each in seen:
            return
        seen[each] = None
        for kind in kinds_of(each).values():
            if inner := _record(kind):
                visit(inner)

    visit(of)
    yield from seen


def _record(kind: Kind) -> type[Declared] | None:
    if isinstance(kind, Items | Named):
        return _record(kind.kind)
    return kind.of if isinstance(kind, Record) else None


def _object(of: type[Declared], *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    described, required = descriptions_of(of), required_of(of)
    properties = {}
    for name, kind in kinds_of(of).items():
        if name not in without:
            schema = kind.schema() if name in required else {"anyOf": [kind.schema(), {"type": "null"}]}
            properties[name] = {**schema, "description": described[name], **_default(of, name)}
    return {
        "type": "object",
        "description": (of.__doc__ or "").partition("\n")[0],
        "required": sorted(required - set(without)),
        "additionalProperties": False,
        "properties": properties,
    }


def _default(of: type[Declared], name: str) -> dict[str, Any]:
    shown = shown_default(of, name)
    return {} if shown is None else {"default": shown}


def shown_default(of: type[Declared], name: str) -> str | int | bool | None:
    """The default of a field as it would be written; ``None`` where it has none.

    :param of: the class.
    :param name: the field.
    """
    value = default_of(of, name)
    if isinstance(value, timedelta):
        return format_duration(value)
    return value if isinstance(value, str | int | bool) else None
