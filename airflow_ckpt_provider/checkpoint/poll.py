"""One cheap poll of the logs of a stream: two listings, however many batches there are, and the times they show.

``commits/`` is listed before ``offsets/``. Spark logs a batch before it commits it, so in this order a stream that moves
between the two listings seems to have one batch more under way than it has, and never one less: what looks drained is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS, OffsetEntry, parse_offsets
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.seal import Seal, parse_seal
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.store import StoredFile

#: Below this many seconds between the oldest and the newest commit there is no rate to speak of (a restored checkpoint
#: has all of its files from one moment).
_SHORTEST_WINDOW = 1.0


@dataclass(frozen=True, slots=True)
class Logs:
    """The files of ``offsets/`` and ``commits/`` by batch id.

    :param uri: the checkpoint.
    :param offsets: entries of the offset log; the newest may be a seal, which only its content shows.
    :param commits: entries of the commit log.
    """

    uri: str
    offsets: Mapping[int, StoredFile]
    commits: Mapping[int, StoredFile]

    @property
    def latest_committed(self) -> int | None:
        """Newest batch with a commit log entry."""
        return max(self.commits, default=None)

    def without(self, seals: Iterable[int]) -> Logs:
        """The same logs without the files in ``offsets/`` that are seals."""
        sealed = set(seals)
        return Logs(self.uri, {b: file for b, file in self.offsets.items() if b not in sealed}, self.commits)

    @property
    def newest_time(self) -> datetime | None:
        """When either log was last written to, or ``None`` where the store does not say."""
        return newest_time([*self.offsets.values(), *self.commits.values()])

    @property
    def committed_at(self) -> datetime | None:
        """When the newest commit was written, or ``None`` where the store does not say."""
        latest = self.latest_committed
        return None if latest is None else self.commits[latest].modified

    def committed_by(self, moment: datetime) -> int | None:
        """Newest batch that was committed by a moment, by the times of the files.

        Where older commits were purged, the batch before the oldest that is left. ``None`` where the store says no times.
        """
        times = {b: file.modified for b, file in self.commits.items() if file.modified is not None}
        if len(times) < len(self.commits):
            return None
        return max((b for b, at in times.items() if at <= moment), default=min(times, default=0) - 1)

    @property
    def batches_per_minute(self) -> float | None:
        """Rate over all commits that are retained, pauses included; ``None`` where it cannot be known."""
        if len(self.commits) < 2:
            return None
        oldest, newest = min(self.commits), max(self.commits)
        began, ended = self.commits[oldest].modified, self.commits[newest].modified
        if began is None or ended is None or (ended - began).total_seconds() < _SHORTEST_WINDOW:
            return None
        # By the difference of ids: async progress tracking commits only some of the batches it runs.
        return round(60 * (newest - oldest) / (ended - began).total_seconds(), 2)


def list_logs(location: Location) -> Logs:
    """List the two logs of a checkpoint; a missing one is an empty one."""
    commits = list_log(location, COMMITS)
    return Logs(location.uri, list_log(location, OFFSETS), commits)


def list_log(location: Location, log: str) -> dict[int, StoredFile]:
    """List one log of a checkpoint: batch id -> its entry. A missing log is an empty one.

    :param log: ``commits`` or ``offsets``; in the latter the newest may be a seal, which only its content shows.
    """
    files = ((batch_id_of(file.path.rpartition("/")[2]), file) for file in location.list(log).files)
    return {batch: file for batch, file in files if batch is not None}


def read_entry(location: Location, batch_id: int) -> OffsetEntry | Seal | None:
    """Read ``offsets/<batch_id>``; ``None`` if it is gone by now (purged, or a seal that was lifted).

    :raises UnreadableLogError: it is neither an entry nor a seal.
    """
    try:
        data = location.read(f"{OFFSETS}/{batch_id}")
    except FileNotFoundError:
        return None
    return parse_seal(data, batch_id=batch_id) or parse_offsets(data, batch_id=batch_id)


def newest_state_time(location: Location) -> datetime | None:
    """When anything in ``state/`` was last written; lists all of it, so ask only when it matters."""
    return newest_time(location.walk(STATE).values())


def newest_time(files: Iterable[StoredFile]) -> datetime | None:
    """The newest modification time of some files, ``None`` if none has one."""
    return max((file.modified for file in files if file.modified is not None), default=None)
