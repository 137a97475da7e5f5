"""The connection type ``ckpt_repository``: where a repository is, how its store is reached, and its keys."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.places import open_place, repository_uri


class CkptRepositoryHook(BaseHook):
    """Open the repository of a connection of type ``ckpt_repository``.

    The fields of the connection are in its extra: ``repository`` (URI), ``storage_conn_id`` (the connection that reaches the
    store), ``ckpt_repository_id``, ``ckpt_repository_secret_key``, ``ckpt_signing_secret_key``, ``ckpt_trusted_keys``.
    Operators take its id as ``repository_conn_id``, and need no ``repository`` then.

    .. code-block:: python

        hook = CkptRepositoryHook("ckpt_backups")

    .. seealso:: :doc:`/howto/declare-streams`

    :param repository_conn_id: id of the connection.
    """

    conn_name_attr = "repository_conn_id"
    default_conn_name = "ckpt_repository_default"
    conn_type = "ckpt_repository"
    hook_name = "Checkpoint repository"

    def __init__(self, repository_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repository_conn_id = repository_conn_id

    def get_conn(self) -> Repository:
        """Return the repository, opened.

        :raises RefusedError: there is no such connection, or it names no repository.
        """
        uri = repository_uri(self.repository_conn_id)
        if uri is None:
            raise RefusedError(
                f"connection {self.repository_conn_id!r} names no repository",
                hint='fill in its field `Repository`: a URI, in its extra as {"repository": "s3://backups/streams"}',
            )
        return Repository.open(open_place(uri, self.repository_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Whether the repository can be opened, for the button *Test* of Airflow."""
        try:
            repository = self.get_conn()
            names = repository.names()
        except CkptError as e:
            return False, str(e)
        return True, f"{repository.location} holds backups of {len(names)} streams"
