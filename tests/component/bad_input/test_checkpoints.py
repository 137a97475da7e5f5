"""What is given as a checkpoint is none, or a damaged one: the error says what to do, and nothing is changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.logs import FETCH_IT
from tests.support.command_line import new_repository, run
from tests.support.fingerprints import NOTES
from tests.support.one_checkpoint import NEWEST
from tests.support.refused_commands import refused, says, some_files, unchanged


@pytest.mark.parametrize("make", [some_files, Path.mkdir, lambda place: None], ids=["other files", "empty", "missing"])
@pytest.mark.parametrize("verb", ["inspect", "backup", "seal", "unseal"])
def test_not_a_checkpoint(verb: str, make: Callable[[Path], None], tmp_path: Path):
    place = tmp_path / "streams"
    make(place)
    more = {"backup": [new_repository(tmp_path / "backups")], "seal": ["--reason", "x"]}.get(verb, [])
    repository = more[0] if verb == "backup" else "REPOSITORY"
    with unchanged(tmp_path):
        refused(
            run(verb, place, *more),
            f"{place} is not a checkpoint: it has no offsets/, no commits/ and no metadata",
            "check the address: it is the checkpointLocation of the query. It may also not have started yet; "
            f"if it was deleted, put it back: airflow-ckpt restore {repository} latest {place}",
        )


def test_a_checkpoint_without_commits(checkpoint: Path, tmp_path: Path):
    shutil.rmtree(checkpoint / "commits")
    for batch in range(1, NEWEST + 1):
        (checkpoint / "offsets" / str(batch)).unlink()
    repository = new_repository(tmp_path / "backups")
    with unchanged(tmp_path):
        refused(
            run("backup", checkpoint, repository),
            f"{checkpoint} has no committed batch yet: there is nothing to restore",
            "wait until the stream has committed its first batch",
        )
        looked_at = run("inspect", checkpoint, "--json").document
    assert (looked_at["latest_committed"], looked_at["resume"]["batch_id"], looked_at["resume"]["replay"]) == (
        None,
        0,
        True,
    )


_TORN = {
    "empty": (
        lambda data: b"",
        "the file is empty (0 bytes): its writer was stopped half-way, or the copy was torn",
        f"Spark refuses to start from it too; {FETCH_IT}",
    ),
    "cut in its first line": (
        lambda data: b"v",
        "does not start with a log version but with 'v'",
        FETCH_IT,
    ),
    "cut in its JSON": (
        lambda data: data[:40],
        "cut off, no source offsets after the batch metadata",
        FETCH_IT,
    ),
    "cut before its offsets": (
        lambda data: data[: data.rindex(b"\n") + 1],
        "cut off, no source offsets after the batch metadata",
        FETCH_IT,
    ),
    "cut in its offsets": (
        lambda data: data[:-3],
        "the offset of source '0' is broken or cut off: '{\"logOffset\"'",
        f"Spark cannot use the file either; {FETCH_IT}",
    ),
    "no text": (
        lambda data: b"\xff\xfe" + data,
        "not UTF-8 text (invalid start byte at byte 0)",
        FETCH_IT,
    ),
    "of a newer Spark": (
        lambda data: b"v9" + data[2:],
        "log version v9 is not known here (newest known: v2)",
        "a newer Spark wrote it: upgrade airflow-ckpt-provider",
    ),
}


@pytest.mark.parametrize("how", _TORN)
def test_an_unreadable_newest_log_entry(how: str, checkpoint: Path, tmp_path: Path):
    tear, complaint, hint = _TORN[how]
    newest = checkpoint / "offsets" / str(NEWEST)
    newest.write_bytes(tear(newest.read_bytes()))
    repository = new_repository(tmp_path / "backups")
    with unchanged(tmp_path):
        here = hint.replace("CHECKPOINT", str(checkpoint))
        refused(run("inspect", checkpoint), f"offsets/{NEWEST}: {complaint}", here)
        here = here.replace("REPOSITORY", str(repository))
        refused(run("backup", checkpoint, repository), f"offsets/{NEWEST}: {complaint}", here)


@pytest.mark.parametrize(
    ("content", "complaint"), [(b"", "the file is empty (0 bytes)"), (b"v1\n{", "the JSON is broken")]
)
def test_an_unreadable_newest_commit(content: bytes, complaint: str, checkpoint: Path, repository: Path):
    (checkpoint / "commits" / str(NEWEST)).write_bytes(content)
    with unchanged(checkpoint), unchanged(repository, but=NOTES):
        for argv in (["inspect", checkpoint], ["backup", checkpoint, repository]):
            says(run(*argv), f"error: commits/{NEWEST}: {complaint}", "HINT: Spark", code=1)


def test_a_state_file_is_missing(checkpoint: Path, repository: Path):
    (changelog,) = (checkpoint / "state" / "0" / "0").glob(f"{NEWEST + 1}.changelog")
    changelog.unlink()
    with unchanged(checkpoint), unchanged(repository, but=NOTES):
        says(run("backup", checkpoint, repository), "state/0/0", str(NEWEST + 1), code=1)
        looked_at = run("inspect", checkpoint, "--json")
    assert looked_at.code == 1
    assert any("state/0/0" in finding for finding in looked_at.document["findings"])
