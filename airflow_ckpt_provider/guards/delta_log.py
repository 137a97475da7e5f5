"""What is left of a Delta table's log, and what its commits did. Read as JSON, without a client (Delta's PROTOCOL.md).

A stream that reads a table needs the commits themselves, ``_delta_log/<version>.json``: a checkpoint of the log does not
replace them. Only for its first snapshot does it need a state of the table, which checkpoints help to build.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from airflow_ckpt_provider.checkpoint.gaps import gaps
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.guards.delta_vector import vector_path
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import Location

DELTA_LOG = "_delta_log"
#: Table features under which the newest commits may not be in the table's log, but in one of :data:`STAGED` until somebody
#: copies them.
CATALOG_MANAGED = frozenset({"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"})
#: Directories in it: commits that a catalog has and that are not published yet.
STAGED = ("_staged_commits", "_commits")
#: Directory in it: parts of V2 checkpoints.
SIDECARS = "_sidecars"
#: Clocks of Spark's driver and of the table's writer may differ by this much.
CLOCKS = timedelta(minutes=5)
_COMMIT = re.compile(r"(\d{20})\.json")
#: Number of all parts in the name of one part of a checkpoint.
_PART = re.compile(r"\.\d{10}\.(\d{10})")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\.\d{10}\.\d{10}|\.[0-9a-f-]{36})?\.(parquet|json)")
#: Action -> the form of those of its fields that are read later than the commit itself; each may be missing.
_FORMS: dict[str, dict[str, type]] = {
    "add": {"path": str, "size": int, "deletionVector": dict},
    "remove": {"path": str, "deletionVector": dict},
    "cdc": {"path": str, "size": int},
    "txn": {"appId": str},
    "commitInfo": {"operationParameters": dict, "operationMetrics": dict},
    "metaData": {"configuration": dict, "partitionColumns": list, "schemaString": str},
    "protocol": {"readerFeatures": list, "writerFeatures": list},
}
_INTERVAL_PART = re.compile(r"(\d+)\s*(millisecond|second|minute|hour|day|week)s?")


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file that a commit added.

    :param path: relative to the table, decoded; or a URI for a file that lies elsewhere (a shallow clone's).
    :param rows: its number of rows, where the statistics tell.
    :param size: bytes, where the log has them.
    :param vector: the file of its deletion vector, if it has one.
    """

    path: str
    rows: int | None
    size: int | None = None
    vector: str | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether it lies outside of the table's directory."""
        return "://" in self.path or self.path.startswith(("/", "file:"))


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """One version.

    :param version: its number.
    :param operation: Delta's word for what was done, such as ``WRITE``, ``DELETE``, ``OPTIMIZE``, ``RESTORE``.
    :param time: when, in UTC, where the commit shows.
    :param added: files with new rows, in the order of the commit: an offset's ``index`` counts them from 0.
    :param removed: paths of files whose rows are gone or rewritten (``dataChange``).
    :param dropped: path -> when, of all files that left the table, those of ``OPTIMIZE`` too; 1970 where it does not say, as
        ``VACUUM`` takes it. Not of those that only got a deletion vector, but of the files of vectors that these had before.
    :param vectors: path -> the file of its deletion vector, if it had one, of all files that left the table or got another
        vector.
    :param table_id: id of the table, where the commit sets its metadata.
    :param metadata: the metadata, where the commit sets it.
    :param features: reader features that it asks for, where it sets the protocol.
    :param changes: files of the change data feed in ``_change_data/``; a commit without any is read by its other files.
    """

    version: int
    operation: str
    time: datetime | None
    added: tuple[AddedFile, ...]
    removed: tuple[str, ...]
    dropped: Mapping[str, datetime]
    table_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    features: frozenset[str] = frozenset()
    changes: tuple[AddedFile, ...] = ()
    vectors: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The version in a few words."""
        return f"version {self.version} ({self.operation or 'of an unknown operation'})"


@dataclass(slots=True)
class DeltaLog:
    """The log of a table as one listing found it.

    :param table: the table's directory.
    :param commits: version -> when its file was written, ascending; those that are still there.
    :param checkpoints: version -> when its checkpoint was written, ascending.
    :param names: names of all commits and checkpoints.
    :param staged: the directory in which a catalog keeps commits that are not in the log yet; empty: there are none.
    """

    table: Location
    commits: dict[int, datetime | None]
    checkpoints: dict[int, datetime | None]
    names: tuple[str, ...] = ()
    staged: str = ""
    _contents: dict[str, bytes] = field(default_factory=dict)
    _read: dict[int, DeltaCommit] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is no table here."""
        return not self.commits and not self.checkpoints

    @property
    def latest(self) -> int:
        """The newest version; -1 without any."""
        return max([*self.commits, *self.checkpoints], default=-1)

    def missing(self, first: int, last: int) -> list[range]:
        """Versions from ``first`` to ``last`` whose commit is gone."""
        return gaps(self.commits, max(first, 0), last)

    def commit(self, version: int) -> DeltaCommit:
        """Read one commit.

        :raises FileNotFoundError: it is gone.
        :raises UnreadableLogError: it cannot be parsed.
        """
        if version not in self._read:
            path = commit_path(version)
            held = self._contents.pop(path.rpartition("/")[2], None)
            data = self.table.read(path) if held is None else held
            self._read[version] = parse_commit(data, version=version, path=path)
        return self._read[version]

    def named_features(self) -> frozenset[str] | None:
        """Reader and writer features of the newest protocol that a commit has; ``None`` where no commit that is left has one."""
        for version in reversed(self.commits):
            path = commit_path(version)
            for action in reversed(read_actions(self.table.read(path), path=path)):
                if protocol := action.get("protocol"):
                    return frozenset((*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())))
        return None

    def content(self, name: str) -> bytes:
        """Read a file of ``_delta_log``; a commit's is kept until :meth:`commit` wants it.

        :raises FileNotFoundError: it is gone.
        """
        data = self.table.read(f"{DELTA_LOG}/{name}")
        if _COMMIT.fullmatch(name):
            self._contents[name] = data
        return data

    def can_rebuild(self, version: int) -> bool:
        """Whether the state of the table at a version can be put together."""
        return not self.missing(self._base(version) + 1, version)

    def written_for(self, version: int, *, rebuilt: bool) -> datetime | None:
        """When the oldest file was written that is needed to read from a version on; ``None``: it is still to be written.

        :param rebuilt: the state of the table at the version is needed too.
        """
        base = self._base(version) if rebuilt else version - 1
        times = [time for c, time in self.checkpoints.items() if rebuilt and c == base and time]
        oldest = next((v for v in self.commits if v > base), None)
        if oldest is not None:
            written = self.commits[oldest] or self.commit(oldest).time
            times += [written] if written else []
        return min(times, default=None)

    def _base(self, version: int) -> int:
        """The checkpoint that the state at a version is put together from; -1 without one."""
        return max((c for c in self.checkpoints if c <= version), default=-1)

    def names_for(self, version: int) -> list[str]:
        """Names in ``_delta_log`` that the state at a version is put together from."""
        base, kept = self._base(version), []
        for name in self.names:
            checkpoint, commit = _CHECKPOINT.fullmatch(name), _COMMIT.fullmatch(name)
            if (checkpoint and int(checkpoint[1]) == base) or (commit and base < int(commit[1]) <= version):
                kept.append(name)
        return kept


