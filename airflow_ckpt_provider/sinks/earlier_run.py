"""Batches in a sink that another run of the query wrote.

After a restore or a rewind a query plans batches again, perhaps with other rows, and a sink that remembers them skips them. What
it has of such a batch is then older than the time at which the checkpoint's entry in ``offsets/`` says that the batch was planned
(``batchTimestampMs``): a batch is written after it is planned. Or it is younger than the backup that the checkpoint comes from:
all that a backup has was written when its position was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

from airflow_ckpt_provider.checkpoint.gaps import runs

#: For a checkpoint whose log is not read.
NONE_PLANNED: Mapping[int, datetime] = MappingProxyType({})
#: A store may give whole seconds, and its clock is not that of the driver.
OF_ANOTHER_CLOCK = timedelta(seconds=2)
_SAME_CLOCK = timedelta(0)


def of_an_earlier_run(
    written: Mapping[int, datetime], planned: Mapping[int, datetime], *, apart: timedelta = _SAME_CLOCK
) -> tuple[str, ...]:
    """What is not known of the batches up to the target.

    :param written: batch -> when the sink got it, in UTC; batches of which that is not known are left out.
    :param planned: batch -> when the checkpoint says that it was planned, in UTC; the same.
    :param apart: how much the two clocks may differ.
    """
    older = [batch for batch, at in written.items() if batch in planned and at + apart < planned[batch]]
    if not older:
        return ()
    return (
        f"what the sink has of {_named(older)} is older than the plan of that batch in the checkpoint: "
        "an earlier run of the query wrote it, and the sink has skipped the later one, unless a clock was set back between them; "
        "rows that only the later one read are missing",
    )


def of_a_later_run(written: Mapping[int, datetime], complete_at: datetime | None) -> tuple[str, ...]:
    """What is not known of the batches up to the target, where the checkpoint comes from a backup.

    :param written: batch -> when the sink got it, in UTC; batches up to the target.
    :param complete_at: when the backup had all of its batches, in UTC; ``None``: it is from no backup.
    """
    younger = [batch for batch, at in written.items() if complete_at and at > complete_at + OF_ANOTHER_CLOCK]
    if not younger:
        return ()
    return (
        f"the sink got {_named(younger)} after the backup was taken, which has them too: another run of the query wrote them, "
        "after a rewind or a restore, and the backup need not continue where they end",
    )


def _named(batches: Iterable[int]) -> str:
    found = runs(batches)
    named = ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in found)
    return f"{'batch' if len(found) == 1 and len(found[0]) == 1 else 'batches'} {named}"
