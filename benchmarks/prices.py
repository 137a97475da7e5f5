"""What requests cost at list prices: edit the constants when a store changes them, and run ``python -m benchmarks.report``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Prices:
    """Dollars for a thousand requests.

    :param store: whose.
    :param published: when they were taken from its page.
    :param writing: of PUT, COPY, POST and LIST.
    :param reading: of GET and HEAD; DELETE is free.
    """

    store: str
    published: str
    writing: float
    reading: float

    def dollars(self, kinds: Mapping[str, int]) -> float:
        """Price of some requests.

        :param kinds: kind -> how many.
        """
        writing = sum(kinds.get(kind, 0) for kind in ("PUT", "COPY", "POST", "LIST"))
        reading = sum(kinds.get(kind, 0) for kind in ("GET", "HEAD"))
        return (writing * self.writing + reading * self.reading) / 1000


S3 = Prices("Amazon S3 Standard, us-east-1", "2025", writing=0.005, reading=0.0004)
#: Class A and class B operations; a copy is a rewrite, of class A.
GCS = Prices("Google Cloud Storage Standard, one region", "2025", writing=0.005, reading=0.0004)
STORES = (S3, GCS)

STREAMS = 300
#: Hourly backups of all streams in a month of 30 days.
BACKUPS_A_MONTH = STREAMS * 24 * 30
