"""Names of files that are written or deleted in two steps, beside the file that they are of."""

from __future__ import annotations

import uuid

#: The longest name of a file on disks and HDFS, in bytes.
_LONGEST = 255


def hidden_name(path: str) -> str:
    """A new name beside a file, in Spark's own form of temporary names, which every Spark ignores.

    Of a long name only the beginning is part of it, so that every file whose own name fits can be written.
    """
    directory, _, name = path.rpartition("/")
    end = f".{uuid.uuid4()}.tmp"
    # A name that is cut off within a character loses that character, and one that is no UTF-8 what is none.
    start = name.encode(errors="surrogatepass")[: _LONGEST - 1 - len(end)].decode(errors="ignore")
    return f"{directory}/.{start}{end}"


def is_hidden_name_of(path: str, name: str) -> bool:
    """Whether this is a hidden name of the file ``name``: what a process leaves that is killed while it writes the file."""
    return path.startswith(f".{name}.") and path.endswith(".tmp")
