"""A Databricks workspace without Airflow: the vendor's SDK logs in, by its unified configuration, and requests are sent here.

The SDK's own client repeats a POST after a 429 or 503; a start that was carried out would be sent a second time. So only its
configuration and its credentials are used: environment (``DATABRICKS_HOST``, ``DATABRICKS_TOKEN``, …), ``~/.databrickscfg``, the
vendor's command line, and the clouds' own logins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_ckpt_provider import __version__
from airflow_ckpt_provider.errors import (
    CkptError,
    MissingExtraError,
    NoSuchPipelineError,
    RefusedError,
    UnknownStartError,
    WorkspaceError,
    WorkspaceForbiddenError,
    package_with,
)
from airflow_ckpt_provider.lakeflow.answers import error_of, retry_after_of

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

_PIPELINES, _STATEMENTS, _TABLES = "2.0/pipelines", "2.0/sql/statements", "2.1/unity-catalog/tables"
#: Seconds for one request; times that a read is sent; the longest wait between two of them.
_TIMEOUT, _READS, _LONGEST_WAIT = 60.0, 5, 60.0
_STRANGE = "copy the token again, without spaces, quotes and ends of lines around it"


class DatabricksClient:
    """One of :class:`~airflow_ckpt_provider.lakeflow.workspace.Workspace` and of its statements.

    :param host: address of the workspace, with its scheme.
    :param login: makes the headers of one request.
    :param sleep: waits before a read is sent again.
    """

    def __init__(
        self, host: str, login: Callable[[], Mapping[str, str]], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.host = host.rstrip("/")
        self._login, self._sleep = login, sleep

    # ---- reads ------------------------------------------------------------------------------------------------------

    def ask(self, pipeline_id: str, path: str = "") -> dict[str, Any]:
        """GET the pipeline itself, or what lies below it, such as ``updates/<id>``."""
        path, _, query = path.partition("?")
        return self._read(_endpoint(pipeline_id, path) + (f"?{query}" if query else ""), {}, f"pipeline {pipeline_id}")

    def iter_updates(self, pipeline_id: str) -> Iterator[dict[str, Any]]:
        """All updates, newest first."""
        return self._pages(_endpoint(pipeline_id, "updates"), "updates", {"max_results": 25}, f"pipeline {pipeline_id}")

    def iter_events(self, pipeline_id: str, *, filter: str = "", max_results: int = 100) -> Iterator[dict[str, Any]]:
        """Events, newest first."""
        asked = {"max_results": max_results, "order_by": "timestamp desc"} | ({"filter": filter} if filter else {})
        return self._pages(_endpoint(pipeline_id, "events"), "events", asked, f"pipeline {pipeline_id}")

    def iter_pipelines(self, name: str = "") -> Iterator[dict[str, Any]]:
        """Pipelines that may be seen.

        :param name: in the interface's ``LIKE``, where ``%`` and ``_`` stand for any characters.
        """
        asked: dict[str, Any] = {"max_results": 100}
        if name:
            asked["filter"] = "name LIKE '" + name.replace("'", "''") + "'"
        return self._pages(_PIPELINES, "statuses", asked, "pipelines")

    def find(self, given: str) -> str:
        """Return the id of a pipeline that is given by id or by name.

        :raises NoSuchPipelineError: there is none, or several have that name.
        """
        found = [each for each in self.iter_pipelines(given) if each.get("name") == given]
        if len(found) == 1:
            return str(found[0]["pipeline_id"])
        if found:
            ids = ", ".join(str(each.get("pipeline_id")) for each in found)
            raise NoSuchPipelineError(f"{len(found)} pipelines are named {given!r}: {ids}", hint="give the id")
        try:
            self.ask(given)
        except NoSuchPipelineError as e:
            raise NoSuchPipelineError(
                f"no pipeline has the id or the name {given!r}",
                hint="airflow-ckpt pipelines list shows those that this login may see",
            ) from e
        return given

    def get_table(self, name: str) -> dict[str, Any] | None:
        """Return a table of Unity Catalog; ``None`` if it does not exist or may not be seen."""
        try:
            return self.find_table(name)
        except (NoSuchPipelineError, WorkspaceForbiddenError, RefusedError):
            return None

    def find_table(self, name: str) -> dict[str, Any]:
        """Return a table of Unity Catalog.

        :raises CkptError: it does not exist, or may not be seen.
        """
        return self._read(f"{_TABLES}/{quote(name, safe='')}", {}, f"table {name}")

    def get_statement(self, statement_id: str) -> dict[str, Any]:
        """Return a statement."""
        return self._read(f"{_STATEMENTS}/{statement_id}", {}, f"statement {statement_id}")

    def get_statement_chunk(self, statement_id: str, index: int) -> dict[str, Any]:
        """Return a further part of a statement's rows."""
        return self._read(f"{_STATEMENTS}/{statement_id}/result/chunks/{index}", {}, f"statement {statement_id}")

    # ---- changes ----------------------------------------------------------------------------------------------------

    def start_update(self, pipeline_id: str, body: Mapping[str, Any]) -> str:
        """Start an update; the request is sent at most once."""
        subject = f"pipeline {pipeline_id}"
        try:
            answer = self._send("POST", _endpoint(pipeline_id, "updates"), {}, dict(body), subject)
        except (RefusedError, WorkspaceForbiddenError):
            raise
        except WorkspaceError as e:
            about = {"status": e.status, "error_code": e.error_code, "retry_after": e.retry_after, "hint": e.hint}
            raise UnknownStartError(e.message, **about) from e  # type: ignore[arg-type]
        if not answer.get("update_id"):
            raise UnknownStartError(f"{subject}: the answer to the start names no update: {answer}")
        return str(answer["update_id"])

    def stop_pipeline(self, pipeline_id: str) -> None:
        """Stop whatever is active; may be repeated."""
        self._repeated("POST", _endpoint(pipeline_id, "stop"), {}, {}, f"pipeline {pipeline_id}")

    def edit_pipeline(self, pipeline_id: str, body: Mapping[str, Any]) -> None:
        """Put other settings in place of all that a pipeline has; the request is sent once."""
        self._send("PUT", _endpoint(pipeline_id, ""), {}, dict(body), f"pipeline {pipeline_id}")

    def send_statement(self, statement: str, warehouse_id: str, *, once: bool = False) -> str:
        """Send a statement; return its id.

        :param once: never send it a second time: for statements that must not run twice.
        """
        body = {"statement": statement, "warehouse_id": warehouse_id, "wait_timeout": "0s"}
        send = self._send if once else self._repeated
        answer = send("POST", _STATEMENTS, {}, body, f"warehouse {warehouse_id}")
        return str(answer["statement_id"])

    def cancel_statement(self, statement_id: str) -> None:
        """Cancel a statement; may be repeated."""
        self._repeated("POST", f"{_STATEMENTS}/{statement_id}/cancel", {}, {}, f"statement {statement_id}")

    # -----------------------------------------------------------------------------------------------------------------

    def _pages(self, path: str, key: str, asked: Mapping[str, Any], subject: str) -> Iterator[dict[str, Any]]:
        query = dict(asked)
        while True:
            page = self._read(path, query, subject)
            yield from page.get(key) or ()
            token = page.get("next_page_token")
            if not token:
                return
            # The token stands for all the rest: beside it only the size of a page may be given.
            query = {"max_results": asked["max_results"], "page_token": token}

    def _read(self, path: str, query: Mapping[str, Any], subject: str) -> dict[str, Any]:
        return self._repeated("GET", path, query, None, subject)

    def _repeated(
        self, method: str, path: str, query: Mapping[str, Any], body: dict[str, Any] | None, subject: str
    ) -> dict[str, Any]:
        """Send what may be sent again, where the workspace is throttled or out of order for a moment."""
        for attempt in range(_READS):
            try:
                return self._send(method, path, query, body, subject)
            except WorkspaceForbiddenError:
                raise
            except WorkspaceError as e:
                if attempt == _READS - 1:
                    raise
                self._sleep(max(e.retry_after, min(2.0**attempt, _LONGEST_WAIT)))
        raise AssertionError("unreachable")

    def _send(
        self, method: str, path: str, query: Mapping[str, Any], body: dict[str, Any] | None, subject: str
    ) -> dict[str, Any]:
        import requests

        login = self._login()

        def authenticate(request: PreparedRequest) -> PreparedRequest:
            request.headers.update(login)
            return request

        try:
            answer = requests.request(
                method,
                f"{self.host}/api/{path}",
                params=dict(query),
                json=body,
                headers={"User-Agent": f"airflow-ckpt/{__version__}"},
                # A header alone would be replaced by a login of ~/.netrc for this host.
                auth=authenticate,
                timeout=_TIMEOUT,
            )
        except ValueError as e:
            # Words of these errors may have the value of a header in them: the token.
            raise WorkspaceForbiddenError(
                f"{subject}: a request to {self.host} cannot be made ({type(e).__name__})",
                hint="see that the host and the token have no strange characters",
            ) from None
        except OSError as e:  # requests' errors are OSErrors
            raise WorkspaceError(f"{subject}: {type(e).__name__}: {e}", hint="try again") from e
        return _loaded(answer, subject)


