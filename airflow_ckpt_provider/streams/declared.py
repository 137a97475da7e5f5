"""The classes of the model: what their fields are, read from the type hints, and how an object is made of what was written."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from datetime import timedelta
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from airflow_ckpt_provider.errors import did_you_mean
from airflow_ckpt_provider.streams.kinds import (
    INVALID,
    Choice,
    DurationKind,
    Flag,
    Free,
    Items,
    Kind,
    Named,
    Text,
    Whole,
    wrong,
)
from airflow_ckpt_provider.streams.problems import DeclarationError, Path, Problem


class Declared:
    """Base of the model's classes: frozen dataclasses whose fields are checked, whoever makes them.

    ``shorthand`` is the field that a text alone stands for; ``title`` is what the reference page calls the class.
    """

    shorthand: ClassVar[str | None] = None
    title: ClassVar[str]

    def __post_init__(self) -> None:
        """Read all fields, as from YAML, and check how they go together."""
        problems: list[Problem] = []
        defaults = defaults_of(type(self))
        for name, kind in kinds_of(type(self)).items():
            value = getattr(self, name)
            if value is None:  # nothing is given, as in the file
                if name not in defaults:
                    wrong(problems, (), f"{name} is missing", f"give {name}")
                object.__setattr__(self, name, defaults.get(name))
                continue
            if default_of(type(self), name) is value:
                continue
            object.__setattr__(self, name, kind.read(value, (name,), problems))
        if not problems:
            problems.extend(
                Problem((field,) if field else (), message, hint) for field, message, hint in self.conflicts()
            )
        if problems:
            raise DeclarationError(problems)

    @classmethod
    def made_of(cls, fields: Mapping[str, Any]) -> Self:
        """Make the object of fields that were read already.

        :param fields: field -> its value; the others have their defaults.
        :raises DeclarationError: they do not go together.
        """
        self = object.__new__(cls)
        self.__dict__.update({**defaults_of(cls), **fields})
        if found := self.conflicts():
            raise DeclarationError(Problem((field,) if field else (), message, hint) for field, message, hint in found)
        return self

    def conflicts(self) -> list[tuple[str, str, str]]:
        """Fields that do not go together: the field, what is wrong, the next step."""
        return []


@dataclass(frozen=True)
class Record:
    """One of the model's own classes. Where it has a ``shorthand``, a text alone stands for that field."""

    of: type[Declared]

    @property
    def words(self) -> str:
        """The class, linked on the reference page."""
        short = f"text (its `{self.of.shorthand}`) or " if self.of.shorthand else ""
        return f"{short}[{self.of.title}](#{self.of.title.lower().replace(' ', '-')})"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read each field, then make the object."""
        if isinstance(value, self.of):
            return value
        if self.of.shorthand and isinstance(value, str):
            value = {self.of.shorthand: value}
        if not isinstance(value, Mapping):
            return wrong(problems, path, "it is no mapping", f"give its fields: {', '.join(kinds_of(self.of))}")
        return read_fields(self.of, value, path, problems)

    def schema(self) -> dict[str, Any]:
        """A reference to the class."""
        reference = {"$ref": f"#/$defs/{self.of.__name__}"}
        return {"anyOf": [{"type": "string", "minLength": 1}, reference]} if self.of.shorthand else reference


def read_fields(of: type[Declared], value: Mapping[Any, Any], path: Path, problems: list[Problem], **given: Any) -> Any:
    """Read the fields of a class from a mapping, and make the object.

    :param of: the class.
    :param value: what was written, by field.
    :param path: where it stands.
    :param problems: where to add what is wrong.
    :param given: values of fields that are not written there.
    """
    kinds, before = kinds_of(of), len(problems)
    found: dict[str, Any] = dict(given)
    for written, each in value.items():
        name = str(written)
        if name not in kinds or name in given:
            wrong(problems, (*path, name), "there is no such field", did_you_mean(name, kinds.keys() - given.keys()))
        elif each is not None:
            found[name] = kinds[name].read(each, (*path, name), problems)
    for name in sorted(required_of(of) - found.keys()):
        wrong(problems, path, f"{name} is missing", f"give {name}")
    if len(problems) > before:
        return INVALID
    try:
        return of.made_of(found)
    except DeclarationError as e:
        problems.extend(Problem((*path, *each.path), each.message, each.hint) for each in e.problems)
        return INVALID


_kinds: dict[type[Declared], Mapping[str, Kind]] = {}


def kinds_of(of: type[Declared]) -> Mapping[str, Kind]:
    """The kind of each field of a class."""
    if of not in _kinds:
        hints = get_type_hints(of, include_extras=True)
        _kinds[of] = {field.name: _kind(hints[field.name]) for field in _fields(of)}
    return _kinds[of]


_SIMPLE: dict[Any, Callable[[], Kind]] = {str: Text, int: Whole, bool: Flag, timedelta: DurationKind}


def _kind(hint: Any) -> Kind:
    """The kind of a type hint."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        [hint] = [each for each in args if each is not NoneType]
        return _kind(hint)
    if origin is Annotated:
        kind: Kind = args[1]
        return kind
    if origin is Literal:
        return Choice(args)
    if origin is tuple:
        return Items(_kind(args[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return Free() if args[1] is Any else Named(_kind(args[1]))
    if isinstance(hint, type) and issubclass(hint, Declared):
        return Record(hint)
    return _SIMPLE[hint]()


def default_of(of: type[Declared], name: str) -> Any:
    """The default of a field; :data:`INVALID` where it has none, or a new one each time."""
    return getattr(of, name, INVALID)  # dataclasses leave it in the class


def defaults_of(of: type[Declared]) -> dict[str, Any]:
    """The defaults of all fields that have one."""
    found: dict[str, Any] = {}
    for field in _fields(of):
        if field.default is not MISSING:
            found[field.name] = field.default
        elif field.default_factory is not MISSING:
            found[field.name] = field.default_factory()
    return found


def required_of(of: type[Declared]) -> frozenset[str]:
    """The fields that have to be given."""
    return frozenset(
        field.name for field in _fields(of) if field.default is MISSING and field.default_factory is MISSING
    )


def descriptions_of(of: type[Declared]) -> Mapping[str, str]:
    """What each field is, as the docstring of its class says."""
    parts = re.split(r"^:param (\w+):", inspect.getdoc(of) or "", flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _fields(of: type[Declared]) -> tuple[Field[Any], ...]:
    return fields(of)  # type: ignore[arg-type]  # every subclass is a dataclass
