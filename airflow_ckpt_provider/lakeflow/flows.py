"""The flows of a pipeline: those that its event log and specification name, and how near a given name comes.

The interface has no list of flows. ``origin.flow_name`` of the events is the name that ``reset_checkpoint_selection`` wants;
whether bare or ``catalog.schema.name`` depends on the pipeline, so a name is never rewritten, only compared.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from airflow_ckpt_provider.lakeflow.updates import spec_of
from airflow_ckpt_provider.lakeflow.workspace import Workspace

#: Events that are read for names: about two updates of a large pipeline.
LOOKED_AT = 2000
#: Kind of a flow, as its ``flow_definition`` event says -> whether it is a stream.
_STREAMING = {"APPEND": True, "CHANGE": True, "SNAPSHOT_CHANGE": True, "COMPLETE": False}
_DEFINED = re.compile(r"\bdefined as [`'\"]?([A-Z_]+)")
_STATUS = re.compile(
    r"\b(?:is|has)\s+(QUEUED|PLANNING|STARTING|RUNNING|COMPLETED|FAILED|SKIPPED|STOPPED|IDLE|EXCLUDED)\b"
)
_TABLE_KINDS = {"STREAMING_TABLE": True, "MATERIALIZED_VIEW": False, "VIEW": False}


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow.

    :param name: its name, as the events have it.
    :param dataset: the table that it writes to, as the events have it; empty where they do not say.
    :param streaming: whether it is a stream; ``None`` if it is not reported.
    :param sources: what it reads, where it is reported.
    :param kind: what its definition calls it: ``APPEND``, ``CHANGE``, …; empty if it is not reported.
    """

    name: str
    dataset: str = ""
    streaming: bool | None = None
    sources: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True)
class KnownFlows:
    """What is known of a pipeline's flows.

    :param flows: by name.
    :param complete: whether the whole event log was read; otherwise there may be more.
    """

    flows: Mapping[str, Flow] = field(default_factory=dict)
    complete: bool = True

    def near(self, name: str) -> tuple[str, ...]:
        """Known names that may be meant: those of the same bare name, or else those spelled alike."""
        known = list(self.flows)
        same = tuple(each for each in known if bare(each) == bare(name) and each != name)
        if same:
            return same
        by_bare = {bare(each): each for each in known}
        return tuple(by_bare[each] for each in difflib.get_close_matches(bare(name), by_bare, n=3, cutoff=0.6))

    @property
    def datasets(self) -> tuple[str, ...]:
        """The tables that the flows write to."""
        return tuple(dict.fromkeys(flow.dataset for flow in self.flows.values() if flow.dataset))


def bare(name: str) -> str:
    """Return the last part of ``catalog.schema.name``, without quotes, in lower case as the catalog compares it."""
    return name.rpartition(".")[2].strip("`").lower()


def qualified(name: str, spec: Mapping[str, Any]) -> str:
    """Return a table's full name, by the catalog and schema that the specification defaults to."""
    parts = [part.strip("`") for part in name.split(".")]
    schema = spec.get("schema") or spec.get("target")
    if len(parts) == 1 and schema:
        parts.insert(0, str(schema))
    if len(parts) == 2 and spec.get("catalog"):
        parts.insert(0, str(spec["catalog"]))
    return ".".join(parts)


def known_flows(workspace: Workspace, pipeline: Mapping[str, Any], *, looked_at: int = LOOKED_AT) -> KnownFlows:
    """Read the names of a pipeline's flows.

    :param pipeline: the answer to GET of the pipeline.
    :param looked_at: how many events are read, newest first.
    """
    events = list(islice(workspace.iter_events(str(pipeline["pipeline_id"]), max_results=250), looked_at + 1))
    flows = {flow.name: flow for flow in _of_spec(spec_of(pipeline))}
    for event in reversed(events[:looked_at]):
        origin = event.get("origin") or {}
        if name := origin.get("flow_name"):
            before = flows.get(name, Flow(name))
            kind, sources = _definition(event)
            flows[name] = Flow(
                name,
                str(origin.get("dataset_name") or before.dataset),
                _STREAMING.get(kind, before.streaming),
                sources or before.sources,
                kind or before.kind,
            )
    return KnownFlows(flows, complete=len(events) <= looked_at)


def flow_status(event: Mapping[str, Any]) -> str:
    """Return the status that a ``flow_progress`` event shows, by its details or its message; empty where it has none."""
    if event.get("event_type") != "flow_progress":
        return ""
    details = event.get("details")
    told = ((details.get("flow_progress") or {}) if isinstance(details, dict) else {}).get("status")
    said = _STATUS.search(str(event.get("message") or ""))
    return str(told or (said[1] if said else ""))


def is_streaming_table(table: Mapping[str, Any] | None) -> bool | None:
    """Whether a table is fed by streams, by its kind in Unity Catalog; ``None`` where that says nothing."""
    return _TABLE_KINDS.get(str((table or {}).get("table_type")))


def forbids_reset(table: Mapping[str, Any] | None) -> bool:
    """Whether a table has ``pipelines.reset.allowed=false``."""
    properties = (table or {}).get("properties") or {}
    return str(properties.get("pipelines.reset.allowed", "")).lower() == "false"


def _definition(event: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Kind and sources by a ``flow_definition`` event: by its details, which newer interfaces send, or its message."""
    if event.get("event_type") != "flow_definition":
        return "", ()
    details = (
        ((event.get("details") or {}).get("flow_definition") or {}) if isinstance(event.get("details"), dict) else {}
    )
    inputs = tuple(str(each.get("name")) for each in details.get("input_datasets") or () if each.get("name"))
    said = _DEFINED.search(str(event.get("message") or ""))
    return str(details.get("flow_type") or (said[1] if said else "")), inputs


def _of_spec(spec: Mapping[str, Any]) -> Iterable[Flow]:
    """The flows of a managed ingestion: one a table, which the specification lists."""
    for each in (spec.get("ingestion_definition") or {}).get("objects") or ():
        table = each.get("table") or {}
        name = table.get("destination_table") or table.get("source_table")
        if name:
            where = [table.get("destination_catalog"), table.get("destination_schema"), name]
            yield Flow(str(name), ".".join(str(part) for part in where if part), True)
