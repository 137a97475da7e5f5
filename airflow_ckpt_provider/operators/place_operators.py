"""What the operators on a checkpoint and on a repository have in common: the places, and how they are reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.operators.declared import UNSET
from airflow_ckpt_provider.operators.fields import required, text
from airflow_ckpt_provider.operators.masking import MaskingOperator

if TYPE_CHECKING:
    from airflow_ckpt_provider.backup.repository import Repository
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.storage.location import Location


class CheckpointOperator(MaskingOperator):
    """Base of the operators on a checkpoint. Their results can be taken key by key, as ``backup.output["backup_id"]``.

    :param checkpoint: URI of the checkpoint, the ``checkpointLocation`` of the query. (templated)
    :param checkpoint_conn_id: Airflow connection to reach the checkpoint; ``None``: the environment's own
        credentials. (templated)
    """

    template_fields: Sequence[str] = ("checkpoint", "checkpoint_conn_id")

    def __init__(self, *, checkpoint: str | None = UNSET, checkpoint_conn_id: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.checkpoint: str | None = self.needed(checkpoint, "checkpoint")
        self.checkpoint_conn_id = checkpoint_conn_id

    def _checkpoint_place(self) -> Location:
        from airflow_ckpt_provider.places import open_place

        return self.opened(open_place(required(self.checkpoint, "checkpoint"), text(self.checkpoint_conn_id)))

    def _checkpoint(self) -> Checkpoint:
        from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint

        return Checkpoint.at(self._checkpoint_place())


class RepositoryOperator(MaskingOperator):
    """Base of the operators on a repository. Their results can be taken key by key.

    :param repository: URI of the repository. It holds the backups, and keeps the files that a change removes. If an operator does
        not require it, ``None`` means: no backup is read, and removed files are kept beside the checkpoint. (templated)
    :param repository_conn_id: Airflow connection to reach the repository; ``None``: the environment's own
        credentials. One of type ``ckpt_repository`` names the repository too: ``repository`` is ``None`` then. (templated)
    """

    template_fields: Sequence[str] = ("repository", "repository_conn_id")

    def __init__(self, *, repository: str | None = UNSET, repository_conn_id: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.repository: str | None = self.needed(repository, "repository")
        self.repository_conn_id = repository_conn_id

    def _repository_place(self) -> Location:
        from airflow_ckpt_provider.places import open_place

        return self._as_repository(
            open_place(required(self._repository_uri(), "repository"), text(self.repository_conn_id))
        )

    def _as_repository(self, place: Location) -> Location:
        self.places.repository = place.uri
        return self.opened(place)

    def _repository_uri(self) -> str | None:
        """The repository that is given; else the one that the connection names."""
        from airflow_ckpt_provider.places import repository_uri

        return text(self.repository) or repository_uri(text(self.repository_conn_id))

    def _repository_beside(self, place: Location) -> Location:
        """The place of the repository. The default is the place beside the checkpoint.

        :param place: the checkpoint.
        """
        from airflow_ckpt_provider.backup.beside import default_repository

        return self._repository_place() if self._repository_uri() else self._as_repository(default_repository(place))

    def _open_repository(self) -> Repository:
        from airflow_ckpt_provider.backup.repository import Repository

        return Repository.open(self._repository_place())

    def _given_repository(self) -> Repository | None:
        """The repository, opened; ``None`` if the task has none."""
        return self._open_repository() if self._repository_uri() else None


class StreamOperator(RepositoryOperator):
    """Base of the operators on the backups of a stream.

    Parameters of the repository: see :class:`~.place_operators.RepositoryOperator`.

    :param name: name of the stream in the repository. ``None``: the one that the checkpoint has there, else the shortest ending
        of its path that is no other stream's; of an operator without a checkpoint, the only stream, or all of them where the
        operator is about a whole repository. (templated)
    """

    template_fields: Sequence[str] = (*RepositoryOperator.template_fields, "name")

    def __init__(self, *, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