def read_delta_log(table: Location) -> DeltaLog:
    """List the log of a table.

    :param table: the table's directory.
    :raises UnreadableLogError: a checkpoint is newer than every commit: Spark cannot open the table.
    """
    commits: dict[int, datetime | None] = {}
    checkpoints: dict[int, datetime | None] = {}
    names = []
    parts: Counter[tuple[int, int]] = Counter()
    listing = table.list(DELTA_LOG)
    for file in listing.files:
        name = file.path.rpartition("/")[2]
        if match := _COMMIT.fullmatch(name):
            commits[int(match[1])] = file.modified
        elif match := _CHECKPOINT.fullmatch(name):
            version, part = int(match[1]), _PART.fullmatch(match[2] or "")
            if part:  # one of several: it is a checkpoint with all of them only
                parts[version, int(part[1])] += 1
            if not part or parts[version, int(part[1])] == int(part[1]):
                checkpoints[version] = file.modified
        else:
            continue
        names.append(name)
    if (newest := max(checkpoints, default=-1)) > max(commits, default=-1):
        checkpoint = next(name for name in names if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) == newest)
        ends = f"the newest commit is {commit_path(max(commits))}" if commits else "there is no commit"
        raise UnreadableLogError(
            f"{table}/{DELTA_LOG}/{checkpoint} is newer than every commit ({ends}): Spark cannot open the table",
            path=f"{DELTA_LOG}/{checkpoint}",
            hint=f"commits up to {commit_path(newest)} are missing: copy them from where the table came from",
        )
    newest = max(commits, default=-1)
    staged = next((n for n in STAGED if n in listing.directories and _newest_staged(table, n) > newest), "")
    return DeltaLog(table, dict(sorted(commits.items())), dict(sorted(checkpoints.items())), tuple(names), staged)


