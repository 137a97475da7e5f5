"""What the files of a checkpoint do not show: whether entries that are missing in ``offsets/`` are damage.

Asynchronous progress tracking (``AsyncProgressTrackingMicroBatchExecution``) logs only some of the batches, and continues from
the newest entry before. Any other query reads the entry right before the newest, and fails without it. Nothing in the checkpoint
names the option or the sink. What is certain is left to the findings: asynchronous progress tracking refuses queries with state,
and leaves a batch out of both logs, so a commit without its entry is a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow_ckpt_provider.checkpoint.logs import batch_id_of, missing_between
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.progress import read_progress
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.storage.location import Location

_SHOWN = 5
_REMEDY = (
    "If the query runs with asyncProgressTrackingEnabled, nothing has to be done: Spark allows that only for queries without "
    "state that write to Kafka, the console, memory or noop. If it does not, fetch the entries from a backup, or restore one."
)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Something that is damage or not, and that the checkpoint does not show.

    :param path: the first file that it is about, relative to the checkpoint.
    :param message: what was found, and what it means in either case.
    :param batch_id: the first batch that it is about.
    :param remedy: how a person decides it, and the next step.
    """

    path: str
    message: str
    batch_id: int
    remedy: str = _REMEDY

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, in the form of a finding."""
        return {
            "verdict": "UNKNOWN",
            "path": self.path,
            "batch_id": self.batch_id,
            "message": self.message,
            "remedy": self.remedy,
        }


def undecided(location: Location) -> tuple[Undecided, ...]:
    """Gaps in ``offsets/`` that are legal or damage. Two listings, at most three small reads, and one listing of ``state/``.

    :param location: the checkpoint.
    :return: empty without an entry missing, where the findings say that it was lost, and where the logs cannot be read, which
        the findings say too.
    :raises NotACheckpointError: there is no checkpoint.
    """
    try:
        progress = read_progress(location)
    except UnreadableLogError:
        return ()
    logged = progress.logged
    if len(logged) < 2 or progress.is_continuous:
        return ()
    known = {*logged, *progress.committed}
    known_between = (batch for batch in known if logged[0] <= batch <= logged[-1])
    missing = list(islice(missing_between(known_between), _SHOWN + 1))
    if not missing or any(batch_id_of(name) is not None for name in location.list(STATE).directories):
        return ()
    latest = logged[-1]
    otherwise = (
        f"any other query fails at every start with `batch {latest - 1} doesn't exist`"
        if latest - 1 not in known
        else "any other query starts, and no rewind can reach a batch beside the gap"
    )
    named = ", ".join(map(str, missing[:_SHOWN])) + (", …" if len(missing) > _SHOWN else "")
    return (
        Undecided(
            f"{OFFSETS}/{missing[0]}",
            f"{OFFSETS}/ has no entry of batch {named}, between {logged[0]} and {latest}. Whether that is damage is not known: "
            f"asynchronous progress tracking leaves batches out, and continues from the entry before; {otherwise}",
            missing[0],
        ),
    )
