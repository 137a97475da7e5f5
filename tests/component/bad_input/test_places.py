"""Places that overlap and targets in use: the error says what to do, and nothing is changed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import new_repository, run
from tests.support.fingerprints import NOTES, fingerprint
from tests.support.one_checkpoint import NEWEST, unpack
from tests.support.refused_commands import WORK, refused, says, some_files, unchanged


def moved(place: Path, tmp_path: Path) -> Path:
    """Move a repository to a place in which `init` makes none."""
    Path(new_repository(tmp_path / "moved")).rename(place)
    return place


def test_a_repository_inside_a_checkpoint(checkpoint: Path, tmp_path: Path):
    with unchanged(tmp_path):
        refused(
            run("init", checkpoint / "backups"),
            f"{checkpoint}/backups lies inside the checkpoint {checkpoint}",
            "choose a place beside it: each repository and each checkpoint needs a directory of its own",
        )
    place = moved(checkpoint / "backups", tmp_path)
    with unchanged(tmp_path):
        refused(
            run("backup", checkpoint, place),
            f"the repository lies inside the checkpoint: {place} in {checkpoint}",
            "keep backups in a place of their own",
        )


def test_a_checkpoint_inside_a_repository(checkpoint: Path, repository: Path, tmp_path: Path):
    inside = repository / "orders"
    checkpoint.rename(inside)
    with unchanged(tmp_path):
        refused(
            run("backup", inside, repository),
            f"the checkpoint lies inside the repository: {inside} in {repository}",
            "keep backups in a place of their own",
        )


def test_a_repository_inside_another_checkpoint(tmp_path: Path):
    another = unpack(tmp_path / "bills")
    with unchanged(tmp_path):
        refused(
            run("init", another),
            f"{another} holds a checkpoint: a repository needs a place of its own",
            "choose an empty place",
        )


@pytest.mark.parametrize("inside", ["state", "restored/here", "."])
def test_a_target_inside_its_source(inside: str, checkpoint: Path, repository: Path, tmp_path: Path):
    target = checkpoint / inside if inside != "." else tmp_path
    with unchanged(tmp_path):
        finished = run("restore", repository, "latest", target, "--apply", "--replace")
        if inside == ".":  # around both
            refused(
                finished,
                f"the target {target} and the repository {repository} lie one inside the other",
                "restore to a place of its own",
            )
        else:
            refused(
                finished,
                f"the target {target} and the checkpoint {checkpoint} that was backed up lie one inside the other",
                "restore beside it, or to exactly its place",
            )


def test_a_target_inside_the_repository(repository: Path, tmp_path: Path):
    target = repository / "objects" / "restored"
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "latest", target, "--apply"),
            f"the target {target} and the repository {repository} lie one inside the other",
            "restore to a place of its own",
        )


def test_a_link_does_not_hide_where_a_repository_is(checkpoint: Path, tmp_path: Path):
    link = tmp_path / "link"
    link.symlink_to(checkpoint)
    with unchanged(tmp_path):
        refused(
            run("init", link / "backups"),
            f"{link}/backups lies inside the checkpoint {checkpoint}",
            "choose a place beside it: each repository and each checkpoint needs a directory of its own",
        )
    moved(link / "backups", tmp_path)
    with unchanged(tmp_path):
        refused(
            run("backup", checkpoint, link / "backups"),
            f"the repository lies inside the checkpoint: {link}/backups in {checkpoint}",
            "keep backups in a place of their own",
        )


def test_a_link_does_not_hide_where_a_target_is(checkpoint: Path, repository: Path, tmp_path: Path):
    link = tmp_path / "link"
    link.symlink_to(checkpoint)
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "latest", link / "restored", "--apply"),
            f"the target {link}/restored and the checkpoint {checkpoint} that was backed up lie one inside the other",
            "restore beside it, or to exactly its place",
        )


def test_a_target_equal_to_its_source(checkpoint: Path, repository: Path, tmp_path: Path):
    (checkpoint / "commits" / str(NEWEST)).unlink()  # so that there would be something to do
    files = sum(1 for p in checkpoint.rglob("*") if p.is_file() and not p.name.startswith("."))
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "latest", checkpoint, "--apply"),
            f"{checkpoint} is not empty: it holds a checkpoint ({files} files)",
            "restore to an empty place, or replace what is there (replace / --replace): it is kept first",
        )


def test_a_target_that_holds_something_else(repository: Path, tmp_path: Path):
    target = tmp_path / "lake"
    some_files(target)
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "latest", target, "--apply"),
            f"{target} is not empty: it holds files (2 files)",
            "restore to an empty place, or replace what is there (replace / --replace): it is kept first",
        )
        says(
            run("restore", repository, "latest", target, "--apply", "--replace"),
            f"error: {target} holds files that are no checkpoint, such as ",
            "HINT: replace is for checkpoints only; choose an empty place",
            code=1,
        )


@contextlib.contextmanager
def being_written(checkpoint: Path) -> Iterator[None]:
    """Have another thread log a batch every 50 ms, as a running stream does."""
    enough = threading.Event()
    entry = (checkpoint / "offsets" / str(NEWEST)).read_bytes()

    def write() -> None:
        batch = NEWEST
        while not enough.wait(0.05):
            batch += 1
            (checkpoint / "offsets" / str(batch)).write_bytes(entry)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_a_target_in_use_whatever_is_said(checkpoint: Path, repository: Path):
    before = fingerprint(checkpoint)
    word = ("--query-is-stopped", "--quiet-for", "0.5")
    with unchanged(repository, but=(*NOTES, *WORK)), being_written(checkpoint):
        finished = run("restore", repository, "latest", checkpoint, "--apply", "--replace", *word, "--json")
    assert finished.code == 1
    error = finished.document["error"]
    assert error["type"] in ("QueryNotStoppedError", "RefusedError")
    assert finished.err == f"error: {error['message']}\nHINT: {error['hint']}\n"
    # Which of two reads a moving place notices first is a matter of moments.
    assert "is in use: offsets/" in error["message"] or "is not any more what plan" in error["message"]
    assert "stop the query" in error["hint"]
    after = fingerprint(checkpoint)
    assert {path: after[path] for path in before} == before
    assert run("inspect", checkpoint, "--json").document["sealed"] is None


def test_a_target_that_somebody_else_has_sealed(checkpoint: Path, repository: Path, tmp_path: Path):
    sealed = run("seal", checkpoint, "--reason", "moving house", "--json").document
    message = f"{checkpoint} is sealed by plan {sealed['plan_id']} (moving house, {sealed['made_by']}"
    hint = (
        f"HINT: let that plan finish, or lift its seal: `airflow-ckpt unseal {checkpoint} --plan {sealed['plan_id']}`"
    )
    with unchanged(tmp_path):
        for argv in (
            ["restore", repository, "latest", checkpoint, "--apply", "--replace"],
            ["seal", checkpoint, "--reason", "me too"],
            ["unseal", checkpoint],
            ["unseal", checkpoint, "--plan", "another"],
        ):
            says(run(*argv), message, sealed["path"], hint, code=1)
