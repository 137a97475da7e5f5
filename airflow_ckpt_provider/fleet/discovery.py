"""Find the checkpoints below a place, by what a checkpoint has, with one listing for each directory on the way.

A checkpoint is a directory with ``offsets/`` and ``commits/`` and a file ``metadata`` that holds a query id. Pipelines keep
the checkpoints of a flow in numbered directories, the highest being the live one: Spark Declarative Pipelines in
``_checkpoints/<catalog>/<database>/<table>/<flow>/<n>`` (``SystemMetadata.scala``), Lakeflow pipelines with a storage
location of their own in ``checkpoints/<table>/<n>``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from airflow_ckpt_provider.backup.flow_path import flow_path
from airflow_ckpt_provider.backup.marker import is_repository
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.progress import Progress, read_progress
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.sources import SOURCES
from airflow_ckpt_provider.errors import CkptError, NotACheckpointError, UnreadableLogError
from airflow_ckpt_provider.fleet.limits import DEPTH, WORKERS
from airflow_ckpt_provider.fleet.names import backup_names
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import Listing

_OF_A_CHECKPOINT = frozenset({OFFSETS, COMMITS, SOURCES, STATE})
#: Delta sources keep ``_schema_log_<table id>`` there.
_OF_DELTA = "_schema_log"
#: What marks a table: its data is not looked into, only what lies beside it under a name that tables leave alone.
_OF_A_TABLE = frozenset({"_delta_log", "_spark_metadata"})
_NEVER = _OF_A_TABLE | {"_temporary", "_change_data", "_symlink_format_manifest"}
#: Where a Lakeflow pipeline keeps checkpoints in its storage location, and what else is there.
_LAKEFLOW, _BESIDE_IT = "checkpoints", "system"

OnCount = Callable[[int, int], None]


class State(StrEnum):
    """How a checkpoint looks from outside."""

    #: All that the newest committed batch needs of the logs is there.
    WHOLE = "whole"
    SEALED = "sealed"
    #: No batch is committed: there is nothing to back up yet.
    NO_BATCH = "no batch yet"
    #: Something that Spark needs is missing or cannot be parsed.
    TORN = "torn"
    #: The store said no.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint.

    :param place: where it is.
    :param state: how it looks.
    :param progress: how far it is; ``None`` where that cannot be read.
    :param missing: what is missing, as paths in the checkpoint.
    :param message: what is wrong, in words; empty where nothing is.
    :param versions: of a pipeline's flow, the numbers of all its checkpoints, of which this is the live one.
    :param name: the name a backup would get that distinguishes it from all others that were found.
    """

    place: Location
    state: State
    progress: Progress | None = None
    missing: tuple[str, ...] = ()
    message: str = ""
    versions: tuple[int, ...] = ()
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        """The checkpoint as plain JSON."""
        p = self.progress
        return {
            "checkpoint": self.place.uri,
            "name": self.name,
            "state": self.state.value,
            "query_id": p.query_id if p else None,
            "latest_logged": p.latest_logged if p else None,
            "latest_committed": p.latest_committed if p else None,
            "batch_time": p.batch_time.isoformat() if p and p.batch_time else None,
            "sealed": p.seal.sentence if p and p.seal else None,
            "missing": list(self.missing),
            "message": self.message or None,
            "versions": list(self.versions),
        }


@dataclass(frozen=True, slots=True)
class Unread:
    """A directory that could not be listed: what is below it is not known."""

    uri: str
    message: str

    def to_json(self) -> dict[str, str]:
        """The directory as plain JSON."""
        return {"path": self.uri, "message": self.message}


