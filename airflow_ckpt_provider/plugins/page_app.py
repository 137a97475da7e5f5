"""The application behind the page: reads repositories, changes nothing, and answers nobody whom Airflow does not let in.

An application that a plugin mounts has no login of its own, so each of its routes, style and script and addresses that do not
exist included, asks Airflow's auth manager first: for the right to see plugins, and to read the DAG whose report the page shows.
It never opens a checkpoint. What a form starts is started by the browser through Airflow's own API.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.providers.common.compat.sdk import conf
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import AwareDatetime
from starlette.status import HTTP_403_FORBIDDEN, HTTP_404_NOT_FOUND, HTTP_503_SERVICE_UNAVAILABLE

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.configuration import shown_by_the_page
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.fleet.discovery import said
from airflow_ckpt_provider.page.bounded import BoundedReads, NoAnswerError
from airflow_ckpt_provider.page.forms import (
    HOW_TO_GET_ONE,
    DagOfForm,
    Form,
    dags_of_form,
    declared_restore_form,
    declared_rewind_form,
    restore_form,
    rewind_form,
)
from airflow_ckpt_provider.page.html import ASSETS, POLICY, Head, asset, message_page, streams_page
from airflow_ckpt_provider.page.pages import NotThereError, Pages, Reported, unread_rows
from airflow_ckpt_provider.page.shown import Shown
from airflow_ckpt_provider.page.stream_row import StreamRow
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.redaction import redacted
from airflow_ckpt_provider.streams.settings import SECTION, STREAMS

log = logging.getLogger(__name__)

#: What of repositories is read for a page, and the seconds that this may take: after that the page says that it is UNKNOWN.
_READS: BoundedReads[Any] = BoundedReads(30.0)
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
    """Addresses relative to the page, so that they are right behind any prefix.

    :param at: key of the repository; empty: there is only one.
    """

    root: str = "static/"
    at: str = ""

    def streams(self) -> str:
        return "./"

    def stream(self, name: str) -> str:
        return self._to("stream", name=name)

    def backup(self, name: str, backup_id: str) -> str:
        return self._to("backup", name=name, id=backup_id)

    def change(self, plan_id: str) -> str:
        return self._to("change", id=plan_id)

    def restore(self, name: str, backup_id: str) -> str:
        return self._to("stream", name=name, restore=backup_id)

    def rewind(self, name: str, to: datetime) -> str:
        return self._to("stream", name=name, rewind=to.isoformat(timespec="seconds"))

    def _to(self, page: str, **query: str) -> str:
        return f"{page}?{urlencode({**query, **({'at': self.at} if self.at else {})})}"


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
    # An address that does not exist shows nothing either before somebody is let in.
    app.api_route("/{path:path}", methods=_METHODS)(_nothing)
    return app


def _may_look(user: GetUserDep) -> None:
    """Let in whom Airflow shows plugins, and the DAG whose report the page shows."""
    manager: Any = get_auth_manager()
    report = _dag(_setting("page_dag_id", "fleet"))
    if not (
        manager.is_authorized_view(access_view=AccessView.PLUGINS, user=user)
        and manager.is_authorized_dag(method="GET", details=report, user=user)
    ):
        raise HTTPException(HTTP_403_FORBIDDEN, "Forbidden")


def _may_start(dag_id: str, user: GetUserDep) -> bool:
    manager: Any = get_auth_manager()
    return bool(
        manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=_dag(dag_id), user=user)
    )


def _dag(dag_id: str) -> DagDetails:
    """A DAG as Airflow's own API asks the auth manager for it: that of a team is for this team only."""
    from airflow.models.dag import DagModel

    team_of = getattr(DagModel, "get_team_name", None)  # of an Airflow that has teams
    return DagDetails(id=dag_id, team_name=team_of(dag_id)) if team_of else DagDetails(id=dag_id)


async def _with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    response.headers.update(_HEADERS)
    return response


def _streams() -> HTMLResponse:
    shown, notes = _shown()
    if len(shown) == 1:
        return HTMLResponse(_made(shown[0], lambda _, pages: pages.streams(), notes))
    found = _READS.results({each.key: partial(_reported, each) for each in shown})
    rows: list[StreamRow] = []
    now = datetime.now(UTC)
    # One that cannot be read takes none of the others away.
    for each in shown:
        place, there = redacted(each.places.repository), found[each.key]
        if isinstance(there, Exception):
            log.warning("the page does not show %s: %s", place, said(there))
            notes += (f"{place} cannot be read: {said(there)}. The status of its streams is UNKNOWN.",)
            rows += unread_rows(each.declared, now, each.key)
        else:
            notes += tuple(f"{place}: {why}" for why in there.unread)
            rows += there.rows
    head = Head(_Links(), f"{len(shown)} repositories", now, live=True, notes=notes)
    links = {each.key: (redacted(each.places.repository), _Links(at=each.key)) for each in shown}
    return HTMLResponse(streams_page(head, rows, links))


def _reported(shown: Shown) -> Reported:
    return _open(shown, several=True).reported()


