"""What Spark's batch logs (``offsets/``, ``commits/``, ``sources/<n>/``) have in common.

A log is a directory of small text files named by number. A reader of Spark accepts only names that parse as a number
(``HDFSMetadataLog.isBatchFile``), plus ``<n>.compact`` in compactible logs; everything else, such as Hadoop's hidden
``.<name>.crc`` and the ``.<name>.<uuid>.tmp`` left by a crash, is ignored.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.store import StoredFile

#: A number as Spark writes it into a name, and the highest one: what is no Java long is none.
_NUMBER, HIGHEST = re.compile(r"0|[1-9][0-9]{0,18}"), 2**63 - 1


_EMPTY = "the file is empty (0 bytes): its writer was stopped half-way, or the copy was torn"
#: How a file of a checkpoint comes back that cannot be read, or is missing.
FETCH_IT = "`airflow-ckpt doctor CHECKPOINT --repair --repository REPOSITORY` fetches it from a backup"
REFUSED_BY_SPARK = f"Spark refuses to start from it too; {FETCH_IT}"


def refuse_empty(file: StoredFile) -> None:
    """Refuse a file of which the listing shows that nothing is in it: Spark writes none of a log or of the state so.

    :raises UnreadableLogError: it has 0 bytes.
    """
    if file.size == 0:
        raise UnreadableLogError(f"{file.path}: {_EMPTY}", path=file.path, hint=REFUSED_BY_SPARK)


def batch_id_of(name: str) -> int | None:
    """Return the batch id that a file name in a log stands for, or ``None`` if Spark would ignore the file."""
    return int(name) if _NUMBER.fullmatch(name) and int(name) <= HIGHEST else None


def split_log(data: bytes, *, path: str, batch_id: int | None, known: frozenset[int]) -> tuple[int, list[str]]:
    r"""Split a log file into its version and the lines after it.

    :param data: content of the file. One leading NUL byte is dropped: Spark's Kafka source writes one
        (``KafkaSourceInitialOffsetWriter``).
    :param path: path of the file, for messages.
    :param batch_id: batch of the file, for messages.
    :param known: versions that the caller can read.
    :raises UnreadableLogError: the file is empty, does not start with ``v<number>``, or has an unknown version.
    """

    def unreadable(reason: str, hint: str) -> UnreadableLogError:
        return UnreadableLogError(f"{path}: {reason}", path=path, batch_id=batch_id, hint=hint)

    if not data:
        raise unreadable(_EMPTY, REFUSED_BY_SPARK)
    try:
        first, *lines = data.removeprefix(b"\x00").decode().split("\n")
    except UnicodeDecodeError as e:
        raise unreadable(f"not UTF-8 text ({e.reason} at byte {e.start})", FETCH_IT) from e
    version = batch_id_of(first[1:]) if first.startswith("v") else None
    if version is None:
        raise unreadable(f"does not start with a log version but with {first[:80]!r}", FETCH_IT)
    if version not in known:
        newest = max(known)
        raise unreadable(
            f"log version v{version} is not known here (newest known: v{newest})",
            "a newer Spark wrote it: upgrade airflow-ckpt-provider",
        )
    return version, lines


def parse_object(text: str, *, path: str, batch_id: int | None) -> dict[str, Any]:
    """Parse a line that must be a JSON object; an absent or empty line is an empty one.

    :raises UnreadableLogError: the line is no JSON object; most often the file was cut off.
    """
    if not text:
        return {}
    try:
        value = load_json(text)
    except ValueError as e:
        raise UnreadableLogError(
            f"{path}: the JSON is broken or cut off ({e})",
            path=path,
            batch_id=batch_id,
            hint=f"Spark cannot read the file either; {FETCH_IT}",
        ) from e
    if not isinstance(value, dict):
        raise UnreadableLogError(
            f"{path}: expected a JSON object, found {text[:80]!r}",
            path=path,
            batch_id=batch_id,
            hint=FETCH_IT,
        )
    return value
