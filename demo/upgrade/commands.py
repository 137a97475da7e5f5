"""What an operator of the stream types on a shell, and the tasks of ``safe_upgrade`` run.

    python -m demo.upgrade.commands DIRECTORY start
    python -m demo.upgrade.commands DIRECTORY stop
    python -m demo.upgrade.commands DIRECTORY deploy VERSION
    python -m demo.upgrade.commands DIRECTORY roll-back
    python -m demo.upgrade.commands DIRECTORY check

Each may be run again: what is done already is fine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_ckpt_provider.spark.stopping import clear_stop, request_stop
from demo.upgrade.checks import wrong_seconds
from demo.upgrade.place import Place
from demo.upgrade.versions import VERSIONS

_CHECKOUT = Path(__file__).parents[2]


def start(place: Place, *, within: float = 30.0) -> str:
    """Start the deployed version as a process of its own; return when its driver runs.

    :param within: seconds it may take.
    """
    if place.driver:
        return f"runs already, process {place.driver}"
    version = place.deployed[-1]
    clear_stop(str(place.stop))
    with place.log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo.upgrade.stream", str(place.root), version],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=_CHECKOUT,
            start_new_session=True,
        )
    if not _wait(lambda: place.driver or process.poll() is not None, within) or not place.driver:
        raise SystemExit(f"version {version} did not start; see {place.log}")
    return f"version {version} runs, process {place.driver}"


def stop(place: Place, *, within: float = 20.0) -> str:
    """Ask it to end after its batch and wait until it has; one that does not is killed, as a cluster manager does.

    :param within: seconds for the batch.
    """
    request_stop(str(place.stop), reason="upgrade")
    if _wait(lambda: not place.driver, within):
        return "stopped"
    kill(place)
    return f"killed: its batch was not over after {within:g} s"


def kill(place: Place) -> None:
    """``kill -9`` the driver and what it has started (Spark's Java), by the id of its own process group."""
    if driver := place.driver:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver, signal.SIGKILL)
        _wait(lambda: not place.driver, 10)


def deploy(place: Place, version: str) -> str:
    """Have the next start run another version.

    :param version: which.
    """
    if version not in VERSIONS:
        raise SystemExit(f"there is no version {version}; there are {', '.join(VERSIONS)}")
    if place.deployed[-1:] != [version]:
        place.set_deployed([*place.deployed, version])
    return f"version {version} is deployed"


def roll_back(place: Place, version: str) -> str:
    """Have the next start run the version before.

    :param version: the one that is undone; if it is not deployed there is nothing to do.
    """
    if place.deployed[-1:] == [version]:
        place.set_deployed(place.deployed[:-1])
    return f"version {place.deployed[-1]} is deployed"


def check(place: Place) -> str:
    """Whether the table holds each order once, as far as it has come: a data check of the kind that only the user knows."""
    if wrong := wrong_seconds(place.table):
        raise SystemExit("not 100 orders a second: " + ", ".join(f"{count} at {at}" for at, count in wrong[:3]))
    return "each second has its 100 orders"


def _wait(condition: Callable[[], object], within: float) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def main(argv: Sequence[str]) -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m demo.upgrade.commands")
    parser.add_argument("directory", type=Path)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("start", "stop", "check"):
        verbs.add_parser(verb)
    for verb in ("deploy", "roll-back"):
        verbs.add_parser(verb).add_argument("version")
    chosen = parser.parse_args(argv)
    place = Place(chosen.directory.absolute())
    match chosen.verb:
        case "start":
            print(start(place))
        case "stop":
            print(stop(place))
        case "check":
            print(check(place))
        case "deploy":
            print(deploy(place, chosen.version))
        case "roll-back":
            print(roll_back(place, chosen.version))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
