"""Deleting and writing files of a checkpoint in the order that is loud by itself.

The seal is what keeps Spark from starting. This is the second belt, should somebody lift it half-way: without the entry of
``offsets/`` before the newest one no Spark starts, so that one goes first; and the newest one goes last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_ckpt_provider.backup.transfer import WORKERS, in_parallel
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.storage.location import Location


def highest_offsets(paths: Iterable[str]) -> int:
    """Highest number of the paths that lie in ``offsets/``; -1 without any."""
    return max((number for path in paths if (number := _number(path)) is not None), default=-1)


def newest_offsets_first(paths: Iterable[str]) -> list[str]:
    """Those of the paths that are entries of ``offsets/``, from the newest on."""
    numbered = ((number, path) for path in paths if (number := _number(path)) is not None)
    return [path for _, path in sorted(numbered, reverse=True)]


def delete_files(location: Location, paths: Iterable[str], *, workers: int = WORKERS) -> None:
    """Delete files: entries of ``offsets/`` but the newest downwards, state, the rest, last the newest entry.

    :param location: the checkpoint.
    :param paths: what goes; a missing file is fine.
    :param workers: requests under way at once.
    """
    going = set(paths)
    offsets = newest_offsets_first(going)
    for path in offsets[1:]:
        delete_file(location, path)
    state = {path for path in going if path.startswith(f"{STATE}/")}
    for group in (state, going - state - set(offsets)):
        in_parallel(lambda path: delete_file(location, path), sorted(group, reverse=True), workers=workers)
    for path in offsets[:1]:
        delete_file(location, path)


def clear(location: Location, mark: Seal, *, keep: Collection[str] = (), workers: int = WORKERS) -> None:
    """Delete all that is there but the seal, hidden files too: ``offsets/`` first, its newest entry last of these.

    :param location: the checkpoint.
    :param mark: its seal.
    :param keep: what stays; nothing of the logs.
    :param workers: requests under way at once.
    """
    going = {path for path in location.walk() if path != mark.path and path not in keep}
    entries = newest_offsets_first(going)
    hidden = sorted(path for path in going - set(entries) if path.startswith(f"{OFFSETS}/"))
    for path in (*entries[1:], *hidden, *entries[:1]):
        location.delete(path)
    in_parallel(location.delete, sorted(going - set(entries) - set(hidden)), workers=workers)
    location.remove_empty_directories()


def delete_file(location: Location, path: str) -> None:
    """Delete a file and Hadoop's own checksum of it; a missing one is fine."""
    location.delete(path)
    delete_hidden_checksum(location, path)


def write_file(location: Location, path: str, content: bytes) -> None:
    """Write a file over whatever is there."""
    delete_hidden_checksum(location, path)
    location.replace(path, content)


def delete_hidden_checksum(location: Location, path: str) -> None:
    """Delete Hadoop's own checksum of a local file, which would speak of the content that the file had."""
    if location.store.protocol == "file":
        directory, _, name = path.rpartition("/")
        location.delete(f"{directory}/.{name}.crc" if directory else f".{name}.crc")


def _number(path: str) -> int | None:
    directory, _, name = path.partition("/")
    return batch_id_of(name) if directory == OFFSETS else None
