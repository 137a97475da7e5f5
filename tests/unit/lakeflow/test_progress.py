"""Progress and history as Spark 4.0.0 and Delta 4.4.0 write them, taken from a run of both: a copy of a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset
from airflow_ckpt_provider.lakeflow.evidence import DELTA, FlowEvidence, SourceEvidence
from airflow_ckpt_provider.lakeflow.finding import find_positions
from airflow_ckpt_provider.lakeflow.found_position import Terms
from airflow_ckpt_provider.lakeflow.histories import history_of
from airflow_ckpt_provider.lakeflow.progress import newest_progress, progress_of

QUERY, TABLE = "6c160459-6648-47e4-930d-5c211bcdd493", "bdb2c38b-2420-43ad-bacc-fea0b9067043"
END = {"sourceVersion": 1, "reservoirId": TABLE, "reservoirVersion": 2, "index": -1, "isStartingVersion": False}
PROGRESS: dict[str, Any] = {
    "id": QUERY,
    "timestamp": "2026-11-23T04:04:21.973Z",
    "batchId": 0,
    "numInputRows": 5,
    "stateOperators": [],
    "sources": [
        {
            "description": "DeltaSource[file:/lake/src]",
            "startOffset": None,
            "endOffset": END,
            "latestOffset": None,
            "numInputRows": 5,
        }
    ],
}
WRITTEN = {
    "version": "0",
    "timestamp": "2026-11-23T04:05:28.000Z",
    "operation": "STREAMING UPDATE",
    "operationParameters": json.dumps({"epochId": "0", "outputMode": "Append", "queryId": QUERY}),
    "operationMetrics": json.dumps({"numOutputRows": "5", "numRemovedFiles": "0", "numAddedFiles": "1"}),
}


def event(shape: Any, **more: Any) -> dict[str, Any]:
    origin = {"flow_name": "main.s.f", "update_id": "u"}
    about = {"event_type": "stream_progress", "timestamp": "2026-11-23T04:05:30.000Z", "origin": origin}
    return {**about, "details": {"stream_progress": shape}, **more}


@pytest.mark.parametrize(
    "found",
    [
        event({"progress": PROGRESS}),
        event({"progress_json": json.dumps(PROGRESS)}),
        event({"progress_json": json.dumps(json.dumps(PROGRESS))}),
        event(
            None, details=json.dumps({"stream_progress": {"progress": PROGRESS}}), origin='{"flow_name": "main.s.f"}'
        ),
    ],
    ids=["object", "text", "text in text", "row of a table"],
)
def test_shapes(found: dict[str, Any]) -> None:
    progress = progress_of(found)
    assert progress is not None
    assert (progress.query_id, progress.batch_id, progress.operators) == (QUERY, 0, ())
    end = progress.sources[0].end
    assert isinstance(end, DeltaOffset)
    assert (end.table_id, end.table_version, end.index) == (TABLE, 2, -1)
    assert newest_progress([found], "f") == newest_progress([found], "main.s.f") == progress
    assert newest_progress([found], "other.s.f") is None


@pytest.mark.parametrize(
    "source",
    [
        {"endOffsetTruncated": True, "numInputRows": 5},
        {"endOffset": '{"reservoirId": "x', "numInputRows": 5},
        {"numInputRows": 5},
    ],
    ids=["cut by name", "cut text", "missing"],
)
def test_an_end_that_is_cut_is_none(source: dict[str, Any]) -> None:
    progress = progress_of(event({"progress": {**PROGRESS, "sources": [source]}}))
    assert progress is not None
    assert progress.sources[0].end is None


def test_an_idle_trigger_has_the_number_of_the_next_batch() -> None:
    idle = {"description": "DeltaSource[file:/lake/src]", "startOffset": END, "endOffset": END, "numInputRows": 0}
    progress = progress_of(event({"progress": {**PROGRESS, "batchId": 1, "sources": [idle]}}))
    assert progress is not None
    assert progress.batch_id == 0


@pytest.mark.parametrize(
    "other", [{"event_type": "flow_progress"}, {"details": "no json"}, {"timestamp": "soon"}, {"origin": {}}], ids=str
)
def test_what_is_no_progress(other: dict[str, Any]) -> None:
    assert progress_of(event({"progress": PROGRESS}, **other)) is None


def test_the_position_is_exact() -> None:
    versions = [
        {"version": str(n), "timestamp": f"2026-11-23T04:0{n}:00Z", "operation": "WRITE", "operationParameters": "{}"}
        for n in range(3)
    ]
    source = SourceEvidence("lake.src", DELTA, history_of(versions, [{"id": TABLE}]))
    about = {"progress": progress_of(event({"progress": PROGRESS})), "history": history_of([WRITTEN])}
    (found,) = find_positions(FlowEvidence("f", "main.s.t", "APPEND", (source,), **about), Terms())
    assert (found.options, found.verdict.value, found.again) == ({"startingVersion": "2"}, "SAFE", {})
    later = {**WRITTEN, "version": "1", "operationParameters": json.dumps({"epochId": "1", "queryId": QUERY})}
    more = FlowEvidence("f", "main.s.t", "APPEND", (source,), **{**about, "history": history_of([WRITTEN, later])})
    (found,) = find_positions(more, Terms())
    assert (found.verdict.value, found.again) == ("WILL_DUPLICATE", {"versions": 1})
