"""Operators on several streams: what they read of their fields, and a rewind with its undo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.operators.chain import ChainRewindOperator, ChainUndoOperator
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams
from tests.support.chained_streams import IDS, Chained
from tests.support.operator_runs import Run

#: Bronze's input files are not real.
ACCEPTED = "source_loss, source_failure"


@pytest.fixture
def chained(tmp_path: Path) -> Chained:
    return Chained(tmp_path)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Chained:
    return Chained(tmp_path_factory.mktemp("untouched"))


def operator(chained: Chained, **fields: Any) -> ChainRewindOperator:
    given = {"streams": [stream.argument for stream in chained.streams()], "to": "to_batch", "value": "4", **fields}
    how = {"query_is_stopped": True, "quiet_for": 0.0, "accept": ACCEPTED, **given}
    return ChainRewindOperator(task_id="rewind", **how)


def test_there_again_and_back(chained: Chained, run: Run) -> None:
    """As the form gives its fields; a retry of a task that had finished changes nothing."""
    shown = operator(chained).execute(run("plan"))
    assert shown["outcome"] is None
    assert "| silver | `" in shown["markdown"]
    how = {"mode": "apply", "batches": str(shown["plan"]["batches"]), "fingerprint": shown["plan"]["fingerprint"]}
    streams = str([stream.argument for stream in chained.streams()])
    done = operator(chained, streams=streams, **how).execute(run("rewind"))
    assert type(done["outcome"]["streams"]) is list  # a tuple is something else in XCom
    assert [stream["name"] for stream in done["outcome"]["streams"]] == ["gold", "silver", "bronze"]
    again = operator(chained, **how).execute(run("rewind", try_number=2))
    assert again["outcome"] == {**done["outcome"], "streams": [], "seconds": 0.0, "already_done": True}
    lines = "\n".join(stream.argument for stream in chained.streams())
    undo = ChainUndoOperator(task_id="undo", streams=lines, query_is_stopped=True, quiet_for=0.0)
    undone = undo.execute(run("undo"))
    assert undone["plan_id"] == done["plan"]["plan_id"]
    assert [chained.content()[name] for name in IDS] == [sorted([*range(7), *range(7)])] * 3
    # Another run rewinds them again: the undo that is cleared is not about that.
    operator(chained, mode="apply").execute(run("rewind", run_id="manual__2"))
    after = chained.content()
    cleared = undo.execute(run("undo", try_number=2))
    assert (cleared["plan_id"], cleared["already_done"], chained.content()) == (undone["plan_id"], True, after)


def test_a_cleared_task_does_not_speak_of_streams_that_it_never_touched(chained: Chained, run: Run) -> None:
    """Its DAG was corrected to name one more, and the task was cleared."""
    accepted = f"{ACCEPTED}, sink_unknown"
    two = [stream.argument for stream in chained.streams("bronze", "silver")]
    operator(chained, streams=two, mode="apply", accept=accepted).execute(run("rewind"))
    before = chained.content()
    with pytest.raises(AirflowFailException, match=r"on bronze, silver, .*; now bronze, silver, gold are named"):
        operator(chained, mode="apply", accept=accepted).execute(run("rewind", try_number=2))
    assert chained.content() == before
    again = operator(chained, streams=two, mode="apply", accept=accepted).execute(run("rewind", try_number=2))
    assert again["outcome"]["already_done"] is True


def test_settings_of_a_library_are_texts(untouched: Chained, run: Run) -> None:
    with pytest.raises(AirflowFailException, match="sink_options has 30 for timeout"):
        operator(untouched, sink_options='{"timeout": 30}').execute(run("rewind"))


@pytest.mark.parametrize("is_declared", [False, True])
def test_the_declared_table_of_a_source_is_judged(untouched: Chained, run: Run, is_declared: bool) -> None:
    sources = {"delta": {"tables": {"0": str(untouched.table("bronze"))}}} if is_declared else {}
    silver = Stream(
        "silver",
        checkpoint=untouched.checkpoint("silver").uri,
        sinks=[str(untouched.table("silver"))],
        application="shop",
        sources=sources,
    )
    fields = {"streams": (), "application": "shop", "streams_file": Streams([silver])}
    shown = operator(untouched, **fields).execute(run("rewind"))
    assert ("no table was given for source 0" in shown["markdown"]) is not is_declared


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"streams": ""}, "no stream is named"),
        ({"streams": "bronze"}, "'bronze' is not NAME=CHECKPOINT,sink=SINK"),
        ({"to": "to_current"}, "to is 'to_current'"),
        ({"begins_with": "brass"}, "begins_with has 'brass'"),
        ({"batches": "nonsense("}, r"batches is 'nonsense\('"),
        ({"batches": {"bronze": 4}}, "the plan that was shown goes to the batches"),
        ({"fingerprint": "0" * 16, "mode": "apply"}, "is not the one that would be carried out now"),
    ],
)
def test_what_does_not_fit(untouched: Chained, run: Run, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(AirflowFailException, match=why):
        operator(untouched, **fields).execute(run("rewind"))
