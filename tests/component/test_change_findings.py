"""Changes of a checkpoint through the command line: paused, killed, refused half-way, and undone.

Nothing here knows how a change is carried out. What counts is what a person sees: the words, and the files that are there.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.seal import SEAL_PREFIX
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.opening import open_location
from tests.golden.half_done import HALF_DONE, half_done
from tests.samples.archives import write_files
from tests.support.changed_checkpoints import (
    ACCEPTED,
    DO_IT,
    NEW_QUERY_ID,
    ROOT,
    STALE,
    Change,
    aggregation,
    orders,
    repair,
    reset,
    restore,
    rewind_to,
)
from tests.support.checkpoints import (
    QUERY_ID,
    batch_metadata,
    commit_log,
    compact,
    file_source_log,
    logs,
    metadata,
    offsets_log,
)
from tests.support.command_line import run
from tests.support.damaged_samples import Files, delta_missing
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.every_run import of_these
from tests.support.killing import killed_before

#: Seconds; a second attempt waits for the lease of the first one, whose process is stopped and not dead.
LEASE = "1.0"
FLOW = "_checkpoints/spark_catalog/default/orders/ingest"


def files(place: Path) -> dict[str, bytes]:
    """All files below a directory and what they hold, hidden ones included."""
    found = sorted(file for file in place.rglob("*") if file.is_file())
    return {file.relative_to(place).as_posix(): file.read_bytes() for file in found}


def without_seals(content: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in content.items() if not data.startswith(SEAL_PREFIX)}


def lift_seals_by_hand(place: Path) -> None:
    for path, data in files(place).items():
        if data.startswith(SEAL_PREFIX):
            (place / path).unlink()


def plan_of_seal(place: Path) -> str | None:
    """The plan that Spark's error names."""
    found = (re.search(rb"sealed by plan (\S+)", data) for data in files(place).values())
    return next((match[1].decode() for match in found if match), None)


def reset_flow(place: Path) -> tuple[object, ...]:
    where = (place / "pipeline", "--reset", "ingest", "--repository", place / "backups")
    return ("flows", *where, "--keep-position", "--sink", "foreachBatch", *ACCEPTED, *DO_IT)


def state_and_offsets_missing(found: Files) -> None:
    delta_missing(found)
    del found["offsets/5"]


#: What a reset says after one that is through, and whose new checkpoint no query has been started with.
NOTHING_LEFT_TO_RESET = re.compile(r"is as the reset \w+ \(.*\) left it, so there is nothing to reset")


# ---- an attempt that wakes up after another one took over ------------------------------------------


class Attempt:
    """A process that stops itself."""

    def __init__(self, place: Path, argv: tuple[object, ...], stop: tuple[object, ...]) -> None:
        self.out = place / "attempt.out"
        self.err = place / "attempt.err"
        command = [sys.executable, "-m", "tests.support.stop_itself", *map(str, stop), "--", *map(str, argv)]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, env=self.environment("first"))

    @staticmethod
    def environment(user: str) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        # Who carries a change out is the user at the host; both attempts are at this one.
        return {**os.environ, "PYTHONPATH": path, "LOGNAME": user, "AIRFLOW_CKPT_LEASE_SECONDS": LEASE}

    def stops(self) -> bool:
        """Wait until it stops; ``False`` where it comes to its end without."""
        waiting = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        seen = os.waitid(os.P_PID, self.process.pid, waiting)
        assert seen is not None
        return seen.si_code == os.CLD_STOPPED

    def wakes_up(self) -> tuple[int, str]:
        """Let it continue; its exit code, and what it says."""
        self.process.send_signal(signal.SIGCONT)
        code = self.process.wait(timeout=120)
        return code, self.err.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def attempts() -> Iterator[list[Attempt]]:
    begun: list[Attempt] = []
    yield begun
    for attempt in begun:
        attempt.end()