@dataclass(frozen=True, slots=True)
class Discovery:
    """What is below some places.

    :param found: checkpoints, by their address.
    :param unread: directories that could not be listed.
    :param repositories: addresses of repositories, into which nobody looks: what they hold are backups and copies.
    :param too_deep: addresses of directories below which was not looked: the depth ends there, or a symbolic link leads out.
    :param roots: the places.
    """

    found: tuple[Found, ...]
    unread: tuple[Unread, ...] = ()
    repositories: tuple[str, ...] = ()
    too_deep: tuple[str, ...] = ()
    roots: tuple[Location, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything could be read, and nothing is torn."""
        return not self.unread and all(f.state not in (State.TORN, State.UNREADABLE) for f in self.found)

    def to_json(self) -> dict[str, Any]:
        """The documented keys of ``airflow-ckpt discover --json``, but for the roots."""
        return {
            "checkpoints": [each.to_json() for each in self.found],
            "unread": [each.to_json() for each in self.unread],
            "repositories": list(self.repositories),
            "too_deep": list(self.too_deep),
        }


@dataclass(frozen=True, slots=True)
class _Directory:
    """One that is to be read.

    :param depth: levels below its root.
    :param versions: of a flow's live version, the numbers of all.
    :param flows: levels down to the flows, in a Lakeflow pipeline's storage: 1 for ``checkpoints``, 0 for a flow.
    """

    place: Location
    depth: int = 0
    versions: tuple[int, ...] = ()
    flows: int | None = None


@dataclass(slots=True)
class _Listed:
    found: Found | None = None
    unread: Unread | None = None
    repository: str | None = None
    error: CkptError | None = None
    below: list[_Directory] = field(default_factory=list)


def discover(
    roots: Sequence[Location], *, depth: int = DEPTH, workers: int = WORKERS, on_progress: OnCount | None = None
) -> Discovery:
    """Look for checkpoints, level by level.

    Costs one listing for each directory that is neither a checkpoint's own nor a table's data, and for each checkpoint two
    more and two small reads (three where it is sealed). A directory that can be reached in two ways, by symbolic links or
    by roots within each other, is read once. Hidden directories are left out.

    :param roots: where to look; a checkpoint itself is found too.
    :param depth: how many levels below each root.
    :param workers: directories read at once.
    :param on_progress: called with the number of directories that were read and those known so far.
    :raises CkptError: not one of the roots can be listed.
    """
    inside = tuple(map(_key, roots))
    seen: set[str] = set()
    looks: list[_Listed] = []
    too_deep: list[str] = []
    level = [_Directory(root) for root in roots]
    while level:
        fresh: dict[str, _Directory] = {}
        for each in level:
            if (key := _key(each.place)) not in seen:
                fresh.setdefault(key, each)
        seen |= fresh.keys()
        made = in_parallel(_look, fresh.values(), workers=workers)
        if not looks and (errors := [look.error for look in made if look.error]) and len(errors) == len(made):
            raise errors[0]
        looks += made
        level = []
        for (key, each), look in zip(fresh.items(), made, strict=True):
            # Behind a symbolic link that leads out of the roots is only the checkpoint that it points to.
            if each.depth < depth and key.startswith(inside):
                level += look.below
            elif look.below:
                too_deep.append(each.place.uri)
        if on_progress:
            on_progress(len(looks), len(looks) + len(level))
    found = sorted((look.found for look in looks if look.found), key=lambda f: f.place.uri)
    return Discovery(
        found=named(found),
        unread=tuple(sorted((look.unread for look in looks if look.unread), key=lambda u: u.uri)),
        repositories=tuple(sorted(look.repository for look in looks if look.repository)),
        too_deep=tuple(sorted(too_deep)),
        roots=tuple(roots),
    )


def _key(place: Location) -> str:
    """One address for each place, with a slash at its end."""
    return f"{place.store.protocol}:{place.store.canonical(place.root).rstrip('/')}/"


def inspect_target(place: Location, *, versions: tuple[int, ...] = ()) -> Found:
    """Return the status of one checkpoint: two listings and at most three small reads.

    :param place: the checkpoint.
    :param versions: of a pipeline's flow, the numbers of all its checkpoints.
    :raises NotACheckpointError: it is none.
    """
    try:
        progress = read_progress(place)
        missing = tuple(_missing(progress, place))
    except NotACheckpointError:
        if versions:  # a flow that was reset, and not started since
            return Found(place, State.NO_BATCH, versions=versions)
        raise
    except UnreadableLogError as e:
        return Found(place, State.TORN, message=e.message, versions=versions)
    except Exception as e:
        return Found(place, State.UNREADABLE, message=said(e), versions=versions)
    message = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else ""
    if progress.seal:
        state = State.SEALED
    elif missing:
        state = State.TORN
    else:
        state = State.WHOLE if progress.committed else State.NO_BATCH
    return Found(place, state, progress, missing, message, versions)


def _look(directory: _Directory) -> _Listed:
    place = directory.place
    try:
        listing = place.list()
        if is_repository(place, listing):
            return _Listed(repository=place.uri)
        if not directory.depth and not (listing.files or listing.directories):
            return _Listed(unread=Unread(place.uri, "there is nothing there: is the address right?"))
        found = _checkpoint(directory, listing)
    except Exception as e:
        return _Listed(unread=Unread(place.uri, said(e)), error=e if isinstance(e, CkptError) else None)
    below = _below(directory, listing, is_checkpoint=found is not None)
    return _Listed(found, below=[replace(each, depth=directory.depth + 1) for each in below])


def _checkpoint(directory: _Directory, listing: Listing) -> Found | None:
    """The checkpoint that a directory is, or ``None``."""
    has_metadata = any(file.path == METADATA_FILE for file in listing.files)
    has_logs = OFFSETS in listing.directories or COMMITS in listing.directories
    if not (has_metadata or has_logs or directory.versions):
        return None
    try:
        found = inspect_target(directory.place, versions=directory.versions)
    except NotACheckpointError:  # directories of these names, without logs in them
        return None
    # A file called "metadata" with something else in it is no checkpoint by itself.
    return None if found.state is State.TORN and not has_logs else found


def _below(directory: _Directory, listing: Listing, *, is_checkpoint: bool) -> list[_Directory]:
    """The directories of one that are to be read."""
    place = directory.place
    names = [name for name in listing.directories if not name.startswith(".") and name not in _NEVER]
    if is_checkpoint:  # others may lie in it: people do that
        return [_Directory(place / n) for n in names if n not in _OF_A_CHECKPOINT and not n.startswith(_OF_DELTA)]
    if _OF_A_TABLE & set(listing.directories):
        return [_Directory(place / name) for name in names if name.startswith("_")]
    if names and all(map(str.isdecimal, names)) and _is_flow(directory):
        versions = tuple(sorted(map(int, names)))
        return [_Directory(place / max(names, key=int), versions=versions)]
    if directory.flows:
        return [_Directory(place / name, flows=directory.flows - 1) for name in names]
    of_lakeflow = _BESIDE_IT in listing.directories
    return [_Directory(place / name, flows=1 if of_lakeflow and name == _LAKEFLOW else None) for name in names]


def _is_flow(directory: _Directory) -> bool:
    """Whether numbered directories here are versions of one checkpoint, and not streams that have numbers for names."""
    return directory.flows == 0 or flow_path(f"{directory.place.root}/0") is not None


def _missing(progress: Progress, place: Location) -> list[str]:
    logged, committed = progress.logged, progress.committed
    found = [] if progress.query_id else [METADATA_FILE]
    if not logged and committed:
        return [*found, f"{OFFSETS}/{committed[-1]}"]
    if not logged:
        return found
    if committed and committed[-1] not in logged:
        found.append(f"{OFFSETS}/{committed[-1]}")
    if not committed and logged[-1] > 0:
        found.append(COMMITS)
    # Without the entry before it no Spark starts; asynchronous progress tracking leaves some out, and then others too.
    sparse = any(later - earlier > 1 for earlier, later in pairwise(logged[:-1]))
    if logged[-1] > 0 and logged[-1] - 1 not in logged and not sparse and not _is_young_asynchronous(progress, place):
        found.append(f"{OFFSETS}/{logged[-1] - 1}")
    return found


def _is_young_asynchronous(progress: Progress, place: Location) -> bool:
    """Whether a query with asynchronous progress tracking may have logged its first two entries, with batches left out between.

    It begins with batch 0, leaves the same batches out of both logs, and keeps no state.
    """
    logged = progress.logged
    in_step = len(logged) == 2 and logged[0] == 0 and set(progress.committed) <= set(logged)
    return in_step and progress.committed[:1] == (0,) and STATE not in place.list().directories


def named(found: Sequence[Found]) -> tuple[Found, ...]:
    """Give each the name that a backup of it would get; a flow is called after its table and itself."""

    def path_and_least(each: Found) -> tuple[str, int]:
        of_pipelines = flow_path(each.place.root) is not None
        if each.versions or of_pipelines:
            return each.place.root.rpartition("/")[0], 2 if of_pipelines else 1
        return each.place.root, 1

    names = backup_names([path_and_least(each) for each in found])
    return tuple(replace(each, name=name) for each, name in zip(found, names, strict=True))


def said(error: Exception) -> str:
    """What went wrong, in a line, without the credentials in it: clients of stores name what they were given."""
    return error.message if isinstance(error, CkptError) else redacted_text(f"{type(error).__name__}: {error}")
