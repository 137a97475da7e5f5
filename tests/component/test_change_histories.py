"""Random histories of paused attempts: a process is stopped anywhere, another one takes over, the stream runs on, it wakes up.

``make change-soak`` runs 200 of them on the local disk and 100 on an S3 server, over all verbs. What is compared is every file of
the stream that runs: its content and its identity.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.changed_checkpoints import NEW_QUERY_ID, ROOT, STALE, Change
from tests.support.checkpoints import (
    batch_metadata,
    commit_log,
    compact,
    file_source_log,
    metadata,
    offsets_log,
)
from tests.support.s3_server import S3Server

LEASE = "2.0"
#: Histories that run side by side: they wait for leases most of the time.
AT_ONCE = 4


@dataclass(frozen=True)
class Ended:
    """What has become of a history.

    :param stopped: whether the first attempt was stopped before its end.
    :param lost: files of the running stream that are gone or others now.
    :param code: exit code of the first attempt.
    :param said: what it said.
    :param second: what the second attempt said, with its exit code.
    """

    stopped: bool
    lost: tuple[str, ...]
    code: int
    said: str
    second: tuple[int, str]


def environment(user: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "LOGNAME": user, "AIRFLOW_CKPT_LEASE_SECONDS": LEASE}


def begin(argv: list[str], *, fence: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.announced", *([] if fence else ["--without-fence"]), "--", *argv]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env=environment("first"))


def goes_on(checkpoint: Location, state: str) -> None:
    """The stream commits three batches, as Spark writes them: a file of a name that is there is not written again."""
    there = checkpoint.walk()
    committed = [int(name) for name in there.files("commits") if name.isdigit()]
    written = {} if "metadata" in there else {"metadata": metadata(NEW_QUERY_ID)}
    for batch in range(max(committed, default=-1) + 1, max(committed, default=-1) + 4):
        if f"offsets/{batch}" not in there:
            entry = offsets_log(compact({"logOffset": batch}), metadata=batch_metadata(batch, watermark=1))
            written[f"offsets/{batch}"] = entry
        written[f"sources/0/{batch}"] = file_source_log(1000 + batch)
        written[state.format(batch + 1)] = f"state {batch + 1} of the stream that continues".encode()
        written[f"commits/{batch}"] = commit_log(watermark=1)
    for path, data in written.items():
        checkpoint.replace(path, data)


def identities(checkpoint: Location) -> dict[str, tuple[bytes, str | None]]:
    return {p: (checkpoint.read(p), file.identity) for p, file in checkpoint.walk().items() if "/." not in p}


def carried_out(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Another attempt, run again until it has not lost its lease: on a busy machine two seconds pass between two requests.

    Nobody starts the stream before: an attempt that has lost its lease leaves the seal.
    """
    command = [sys.executable, "-m", "tests.support.announced", "--", *argv]
    for _ in range(20):
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=environment("second"), check=False, timeout=180
        )
        if "has lost its lease" not in ended.stderr:
            return ended
    raise AssertionError(ended.stderr)


def history(argv: list[str], checkpoint: Location, state: str, pause_at: float, *, fence: bool = True) -> Ended:
    """One attempt is stopped some seconds after its beginning, another completes, the stream continues, the first wakes up."""
    first = begin(argv, fence=fence)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "begins\n"
        time.sleep(pause_at)  # this is the random moment, and not a wait for anything
        stopped = first.poll() is None
        if stopped:
            first.send_signal(signal.SIGSTOP)
        second = carried_out(argv)
        goes_on(checkpoint, state)
        before = identities(checkpoint)
        if stopped:
            first.send_signal(signal.SIGCONT)
        _, said = first.communicate(timeout=180)
        now = identities(checkpoint)
    finally:
        if first.poll() is None:
            first.kill()
            first.wait()
    lost = tuple(sorted(path for path in before if now.get(path) != before[path]))
    return Ended(stopped, lost, first.returncode, said, (second.returncode, second.stderr))