def the_stream_commits_three_batches(checkpoint: Path, state: str) -> None:
    """Write what Spark writes, by hand; what is logged already runs again with the same offsets."""
    newest = max((int(p.name) for p in (checkpoint / "commits").glob("*") if p.name.isdigit()), default=-1)
    written = {} if (checkpoint / "metadata").exists() else {"metadata": metadata(NEW_QUERY_ID)}
    for batch in range(newest + 1, newest + 4):
        entry = offsets_log(compact({"logOffset": batch}), metadata=batch_metadata(batch, watermark=1))
        if not (checkpoint / f"offsets/{batch}").exists():
            written[f"offsets/{batch}"] = entry
        written[f"sources/0/{batch}"] = file_source_log(1000 + batch)
        written[state.format(batch + 1)] = f"state {batch + 1} of the stream that continues".encode()
        written[f"commits/{batch}"] = commit_log(watermark=1)
    write_files(checkpoint, written)


def identities(place: Path) -> dict[str, tuple[bytes, int, int]]:
    """All files with what shows that they were written again: inode and time."""
    found = {}
    for path, data in files(place).items():
        status = (place / path).stat()
        found[path] = (data, status.st_ino, status.st_mtime_ns)
    return found


def stale_attempt(
    change: Change, place: Path, attempts: list[Attempt], operation: str, number: int, moment: str
) -> bool:
    """One attempt is stopped, another one completes, the stream continues, the first one wakes up.

    Its other files stay as they are, and it names who took over unless it was through with its change.

    :return: whether the first attempt was stopped; ``False``: it has fewer such requests.
    """
    change.prepare(place)
    checkpoint = place / "orders"
    first = Attempt(place, change.argv(place), (operation, number, moment, checkpoint))
    attempts.append(first)
    if not first.stops():
        assert first.process.wait() == 0, first.err.read_text()
        return False
    # Once it has lifted its seal it is through, and says so when it wakes up.
    is_through = operation == "delete" and moment == "after" and plan_of_seal(checkpoint) is None
    with pytest.MonkeyPatch.context() as second_user:
        for name in ("LOGNAME", "AIRFLOW_CKPT_LEASE_SECONDS"):
            second_user.setenv(name, Attempt.environment("second")[name])
        left = identities(checkpoint)
        second = run(*change.argv(place))
    if is_through and NOTHING_LEFT_TO_RESET.search(second.err):
        assert (second.code, identities(checkpoint)) == (1, left)
    else:
        assert second.code == 0, second.err
    the_stream_commits_three_batches(checkpoint, change.state)
    before = identities(checkpoint)
    code, said = first.wakes_up()
    now = identities(checkpoint)
    gone_or_changed = sorted(path for path in before if now.get(path) != before[path])
    assert not gone_or_changed, f"{operation} {number} ({moment}): {gone_or_changed}; it said {said!r}"
    if moment == "after":
        # Stopped before the store creates a file, it creates it where nothing has that name: no store can know better.
        assert now.keys() == before.keys()
    if is_through:
        assert code == 0, said
        return True
    assert code in (1, 3), f"{operation} {number} ({moment}): exit code {code}; it said {said!r}"
    assert "took over" in said
    assert "second@" in said, f"it does not name who took over: {said!r}"
    return True


class TestAnAttemptThatWakesUp:
    @pytest.mark.parametrize("moment", of_these(["after", "before"], "after"))
    @pytest.mark.parametrize("number", of_these([1, 4], 1))
    @pytest.mark.parametrize("name", of_these(STALE, "restore", "reset from scratch"))
    def test_among_its_deletes(
        self, name: str, number: int, moment: str, tmp_path: Path, attempts: list[Attempt]
    ) -> None:
        assert stale_attempt(STALE[name], tmp_path, attempts, "delete", number, moment), "it was not stopped"

    @pytest.mark.parametrize("moment", of_these(["after", "before"], "before"))
    @pytest.mark.parametrize(
        ("name", "number"),
        of_these([*((name, 1) for name in STALE), ("restore", 5)], ("rewind", 1), ("restore", 5)),
    )
    def test_among_its_writes(
        self, name: str, number: int, moment: str, tmp_path: Path, attempts: list[Attempt]
    ) -> None:
        """The first one is the seal."""
        assert stale_attempt(STALE[name], tmp_path, attempts, "write", number, moment), "it was not stopped"

    @pytest.mark.slow
    @pytest.mark.parametrize("moment", ["after", "before"])
    @pytest.mark.parametrize("operation", ["delete", "write"])
    @pytest.mark.parametrize("name", STALE)
    def test_at_every_request(
        self, name: str, operation: str, moment: str, tmp_path: Path, attempts: list[Attempt]
    ) -> None:
        for number in range(1, 200):
            place = tmp_path / str(number)
            place.mkdir()
            if not stale_attempt(STALE[name], place, attempts, operation, number, moment):
                assert number > 1
                return
        pytest.fail("it never came to its end")


