"""The pipelines interface of Databricks, over an Airflow connection of type ``databricks``.

Airflow's own hook logs in and sends; here are the calls that it lacks, with two differences. What only reads is repeated
where the workspace is throttled or out of order, as long as ``Retry-After`` says. A start is sent once: Airflow's hook would
send it again after a lost answer.

Imported where it is used: the Databricks provider belongs to the extra ``databricks``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import requests
from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException
from airflow.providers.databricks.exceptions import DatabricksApiError  # noqa: TID253  # this module is imported where it is used
from airflow.providers.databricks.hooks.databricks import DatabricksHook  # noqa: TID253
from airflow.providers.databricks.hooks.databricks_base import _TokenAuth  # noqa: TID253
from requests.auth import HTTPBasicAuth
from tenacity import stop_after_attempt, wait_exponential

from airflow_ckpt_provider.errors import (
    CkptError,
    NoSuchPipelineError,
    RefusedError,
    UnknownStartError,
    WorkspaceError,
    WorkspaceForbiddenError,
)
from airflow_ckpt_provider.lakeflow.answers import error_of, retry_after_of

if TYPE_CHECKING:
    from tenacity import RetryCallState

_STATUS = re.compile(r"Response: (?P<body>.*), Status Code: (?P<status>\d+)", re.DOTALL)
_PIPELINES, _STATEMENTS, _RUN_NOW = "2.0/pipelines", "2.0/sql/statements", "2.2/jobs/run-now"
_TABLES = "2.1/unity-catalog/tables"


class DatabricksPipelinesHook(DatabricksHook):
    """Starts, follows, stops and lists updates of pipelines.

    One of :class:`~airflow_ckpt_provider.lakeflow.workspace.Workspace`; the methods that begin with ``a_`` do the same
    in an event loop, inside ``async with``. Errors are those of this package.

    .. code-block:: python

        hook = DatabricksPipelinesHook("databricks_default", caller="my_dag")

    :param databricks_conn_id: id of the connection.
    :param timeout_seconds: seconds for one request.
    :param retry_limit: how often a read is sent.
    :param retry_delay: seconds before it is sent again, doubled every time; ``Retry-After`` comes first.
    :param caller: who calls, for the ``User-Agent``.
    """

    def __init__(
        self,
        databricks_conn_id: str = DatabricksHook.default_conn_name,
        *,
        timeout_seconds: int = 180,
        retry_limit: int = 5,
        retry_delay: float = 1.0,
        caller: str = "DatabricksPipelinesHook",
    ) -> None:
        backoff = wait_exponential(multiplier=retry_delay, min=retry_delay, max=max(retry_delay, 60.0))

        def wait(state: RetryCallState) -> float:
            return max(backoff(state), _retry_after(state.outcome))

        super().__init__(
            databricks_conn_id,
            timeout_seconds=timeout_seconds,
            retry_limit=retry_limit,
            retry_delay=retry_delay,
            retry_args={"stop": stop_after_attempt(retry_limit), "wait": wait},
            caller=caller,
        )

    # ---- reads ------------------------------------------------------------------------------------------------------

    def ask(self, pipeline_id: str, path: str = "") -> dict[str, Any]:
        """GET the pipeline itself, or what lies below it, such as ``updates/<id>``."""
        with _translated(f"pipeline {pipeline_id}"):
            return _answer(self._do_api_call(("GET", _endpoint(pipeline_id, path))))

    async def a_ask(self, pipeline_id: str, path: str = "") -> dict[str, Any]:
        """The same, in an event loop."""
        with _translated(f"pipeline {pipeline_id}"):
            return _answer(await self._a_do_api_call(("GET", _endpoint(pipeline_id, path))))

    def get_pipeline(self, pipeline_id: str) -> dict[str, Any]:
        """Return the pipeline with its state, its latest updates and its specification."""
        return self.ask(pipeline_id)

    async def a_get_pipeline(self, pipeline_id: str) -> dict[str, Any]:
        """The same, in an event loop."""
        return await self.a_ask(pipeline_id)

    def get_update(self, pipeline_id: str, update_id: str) -> dict[str, Any]:
        """Return one update (``UpdateInfo``)."""
        return dict(self.ask(pipeline_id, f"updates/{update_id}").get("update") or {})

    async def a_get_update(self, pipeline_id: str, update_id: str) -> dict[str, Any]:
        """The same, in an event loop."""
        return dict((await self.a_ask(pipeline_id, f"updates/{update_id}")).get("update") or {})

    def iter_updates(self, pipeline_id: str, *, max_results: int = 25) -> Iterator[dict[str, Any]]:
        """All updates, newest first, page by page as they are taken."""
        yield from self._pages(pipeline_id, "updates", "updates", {"max_results": max_results})

    def iter_events(self, pipeline_id: str, *, filter: str = "", max_results: int = 100) -> Iterator[dict[str, Any]]:
        """Events, newest first, page by page as they are taken.

        :param filter: the interface's own grammar, such as ``level='ERROR'``; it has no filter by update.
        :param max_results: events a page.
        """
        asked = {"max_results": max_results, "order_by": "timestamp desc"} | ({"filter": filter} if filter else {})
        yield from self._pages(pipeline_id, "events", "events", asked)

    def get_table(self, name: str) -> dict[str, Any] | None:
        """Return a table of Unity Catalog (``TableInfo``); ``None`` if it does not exist or may not be seen."""
        try:
            return self.find_table(name)
        except (NoSuchPipelineError, WorkspaceForbiddenError, RefusedError) as e:
            self.log.info("Table %s is not seen in Unity Catalog: %s", name, e.message)
            return None

    def find_table(self, name: str) -> dict[str, Any]:
        """Return a table of Unity Catalog.

        :raises CkptError: it does not exist, or may not be seen.
        """
        with _translated(f"table {name}"):
            return _answer(self._do_api_call(("GET", f"{_TABLES}/{quote(name, safe='')}")))

    def pipeline_id(self, *, pipeline_id: str | None = None, pipeline_name: str | None = None) -> str:
        """Return the id of a pipeline that is given by id or by name.

        :raises RefusedError: neither or both are given.
        :raises NoSuchPipelineError: no pipeline has that name, or several have.
        """
        if bool(pipeline_id) == bool(pipeline_name):
            raise RefusedError(
                "give pipeline_id or pipeline_name, one of them", hint="the id is in the pipeline's address"
            )
        if pipeline_id:
            return pipeline_id
        name = str(pipeline_name)
        with _translated(f"pipeline {name!r}"):
            # LIKE takes _ and % for any characters: only those of just this name count.
            listed = self.list_pipelines(batch_size=100, pipeline_name=name.replace("'", "''"))
        found = [each for each in listed if each.get("name") == name]
        if len(found) != 1:
            ids = ", ".join(str(each.get("pipeline_id")) for each in found)
            what = f"{len(found)} pipelines are named {name!r}: {ids}" if found else f"no pipeline is named {name!r}"
            raise NoSuchPipelineError(
                what,
                hint="give pipeline_id" if found else "check the name, and that this connection may see the pipeline",
            )
        return str(found[0]["pipeline_id"])

    def page_url(self, pipeline_id: str, update_id: str) -> str:
        """Return the address of an update's page."""
        port = f":{self.databricks_conn.port}" if self.databricks_conn.port else ""
        scheme = self.databricks_conn.schema or "https"
        return f"{scheme}://{self.host}{port}/#joblist/pipelines/{quote(pipeline_id)}/updates/{quote(update_id)}"

    # ---- changes ----------------------------------------------------------------------------------------------------

    def start_update(self, pipeline_id: str, body: Mapping[str, Any]) -> str:
        """Start an update; the request is sent at most once.

        :raises ActiveUpdateError: another update is active.
        :raises UnknownStartError: no answer that says whether it was started.
        :raises RefusedError: the workspace refused; nothing was started.
        """
        answer = self._post_once(_endpoint(pipeline_id, "updates"), dict(body), f"pipeline {pipeline_id}")
        if not answer.get("update_id"):
            raise UnknownStartError(f"pipeline {pipeline_id}: the answer to the start names no update: {answer}")
        return str(answer["update_id"])

    def run_job_once(self, body: Mapping[str, Any]) -> int:
        """Run a job now; with the same ``idempotency_token`` it is run once, however often this is called.

        :raises UnknownStartError: no answer that says whether it was started.
        :raises RefusedError: the workspace refused; nothing was started.
        """
        answer = self._post_once(_RUN_NOW, dict(body), f"job {body.get('job_id')}")
        return int(answer.get("run_id") or 0)

    def edit_pipeline(self, pipeline_id: str, body: Mapping[str, Any]) -> None:
        """Put other settings in place of all that a pipeline has; the request is sent once.

        :raises ActiveUpdateError: a conflict: somebody has edited them since ``expected_last_modified``.
        :raises WorkspaceError: no answer that says whether they were taken.
        :raises RefusedError: the workspace refused; nothing was changed.
        """
        with _translated(f"pipeline {pipeline_id}"):
            self._do_api_call(("PUT", _endpoint(pipeline_id, "")), dict(body))

    def _do_api_call(
        self, endpoint_info: tuple[str, str], json: dict[str, Any] | None = None, wrap_http_errors: bool = True
    ) -> Any:
        """Send a request; ``PUT``, which Airflow's own hook lacks, with the same login and without a retry."""
        if endpoint_info[0] != "PUT":
            return super()._do_api_call(endpoint_info, json, wrap_http_errors)
        token = self._get_token()
        login = self._get_connection_attr("login") if not token else ""
        response = requests.put(
            self._endpoint_url(f"api/{endpoint_info[1]}"),  # type: ignore[no-untyped-call]
            json=json,
            auth=_TokenAuth(token) if token else HTTPBasicAuth(login, self.databricks_conn.password),
            headers={**self.user_agent_header, **self._get_aad_headers()},
            timeout=self.timeout_seconds,
            **(self._get_requests_kwargs() if hasattr(self, "_get_requests_kwargs") else {}),
        )
        if not response.ok:
            said = f"Response: {response.text}, Status Code: {response.status_code}"
            raise DatabricksApiError(said, http_status_code=response.status_code)
        return response.json() if response.content else {}

    def stop_pipeline(self, pipeline_id: str) -> None:
        """Stop whatever is active; may be repeated, and does nothing where nothing is."""
        with _translated(f"pipeline {pipeline_id}"):
            self._do_api_call(("POST", _endpoint(pipeline_id, "stop")), {})

    async def a_stop_pipeline(self, pipeline_id: str) -> None:
        """The same, in an event loop."""
        with _translated(f"pipeline {pipeline_id}"):
            await self._a_do_api_call(("POST", _endpoint(pipeline_id, "stop")), {})

    def job_run_problem(self, run_id: int) -> str | None:
        """Return why a job's run has ended badly; ``None`` where it has not."""
        with _translated(f"run {run_id}"):
            state = self.get_run_state(run_id)
        bad = state.life_cycle_state in ("INTERNAL_ERROR", "SKIPPED") or (state.is_terminal and not state.is_successful)
        return f"run {run_id} is {state.result_state or state.life_cycle_state}: {state.state_message}" if bad else None

    def job_run_life_cycle(self, run_id: int) -> tuple[str, bool]:
        """Return a job run's life cycle state, and whether it is over: no task of it runs, and none will."""
        with _translated(f"run {run_id}"):
            state = self.get_run_state(run_id)
        return state.life_cycle_state, state.is_terminal

    # ---- SQL --------------------------------------------------------------------------------------------------------

    def send_statement(self, statement: str, warehouse_id: str, *, once: bool = False) -> str:
        """Send a statement to a SQL warehouse; return its id.

        :param once: never send it a second time: for statements that must not run twice.
        """
        body = {"statement": statement, "warehouse_id": warehouse_id, "wait_timeout": "0s"}
        if once:
            answer = self._post_once(_STATEMENTS, body, f"warehouse {warehouse_id}")
            return str(answer["statement_id"])
        with _translated(f"warehouse {warehouse_id}"):
            return self.post_sql_statement(body)

    def get_statement(self, statement_id: str) -> dict[str, Any]:
        """Return a statement: ``status``, and ``result`` where it has ended."""
        with _translated(f"statement {statement_id}"):
            return _answer(self._do_api_call(("GET", f"{_STATEMENTS}/{statement_id}")))

    def get_statement_chunk(self, statement_id: str, index: int) -> dict[str, Any]:
        """Return a further part of a statement's rows."""
        with _translated(f"statement {statement_id}"):
            return _answer(self._do_api_call(("GET", f"{_STATEMENTS}/{statement_id}/result/chunks/{index}")))

    def cancel_statement(self, statement_id: str) -> None:
        """Cancel a statement; may be repeated."""
        with _translated(f"statement {statement_id}"):
            self._do_api_call(("POST", f"{_STATEMENTS}/{statement_id}/cancel"), {})

    # -----------------------------------------------------------------------------------------------------------------

    def _pages(self, pipeline_id: str, path: str, key: str, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        query = dict(asked)
        while True:
            page = self.ask(pipeline_id, f"{path}?{urlencode(query)}")
            yield from page.get(key) or ()
            token = page.get("next_page_token")
            if not token:
                return
            # The token stands for all the rest: beside it only the size of a page may be given.
            query = {"max_results": asked["max_results"], "page_token": token}

    def _post_once(self, endpoint: str, body: dict[str, Any], subject: str) -> dict[str, Any]:
        kept, limit = self.retry_args, self.retry_limit
        self.retry_args, self.retry_limit = {**kept, "stop": stop_after_attempt(1)}, 1
        try:
            with _translated(subject):
                return _answer(self._do_api_call(("POST", endpoint), body))
        except (RefusedError, WorkspaceForbiddenError):
            raise
        except WorkspaceError as e:
            about = {"status": e.status, "error_code": e.error_code, "retry_after": e.retry_after, "hint": e.hint}
            raise UnknownStartError(e.message, **about) from e  # type: ignore[arg-type]
        finally:
            self.retry_args, self.retry_limit = kept, limit


def _endpoint(pipeline_id: str, path: str) -> str:
    return f"{_PIPELINES}/{quote(pipeline_id, safe='')}{f'/{path}' if path else ''}"


def _answer(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise WorkspaceError(f"the workspace's answer is no JSON object: {str(answer)[:100]!r}")
    return answer


def _retry_after(attempt: Any) -> float:
    """Seconds that the workspace asks to wait, by the answer that was refused.

    :param attempt: a future of tenacity, or nothing.
    """
    error = attempt.exception() if attempt else None
    headers = getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None) or {}
    return retry_after_of(headers)


@contextmanager
def _translated(subject: str) -> Iterator[None]:
    """Say in this package's errors what went wrong with a request."""
    try:
        yield
    except CkptError:
        raise
    except AirflowNotFoundException as e:
        raise RefusedError(
            f"{subject}: {e}", hint="create the connection: airflow connections add … --conn-type databricks"
        ) from e
    except DatabricksApiError as e:
        raise _by_status(subject, e) from e
    except AirflowException as e:
        asked = _retry_after(getattr(e.__cause__, "last_attempt", None))
        hint = "the workspace was out of reach or out of order: try again"
        raise WorkspaceError(f"{subject}: {e}", retry_after=asked, hint=hint) from e
    except (
        OSError,
        ValueError,
    ) as e:  # requests' and aiohttp's errors are OSErrors; a body that is no JSON a ValueError
        raise WorkspaceError(f"{subject}: {type(e).__name__}: {e}", hint="try again") from e
    except Exception as e:
        if type(e).__module__.partition(".")[0] != "aiohttp":
            raise
        raise WorkspaceError(f"{subject}: {type(e).__name__}: {e}", hint="try again") from e


def _by_status(subject: str, error: DatabricksApiError) -> CkptError:
    match = _STATUS.search(str(error))
    status = int(getattr(error, "http_status_code", None) or (match["status"] if match else 0))
    return error_of(subject, status, match["body"] if match else str(error))
