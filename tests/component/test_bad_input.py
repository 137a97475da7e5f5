"""Bad input: each gets an error of its own that says what to do, and nothing is changed by it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command_line import Finished, run, run_program
from tests.fingerprints import NOTES, fingerprint
from tests.one_checkpoint import NEWEST, unpack
from tests.s3_server import FORGER, READER, STRANGER, Identity, S3Server

#: Directories of a repository in which a change that has begun keeps its plan and what it sets aside.
WORK = ("plans", "set-aside")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return unpack(tmp_path / "orders")


@pytest.fixture
def repository(tmp_path: Path, checkpoint: Path) -> Path:
    """A repository with one backup of the checkpoint."""
    place = tmp_path / "backups"
    assert run("backup", checkpoint, place).code == 0
    return place


def refused(finished: Finished, message: str, hint: str, *, code: int = 1) -> None:
    assert finished.err == f"error: {message}\nHINT: {hint}\n"
    assert (finished.code, finished.out) == (code, "")


def says(finished: Finished, *words: str, code: int) -> None:
    """As ``refused``, for messages that hold what only the store knows."""
    first, second, *more = finished.err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("HINT: ")
    assert more == []
    for word in words:
        assert word in finished.err
    assert (finished.code, finished.out) == (code, "")


@contextlib.contextmanager
def unchanged(*places: Path, but: tuple[str, ...] = ()) -> Iterator[None]:
    """Nothing in these places is other afterwards.

    :param but: names of directories that may be.
    """
    before = fingerprint(*places, without=but)
    yield
    assert fingerprint(*places, without=but) == before


# --- what is given as a checkpoint -------------------------------------------------------------------------------


def some_files(place: Path) -> None:
    (place / "data").mkdir(parents=True)
    (place / "data" / "part-0.parquet").write_bytes(b"PAR1")
    (place / "README").write_text("not a checkpoint")


@pytest.mark.parametrize("make", [some_files, Path.mkdir, lambda place: None], ids=["other files", "empty", "missing"])
@pytest.mark.parametrize("verb", ["inspect", "backup", "seal", "unseal"])
def test_not_a_checkpoint(verb: str, make: Callable[[Path], None], tmp_path: Path):
    place = tmp_path / "streams"
    make(place)
    more = {"backup": [tmp_path / "backups"], "seal": ["--reason", "x"]}.get(verb, [])
    with unchanged(tmp_path):
        refused(
            run(verb, place, *more),
            f"{place} is not a checkpoint: it has no offsets/, no commits/ and no metadata",
            "give the directory that the query has as checkpointLocation; it may also not have started yet",
        )


def test_a_checkpoint_without_commits(checkpoint: Path, tmp_path: Path):
    shutil.rmtree(checkpoint / "commits")
    for batch in range(1, NEWEST + 1):
        (checkpoint / "offsets" / str(batch)).unlink()
    with unchanged(tmp_path):
        refused(
            run("backup", checkpoint, tmp_path / "backups"),
            f"{checkpoint} has no committed batch yet: there is nothing to go back to",
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
        "Spark refuses to start from it too; restore the file from a backup",
    ),
    "cut in its first line": (
        lambda data: b"v",
        "does not start with a log version but with 'v'",
        "restore the file from a backup",
    ),
    "cut in its JSON": (
        lambda data: data[:40],
        "cut off, no source offsets after the batch metadata",
        "restore the file from a backup",
    ),
    "cut before its offsets": (
        lambda data: data[: data.rindex(b"\n") + 1],
        "cut off, no source offsets after the batch metadata",
        "restore the file from a backup",
    ),
    "cut in its offsets": (
        lambda data: data[:-3],
        "the offset of source '0' is broken or cut off: '{\"logOffset\"'",
        "Spark cannot use the file either; restore it from a backup",
    ),
    "no text": (
        lambda data: b"\xff\xfe" + data,
        "not UTF-8 text (invalid start byte at byte 0)",
        "restore the file from a backup",
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
    with unchanged(tmp_path):
        for argv in (["inspect", checkpoint], ["backup", checkpoint, tmp_path / "backups"]):
            refused(run(*argv), f"offsets/{NEWEST}: {complaint}", hint)


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


# --- rights and room ---------------------------------------------------------------------------------------------


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
    [("empty", "create", "repository.json"), ("with a backup", "write", "running/orders.json")],
)
def test_a_read_only_repository(state: str, what: str, first_write: str, nobodys: Path):
    checkpoint, repository = unpack(nobodys / "orders"), nobodys / "backups"
    run("backup", checkpoint, nobodys / "another")  # load all there is to load, as long as we may
    repository.mkdir()
    if state != "empty":
        run("backup", checkpoint, repository)
    for place in (repository, *repository.rglob("*")):
        place.chmod(0o555 if place.is_dir() else 0o444)
    with unchanged(nobodys), as_nobody():
        refused(
            run("backup", checkpoint, repository),
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
    with contextlib.ExitStack() as stack:
        stack.enter_context(unchanged(checkpoint))
        if may_mount():
            # Pages of 4 KiB: room for the marker, the lease and some objects.
            stack.enter_context(small_disk(place, "48k"))
            says(
                run_program(*backup),
                "No space left on device",
                "HINT: free some space, then run the same command again: what was copied already is used",
                code=3,
            )
        else:
            # Without the right to mount: no file may grow beyond the size that most of them have.
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


# --- S3 ----------------------------------------------------------------------------------------------------------


def options(server: S3Server, identity: Identity) -> list[str]:
    found = []
    for key, value in server.options(identity).items():
        text = json.dumps(value) if isinstance(value, dict) else value
        found += ["--storage-option", f"{key}={text}"]
    return found


_CHECK_KEYS = (
    "check the access key, the secret and the token of the connection (or of storage_options, or the environment)"
)


@pytest.mark.parametrize(
    ("identity", "complaint"), [(STRANGER, "(InvalidAccessKeyId)"), (FORGER, "(SignatureDoesNotMatch)")]
)
def test_wrong_credentials(identity: Identity, complaint: str, s3_server: S3Server, checkpoint: Path, tmp_path: Path):
    bucket = s3_server.make_bucket()
    wrong = options(s3_server, identity)
    with unchanged(tmp_path):
        for argv in (
            ["inspect", f"s3://{bucket}/orders"],
            ["backup", checkpoint, f"s3://{bucket}/backups"],
            ["backups", f"s3://{bucket}/backups"],
        ):
            says(run(*argv, *wrong), complaint, f"s3://{bucket}/", f"HINT: {_CHECK_KEYS}", code=3)
    assert s3_server.filesystem().find(bucket) == []


def test_a_missing_bucket(s3_server: S3Server, checkpoint: Path, tmp_path: Path):
    right = run_program  # through the environment this time, as an AWS client has it
    with unchanged(tmp_path):
        for argv in (
            ["inspect", "s3://no-such-bucket/orders"],
            ["backup", checkpoint, "s3://no-such-bucket/backups"],
            ["backups", "s3://no-such-bucket/backups"],
        ):
            says(
                right(*argv, environment=s3_server.environment()),
                "s3://no-such-bucket/",
                "The specified bucket does not exist (NoSuchBucket)",
                "HINT: create it, or correct the address",
                code=3,
            )


def test_a_read_only_bucket(s3_server: S3Server, checkpoint: Path, repository: Path):
    bucket = s3_server.make_bucket()
    s3_server.filesystem().put(f"{checkpoint}/", f"{bucket}/orders/", recursive=True)
    before = sorted(s3_server.filesystem().find(bucket))
    reader = options(s3_server, READER)
    assert run("inspect", f"s3://{bucket}/orders", *reader).code == 0
    for argv in (
        ["backup", f"s3://{bucket}/orders", f"s3://{bucket}/backups"],
        ["seal", f"s3://{bucket}/orders", "--reason", "x"],
    ):
        says(
            run(*argv, *reader),
            f"error: could not create s3://{bucket}/",
            "(AccessDenied)",
            "HINT: check that these credentials may list, read and write there",
            code=3,
        )
    restored = run("restore", repository, "latest", f"s3://{bucket}/restored", "--apply", *reader)
    assert restored.code == 3
    assert "(AccessDenied)" in restored.err
    assert sorted(s3_server.filesystem().find(bucket)) == before


def test_an_unreachable_store(checkpoint: Path, tmp_path: Path):
    nowhere = ["--storage-option", "endpoint_url=http://127.0.0.1:9", "--storage-option", "key=a"]
    says(
        run("inspect", "s3://lake/orders", *nowhere, "--storage-option", "secret=b"),
        "could not list s3://lake/orders/commits: ",
        "HINT: check the address, the credentials and that the store is reachable",
        code=3,
    )


def test_an_unknown_scheme():
    refused(
        run("inspect", "nosuch://x/y"),
        "nosuch://x/y: Protocol not known: nosuch",
        "use a path, or a scheme and options that fsspec knows",
        code=3,
    )


def test_a_store_whose_client_is_not_installed():
    refused(
        run("inspect", "gs://lake/orders"),
        "gs://lake/orders: the client for gcs:// is not installed (Please install gcsfs to access Google Storage)",
        "pip install 'airflow-ckpt-provider[google]'",
        code=3,
    )


# --- repositories, names and backups -----------------------------------------------------------------------------


def test_no_such_backup(repository: Path, tmp_path: Path):
    listing = "`airflow-ckpt backups REPOSITORY` lists what there is"
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
            "say which one with the name option",
        )


def test_a_batch_that_is_not_in_the_backup(repository: Path, tmp_path: Path):
    (backup_id,) = (b["backup_id"] for b in run("backups", repository, "--json").document["backups"])
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "latest", tmp_path / "t", "--batch", "2", "--apply"),
            f"backup {backup_id} cannot restore batch 2",
            f"it can restore: {NEWEST}",
        )


@pytest.mark.parametrize("verb", ["backups", "verify", "restore"])
def test_no_repository(verb: str, tmp_path: Path):
    more = ["latest", tmp_path / "t"] if verb == "restore" else []
    with unchanged(tmp_path):
        refused(
            run(verb, tmp_path / "nowhere", *more),
            f"{tmp_path}/nowhere is not a repository: it has no repository.json",
            "the first `airflow-ckpt backup` into an empty place makes one",
        )


_MARKERS = {
    "a newer version": (
        {"format": "airflow-ckpt-repository", "version": 99, "id": "x"},
        " is a repository of format airflow-ckpt-repository version 99, known here: airflow-ckpt-repository version 1",
        "upgrade airflow-ckpt-provider, or use another repository",
    ),
    "another format": (
        {"format": "restic", "version": 1, "id": "x"},
        " is a repository of format restic version 1, known here: airflow-ckpt-repository version 1",
        "upgrade airflow-ckpt-provider, or use another repository",
    ),
    "no format at all": (
        {"name": "left-pad"},
        '/repository.json cannot be read: b\'{"name": "left-pad"}\'',
        "restore this file; it was damaged",
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
            refused(run(*argv), f"{repository}{complaint}", hint)


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
            f"manifest backups/orders/{path.name} has format version 99, known here: 2",
            "upgrade airflow-ckpt-provider",
        )


def test_a_repository_where_other_files_are(checkpoint: Path, tmp_path: Path):
    place = tmp_path / "lake"
    some_files(place)
    with unchanged(tmp_path):
        refused(
            run("backup", checkpoint, place),
            f"{place} holds other files (README, data, …): a repository needs a place of its own",
            "choose an empty place",
        )


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", "a..b", ".hidden", "/etc", "-x", "a b", "a\nb"])
def test_names_that_leave_their_place(name: str, checkpoint: Path, repository: Path, tmp_path: Path):
    hint = "use letters, digits, '.', '_', '-' and '=', beginning with a letter, a digit or '_', without '..' or '/'"
    with unchanged(tmp_path):
        for argv in (
            ["backup", checkpoint, repository],
            ["backup", checkpoint, tmp_path / "new"],
            ["backups", repository],
        ):
            refused(run(*argv, f"--name={name}"), f"{name!r} cannot be the name of a stream", hint)
        refused(run("verify", repository, f"--name={name}"), f"{name!r} cannot be the name of a stream", hint)


def test_a_backup_id_that_leaves_its_place(repository: Path, tmp_path: Path):
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "../../repository", tmp_path / "t", "--apply"),
            f"{repository} holds no backup ../../repository",
            "`airflow-ckpt backups REPOSITORY` lists what there is",
        )


# --- two at once -------------------------------------------------------------------------------------------------

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
    """Another process in the middle of a backup; goes on when it reads a line."""
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
    first.communicate("go on\n", timeout=60)
    assert first.returncode == 0
    assert run("backup", checkpoint, repository).code == 0
    assert len(run("backups", repository, "--name", "orders", "--json").document["backups"]) == 3


def test_a_backup_that_was_killed_does_not_stand_in_the_way(
    first: subprocess.Popen[str], checkpoint: Path, repository: Path
):
    first.kill()
    first.wait()
    assert run("backup", checkpoint, repository).code == 0


# --- places that overlap, targets in use --------------------------------------------------------------------------


def test_a_repository_inside_a_checkpoint(checkpoint: Path, tmp_path: Path):
    for place in (checkpoint / "backups", checkpoint):
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


def test_a_repository_inside_another_checkpoint(checkpoint: Path, tmp_path: Path):
    another = unpack(tmp_path / "bills")
    with unchanged(tmp_path):
        refused(
            run("backup", checkpoint, another),
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
            "restore to an empty place, or replace what is there (replace / --replace): it is backed up first",
        )


def test_a_target_that_holds_something_else(repository: Path, tmp_path: Path):
    target = tmp_path / "lake"
    some_files(target)
    with unchanged(tmp_path):
        refused(
            run("restore", repository, "latest", target, "--apply"),
            f"{target} is not empty: it holds files (2 files)",
            "restore to an empty place, or replace what is there (replace / --replace): it is backed up first",
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
    # Which of two looks at a moving place notices first is a matter of moments.
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
