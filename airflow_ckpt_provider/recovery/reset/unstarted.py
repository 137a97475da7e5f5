"""Whether a checkpoint is as the last reset left it: nothing in it says how far a query got."""

from __future__ import annotations

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.history import UNDOABLE, not_undone, records_of
from airflow_ckpt_provider.change.target import Target
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.way import ResetWay

#: A reset writes at most the newest entry of the old query and the one before.
_MOST_ENTRIES = 2


def refuse_unstarted(repository: Repository, before: Target) -> None:
    """Refuse a reset of a checkpoint that is as the last change of it, a reset, left it.

    Reads no record where there are more entries in ``offsets/`` than a reset writes.

    :param repository: keeps the plans and the records.
    :param before: the checkpoint.
    :raises RefusedError: it is; ``NotACheckpointError`` where the reset left the place empty.
    :raises RepositoryError: a plan or an audit record is damaged.
    """
    if sum(path.startswith(f"{OFFSETS}/") for path in before.visible) > _MOST_ENTRIES:
        return
    checkpoint = before.location
    newest = next(not_undone(records_of(checkpoint, repository), kinds=UNDOABLE), None)
    if newest is None or newest["kind"] != ResetPlan.kind or newest.get("after") != before.fingerprint:
        return
    document = repository.kept_plan(newest["plan_id"])
    plan = ResetPlan.of_document(document) if document else None
    if plan is None or plan.way is ResetWay.NEW_QUERY_ID:
        return
    refused = RefusedError if before.visible else NotACheckpointError
    raise refused(
        f"{checkpoint} is as the reset {plan.plan_id} ({plan.way.value}) left it, so there is nothing to reset",
        hint=f"start the query; or undo that reset and reset again: `{plan.take_back}`. If a query has run here since, and its "
        "checkpoint was removed, restore a backup instead",
    )
