"""No right to read or write, and no room on the disk: the error says what to do, and nothing is left half done."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import repository as repositories
from tests.support.command_line import new_repository, run, run_program
from tests.support.fingerprints import NOTES
from tests.support.one_checkpoint import NEWEST, unpack
from tests.support.refused_commands import WORK, refused, says, unchanged


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A directory of a user who is not root: root may read and write everything."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        place = Path(name)
        place.chmod(0o755)
        yield place


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Have no rights but those of every user."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_log_file_that_may_not_be_read(nobodys: Path):
    checkpoint = unpack(nobodys / "orders")
    run("inspect", checkpoint)  # load all there is to load, as long as we may
    entry = checkpoint / "offsets" / str(NEWEST)
    entry.chmod(0)
    with as_nobody():
        finished = run("inspect", checkpoint)
    refused(
        finished,
        f"could not read {entry}: Permission denied",
        "check the permissions of the user that runs this",
        code=3,
    )


@pytest.mark.parametrize(
    ("state", "what", "first_write"),
    [
        ("empty", "create", "repository.json"),
        ("no backup", "create", "running/orders.json"),
        ("with a backup", "write", "running/orders.json"),
    ],
)
def test_a_read_only_repository(state: str, what: str, first_write: str, nobodys: Path):
    checkpoint, repository = unpack(nobodys / "orders"), nobodys / "backups"
    # load all there is to load, as long as we may
    run("backup", checkpoint, new_repository(nobodys / "another"))
    repository.mkdir()
    if state != "empty":
        new_repository(repository)
    if state == "with a backup":
        run("backup", checkpoint, repository)
    for place in (repository, *repository.rglob("*")):
        place.chmod(0o555 if place.is_dir() else 0o444)
    with unchanged(nobodys), as_nobody():
        refused(
            run("init", repository) if state == "empty" else run("backup", checkpoint, repository),
            f"could not {what} {repository}/{first_write}: Permission denied",
            "check the permissions of the user that runs this",
            code=3,
        )


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """Mount a disk of a size at a place, where this machine lets us."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        raise OSError(mounted.stderr.decode())
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def may_mount() -> bool:
    with tempfile.TemporaryDirectory() as name:
        try:
            with small_disk(Path(name, "disk"), "64k"):
                return True
        except OSError:
            return False


def test_the_disk_is_full_during_a_backup(checkpoint: Path, tmp_path: Path):
    place = tmp_path / "disk"
    backup = ("backup", checkpoint, place / "backups")
    packs = repositories.DEFAULT_FORMAT == 2
    with contextlib.ExitStack() as stack:
        stack.enter_context(unchanged(checkpoint))
        if may_mount():
            # Pages of 4 KiB: room for the marker, the lease and some objects, or for the claim and half of the one pack.
            stack.enter_context(small_disk(place, "16k" if packs else "48k"))
            new_repository(place / "backups")
            says(
                run_program(*backup),
                "No space left on device",
                "HINT: free some space, then run the same command again",
                code=3,
            )
        else:
            # Without the right to mount: no file may grow beyond the size that most of them have.
            new_repository(place / "backups")
            says(
                run_program(*backup, preexec_fn=limit_files),
                "File too large",
                "HINT: raise the limit on the size of files (ulimit -f), or choose another place",
                code=3,
            )
        assert run("backups", place / "backups", "--json").document["backups"] == []
        if place.is_mount():
            remount(place, "10m")
        again = run(*backup, "--json").document
        if packs:
            assert again["copied_files"] == again["files"], "a pack that was not written has nothing to use"
        else:
            assert 0 < again["copied_files"] < again["files"], "what was copied before is used"
        assert run("verify", place / "backups", "--read-data").code == 0


def remount(place: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))


def test_the_disk_is_full_during_a_restore(repository: Path, tmp_path: Path):
    if not may_mount():
        pytest.skip("may not mount a disk here; the same for a backup is tested by other means")
    place = tmp_path / "disk"
    with small_disk(place, "48k"):
        target = place / "orders"
        with unchanged(repository, but=(*NOTES, *WORK)):
            finished = run("restore", repository, "latest", target, "--apply")
        assert finished.code == 3
        assert "No space left on device" in finished.err
        sealed = run("inspect", target, "--json")
        assert sealed.document["sealed"], "no Spark starts from half of it"
        remount(place, "10m")
        assert run("restore", repository, "latest", target, "--apply").code == 0
        assert run("inspect", target).code == 0
