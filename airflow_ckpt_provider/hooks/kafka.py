"""From an Airflow connection of type ``kafka`` to the client that the guards ask.

Imported where it is used: the Kafka provider belongs to the extra ``kafka``.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook

from airflow_ckpt_provider.guards.kafka_client import TIMEOUT, KafkaClient


class KafkaLogHook(KafkaBaseHook):
    """Makes the guards' client from a connection.

    It goes through Airflow's own hook, so that its logins (MSK IAM, Google) and its list of allowed callbacks hold here too.

    .. code-block:: python

        hook = KafkaLogHook("kafka_orders", timeout=10.0)

    :param kafka_config_id: id of the connection.
    :param timeout: seconds for all questions of one poll.
    """

    def __init__(self, kafka_config_id: str = KafkaBaseHook.default_conn_name, *, timeout: float = TIMEOUT) -> None:
        super().__init__(kafka_config_id=kafka_config_id)  # type: ignore[no-untyped-call]
        self.timeout = timeout

    def _get_client(self, config: dict[str, Any]) -> KafkaClient:
        return KafkaClient(config, timeout=self.timeout)
