"""The page in Airflow. Every component of Airflow imports this module, so the page itself is loaded at the first request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import AirflowPlugin, conf

_Message = MutableMapping[str, Any]


class _AtFirstRequest:
    """An ASGI application that is made when it is first asked for something."""

    def __init__(self) -> None:
        self._made: Any = None

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        if self._made is None:
            from airflow_ckpt_provider.plugins.page_app import make_app

            self._made = make_app()
        await self._made(scope, receive, send)


def page_address(path: str = "") -> str:
    """Address of the page on Airflow's server, with the prefix that this is behind.

    :param path: relative to the page.
    """
    prefix = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{prefix}/ckpt/{path}"


class CheckpointPagePlugin(AirflowPlugin):
    """Adds *Browse > Checkpoints*."""

    name = "ckpt"
    fastapi_apps: list[Any] = [  # noqa: RUF012  # as Airflow declares it
        {"app": _AtFirstRequest(), "url_prefix": "/ckpt", "name": "Checkpoints"},
    ]
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Checkpoints",
            "href": page_address(),
            "destination": "nav",
            "category": "browse",
            "url_route": "checkpoints",
        },
    ]
