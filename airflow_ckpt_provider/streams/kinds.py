"""Kinds of values of a declaration: how each is read, from YAML and from Python alike, and its JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Protocol

from airflow_ckpt_provider.errors import RefusedError, did_you_mean
from airflow_ckpt_provider.redaction import HIDDEN, is_secret_name, redacted_text
from airflow_ckpt_provider.streams.problems import Path, Problem
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


#: ``file://data/x``: what stands for a host there. A pattern in JSON Schema has no flag for capital letters.
_FILE = r"[Ff][Ii][Ll][Ee]://"
_LOCALHOST = r"[Ll][Oo][Cc][Aa][Ll][Hh][Oo][Ss][Tt]"


@dataclass(frozen=True)
class PlaceText(Text):
    """The address of a place. It is the same one in every process: a path is absolute.

    :param words: what it is, for people.
    :param pattern: the whole of it matches.
    :param hint: the next step where it does not match.
    """

    def read(self, value: Any, path: Path, problems: list[Problem]) -> Any:
        """Read an address. In ``file://data/x`` two slashes are written for three: ``data`` is the host."""
        if isinstance(value, str) and (match := re.match(f"{_FILE}(?!{_LOCALHOST}/)(?!/)", value)):
            rest = redacted_text(value)[match.end() :]
            host = rest.partition("/")[0]
            said = f"names the host {host!r}" if host else "names no directory"
            hint = f"write file:///{rest or 'data/backups'}: three slashes, and the absolute path"
            return wrong(problems, path, f"{redacted_text(value)!r} {said}", hint)
        return super().read(value, path, problems)

    def schema(self) -> dict[str, Any]:
        """The schema of an address."""
        return {"type": "string", "pattern": f"^(?!{_FILE}(?!{_LOCALHOST}/)(?!/))({self.pattern})$"}


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


ConnId = Annotated[
    str, Text("an id of an Airflow connection", _CONN_ID.pattern, "give the id, not its URI or its secret")
]
Place = Annotated[
    str,
    PlaceText(
        "a URI or an absolute path",
        r"(/|[A-Za-z][A-Za-z0-9+.-]*://).*",
        "give a URI such as s3://bucket/path, or an absolute path",
    ),
]
TableName = Annotated[
    str,
    PlaceText(
        "a table",
        r"(/|[A-Za-z][A-Za-z0-9+.-]*://|iceberg:[^/]).*",
        "give the directory of the table, a URI or an absolute path; or iceberg:CATALOG.NAMESPACE.TABLE",
    ),
]
Dotted = Annotated[
    str, Text("a dotted name", r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", "give package.module.Class as Python imports it")
]
StoreOptions = Annotated[Mapping[str, Any], Free(of_store=True)]
