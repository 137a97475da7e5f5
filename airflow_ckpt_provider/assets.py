"""A stream's backups as Airflow assets, so that a new backup can start other DAGs.

The asset of a stream's backups is the directory its manifests are written to: a real place with a real URI, which no
scheme of our own has to be registered for. Repository and name are often known only when a task runs; so the backup
operator announces the asset through the alias :data:`BACKUPS`.
"""

from __future__ import annotations

from airflow.sdk import Asset, AssetAlias

from airflow_ckpt_provider.places import address
from airflow_ckpt_provider.storage.opening import open_location

#: Every backup of every stream. ``DAG(schedule=[BACKUPS])`` runs after each of them.
BACKUPS = AssetAlias(name="ckpt_backups", group="ckpt")


def backup_asset(repository: str, name: str) -> Asset:
    """Return the asset that stands for the backups of one stream. No I/O: usable at the top of a DAG file.

    ``DAG(schedule=[backup_asset("s3://bucket/backups", "orders")])`` runs after each new backup of ``orders``; the
    event's ``extra`` says which one (``backup_id``, ``batch_id`` and so on).

    :param repository: URI or absolute path of the repository.
    :param name: name of the stream in it.
    """
    scheme, rest = address(repository)
    if scheme == "file":
        rest = open_location(repository).root
    else:
        rest = rest.rpartition("@")[2]  # Airflow's s3://<conn_id>@bucket/…: the place is the same without
    return Asset(f"{scheme}://{rest.rstrip('/')}/backups/{name}")
