"""What verbs do with ``--kafka-config FILE``. The client is loaded only where the option is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import StorageError

if TYPE_CHECKING:
    from airflow_ckpt_provider.backup.facts import ObserveSources
    from airflow_ckpt_provider.backup.manifest import Manifest
    from airflow_ckpt_provider.guards.kafka_backups import BackupVerdict


def configuration(file: str) -> dict[str, Any]:
    """Read the file.

    :raises StorageError: it cannot be read.
    :raises RefusedError: it is no configuration of a client.
    """
    from airflow_ckpt_provider.guards.kafka_settings import read_config

    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise StorageError(f"--kafka-config {file} cannot be read: {e}", hint="give a file on this machine") from e
    return read_config(text, name=file)


def observing(file: str | None) -> ObserveSources | None:
    """Return what a backup asks for the identity of its Kafka topics; ``None`` without the option."""
    if file is None:
        return None
    from airflow_ckpt_provider.guards.kafka import observe_kafka
    from airflow_ckpt_provider.guards.kafka_client import KafkaClient

    return observe_kafka(KafkaClient(configuration(file)))


def judged_backups(file: str, manifests: Sequence[Manifest]) -> dict[str, BackupVerdict]:
    """Judge backups by their topics: path of the manifest -> what it is good for."""
    from airflow_ckpt_provider.guards.kafka_backups import judge_backups
    from airflow_ckpt_provider.guards.kafka_client import KafkaClient

    verdicts = judge_backups(KafkaClient(configuration(file)), [m.facts for m in manifests])
    return {m.path: verdict for m, verdict in zip(manifests, verdicts, strict=True)}
