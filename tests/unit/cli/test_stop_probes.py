"""A command shows by its exit code whether the query has ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_ckpt_provider.cli.stop_probes import CommandProbe, probes_of
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.opening import open_location


def test_exit_codes() -> None:
    assert CommandProbe("sh -c 'echo  no   such pod; exit 0'").ended() == (
        "`sh -c 'echo  no   such pod; exit 0'` ended with exit code 0 and said: no such pod; 0 means that the query has ended"
    )
    with pytest.raises(RefusedError, match=r"ended with exit code 1; 1 means that the query runs"):
        CommandProbe("false").ended()
    for unknown in ("sh -c 'exit 2'", "sh -c 'exit 127'", "sh -c 'kill -9 $$'"):
        assert CommandProbe(unknown).ended() is None


def test_no_password_of_the_command_is_kept_or_shown(caplog: pytest.LogCaptureFixture) -> None:
    def probe(code: int) -> CommandProbe:
        return CommandProbe(f"sh -c 'exit {code}' curl -u stopper:hunter2 --token hunter2")

    assert "curl -u stopper:*** --token ***" in (probe(0).ended() or "")
    with pytest.raises(RefusedError) as caught:
        probe(1).ended()
    assert probe(2).ended() is None
    assert CommandProbe("sh -c 'sleep 60' --token hunter2", timeout=0.1).ended() is None
    assert "hunter2" not in f"{caught.value} {caplog.text}"
    assert "timed out" in caplog.text


def test_one_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    command = f"sh -c '(sleep 600; echo x) & echo $! > {mark}; wait'"
    assert CommandProbe(command, timeout=0.5).ended() is None
    child = Path("/proc", mark.read_text().strip(), "stat")
    deadline = time.monotonic() + 20
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "what it started still runs"
        time.sleep(0.02)


@pytest.mark.parametrize("command", ["", " ", "sh -c 'exit"])
def test_what_is_no_command(command: str) -> None:
    with pytest.raises(RefusedError):
        CommandProbe(command)


def test_what_cannot_be_run() -> None:
    with pytest.raises(RefusedError, match="no-such-program could not be run"):
        CommandProbe("no-such-program").ended()


def test_those_that_are_given(tmp_path: Path) -> None:
    place = open_location(str(tmp_path))
    assert probes_of(place) == ()
    assert probes_of(place, command="true") == (CommandProbe("true"),)
