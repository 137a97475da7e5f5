"""How far a stream is: two listings and at most three small reads, however many batches there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, SourceOffset, parse_offsets
from airflow_ckpt_provider.checkpoint.poll import list_logs
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.errors import NotACheckpointError
from airflow_ckpt_provider.parallel import side_by_side
from airflow_ckpt_provider.storage.location import Location

#: Next step at a place that holds no checkpoint.
NO_CHECKPOINT = (
    "check the address: it is the checkpointLocation of the query. It may also not have started yet; if it was deleted, put it "
    "back: airflow-ckpt restore REPOSITORY latest CHECKPOINT"
)

#: How often a stream that purges what was just listed is read again.
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """What has been logged and committed.

    :param uri: the checkpoint.
    :param query_id: the query's id, or ``None`` where ``metadata`` is missing.
    :param logged: batch ids in ``offsets/``, ascending, a seal left out.
    :param committed: batch ids in ``commits/``, ascending.
    :param newest: the newest offset log entry, or ``None`` before the first batch.
    :param seal: the seal, if the checkpoint carries one.
    """

    uri: str
    query_id: str | None
    logged: tuple[int, ...]
    committed: tuple[int, ...]
    newest: OffsetEntry | None
    seal: Seal | None

    @property
    def latest_logged(self) -> int | None:
        """Newest batch with an offset log entry."""
        return self.logged[-1] if self.logged else None

    @property
    def latest_committed(self) -> int | None:
        """Newest batch with a commit log entry."""
        return self.committed[-1] if self.committed else None

    @property
    def latest_begun(self) -> int | None:
        """Newest batch with an entry in either log."""
        return max((*self.logged[-1:], *self.committed[-1:]), default=None)

    @property
    def is_continuous(self) -> bool:
        """Whether the query runs in continuous mode."""
        return self.newest is not None and self.newest.is_continuous

    @property
    def gap(self) -> int:
        """Newest logged minus newest committed batch: 0 or 1 in a healthy synchronous query.

        Without a commit, the number of logged batches counts; negative where offsets were lost.
        """
        if self.latest_logged is None and self.latest_committed is None:
            return 0
        return (-1 if self.latest_logged is None else self.latest_logged) - (
            -1 if self.latest_committed is None else self.latest_committed
        )

    @property
    def uncommitted(self) -> tuple[int, ...]:
        """Logged batches newer than the newest committed one."""
        latest = -1 if self.latest_committed is None else self.latest_committed
        return tuple(b for b in self.logged if b > latest)

    @property
    def unlogged(self) -> tuple[str, ...]:
        """Why the query may have written rows that its logs do not show, in words."""
        return why_unlogged(self.logged, self.committed, self.newest)

    @property
    def batch_time(self) -> datetime | None:
        """When the newest logged batch was planned, in UTC."""
        return self.newest.time if self.newest else None

    @property
    def sources(self) -> tuple[SourceOffset, ...]:
        """End offsets of the newest logged batch."""
        return self.newest.sources if self.newest else ()

    def to_json(self) -> dict[str, Any]:
        """Progress as plain JSON."""
        return {
            "uri": self.uri,
            "query_id": self.query_id,
            "latest_logged": self.latest_logged,
            "latest_committed": self.latest_committed,
            "gap": self.gap,
            "batch_time": self.batch_time.isoformat() if self.batch_time else None,
            "sources": [source.to_json() for source in self.sources],
            "sealed": self.seal.sentence if self.seal else None,
        }


def why_unlogged(logged: Sequence[int], committed: Sequence[int], newest: OffsetEntry | None) -> tuple[str, ...]:
    """Why a query may have written rows that its logs do not show, in words.

    With asynchronous progress tracking (``AsyncProgressTrackingMicroBatchExecution``) batches are run that are never logged. In
    continuous mode (``ContinuousExecution``) an epoch is logged when all of its rows are in the sink.

    :param logged: batch ids in ``offsets/``, a seal left out.
    :param committed: batch ids in ``commits/``.
    :param newest: the newest offset log entry.
    """
    found = []
    both = {*logged, *committed}
    if both and len(both) < max(both) - min(both) + 1:
        found.append(
            f"{OFFSETS}/ lacks batches between {min(both)} and {max(both)}: asynchronous progress tracking runs batches that it "
            "does not log"
        )
    if newest and newest.is_continuous:
        found.append("in continuous mode rows of an epoch are in the sink before the epoch is logged")
    return tuple(found)


def read_progress(location: Location) -> Progress:
    """Read ``offsets/``, ``commits/`` and ``metadata``.

    :raises NotACheckpointError: none of the three is there.
    :raises UnreadableLogError: ``metadata`` or the newest offset log entry cannot be parsed.
    """
    for _ in range(_LOOKS - 1):
        try:
            return _look(location)
        except FileNotFoundError:  # the newest entry was purged since it was listed: the stream is that fast
            continue
    return _look(location)


def _look(location: Location) -> Progress:
    query_id, logs = side_by_side(lambda: _query_id(location), lambda: list_logs(location))
    logged, committed = tuple(sorted(logs.offsets)), tuple(sorted(logs.commits))
    if not logged and not committed and query_id is None:
        raise NotACheckpointError(
            f"{location} is not a checkpoint: it has no {OFFSETS}/, no {COMMITS}/ and no {METADATA_FILE}",
            hint=NO_CHECKPOINT,
        )
    seal = None
    newest = None
    while logged and newest is None:
        data = location.read(f"{OFFSETS}/{logged[-1]}")
        mark = parse_seal(data, batch_id=logged[-1])
        if mark is None:
            newest = parse_offsets(data, batch_id=logged[-1])
        else:  # there are two for a moment while a restore puts a higher one over the first
            seal = seal or mark
            logged = logged[:-1]
    return Progress(location.uri, query_id, logged, committed, newest, seal)


def _query_id(location: Location) -> str | None:
    try:
        return parse_query_id(location.read(METADATA_FILE))
    except FileNotFoundError:
        return None
