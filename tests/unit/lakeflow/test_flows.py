"""Names of flows: what the event log and the specification know, and how near a given name comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_ckpt_provider.lakeflow.flows import Flow, KnownFlows, is_streaming_table, known_flows, qualified


class Workspace:
    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = events

    def iter_events(self, pipeline_id: str, **_: Any) -> Iterator[dict[str, Any]]:
        yield from reversed(self.events)


def event(flow: str, message: str = "", kind: str = "flow_definition", **more: Any) -> dict[str, Any]:
    return {"event_type": kind, "message": message, "origin": {"flow_name": flow, "dataset_name": "t"}, **more}


def known(*events: dict[str, Any], spec: dict[str, Any] | None = None, looked_at: int = 100) -> KnownFlows:
    return known_flows(Workspace(*events), {"pipeline_id": "p", "spec": spec or {}}, looked_at=looked_at)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "streaming", "kind"),
    [
        ("Flow 'f' defined as APPEND.", True, "APPEND"),
        ("Flow 'f' defined as `CHANGE`.", True, "CHANGE"),
        ("Flow 'f' defined as COMPLETE.", False, "COMPLETE"),
        ("Flow 'f' is RUNNING.", None, ""),
    ],
)
def test_kinds(message: str, streaming: bool | None, kind: str) -> None:
    found = known(event("f", message), event("f", "Flow 'f' is RUNNING.", "flow_progress"))
    assert found.flows == {"f": Flow("f", "t", streaming, kind=kind)}


def test_details_come_first() -> None:
    details = {"flow_definition": {"flow_type": "COMPLETE", "input_datasets": [{"name": "a"}, {"name": "b"}]}}
    found = known(event("f", "defined as APPEND", details=details), event("f", kind="flow_progress"))
    assert found.flows["f"] == Flow("f", "t", False, ("a", "b"), "COMPLETE")


def test_specification_of_an_ingestion() -> None:
    table = {"source_table": "s", "destination_table": "d", "destination_catalog": "c", "destination_schema": "x"}
    spec = {"ingestion_definition": {"objects": [{"table": table}, {"schema": {"source_schema": "y"}}]}}
    assert known(spec=spec).flows == {"d": Flow("d", "c.x.d", True)}


def test_near_names() -> None:
    found = KnownFlows({name: Flow(name) for name in ("main.s.orders", "main.s.orders_late", "main.s.customers")})
    assert found.near("orders") == ("main.s.orders",)
    assert found.near("other.x.Orders") == ("main.s.orders",)
    assert found.near("ordres") == ("main.s.orders",)
    assert found.near("weather") == ()


def test_a_long_event_log_is_not_read_to_its_end() -> None:
    events = [event(f"f{n}") for n in range(10)]
    assert known(*events, looked_at=10).complete
    found = known(*events, looked_at=9)
    assert not found.complete
    assert "f0" not in found.flows


@pytest.mark.parametrize(
    ("name", "spec", "full"),
    [
        ("t", {"catalog": "c", "schema": "s"}, "c.s.t"),
        ("t", {"target": "s"}, "s.t"),
        ("s2.t", {"catalog": "c", "schema": "s"}, "c.s2.t"),
        ("`c2`.`s2`.`t`", {"catalog": "c", "schema": "s"}, "c2.s2.t"),
        ("t", {}, "t"),
    ],
)
def test_full_names(name: str, spec: dict[str, Any], full: str) -> None:
    assert qualified(name, spec) == full


def test_kind_of_a_table() -> None:
    kinds = ("STREAMING_TABLE", "MATERIALIZED_VIEW", "MANAGED", "")
    assert [is_streaming_table({"table_type": kind}) for kind in kinds] == [True, False, None, None]
    assert is_streaming_table(None) is None
