"""What the tests of bad input have in common: how a command is refused, and that it changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.command_line import Finished
from tests.support.fingerprints import fingerprint

#: Directories of a repository in which a change that has begun keeps its plan and what it sets aside.
WORK = ("plans", "set-aside")


def refused(finished: Finished, message: str, hint: str, *, code: int = 1) -> None:
    assert finished.err == f"error: {message}\nHINT: {hint}\n"
    assert (finished.code, finished.out) == (code, "")


def says(finished: Finished, *words: str, code: int) -> None:
    """As ``refused``, for messages that hold what only the store knows."""
    first, second, *more = finished.err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("HINT: ")
    assert more == []
    for word in words:
        assert word in finished.err
    assert (finished.code, finished.out) == (code, "")


@contextlib.contextmanager
def unchanged(*places: Path, but: tuple[str, ...] = ()) -> Iterator[None]:
    """Nothing in these places is other afterwards.

    :param but: names of directories that may be.
    """
    before = fingerprint(*places, without=but)
    yield
    assert fingerprint(*places, without=but) == before


def some_files(place: Path) -> None:
    (place / "data").mkdir(parents=True)
    (place / "data" / "part-0.parquet").write_bytes(b"PAR1")
    (place / "README").write_text("not a checkpoint")
