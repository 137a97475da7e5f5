"""The configuration of a Kafka client as people keep it in a file."""

from __future__ import annotations

from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_json


def read_config(text: str, *, name: str) -> dict[str, Any]:
    """Parse a file with a client's configuration: JSON, or ``key=value`` lines as in Kafka's own ``*.properties``.

    :param text: its content.
    :param name: what to call it in messages.
    :raises RefusedError: it is neither, or lacks ``bootstrap.servers``.
    """
    try:
        if text.lstrip().startswith("{"):
            config = load_json(text)
        else:
            lines = (line.strip() for line in text.splitlines())
            pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "!"))]
            if any(not separator for _, separator, _ in pairs):
                raise ValueError("a line is not key=value")
            config = {key.strip(): value.strip() for key, _, value in pairs}
    except ValueError as e:
        raise RefusedError(
            f"{name} is no Kafka configuration: {e}", hint="give JSON, or key=value lines, of librdkafka's settings"
        ) from e
    if not config.get("bootstrap.servers"):
        raise RefusedError(f"{name} has no bootstrap.servers", hint="add bootstrap.servers=host:port")
    return dict(config)
