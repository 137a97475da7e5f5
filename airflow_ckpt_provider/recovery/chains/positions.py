"""The positions of a reader behind the rollback of a Delta table that it reads.

A rollback is a commit that removes files. Delta's source reads the table commit by commit: one that starts before it reads the
rows of every commit that the rollback removed, and then stops at the rollback (``DELTA_SOURCE_IGNORE_DELETE``,
``DELTA_SOURCE_TABLE_IGNORE_CHANGES``); with ``skipChangeCommits`` it passes the rollback silently and keeps those rows. What it
has to do is to continue behind the rollback, once its own state and table are those of the version that was rolled back to.

So the newest log entry gets the position behind the rollback. The entry before it gets the same one: at its start Spark asks a
source of this kind again for what lies between the two (``MicroBatchExecution.populateStartOffsets``), and would meet the
rollback there. Between equal positions the source answers nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, parse_offsets
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.json_text import load_json

#: The index before the first file of a version, as Delta writes it in offsets of version 1 and of version 3.
BEFORE_ALL = (-1, -100)


def moved_entries(read: Callable[[str], bytes], batch_id: int, behind: Mapping[str, int]) -> dict[str, str]:
    """The two newest log entries with some of their sources behind a version.

    :param read: returns the content of a path in the checkpoint; ``FileNotFoundError`` if it does not exist.
    :param batch_id: the batch after which the query starts; at least 1.
    :param behind: source -> the newest version that it does not read.
    :return: path -> content.
    :raises UnreadableLogError: an entry has not the form that is known.
    """
    newest = parse_offsets(read(f"{OFFSETS}/{batch_id}"), batch_id=batch_id)
    offsets = {s.source: s.offset for s in newest.sources if isinstance(s.offset, DeltaOffset)}
    texts = {source: _behind(offsets[source], version) for source, version in behind.items()}
    return {
        path: _with(read(path).decode(), texts, path=path, batch_id=number)
        for number in (batch_id - 1, batch_id)
        for path in [f"{OFFSETS}/{number}"]
    }


def _behind(offset: DeltaOffset, version: int) -> str:
    """The offset before the first file of the next version, as Spark writes it: "all of this version was read".

    The offset itself is one before the first file of a version.
    """
    value = {**load_json(offset.text), "reservoirVersion": version + 1}
    return json.dumps(value, separators=(",", ":"))


def _with(content: str, texts: Mapping[str, str], *, path: str, batch_id: int) -> str:
    """A log entry with other offsets for some sources; every other line stays byte for byte."""
    lines = content.split("\n")
    version = parse_offsets(content.encode(), batch_id=batch_id).version
    numbers = [number for number, line in enumerate(lines) if number >= 2 and line]
    named = {str(i): (number, "") for i, number in enumerate(numbers)}
    if version != 1:
        named = {lines[n].partition(":")[0]: (n, f"{lines[n].partition(':')[0]}:") for n in numbers}
    for source, text in texts.items():
        if source not in named:
            raise UnreadableLogError(f"{path} has no offset of source {source}", path=path, batch_id=batch_id)
        number, prefix = named[source]
        lines[number] = prefix + text
    return "\n".join(lines)
