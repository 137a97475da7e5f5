from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from airflow_ckpt_provider.backup import lease as module
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.lease import lease
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import BackupRunningError, LeaseLostError, StorageError
from airflow_ckpt_provider.storage.clocks import Clocks
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import dead_pid, stream
from tests.support.checkpoints import plant
from tests.support.waiting import wait_until
from tests.support.watched_stores import watched

PATH = "running/orders.json"


def held(place: Location) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(place.read(PATH))
    return document


def hold(place: Location, **changes: Any) -> None:
    """A lease of somebody else: by default alive, on this host, just renewed."""
    document = {"holder": "other", "host": socket.gethostname(), "pid": os.getppid(), "made_by": "run 1"}
    place.replace(PATH, json.dumps({**document, "renewed": time.time(), "released": False, **changes}).encode())


def test_held_for_the_time_of_the_block(place: Location) -> None:
    with lease(place, "orders", made_by="run 2"):
        mine = held(place)
        assert (mine["pid"], mine["host"], mine["made_by"], mine["released"]) == (
            os.getpid(), socket.gethostname(), "run 2", False,
        )  # fmt: skip
    assert held(place)["released"]
    with lease(place, "orders", made_by=""):
        assert held(place)["holder"] != mine["holder"]


def test_released_after_an_error_too(place: Location) -> None:
    with pytest.raises(OSError, match="full"), lease(place, "orders", made_by=""):
        raise OSError("full")
    assert held(place)["released"]


def test_a_second_one_is_refused(place: Location) -> None:
    with lease(place, "orders", made_by="run 1"):
        mine = held(place)
        since = module.datetime.fromtimestamp(mine["renewed"], module.UTC).isoformat(timespec="seconds")
        with pytest.raises(BackupRunningError) as error, lease(place, "orders", made_by="run 2"):
            pytest.fail("it was let in")
        assert error.value.message == (
            f"another backup of this stream is running: process {os.getpid()} on {socket.gethostname()} for run 1, "
            f"last sign of life {since}"
        )
        assert error.value.hint == (
            "wait for it to end; should its host be gone, running/orders.json counts as abandoned 90 s after that"
        )
        assert held(place) == mine


def test_another_stream_is_not_concerned(place: Location) -> None:
    with lease(place, "orders", made_by=""), lease(place, "returns", made_by=""):
        pass


def test_a_real_second_process_is_refused(tmp_path: Any) -> None:
    """Held by another process that lives, then dies silently."""
    from airflow_ckpt_provider.storage.local_store import LocalStore

    place = Location(LocalStore(), str(tmp_path))
    code = (
        "import sys\n"
        "from airflow_ckpt_provider.backup.lease import lease\n"
        "from airflow_ckpt_provider.storage.local_store import LocalStore\n"
        "from airflow_ckpt_provider.storage.location import Location\n"
        "with lease(Location(LocalStore(), sys.argv[1]), 'orders', made_by='run 1'):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BackupRunningError, match=f"process {other.pid} on"), lease(place, "orders", made_by=""):
            pytest.fail("it was let in")
    finally:
        other.kill()
        other.communicate()
    with lease(place, "orders", made_by="run 2"):
        assert held(place)["made_by"] == "run 2"
    assert not [path for path in place.walk() if path.endswith(".tmp")]


def test_a_dead_process_of_this_host_is_taken_over_at_once(place: Location) -> None:
    hold(place, pid=dead_pid())
    with lease(place, "orders", made_by="run 2"):
        assert held(place)["made_by"] == "run 2"


def test_a_process_of_another_host_is_given_time(place: Location) -> None:
    hold(place, pid=dead_pid(), host="elsewhere")
    with pytest.raises(BackupRunningError, match="on elsewhere for run 1"), lease(place, "orders", made_by=""):
        pytest.fail("it was let in")
    hold(place, host="elsewhere", renewed=time.time() - 89)
    with pytest.raises(BackupRunningError), lease(place, "orders", made_by=""):
        pytest.fail("it was let in")


def test_an_abandoned_one_is_taken_over(place: Location) -> None:
    hold(place, host="elsewhere", renewed=time.time() - 91)
    with lease(place, "orders", made_by="run 2"):
        assert held(place)["made_by"] == "run 2"


def test_it_is_renewed(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RENEW_EVERY", 0.01)
    with lease(place, "orders", made_by=""):
        first = held(place)["renewed"]
        deadline = time.monotonic() + 10
        while held(place)["renewed"] == first:
            assert time.monotonic() < deadline
    assert held(place)["released"]


def test_two_take_it_over_at_the_same_moment(place: Location) -> None:
    """Whoever writes last has it; the other one finds that and steps back."""
    hold(place, pid=dead_pid())

    def be_last(operation: str, path: str) -> None:
        if operation == "read" and store.count("replace"):
            hold(place, made_by="run 3")

    location, store = watched(place, be_last)
    with pytest.raises(BackupRunningError, match="for run 3"), lease(location, "orders", made_by="run 2"):
        pytest.fail("it was let in")
    assert held(place)["made_by"] == "run 3"


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"[]", b"\xff"])
def test_a_damaged_lease_is_nobody_s(place: Location, data: bytes) -> None:
    """A courtesy, not a lock: it must not keep a stream from ever being backed up again."""
    place.replace(PATH, data)
    with lease(place, "orders", made_by="run 2"):
        assert held(place)["made_by"] == "run 2"