# ---- killed before every write, then undone ----------------------------------------------------

KILLED = {
    "rewind": Change(rewind_to(1), orders(2)),
    "rewind to a backup": Change(rewind_to(1), orders(0), backed_up=orders(1)),
    "reset keeping the position": Change(reset("keep-position"), orders(1)),
    "reset from scratch": Change(reset("from-scratch"), orders(1)),
    "reset to a new query id": Change(reset("new-query-id"), orders(1)),
    "restore": Change(restore, orders(2), backed_up=orders(0)),
    "restore over a broken one": Change(
        restore, {p: c for p, c in orders(1).items() if not p.startswith("commits/")}, backed_up=orders(1)
    ),
    "repair by a cut": Change(
        repair, aggregation(damage=delta_missing), backed_up=logs(range(2)), state="state/0/1/{}.delta"
    ),
    "repair from a backup": Change(
        repair, aggregation(damage=state_and_offsets_missing), backed_up=aggregation(), state="state/0/1/{}.delta"
    ),
    "reset of a flow": Change(reset_flow, logs(range(2)), below="pipeline", subject=f"pipeline/{FLOW}/0"),
}
#: One that is rewound in place, one that starts from the beginning, one of a pipeline's flow.
KILLED_EVERY_RUN = ("rewind", "reset to a new query id", "repair from a backup")
NOTHING_DONE = re.compile(r"changed nothing|nothing to undo|knows no |no change", re.IGNORECASE)


