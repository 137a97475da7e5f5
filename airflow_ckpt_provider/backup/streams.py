"""Which backups are of one stream: by the ids of its query, one after the other, and by the place of its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from airflow_ckpt_provider.backup.flow_path import flow_path
from airflow_ckpt_provider.storage.location import Location, plain_uri


class OfStream(Protocol):
    """What shows to which stream a backup belongs."""

    @property
    def checkpoint(self) -> str:
        """URI of the checkpoint that it was taken from."""

    @property
    def lives(self) -> tuple[str, ...]:
        """The ids that the stream's query has had as far as the backup knows, oldest first; the last is the backup's own."""


Backup = TypeVar("Backup", bound=OfStream)


def streams_among(backups: Sequence[Backup]) -> list[list[Backup]]:
    """Sort backups of one name by stream, in the order given; the streams by their first backup.

    Two backups are of one stream if they have an id or a place in common, or a third one connects them. Backups of earlier
    versions of this package say no chain of ids, and two streams could share a name.
    """
    found: list[tuple[set[str], list[int]]] = []
    for number, backup in enumerate(backups):
        keys = {f"query {query_id}" for query_id in backup.lives} | {f"place {place_key(backup.checkpoint)}"}
        members = [number]
        for stream in [stream for stream in found if not stream[0].isdisjoint(keys)]:
            found.remove(stream)
            keys |= stream[0]
            members += stream[1]
        found.append((keys, members))
    in_order = sorted(sorted(members) for _, members in found)
    return [[backups[number] for number in members] for members in in_order]


def stream_in_words(backup: OfStream) -> str:
    """The stream of a backup for a message."""
    return f"query {backup.lives[-1]} of {backup.checkpoint}"


def place_key(uri: str) -> str:
    """The place of a stream, however it is spelt; all versions of a flow are one."""
    plain = plain_uri(uri)
    flow = flow_path(plain)
    return flow.directory if flow else plain


def is_place(location: Location, uri: str) -> bool:
    """Whether a URI names this place, however it is spelt; of a flow, any of its versions."""
    canonical = location.store.canonical
    return place_key(uri) == place_key(location.uri) or canonical(uri) == canonical(location.uri)
