"""Wrong repositories, names and backups, and two backups at once: the error says what to do, and nothing is changed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import new_repository, run
from tests.support.fingerprints import NOTES
from tests.support.one_checkpoint import NEWEST
from tests.support.refused_commands import refused, says, some_files, unchanged


def test_no_such_backup(repository: Path, tmp_path: Path):
    listing = f"`airflow-ckpt backups {repository}` lists what there is"
    wrong = "20200101T000000Z-b000001"
    with unchanged(repository, tmp_path):
        for argv in (["verify", repository, wrong], ["restore", repository, wrong, tmp_path / "t", "--apply"]):
            refused(run(*argv), f"{repository} holds no backup {wrong}", listing)
        refused(
            run("verify", repository, "latest", "--name", "other"), f"{repository} holds no backup of other", listing
        )


def test_several_streams_and_no_name(repository: Path, checkpoint: Path):
    run("backup", checkpoint, repository, "--name", "other")
    with unchanged(repository):
        refused(
            run("verify", repository),
            f"{repository} holds backups of 2 streams: orders, other",
            "name the stream (name / --name)",
        )


def test_a_batch_that_is_not_in_the_backup(repository: Path, tmp_path: Path):
    (backup_id,) = (b["backup_id"] for b in run("backups", repository, "--json").document["backups"])
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "latest", tmp_path / "t", "--batch", "2", "--apply"),
            f"backup {backup_id} cannot restore batch 2",
            f"it can restore: {NEWEST}",
        )


@pytest.mark.parametrize(
    "argv",
    [
        ("backup", "CHECKPOINT", "NOWHERE"),
        ("backups", "NOWHERE"),
        ("verify", "NOWHERE"),
        ("restore", "NOWHERE", "latest", "TARGET"),
        ("expire", "NOWHERE", "--keep-last", "1"),
        ("prune", "NOWHERE"),
        ("check", "NOWHERE"),
        ("repair", "NOWHERE", "CHECKPOINT"),
        ("hold", "NOWHERE", "latest", "--reason", "x"),
        ("copy", "NOWHERE", "all", "TARGET"),
        ("copy", "REPOSITORY", "all", "NOWHERE"),
        ("rewind", "CHECKPOINT", "--to-latest", "--repository", "NOWHERE"),
        ("rewind", "CHECKPOINT", "--list", "--repository", "NOWHERE"),
        ("reset", "CHECKPOINT", "--from-scratch", "--repository", "NOWHERE"),
        ("reset", "CHECKPOINT", "--from-scratch", "--repository", "NOWHERE", "--apply", "--accept", "sink_unknown"),
        ("doctor", "CHECKPOINT", "--repair", "--repository", "NOWHERE"),
        ("undo", "CHECKPOINT", "--repository", "NOWHERE"),
        ("status", "CHECKPOINT", "--repository", "NOWHERE"),
        ("guard", "CHECKPOINT", "--repository", "NOWHERE"),
        ("positions", "--repository", "NOWHERE"),
        ("fleet", "NOWHERE", "CHECKPOINT"),
        ("upgrade", "NOWHERE"),
    ],
    ids=lambda argv: f"{argv[0]} {argv[-1] if argv[0] == 'reset' else ''}",
)
@pytest.mark.parametrize("there", ["missing", "empty"])
def test_no_repository(argv: tuple[str, ...], there: str, checkpoint: Path, repository: Path, tmp_path: Path):
    """A mistyped address, or a disk that is not mounted, never becomes a new repository."""
    nowhere = tmp_path / "nowhere"
    if there == "empty":
        nowhere.mkdir()
    words = {"CHECKPOINT": checkpoint, "REPOSITORY": repository, "NOWHERE": nowhere, "TARGET": tmp_path / "target"}
    with unchanged(tmp_path):
        refused(
            run(*(words.get(word, word) for word in argv)),
            f"{nowhere} is not a repository: it has no repository.json",
            "check the address, and that its disk or bucket is mounted; a new repository is made on purpose: `airflow-ckpt init "
            f"{nowhere}` (in a DAG create=True)",
        )


def test_a_repository_that_is_not_mounted_is_no_new_one(checkpoint: Path, tmp_path: Path):
    """Hour after hour the backup fails, and once it is mounted again, all backups are there."""
    place, away = tmp_path / "backups", tmp_path / "away"
    new_repository(place)
    first = run("backup", checkpoint, place, "--json").document["backup_id"]
    place.rename(away)
    place.mkdir()
    with unchanged(tmp_path):
        for _ in range(2):
            says(run("backup", checkpoint, place), "it has no repository.json", "mounted", code=1)
    place.rmdir()
    away.rename(place)
    second = run("backup", checkpoint, place, "--json").document["backup_id"]
    assert [b["backup_id"] for b in run("backups", place, "--json").document["backups"]] == [first, second]


def test_another_repository_than_the_one_that_is_expected(
    checkpoint: Path, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = run("init", repository, "--json").document
    marker = json.loads((repository / "repository.json").read_text())
    assert made == {
        "repository": str(repository),
        "id": marker["id"],
        "format": marker["version"],
        "created": False,
    }
    other = run("init", tmp_path / "other", "--json").document
    assert other["created"]
    assert other["id"] != made["id"]
    hint = (
        "check the address and what is mounted there; to expect this one, correct ckpt_repository_id of the connection, or "
        "--repository-id"
    )
    wrong = f"{tmp_path / 'other'} is repository {other['id']}, and repository {made['id']} is expected there"
    missing = f"{tmp_path / 'nowhere'} is not a repository: it has no repository.json; repository {made['id']} is expected there"
    with unchanged(tmp_path, but=NOTES):
        pinned = ("--repository-id", made["id"])
        for argv in (("backup", checkpoint, tmp_path / "other"), ("backups", tmp_path / "other")):
            refused(run(*argv, *pinned), wrong, hint)
        refused(run("init", tmp_path / "other", *pinned), wrong, hint)
        for verb in ("init", "backups"):
            finished = run(verb, tmp_path / "nowhere", *pinned)
            assert (finished.code, finished.err.splitlines()[0]) == (1, f"error: {missing}")
    assert run("backup", checkpoint, repository, *pinned).code == 0
    assert run("copy", repository, "all", tmp_path / "other", *pinned).code == 0, "the target is another repository"
    monkeypatch.setenv("CKPT_REPOSITORY_ID", str(made["id"]))
    refused(run("backups", tmp_path / "other"), wrong, hint)
    assert run("backups", tmp_path / "other", "--repository-id", other["id"]).code == 0


_MARKERS = {
    "a newer version": (
        {"format": "airflow-ckpt-repository", "version": 99, "id": "x"},
        " is a repository of format airflow-ckpt-repository version 99, known here: airflow-ckpt-repository versions 1 and 2",
        "upgrade airflow-ckpt-provider, or use another repository",
    ),
    "another format": (
        {"format": "restic", "version": 1, "id": "x"},
        " is a repository of format restic version 1, known here: airflow-ckpt-repository versions 1 and 2",
        "upgrade airflow-ckpt-provider, or use another repository",
    ),
    "no format at all": (
        {"name": "left-pad"},
        '/repository.json cannot be read: b\'{"name": "left-pad"}\'',
        "it was damaged: put it back from a copy of the repository; that of an encrypted one from an export too: "
        "airflow-ckpt key import REPOSITORY --file EXPORT",
    ),
}


@pytest.mark.parametrize("which", _MARKERS)
def test_a_repository_of_another_format(which: str, repository: Path, checkpoint: Path, tmp_path: Path):
    marker, complaint, hint = _MARKERS[which]
    (repository / "repository.json").write_text(json.dumps(marker))
    with unchanged(tmp_path):
        for argv in (
            ["backup", checkpoint, repository],
            ["backups", repository],
            ["verify", repository],
            ["restore", repository, "latest", tmp_path / "t", "--apply"],
        ):
            refused(run(*argv), f"{repository}{complaint}", hint.replace("REPOSITORY", str(repository)))


def test_a_manifest_of_a_newer_version(repository: Path, tmp_path: Path):
    (path,) = (repository / "backups" / "orders").iterdir()
    content = json.loads(path.read_text())
    content["version"] = 99
    del content["sha256"]
    body = json.dumps(content, separators=(",", ":"))
    path.write_text(f'{body[:-1]},"sha256":"{hashlib.sha256(body.encode()).hexdigest()}"}}')
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "latest", tmp_path / "t", "--apply"),
            f"manifest backups/orders/{path.name} has format version 99, known here: 3",
            "upgrade airflow-ckpt-provider",
        )


def test_a_repository_where_other_files_are(tmp_path: Path):
    place = tmp_path / "lake"
    some_files(place)
    with unchanged(tmp_path):
        refused(
            run("init", place),
            f"{place} holds other files (README, data, …): a repository needs a place of its own",
            "choose an empty place",
        )


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", "a..b", ".hidden", "/etc", "-x", "a b", "a\nb"])
def test_names_that_leave_their_place(name: str, checkpoint: Path, repository: Path, tmp_path: Path):
    hint = "use letters, digits, '.', '_', '-' and '=', beginning with a letter, a digit or '_', without '..' or '/'"
    with unchanged(tmp_path):
        for argv in (
            ["backup", checkpoint, repository],
            ["backups", repository],
        ):
            refused(run(*argv, f"--name={name}"), f"{name!r} cannot be the name of a stream", hint)
        refused(run("verify", repository, f"--name={name}"), f"{name!r} cannot be the name of a stream", hint)


def test_a_backup_id_that_leaves_its_place(repository: Path, tmp_path: Path):
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "../../repository", tmp_path / "t", "--apply"),
            f"{repository} holds no backup ../../repository",
            f"`airflow-ckpt backups {repository}` lists what there is",
        )


_SLOW_BACKUP = """
import sys
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location

