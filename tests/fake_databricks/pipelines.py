"""A pipeline: what is deployed, its updates one after another, and what they do to its tables."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal

from tests.fake_databricks import clock, rewinding
from tests.fake_databricks.clock import millis
from tests.fake_databricks.errors import ApiError, FlowFailed, invalid
from tests.fake_databricks.eventlog import EventLog
from tests.fake_databricks.flows import Dataset, Flow, Settings
from tests.fake_databricks.pace import Pace
from tests.fake_databricks.sources import Row, Source
from tests.fake_databricks.tables import Tables
from tests.fake_databricks.updates import PIPELINE_STATES, Update, check

_NO_FLOW = "Reset checkpoint selection should not contain flow {}, which does not exist in the graph."
#: What happens to a reset of a flow that the pipeline does not have. The vendor does not say which it is.
UnknownFlows = Literal["fail", "reject", "ignore"]


class Pipeline:
    """A pipeline of the workspace.

    :param sources: of the whole workspace, by name.
    :param configuration: of the spec; Python and SQL read it.
    :param parameters: defaults, beside the spec; only SQL reads them.
    :param update_retries: how many RETRY_ON_FAILURE updates follow a failed one in production mode.
    :param follow_up_after: steps between a FAILED update and the one that follows it.
    :param unknown_flows: what becomes of a reset whose flow there is not.
    :param qualified_names: whether events call flows and datasets by all three parts of their names: all, none (older pipelines),
        or ``None``: all but the flows whose code names them.
    :param reset_without_refresh: what becomes of a reset of a flow whose table is in no selection, while others are.
    :param serverless: otherwise it runs on clusters of its own, which the specification names.
    :param failed_state: state of the pipeline after an update has failed.
    :param progress_as_text: whether ``stream_progress`` has its progress as ``progress_json``, a text.
    :param history_names_batches: whether the history of the tables names the query and the batch that wrote a version.
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
        parameters: dict[str, str] | None = None,
        continuous: bool = False,
        development: bool = False,
        serverless: bool = True,
        channel: str = "CURRENT",
        pace: Pace | None = None,
        update_retries: int = 0,
        follow_up_after: int = 0,
        unknown_flows: UnknownFlows = "fail",
        qualified_names: bool | None = None,
        reset_without_refresh: Literal["fail", "ignore"] = "fail",
        failed_state: str = "FAILED",
        progress_as_text: bool = False,
        history_names_batches: bool = True,
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
            **({"serverless": True} if serverless else {"clusters": [{"label": "default", "num_workers": 2}]}),
            "configuration": dict(configuration or {}),
            "libraries": [{"notebook": {"path": f"/pipelines/{name}"}}],
        }
        self.datasets = {dataset.name: dataset for dataset in datasets}
        self.flows = {flow.name: flow for flow in flows}
        self.parameters = dict(parameters or {})
        self.last_modified = millis(clock.now())
        self.tables, self.clock, self.sources = tables, clock, sources
        self.pace = pace or Pace.by_look()
        self.update_retries, self.follow_up_after = update_retries, follow_up_after
        self.unknown_flows, self.qualified_names, self.failed_state = unknown_flows, qualified_names, failed_state
        self.reset_without_refresh = reset_without_refresh
        self.progress_as_text, self.history_names_batches = progress_as_text, history_names_batches
        #: Flows whose next batches are written, and their progress never arrives in the event log.
        self.progress_lost: set[str] = set()
        self.deleted = False
        self.updates: list[Update] = []  # oldest first
        self.events = EventLog(clock, self.pipeline_id, name)
        self.points = rewinding.Points()
        #: Updates in which a flow has begun, by the flow's name.
        self._begun: dict[str, set[str]] = {}
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
        found: dict[str, str] = self.spec.setdefault("configuration", {})
        return found

    def table(self, dataset: str) -> str:
        """Full name of a dataset's table."""
        return f"{self.spec['catalog']}.{self.spec['schema']}.{dataset}"

    def bare(self, name: str) -> str:
        """Name of a flow or a dataset without catalog and schema, if these are the pipeline's own."""
        prefix = [self.spec["catalog"], self.spec["schema"]]
        parts = name.replace("`", "").split(".")
        return parts[-1] if parts[:-1] in ([], prefix, prefix[1:]) else name

    def shown(self, dataset: str) -> str:
        """How events call a dataset."""
        return dataset if self.qualified_names is False else self.table(dataset)

    def shown_flow(self, flow: Flow) -> str:
        """How events call a flow, and requests have to."""
        bare = flow.stands_as_written if self.qualified_names is None else not self.qualified_names
        return flow.name if bare else self.table(flow.name)

    def named(self, name: str) -> Flow | None:
        """The flow that a reset names: byte for byte, as events call it."""
        return next((flow for flow in self.flows.values() if self.shown_flow(flow) == name), None)

    def flow(self, name: str) -> Flow:
        return self.flows[self.bare(name)]

    def edit(self, body: dict[str, Any]) -> None:
        """Put other settings in place of all there were: a field that is left out is gone.

        :raises ApiError: 409, somebody has changed them since ``expected_last_modified``; 400 for a field of none.
        """
        expected = body.get("expected_last_modified")
        if expected is not None and int(expected) < self.last_modified:
            raise ApiError(409, "RESOURCE_CONFLICT", f"Pipeline {self.pipeline_id} was modified since {expected}.")
        if not body.get("name"):
            raise invalid("name has to be set.")
        beside = ("pipeline_id", "expected_last_modified", "parameters", "run_as", "allow_duplicate_names")
        self.spec = {"id": self.pipeline_id, **{key: value for key, value in body.items() if key not in beside}}
        for key in ("catalog", "schema", "continuous", "development", "channel"):
            self.spec.setdefault(key, None)
        self.parameters = dict(body.get("parameters") or {})
        self.name = self.spec["name"]
        self.last_modified = max(self.last_modified + 1, millis(self.clock.now()))

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
                if self.named(name) is None:
                    raise invalid(_NO_FLOW.format(name))
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
        """Continue until the active update is in a state; without one, until none is active."""
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
            if active.state == "RUNNING" and not active.body.get("validate_only"):
                self._run(active)
                if active.continuous and not active.body.get("rewind_spec"):
                    return
            self._enter(active, active.next_state())
        except FlowFailed as error:
            self._fail(active, error)

    def _enter(self, update: Update, state: str) -> None:
        if state == "INITIALIZING":
            self._see_selections(update)
        elif state == "RESETTING":
            self._reset(update)
        self._note_state(update, state)
        if state == "SETTING_UP_TABLES":
            self._define(update)
        if state == "RUNNING" and not update.body.get("validate_only") and not update.body.get("rewind_spec"):
            for flow in self.flows.values():
                self._progress(update, flow, "QUEUED" if self._chosen(update, flow) else "EXCLUDED")
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

    def _see_selections(self, update: Update) -> None:
        """Fail an update whose selections make no sense, before anything runs."""
        named = update.names("reset_checkpoint_selection")
        unknown = [name for name in named if self.named(name) is None]
        if unknown and self.unknown_flows == "fail":
            raise FlowFailed("", _NO_FLOW.format(unknown[0]), "java.lang.IllegalArgumentException")
        selected = [name for key in ("refresh_selection", "full_refresh_selection") for name in update.names(key)]
        wrong = "INVALID_REFRESH_SELECTION."
        if selected and update.continuous:
            message = "Refresh selection is not supported for continuous pipelines."
            raise FlowFailed(wrong + "CONTINUOUS_PIPELINE_NOT_SUPPORTED", message)
        if missing := [name for name in selected if self.bare(name) not in self.datasets]:
            raise FlowFailed(wrong + "TABLE_NOT_FOUND", f"Table {missing[0]} was not found.")
        for name in named:
            flow = self.named(name)
            if flow and flow.kind == "materialized":
                raise FlowFailed("", f"Flow {name} is not a streaming flow.", "java.lang.IllegalArgumentException")
            if (
                flow
                and selected
                and flow.dataset not in map(self.bare, selected)
                and self.reset_without_refresh == "fail"
            ):
                message = f"The table of flow {name} is not refreshed."
                raise FlowFailed(wrong + "RESET_CHECKPOINT_WITHOUT_REFRESH", message)
        for name in map(self.bare, update.names("full_refresh_selection")):
            if self.datasets[name].properties.get("pipelines.reset.allowed", "true").lower() == "false":
                raise FlowFailed("TABLE_NOT_RESETTABLE", f"Table {self.shown(name)} has pipelines.reset.allowed=false.")

    def _reset(self, update: Update) -> None:
        if update.body.get("rewind_spec"):
            self.points.rewind(self, update)
            update.reset_done = True
            return
        wiped = {self.bare(name) for name in update.names("full_refresh_selection")}
        if update.body.get("full_refresh"):
            wiped = set(self.datasets)
        named = update.names("reset_checkpoint_selection")
        for name in wiped & set(self.datasets):
            dataset = self.datasets[name]
            if dataset.properties.get("pipelines.reset.allowed", "true").lower() == "false":
                continue  # of a full refresh of all; one that is named has failed before
            self.tables.replace(self.table(name), [], "TRUNCATE")
            for flow in self.flows.values():
                if flow.dataset == name:
                    flow.forget()
        for flow in filter(None, map(self.named, named)):
            if self.bare(flow.dataset) not in wiped:  # a full refresh has made its checkpoint again
                flow.forget()
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
            message = f"Flow '{self.shown_flow(flow)}' defined as {what}."
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
        names = {"flow_name": self.shown_flow(flow), "dataset_name": self.shown(flow.dataset)}
        return {"update_id": update.update_id, **names}

    def _note_failure(self, update: Update, flow: Flow, error: FlowFailed) -> None:
        message = f"Flow '{self.shown_flow(flow)}' has FAILED fatally. {str(error).splitlines()[0]}"
        details = {"flow_progress": {"status": "FAILED"}}
        self.events.note(
            "flow_progress", message, level="ERROR", error=error, of=self._of(update, flow), details=details
        )

    def _run(self, update: Update) -> None:
        if update.body.get("rewind_spec"):
            return
        settings = Settings(self.configuration, {**self.parameters, **(update.body.get("parameters") or {})})
        failed: FlowFailed | None = None
        for flow in self.flows.values():
            if not self._chosen(update, flow):
                continue
            if update.update_id not in self._begun.setdefault(flow.name, set()):
                self._begun[flow.name].add(update.update_id)
                for status in ("STARTING", "RUNNING"):
                    self._progress(update, flow, status)
            try:
                rows = flow.read([self._source(source) for source in flow.sources], settings)
            except FlowFailed as error:
                self._note_failure(update, flow, error)
                failed = failed or error
                continue
            self._write(flow, rows)
            self._note_progress(update, flow)
            if not update.continuous:
                self._progress(update, flow, "COMPLETED")
        if failed:
            raise failed

    def _note_progress(self, update: Update, flow: Flow) -> None:
        """A ``stream_progress`` event of the newest batch."""
        reported, flow.reported = flow.reported, None
        if reported is None or flow.name in self.progress_lost:
            return
        progress = {**reported, "timestamp": clock.text(self.clock.now())}
        shape = {"progress_json": json.dumps(json.dumps(progress))} if self.progress_as_text else {"progress": progress}
        self.events.note(
            "stream_progress",
            f"Completed a streaming update of '{self.shown_flow(flow)}'.",
            level="METRICS",
            of=self._of(update, flow),
            details={"stream_progress": shape},
        )

    def _chosen(self, update: Update, flow: Flow) -> bool:
        """Whether an update refreshes the table of a flow."""
        names = [name for key in ("refresh_selection", "full_refresh_selection") for name in update.names(key)]
        return not names or flow.dataset in map(self.bare, names)

    def _progress(self, update: Update, flow: Flow, status: str) -> None:
        """Note a flow's status, in the event log's words."""
        verb = "has" if status == "COMPLETED" else "is"
        message = f"Flow '{self.shown_flow(flow)}' {verb} {status}."
        details = {"flow_progress": {"status": status}}
        self.events.note("flow_progress", message, of=self._of(update, flow), details=details)

    def _source(self, name: str) -> Source:
        if name not in self.datasets and name in self.sources and not self.sources[name].of_table:
            return self.sources[name]
        # A dataset that another flow of the pipeline reads, or a table: each row at the version that it came with.
        table = self.table(name) if name in self.datasets else name
        source = self.sources.setdefault(table, Source(table, "delta", of_table=True))
        source.table_id = self.tables.id_of(table)
        rows = [tuple(sorted(row.items(), key=str)) for row in self.tables.rows(table)]
        known = [tuple(sorted(row.values.items(), key=str)) for row in source.kept()]
        for row in rows:
            if row in known:
                known.remove(row)
            else:
                source.rows.append(Row(self.tables.version(table), self.clock.now(), dict(row)))
        return source

    def _write(self, flow: Flow, rows: list[dict[str, Any]]) -> None:
        dataset = self.datasets[flow.dataset]
        table = self.table(dataset.name)
        batch: dict[str, str] = {}
        if self.history_names_batches and flow.checkpoint and flow.kind != "materialized":
            batch = {"queryId": flow.checkpoint.query_id, "epochId": str(flow.checkpoint.batch)}
        if flow.kind == "materialized":
            self.tables.replace(table, rows, "CREATE OR REPLACE TABLE AS SELECT")
        elif dataset.keys:
            self.tables.upsert(table, rows, dataset.keys, dataset.sequence_by, batch)
        else:
            self.tables.append(table, rows, parameters=batch)

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
        more: dict[str, Any] = {"spec": self.answered_spec(), "last_modified": self.last_modified}
        if self.parameters:
            more["parameters"] = dict(self.parameters)
        if not self.healthy and self.active is None:
            more["cause"] = f"Update {self.updates[-1].update_id} has failed."
        return self.brief() | more

    def _latest(self) -> dict[str, Any]:
        return {"latest_updates": [update.brief() for update in self.updates[:-6:-1]]} if self.updates else {}
