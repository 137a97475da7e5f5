"""What a deployment would break, by two event logs; and whether two pipelines fail in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_ckpt_provider.advisor.reproduction import same_failure
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.lakeflow.deployment import Deployment, compare_deployment

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
    with pytest.raises(RefusedError, match="it is not known what flow f of pipeline other fails with"):
        same_failure(workspace, "prod", "other")
    with pytest.raises(RefusedError, match="no flow of test pipeline fine fails"):
        same_failure(workspace, "prod", "fine")
    with pytest.raises(RefusedError, match="pipeline fine has no error of a flow"):
        same_failure(workspace, "fine", "prod")


_WRAPPED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {} SQLSTATE: XXKST"
_LOSS = "[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost. SQLSTATE: 22000"
_OPERATORS = (
    "Streaming stateful operator name does not match with the operator in state metadata. This likely to happen when user "
    "adds/removes/changes stateful operator of existing streaming query.\nStateful operators in the metadata: []"
)
_TUTORIAL = (
    "Streaming stateful operator name does not match with the operator in state metadata.\nThis is likely to happen when a user "
    "adds/removes/changes stateful operators of existing streaming query."
)
_NAMED = f"[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] {_OPERATORS}"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (_WRAPPED.format(_LOSS), _WRAPPED.format(_NAMED), False),
        (_WRAPPED.format(_LOSS), _WRAPPED.format(_LOSS), True),
        (_WRAPPED.format(_NAMED), _OPERATORS, True),  # the tutorial prints it without its name
        (_WRAPPED.format(_NAMED), _TUTORIAL, True),  # and in words of its own
        (_OPERATORS, _OPERATORS, True),
        ("something broke", "something broke", False),  # not known is never the same
        (_WRAPPED.format("java.lang.RuntimeException: x"), _WRAPPED.format("java.lang.RuntimeException: x"), False),
        ("There are [1] sources in the checkpoint offsets and now there are [2] sources requested", "[A_B] x", False),
    ],
)
def test_failures_are_compared_by_their_innermost_cause(one: str, other: str, same: bool) -> None:
    workspace: Any = Logs(prod=[failed("f", one)], test=[failed("f", other)])
    if same:
        assert "in both pipelines" in same_failure(workspace, "prod", "test")
    else:
        with pytest.raises(RefusedError):
            same_failure(workspace, "prod", "test")


def test_a_list_of_exceptions_names_its_cause_last() -> None:
    nested = failed("f", "[STREAM_FAILED] x")
    nested["error"]["exceptions"].append({"class_name": "E", "message": _LOSS})
    workspace: Any = Logs(prod=[nested], test=[failed("f", _LOSS)])
    assert "KAFKA_DATA_LOSS.START_OFFSET_RESET" in same_failure(workspace, "prod", "test")
