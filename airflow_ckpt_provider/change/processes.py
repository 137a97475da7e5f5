"""Which process of which host and container: what an attempt says of itself, and others can check."""

from __future__ import annotations

import os
from pathlib import Path


def process_of(pid: int) -> str:
    """Identify a process, as ``<boot>/<namespace>/<start time>``; a start time of 0 if there is no such process.

    A process id is given out again after a while, and means something else in every container; with these it does not.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    try:
        # The name of the program, in brackets, may hold anything; the fields follow its last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        started = "0" if fields[0] in ("Z", "X") else fields[19]
    except FileNotFoundError:
        started = "0"
    except (OSError, IndexError):
        return ""
    return f"{boot}/{namespace}/{started}"


def share_clock(process: str, other: str) -> bool:
    """Whether two processes are of one host, as far as the system says."""
    boot = process.rpartition("/")[0]
    return bool(boot) and boot == other.rpartition("/")[0]
