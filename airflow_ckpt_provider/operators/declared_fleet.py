"""What the report of a fleet takes from the declarations of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.streams.stream import Stream

if TYPE_CHECKING:
    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.storage.location import Location


def repository_of(streams: Sequence[Stream]) -> Repository:
    """Open the repository that all of the streams have.

    :param streams: the streams.
    :raises RefusedError: they have several, or one has none.
    """
    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.places import open_place

    places = {(stream.repository, stream.repository_conn_id or stream.storage_conn_id) for stream in streams}
    [(uri, conn_id), *others] = sorted(places, key=str)
    if others or uri is None:
        raise RefusedError(
            "the streams have no repository" if uri is None else "the streams have several repositories",
            hint="declare `repository`; a report is about streams of one repository: make one for each",
        )
    return Repository.open(open_place(uri, conn_id))


def checkpoint_place(stream: Stream) -> Location:
    """Open the checkpoint of a stream.

    :param stream: the stream.
    """
    from airflow_ckpt_provider.places import open_place

    return open_place(stream.checkpoint, stream.checkpoint_conn_id or stream.storage_conn_id)
