"""The seal: a file ``offsets/<newest+1>`` that holds a sentence, so that no Spark can start from the checkpoint.

Spark's write-ahead log is add-only and its newest entry is read at every start. A file there that is no log entry
stops a running stream at a clean batch boundary (``CONCURRENT_STREAM_LOG_UPDATE``) and keeps a stopped one from
starting (``MALFORMED_LOG_FILE``, with our sentence in the message). This module only recognises it;
:mod:`airflow_ckpt_provider.change.sealing` sets and lifts it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

SEAL_PREFIX = b"airflow-ckpt: sealed"
_SENTENCE = re.compile(
    r"airflow-ckpt: sealed by plan (?P<plan>\S+)(?: attempt (?P<attempt>\d+))? "
    r"\((?P<reason>.*), (?P<by>[^,]*), (?P<since>\S+)\); Spark must not start"
)
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Seal:
    """Who keeps Spark from starting, why, and since when.

    :param batch_id: the number it takes in ``offsets/``; not a batch.
    :param plan_id: the plan it belongs to; lifting it needs this id.
    :param reason: why, in words.
    :param made_by: the run or user that set it.
    :param since: when, in UTC; ``None`` where the sentence cannot be read in full.
    :param attempt: number of the attempt that applies the plan; ``None`` without a change under way.
    """

    batch_id: int
    plan_id: str
    reason: str
    made_by: str
    since: datetime | None
    attempt: int | None = None

    @property
    def path(self) -> str:
        """Path in the checkpoint."""
        return f"offsets/{self.batch_id}"

    @property
    def sentence(self) -> str:
        """What the file says, and what Spark's own error will show."""
        since = self.since.strftime(_TIME) if self.since else "?"
        # One line, or Spark's message would show only a part of it.
        reason = " ".join(self.reason.split())
        by = " ".join(self.made_by.replace(",", ";").split()) or "unknown"
        attempt = "" if self.attempt is None else f" attempt {self.attempt}"
        return f"airflow-ckpt: sealed by plan {self.plan_id}{attempt} ({reason}, {by}, {since}); Spark must not start"


def parse_seal(data: bytes, *, batch_id: int) -> Seal | None:
    """Return the seal that a file in ``offsets/`` is, or ``None`` if it is not one.

    A seal that was cut off is still a seal: its plan is then ``unknown``.
    """
    if not data.startswith(SEAL_PREFIX):
        return None
    match = _SENTENCE.match(data.decode(errors="replace"))
    if not match:
        return Seal(batch_id, "unknown", data.decode(errors="replace")[:200], "unknown", None)
    try:
        since = datetime.strptime(match["since"], _TIME).replace(tzinfo=UTC)
    except ValueError:
        since = None
    attempt = int(match["attempt"]) if match["attempt"] else None
    return Seal(batch_id, match["plan"], match["reason"], match["by"], since, attempt)
