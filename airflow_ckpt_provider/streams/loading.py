"""Reading ``streams.yaml``: no network, no Airflow, and every problem of the file at once with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

import yaml

from airflow_ckpt_provider.errors import RefusedError, did_you_mean
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.streams.declared import kinds_of, read_fields
from airflow_ckpt_provider.streams.kinds import INVALID, NameOfStream, wrong
from airflow_ckpt_provider.streams.problems import DeclarationError, Path, Problem
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams
from airflow_ckpt_provider.units import format_size

#: Of the file: far more than thousands of streams need.
_BYTES_AT_MOST = 8 * 1024**2
_NODES_AT_MOST = 200_000
_DEEPEST = 40
_TOP = ("version", "defaults", "streams")
_VERSION = 1
#: Fields that a stream fills up from the defaults field by field; all others it replaces.
MERGED = ("backup", "driver", "objectives", "watch")
#: Fields that belong to one stream.
_OF_ONE = ("name", "name_in_repository")
_NAME = re.compile(r"(?<!\{)\{stream\}(?!\})")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TAGS = {
    f"{_TAG}{name}" for name in ("bool", "float", "int", "map", "merge", "null", "seq", "str", "timestamp", "value")
}


def load_streams(path: str | os.PathLike[str], *, settings: Mapping[str, Any] | None = None) -> Streams:
    """Read a file; again only when it has changed.

    :param path: the file.
    :param settings: defaults below those of the file, such as ``{"repository": …}``.
    :raises DeclarationError: it has problems: all of them.
    :raises RefusedError: there is no such file, or it cannot be read.
    """
    file = os.path.abspath(os.fspath(path))
    try:
        seen = os.stat(file)
    except OSError as e:
        raise RefusedError(
            f"{file}: {e.strerror}",
            hint="give the path of streams.yaml; `airflow-ckpt streams init ROOT` writes a first one",
        ) from e
    return _load(file, seen.st_mtime_ns, seen.st_size, seen.st_ino, tuple(sorted((settings or {}).items())))


@lru_cache(maxsize=16)
def _load(file: str, _mtime: int, size: int, _inode: int, settings: tuple[tuple[str, Any], ...]) -> Streams:
    if size > _BYTES_AT_MOST:
        raise RefusedError(f"{file} has {format_size(size)}", hint="is this the file of your streams?")
    try:
        text = FilePath(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise RefusedError(f"{file} cannot be read: {e}", hint="it is YAML in UTF-8") from e
    return parse_streams(text, source=file, settings=dict(settings))


def parse_streams(text: str, *, source: str = "streams.yaml", settings: Mapping[str, Any] | None = None) -> Streams:
    """Read the text of a file.

    :param text: the YAML.
    :param source: the file, for messages.
    :param settings: defaults below those of the file.
    :raises DeclarationError: it has problems: all of them.
    """
    reading = _Yaml()
    document = reading.read(text)
    if reading.problems:
        raise DeclarationError(reading.problems, source=source)
    problems: list[Problem] = []
    streams = _streams(document, settings or {}, problems)
    if not problems:
        try:
            return Streams(streams, source=source)
        except DeclarationError as e:
            problems = list(e.problems)
    raise DeclarationError(_once(problems, reading), source=source)


def located(problems: list[Problem], source: str | None) -> list[Problem]:
    """Give problems of streams that were read before the lines of their file.

    :param problems: what is wrong.
    :param source: the file; ``None``: they come from Python.
    """
    reading = _Yaml()
    if source:
        with suppress(OSError, UnicodeDecodeError):  # it was replaced since
            reading.read(FilePath(source).read_text(encoding="utf-8"))
    return _once(problems, reading)


def _once(problems: list[Problem], reading: _Yaml) -> list[Problem]:
    """Give each problem its line. What is wrong in the defaults is wrong once, not in each stream."""
    found: dict[tuple[int | None, str], Problem] = {}
    for each in problems:
        path, line = reading.line_of(each.path)
        found.setdefault((line, each.message), Problem(path, each.message, each.hint, line))
    return list(found.values())


def _streams(document: Any, settings: Mapping[str, Any], problems: list[Problem]) -> list[Stream]:
    if not isinstance(document, Mapping):
        wrong(problems, (), "it is no mapping", "begin with `streams:`")
        return []
    for name in document.keys() - set(_TOP):
        wrong(problems, (name,), "there is no such field", did_you_mean(name, _TOP))
    if document.get("version") not in (None, _VERSION):
        wrong(problems, ("version",), f"it is {document['version']!r}", f"this release reads version {_VERSION}")
    defaults, declared = document.get("defaults") or {}, document.get("streams")
    if not isinstance(defaults, Mapping):
        wrong(problems, ("defaults",), "it is no mapping", "give fields of a stream")
        defaults = {}
    for name in _OF_ONE:
        if name in defaults:
            wrong(problems, ("defaults", name), "it belongs to one stream", "move it to the stream")
    for name in defaults.keys() - kinds_of(Stream).keys():
        wrong(problems, ("defaults", name), "there is no such field", did_you_mean(name, kinds_of(Stream)))
    common = {name: value for name, value in defaults.items() if name in kinds_of(Stream) and name not in _OF_ONE}
    if not isinstance(declared, Mapping) or not declared:
        wrong(problems, ("streams",), "there are no streams", "give each a name and a checkpoint")
        return []
    common = {**{name: value for name, value in settings.items() if value}, **common}
    found = []
    for name, own in declared.items():
        path = ("streams", name)
        if own is not None and not isinstance(own, Mapping):
            wrong(problems, path, "it is no mapping", "give its fields, such as checkpoint")
            continue
        NameOfStream().read(name, path, problems)
        stream = read_fields(Stream, _with_defaults(own or {}, common, name), path, problems, name=name)
        if stream is not INVALID:
            found.append(stream)
    return found


def _with_defaults(own: Mapping[str, Any], common: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of a stream. One that is empty removes the default: the stream is read as if nobody had given it."""
    merged = {**_for(common, name), **own}
    for key in MERGED:
        mine, theirs = own.get(key), common.get(key)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            merged[key] = {**_for(theirs, name), **mine}
    return merged


