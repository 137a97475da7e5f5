"""`make airflow`: its stream is declared, its DAGs stop and start it, it waits for a slow machine, and says what to click."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from airflow_ckpt_provider.streams.loading import load_streams
from dev.example_stream import ExampleStream, Running
from dev.run_airflow import PARTS, free_port, is_up, what_to_click
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
#: Runs until it is ended, as a stream does, and says how often it was started.
SLEEPS = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(9999)"


@pytest.fixture
def stream(tmp_path: Path) -> ExampleStream:
    made = ExampleStream(tmp_path / "an example's stream")
    made.prepare()
    return made


def test_the_stream_is_declared_and_its_dags_are_those_to_click(
    stream: ExampleStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    for name, value in stream.variables.items():
        monkeypatch.setenv(name, value)
    (orders,) = load_streams(str(stream.declaration)).values()
    assert (orders.checkpoint, orders.repository) == (str(stream.checkpoint), str(stream.repository))
    declared = DagBag(dag_folder=str(stream.directory / "dags"))
    assert declared.import_errors == {}
    examples = {path.stem for path in (ROOT / "dags").glob("*.py")}
    clicked = set(re.findall(r"http://here/dags/(\w+)", what_to_click("http://here", stream)))
    assert {"ckpt_backup_hourly", "ckpt_report", "ckpt_restore"} <= clicked
    assert clicked <= set(declared.dags) | examples


def test_both_folders_of_dags_are_bundles(stream: ExampleStream, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.configuration import conf
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    for name, value in stream.variables.items():
        monkeypatch.setenv(name, value)
    paths = {bundle.name: bundle.path for bundle in DagBundlesManager().get_all_dag_bundles()}
    # The folder of the first is the one of the configuration.
    assert paths == {"dags-folder": Path(conf.get("core", "dags_folder")), "declared": stream.directory / "dags"}


@pytest.fixture
def running(stream: ExampleStream) -> Iterator[Path]:
    """The stream runs; the file has the process id of each start."""
    started = stream.directory / "started"
    thread = Running(stream, [sys.executable, "-c", SLEEPS, str(started)])
    thread.start()
    yield started
    thread.end()
    assert [pid for pid in pids(started) if is_running(pid)] == []


def pids(started: Path) -> list[int]:
    return [int(line) for line in started.read_text().splitlines()] if started.exists() else []


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_declared_commands_stop_and_start_it(stream: ExampleStream, running: Path) -> None:
    (orders,) = load_streams(str(stream.declaration)).values()
    assert orders.stop
    assert orders.start
    wait_until(lambda: len(pids(running)) == 1, "it runs")
    for _ in range(2):  # again: a task may be run again
        subprocess.run(["sh", "-c", str(orders.stop.command)], check=True, timeout=60)
        assert not is_running(pids(running)[0])
    for _ in range(2):
        subprocess.run(["sh", "-c", str(orders.start.command)], check=True, timeout=60)
    wait_until(lambda: len(pids(running)) == 2, "it runs again")
    assert is_running(pids(running)[1])


def test_it_waits_until_every_part_is_healthy() -> None:
    """However long that takes: one part after the other becomes healthy, each when it is asked again."""
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            states = ", ".join(f'"{part}": {{"status": "healthy"}}' for part in PARTS[: len(asked)])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{{{states}}}".encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as airflow:
            assert is_up(airflow, f"http://127.0.0.1:{server.server_port}")
            airflow.communicate(b"\n")
        server.shutdown()
    assert len(asked) == len(PARTS)


def test_it_waits_no_longer_than_airflow_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as airflow:
        assert not is_up(airflow, f"http://127.0.0.1:{free_port()}")
