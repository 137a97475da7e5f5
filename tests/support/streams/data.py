"""Input files with fixed content: file N is what batch N reads, whenever and wherever it runs."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

#: What every input row is, in Spark's words.
SCHEMA = "id string, k string, v long, ts timestamp"
#: Modification time of file 0. The file source takes files in that order.
_EPOCH = 1704067200
_KEYS = 12
_ROWS = 8


def put_files(directory: Path, count: int, *, start: int = 0) -> None:
    """Write the input files ``start`` to ``start + count - 1``: events in ``a``, answers to them in ``b``.

    Each key comes up in two files of three and some events come twice, so that a state which lacks a batch, or has
    one too many, shows within the next few batches.
    """
    for number in range(start, start + count):
        events = [_event(number, r) for r in range(_ROWS)]
        again = [_event(number - 2, r) for r in range(3)] if number >= 2 else []
        _put(directory / "a", number, events + again)
        answers = [_event(n, r) for n in (number - 2, number, number + 1) if n >= 0 for r in range(n % 3, _ROWS, 3)]
        _put(directory / "b", number, answers)


def stateless_rows(file: int, *, faulty: bool = False) -> Counter[tuple[str, int]]:
    """Id and value of the rows that the stateless streams of ``kinds.py`` make of a file.

    :param faulty: by the code with a bug.
    """
    events = [_event(file, r) for r in range(_ROWS)] + ([_event(file - 2, r) for r in range(3)] if file >= 2 else [])
    values = [(str(e["id"]), int(str(e["v"])) * 10 + 1 if faulty else int(str(e["v"]))) for e in events]
    return Counter((id_, v * 2) for id_, v in values if v % 7 != 3)


def _event(file: int, row: int) -> dict[str, object]:
    seconds = file * 5 + row % 5
    stamp = f"2024-01-01T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return {"id": f"e{file}-{row}", "k": f"k{(file * 5 + row) % _KEYS:02d}", "v": file * 100 + row, "ts": stamp}


def _put(directory: Path, number: int, rows: list[dict[str, object]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    # Hidden until it is whole: Spark reads no name with a leading underscore.
    temporary = directory / f"_f{number:05d}"
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(temporary, (_EPOCH + number, _EPOCH + number))
    temporary.rename(directory / f"f{number:05d}.json")
