"""Which file system a local directory is on: a disk of this machine, or one that other machines share."""

from __future__ import annotations

import os
from pathlib import Path

#: Types of file systems whose content outlives this machine.
_SHARED = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
    }
)
_MOUNTS = Path("/proc/self/mounts")


def file_system_of(path: str) -> str | None:
    """Type of the file system that a local path is on, such as ``ext4``; ``None`` where this system does not show."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    best, kind = "", None
    for fields in (line.split() for line in lines):
        if len(fields) < 3:
            continue
        # Spaces in a mount point are written as octal numbers.
        point = fields[1].replace("\\040", " ").rstrip("/")
        if (real == point or real.startswith(f"{point}/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def is_shared(file_system: str | None) -> bool:
    """Whether a file system is one that other machines reach too: a network share, or an object store mounted by FUSE."""
    return file_system is not None and (file_system in _SHARED or file_system.startswith("fuse."))
