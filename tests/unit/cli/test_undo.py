"""``undo`` and ``status``: for a change by whatever verb, without naming the repository where it lies beside the checkpoint."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import Finished, run
from tests.support.json_documents import documented
from tests.support.one_checkpoint import NEWEST

STOPPED = ("--query-is-stopped", "--quiet-for", 0)


def contents(place: Path) -> dict[str, bytes]:
    """The visible files of a place."""
    found = {file.relative_to(place).as_posix(): file.read_bytes() for file in place.rglob("*") if file.is_file()}
    return {path: content for path, content in found.items() if "/." not in f"/{path}"}


def done(finished: Finished) -> Finished:
    assert finished.code == 0, finished.err
    return finished


def status(checkpoint: Path, *more: object, code: int = 0) -> dict[str, object]:
    finished = run("status", checkpoint, *more, "--json")
    assert finished.code == code, finished.err
    assert finished.document.keys() == documented("status").keys()
    return finished.document


def break_it(checkpoint: Path) -> None:
    (checkpoint / "state/0/0" / f"{NEWEST}.changelog").unlink()


@pytest.mark.parametrize("verb", ["reset", "repair", "restore"])
def test_status_and_undo_of_any_change(verb: str, checkpoint: Path, repository: Path) -> None:
    if verb == "repair":
        break_it(checkpoint)
    before = contents(checkpoint)
    assert status(checkpoint)["kind"] == "untouched"
    change = {
        "reset": ("reset", checkpoint, "--from-scratch", "--sink", "kafka", "--accept", "sink_duplicates"),
        "repair": ("doctor", checkpoint, "--repair", "--accept", "sink_unknown"),
        "restore": ("restore", repository, "latest", checkpoint, "--replace"),
    }[verb]
    if verb == "restore":
        (checkpoint / "commits" / str(NEWEST)).unlink()
        before = contents(checkpoint)
    where = ("--repository", repository) if verb == "restore" else ()
    done(run(*change, "--apply", *STOPPED))
    assert contents(checkpoint) != before
    found = status(checkpoint, *where)
    assert found["kind"] == "changed"
    assert re.search(
        rf" was changed by {verb} \w+ at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC, and ", str(found["message"])
    )
    undone = done(run("undo", checkpoint, *where, *STOPPED, "--json")).document
    assert undone.keys() == documented("undo").keys()
    assert (undone["kind"], undone["plan_id"], undone["already_done"]) == (verb, found["plan_id"], False)
    assert contents(checkpoint) == before
    assert run("undo", checkpoint, *where, *STOPPED, "--json").document["already_done"]
    assert status(checkpoint, *where)["kind"] == "untouched"


def test_status_finds_a_change_beside_the_checkpoint_also_if_a_repository_is_given(
    checkpoint: Path, repository: Path
) -> None:
    """A rewind or reset without ``--repository`` is kept beside the checkpoint; the repository of the backups has none of it."""
    assert f"No change of {checkpoint} that is not undone is recorded in {repository}." in str(
        status(checkpoint, "--repository", repository)["message"]
    )
    done(run("reset", checkpoint, "--new-query-id", "--sink", "kafka", "--apply", *STOPPED))
    assert status(checkpoint, "--repository", repository) == status(checkpoint)
    assert status(checkpoint)["kind"] == "changed"
    refused = run("undo", checkpoint, "--repository", repository, *STOPPED)
    assert refused.code == 1
    assert "leave --repository out" in refused.err


def test_status_reports_the_newest_change_wherever_it_is_kept(checkpoint: Path, repository: Path) -> None:
    (checkpoint / "commits" / str(NEWEST)).unlink()
    done(run("restore", repository, "latest", checkpoint, "--replace", "--apply", *STOPPED))
    restored = status(checkpoint, "--repository", repository)
    done(run("reset", checkpoint, "--new-query-id", "--sink", "kafka", "--apply", *STOPPED))
    found = status(checkpoint, "--repository", repository)
    assert (found, found["plan_id"] != restored["plan_id"]) == (status(checkpoint), True)
    done(run("undo", checkpoint, *STOPPED))
    assert status(checkpoint, "--repository", repository)["plan_id"] == restored["plan_id"]


def test_status_says_that_what_is_beside_the_checkpoint_cannot_be_read(checkpoint: Path, repository: Path) -> None:
    beside = checkpoint.with_name(f"{checkpoint.name}.rewinds")
    beside.mkdir()
    (beside / "repository.json").write_text("{")
    message = str(status(checkpoint, "--repository", repository)["message"])
    assert f"recorded in {repository}." in message
    assert "Whether a change is kept beside it is not known: " in message
    assert run("status", checkpoint).code != 0


def test_undo_of_the_reset_of_a_flow(checkpoint: Path, tmp_path: Path) -> None:
    live = tmp_path / "pipeline/_checkpoints/spark_catalog/default/sales/ingest/0"
    shutil.copytree(checkpoint, live)
    reset = ("flows", tmp_path / "pipeline", "--reset", "ingest", "--keep-position", "--sink", "kafka")
    done(run(*reset, "--apply", *STOPPED))
    assert contents(live.parent / "1")
    undone = done(run("undo", live.parent / "1", *STOPPED, "--json")).document
    assert undone["kind"] == "flow-reset"
    assert not contents(live.parent / "1")
    assert contents(live) == contents(checkpoint)


def test_an_undo_needs_proof_too(checkpoint: Path) -> None:
    done(run("reset", checkpoint, "--new-query-id", "--sink", "kafka", "--apply", *STOPPED))
    refused = run("undo", checkpoint, "--quiet-for", 0, "--wait-at-most", 0)
    assert refused.code == 1
    assert "it is not known that its query is stopped" in refused.err


@pytest.mark.parametrize(("says", "code"), [(0, 0), (1, 1), (2, 1)])
def test_a_command_that_knows(says: int, code: int, checkpoint: Path) -> None:
    reset = ("reset", checkpoint, "--new-query-id", "--sink", "kafka", "--apply")
    finished = run(*reset, "--stopped-if", f"sh -c 'exit {says}'", "--quiet-for", 0)
    assert finished.code == code, finished.err


def test_a_seal_is_a_finding_of_status(checkpoint: Path) -> None:
    sealed = run("seal", checkpoint, "--reason", "moving house", "--json").document
    found = status(checkpoint, code=1)
    assert (found["kind"], found["plan_id"]) == ("sealed_by_another", sealed["plan_id"])
    assert f"--plan {sealed['plan_id']}" in run("status", checkpoint).out


def test_nothing_to_take_back(checkpoint: Path) -> None:
    finished = run("undo", checkpoint, *STOPPED)
    assert finished.code == 1
    assert "there is no repository with changes of" in finished.err
    assert "--repository" in finished.err