def _for(value: Any, name: str) -> Any:
    """A value of the defaults for one stream: ``{stream}`` is its name."""
    if isinstance(value, str):
        return _NAME.sub(lambda _: name, value) if "{stream}" in value else value
    if isinstance(value, Mapping):
        return {key: _for(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [_for(each, name) for each in value]
    return value


class _Yaml:
    """Plain values of a YAML text, and the line of each.

    Text stays what was written: ``no`` is no flag here and ``12:30`` no number, unlike in YAML 1.1.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._lines: dict[Path, int] = {}
        self._nodes = 0

    def read(self, text: str) -> Any:
        """Return the document."""
        try:
            if _is_too_deep(text):
                raise RecursionError
            node = yaml.compose(text, Loader=_LOADER)
        except yaml.YAMLError as e:
            mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
            said = ", ".join(str(part) for part in (getattr(e, "context", None), getattr(e, "problem", None)) if part)
            problem = redacted_text(said or str(e))
            self.problems.append(
                Problem((), f"it is no YAML: {problem}", "check indentation and quotes", _line(mark, text))
            )
            return None
        except RecursionError:
            self.problems.append(Problem((), "it is nested too deeply", f"give at most {_DEEPEST} levels"))
            return None
        return None if node is None else self._value(node, ())

    def line_of(self, path: Path) -> tuple[Path, int | None]:
        """Where a field stands: in its stream, or in the defaults; else what it is missing in."""
        in_defaults = ("defaults", *path[2:]) if path[:1] == ("streams",) and len(path) > 2 else None
        if path in self._lines:
            return path, self._lines[path]
        if in_defaults in self._lines:
            return in_defaults, self._lines[in_defaults]
        for length in range(len(path) - 1, 0, -1):
            if path[:length] in self._lines:
                return path, self._lines[path[:length]]
        return path, None

    def _value(self, node: Any, path: Path) -> Any:
        self._nodes += 1
        if len(path) > _DEEPEST or self._nodes > _NODES_AT_MOST:
            if not self.problems:
                self._wrong(node, path, "it is nested too deeply, or an alias repeats too much", "write it out")
            return None
        if node.tag not in _TAGS:
            return self._wrong(node, path, f"the tag {node.tag} is not known", "leave it out")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self._lines.setdefault(path, node.start_mark.line + 1)
            return [self._value(each, (*path, number)) for number, each in enumerate(node.value)]
        self._lines.setdefault(path, node.start_mark.line + 1)
        return _scalar(node)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        self._lines.setdefault(path, node.start_mark.line + 1)
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or key.tag == f"{_TAG}merge":
                self._wrong(
                    key, path, "this key cannot be read", "give a name; write what streams share into `defaults`"
                )
                continue
            inner = (*path, name)
            if name in found:
                first = self._lines[inner]
                self._wrong(key, inner, f"it is given twice, first in line {first}", "remove one")
                continue
            self._lines[inner] = key.start_mark.line + 1
            found[name] = self._value(value, inner)
        return found

    def _wrong(self, node: Any, path: Path, message: str, hint: str) -> None:
        self.problems.append(Problem(path, message, hint, node.start_mark.line + 1))


def _is_too_deep(text: str) -> bool:
    """Whether it is nested so deeply that composing it would end the process: libyaml's composer has no limit."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            return True
    return False


def _line(mark: Any, text: str) -> int | None:
    """The line of a mark. One behind the end is the last line."""
    return min(mark.line + 1, max(1, len(text.splitlines()))) if mark else None


def _scalar(node: Any) -> Any:
    text: str = node.value
    kind = node.tag.removeprefix(_TAG)
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and re.fullmatch(r"-?(0|[1-9]\d{0,17})", text):
        return int(text)
    if kind == "float" and re.fullmatch(r"-?\d+\.\d+", text):
        return float(text)
    return text
