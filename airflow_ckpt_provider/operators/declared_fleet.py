"""What the report of a fleet takes from the declarations of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import repository_of_all

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

    uri, conn_id = repository_of_all(streams)
    if uri is None:
        raise RefusedError("the streams have no repository", hint="declare `repository`")
    return Repository.open(open_place(uri, conn_id))


def checkpoint_place(stream: Stream) -> Location:
    """Open the checkpoint of a stream.

    :param stream: the stream.
    """
    from airflow_ckpt_provider.places import open_place

    return open_place(stream.checkpoint, stream.checkpoint_connection)
