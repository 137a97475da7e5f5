"""Damage to one content of a backup, wherever it lies: in an object of its own, or in a pack with others.

``files`` is the repository; of one that is encrypted with its key, so that what is wrong can be decrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, part_of


def overwrite(files: Location, path: str, content: bytes) -> None:
    """Let another content be in the place of one; in a pack one of as many bytes."""
    part = part_of(path)
    if part is None:
        files.replace(path, content)
        return
    if len(content) != part.length:
        raise ValueError(f"{len(content)} bytes cannot be in the place of {part.length}")
    pack = files.read(part.pack)
    files.replace(part.pack, pack[: part.start] + content + pack[part.end :])


def spoil(files: Location, entry: FileEntry) -> None:
    """Let another content of as many bytes be in the place of that of a file."""
    overwrite(files, entry.object, b"x" * entry.size)


def flip(files: Location, path: str, *, at: int = 0) -> None:
    """Change a bit of a content."""
    content = bytearray(files.read(path))
    content[at] ^= 1
    overwrite(files, path, bytes(content))


def lose(files: Location, path: str) -> None:
    """Delete the file that a content lies in: the object, or the pack with all others."""
    files.delete(file_of(path))


def cut(files: Location, path: str, *, left: int) -> None:
    """Cut off the file that a content lies in, so that so many bytes of it are left; in a pack none of those behind it."""
    part = part_of(path)
    files.replace(file_of(path), files.read(file_of(path))[: (part.start if part else 0) + left])


def spoiled_file(file: bytes, path: str, change: Callable[[bytes], bytes]) -> bytes:
    """The bytes of the file that a content lies in, once the content was changed.

    In a pack nothing is left behind a content that is shorter, and what is more of a longer one is put in front of it: so the
    content is wrong each time, and those behind it are.

    :param file: its bytes before.
    :param change: what becomes of the content.
    """
    part = part_of(path)
    if part is None:
        return change(file)
    content = file[part.start : part.end]
    made = change(content)
    if len(made) > len(content):
        made = made[len(content) :] + content
    return file[: part.start] + made + (file[part.end :] if len(made) >= len(content) else b"")


def spoiled_with(entries: Iterable[FileEntry], path: str, right: bytes, wrong: bytes | None) -> list[FileEntry]:
    """Those whose contents are damaged once the file that one lies in has other bytes.

    :param right: its bytes before.
    :param wrong: its bytes now; ``None``: it is missing.
    """

    def is_spoiled(entry: FileEntry) -> bool:
        if wrong is None:
            return True
        if (part := part_of(entry.object)) is None:
            return wrong != right
        return part.end > len(wrong) or wrong[part.start : part.end] != right[part.start : part.end]

    return [entry for entry in lying_with(entries, path) if is_spoiled(entry)]


def file_at(repository: Path, path: str) -> Path:
    """The file on a local disk that a content lies in."""
    return repository / file_of(path)


def lying_with(entries: Iterable[FileEntry], path: str) -> list[FileEntry]:
    """Those whose contents lie in the same file as one."""
    return [entry for entry in entries if file_of(entry.object) == file_of(path)]


def is_read(operation: str, asked: str, path: str) -> bool:
    """Whether a request reads the file that a content lies in."""
    return operation == "read" and asked.endswith(file_of(path))
