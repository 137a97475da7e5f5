"""``upgrade`` from a shell: where one stands, and the end of one whose run is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.fence import fence
from airflow_ckpt_provider.upgrade.record import begin_upgrade
from tests.support.command_line import run
from tests.support.json_documents import documented


def answer(*argv: object, code: int = 0) -> dict[str, Any]:
    finished = run(*argv, "--json")
    assert finished.code == code, finished.err
    document: dict[str, Any] = json.loads(finished.out)
    return document


@pytest.fixture
def half_way(repository: Path, checkpoint: Path) -> Path:
    """Sealed, and then its run was deleted."""
    kept = Repository.open(open_location(str(repository)))
    fence(Checkpoint.at(open_location(str(checkpoint))), kept, begin_upgrade(kept, "orders", "dag/run 1"))
    return repository


def test_where_it_stands(half_way: Path, checkpoint: Path) -> None:
    found = answer("upgrade", half_way, "--checkpoint", checkpoint)
    assert found.keys() == documented("upgrade").keys()
    assert ([e["event"] for e in found["events"]], found["open"]) == (["begun", "sealed"], True)
    assert found["outcome"]["kind"] == "half_way"
    shown = run("upgrade", half_way, "--checkpoint", checkpoint).out
    assert "Upgrade of orders, under way: dag/run 1" in shown
    assert found["outcome"]["commands"][0].startswith("airflow-ckpt unseal ")


def test_the_end_of_one_whose_run_is_gone(half_way: Path, checkpoint: Path) -> None:
    kept = Repository.open(open_location(str(half_way)))
    with pytest.raises(RefusedError, match="is being upgraded by dag/run 1") as refused:
        begin_upgrade(kept, "orders", "dag/run 2")
    assert "upgrade" in (refused.value.hint or "")
    assert run("upgrade", half_way, "--end").code == 2
    assert not answer("upgrade", half_way, "--end", "--reason", "its run was deleted")["open"]
    assert begin_upgrade(kept, "orders", "dag/run 2").upgrade_id == "dag/run 2"


def test_none(repository: Path) -> None:
    assert answer("upgrade", repository, "--name", "orders") == {"name": "orders", "upgrade": None}


def test_the_only_stream_is_chosen_as_by_other_verbs(repository: Path, half_way: Path, checkpoint: Path) -> None:
    assert answer("upgrade", repository)["name"] == "orders"
    run("backup", checkpoint, repository, "--name", "clicks")
    assert answer("upgrade", repository)["name"] == "orders", "only that one was upgraded"
    begin_upgrade(Repository.open(open_location(str(repository))), "clicks", "dag/run 3")
    refused = run("upgrade", repository)
    assert (refused.code, refused.err) == (
        1,
        f"error: {repository} holds upgrades of 2 streams: clicks, orders\nHINT: name the stream (name / --name)\n",
    )


def test_none_of_the_only_stream(repository: Path, checkpoint: Path, tmp_path: Path) -> None:
    assert answer("upgrade", repository) == {"name": "orders", "upgrade": None}
    run("backup", checkpoint, repository, "--name", "clicks")
    for verb in (("upgrade",), ("restore", "latest", tmp_path / "new")):
        refused = run(verb[0], repository, *verb[1:])
        assert (refused.code, refused.err.splitlines()[0]) == (
            1,
            f"error: {repository} holds backups of 2 streams: clicks, orders",
        )
    assert run("upgrade", run("init", tmp_path / "empty", "--json").document["repository"]).code == 1
