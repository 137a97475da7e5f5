"""Having Spark take a backup, by an Airflow connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_ckpt_provider.errors import MissingExtraError, StorageError
from airflow_ckpt_provider.redaction import redacted

#: The application. What it imports of this package has to be importable where its driver runs.
APPLICATION = str(Path(__file__).parents[1] / "jobs" / "copy_closure.py")


def arguments_for(
    checkpoint: str,
    repository: str,
    *,
    name: str,
    tags: Mapping[str, str],
    reason: str,
    made_by: str,
    restorable_batches: int,
    immutable_for: timedelta | None = None,
    new_life: bool = False,
) -> list[str]:
    """What the application is given."""
    about = {
        "--name": name,
        "--reason": reason,
        "--made-by": made_by,
        "--restorable-batches": str(restorable_batches),
        "--immutable-for": f"{immutable_for.total_seconds():.0f}" if immutable_for is not None else "",
    }
    words = [f"{option}={value}" for option, value in about.items() if value]
    words += ["--new-life"] if new_life else []
    return [checkpoint, repository, *words, *(f"--tag={key}={value}" for key, value in tags.items())]


def backup_by_connection(conn_id: str, arguments: Sequence[str], **settings: Any) -> None:
    """Run the application by ``spark-submit`` as a connection says, and wait for its end.

    :param conn_id: id of a connection of type ``spark``.
    :param arguments: from :func:`arguments_for`.
    :param settings: what else ``SparkSubmitHook`` is given: ``conf``, ``num_executors``, ``env_vars``, ….
    :raises MissingExtraError: Airflow's Spark provider is not installed.
    :raises StorageError: the application failed; what it copied is found by the next attempt.
    """
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    except ImportError as e:
        raise MissingExtraError(
            f"connection {conn_id!r} needs Airflow's Spark provider, which is not installed ({e})",
            hint="pip install 'airflow-ckpt-provider[spark]'",
        ) from e
    hook = SparkSubmitHook(
        **{"name": f"back up {redacted(arguments[0])}", **settings}, conn_id=conn_id, application_args=list(arguments)
    )
    try:
        hook.submit(APPLICATION)
    except AirflowException as e:
        raise StorageError(
            f"Spark did not back {arguments[0]} up: {e}",
            hint="the task's log has what Spark said; the next attempt continues from what is copied",
        ) from e
