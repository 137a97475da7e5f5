"""Kinds of values of a declaration: how each is read, from YAML and from Python alike, and its JSON Schema."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from datetime import timedelta
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, Union, get_args, get_origin, get_type_hints

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.redaction import HIDDEN, is_secret_name, redacted_text
from airflow_ckpt_provider.streams.problems import DeclarationError, Path, Problem, did_you_mean
from airflow_ckpt_provider.units import parse_duration

#: In the place of a value that has a problem.
INVALID: Any = object()
#: A value that only names where a secret is: ``token=$TOKEN``, ``token={{ conn.x.password }}``.
_REFERENCE = re.compile(r"(?<=[=: ])\"?(\$\w+|\$\{\w+\}|\{\{[^}]*\}\})\"?")
_CONN_ID = re.compile(r"[\w.:-]+")
#: Settings where a number is a secret as well: of a token it may be how long it is good for.
_NUMBER_TOO = re.compile(r"(?i)(password|passwd|passphrase|pwd|secret)$")
_DEEPEST = 20


class Kind(Protocol):
    """What a field holds."""

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Return the value of the model, or :data:`INVALID` after adding a problem.

        :param value: as written; or a value of the model, which is returned as it is.
        :param path: where it stands.
        :param problems: where to add what is wrong.
        """

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what may be written."""

    @property
    def words(self) -> str:
        """What it is, for the reference page."""


def wrong(problems: list[Problem], path: Path, message: str, hint: str) -> Any:
    """Add a problem; return :data:`INVALID`."""
    problems.append(Problem(path, message, hint))
    return INVALID


@lru_cache(maxsize=4096)  # what streams share is read for each of them
def holds_secret(text: str) -> bool:
    """Whether a text has a credential in it. A reference to a variable or a connection is none."""
    if "=" not in text and ":" not in text and "-" not in text:
        return False
    without = _REFERENCE.sub(HIDDEN, text)
    return redacted_text(without) != without


@dataclass(frozen=True)
class Text:
    """A text that is not empty.

    :param words: what it is, for people.
    :param pattern: the whole of it matches; ``None``: any.
    :param hint: the next step where it does not match.
    """

    words: str = "text"
    pattern: str | None = None
    hint: str = "give a text"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read a text; a whole number is taken for one."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            shown = "empty" if value in (None, "") or isinstance(value, str) else f"{value!r}, which is no text"
            return wrong(
                problems, path, f"it is {shown}", f"{self.hint}; put quotes around it where YAML reads it otherwise"
            )
        if self.pattern and not re.fullmatch(self.pattern, value):
            return wrong(problems, path, f"{redacted_text(value)!r} is not {self.words}", self.hint)
        if holds_secret(value):
            return wrong(
                problems, path, "there is a secret in it", "put the secret into an Airflow connection, and name that"
            )
        return value

    def schema(self) -> dict[str, Any]:
        """The schema of a text."""
        if self.pattern:
            return {"type": "string", "pattern": f"^({self.pattern})$"}
        return {"type": ["string", "integer"], "minLength": 1}


@dataclass(frozen=True)
class DurationKind:
    """A duration."""

    words: ClassVar[str] = "duration, such as `24h`, `1d 12h` or `PT2H`"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read a duration; zero is none."""
        try:
            found = parse_duration(value, field="it")
        except RefusedError as e:
            return wrong(problems, path, e.message, e.hint or "")
        return found or wrong(problems, path, "it is no time at all", "give a duration such as 24h, or leave it out")

    def schema(self) -> dict[str, Any]:
        """The schema of a duration: text, or a number of seconds."""
        return {"type": ["string", "number"], "examples": ["1h", "15min", "30d", "PT2H"]}


@dataclass(frozen=True)
class Whole:
    """A whole number from 1 up."""

    words: ClassVar[str] = "whole number from 1"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read a number."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        return wrong(problems, path, f"it is {value!r}", "give a whole number from 1 up")

    def schema(self) -> dict[str, Any]:
        """The schema of a number."""
        return {"type": "integer", "minimum": 1}


@dataclass(frozen=True)
class Flag:
    """True or false."""

    words: ClassVar[str] = "`true` or `false`"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read a flag."""
        if isinstance(value, bool):
            return value
        return wrong(problems, path, f"it is {value!r}", "give true or false")

    def schema(self) -> dict[str, Any]:
        """The schema of a flag."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        """The words."""
        return "one of " + ", ".join(f"`{choice}`" for choice in self.choices)

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read the word."""
        if value in self.choices:
            return value
        return wrong(problems, path, f"there is no {value!r}", did_you_mean(str(value), self.choices))

    def schema(self) -> dict[str, Any]:
        """The schema of a choice."""
        return {"enum": list(self.choices)}


@dataclass(frozen=True)
class Items:
    """Several values of a kind; one alone may be written without a list."""

    kind: Kind

    @property
    def words(self) -> str:
        """What they are."""
        return f"list; each: {self.kind.words}"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read each."""
        if not isinstance(value, list | tuple):
            found = self.kind.read(value, path, problems)
            return INVALID if found is INVALID else (found,)
        read = [self.kind.read(each, (*path, number), problems) for number, each in enumerate(value)]
        return INVALID if any(each is INVALID for each in read) else tuple(read)

    def schema(self) -> dict[str, Any]:
        """The schema of a list, or of one."""
        one = self.kind.schema()
        return {"anyOf": [one, {"type": "array", "items": one}]}


@dataclass(frozen=True)
class Named:
    """Values of a kind by their names."""

    kind: Kind

    @property
    def words(self) -> str:
        """What they are."""
        return f"mapping; each: {self.kind.words}"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read each."""
        if not isinstance(value, Mapping):
            return wrong(problems, path, "it is no mapping", "give names with their values")
        read = {str(name): self.kind.read(each, (*path, str(name)), problems) for name, each in value.items()}
        return INVALID if any(each is INVALID for each in read.values()) else read

    def schema(self) -> dict[str, Any]:
        """The schema of a mapping."""
        return {"type": "object", "additionalProperties": self.kind.schema()}


