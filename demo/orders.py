"""The input: small files of orders that arrive all the time, the same ones in every run."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

CUSTOMERS = 400
ORDERS_A_FILE = 100
_SEED = 20261121
_OPENING = datetime(2026, 11, 21, tzinfo=UTC)
#: Spark does not read files whose names begin with an underscore.
_COMPLETE = "_COMPLETE"


def opening_of(number: int) -> datetime:
    """When the first order of a file was made.

    :param number: of the file.
    """
    return _OPENING + timedelta(seconds=number)


def orders_of(number: int) -> Iterator[dict[str, object]]:
    """Make the orders of one file.

    :param number: of the file; the same number gives the same orders.
    """
    chance = random.Random(_SEED + number)
    for line in range(ORDERS_A_FILE):
        at = opening_of(number) + timedelta(milliseconds=line)
        yield {
            "order_id": f"{number:05d}-{line:03d}",
            "customer": f"customer-{chance.randrange(CUSTOMERS):03d}",
            "cents": chance.randrange(100, 50_000),
            "at": at.isoformat(),
        }


def is_complete(directory: Path) -> bool:
    """Whether the last file has arrived."""
    return (directory / _COMPLETE).exists()


@dataclass
class Arrivals(threading.Thread):
    """Orders arriving in a directory, whether or not a stream reads them.

    :param directory: where they arrive.
    :param files: how many files in all.
    :param every: seconds from one file to the next, at first; later more, so that a slow machine does not run out of them.
    :param again: how many orders of each file are repeated in the next one.
    """

    directory: Path
    files: int
    every: float
    again: int = 0

    def __post_init__(self) -> None:
        super().__init__(name="arrivals", daemon=True)
        self.written = 0
        self._hurry = threading.Event()
        self._over = threading.Event()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        """Write the files one by one, each appearing at once and whole."""
        for number in range(self.files):
            orders = itertools.chain(orders_of(number), itertools.islice(orders_of(max(0, number - 1)), self.again))
            lines = "".join(json.dumps(order) + "\n" for order in orders)
            unfinished = self.directory / f"_{number:05d}"
            unfinished.write_text(lines)
            unfinished.rename(self.directory / f"orders-{number:05d}.json")
            self.written = number + 1
            self._hurry.wait(self.every * self.files / (self.files - number))
            if self._over.is_set():
                return
        (self.directory / _COMPLETE).touch()

    def hurry(self) -> None:
        """Let the rest arrive without a pause."""
        self._hurry.set()

    def end(self) -> None:
        """Write no more."""
        self._over.set()
        self._hurry.set()


def wait_for(directory: Path, *, at_most: float) -> None:
    """Wait until the input is complete."""
    deadline = time.monotonic() + at_most
    while not is_complete(directory):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{directory} is not complete after {at_most:g} s")
        time.sleep(0.05)