def _loaded(answer: Response, subject: str) -> dict[str, Any]:
    if not answer.ok:
        error = error_of(subject, answer.status_code, answer.text)
        if isinstance(error, WorkspaceError):
            error.retry_after = retry_after_of(answer.headers)
        raise error
    try:
        loaded = answer.json() if answer.content else {}
    except ValueError as e:
        raise WorkspaceError(f"{subject}: the workspace's answer is no JSON: {answer.text[:100]!r}") from e
    if not isinstance(loaded, dict):
        raise WorkspaceError(f"{subject}: the workspace's answer is no JSON object: {str(loaded)[:100]!r}")
    return loaded


def _endpoint(pipeline_id: str, path: str) -> str:
    return f"{_PIPELINES}/{quote(pipeline_id, safe='')}{f'/{path}' if path else ''}"


def open_client(profile: str | None = None) -> DatabricksClient:
    """Make the client that the SDK's unified configuration describes. No pipeline is asked for yet.

    :param profile: of ``~/.databrickscfg``; ``None``: as the environment says.
    :raises MissingExtraError: the SDK is not installed.
    :raises WorkspaceForbiddenError: nothing says how to log in, or the login was refused.
    """
    try:
        from databricks.sdk.config import Config
    except ImportError as e:
        raise MissingExtraError(
            f"pipelines need the Databricks SDK, which is not installed ({e})",
            hint=f"pip install '{package_with('databricks-sdk')}'",
        ) from e
    how = "set DATABRICKS_HOST and DATABRICKS_TOKEN, or log in with the vendor's command line and give --profile"
    try:
        config = Config(profile=profile) if profile else Config()
    except ValueError as e:
        raise WorkspaceForbiddenError(f"the Databricks SDK finds no login: {e}", hint=how) from e

    from requests.exceptions import InvalidHeader

    def login() -> Mapping[str, str]:
        try:
            headers = dict(config.authenticate())
        except CkptError:
            raise
        except InvalidHeader:  # its words have the value in them
            raise WorkspaceForbiddenError("the Databricks SDK could not log in: InvalidHeader", hint=_STRANGE) from None
        except Exception as e:  # each kind of login has errors of its own
            raise WorkspaceForbiddenError(f"the Databricks SDK could not log in: {e}", hint=how) from e
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise WorkspaceForbiddenError(
                    f"the login cannot be sent: {name} has characters that are no printable ASCII, such as the end of a line",
                    hint=_STRANGE,
                )
        return headers

    return DatabricksClient(str(config.host), login)