@dataclass(frozen=True)
class Free:
    """Settings of somebody else: plain JSON, and no secrets.

    :param of_store: they are options of a store, where ``key`` is a secret as well.
    """

    of_store: bool = False
    words: ClassVar[str] = "mapping"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read the mapping."""
        if not isinstance(value, Mapping):
            return wrong(problems, path, "it is no mapping", "give names with their values")
        before = len(problems)
        read = self._plain(value, path, problems)
        return INVALID if len(problems) > before else read

    def _plain(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        if len(path) > _DEEPEST:
            return wrong(problems, path, "it is nested too deeply", f"give at most {_DEEPEST} levels")
        if isinstance(value, Mapping):
            return {str(name): self._member(str(name), each, path, problems) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(each, (*path, number), problems) for number, each in enumerate(value)]
        if isinstance(value, str) and holds_secret(value):
            return wrong(
                problems, path, "there is a secret in it", "put the secret into an Airflow connection, and name that"
            )
        if value is None or isinstance(value, str | int | float | bool):
            return value
        return wrong(
            problems, path, f"{type(value).__name__} is no plain value", "give text, numbers, lists and mappings"
        )

    def _member(self, name: str, value: Any, path: Path, problems: list[Problem]) -> Any:
        if (
            is_secret_name(name, of_option=self.of_store)
            and (isinstance(value, str) or (_NUMBER_TOO.search(name) and type(value) in (int, float)))
            and _REFERENCE.sub("", f"={value}") != "="
        ):
            return wrong(
                problems, (*path, name), "it is a secret", "put the secret into an Airflow connection, and name that"
            )
        return self._plain(value, (*path, name), problems)

    def schema(self) -> dict[str, Any]:
        """The schema of a mapping."""
        return {"type": "object"}


@dataclass(frozen=True)
class Rules:
    """Rules of a retention policy, by the names of restic's options."""

    words: ClassVar[str] = "mapping of rules, such as `{hourly: 48, daily: 30}`"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read the rules."""
        from airflow_ckpt_provider.backup.retention import Policy

        if not isinstance(value, Mapping):
            return wrong(problems, path, "it is no mapping", "give rules, such as {hourly: 48, daily: 30}")
        try:
            Policy.parse(value)
        except RefusedError as e:
            return wrong(problems, path, e.message, e.hint or "")
        return dict(value)

    def schema(self) -> dict[str, Any]:
        """The schema of the rules."""
        from airflow_ckpt_provider.backup.retention import COUNT_RULES, SPAN_RULES

        count = {"anyOf": [{"type": "integer", "minimum": 0}, {"const": "unlimited"}]}
        span = {"type": "string", "pattern": "^(\\d+[ymdh])+$"}
        texts = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        rules = {**dict.fromkeys(COUNT_RULES, count), **dict.fromkeys(SPAN_RULES, span), "tag": texts}
        return {"type": "object", "properties": rules, "additionalProperties": False}


@dataclass(frozen=True)
class NameOfStream:
    """The name of a stream, here and in a repository.

    :param longest: of how many characters at most; ids of tasks, which have 250, have more in them.
    """

    longest: int = 200
    words: ClassVar[str] = "name of letters, digits, `.`, `_`, `-` and `=`"

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read the name."""
        from airflow_ckpt_provider.backup.names import is_name

        if value == "None":
            hint = "give another name: in a template field None means that nothing was given"
            return wrong(problems, path, "'None' cannot be the name of a stream", hint)
        if isinstance(value, str) and len(value) > self.longest:
            return wrong(problems, path, f"it has {len(value)} characters", f"give at most {self.longest}")
        if isinstance(value, str) and is_name(value):
            return value
        hint = (
            "use letters, digits, '.', '_', '-' and '=', beginning with a letter, a digit or '_', without '..' or '/'"
        )
        return wrong(problems, path, f"{value!r} cannot be the name of a stream", hint)

    def schema(self) -> dict[str, Any]:
        """The schema of a name."""
        return {"type": "string", "minLength": 1}


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


def _fields(of: type[Declared]) -> tuple[Field[Any], ...]:
    return fields(of)  # type: ignore[arg-type]  # every subclass is a dataclass


def kinds_of(of: type[Declared]) -> Mapping[str, Kind]:
    """The kind of each field of a class."""
    if of not in _kinds:
        hints = get_type_hints(of, include_extras=True)
        _kinds[of] = {field.name: _kind(hints[field.name]) for field in _fields(of)}
    return _kinds[of]


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


ConnId = Annotated[
    str, Text("an id of an Airflow connection", _CONN_ID.pattern, "give the id, not its URI or its secret")
]
Place = Annotated[
    str,
    Text(
        "a URI or an absolute path",
        r"(/|[A-Za-z][A-Za-z0-9+.-]*://).*",
        "give a URI such as s3://bucket/path, or an absolute path",
    ),
]
Dotted = Annotated[
    str, Text("a dotted name", r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", "give package.module.Class as Python imports it")
]
StoreOptions = Annotated[Mapping[str, Any], Free(of_store=True)]
