"""``sources/<n>/`` of a file source: every file that it has read or planned to read (``FileStreamSourceLog``).

``<k>`` holds the files of log id k, ``<k>.compact`` those of all log ids up to k, each with its log id as ``batchId``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from airflow_ckpt_provider.checkpoint.gaps import gaps
from airflow_ckpt_provider.checkpoint.logs import FETCH_IT, batch_id_of, parse_object, split_log
from airflow_ckpt_provider.errors import UnreadableLogError

_KNOWN = frozenset({1})
#: Missing entries that are named, of those that follow each other; and the last of them.
_NAMED = 100
#: Log id of files that count as read though no batch of this checkpoint read them; see :func:`seeded_log`. No log gets
#: that far, and Spark, which reads from an entry only what bears the entry's own id, never reads them.
SEEDED = 9_000_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """One file of the log.

    :param path: its URI as Spark wrote it, percent-encoded.
    :param modified_ms: its modification time when it was listed, milliseconds since the epoch.
    :param log_id: the log id that took it.
    """

    path: str
    modified_ms: int
    log_id: int


@dataclass(frozen=True, slots=True)
class FileSourceLog:
    """What of a file source's log can be read, divided at one log id.

    :param read: files up to the log id.
    :param beyond: files logged after it.
    :param unread: log files that are missing or cannot be read, each with the reason. Files they alone named are missing
        in ``read`` or ``beyond``.
    """

    read: tuple[LoggedFile, ...]
    beyond: tuple[LoggedFile, ...]
    unread: tuple[tuple[str, str], ...] = ()


def parse_file_log(data: bytes, *, path: str, log_id: int) -> list[LoggedFile]:
    """Parse one log file.

    :param log_id: its number; of a compacted file the files keep their own.
    :raises UnreadableLogError: empty, cut off, or of an unknown version.
    """
    _, lines = split_log(data, path=path, batch_id=None, known=_KNOWN)
    found = []
    for line in filter(None, lines):
        entry = parse_object(line, path=path, batch_id=None)
        try:
            of = int(entry["batchId"])
            kept = of if path.endswith(".compact") or of == SEEDED else log_id
            found.append(LoggedFile(str(entry["path"]), int(entry["timestamp"]), kept))
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise UnreadableLogError(
                f"{path}: expected a file with path, timestamp and batchId, found {line[:80]!r}",
                path=path,
                hint=f"Spark cannot read it either; {FETCH_IT}",
            ) from e
    return found


def first_read(names: Collection[str]) -> list[str]:
    """What :func:`read_file_log` reads of a log that is whole: the newest compacted file and all after it."""
    compacted = [n for name in names if (n := batch_id_of(name.removesuffix(".compact"))) is not None and "." in name]
    base = max(compacted, default=-1)
    later = [name for name in names if (n := batch_id_of(name)) is not None and n > base]
    return [*([f"{base}.compact"] if compacted else []), *later]


def read_file_log(
    names: Collection[str], read: Callable[[str], bytes], last: int, *, directory: str = "", planned_to: int = -1
) -> FileSourceLog:
    """Read a file source's log.

    What cannot be read is named, and an older compacted file replaces a newer one where it can.

    :param names: names of the files in ``sources/<n>``.
    :param read: returns the content of one of them; ``FileNotFoundError`` where it is gone.
    :param last: the log id to divide at: ``logOffset`` of an offset; -1 where nothing was read.
    :param directory: ``sources/<n>``, for messages.
    :param planned_to: the log id up to which a batch was planned, which has to be there too.
    """
    plain = {n for n in map(batch_id_of, names) if n is not None}
    compacted = {
        n
        for n in (batch_id_of(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
        if n is not None
    }
    unread: list[tuple[str, str]] = []

    def parsed(name: str, log_id: int) -> list[LoggedFile] | None:
        path = f"{directory}/{name}" if directory else name
        try:
            return parse_file_log(read(name), path=path, log_id=log_id)
        except FileNotFoundError:
            unread.append((path, "the file is gone"))
        except UnreadableLogError as e:
            unread.append((path, e.message))
        return None

    found: dict[tuple[int, str], LoggedFile] = {}
    base = -1
    # The oldest that shows all up to `last` is not needed: the newest compacted file holds everything before it.
    for number in sorted(compacted, reverse=True):
        files = parsed(f"{number}.compact", number)
        if files is not None:
            found.update({(f.log_id, f.path): f for f in files})
            base = number
            break
    newest = max([last, planned_to, *plain, *compacted], default=-1)
    for number in sorted((n for n in plain if n > base), reverse=True):
        files = parsed(str(number), number)
        found.update({(f.log_id, f.path): f for f in files or ()})
    for gap in gaps({*plain, *compacted}, base + 1, newest):
        unread += [
            (f"{directory}/{n}" if directory else str(n), "the file is missing")
            for n in (*gap[:_NAMED], *gap[_NAMED:][-1:])
        ]
    everything = sorted(found.values(), key=lambda f: (f.log_id, f.modified_ms, f.path))
    return FileSourceLog(
        read=tuple(f for f in everything if f.log_id <= last or f.log_id == SEEDED),
        beyond=tuple(f for f in everything if last < f.log_id < SEEDED),
        unread=tuple(unread),
    )