@pytest.fixture(autouse=True)
def no_wait_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of a process that is dead is not waited for; should it be, a test shows it and does not hang."""
    monkeypatch.setenv("AIRFLOW_CKPT_LEASE_SECONDS", "10")


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses power here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def each_kill(change: Change, tmp_path: Path, *, step: int = 1) -> Iterator[tuple[int, Path, Path]]:
    """Number of the write, the place, and what of it is compared; the last one is that of a change that is complete."""
    template = change.prepare(tmp_path / "template")
    for write in range(0, 1000, step):
        place = change.prepare(tmp_path / str(write), template=template)
        killed = killed_before(write, *change.argv(place))
        yield write, place, place / change.below
        if not killed:
            assert write > 5
            return
    pytest.fail("it never came to its end")


@pytest.mark.usefixtures("quick_disk")
class TestKilledBeforeEveryWrite:
    @pytest.mark.parametrize("name", of_these(KILLED, *KILLED_EVERY_RUN))
    def test_undo_puts_everything_back(self, name: str, tmp_path: Path) -> None:
        """Nobody else wrote: so every file is as it was before, whatever the undo says."""
        self.undone_after_each_kill(name, tmp_path)

    @pytest.mark.parametrize("name", of_these(KILLED, "rewind"))
    @pytest.mark.parametrize("named", [pytest.param(False, marks=pytest.mark.slow), True], ids=["", "by its plan"])
    def test_undo_after_the_seal_was_removed_by_hand(self, name: str, named: bool, tmp_path: Path) -> None:
        self.undone_after_each_kill(name, tmp_path, lifted=True, named=named)

    def undone_after_each_kill(self, name: str, tmp_path: Path, *, lifted: bool = False, named: bool = False) -> None:
        change, wrong = KILLED[name], []
        before = files(change.prepare(tmp_path / "before") / change.below)
        for write, place, compared in each_kill(change, tmp_path):
            plan_id = plan_of_seal(compared) if named else None
            if lifted:
                lift_seals_by_hand(compared)
            left = files(compared)
            undone = change.undo(place, plan_id=plan_id)
            now = files(compared)
            if now != before:
                differing = sorted(path for path in {*now, *before} if now.get(path) != before.get(path))
                wrong.append(f"write {write}: {len(differing)} files differ, {differing[:3]}; {undone.err!r}")
            elif undone.code and left != before:
                wrong.append(f"write {write}: it put everything back and failed: {undone.err!r}")
        assert not wrong, f"{len(wrong)} of {write + 1}:\n" + "\n".join(wrong)

    @pytest.mark.parametrize("name", of_these(KILLED, "reset to a new query id"))
    def test_what_was_written_since_is_not_taken_back(self, name: str, tmp_path: Path) -> None:
        """The seal was removed by hand and the stream continued with what it found."""
        change, wrong = KILLED[name], []
        before = files(change.prepare(tmp_path / "before") / change.below)
        for write, place, compared in each_kill(change, tmp_path, step=2):
            lift_seals_by_hand(compared)
            if files(compared) == before:
                continue  # nothing was changed, and there is nothing to undo
            flow = place / "pipeline" / FLOW
            live = max(flow.iterdir(), key=lambda p: int(p.name)) if flow.exists() else place / "orders"
            the_stream_commits_three_batches(live, change.state)
            left = files(compared)
            undone = change.undo(place)
            now = files(compared)
            if now != left:
                differing = sorted(path for path in {*now, *left} if now.get(path) != left.get(path))
                wrong.append(f"write {write}: {len(differing)} files of the stream differ, {differing[:3]}")
            if undone.code != 1:
                wrong.append(f"write {write}: exit code {undone.code}; {undone.err!r}")
            elif NOTHING_DONE.search(undone.err):
                wrong.append(f"write {write}: the reason is not true: {undone.err!r}")
        assert not wrong, f"{len(wrong)} of {write + 1}:\n" + "\n".join(wrong)


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("name", of_these(KILLED, "repair from a backup"))
def test_status_says_where_it_stands(name: str, tmp_path: Path) -> None:
    """A change that was killed under its seal is named, with the two ways out."""
    change, wrong, sealed = KILLED[name], [], 0
    for write, place, compared in each_kill(change, tmp_path, step=2):
        if without_seals(files(compared)) == files(compared):
            continue
        sealed += 1
        said = run("status", place / change.subject, "--repository", place / "backups")
        if said.code > 1 or "airflow-ckpt undo" not in said.out:
            wrong.append(f"write {write}: exit code {said.code}; {said.out!r} {said.err!r}")
    assert sealed > 1
    assert not wrong, f"{len(wrong)} of {sealed}:\n" + "\n".join(wrong)


# ---- what version 0.1.0 left half-done -------------------------------------------------------------

HALF_DONE_BY_OLD_CODE = sorted(p.stem for p in HALF_DONE.iterdir() if p.stem.startswith(("repair", "restore")))


@pytest.mark.parametrize("name", HALF_DONE_BY_OLD_CODE)
def test_a_repair_or_restore_of_old_code_can_be_taken_back(name: str, tmp_path: Path) -> None:
    """Old code did not undo these, and kept no plan of a restore: its seal and what it set aside have to do."""
    left = half_done(name, tmp_path)
    found = files(left.checkpoint)
    undone = run("undo", left.checkpoint, "--repository", left.repository, "--query-is-stopped", "--quiet-for", 0)
    now = files(left.checkpoint)
    backups = left.repository / "backups/orders.before-restore"
    if not backups.exists():
        assert undone.code == 0, undone.err
        assert now == left.before
        return
    # A safety backup of old code holds what the query needs to continue, and no older files.
    if undone.code:
        assert now == found
        [safety] = (path.stem for path in backups.iterdir())
        assert safety in undone.err, f"it does not say where the former files are: {undone.err!r}"
        return
    assert now.items() <= left.before.items()
    assert {"commits/5", "offsets/5", "metadata"} <= now.keys()


def test_the_first_batch_can_be_rewound_to(tmp_path: Path) -> None:
    change = Change(rewind_to(0), orders(1))
    finished = run(*change.argv(change.prepare(tmp_path)))
    assert finished.code == 0, finished.err
    assert not (tmp_path / "orders/commits/1").exists()


# ---- a repair of what is whole ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "commits"),
    [((0, 1, 3), (0, 1)), ((0, 1, 3), (1,)), ((0, 1, 3), (0,)), ((0, 2, 3), (0,))],
    ids=lambda numbers: "-".join(map(str, numbers)),
)
def test_a_checkpoint_without_findings_is_not_repaired(
    offsets: tuple[int, ...], commits: tuple[int, ...], tmp_path: Path
) -> None:
    """Asynchronous progress tracking leaves out log entries."""
    kept = {f"offsets/{b}" for b in offsets} | {f"commits/{b}" for b in commits}
    whole = {p: c for p, c in logs(range(4)).items() if not p.startswith(("offsets/", "commits/")) or p in kept}
    checkpoint = write_files(tmp_path / "orders", whole)
    assert run("doctor", checkpoint).code == 0
    before = identities(checkpoint)
    finished = run("doctor", checkpoint, "--repair", *DO_IT)
    assert identities(checkpoint) == before
    assert finished.code == 0, finished.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["orders"]


# ---- a sink that cannot be rolled back any more ----------------------------------------------------

NEWEST = 3


@dataclass
class Table:
    """A stream with its Delta table, and what happens to the table once the rewind has sealed the checkpoint."""

    place: Path
    compacted: bool

    def __post_init__(self) -> None:
        from deltalake import DeltaTable

        self.checkpoint = write_files(self.place / "orders", orders(NEWEST))
        self.path = self.place / "table"
        delta_table(self.path, range(NEWEST + 1), app_id=QUERY_ID)
        if self.compacted:
            DeltaTable(str(self.path)).optimize.compact()

    @property
    def rewind(self) -> tuple[object, ...]:
        back = ("--to-batch", 1, "--sink", self.path, "--sink-policy", "rollback", "--accept", "source_loss")
        return ("rewind", self.checkpoint, *back, *DO_IT)

    def files_of(self, version: int) -> list[Path]:
        from deltalake import DeltaTable

        return [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(self.path), version=version).file_uris()]

    def vacuum(self) -> None:
        """The files of batch 1 are in no newer version, and their time is over."""
        for file in self.files_of(1):
            file.unlink()

    def damage_log(self) -> None:
        (self.path / "_delta_log" / f"{2:020}.json").write_text("{")

    def somebody_writes(self) -> None:
        append(self.path, 99, app_id=None)


def once_sealed(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen right after the seal was written, once."""
    left = [happens]
    for name in ("create", "replace", "replace_listed"):
        real = getattr(LocalStore, name)

        def watched(
            store: LocalStore,
            path: str,
            data: bytes = b"",
            *more: object,
            real: Callable[..., object] = real,
            **options: object,
        ) -> object:
            result = real(store, path, data, *more, **options)
            if left and data.startswith(SEAL_PREFIX):
                left.pop()()
            return result

        monkeypatch.setattr(LocalStore, name, watched)


