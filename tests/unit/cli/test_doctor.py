"""``doctor``: what it prints, its exit codes, its documented keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import new_repository, run
from tests.support.json_documents import PAGE, documented, named_in
from tests.support.one_checkpoint import NEWEST

NOW = ("--query-is-stopped", "--quiet-for", "0")


def lose_a_changelog(checkpoint: Path) -> None:
    (checkpoint / "state/0/0" / f"{NEWEST}.changelog").unlink()


def codes(document: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in document["findings"]]


def test_nothing_found(checkpoint: Path) -> None:
    finished = run("doctor", checkpoint)
    assert (finished.code, finished.err) == (0, "")
    assert finished.out.splitlines()[1].strip() == "no known damage"


def test_findings_for_people(checkpoint: Path) -> None:
    lose_a_changelog(checkpoint)
    finished = run("doctor", checkpoint)
    assert finished.code == 1
    text = " ".join(finished.out.split())
    assert f"error STATE-INCOMPLETE what state version {NEWEST + 1} in state/0/0 cannot be put together" in text
    assert "Spark Fails in the next batch: `CANNOT_LOAD_STATE_STORE.*`" in text
    assert "remedy Fetch the file from a backup" in text


def test_documented_keys(checkpoint: Path, tmp_path: Path) -> None:
    lose_a_changelog(checkpoint)
    keys = documented("doctor")
    found = run("doctor", checkpoint, "--json")
    assert (found.code, found.document["repair"]) == (1, None)
    assert list(found.document) == list(keys)
    assert found.document["uri"] == str(checkpoint)
    assert codes(found.document) == ["STATE-INCOMPLETE"]
    named_in(keys["findings"], found.document["findings"])
    planned = run("doctor", checkpoint, "--repair", "--json")
    assert planned.code == 1
    named_in(keys["repair"], [planned.document["repair"]])
    assert planned.document["repair"]["outcome"] is None
    done = run("doctor", checkpoint, "--repair", "--apply", "--accept", "sink_unknown", *NOW, "--json")
    assert (done.code, done.err) == (0, "")
    outcome = done.document["repair"]["outcome"]
    text = re.search(r"^`repair\.outcome` is (.+?)\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert text
    named_in(text[1], [outcome])
    assert (outcome["batch_id"], outcome["replayed"], outcome["fetched"]) == (NEWEST - 2, 2, 0)
    again = run("doctor", checkpoint, "--repair", "--apply", *NOW, "--json")
    assert (again.code, again.document["findings"], again.document["repair"]["already_done"]) == (0, [], True)


def test_a_plan_changes_nothing_and_says_so(checkpoint: Path) -> None:
    lose_a_changelog(checkpoint)
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    finished = run("doctor", checkpoint, "--repair")
    assert finished.code == 1
    assert "Repair, plan " in finished.out
    assert "Add --apply to apply it" in finished.out
    assert {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()} == before


def test_repaired_from_a_backup(checkpoint: Path, tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "repository")
    assert run("backup", checkpoint, repository).code == 0
    lose_a_changelog(checkpoint)
    finished = run("doctor", checkpoint, "--repair", "--repository", repository, "--apply", *NOW)
    assert finished.code == 0, finished.err
    assert f"start the query: it continues after batch {NEWEST}" in " ".join(finished.out.split())
    assert run("doctor", checkpoint).code == 0
    assert run("inspect", checkpoint).code == 0


def test_after_a_repair_whose_sink_was_not_asked_the_next_step_is_to_ask_it(checkpoint: Path) -> None:
    lose_a_changelog(checkpoint)
    finished = run("doctor", checkpoint, "--repair", "--apply", *NOW, "--accept", "sink_unknown")
    assert finished.code == 0, finished.err
    told = " ".join(finished.out.split())
    assert "next before you start the query, see what the sink does: airflow-ckpt rewind" in told
    assert "start the query: it continues" not in told


def test_what_cannot_be_repaired(checkpoint: Path) -> None:
    (checkpoint / "metadata").unlink()
    planned = run("doctor", checkpoint, "--repair", "--json")
    assert (planned.code, planned.document["repair"]["repairable"]) == (1, False)
    refused = run("doctor", checkpoint, "--repair", "--apply")
    assert refused.code == 1
    assert "cannot be repaired" in refused.err
    assert "--query-id" in refused.err


@pytest.mark.parametrize("flag", [("--apply",), ("--query-id", "x"), ("--repository", "x")])
def test_what_belongs_to_a_repair(flag: tuple[str, ...], checkpoint: Path) -> None:
    finished = run("doctor", checkpoint, *flag)
    assert finished.code == 2
    assert f"{flag[0]} is for a repair" in finished.err


def test_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("y")
    finished = run("doctor", tmp_path)
    assert finished.code == 1
    assert "is not a checkpoint" in finished.err
    assert run("doctor", tmp_path / "x").code in (1, 3)
