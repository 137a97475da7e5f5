"""The plans of the batches of a stream that runs, kept: it cleans its own up while the new code is still at an older one."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.poll import list_logs
from airflow_ckpt_provider.checkpoint.sources import SOURCES
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location


def keep_plans(reference: Location, target: Location, *, after: int) -> int:
    """Copy the plans of the batches that another run has committed and that are not kept yet.

    :param reference: the checkpoint of that run; only read.
    :param target: where they are kept: a directory that :func:`~.scratch.plan_as` takes as a reference.
    :param after: batches up to this one are not needed any more.
    :return: the newest batch that the run has committed, -1 for none.
    :raises RefusedError: a plan is gone already, or the run was rewound behind ``after``.
    """
    logs = list_logs(reference)
    newest = -1 if logs.latest_committed is None else logs.latest_committed
    if newest < after:
        raise RefusedError(
            f"{reference} has committed batch {newest}, and batch {after} was followed already: it was rewound or restored",
            hint="begin again with a backup from after that",
        )
    kept = {file.path.rpartition("/")[2] for file in target.list(OFFSETS).files}
    wanted = [batch for batch in range(after + 1, newest + 1) if str(batch) not in kept]
    if not wanted:
        return newest
    # What a plan of the file source names is logged before the plan.
    there = target.walk(SOURCES)
    for path in reference.walk(SOURCES):
        if path not in there and not path.rpartition("/")[2].startswith("."):
            _copy(reference, target, path)
    for batch in wanted:
        if batch not in logs.offsets or not _copy(reference, target, f"{OFFSETS}/{batch}"):
            raise RefusedError(
                f"{reference} has no {OFFSETS}/{batch} any more, and the new code is not that far",
                hint="take a newer backup, or have the stream keep more batches (spark.sql.streaming.minBatchesToRetain)",
            )
    return newest


def _copy(reference: Location, target: Location, path: str) -> bool:
    try:
        data = reference.read(path)
    except FileNotFoundError:  # compacted, or cleaned up just now
        return False
    target.replace(path, data)
    return True
