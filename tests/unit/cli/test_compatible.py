"""``airflow-ckpt compatible``: for people, as JSON, as Markdown, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.query_shape import read_query_shape
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.compatibility.description import QueryDescription
from tests.support.command_line import run
from tests.support.json_documents import documented, named_in


@pytest.fixture
def description(checkpoint: Path, tmp_path: Path) -> Path:
    """A description of the code that wrote the checkpoint."""
    opened = Checkpoint.at(open_location(str(checkpoint)))
    newest = opened.progress().newest
    assert newest
    found = QueryDescription(
        "o:build", "4.0.0", "", "update", 1, ("Window 1 minute",), read_query_shape(opened.tree(), newest)
    )
    place = tmp_path / "d.json"
    place.write_text(json.dumps(found.to_json()))
    return place


def changed(description: Path, **conf: str) -> Path:
    value = json.loads(description.read_text())
    value["shape"]["conf"].update(conf)
    value["shape"]["operators"][0]["name"] = "dedupe"
    place = description.with_name("new.json")
    place.write_text(json.dumps(value))
    return place


def test_nothing_has_changed(checkpoint: Path, description: Path):
    finished = run("compatible", checkpoint, description, "--old", description)
    assert finished.code == 0
    assert finished.out.splitlines()[0].startswith("SAFE  o:build on")
    assert "nothing has changed" in finished.out
    alone = run("compatible", checkpoint, description)
    assert (alone.code, alone.out.split()[0]) == (1, "UNKNOWN")
    assert "PLAN-UNKNOWN" in alone.out


def test_json(checkpoint: Path, description: Path):
    new = changed(description, **{"spark.sql.shuffle.partitions": "9"})
    finished = run("compatible", checkpoint, new, "--old", description, "--json")
    assert finished.code == 1
    document = finished.document
    keys = documented("compatible")
    assert document.keys() == keys.keys()
    named_in(keys["changes"], document["changes"])
    assert [c["code"] for c in document["changes"]] == ["OPERATORS-CHANGED", "PARTITIONS-IGNORED"]
    assert document["verdict"] == "WILL_FAIL"


def test_for_people_and_as_markdown(checkpoint: Path, description: Path):
    new = changed(description)
    shown = run("compatible", checkpoint, new)
    assert (shown.code, "OPERATORS-CHANGED" in shown.out) == (1, True)
    markdown = run("compatible", checkpoint, new, "--markdown")
    assert markdown.out.startswith("### Compatibility: **WILL_FAIL**")


def test_bad_input(checkpoint: Path, description: Path, tmp_path: Path):
    missing = run("compatible", checkpoint, tmp_path / "nowhere.json")
    assert (missing.code, "does not exist" in missing.err) == (1, True)
    (tmp_path / "x.json").write_text("{}")
    assert "is not the description of a query" in run("compatible", checkpoint, tmp_path / "x.json").err
    assert run("compatible", tmp_path / "none", description).code == 1
    assert run("compatible", checkpoint).code == 2