@pytest.mark.parametrize(
    "change",
    [{"renewed": "now"}, {"renewed": 1e300}, {"renewed": time.time() + 10**6}, {"pid": 2**70}, {"pid": 0}, {"host": None},
     {"holder": 1}, {"made_by": ["x"]}],
)  # fmt: skip
def test_a_forged_lease_is_nobody_s(place: Location, change: dict[str, Any]) -> None:
    """It would keep the stream from ever being backed up again, or end the backup with an error that says nothing."""
    hold(place, **change)
    with lease(place, "orders", made_by="run 2"):
        assert held(place)["made_by"] == "run 2"


class TestAHolderThatStandsStill:
    def test_writes_no_more_once_it_could_have_been_taken_over(
        self, place: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [100.0, 200.0, 300.0]
        monkeypatch.setattr(Clocks, "_now", lambda self: tuple(now))
        with lease(place, "orders", made_by="") as guarded:
            now[1] += 74
            guarded.create("objects/orders/aa/in-time", b"x")
            now[1] += 2
            with pytest.raises(
                LeaseLostError, match=r"the backup of orders .* has lost its lease: it could not be renewed"
            ):
                guarded.create("objects/orders/aa/late", b"x")
            assert guarded.read("objects/orders/aa/in-time") == b"x", "reading is free"
            hold(place, made_by="run 2")
        assert held(place)["made_by"] == "run 2", "nor does it release what is another's by now"
        assert not place.find("objects/orders/aa/late")

    def test_its_backup_ends_with_an_error_and_the_next_one_uses_what_it_copied(
        self, place: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plant(place / "orders", stream())
        now, stood_still = [100.0, 200.0, 300.0], []
        monkeypatch.setattr(Clocks, "_now", lambda self: tuple(now))

        def stand_still(operation: str, path: str) -> None:
            if operation == "create" and "/claims/" in path and path.endswith(".end.json") and not stood_still:
                stood_still.append(path)
                now[0] += 100

        seen, _ = watched(place / "backups", stand_still)
        Repository.open_or_create(place / "backups")
        with pytest.raises(LeaseLostError):
            create_backup(Checkpoint.at(place / "orders"), Repository(seen, "r"))
        repository = Repository.open(place / "backups")
        assert not repository.backup_ids("orders")
        hold(place / "backups", pid=dead_pid())
        assert create_backup(Checkpoint.at(place / "orders"), repository).copied_files == 0


class TestRenewals:
    """With the real thread, as fast as it can."""

    @pytest.fixture(autouse=True)
    def _often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_RENEW_EVERY", 0.01)

    def test_one_that_fails_is_tried_again(self, place: Location) -> None:
        """One failure ended the renewing for ever: 90 seconds later the next backup took over from one that lived."""
        failures = [3]

        def fail(operation: str, path: str) -> None:
            if operation == "replace" and path.endswith(PATH) and failures[0]:
                failures[0] -= 1
                raise StorageError("could not write it: 503") if failures[0] else OSError("broken pipe")

        location, _ = watched(place, fail)
        with lease(location, "orders", made_by=""):
            first = held(place)["renewed"]
            wait_until(lambda: held(place)["renewed"] != first)
            assert failures == [0]
        assert held(place)["released"]

    def test_one_that_finds_another_holder(self, place: Location) -> None:
        def run() -> None:
            with lease(place, "orders", made_by="") as guarded:
                hold(place, host="elsewhere", made_by="run 2")

                def lost() -> bool:
                    try:
                        guarded.replace("x", b"")
                    except LeaseLostError:
                        return True
                    return False

                wait_until(lost)
                guarded.replace("x", b"")

        with pytest.raises(LeaseLostError, match=f"process {os.getppid()} on elsewhere took it over"):
            run()
        assert held(place)["made_by"] == "run 2"
