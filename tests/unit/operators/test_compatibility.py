"""CompatibilityOperator: the comparison as a task, and what makes it fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.query_shape import read_query_shape
from airflow_ckpt_provider.operators.compatibility import CompatibilityOperator
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def described(checkpoint: Path, tmp_path: Path) -> Callable[..., str]:
    """Write a description of the code that wrote the checkpoint, with some of it changed."""
    opened = Checkpoint.at(open_place(str(checkpoint)))
    newest = opened.progress().newest
    assert newest
    found = QueryDescription(
        "o:build", "4.0.0", "", "update", 1, ("Window 1 minute",), read_query_shape(opened.tree(), newest)
    )

    def describe(name: str = "d.json", **changes: Any) -> str:
        (tmp_path / name).write_text(json.dumps(replace(found, **changes).to_json()))
        return str(tmp_path / name)

    return describe


def operator(checkpoint: Path, description: str, **fields: Any) -> CompatibilityOperator:
    return CompatibilityOperator(task_id="c", checkpoint=str(checkpoint), description=description, **fields)


def test_safe(checkpoint: Path, described: Callable[..., str], run: Run):
    result = operator(checkpoint, described(), old_description=described()).execute(run())
    assert json.loads(json.dumps(result)) == result
    assert (result["verdict"], result["changes"]) == ("SAFE", [])
    assert result["markdown"].startswith("### Compatibility: **SAFE**")


def test_what_spark_refuses_fails_for_good(checkpoint: Path, described: Callable[..., str], run: Run):
    context = run()
    with pytest.raises(AirflowFailException, match=r"WILL_FAIL: o:build on .*STATE-FORMAT"):
        operator(checkpoint, described(state_format=2)).execute(context)
    assert context["pushed"]["report"]["verdict"] == "WILL_FAIL"
    result = operator(checkpoint, described(state_format=2), fail_on="None").execute(run())
    assert result["verdict"] == "WILL_FAIL"


def test_what_is_unknown_fails_where_asked_for(checkpoint: Path, described: Callable[..., str], run: Run):
    old, new = described("old.json"), described("new.json", output_mode="complete")
    assert operator(checkpoint, new, old_description=old).execute(run())["verdict"] == "UNKNOWN"
    with pytest.raises(AirflowFailException, match="OUTPUT-MODE"):
        operator(checkpoint, new, old_description=old, fail_on="unknown").execute(run())


def test_bad_input(checkpoint: Path, described: Callable[..., str], tmp_path: Path, run: Run):
    with pytest.raises(AirflowFailException, match="does not exist"):
        operator(checkpoint, str(tmp_path / "none.json")).execute(run())
    with pytest.raises(AirflowFailException, match="fail_on is 'always'"):
        operator(checkpoint, described(), fail_on="always").execute(run())
