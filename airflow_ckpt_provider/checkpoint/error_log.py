"""Uncaught errors in the text log of a driver: only what was appended since, and no more of it than there is time for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.seal import SEAL_PREFIX
from airflow_ckpt_provider.storage.location import Location

#: What nobody has caught: words that are looked for, and what the line that holds them has to be like. A task that fails and is
#: tried again leaves a Python traceback too, but not at the start of a line.
UNCAUGHT = {
    "Exception in thread": r"^Exception in thread\b",  # the JVM, of a thread that dies
    "Uncaught exception in thread": r"",  # SparkUncaughtExceptionHandler
    "User class threw exception": r"",  # YARN's ApplicationMaster
    " terminated with e": r"\bQuery .* terminated with (error|exception)\b",  # StreamExecution
    "StreamingQueryException": r"\bStreamingQueryException\b",
    "OutOfMemoryError": r"\bOutOfMemoryError\b",
    "A fatal error has been detected": r"^# A fatal error",  # the JVM itself
    "Traceback (most recent call last)": r"^Traceback",  # Python's driver
}
#: More than this is not read at once; the newest part is.
MOST_BYTES = 16 * 1024 * 1024
#: Bytes by which a log is known again.
_KNOWN_BY = 64
#: A start that a seal refused says so within as many characters after the first sign of it.
_NEAR = 8000
_LONGEST_LINE = 500


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far a log was read.

    :param bytes: so many.
    :param mark: what identifies the bytes before: after a rotation there are others.
    :param skipped: bytes that were too many to be read.
    """

    bytes: int = 0
    mark: str = ""
    skipped: int = 0

    def to_json(self) -> list[Any]:
        """The position as plain JSON."""
        return [self.bytes, self.mark, self.skipped]

    @classmethod
    def from_json(cls, value: Any) -> LogPosition | None:
        """The position that :meth:`to_json` wrote."""
        return None if value is None else cls(*value)


def end_of(file: Location) -> LogPosition:
    """The end of a log as it is now; the beginning of one that does not exist yet.

    :param file: the log itself.
    """
    size = file.size("") or 0
    return LogPosition(size, _mark(_part(file, size - min(size, _KNOWN_BY), size)))


def uncaught_error(file: Location, position: LogPosition) -> tuple[str | None, LogPosition]:
    """Look for an uncaught error behind a position. A log that was truncated or rotated is read from its beginning.

    :param file: the log itself.
    :return: the line, for a Python traceback with the line that names the exception; and how far it was read.
    """
    size = file.size("") or 0
    start = position.bytes
    known = min(start, _KNOWN_BY)
    data = _part(file, start - known, min(size, start + MOST_BYTES)) if start <= size else b""
    if start > size or _mark(data[:known]) != position.mark:
        start, known = 0, 0
        data = _part(file, 0, min(size, MOST_BYTES))
    skipped = position.skipped
    if size - start > MOST_BYTES:
        skipped += size - start - MOST_BYTES
        data, known = _part(file, size - MOST_BYTES, size), 0
        start = size - MOST_BYTES
    new = data[known:]
    # A line that is still being written is read now, and again when it is whole.
    whole = new.rfind(b"\n") + 1
    end = start + whole
    before = (data[: known + whole])[-_KNOWN_BY:]
    return _find(new.decode(errors="replace")), LogPosition(end, _mark(before), skipped)


def _find(text: str) -> str | None:
    for begin in sorted({begin for words, like in UNCAUGHT.items() for begin in _lines_with(text, words, like)}):
        if SEAL_PREFIX.decode() in text[begin : begin + _NEAR]:
            continue  # somebody started it while it was sealed; that was the seal's purpose
        first, *rest = text[begin : begin + _NEAR].splitlines()
        said = first.strip()[:_LONGEST_LINE]
        if said.startswith("Traceback"):
            named = next((line.strip() for line in rest if line[:1].strip()), "")
            said = f"{said} {named[:_LONGEST_LINE]}".strip()
        return said
    return None


def _lines_with(text: str, words: str, like: str) -> Iterator[int]:
    """Where the lines begin that hold some words and match a pattern; the words alone find them far faster."""
    at = text.find(words)
    while at >= 0:
        begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        end = len(text) if end < 0 else end
        if re.search(like, text[begin:end]):
            yield begin
        at = text.find(words, end)


def _part(file: Location, start: int, end: int) -> bytes:
    if end <= start:
        return b""
    try:
        return file.read_part("", start, end - start)
    except FileNotFoundError:
        return b""


def _mark(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16] if data else ""
