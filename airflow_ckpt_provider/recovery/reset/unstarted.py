"""Whether what a reset put in place is still there as it was, since no query has been started with it."""

from __future__ import annotations

from airflow_ckpt_provider.backup.id_changes import kept_plans
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.target import Target
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.errors import NotACheckpointError, RefusedError
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan
from airflow_ckpt_provider.recovery.reset.way import ResetWay

#: A reset writes at most the newest entry of the old query and the one before.
_MOST_ENTRIES = 2


def refuse_unstarted(repository: Repository, before: Target) -> None:
    """Refuse a reset of a new checkpoint that no query has been started with: nothing in it says how far a query got.

    Reads no plan where there are more entries in ``offsets/`` than a reset writes.

    :param repository: keeps the plans.
    :param before: the checkpoint.
    :raises RefusedError: a reset that was not undone put all these files there, and nothing else is there;
        ``NotACheckpointError`` where it left the place empty.
    :raises RepositoryError: a plan or an audit record is damaged.
    """
    if sum(path.startswith(f"{OFFSETS}/") for path in before.visible) > _MOST_ENTRIES:
        return
    checkpoint = before.location.uri
    for kept in kept_plans(
        repository, lambda plan: plan.get("kind") == "reset" and plan.get("checkpoint") == checkpoint
    ):
        if kept.is_undone:
            continue
        plan = ResetPlan.of_document(kept.plan)
        if plan.way is not ResetWay.NEW_QUERY_ID and _is_all(before, plan):
            refused = RefusedError if before.visible else NotACheckpointError
            raise refused(
                f"{checkpoint} is as the reset {plan.plan_id} ({plan.way.value}) left it: no query has been started with it, so "
                "there is nothing to reset",
                hint=f"start the query, or undo that reset and reset again: `{plan.take_back}`",
            )


def _is_all(before: Target, plan: ResetPlan) -> bool:
    """Whether the files of a place are those that a plan writes."""
    written = plan.wanted
    if {path: file.size for path, file in before.visible.items()} != {
        path: len(data) for path, data in written.items()
    }:
        return False
    return all(before.location.read(path) == data for path, data in written.items())
