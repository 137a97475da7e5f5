"""Which request is what."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.fake_databricks.errors import ApiError, invalid, not_found

if TYPE_CHECKING:
    from tests.fake_databricks.workspace import FakeWorkspace

Query = Mapping[str, str]
Handler = Callable[["FakeWorkspace", re.Match[str], Query, dict[str, Any]], dict[str, Any]]

_PIPELINE = r"/api/2\.0/pipelines/(?P<id>[^/]+)"
_JOBS = r"/api/2\.[012]/jobs"
_STATEMENTS = r"/api/2\.0/sql/statements"


def _start(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    pipeline = workspace.find(match["id"])
    pipeline.move()
    return {"update_id": pipeline.start(body).update_id}


def _update(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    pipeline = workspace.find(match["id"])
    pipeline.move(look=True)
    for update in pipeline.updates:
        if update.update_id == match["update"]:
            return {"update": update.info(pipeline.answered_spec())}
    raise not_found("update", match["update"])


def _updates(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    pipeline = workspace.find(match["id"])
    pipeline.move(look=True)
    ids = [update.update_id for update in reversed(pipeline.updates)]
    token, until = query.get("page_token", ""), query.get("until_update_id", "")
    if token and token not in ids:
        raise invalid(f"Invalid page token: {token}")
    if until and until not in ids:
        raise not_found("update", until)
    # A token is the update that a page begins with: new updates do not shift the pages.
    first = ids.index(token) if token else 0
    last = ids.index(until) + 1 if until else len(ids)
    size = min(_number(query, "max_results", 25), 100)
    page = list(reversed(pipeline.updates))[first:last][:size]
    answer: dict[str, Any] = {"updates": [update.info() for update in page]} if page else {}
    if first + size < last:
        answer["next_page_token"] = ids[first + size]
    if first:
        answer["prev_page_token"] = ids[max(0, first - size)]
    return answer


def _events(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    pipeline = workspace.find(match["id"])
    pipeline.move()
    size = _number(query, "max_results", 0)
    return pipeline.events.page(query.get("filter", ""), query.get("order_by", ""), size, query.get("page_token", ""))


def _stop(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    pipeline = workspace.find(match["id"])
    pipeline.move()
    pipeline.stop()
    return {}


def _get(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    pipeline = workspace.find(match["id"])
    pipeline.move(look=True)
    return pipeline.info()


def _list(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    size = _number(query, "max_results", 25)
    if size > 100:
        raise invalid("max_results must not be greater than 100.")
    found = sorted((p for p in workspace.pipelines.values() if not p.deleted), key=lambda p: p.pipeline_id)
    if asked := query.get("filter", ""):
        like = re.fullmatch(r"\s*name\s+LIKE\s+'(.*)'\s*", asked, re.IGNORECASE)
        if like is None:
            raise invalid(f"Invalid filter: {asked}")
        pattern = re.compile("".join({"%": ".*", "_": "."}.get(c, re.escape(c)) for c in like[1]), re.DOTALL)
        found = [p for p in found if pattern.fullmatch(p.name)]
    first = _number(query, "page_token", 0)
    answer: dict[str, Any] = {}
    if page := found[first : first + size]:
        answer["statuses"] = [pipeline.brief() for pipeline in page]
    if first + size < len(found):
        answer["next_page_token"] = str(first + size)
    return answer


def _delete(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    workspace.find(match["id"]).deleted = True
    return {}


def _import(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    try:
        content = base64.b64decode(str(body["content"]), validate=True).decode()
    except (KeyError, ValueError) as e:
        raise invalid("content has to be base64.") from e
    workspace.files[str(body.get("path"))] = content
    return {}


def _remove(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    if workspace.files.pop(str(body.get("path")), None) is None:
        raise not_found("path", body.get("path"))
    return {}


def _edit(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    workspace.find(match["id"]).edit(body)
    return {}


def _table(workspace: FakeWorkspace, match: re.Match[str], query: Query, body: dict[str, Any]) -> dict[str, Any]:
    name = unquote(match["id"])
    if len(name.split(".")) != 3:
        raise invalid(f"Invalid full name: {name}")
    if name in workspace.hidden:
        raise ApiError(
            403, "PERMISSION_DENIED", f"User does not have USE SCHEMA on Schema '{name.rpartition('.')[0]}'."
        )
    if not workspace.tables.exists(name):
        raise ApiError(404, "TABLE_DOES_NOT_EXIST", f"Table '{name}' does not exist.")
    catalog, schema, table = name.split(".")
    kinds = {p.table(d): (p, p.table_type(d)) for p in workspace.pipelines.values() for d in p.datasets}
    pipeline, kind = kinds.get(name, (None, "MANAGED"))
    columns = [{"name": column, "position": at} for at, column in enumerate(workspace.tables.columns(name))]
    answer = {
        "catalog_name": catalog,
        "schema_name": schema,
        "name": table,
        "full_name": name,
        "table_type": kind,
        "data_source_format": "DELTA",
        "columns": columns,
        "table_id": workspace.tables.id_of(name),
        **workspace.tables.catalog.get(name, {}),
    }
    if properties := workspace.tables.properties.get(name):
        answer["properties"] = dict(properties)
    return answer | ({"pipeline_id": pipeline.pipeline_id} if pipeline else {})


def _number(query: Query, key: str, default: int) -> int:
    value = query.get(key, "") or str(default)
    if not value.isdigit():
        raise invalid(f"{key} must be a number, got {value}.")
    return int(value)


ROUTES: list[tuple[str, re.Pattern[str], Handler]] = [
    (method, re.compile(path), handler)
    for method, path, handler in (
        ("POST", _PIPELINE + "/updates", _start),
        ("GET", _PIPELINE + "/updates", _updates),
        ("GET", _PIPELINE + "/updates/(?P<update>[^/]+)", _update),
        ("GET", _PIPELINE + "/events", _events),
        ("POST", _PIPELINE + "/stop", _stop),
        ("GET", _PIPELINE, _get),
        ("PUT", _PIPELINE, _edit),
        ("DELETE", _PIPELINE, _delete),
        ("GET", r"/api/2\.0/pipelines", _list),
        ("POST", r"/api/2\.0/pipelines", lambda w, m, q, b: w.create(b)),
        ("POST", r"/api/2\.0/workspace/import", _import),
        ("POST", r"/api/2\.0/workspace/delete", _remove),
        ("POST", _JOBS + "/run-now", lambda w, m, q, b: w.jobs.run_now(b)),
        ("POST", _JOBS + "/runs/submit", lambda w, m, q, b: w.jobs.submit(b)),
        ("GET", _JOBS + "/runs/get", lambda w, m, q, b: w.jobs.get(_number(q, "run_id", 0))),
        (
            "GET",
            _JOBS + "/runs/list",
            lambda w, m, q, b: w.jobs.list_runs(_number(q, "job_id", 0) or None, q.get("active_only") == "true"),
        ),
        ("POST", _JOBS + "/runs/cancel", lambda w, m, q, b: w.jobs.cancel(int(b.get("run_id") or 0))),
        ("POST", _JOBS + "/update", lambda w, m, q, b: w.jobs.update(b)),
        ("GET", _JOBS + "/list", lambda w, m, q, b: w.jobs.list(q.get("name", ""))),
        ("GET", _JOBS + "/get", lambda w, m, q, b: w.jobs.get_job(_number(q, "job_id", 0))),
        ("POST", _STATEMENTS, lambda w, m, q, b: w.statements.post(b)),
        ("GET", _STATEMENTS + "/(?P<id>[^/]+)", lambda w, m, q, b: w.statements.get(m["id"])),
        (
            "GET",
            _STATEMENTS + r"/(?P<id>[^/]+)/result/chunks/(?P<chunk>\d+)",
            lambda w, m, q, b: w.statements.chunk(m["id"], int(m["chunk"])),
        ),
        ("POST", _STATEMENTS + "/(?P<id>[^/]+)/cancel", lambda w, m, q, b: w.statements.cancel(m["id"])),
        (
            "GET",
            r"/api/2\.0/sql/warehouses",
            lambda w, m, q, b: {"warehouses": [_warehouse(i) for i in sorted(w.statements.warehouses)]},
        ),
        ("GET", r"/api/2\.0/sql/warehouses/(?P<id>[^/]+)", lambda w, m, q, b: _warehouse(m["id"])),
        ("GET", r"/api/2\.1/unity-catalog/tables/(?P<id>[^/]+)", _table),
        ("GET", r"/api/2\.1/clusters/spark-versions", lambda w, m, q, b: {"versions": []}),
        ("GET", r"/api/2\.0/preview/scim/v2/Me", lambda w, m, q, b: {"userName": "etl@example.com"}),
    )
]


def _warehouse(warehouse_id: str) -> dict[str, Any]:
    return {"id": warehouse_id, "name": warehouse_id, "state": "RUNNING"}


def answer(workspace: FakeWorkspace, method: str, path: str, query: Query, body: dict[str, Any]) -> dict[str, Any]:
    """Carry a request out.

    :raises ApiError: it is refused.
    """
    for asked, pattern, handler in ROUTES:
        if asked == method and (match := pattern.fullmatch(path)):
            return handler(workspace, match, query, body)
    raise ApiError(404, "ENDPOINT_NOT_FOUND", f"No API found for '{method} {path}'")
