"""How long a newcomer waits for the commands of README.md and docs/start.md, in a fresh clone with an empty home."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Settings of the machine that a newcomer has too: where packages come from, and whom to trust.
_OF_THE_MACHINE = (
    "PATH",
    "JAVA_HOME",
    "PIP_",
    "UV_",
    "SSL_",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
)


def commands(page: str, until: str | None = None) -> str:
    """The commands that a page shows, as one script.

    :param page: the page.
    :param until: text before which it stops.
    """
    text = (ROOT / page).read_text()
    found = re.findall(r"^\$ (.*)$", text[: text.index(until)] if until else text, flags=re.MULTILINE)
    return "\n".join(["set -e", 'export PATH="$PWD/.venv/bin:$PATH"', *found])


def steps(*, full: bool) -> Iterator[tuple[str, str, str | None]]:
    """What is timed: what the newcomer gets, the command, and a pattern of the line that is waited for first.

    :param full: run all tests too.
    """
    yield "set up", "make venv", None
    yield "first result (README)", commands("README.md"), None
    yield "first own backup (tutorial)", commands("docs/start.md", until="airflow-ckpt verify"), None
    yield "fast tests", "make test-fast", None
    yield "Java and jars", "make java jars", None
    yield "demo: first batch is committed", "make demo", r".*batch \d+ is committed"
    if full:
        yield "all tests", "make test", None


def run(command: str, first: str | None, *, clone: Path, home: Path) -> list[float]:
    """Seconds until the first line of a pattern, where there is one, and until the end.

    :raises SystemExit: the command failed; its output is printed.
    """
    environment = {n: v for n, v in os.environ.items() if n.upper().startswith(_OF_THE_MACHINE)}
    environment |= {"HOME": str(home), "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    found: list[float] = []
    said: list[str] = []
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            if first and not found and re.match(first, line):
                found.append(time.monotonic() - began)
            said.append(line)
    found.append(time.monotonic() - began)
    if process.returncode:
        sys.exit(f"{command}\n{''.join(said[-60:])}\nexit {process.returncode}")
    return found


def main() -> None:
    """Print a table; ``--full`` runs all tests too."""
    with tempfile.TemporaryDirectory() as directory:
        clone, home = Path(directory, "clone"), Path(directory, "home")
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        print("| step | seconds | since the clone |\n|---|---|---|", flush=True)
        so_far = 0.0
        for name, command, first in steps(full="--full" in sys.argv[1:]):
            found = run(command, first, clone=clone, home=home)
            for label, seconds in zip([name, "demo: all of it"] if first else [name], found, strict=True):
                print(f"| {label} | {seconds:.0f} | {so_far + seconds:.0f} |", flush=True)
            so_far += found[-1]


if __name__ == "__main__":
    main()
