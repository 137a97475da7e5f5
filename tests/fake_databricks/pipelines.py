"""A pipeline: what is deployed, its updates one after another, and what they do to its tables."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal

from tests.fake_databricks import clock, rewinding
from tests.fake_databricks.errors import ApiError, FlowFailed, invalid
from tests.fake_databricks.eventlog import EventLog
from tests.fake_databricks.flows import Dataset, Flow
from tests.fake_databricks.pace import Pace
from tests.fake_databricks.sources import Row, Source
from tests.fake_databricks.tables import Tables
from tests.fake_databricks.updates import PIPELINE_STATES, Update, check

#: What happens to a reset of a flow that the pipeline does not have. The vendor does not say which it is.
UnknownFlows = Literal["fail", "reject", "ignore"]


class Pipeline:
    """A pipeline of the workspace.

    :param sources: of the whole workspace, by name.
    :param configuration: of the spec; where the code takes its starting positions from.
    :param update_retries: how many RETRY_ON_FAILURE updates follow a failed one in production mode.
    :param follow_up_after: steps between a FAILED update and the one that follows it.
    :param unknown_flows: what becomes of a reset whose flow there is not.
    :param qualified_names: whether events call flows and datasets by all three parts of their names.
    :param failed_state: state of the pipeline after an update has failed.
    """

    def __init__(
        self,
        tables: Tables,
        clock: clock.Clock,
        sources: dict[str, Source],
        name: str,
        *,
        pipeline_id: str = "",
        catalog: str = "main",
        schema: str = "sales",
        datasets: Iterable[Dataset] = (),
        flows: Iterable[Flow] = (),
        configuration: dict[str, str] | None = None,
        continuous: bool = False,
        development: bool = False,
        channel: str = "CURRENT",
        pace: Pace | None = None,
        update_retries: int = 0,
        follow_up_after: int = 0,
        unknown_flows: UnknownFlows = "fail",
        qualified_names: bool = False,
        failed_state: str = "FAILED",
    ) -> None:
        self.pipeline_id = pipeline_id or str(uuid.uuid4())
        self.name = name
        self.spec: dict[str, Any] = {
            "id": self.pipeline_id,
            "name": name,
            "catalog": catalog,
            "schema": schema,
            "channel": channel,
            "continuous": continuous,
            "development": development,
            "serverless": True,
            "configuration": dict(configuration or {}),
            "libraries": [{"notebook": {"path": f"/pipelines/{name}"}}],
        }
        self.datasets = {dataset.name: dataset for dataset in datasets}
        self.flows = {flow.name: flow for flow in flows}
        self.tables, self.clock, self.sources = tables, clock, sources
        self.pace = pace or Pace.by_look()
        self.update_retries, self.follow_up_after = update_retries, follow_up_after
        self.unknown_flows, self.qualified_names, self.failed_state = unknown_flows, qualified_names, failed_state
        self.deleted = False
        self.updates: list[Update] = []  # oldest first
        self.events = EventLog(clock, self.pipeline_id, name)
        self.points = rewinding.Points()
        self._follow_up: tuple[int, Update] | None = None
        #: What a test wants done in the middle of an update, by state.
        self.when: dict[str, Callable[[Pipeline], None]] = {}
        for dataset in self.datasets.values():
            if not tables.exists(self.table(dataset.name)):
                tables.create(self.table(dataset.name), dataset.columns)
            tables.properties[self.table(dataset.name)] = dataset.properties

    # What is deployed

    @property
    def configuration(self) -> dict[str, str]:
        """Configuration of the spec; a test deploys another by writing into it."""
        found: dict[str, str] = self.spec["configuration"]
        return found

    def table(self, dataset: str) -> str:
        """Full name of a dataset's table."""
        return f"{self.spec['catalog']}.{self.spec['schema']}.{dataset}"

    def bare(self, name: str) -> str:
        """Name of a flow or a dataset without catalog and schema, if these are the pipeline's own."""
        prefix = [self.spec["catalog"], self.spec["schema"]]
        parts = name.replace("`", "").split(".")
        return parts[-1] if parts[:-1] in ([], prefix, prefix[1:]) else name

    def shown(self, name: str) -> str:
        """How events call a flow or a dataset."""
        return self.table(name) if self.qualified_names else name

    def flow(self, name: str) -> Flow:
        return self.flows[self.bare(name)]

    # Updates

    @property
    def active(self) -> Update | None:
        """The update that is under way."""
        return next((update for update in self.updates if update.active), None)

    @property
    def state(self) -> str:
        if self.deleted:
            return "DELETED"
        if active := self.active:
            return PIPELINE_STATES[active.state]
        if self.updates and self.updates[-1].state == "FAILED":
            return "RECOVERING" if self._follow_up else self.failed_state
        return "IDLE"

    @property
    def healthy(self) -> bool:
        ended = [update.state for update in self.updates if not update.active]
        return not ended or ended[-1] != "FAILED"

    def start(self, body: dict[str, Any], cause: str = "API_CALL") -> Update:
        """Start an update.

        :raises ApiError: 409 while another one is active, 400 for a body that makes no sense.
        """
        if active := self.active:
            message = f"An active update {active.update_id} already exists for pipeline '{self.pipeline_id}'."
            raise ApiError(409, "CONFLICT", message)
        check(body)
        if self.unknown_flows == "reject":
            for name in body.get("reset_checkpoint_selection") or []:
                if self.bare(name) not in self.flows:
                    raise invalid(f"Flow '{name}' does not exist in pipeline '{self.pipeline_id}'.")
        self._follow_up = None
        return self._begin(Update(self.pipeline_id, cause, body, self.clock.now(), bool(self.spec["continuous"])))

    def _begin(self, update: Update) -> Update:
        self.updates.append(update)
        self.pace.begin()
        self.events.note(
            "create_update",
            f"Update {update.update_id[:6]} started by {update.cause}.",
            of={"update_id": update.update_id},
        )
        return update

    def stop(self) -> None:
        """Stop what is active; without that nothing happens."""
        self._follow_up = None
        if (active := self.active) and active.state != "STOPPING":
            self._enter(active, "STOPPING")

    def move(self, look: bool = False) -> None:
        """Go the steps that are due."""
        for _ in range(min(self.pace.steps(look), 100)):
            self.step()

    def advance(self, to: str = "", limit: int = 100) -> None:
        """Go on until the active update is in a state; without one, until none is active."""
        for _ in range(limit):
            active = self.active
            if (active.state == to) if active and to else (active is None and self._follow_up is None):
                return
            if active and active.continuous and active.state == "RUNNING" and not to:
                return
            self.step()

    def step(self) -> None:
        """The active update goes one state further; a continuous one that runs reads what is new."""
        if self._follow_up and self.active is None:
            wait, update = self._follow_up
            self._follow_up = (wait - 1, update) if wait else None
            if not wait:
                self._begin(update)
            return
        active = self.active
        if active is None:
            return
        try:
            if active.state == "RUNNING" and active.continuous and not active.body.get("rewind_spec"):
                self._run(active)
            else:
                self._enter(active, active.next_state())
        except FlowFailed as error:
            self._fail(active, error)

    def _enter(self, update: Update, state: str) -> None:
        if state == "RESETTING":
            self._reset(update)
        elif state == "SETTING_UP_TABLES":
            self._define(update)
        elif state == "RUNNING" and not update.body.get("validate_only"):
            self._note_state(update, state)
            self._run(update)
        if state != "RUNNING" or update.body.get("validate_only"):
            self._note_state(update, state)
        if state == "COMPLETED" and not update.body.get("validate_only"):
            self.points.take(self)

    def _note_state(self, update: Update, state: str) -> None:
        update.state = state
        self.events.note(
            "update_progress",
            f"Update {update.update_id[:6]} is {state}.",
            level="ERROR" if state == "FAILED" else "INFO",
            of={"update_id": update.update_id},
        )
        if action := self.when.pop(state, None):
            action(self)

    def _fail(self, update: Update, error: FlowFailed) -> None:
        update.state = "FAILED"
        message = f"Update {update.update_id[:6]} is FAILED."
        self.events.note("update_progress", message, level="ERROR", error=error, of={"update_id": update.update_id})
        if update.body.get("validate_only") or update.body.get("rewind_spec"):
            return
        schema = error.error_class.startswith("UNKNOWN_FIELD_EXCEPTION")
        development = self.spec["development"] or update.body.get("development")
        tried = 0
        for earlier in reversed(self.updates):
            if earlier.cause != "RETRY_ON_FAILURE":
                break
            tried += 1
        if schema or (not development and tried < self.update_retries):
            body = dict(update.body)
            if update.reset_done:
                # What was reset is reset: a follow-up only runs.
                for key in ("full_refresh", "full_refresh_selection", "reset_checkpoint_selection"):
                    body.pop(key, None)
            cause = "SCHEMA_CHANGE" if schema else "RETRY_ON_FAILURE"
            follow_up = Update(self.pipeline_id, cause, body, self.clock.now(), update.continuous)
            self._follow_up = (self.follow_up_after, follow_up)
            if not self.follow_up_after:
                self._follow_up = None
                self._begin(follow_up)

    # What updates do

    def _reset(self, update: Update) -> None:
        if update.body.get("rewind_spec"):
            self.points.rewind(self, update)
            update.reset_done = True
            return
        wiped = {self.bare(name) for name in update.names("full_refresh_selection")}
        if update.body.get("full_refresh"):
            wiped = set(self.datasets)
        named = update.names("reset_checkpoint_selection")
        unknown = [name for name in named if self.bare(name) not in self.flows]
        if unknown and self.unknown_flows == "fail":
            message = f"Flow '{unknown[0]}' does not exist in the pipeline."
            raise FlowFailed("", message, "com.databricks.pipelines.common.errors.DLTSparkException")
        for name in wiped & set(self.datasets):
            dataset = self.datasets[name]
            if dataset.properties.get("pipelines.reset.allowed", "true").lower() == "false":
                message = f"Table '{self.shown(name)}' is not fully refreshed: pipelines.reset.allowed is false."
                self.events.note(
                    "update_advice",
                    message,
                    level="WARN",
                    of={"update_id": update.update_id, "dataset_name": self.shown(name)},
                )
                continue
            self.tables.replace(self.table(name), [], "TRUNCATE")
            for flow in self.flows.values():
                if flow.dataset == name:
                    flow.forget()
        for flow in (self.flows[self.bare(name)] for name in named if name not in unknown):
            if flow.kind == "materialized":
                message = f"Flow '{self.shown(flow.name)}' has no checkpoint: it is no streaming flow."
                self.events.note("flow_progress", message, level="WARN", of=self._of(update, flow))
                continue
            flow.forget()
            self.events.note("flow_progress", f"Flow '{self.shown(flow.name)}' is RESET.", of=self._of(update, flow))
        update.reset_done = True

    def _define(self, update: Update) -> None:
        for dataset in self.datasets:
            self.events.note(
                "dataset_definition",
                f"Dataset `{self.shown(dataset)}` defined as {self.table_type(dataset)}.",
                of={"update_id": update.update_id, "dataset_name": self.shown(dataset)},
            )
        for flow in self.flows.values():
            append = "CHANGE" if self.datasets[flow.dataset].keys else "APPEND"
            what = {"materialized": "COMPLETE", "once": "APPEND once"}.get(flow.kind, append)
            message = f"Flow '{self.shown(flow.name)}' defined as {what}."
            self.events.note("flow_definition", message, of=self._of(update, flow))
        for flow in self.flows.values():
            if flow.analysis_error:
                self._note_failure(update, flow, flow.analysis_error)
                raise flow.analysis_error

    def table_type(self, dataset: str) -> str:
        """What Unity Catalog calls the table."""
        streams = any(flow.dataset == dataset and flow.kind != "materialized" for flow in self.flows.values())
        return "STREAMING_TABLE" if streams else "MATERIALIZED_VIEW"

    def _of(self, update: Update, flow: Flow) -> dict[str, str]:
        names = {"flow_name": self.shown(flow.name), "dataset_name": self.shown(flow.dataset)}
        return {"update_id": update.update_id, **names}

    def _note_failure(self, update: Update, flow: Flow, error: FlowFailed) -> None:
        message = f"Flow '{self.shown(flow.name)}' has FAILED fatally. {str(error).splitlines()[0]}"
        self.events.note("flow_progress", message, level="ERROR", error=error, of=self._of(update, flow))

    def _run(self, update: Update) -> None:
        if update.body.get("rewind_spec"):
            return
        chosen = {
            self.bare(name) for key in ("refresh_selection", "full_refresh_selection") for name in update.names(key)
        }
        settings = {**self.configuration, **(update.body.get("parameters") or {})}
        failed: FlowFailed | None = None
        for flow in self.flows.values():
            if chosen and flow.dataset not in chosen:
                continue
            name = self.shown(flow.name)
            try:
                rows = flow.read([self._source(source) for source in flow.sources], settings)
            except FlowFailed as error:
                self._note_failure(update, flow, error)
                failed = failed or error
                continue
            self._write(flow, rows)
            if not update.continuous or rows:
                message = f"Completed a streaming update of '{name}'." if rows else f"Flow '{name}' is COMPLETED."
                self.events.note("flow_progress", message, of=self._of(update, flow))
        if failed:
            raise failed

    def _source(self, name: str) -> Source:
        if name not in self.datasets:
            return self.sources[name]
        # A dataset that another flow of the pipeline reads: each row of its table, at a position of its own.
        source = self.sources.setdefault(self.table(name), Source(self.table(name), "delta"))
        rows = [tuple(sorted(row.items(), key=str)) for row in self.tables.rows(self.table(name))]
        known = [tuple(sorted(row.values.items(), key=str)) for row in source.kept()]
        for row in rows:
            if row in known:
                known.remove(row)
            else:
                source.rows.append(Row(source.end, self.clock.now(), dict(row)))
        return source

    def _write(self, flow: Flow, rows: list[dict[str, Any]]) -> None:
        dataset = self.datasets[flow.dataset]
        table = self.table(dataset.name)
        if flow.kind == "materialized":
            self.tables.replace(table, rows, "CREATE OR REPLACE TABLE AS SELECT")
        elif dataset.keys:
            self.tables.upsert(table, rows, dataset.keys, dataset.sequence_by)
        else:
            self.tables.append(table, rows)

    # Answers

    def brief(self) -> dict[str, Any]:
        """``PipelineStateInfo``."""
        return {
            "pipeline_id": self.pipeline_id,
            "name": self.name,
            "state": self.state,
            "health": "HEALTHY" if self.healthy else "UNHEALTHY",
            "creator_user_name": "etl@example.com",
            "run_as_user_name": "etl@example.com",
        } | self._latest()

    def answered_spec(self) -> dict[str, Any]:
        """``PipelineSpec``: what is empty is left out."""
        return {key: value for key, value in self.spec.items() if value not in ({}, [], None)}

    def info(self) -> dict[str, Any]:
        """``GetPipelineResponse``."""
        more: dict[str, Any] = {"spec": self.answered_spec(), "last_modified": clock.millis(self.clock.now())}
        if not self.healthy and self.active is None:
            more["cause"] = f"Update {self.updates[-1].update_id} has failed."
        return self.brief() | more

    def _latest(self) -> dict[str, Any]:
        return {"latest_updates": [update.brief() for update in self.updates[:-6:-1]]} if self.updates else {}