def _newest_staged(table: Location, directory: str) -> int:
    """The newest version in a directory of staged commits; -1 without any: Spark makes the directory in every table."""
    names = (file.path.rpartition("/")[2].partition(".")[0] for file in table.list(f"{DELTA_LOG}/{directory}").files)
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def in_words(ranges: Sequence[range], *, one: str, many: str) -> str:
    """Numbers for a message, such as ``version 3`` or ``versions 3 to 5, 7``."""
    each = [str(r.start) if r.stop == r.start + 1 else f"{r.start} to {r.stop - 1}" for r in ranges]
    return f"{one if len(each) == 1 and each[0].isdigit() else many} {', '.join(each)}"


def is_v2_checkpoint(name: str) -> bool:
    """Whether a file of the log is a checkpoint that may name sidecars."""
    match = _CHECKPOINT.fullmatch(name)
    return bool(match and match[2] and len(match[2]) == 37)


def is_delta_table(table: Location) -> bool:
    """Whether a place is a Delta table."""
    return bool(table.list(DELTA_LOG).files)


def commit_path(version: int) -> str:
    """Path of a commit in the table."""
    return f"{DELTA_LOG}/{version:020d}.json"


def read_actions(data: bytes, *, path: str) -> list[dict[str, Any]]:
    """The actions of a commit, one JSON object a line.

    :param data: content of ``_delta_log/<version>.json``.
    :param path: its path, for messages.
    :raises UnreadableLogError: a line is no action, or a field has another form than Delta's PROTOCOL.md says.
    """
    try:
        actions = [load_json(line) for line in data.split(b"\n") if line.strip()]
        if strange := [action for action in actions if not isinstance(action, dict)]:
            raise ValueError(f"found {strange[0]!r}")
    except ValueError as e:
        raise _unreadable(path, "the JSON is broken or cut off", e) from e
    with fields_of(path):
        return [{name: _checked(name, value) for name, value in each.items() if value is not None} for each in actions]


