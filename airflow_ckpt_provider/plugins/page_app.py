"""The application behind the page: reads the repository, changes nothing, and answers nobody whom Airflow does not let in.

An application that a plugin mounts has no login of its own, so each of its routes, style and script and addresses that do not
exist included, asks Airflow's auth manager first: for the right to see plugins, and to read the DAG whose report the page shows.
It never opens a checkpoint. What a form starts is started by the browser through Airflow's own API.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.providers.common.compat.sdk import conf
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse
from starlette.status import HTTP_403_FORBIDDEN, HTTP_404_NOT_FOUND, HTTP_503_SERVICE_UNAVAILABLE

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.configuration import configured_streams
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.page.forms import Form, Places, restore_form, rewind_form
from airflow_ckpt_provider.page.html import ASSETS, POLICY, Head, asset, message_page
from airflow_ckpt_provider.page.pages import NotThereError, Pages, objectives_of
from airflow_ckpt_provider.page.stream_row import StreamRow
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.streams.settings import SECTION, STREAMS
from airflow_ckpt_provider.streams.stream import Objectives

log = logging.getLogger(__name__)

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_HEADERS = {
    # Airflow shows the page in a frame of its own; nobody else may.
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class _Links:
    """Addresses relative to the page, so that they are right behind any prefix."""

    root: str = "static/"

    def streams(self) -> str:
        return "./"

    def stream(self, name: str) -> str:
        return f"stream?{urlencode({'name': name})}"

    def backup(self, name: str, backup_id: str) -> str:
        return f"backup?{urlencode({'name': name, 'id': backup_id})}"

    def change(self, plan_id: str) -> str:
        return f"change?{urlencode({'id': plan_id})}"

    def restore(self, name: str, backup_id: str) -> str:
        return f"stream?{urlencode({'name': name, 'restore': backup_id})}"

    def rewind(self, name: str, to: datetime) -> str:
        return f"stream?{urlencode({'name': name, 'rewind': to.isoformat(timespec='seconds')})}"


def make_app() -> FastAPI:
    """Make the application."""
    # Without its own documentation, whose addresses would answer without a login.
    app = FastAPI(dependencies=[Depends(_may_look)], docs_url=None, redoc_url=None, openapi_url=None)
    app.middleware("http")(_with_headers)
    app.exception_handler(CkptError)(_unreadable)
    app.exception_handler(NotThereError)(_not_there)
    app.get("/", response_class=HTMLResponse)(_streams)
    app.get("/stream", response_class=HTMLResponse)(_stream)
    app.get("/backup", response_class=HTMLResponse)(_backup)
    app.get("/change", response_class=HTMLResponse)(_change)
    app.get("/static/{name}")(_asset)
    # An address that does not exist tells nothing either before somebody is let in.
    app.api_route("/{path:path}", methods=_METHODS)(_nothing)
    return app


def _may_look(user: GetUserDep) -> None:
    """Let in whom Airflow shows plugins, and the DAG whose report the page shows."""
    manager: Any = get_auth_manager()
    report = DagDetails(id=_setting("page_dag_id", "fleet"))
    if not (
        manager.is_authorized_view(access_view=AccessView.PLUGINS, user=user)
        and manager.is_authorized_dag(method="GET", details=report, user=user)
    ):
        raise HTTPException(HTTP_403_FORBIDDEN, "Forbidden")


def _may_start(dag_id: str, user: GetUserDep) -> bool:
    manager: Any = get_auth_manager()
    return bool(
        manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag_id), user=user
        )
    )


async def _with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    response.headers.update(_HEADERS)
    return response


def _streams() -> HTMLResponse:
    return HTMLResponse(_pages().streams())


def _stream(
    user: GetUserDep,
    name: Annotated[str, Query(max_length=300)],
    restore: Annotated[str | None, Query(max_length=100)] = None,
    rewind: Annotated[datetime | None, Query()] = None,
) -> HTMLResponse:
    pages, places = _pages(), _places()

    def allowed(form: Form) -> Form:
        return form if _may_start(form.dag_id, user) else replace(form, refused=f"You may not start {form.dag_id}.")

    def to_restore(row: StreamRow, manifest: Manifest) -> Form:
        return allowed(restore_form(_setting("restore_dag_id", "restore_checkpoint"), row, manifest, places))

    def to_rewind(row: StreamRow) -> Form:
        return allowed(rewind_form(_setting("rewind_dag_id", "rewind_replay"), row, rewind or pages.clock(), places))

    return HTMLResponse(
        pages.stream(name, restore=(restore, to_restore) if restore else None, rewind=to_rewind if rewind else None)
    )


def _backup(name: Annotated[str, Query(max_length=300)], id: Annotated[str, Query(max_length=100)]) -> HTMLResponse:
    return HTMLResponse(_pages().backup(name, id))


def _change(id: Annotated[str, Query(max_length=100)]) -> HTMLResponse:
    return HTMLResponse(_pages().change(id))


def _asset(name: str) -> Response:
    if name not in ASSETS:
        raise HTTPException(HTTP_404_NOT_FOUND, "Not Found")
    return Response(asset(name), media_type=ASSETS[name])


def _nothing(path: str) -> None:
    raise HTTPException(HTTP_404_NOT_FOUND, "Not Found")


def _unreadable(request: Request, error: Exception) -> HTMLResponse:
    log.warning("the page cannot be made: %s", error)
    return HTMLResponse(_message("The page cannot be made", str(error)), HTTP_503_SERVICE_UNAVAILABLE)


def _not_there(request: Request, error: Exception) -> HTMLResponse:
    return HTMLResponse(_message("Not there", str(error)), HTTP_404_NOT_FOUND)


def _message(title: str, message: str) -> str:
    from datetime import UTC

    return message_page(Head(_Links(), _setting("repository", "none"), datetime.now(UTC), live=True), title, message)


def _pages() -> Pages:
    places = _places()
    repository = Repository.open(open_place(places.repository, places.repository_conn_id))
    return Pages(repository, _Links(), live=True, objectives=_objectives(repository))


def _objectives(repository: Repository) -> dict[str, Objectives]:
    """What is declared of the streams, where the web server has the file; the page is there without it too."""
    if not _setting(STREAMS, ""):
        return {}
    try:
        return objectives_of(configured_streams(), repository)
    except CkptError as e:
        log.warning("the page shows no objectives: %s", e)
        return {}


def _places() -> Places:
    repository = _setting("repository", "")
    if not repository:
        raise NotThereError(f"set `repository` in the section [{SECTION}] of Airflow's configuration")
    return Places(
        repository,
        _setting("repository_conn_id", "") or None,
        _setting("checkpoint_conn_id", "") or None,
    )


def _setting(name: str, default: str) -> str:
    return str(conf.get(SECTION, name, fallback=None) or default)
