"""Which changes gave a query another id or place: read from the kept plans, and from their audit records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RepositoryError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.units import zoned_time


@dataclass(frozen=True, slots=True)
class IdChange:
    """A reset or rewind after which a query has another id.

    :param plan_id: the plan.
    :param kind: ``rewind`` or ``reset``.
    :param checkpoint: URI of the checkpoint.
    :param old: the id before.
    :param new: the id since; empty where Spark makes it at the first start after a reset.
    :param from_batch: the first batch that could be written under the new id.
    :param newest: the newest batch that the old id may have written.
    :param stands: it was carried out and not undone.
    """

    plan_id: str
    kind: str
    checkpoint: str
    old: str
    new: str
    from_batch: int
    newest: int
    stands: bool


@dataclass(frozen=True, slots=True)
class RestoreDone:
    """A restore that was carried out and not undone.

    :param name: name of the stream.
    :param backup_id: the backup.
    :param target: URI of the place.
    """

    name: str
    backup_id: str
    target: str


def id_changes(repository: Repository) -> list[IdChange]:
    """The changes of query ids that a repository has plans of. Two listings, a read for each plan and for each record of those.

    :raises RepositoryError: a plan or an audit record is damaged.
    """
    return [_id_change(repository, kept.plan, stands=kept.stands) for kept in kept_plans(repository, _changes_id)]


def _id_change(repository: Repository, plan: Mapping[str, Any], *, stands: bool) -> IdChange:
    start = plan.get("start") if plan["kind"] == "reset" else plan["batch_id"]
    try:
        if type(plan["newest"]) is not int or type(start) not in (int, type(None)):
            raise ValueError("a batch is no whole number")
        return IdChange(
            plan_id=str(plan["plan_id"]),
            kind=str(plan["kind"]),
            checkpoint=str(plan["checkpoint"]),
            old=str(plan["query_id"]),
            new=str(plan.get("new_query_id") or ""),
            from_batch=0 if start is None else start + 1,
            newest=plan["newest"],
            stands=stands,
        )
    except (KeyError, TypeError, ValueError) as e:
        raise RepositoryError(
            f"{repository.location}/plans/{plan['plan_id']}.json cannot be read ({type(e).__name__}: {e})",
            hint="it was damaged: put it back from a copy of the repository",
        ) from e


def restores_done(repository: Repository) -> list[RestoreDone]:
    """The restores that a repository has plans of. It costs what :func:`id_changes` does.

    :raises RepositoryError: a plan or an audit record is damaged.
    """
    return [
        RestoreDone(str(kept.plan.get("name")), str(kept.plan.get("backup_id")), str(kept.plan.get("target")))
        for kept in kept_plans(repository, lambda plan: plan.get("kind") == "restore")
        if kept.stands
    ]


def _changes_id(plan: Mapping[str, Any]) -> bool:
    if not plan.get("query_id"):
        return False
    if plan.get("kind") == "reset":
        return not plan.get("new_query_id") or plan.get("start") is not None
    return bool(plan.get("new_query_id")) and plan.get("batch_id") is not None


class KeptPlan(NamedTuple):
    """A plan that was begun.

    :param plan: its document.
    :param stands: it was carried out and not undone.
    :param at: when it was carried out, in UTC; ``None``: it was not.
    """

    plan: Mapping[str, Any]
    stands: bool
    at: datetime | None = None


def kept_plans(
    repository: Repository, wanted: Callable[[Mapping[str, Any]], bool], *, of: Collection[str] | None = None
) -> list[KeptPlan]:
    """The plans that are wanted, and whether each stands. Two listings, a read for each plan and for each record of those.

    :param of: ids of the plans to read; ``None``: all are listed.
    :raises RepositoryError: a plan or an audit record is damaged.
    """
    if of is None:
        of = [path.rpartition("/")[2].removesuffix(".json") for path in repository.whole_files("plans")]
    if not of:
        return []
    audit = list(repository.whole_files("audit"))

    def read(plan_id: str) -> KeptPlan | None:
        plan = repository.kept_plan(plan_id)
        if plan is None or not wanted(plan):
            return None
        of_plan = [record for record in audit if record.partition("-")[2].startswith(plan_id)]
        records = repository.read_records(of_plan)
        times = {str(r.get("kind")): zoned_time(r["at"]) for r in records if plan_id in (r.get("of"), r["plan_id"])}
        return KeptPlan(plan, plan["kind"] in times and "undo" not in times, times.get(plan["kind"]))

    return [found for found in in_parallel(read, of) if found]