def sealed(checkpoint: Path) -> bool:
    return without_seals(files(checkpoint)) != files(checkpoint)


@pytest.mark.parametrize("what", ["vacuum", "damage_log", "somebody_writes"])
def test_a_sink_that_fails_after_the_seal_does_not_keep_the_checkpoint(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path, compacted=what == "vacuum")
    before, log = files(table.checkpoint), table.path / "_delta_log" / f"{2:020}.json"
    whole_log, rows = log.read_bytes(), batches_in(open_location(str(table.path)))
    once_sealed(monkeypatch, getattr(table, what))
    first = run(*table.rewind)
    assert first.code in (1, 3), first.out
    for attempt in (first, run(*table.rewind)):
        assert attempt.code in (1, 3)
        if sealed(table.checkpoint):
            assert f"airflow-ckpt undo {table.checkpoint}" in attempt.err.replace("\n", " ")
    if sealed(table.checkpoint):
        log.write_bytes(whole_log)  # where it was damaged; without it nobody knows what is in the table
        undone = run("undo", table.checkpoint, "--sink", table.path, "--query-is-stopped", "--quiet-for", 0)
        assert undone.code == 0, undone.err
    assert files(table.checkpoint) == before
    assert batches_in(open_location(str(table.path))) == rows + ([99, 99] if what == "somebody_writes" else [])
