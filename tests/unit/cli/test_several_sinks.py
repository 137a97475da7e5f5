"""``--sink`` given many times."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.command_line import run
from tests.support.delta_batches import batches_in, delta_table


@pytest.fixture
def place(tmp_path: Path) -> Path:
    plant(open_location(str(tmp_path / "orders")), stream(6))
    delta_table(tmp_path / "first", range(4, 7))
    delta_table(tmp_path / "second", range(4, 7), app_id="copies")
    return tmp_path


def sinks(place: Path) -> list[str]:
    ids = ["--txn-app-id", "", "--txn-app-id", "copies"]
    return ["--sink", str(place / "first"), "--sink", str(place / "second"), *ids]


def batches(place: Path, name: str) -> list[int]:
    return sorted(set(batches_in(open_location(str(place / name)))))


def test_rewind_and_undo(place: Path) -> None:
    orders = str(place / "orders")
    back = ["rewind", orders, "--to-batch", "4", *sinks(place), "--sink-policy", "rollback", "--query-is-stopped"]
    accept = ["--accept", "source_loss", "--accept", "source_failure"]  # its input files are not real
    shown = run(*back)
    assert shown.code == 0, shown.err
    assert "Is this all of it?" in " ".join(shown.out.split())
    done = run(*back, *accept, "--apply", "--json")
    assert done.code == 0, done.err
    assert [sink["table_version"] for sink in done.document["sinks"]] == [3, 3]
    assert (batches(place, "first"), batches(place, "second")) == ([4], [4])
    undone = run("undo", orders, *sinks(place), "--query-is-stopped")
    assert undone.code == 0, undone.err
    assert undone.out.count("version 4") == 2
    assert (batches(place, "first"), batches(place, "second")) == ([4, 5, 6], [4, 5, 6])


def test_the_list_has_the_versions_of_each_table(place: Path) -> None:
    found = run("rewind", place / "orders", "--list", *sinks(place), "--json").document["targets"]
    assert found[-1]["table_versions"] == {str(place / "first"): 2, str(place / "second"): 2}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--txn-app-id", "a"], "--txn-app-id is given 3 times for 2 sinks"),
        (["--sink-policy", "rollback"] * 3, "3 sink policies are given for 2 sinks"),
    ],
)
def test_what_does_not_fit(place: Path, more: list[str], why: str) -> None:
    found = run("rewind", place / "orders", "--to-batch", "4", *sinks(place), *more)
    assert found.code in (1, 2)
    assert why in found.err


def test_an_empty_id_alone(place: Path) -> None:
    one = ["--sink", str(place / "first"), "--txn-app-id", ""]
    found = run("rewind", place / "orders", "--to-batch", "4", *one)
    assert (found.code, "--txn-app-id is empty" in found.err) == (2, True)


def test_a_verb_that_takes_one(place: Path) -> None:
    found = run("flows", place, "--reset", "f", *sinks(place))
    assert found.code == 2
    assert "2 sinks are given, and this verb takes one" in found.err
