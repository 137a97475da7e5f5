"""What a deployment would break, by two event logs; and whether two pipelines fail in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.lakeflow.deployment import Deployment, compare_deployment
from airflow_ckpt_provider.lakeflow.reproduction import same_failure

Event = dict[str, Any]


class Logs:
    """Event logs, newest first as the interface gives them; given oldest first."""

    def __init__(self, **logs: list[Event]) -> None:
        self.logs = logs

    def ask(self, pipeline_id: str, path: str = "") -> dict[str, Any]:
        return {"pipeline_id": pipeline_id, "spec": {"catalog": "main", "schema": pipeline_id}}

    def iter_events(self, pipeline_id: str, *, filter: str = "", max_results: int = 100) -> Iterator[Event]:
        return (e for e in reversed(self.logs[pipeline_id]) if not filter or e["level"] == "ERROR")


def flow(update: str, name: str, dataset: str = "t", kind: str = "APPEND", sources: tuple[str, ...] = ()) -> Event:
    details = {"flow_definition": {"flow_type": kind, "input_datasets": [{"name": source} for source in sources]}}
    origin = {"update_id": update, "flow_name": name, "dataset_name": dataset}
    return {"event_type": "flow_definition", "level": "INFO", "origin": origin, "details": details}


def failed(name: str | None, message: str, class_name: str = "E") -> Event:
    exceptions = [{"class_name": class_name, "message": message}]
    return {"level": "ERROR", "origin": {"flow_name": name}, "error": {"exceptions": exceptions}}


def compared(before: list[Event], after: list[Event]) -> Deployment:
    workspace: Any = Logs(prod=before, next=after)
    return compare_deployment(workspace, "prod", "next", "new")


@pytest.mark.parametrize(
    ("after", "verdict", "words", "tables"),
    [
        ([flow("new", "f")], "UNKNOWN", "whether its checkpoint survives the new code is not seen", ()),
        ([flow("new", "main.next.f", "main.next.t")], "UNKNOWN", "whether its checkpoint", ()),
        ([flow("new", "g")], "WILL_DUPLICATE", "flow f is gone, and g writes to the same table t", ("main.prod.t",)),
        ([flow("new", "g", "u")], "WILL_LOSE", "flow f is gone: t gets no more rows of it", ("main.prod.t",)),
        ([flow("new", "f", kind="COMPLETE")], "WILL_FAIL", "was a stream and becomes no stream", ("main.prod.t",)),
        ([flow("new", "f", sources=("a", "b"))], "WILL_FAIL", "read a and would read a, b", ("main.prod.t",)),
        ([flow("new", "f"), flow("new", "g")], "UNKNOWN", "flow g is new and writes to t, which has rows", ()),
        ([flow("new", "f"), flow("new", "g", "u")], "UNKNOWN", "flow g is new and makes u", ()),
    ],
)
def test_what_happens_to_a_flow(after: list[Event], verdict: str, words: str, tables: tuple[str, ...]) -> None:
    found = compared([flow("old", "f", sources=("a",))], after)
    assert (found.verdict.value, found.tables) == (verdict, tables)
    assert words in found.to_markdown()


def test_flows_of_earlier_deployments_do_not_count() -> None:
    found = compared(
        [flow("older", "gone"), flow("old", "f", kind="COMPLETE")],
        [flow("before", "other"), flow("new", "f", kind="COMPLETE")],
    )
    assert found.to_json()["reasons"] == ["SAFE: flow f has no checkpoint"]


def test_the_same_pipeline_before_and_after() -> None:
    workspace: Any = Logs(prod=[flow("old", "f"), flow("new", "g")])
    assert compare_deployment(workspace, "prod", "prod", "new").verdict.value == "WILL_DUPLICATE"


def test_an_empty_event_log_is_no_answer() -> None:
    with pytest.raises(RefusedError, match="the event log of pipeline next defines no flow"):
        compared([flow("old", "f")], [flow("another", "f")])


def test_the_same_failure() -> None:
    workspace: Any = Logs(
        prod=[failed("f", "[OLD] x"), failed("main.prod.f", "[STATE.CHANGED] y"), failed(None, "Update failed")],
        same=[failed("f", "[STATE.CHANGED] of another time")],
        other=[failed("f", "no class here", "java.lang.AssertionError")],
        fine=[],
    )
    assert same_failure(workspace, "prod", "same") == "flow f fails with STATE.CHANGED in both pipelines"
    with pytest.raises(RefusedError, match=r"flow f with java\.lang\.AssertionError"):
        same_failure(workspace, "prod", "other")
    with pytest.raises(RefusedError, match="no flow of test pipeline fine fails"):
        same_failure(workspace, "prod", "fine")
    with pytest.raises(RefusedError, match="pipeline fine has no error of a flow"):
        same_failure(workspace, "fine", "prod")
