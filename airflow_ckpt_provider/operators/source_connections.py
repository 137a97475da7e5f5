"""The guards, with the Airflow connections by which each reaches its sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.operators.fields import text
from airflow_ckpt_provider.source_settings import SourceSettings

if TYPE_CHECKING:
    from airflow_ckpt_provider.guards.registry import Guard, GuardSettings

#: Among the settings of a guard: the connection by which its sources are reached.
_CONN_ID = "conn_id"


def guards_by_connection(settings: GuardSettings, kafka_config_id: str | None = None) -> tuple[Guard, ...]:
    """All installed guards. Each asks by the connection in its settings (``conn_id``).

    :param settings: the settings of the guards.
    :param kafka_config_id: the connection of Kafka, where the settings have none.
    """
    from airflow_ckpt_provider.guards.kafka import KafkaGuard
    from airflow_ckpt_provider.guards.registry import installed_guards
    from airflow_ckpt_provider.operators.kafka_connection import open_kafka

    options = {kind: _reached(kind, given) for kind, given in settings.options.items()}
    settings = replace(settings, options=options)
    kafka = text(options.get(KafkaGuard.kind, {}).get(_CONN_ID)) or kafka_config_id
    guards = installed_guards(settings)
    if kafka is None:
        return guards
    with_connection = KafkaGuard(settings, open_kafka(kafka))
    return tuple(with_connection if isinstance(guard, KafkaGuard) else guard for guard in guards)


def _reached(kind: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of one guard, with its places opened by the connection; those that name a catalog stay names."""
    from airflow_ckpt_provider.places import open_place

    conn_id = text(given.get(_CONN_ID))
    if conn_id is None or kind not in ("delta", "iceberg", "file"):
        return given
    if kind == "file":
        return {**given, "open": lambda uri: open_place(uri, conn_id)}

    def opened(place: Any) -> Any:
        return open_place(place, conn_id) if isinstance(place, str) and not place.startswith("iceberg:") else place

    tables = SourceSettings.any(kind, given).by_source("tables")
    others = {key: value for key, value in given.items() if not key.startswith("table.")}
    return {**others, "tables": {source: opened(place) for source, place in tables.items()}}