@contextmanager
def fields_of(path: str) -> Iterator[None]:
    """Read fields of a commit.

    :param path: its path, for messages.
    :raises UnreadableLogError: one is missing or has an unexpected form.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as e:
        raise _unreadable(path, f"a field is missing or has an unexpected form: {type(e).__name__}", e) from e


def _checked(name: str, value: Any) -> Any:
    for key, form in _FORMS.get(name, {}).items():
        if value.get(key) is not None and not isinstance(value[key], form):
            raise TypeError(f"{name}.{key} is {value[key]!r}")
    return value


def time_of(stamp: int) -> datetime:
    """A time of the log, which has milliseconds, in UTC."""
    return datetime.fromtimestamp(stamp / 1000, UTC)


def commit_time(info: Mapping[str, Any]) -> datetime | None:
    """When a commit was made, in UTC; ``None`` where its ``commitInfo`` does not say."""
    stamp = info.get("inCommitTimestamp", info.get("timestamp"))
    return time_of(stamp) if isinstance(stamp, int) else None


def rows_of(stats: Any) -> int | None:
    """Number of rows of a data file by the statistics of its ``add``; ``None`` where they do not show."""
    try:
        rows = load_json(stats)["numRecords"] if isinstance(stats, str) else None
    except (ValueError, KeyError, TypeError):
        return None
    return rows if isinstance(rows, int) else None


def parse_commit(data: bytes, *, version: int, path: str) -> DeltaCommit:
    """Parse ``_delta_log/<version>.json``: one action a line.

    :raises UnreadableLogError: a line is no action.
    """
    added: list[AddedFile] = []
    changes: list[AddedFile] = []
    removed: list[str] = []
    dropped: dict[str, datetime] = {}
    stays: set[str] = set()
    vectors: dict[str, str | None] = {}
    info: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] | None = None
    features: frozenset[str] = frozenset()
    actions = read_actions(data, path=path)
    with fields_of(path):
        for action in actions:
            if add := action.get("add"):
                file = AddedFile(_decoded(add["path"]), rows_of(add.get("stats")), add.get("size"), _vector_of(add))
                stays.update(filter(None, (file.path, file.vector)))
                if add["dataChange"]:
                    added.append(file)
            if remove := action.get("remove"):
                gone = _decoded(remove["path"])
                vector = vectors[gone] = _vector_of(remove)
                left = time_of(int(remove.get("deletionTimestamp") or 0))
                dropped |= dict.fromkeys(filter(None, (gone, vector)), left)
                if remove.get("dataChange", True):
                    removed.append(gone)
            if change := action.get("cdc"):
                changes.append(AddedFile(_decoded(change["path"]), None, change.get("size")))
            info = action.get("commitInfo") or info
            metadata = action.get("metaData") or metadata
            if protocol := action.get("protocol"):
                features = frozenset(protocol.get("readerFeatures") or ())
        return DeltaCommit(
            version=version,
            operation=str(info.get("operation") or ""),
            time=commit_time(info),
            added=tuple(added),
            removed=tuple(removed),
            changes=tuple(changes),
            dropped={path: time for path, time in dropped.items() if path not in stays},
            table_id=str(metadata["id"]) if metadata and "id" in metadata else None,
            metadata=metadata,
            features=features,
            vectors=vectors,
        )


def _vector_of(file: Mapping[str, Any]) -> str | None:
    vector = file.get("deletionVector")
    return vector_path(vector) if vector else None


def interval(text: str) -> timedelta | None:
    """Read a duration of a table's settings, such as ``interval 30 days``; ``None`` where it is in no known form."""
    rest = text.strip().lower().removeprefix("interval").strip()
    parts = _INTERVAL_PART.findall(rest)
    if not parts or _INTERVAL_PART.sub("", rest).strip():
        return None
    try:
        return sum((timedelta(**{f"{unit}s": int(number)}) for number, unit in parts), timedelta())
    except OverflowError:
        return None


def directories_of(files: Iterable[AddedFile]) -> dict[str, set[str]]:
    """Directory -> names, of files in the table's own directory."""
    found: dict[str, set[str]] = {}
    for file in files:
        if not file.is_elsewhere:
            directory, _, name = file.path.rpartition("/")
            found.setdefault(directory, set()).add(name)
    return found


def _decoded(path: str) -> str:
    # Relative paths are URIs without a scheme: percent-encoded.
    return path if "://" in path else unquote(path)


def _unreadable(path: str, what: str, error: Exception) -> UnreadableLogError:
    return UnreadableLogError(
        f"{path}: {what} ({error})",
        path=path,
        hint="the table itself is damaged here: restore the file",
    )
