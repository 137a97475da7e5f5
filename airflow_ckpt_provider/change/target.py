"""What is at a place that is to be changed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.storage.file_set import FileSet
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile


@dataclass(frozen=True, slots=True)
class Target:
    """A place, as one look found it.

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
        return max((b for b in map(batch_id_of, self.files.files(OFFSETS)) if b is not None), default=-1)

    @property
    def fingerprint(self) -> str:
        """Changes whenever a file comes, goes or is replaced, the seal left out."""
        lines = hashlib.sha256()
        for file in self.visible.values():
            lines.update(f"{file.path} {file.size} {file.identity}\n".encode())
        return lines.hexdigest()[:16]


def inspect_target(location: Location) -> Target:
    """Look at a place; it need not exist."""
    files = location.walk()
    newest = max((n for n in map(batch_id_of, files.files(OFFSETS)) if n is not None), default=None)
    seal = parse_seal(location.read(f"{OFFSETS}/{newest}"), batch_id=newest) if newest is not None else None
    sealed = seal.path if seal else None
    visible = files.without(lambda path: path == sealed or path.startswith(".") or "/." in path)
    return Target(location, files, visible, seal)


def expect_files(there: Target, wanted: Iterable[tuple[str, int]], *, plan_id: str, what: str = "as planned") -> None:
    """See that exactly these files are there.

    :param there: a place that was changed, as a look afterwards found it.
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


def check_at_rest(target: Target, *, quiet_for: float) -> None:
    """Look twice; whatever changes in between shows that somebody writes.

    :param quiet_for: seconds between the looks. A query whose batches take longer than that is not noticed here; the seal
        stops it at its next batch boundary all the same.
    :raises RefusedError: it is in use.
    """
    if target.is_empty:
        return
    time.sleep(quiet_for)
    now = inspect_target(target.location)
    if now.fingerprint != target.fingerprint:
        changed = sorted(
            path for path in {*target.visible, *now.visible} if target.visible.get(path) != now.visible.get(path)
        )
        raise RefusedError(
            f"{target.location} is in use: {changed[0]} changed within {quiet_for:g} s ({len(changed)} changes in all)",
            hint="stop the query first, or have the restore seal it (seal_running / --seal-running)",
        )


def wait_until_at_rest(location: Location, *, quiet_for: float, at_most: float) -> Target:
    """Wait until nothing changes for ``quiet_for`` seconds.

    :raises RefusedError: it still changes after ``at_most`` seconds.
    """
    deadline = time.monotonic() + at_most
    before = inspect_target(location)
    while True:
        time.sleep(quiet_for)
        now = inspect_target(location)
        if now.fingerprint == before.fingerprint:
            return now
        if time.monotonic() > deadline:
            raise RefusedError(
                f"{location} is still written to {at_most:g} s after it was sealed",
                hint="stop the query by other means, then run the same command again: it goes on from here",
            )
        before = now
