"""Names of numbered documents: ``000001.json``, ``000002.json``, … ``1000000.json``, or ``000001-contents.json``."""

from __future__ import annotations


def number_of(path: str) -> int | None:
    """The number in a path that ends like ``000001.json``; ``None``: it is not the one name of a number.

    ``1.json`` has none. It would stand for the same document as ``000001.json``.
    """
    digits = path.rpartition("/")[2].removesuffix(".json")
    if not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    return number if path.rpartition("/")[2] == numbered(number) else None


def numbered(number: int) -> str:
    """The file name of a number."""
    return f"{number:06d}.json"


def leading_number(path: str) -> int:
    """The number with which the name of a file like ``000001-contents.json`` begins; 0 if there is none."""
    digits = path.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdecimal() else 0
