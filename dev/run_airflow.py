"""Airflow's own web interface with the example DAGs and a running stream, on this machine only, until Ctrl-C (`make airflow`).

PORT and AIRFLOW_HOME in the environment overrule the free port and .cache/airflow.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from dev.example_stream import ExampleStream, running_stream

#: Seconds between two lines that say what is still awaited. There is no limit: a slow machine takes minutes.
SAY_EVERY = 30.0
PARTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def environment(home: Path, port: int) -> dict[str, str]:
    """Return the environment of an Airflow in which everybody is admin, reachable from this machine only.

    :param home: its AIRFLOW_HOME.
    :param port: of its web interface.
    """
    return os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        # Tasks talk to port 8080 if only the port above is set.
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def health(url: str) -> dict[str, Any]:
    """Return what the server says of itself and the others, nothing while it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=5) as answer:  # noqa: S310
            loaded: dict[str, Any] = json.load(answer)
            return loaded
    except (OSError, ValueError):
        return {}


def stop(airflow: subprocess.Popen[bytes]) -> None:
    """End Airflow and every process it started.

    :param airflow: the leader of their process group.
    """
    # First as Ctrl-C would reach `airflow standalone`, which then ends its parts; the rest is for parts that linger.
    for kill, sign, seconds in (
        (os.kill, signal.SIGINT, 8),
        (os.killpg, signal.SIGTERM, 10),
        (os.killpg, signal.SIGKILL, 5),
    ):
        end = time.monotonic() + seconds
        try:
            kill(airflow.pid, sign)
            while time.monotonic() < end:
                airflow.poll()
                os.killpg(airflow.pid, 0)
                time.sleep(0.2)
        except ProcessLookupError:
            return


def is_up(airflow: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until every part of Airflow is healthy; ``False`` if it ended before.

    :param airflow: its process.
    :param url: of its web interface.
    """
    begun = said = time.monotonic()
    while airflow.poll() is None:
        state = health(url)
        missing = [part for part in PARTS if (state.get(part) or {}).get("status") != "healthy"]
        if not missing:
            return True
        if (now := time.monotonic()) - said >= SAY_EVERY:
            said = now
            what = ", ".join(missing) if state else "the web server"
            print(f"still starting after {now - begun:.0f} s, waiting for: {what}", flush=True)
        time.sleep(1)
    return False


def main() -> int:
    """Start, say where it is, stay until asked to stop; return the exit code."""
    home = Path(os.environ.get("AIRFLOW_HOME") or ROOT / ".cache" / "airflow").absolute()
    home.mkdir(parents=True, exist_ok=True)
    port = int(os.environ.get("PORT") or free_port())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    try:
        with running_stream(home / "example") as stream:
            return serve(home, port, stream)
    except KeyboardInterrupt:
        return 0


def what_to_click(url: str, stream: ExampleStream) -> str:
    """Return the first steps.

    :param url: of the web interface.
    :param stream: the stream that its DAGs are about.
    """
    return (
        f"The stream `orders` runs; {stream.declaration} declares it, and its checkpoint is {stream.checkpoint}\n"
        f"  1. {url}/dags/ckpt_backup_hourly  Trigger it: a backup, read again\n"
        f"  2. {url}/dags/ckpt_report  Trigger it: the status of the stream, in the log of the task `report`\n"
        f"  3. {url}/plugin/checkpoints  the same as a page: open `orders`, choose a backup in the timeline\n"
        f"  4. In its form: unpause {url}/dags/ckpt_restore, set Mode to apply and Accepted risks to sink_duplicates,\n"
        f"     start it, and answer the task `approve`: the stream is stopped, its checkpoint restored, and the stream started\n"
        f"  5. {url}/dags/scheduled_backup  one of the example DAGs: trigger it with an empty form"
    )


def serve(home: Path, port: int, stream: ExampleStream) -> int:
    """Run Airflow until it is asked to stop; return the exit code.

    :param home: its AIRFLOW_HOME.
    :param port: of its web interface.
    :param stream: the stream that its DAGs back up.
    """
    url, log = f"http://127.0.0.1:{port}", home / "standalone.log"
    print(f"starting Airflow (a minute or more); its log is {log}", flush=True)
    with log.open("wb") as out:
        # A session of its own: Ctrl-C reaches only this process, which then stops them all in order.
        airflow = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            env=environment(home, port) | stream.variables,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        if not is_up(airflow, url):
            print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:]))
            print(f"Airflow ended with {airflow.returncode} while it started; see {log}", flush=True)
            return 1
        print(f"Airflow is up: {url}/dags   (no login; Ctrl-C stops it)", flush=True)
        print(what_to_click(url, stream), flush=True)
        return airflow.wait()
    except KeyboardInterrupt:
        print("stopping Airflow", flush=True)
        return 0
    finally:
        stop(airflow)


if __name__ == "__main__":
    sys.exit(main())
