"""Hadoop's own checksums of local files: the hidden ``.<name>.crc`` beside a file."""

from __future__ import annotations


def hidden_checksum(path: str) -> str:
    """Path of Hadoop's own checksum of a local file."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.crc" if directory else f".{name}.crc"


def is_checksum(path: str) -> bool:
    """Whether a file is Hadoop's own checksum of another, which says nothing without that one."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".crc")