def check(ended: Ended) -> str:
    """What kind of ending it is; an assertion error where it is a wrong one."""
    assert ended.lost == (), f"{ended.lost}; it said {ended.said!r}"
    if ended.second[0] != 0:
        # The first attempt was through, or so far that the request of the second one meant nothing any more.
        assert ended.code == 0 or "HINT" in ended.second[1], ended
    if not ended.stopped or ended.code == 0:
        return "was through before it was stopped"
    assert ended.code in (1, 3), ended
    if "took over" in ended.said:
        assert "second@" in ended.said, ended.said
        return "lost its lease, and named who took over"
    # Stopped before it had begun: it finds another checkpoint than it had planned for, and says so.
    assert "HINT" in ended.said or "cannot be repaired" in ended.said, ended.said
    return "was refused before its first change"


def arguments(change: Change, place: Path) -> list[str]:
    return [str(word) for word in change.argv(place)]


def local_history(number: int, place: Path, seed: int) -> str:
    chance = random.Random(f"{seed} {number}")
    change = STALE[sorted(STALE)[number % len(STALE)]]
    place.mkdir(parents=True)
    change.prepare(place)
    checkpoint = open_location(str(place / change.subject))
    return check(history(arguments(change, place), checkpoint, change.state, chance.uniform(0.0, 0.6)))


def tell(endings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        counted = {ending: endings.count(ending) for ending in sorted(set(endings))}
        print(f"\n{len(endings)} histories: {json.dumps(counted)}")


@pytest.mark.change_soak
@pytest.mark.timeout(3600)
def test_200_histories_on_the_local_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SEED", "15"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        endings = list(pool.map(lambda n: local_history(n, tmp_path / str(n), seed), range(200)))
    tell(endings, capsys)
    assert endings.count("lost its lease, and named who took over") >= 40


@pytest.mark.change_soak
@pytest.mark.timeout(3600)
def test_100_histories_on_an_s3_server(tmp_path: Path, s3_server: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    bucket, options = s3_server.make_bucket(), s3_server.options()
    more = [word for key, value in options.items() for word in ("--storage-option", f"{key}={_in_words(value)}")]
    names = [name for name in sorted(STALE) if not STALE[name].backed_up] + ["restore"]

    def one(number: int) -> str:
        chance = random.Random(f"s3 {number}")
        change = STALE[names[number % len(names)]]
        local = tmp_path / str(number)
        local.mkdir()
        change.prepare(local)
        s3_server.filesystem().put(f"{local}/", f"{bucket}/{number}/", recursive=True)
        checkpoint = open_location(f"s3://{bucket}/{number}/{change.subject}", storage_options=options)
        argv = [word.replace(str(local), f"s3://{bucket}/{number}") for word in arguments(change, local)]
        return check(history([*argv, *more], checkpoint, change.state, chance.uniform(0.0, 1.2)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        endings = list(pool.map(one, range(100)))
    tell(endings, capsys)
    assert endings.count("lost its lease, and named who took over") >= 20


def _in_words(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def test_the_control_without_a_fence_destroys_the_stream(tmp_path: Path) -> None:
    """The same history, stopped among its deletes, with the fence and the comparison of identities taken out."""
    change = STALE["restore"]
    change.prepare(tmp_path)
    checkpoint = open_location(str(tmp_path / change.subject))
    stop = ["--stop-at-delete", "2", "--below", checkpoint.root]
    command = [
        sys.executable,
        "-m",
        "tests.support.announced",
        "--without-fence",
        *stop,
        "--",
        *arguments(change, tmp_path),
    ]
    first = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment("first")
    )
    try:
        seen = os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen is not None
        assert seen.si_code == os.CLD_STOPPED, first.communicate()
        again = [sys.executable, "-m", "tests.support.announced", "--", *arguments(change, tmp_path)]
        subprocess.run(again, cwd=ROOT, env=environment("second"), check=True, capture_output=True, timeout=180)
        goes_on(checkpoint, change.state)
        before = identities(checkpoint)
        first.send_signal(signal.SIGCONT)
        first.communicate(timeout=180)
        now = identities(checkpoint)
    finally:
        if first.poll() is None:
            first.kill()
            first.wait()
    assert [path for path in before if now.get(path) != before[path]] != []
