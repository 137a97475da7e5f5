"""The proof that a rehearsal wrote nothing of production: what a place held before and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile

#: Paths that are named; of more there is the count.
_NAMED = 5
#: Replaced with every checkpoint of a Delta table's log, by whoever writes the table.
_POINTERS = ("_last_checkpoint", "._last_checkpoint.crc")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A place at one moment, hidden files included.

    :param uri: the place.
    :param files: what distinguishes the contents of files, by path: size and ETag, or size, inode and time.
    """

    uri: str
    files: dict[str, str]

    @property
    def fingerprint(self) -> str:
        """Changes whenever a file comes, goes or is replaced."""
        lines = "\n".join(f"{path} {self.files[path]}" for path in sorted(self.files))
        return fingerprint_of(lines)


def take_snapshot(location: Location) -> Snapshot:
    """Read a place: one listing, nothing is read."""
    return Snapshot(location.uri, {path: _identity(file) for path, file in location.walk().items()})


def _identity(file: StoredFile) -> str:
    return f"{file.size} {file.checksum or file.identity or file.modified}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A place of production before and after.

    :param new: files that came; of a stream that runs, its own.
    :param gone: files that went; of a stream that runs, its own clean-up.
    :param rewritten: files that are there and not what they were. A pointer of Delta's to a checkpoint that came is none.
    """

    before: Snapshot
    after: Snapshot
    new: tuple[str, ...]
    gone: tuple[str, ...]
    rewritten: tuple[str, ...]

    @property
    def unchanged(self) -> bool:
        """Whether nothing at all happened there."""
        return self.before.fingerprint == self.after.fingerprint

    def __str__(self) -> str:
        if self.unchanged:
            return f"{self.after.uri}: unchanged, {len(self.after.files)} files ({self.after.fingerprint})"
        parts = ("new", self.new), ("gone", self.gone), ("rewritten", self.rewritten)
        said = ", ".join(f"{len(paths)} {word}" for word, paths in parts if paths)
        return f"{self.after.uri}: {said}"

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain JSON."""
        return {
            "uri": self.after.uri,
            "files": len(self.after.files),
            "fingerprint_before": self.before.fingerprint,
            "fingerprint_after": self.after.fingerprint,
            "unchanged": self.unchanged,
            "new": len(self.new),
            "gone": len(self.gone),
            "rewritten": len(self.rewritten),
            "examples": list((*self.rewritten, *self.gone, *self.new)[:_NAMED]),
        }


def compare_snapshots(before: Snapshot, after: Snapshot) -> Comparison:
    """Compare two listings of one place."""
    both = set(before.files) & set(after.files)
    new = set(after.files) - both
    return Comparison(
        before,
        after,
        new=tuple(sorted(new)),
        gone=tuple(sorted(set(before.files) - both)),
        rewritten=tuple(sorted(p for p in both if before.files[p] != after.files[p] and not _points_to_newer(p, new))),
    )


def _points_to_newer(path: str, new: set[str]) -> bool:
    directory, _, name = path.rpartition("/")
    return name in _POINTERS and any(".checkpoint" in p and p.rpartition("/")[0] == directory for p in new)
