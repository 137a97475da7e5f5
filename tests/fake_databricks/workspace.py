"""The workspace: everything in it, and how a test scripts it."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from tests.fake_databricks.clock import Clock, parse
from tests.fake_databricks.errors import ApiError, invalid, not_found
from tests.fake_databricks.faults import Fault
from tests.fake_databricks.flows import values
from tests.fake_databricks.jobs import Job, Jobs
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.server import Request, serving
from tests.fake_databricks.source_code import compiled
from tests.fake_databricks.sources import Kind, Source
from tests.fake_databricks.statements import Statements
from tests.fake_databricks.tables import Tables, Version

TOKEN = "dapi-test"
WAREHOUSE = "warehouse-1"


class FakeWorkspace:
    """A Databricks workspace on a port of this machine, as long as its block lasts.

    :param start: time of its clock at the start.
    :param port: 0 takes one that is free.
    :param address: where it listens; by default only this machine reaches it.
    :param token: the one that is good.
    """

    def __init__(
        self, start: datetime | None = None, port: int = 0, *, address: str = "127.0.0.1", token: str = TOKEN
    ) -> None:
        self._asked_port = port
        self._address = address
        self.port = 0
        self.lock = threading.RLock()
        self.clock = Clock(start)
        self.tables = Tables(self.clock)
        self.sources: dict[str, Source] = {}
        self.tables.files = lambda path: [values(self.sources[path], row) for row in self.sources[path].kept()]
        self.pipelines: dict[str, Pipeline] = {}
        self.tables.of_pipeline = lambda name: any(
            name == pipeline.table(dataset) for pipeline in self.pipelines.values() for dataset in pipeline.datasets
        )
        self.tables.outside = self._outside
        self.tables.file_state = self._file_state
        self.tables.event_log = self._event_log
        self.jobs = Jobs(self.clock, self.find, lambda: self.url)
        self.statements = Statements(self.tables, {WAREHOUSE})
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        #: Source files that were imported, by path.
        self.files: dict[str, str] = {}
        #: Tokens that are good.
        self.tokens = {token}
        #: Tokens that were good once.
        self.expired: set[str] = set()
        #: Pipelines that the caller may read and not run.
        self.read_only: set[str] = set()
        #: Tables that the caller may not see.
        self.hidden: set[str] = set()
        #: Pipelines that the caller may run and not edit.
        self.run_only: set[str] = set()
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        self.port = self._exit.enter_context(serving(self, self._asked_port, self._address))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()
        self.tables.close()

    # Reaching it

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connection(self, token: str = TOKEN) -> dict[str, Any]:
        """An Airflow connection to it, as a dictionary."""
        return {
            "conn_type": "databricks",
            "host": "127.0.0.1",
            "port": self.port,
            "schema": "http",
            "password": token,
        }

    def airflow_connection(self, token: str = TOKEN) -> str:
        """Value of an ``AIRFLOW_CONN_<ID>`` variable."""
        return json.dumps(self.connection(token))

    # What is in it

    def add_source(self, name: str, kind: Kind = "files") -> Source:
        """A source that flows can read."""
        self.sources[name] = Source(name, kind)
        return self.sources[name]

    def add_pipeline(self, name: str, **settings: Any) -> Pipeline:
        """A pipeline; the settings are those of :class:`Pipeline`."""
        with self.lock:
            pipeline = Pipeline(self.tables, self.clock, self.sources, name, **settings)
            self.pipelines[pipeline.pipeline_id] = pipeline
            return pipeline

    def _outside(self, table: str) -> tuple[str, list[Version]] | None:
        """The history of a Delta table that a flow reads and no pipeline writes: a version a row, and version 0 before all."""
        outside = (s for s in self.sources.values() if s.kind == "delta" and not s.of_table)
        source = next((s for s in outside if table in (s.name, f"main.{s.name}")), None)
        if source is None or self.tables.of_pipeline(table):
            return None
        kept = [Version(row.position, row.timestamp, "WRITE", [], {"mode": "Append"}, 1) for row in source.kept()]
        return source.table_id, kept

    def _file_state(self, table: str) -> list[dict[str, Any]]:
        found = []
        for pipeline in self.pipelines.values():
            for flow in pipeline.flows.values():
                for name, start in flow.checkpoint.next.items() if flow.checkpoint else ():
                    source = self.sources.get(name)
                    if pipeline.table(flow.dataset) != table or source is None or source.kind != "files":
                        continue
                    for row in source.rows:
                        if row.position < start.position and row.position not in start.skipped:
                            about = {"size": 1, "create_time": row.timestamp, "commit_time": self.clock.now()}
                            path = f"{name}/{row.position}.json"
                            found.append(
                                {"path": path, **about, "source_id": "0", "flow_name": pipeline.shown_flow(flow)}
                            )
        return found

    def _event_log(self, pipeline_id: str) -> list[dict[str, Any]]:
        return [
            {
                "timestamp": parse(event["timestamp"]),
                "event_type": event["event_type"],
                "origin": {name: event["origin"].get(name) for name in ("flow_name", "update_id")},
                "details": json.dumps(event.get("details")),
            }
            for event in self.find(pipeline_id).events.table
        ]

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST /api/2.0/pipelines``, of source files that were imported.

        :raises ApiError: 409, the name is taken; 400, the source code cannot be read.
        """
        name = str(body.get("name") or "")
        taken = any(each.name == name and not each.deleted for each in self.pipelines.values())
        if taken and not body.get("allow_duplicate_names"):
            raise ApiError(409, "RESOURCE_CONFLICT", f"The pipeline name '{name}' is already used by another pipeline.")
        paths = [str((library.get("file") or {}).get("path") or "") for library in body.get("libraries") or ()]
        if missing := [path for path in paths if path not in self.files]:
            raise invalid(f"Source file {missing[0]} does not exist.")
        code = ";".join(self.files[path] for path in paths)
        columns = {table: self.tables.types(table) for table in self.tables.history}
        datasets, flows = compiled(code, columns)
        about = {
            key: body[key] for key in ("catalog", "schema", "configuration", "continuous", "development") if key in body
        }
        pipeline = self.add_pipeline(name, datasets=datasets, flows=flows, **about)
        pipeline.spec["libraries"] = list(body.get("libraries") or ())
        return {"pipeline_id": pipeline.pipeline_id}

    def add_job(self, name: str, pipeline: Pipeline) -> Job:
        """A job that runs a pipeline."""
        return self.jobs.add(name, pipeline.pipeline_id)

    def find(self, pipeline_id: str) -> Pipeline:
        """A pipeline that is there.

        :raises ApiError: 404.
        """
        pipeline = self.pipelines.get(pipeline_id)
        if pipeline is None or pipeline.deleted:
            raise not_found("pipeline", pipeline_id)
        return pipeline

    # What goes wrong

    def fault(self, method: str = "", path: str = "", **what: Any) -> Fault:
        """Let something happen to requests; the settings are those of :class:`Fault`."""
        with self.lock:
            self.faults.append(Fault(method, path, **what))
            return self.faults[-1]

    def authorize(self, request: Request) -> None:
        """Let in who has a token.

        :raises ApiError: 401 without a token, 403 with one that is not good, or for what its owner may not do.
        """
        if request.path.startswith("/.well-known/"):
            return
        kind, _, token = request.authorization.partition(" ")
        if kind != "Bearer" or not token:
            message = "Credential was not sent or was of an unsupported type for this API."
            raise ApiError(401, "UNAUTHENTICATED", message)
        if token in self.expired:
            raise ApiError(401, "UNAUTHENTICATED", "Access token has expired.")
        if token not in self.tokens:
            raise ApiError(403, "PERMISSION_DENIED", "Invalid access token.")
        for pipeline_id in self.run_only:
            if request.method in ("PUT", "DELETE") and f"/pipelines/{pipeline_id}" in request.path:
                message = f"User does not have CAN MANAGE permission on pipeline {pipeline_id}."
                raise ApiError(403, "PERMISSION_DENIED", message)
        for pipeline_id in self.read_only:
            if request.method != "GET" and f"/pipelines/{pipeline_id}" in request.path:
                message = f"User does not have CAN RUN permission on pipeline {pipeline_id}."
                raise ApiError(403, "PERMISSION_DENIED", message)

    # What was seen

    def asked(self, method: str = "", path: str = "") -> list[Request]:
        """The requests with this method whose path ends like this."""
        with self.lock:
            return [r for r in self.requests if method in ("", r.method) and r.path.endswith(path)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table, after everything that is due."""
        with self.lock:
            for pipeline in self.pipelines.values():
                pipeline.move()
            return self.tables.rows(table)
