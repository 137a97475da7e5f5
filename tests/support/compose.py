"""docker-compose.yml and the extras of the two distributions, as data."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parents[2]
TEXT = (_ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
_OF_PROVIDER, _OF_CORE = (
    tomllib.loads((_ROOT / file).read_text())["project"]["optional-dependencies"]
    for file in ("pyproject.toml", "core/pyproject.toml")
)
#: Of each extra what it brings, also by the same extra of the core.
EXTRAS: dict[str, list[str]] = {
    extra: [line for line in [*lines, *_OF_CORE.get(extra, [])] if not line.startswith("airflow-ckpt-core")]
    for extra, lines in _OF_PROVIDER.items()
}


def is_one_shot(name: str) -> bool:
    """Whether a service does one thing and ends.

    :param name: the service.
    """
    return bool(SERVICES[name].get("restart") == "no")
