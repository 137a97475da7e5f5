"""What is at a place that is to be changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.checkpoint.tree import inner_checkpoints
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile


@dataclass(frozen=True, slots=True)
class Target:
    """A place, as one listing found it.

    :param location: the place.
    :param files: everything in it, hidden files included.
    :param visible: the files without hidden ones (Hadoop's ``.crc``, debris) and without the seal.
    :param seal: a seal it carries.
    """

    location: Location
    files: FileSet
    visible: FileSet
    seal: Seal | None

    @property
    def is_empty(self) -> bool:
        """Whether nothing that Spark could see is there, a seal left out."""
        return not self.visible

    @property
    def is_checkpoint(self) -> bool:
        """Whether it looks like a checkpoint, whole or not."""
        return any(path == "metadata" or path.startswith(("offsets/", "commits/")) for path in self.visible)

    @property
    def newest_offsets(self) -> int:
        """Highest number in ``offsets/``, a seal included; -1 without any."""
        return _highest(self.files)

    @property
    def newest_batch(self) -> int:
        """Highest number in ``offsets/``, a seal left out; -1 without any."""
        return _highest(self.visible)

    @property
    def fingerprint(self) -> str:
        """Changes whenever a file comes, goes or is replaced, the seal left out."""
        lines = hashlib.sha256()
        for file in self.visible.values():
            lines.update(f"{file.path} {file.size} {file.identity}\n".encode(errors="surrogateescape"))
        return lines.hexdigest()[:16]


def _highest(files: FileSet) -> int:
    return max((b for b in map(batch_id_of, files.files(OFFSETS)) if b is not None), default=-1)


def inspect_target(location: Location) -> Target:
    """Read a place; it need not exist."""
    files = location.walk()
    seal = _seal_among(location, files.files(OFFSETS))
    sealed = seal.path if seal else None
    visible = files.without(lambda path: path == sealed or is_hidden(path))
    return Target(location, files, visible, seal)


def read_seal(location: Location) -> Seal | None:
    """Read no more of a place than its seal, by one listing and one read."""
    return _seal_among(location, (file.path.rpartition("/")[2] for file in location.list(OFFSETS).files))


def _seal_among(location: Location, names: Iterable[str]) -> Seal | None:
    newest = max((n for n in map(batch_id_of, names) if n is not None), default=None)
    return parse_seal(location.read(f"{OFFSETS}/{newest}"), batch_id=newest) if newest is not None else None


def check_alone(there: Target, touched: Iterable[str]) -> None:
    """See that a change touches no file of another query, whose checkpoint lies inside the one that is changed.

    Nothing has stopped that query: it has no seal, and no attempt at a change of its own checkpoint waits for this one.

    :param there: the place.
    :param touched: paths that the change removes or writes; not read if there is no such checkpoint.
    :raises RefusedError: it does.
    """
    inner = inner_checkpoints(there.visible)
    for path in touched if inner else ():
        own = next((each for each in inner if path.startswith(f"{each}/")), None)
        if own is not None:
            raise RefusedError(
                f"{there.location}/{own} is the checkpoint of another query, which nobody has stopped: {path} would be removed "
                "or written over; nothing was changed now",
                hint="stop that query, move its checkpoint to a directory of its own outside this one, and give it that "
                "checkpointLocation; then run the same command again",
            )


def is_hidden(path: str) -> bool:
    """Whether Spark passes over a file: Hadoop's checksums, temporary files."""
    return path.startswith(".") or "/." in path


def expect_files(there: Target, wanted: Iterable[tuple[str, int]], *, plan_id: str, what: str = "as planned") -> None:
    """See that exactly these files are there.

    :param there: a place that was changed, as a listing afterwards found it.
    :param wanted: path and size of all visible files.
    :param plan_id: the plan that sealed it.
    :param what: what they are to be, in words.
    :raises StorageError: a file is missing, too much, or of another size.
    """
    expected, found = FileSet(StoredFile(path, size) for path, size in wanted), there.visible
    differing = [path for path in expected if path not in found]
    for file in found.values():
        as_wanted = expected.get(file.path)
        if as_wanted is None or as_wanted.size != file.size:
            differing.append(file.path)
    if differing:
        raise StorageError(
            f"{there.location}/{min(differing)} is not {what} ({len(differing)} files differ)",
            hint=f"it stays sealed by plan {plan_id}; see who else writes there, then run the same command again",
        )
