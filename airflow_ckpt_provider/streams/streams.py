"""All streams of one declaration: what they share, and which of them is meant."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_ckpt_provider.errors import RefusedError, did_you_mean
from airflow_ckpt_provider.streams.problems import DeclarationError, Path, Problem
from airflow_ckpt_provider.streams.stream import Stream

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
_OF_BUCKETS = ("s3", "gs")
_AZURE = "abfs"
#: In front of the path is a host, in which case means nothing. Not of S3: old buckets have names with capital letters.
_OF_HOSTS = ("file", "hdfs", "webhdfs", _AZURE)


class UnknownStreamError(RefusedError):
    """No stream has this name."""


class Streams(Mapping[str, Stream]):
    """Streams by their names, in the order of the file.

    :param streams: the streams.
    :param source: the file; ``None``: they come from Python.
    :raises DeclarationError: two have one name, one checkpoint, or one name in one repository; or a place is inside another one.
    """

    def __init__(self, streams: Iterable[Stream], *, source: str | None = None) -> None:
        self._streams: dict[str, Stream] = {}
        self.source = source
        problems = []
        for stream in streams:
            if not isinstance(stream, Stream):
                raise RefusedError(
                    f"{stream!r} is no Stream",
                    hint="give a list of Stream(name, checkpoint=…), or the path of streams.yaml",
                )
            if stream.name in self._streams:
                problems.append(Problem(("streams", stream.name), "two streams have this name", "give each its own"))
            self._streams[stream.name] = stream
        problems += [*_shared(self._streams.values()), *_nested(self._streams.values())]
        if problems:
            raise DeclarationError(problems, source=source)

    def __getitem__(self, name: str) -> Stream:
        return self._streams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def named(self, name: str) -> Stream:
        """Return the stream of a name.

        :param name: what was asked for.
        :raises UnknownStreamError: there is none; the hint names the nearest.
        """
        if name not in self._streams:
            where = f"{self.source} declares" if self.source else "there is"
            raise UnknownStreamError(f"{where} no stream {name!r}", hint=did_you_mean(name, self._streams))
        return self._streams[name]

    def of_application(self, name: str) -> tuple[Stream, ...]:
        """Return the streams of an application, in the order of the file.

        :param name: the application.
        :raises UnknownStreamError: none declares it; the hint names the nearest.
        """
        found = tuple(stream for stream in self.values() if stream.application == name)
        if not found:
            known = {stream.application: stream for stream in self.values() if stream.application}
            where = f"{self.source} declares" if self.source else "there is"
            raise UnknownStreamError(f"{where} no stream with application: {name}", hint=did_you_mean(name, known))
        return found


def repository_of_all(streams: Sequence[Stream]) -> tuple[str | None, str | None]:
    """The repository that all of some streams have, and the Airflow connection that reaches it.

    :param streams: the streams, at least one.
    :return: its URI, ``None`` if none of them declares one; and the connection.
    :raises RefusedError: they have several, or one has none.
    """
    first, *others = streams
    for other in others:
        if _backed_up(other) != _backed_up(first):
            raise RefusedError(
                f"streams {first} and {other} have different repositories, or other connections to them",
                hint="declare one `repository` and one `repository_conn_id` for both, or name them in commands of their own",
            )
    return first.repository, first.repository_connection


def _backed_up(stream: Stream) -> tuple[str | None, str | None]:
    return stream.repository and plain_place(stream.repository), stream.repository_connection


def _shared(streams: Iterable[Stream]) -> Iterator[Problem]:
    """What only one stream may have."""
    checkpoints: dict[str, str] = {}
    names: dict[tuple[str, str], str] = {}
    for stream in streams:
        at = ("streams", stream.name)
        place = plain_place(stream.checkpoint)
        if place in checkpoints:
            said = f"it is the checkpoint of {checkpoints[place]!r} too"
            yield Problem(
                (*at, "checkpoint"), said, "a checkpoint belongs to one stream: give another one, or remove one stream"
            )
        checkpoints.setdefault(place, stream.name)
        if stream.repository is None:
            continue
        kept = (plain_place(stream.repository), stream.repository_name)
        if kept in names:
            said = f"{names[kept]!r} has the name {stream.repository_name!r} in the same repository"
            yield Problem((*at, "name_in_repository"), said, "give one of them another name_in_repository")
        names.setdefault(kept, stream.name)


@dataclass(frozen=True, slots=True)
class _Outer:
    """A place in which some others must not be."""

    what: str
    stream: str
    uri: str


#: Place in one spelling -> what is there.
_Outers = Mapping[str, _Outer]


def _nested(streams: Collection[Stream]) -> Iterator[Problem]:
    """Places inside another one: a change of the outer one, or a clean-up of a table, would change both."""
    checkpoints: dict[str, _Outer] = {}
    repositories: dict[str, _Outer] = {}
    tables: dict[str, _Outer] = {}
    for stream in streams:
        _add(checkpoints, "the checkpoint of", stream, stream.checkpoint)
        if stream.repository:
            _add(repositories, "the repository of", stream, stream.repository)
        for sink in stream.sinks:
            if _is_place(sink.sink):
                _add(tables, "a sink of", stream, sink.sink)
    for stream in streams:
        for source in stream.sources.values():
            for table in filter(_is_place, source.tables.values()):
                _add(tables, "a source of", stream, table)
    for stream in streams:
        at = ("streams", stream.name)
        yield from _inside((*at, "checkpoint"), stream.checkpoint, checkpoints, repositories)
        # VACUUM leaves hidden directories alone: a checkpoint in <table>/_checkpoints is usual.
        yield from _inside((*at, "checkpoint"), stream.checkpoint, tables, hidden_is_beside=True)
        if stream.repository:
            yield from _inside((*at, "repository"), stream.repository, checkpoints, tables, or_is=True)
        for number, sink in enumerate(stream.sinks):
            if _is_place(sink.sink):
                yield from _inside((*at, "sinks", number), sink.sink, checkpoints, or_is=True)
                yield from _inside((*at, "sinks", number), sink.sink, repositories)
        for field in ("progress_log", "log"):
            if log := getattr(stream.driver, field):
                yield from _inside((*at, "driver", field), log, checkpoints, or_is=True)
        if stream.drill:
            outers = (checkpoints, repositories, tables)
            yield from _inside((*at, "drill", "scratch"), stream.drill.scratch, *outers, or_is=True)


def _add(outers: dict[str, _Outer], what: str, stream: Stream, uri: str) -> None:
    outers.setdefault(plain_place(uri), _Outer(what, stream.name, uri))


def _is_place(sink: str) -> bool:
    """Whether a sink or a table is a directory: not a table by its name, not ``foreachBatch`` and the like."""
    return sink.startswith("/") or "://" in sink


def _inside(
    path: Path, uri: str, *kinds: _Outers, or_is: bool = False, hidden_is_beside: bool = False
) -> Iterator[Problem]:
    """The problem of a place that is inside another one.

    :param path: where the place is declared.
    :param uri: its address.
    :param kinds: the places in which it must not be.
    :param or_is: nor may it be one of them.
    :param hidden_is_beside: it may be in a directory of them whose name begins with ``_`` or ``.``.
    """
    place = plain_place(uri)
    scheme, _, rest = place.partition("://")
    host, *names = rest.rstrip("/").split("/")
    # The nearest first.
    above = [
        (f"{scheme}://{host}/{'/'.join(names[:length])}", names[length:]) for length in reversed(range(len(names)))
    ]
    for outers in kinds:
        for outer, below in ([(place, [])] if or_is else []) + above:
            if hidden_is_beside and any(name[:1] in ("_", ".") for name in below):
                break
            if found := outers.get(outer):
                said = "is" if outer == place else "is inside"
                hint = "give each checkpoint, repository, sink, log and scratch place a directory of its own, beside the others"
                yield Problem(path, f"{uri} {said} {found.what} {found.stream!r}, {found.uri}", hint)
                break


def plain_place(uri: str) -> str:
    """A place in one spelling: as Spark, by Hadoop's paths, reads ``//``, ``/./`` and ``/../``.

    :param uri: its address.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        scheme, rest = "file", uri
    scheme = _SAME_SCHEME.get(scheme.lower(), scheme.lower())
    host, _, path = rest.partition("/")
    if scheme in _OF_BUCKETS:
        host = host.rpartition("@")[2]  # an Airflow connection: the place is the same without
    elif scheme in _OF_HOSTS:
        host = _plain_host(scheme, host.lower())
    path = posixpath.normpath(f"/{path.lstrip('/')}")
    return f"{scheme}://{host}{path}"


def _plain_host(scheme: str, host: str) -> str:
    """A host in one spelling.

    :param scheme: in one spelling.
    :param host: in lower case.
    """
    if scheme == "file":
        return "" if host == "localhost" else host
    if scheme == "hdfs":
        return host.removesuffix(":8020")  # what a NameNode listens to if nothing else is said
    if scheme == _AZURE:
        return host.replace(".blob.", ".dfs.", 1)  # of WASB: the same container
    return host


def as_reported(uri: str) -> str:
    """A place in one spelling, as reports, incidents and manifests have it: of Azure a store leaves the account out.

    So containers of two accounts that have one name are one place here. Do not refuse anything by that.

    :param uri: its address.
    """
    plain = plain_place(uri)
    scheme, _, rest = plain.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.partition('@')[0]}{slash}{path}" if scheme == _AZURE else plain
