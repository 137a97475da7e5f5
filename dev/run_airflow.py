"""Airflow's own web interface with the example DAGs, on this machine only, until Ctrl-C (`make airflow`).

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

START_SECONDS = 300
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


def main() -> int:
    """Start, say where it is, stay until told to stop; return the exit code."""
    home = Path(os.environ.get("AIRFLOW_HOME") or ROOT / ".cache" / "airflow").absolute()
    home.mkdir(parents=True, exist_ok=True)
    port = int(os.environ.get("PORT") or free_port())
    url = f"http://127.0.0.1:{port}"
    log = home / "standalone.log"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    print(f"starting Airflow (about a minute); its log is {log}", flush=True)
    with log.open("wb") as out:
        # A session of its own: Ctrl-C reaches only this process, which then stops them all in order.
        airflow = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            env=environment(home, port),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + START_SECONDS
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        while airflow.poll() is None:
            state = health(url)
            if all((state.get(part) or {}).get("status") == "healthy" for part in parts):
                break
            if time.monotonic() > end:
                print(f"Airflow is not healthy after {START_SECONDS} s: {state or 'no answer'}", flush=True)
                return 1
            time.sleep(1)
        else:
            print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:]))
            print(f"Airflow ended with {airflow.returncode} while it started; see {log}", flush=True)
            return 1
        print(f"Airflow is up: {url}/dags   (no login; Ctrl-C stops it)", flush=True)
        return airflow.wait()
    except KeyboardInterrupt:
        print("stopping Airflow", flush=True)
        return 0
    finally:
        stop(airflow)


if __name__ == "__main__":
    sys.exit(main())
