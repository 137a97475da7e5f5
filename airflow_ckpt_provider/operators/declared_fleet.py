"""What operators on several streams take from the declarations of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import repository_of_all

if TYPE_CHECKING:
    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.storage.location import Location


def repository_of(streams: Sequence[Stream], conn_id: str | None = None) -> Repository:
    """Open the repository that all of the streams have.

    :param streams: the streams.
    :param conn_id: the connection that reaches it; by default the one that they declare. One of type ``ckpt_repository`` may
        name it.
    :raises RefusedError: they have several, or one has none.
    """
    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.places import open_place, repository_uri

    uri, declared = repository_of_all(streams)
    conn_id = conn_id or declared
    uri = uri or repository_uri(conn_id)
    if uri is None:
        raise RefusedError("the streams have no repository", hint="declare `repository`")
    return Repository.open(open_place(uri, conn_id))


def checkpoint_place(stream: Stream) -> Location:
    """Open the checkpoint of a stream.

    :param stream: the stream.
    """
    from airflow_ckpt_provider.places import open_place

    return open_place(stream.checkpoint, stream.checkpoint_connection)