def _stream(
    user: GetUserDep,
    name: Annotated[str, Query(max_length=300)],
    restore: Annotated[str | None, Query(max_length=100)] = None,
    rewind: Annotated[AwareDatetime | None, Query()] = None,
    at: Annotated[str | None, Query(max_length=20)] = None,
) -> HTMLResponse:
    def page(shown: Shown, pages: Pages) -> str:
        stream = shown.declared.get(name)

        def to_restore(row: StreamRow, manifest: Manifest) -> Form:
            def form(dag: DagOfForm) -> Form:
                if stream and dag.declared:
                    return declared_restore_form(dag.dag_id, stream, manifest)
                return restore_form(dag.dag_id, row, manifest, shown.places)

            return _startable(dags_of_form("restore", stream, _setting), form, user)

        def to_rewind(row: StreamRow) -> Form:
            def form(dag: DagOfForm) -> Form:
                if stream and dag.declared:
                    return declared_rewind_form(dag.dag_id, stream, rewind or pages.clock())
                return rewind_form(dag.dag_id, row, rewind or pages.clock(), shown.places)

            return _startable(dags_of_form("rewind", stream, _setting), form, user)

        return pages.stream(
            name, restore=(restore, to_restore) if restore else None, rewind=to_rewind if rewind else None
        )

    return _of_one(at, page)


def _startable(dags: Sequence[DagOfForm], make: Callable[[DagOfForm], Form], user: Any) -> Form:
    """The form for the first of the DAGs that there is; one that cannot be sent says why."""
    from airflow.models.dag import DagModel

    for dag in dags:
        found = DagModel.get_dagmodel(dag.dag_id)
        if found is None or found.is_stale:
            continue
        form = make(dag)
        return form if _may_start(dag.dag_id, user) else replace(form, refused=f"You may not start {dag.dag_id}.")
    *others, last = [dag.dag_id for dag in dags]
    missing = f"{', '.join(others)} or {last}" if others else last
    return replace(make(dags[0]), refused=f"This Airflow has no DAG {missing}. {HOW_TO_GET_ONE}")


def _backup(
    name: Annotated[str, Query(max_length=300)],
    id: Annotated[str, Query(max_length=100)],
    at: Annotated[str | None, Query(max_length=20)] = None,
) -> HTMLResponse:
    return _of_one(at, lambda _, pages: pages.backup(name, id))


def _change(
    id: Annotated[str, Query(max_length=100)], at: Annotated[str | None, Query(max_length=20)] = None
) -> HTMLResponse:
    return _of_one(at, lambda _, pages: pages.change(id))


def _of_one(at: str | None, page: Callable[[Shown, Pages], str]) -> HTMLResponse:
    """A page about one repository: the one that the address names, else the only one that has what is looked for."""
    shown, notes = _shown()
    several = len(shown) > 1
    if not several or at:
        chosen = next((each for each in shown if each.key == at or not several), None)
        if chosen is None:
            raise NotThereError("no repository that this page shows has this key: begin at the list of streams")
        return HTMLResponse(_made(chosen, page, notes, several=several))
    outcomes = _READS.results({each.key: partial(_page_of, each, page, notes, several=True) for each in shown})
    having = [each for each in shown if not isinstance(outcomes[each.key], Exception)]
    errors = [(each, e) for each in shown if isinstance(e := outcomes[each.key], Exception)]
    unread = [(each, e) for each, e in errors if not isinstance(e, NotThereError)]
    if len(having) == 1 and not unread:
        return HTMLResponse(outcomes[having[0].key])
    if len(having) == 1:
        notes += tuple(
            f"{redacted(each.places.repository)} cannot be read: {said(e)}. Whether it has this too is UNKNOWN."
            for each, e in unread
        )
        return HTMLResponse(_made(having[0], page, notes, several=True))
    if not having:
        raise _named(*(unread or errors)[-1])
    raise NotThereError(f"{len(having)} repositories have this: choose in the list of streams")


def _made(shown: Shown, page: Callable[[Shown, Pages], str], notes: tuple[str, ...], *, several: bool = False) -> str:
    """A page about one repository, if its store answers in time."""
    outcome = _READS.results({shown.key: partial(_page_of, shown, page, notes, several=several)})[shown.key]
    if isinstance(outcome, Exception):
        raise _named(shown, outcome)
    return str(outcome)


def _page_of(shown: Shown, page: Callable[[Shown, Pages], str], notes: tuple[str, ...], *, several: bool) -> str:
    return page(shown, replace(_open(shown, several=several), notes=notes))


def _named(shown: Shown, error: Exception) -> Exception:
    """The error, with the repository that it is about."""
    if isinstance(error, NoAnswerError):
        error.add_subject(redacted(shown.places.repository))
    return error


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
    return message_page(Head(_Links(), "", datetime.now(UTC), live=True), title, message)


def _open(shown: Shown, *, several: bool = False) -> Pages:
    places, key = shown.places, shown.key if several else ""
    try:
        repository = Repository.open(open_place(places.repository, places.repository_conn_id))
    except CkptError:
        raise
    except Exception as e:  # of a client that does not take what the connection says, for example
        raise RefusedError(
            f"{places.repository} cannot be opened: {type(e).__name__}: {e}",
            hint=f"correct the Airflow connection {places.repository_conn_id or 'of this address'}",
        ) from e
    return Pages(repository, _Links(at=key), live=True, declared=shown.declared, key=key)


def _shown() -> tuple[tuple[Shown, ...], tuple[str, ...]]:
    """The repositories that the page shows, and what each page says first."""
    found, unread = shown_by_the_page()
    notes = (f"What is declared of the streams is UNKNOWN: {unread}",) if unread else ()
    if found:
        return found, notes
    raise NotThereError(
        notes[0]
        if notes
        else f"set `repository` in the section [{SECTION}] of Airflow's configuration, or `{STREAMS}` with a file that names one"
    )


def _setting(name: str, default: str) -> str:
    return str(conf.get(SECTION, name, fallback=None) or default)