told = []

def wait_for_the_test(progress):
    told.append(progress)
    if len(told) == 1:
        print("copying", flush=True)
        sys.stdin.readline()

create_backup(
    Checkpoint.at(open_location(sys.argv[1])),
    Repository.open_or_create(open_location(sys.argv[2])),
    made_by="the first",
    on_progress=wait_for_the_test,
)
"""


@pytest.fixture
def first(checkpoint: Path, repository: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of a backup; continues when it reads a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW_BACKUP, checkpoint, repository],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "copying\n"
    yield process
    process.kill()
    process.wait()


def test_two_backups_of_one_stream_at_once(first: subprocess.Popen[str], checkpoint: Path, repository: Path):
    with unchanged(checkpoint, repository):
        says(
            run("backup", checkpoint, repository),
            f"error: another backup of this stream is running: process {first.pid} on ",
            " for the first, last sign of life ",
            "HINT: wait for it to end; ",
            code=1,
        )
    assert run("backup", checkpoint, repository, "--name", "another-stream").code == 0
    first.communicate("continue\n", timeout=60)
    assert first.returncode == 0
    assert run("backup", checkpoint, repository).code == 0
    assert len(run("backups", repository, "--name", "orders", "--json").document["backups"]) == 3


def test_a_backup_that_was_killed_does_not_stand_in_the_way(
    first: subprocess.Popen[str], checkpoint: Path, repository: Path
):
    first.kill()
    first.wait()
    assert run("backup", checkpoint, repository).code == 0
