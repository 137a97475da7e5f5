"""The Kafka cluster behind an Airflow connection, opened only where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_ckpt_provider.errors import MissingExtraError, RefusedError

if TYPE_CHECKING:
    from airflow_ckpt_provider.guards.kafka_client import KafkaClient


def open_kafka(kafka_config_id: str, *, timeout: float | None = None) -> KafkaClient:
    """Make the guards' client from a connection of type ``kafka``. Nothing is connected to yet.

    :param kafka_config_id: id of the connection.
    :param timeout: seconds for all questions of one poll; by default 10.
    :raises MissingExtraError: Airflow's Kafka provider is not installed.
    :raises RefusedError: there is no such connection, or it is no configuration of a client.
    """
    from airflow_ckpt_provider.guards.kafka_client import TIMEOUT

    try:
        from airflow_ckpt_provider.hooks.kafka import KafkaLogHook
    except ImportError as e:
        raise MissingExtraError(
            f"connection {kafka_config_id!r} needs Airflow's Kafka provider, which is not installed ({e})",
            hint="pip install 'airflow-ckpt-provider[kafka]'",
        ) from e
    try:
        return cast("KafkaClient", KafkaLogHook(kafka_config_id, timeout=timeout or TIMEOUT).get_conn)
    except AirflowNotFoundException as e:
        raise RefusedError(
            f"there is no Airflow connection {kafka_config_id!r}",
            hint=f"create it: airflow connections add {kafka_config_id} --conn-type kafka --conn-extra '{{…}}'",
        ) from e
    except ValueError as e:
        raise RefusedError(
            f"connection {kafka_config_id!r} is no configuration of a Kafka client: {e}",
            hint='its extra is JSON of librdkafka\'s settings, such as {"bootstrap.servers": "host:9092"}',
        ) from e
