"""Having Spark take a backup, by an Airflow connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.spark_restore import run_by_connection
from airflow_ckpt_provider.redaction import redacted

#: The application. What it imports of this package has to be importable where its driver runs.
APPLICATION = str(Path(__file__).parents[1] / "jobs" / "copy_closure.py")


def arguments_for(
    checkpoint: str,
    repository: Repository,
    *,
    name: str,
    tags: Mapping[str, str],
    reason: str,
    made_by: str,
    restorable_batches: int,
    immutable_for: timedelta | None = None,
    new_life: bool = False,
) -> list[str]:
    """What the application is given: with the id of the repository, where its driver may have another one mounted."""
    about = {
        "--repository-id": repository.repository_id,
        "--name": name,
        "--reason": reason,
        "--made-by": made_by,
        "--restorable-batches": str(restorable_batches),
        "--immutable-for": f"{immutable_for.total_seconds():.0f}" if immutable_for is not None else "",
    }
    words = [f"{option}={value}" for option, value in about.items() if value]
    words += ["--new-life"] if new_life else []
    return [checkpoint, repository.location.uri, *words, *(f"--tag={key}={value}" for key, value in tags.items())]


def backup_by_connection(conn_id: str, arguments: Sequence[str], **settings: Any) -> None:
    """Run the application by ``spark-submit`` as a connection says, and wait for its end.

    :param conn_id: id of a connection of type ``spark``.
    :param arguments: from :func:`arguments_for`.
    :param settings: see :func:`~.spark_restore.run_by_connection`, which also says what is raised before anything is run.
    :raises StorageError: the application failed; what it copied is found by the next attempt.
    """
    checkpoint = arguments[0]
    named = {"name": f"back up {redacted(checkpoint)}", **settings}
    try:
        run_by_connection(conn_id, what="take the backup", **named)(APPLICATION, list(arguments))
    except StorageError as e:
        raise StorageError(f"Spark did not back {checkpoint} up: {e.message}", hint=e.hint) from e
