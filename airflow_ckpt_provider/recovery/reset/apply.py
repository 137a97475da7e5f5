"""Carrying a reset out, under the seal.

The old checkpoint is set aside whole before the first file goes. From then on the seal is the newest file in ``offsets/`` until
the place is empty, or holds exactly what the new checkpoint begins with: no Spark starts from half of the old one. The
plan is kept in the repository before the seal is set; killed anywhere, the same command again finishes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import WORKERS
from airflow_ckpt_provider.change.fail_closed_order import clear, write_file
from airflow_ckpt_provider.change.plan_seal import raise_above, seal_for_plan, with_query_stopped
from airflow_ckpt_provider.change.sealing import remove_seal
from airflow_ckpt_provider.change.set_aside import SetAside
from airflow_ckpt_provider.change.target import Target, expect_files, inspect_target
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.reset.new_numbers import new_metadata
from airflow_ckpt_provider.recovery.reset.plan import ResetPlan, ResetWay
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResetOutcome:
    """A reset that was carried out.

    :param plan_id: the plan; ``undo`` takes it back by this id.
    :param checkpoint: URI of the checkpoint.
    :param way: what took the place of the old checkpoint.
    :param start: the batch of the old query after which the new one reads; ``None`` from scratch.
    :param query_id: the id the query had.
    :param new_query_id: the id it has; ``None`` where Spark makes one at the first start.
    :param options: source -> options of its reader.
    :param conf: settings of the session at the first start.
    :param snippet: both as Python.
    :param deleted: files that went.
    :param written: files that were written.
    :param kept: where the old checkpoint is kept, in the repository.
    :param seconds: how long it took.
    """

    plan_id: str
    checkpoint: str
    way: str
    start: int | None
    query_id: str | None
    new_query_id: str | None
    options: Mapping[str, Mapping[str, str]]
    conf: Mapping[str, str]
    snippet: str
    deleted: int
    written: int
    kept: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


def outcome_of(plan: ResetPlan, *, kept: str, seconds: float) -> ResetOutcome:
    """What a plan has done once it was carried out."""
    return ResetOutcome(
        plan_id=plan.plan_id,
        checkpoint=plan.checkpoint,
        way=plan.way.value,
        start=plan.start,
        query_id=plan.query_id,
        new_query_id=plan.new_query_id,
        options=plan.options,
        conf=plan.conf,
        snippet=plan.snippet,
        deleted=len(plan.deletes),
        written=len(_wanted(plan)),
        kept=kept,
        seconds=seconds,
    )


def apply_reset(
    plan: ResetPlan,
    checkpoint: Location,
    repository: Repository,
    *,
    accept: Verdict | None = None,
    quiet_for: float = 5.0,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> ResetOutcome:
    """Carry a reset out.

    :param plan: from :func:`~airflow_ckpt_provider.recovery.reset.planning.plan_reset`.
    :param checkpoint: the checkpoint that it was made for.
    :param repository: keeps the old checkpoint, the plan and the audit record.
    :param accept: the plan's verdict, where it is not ``SAFE`` and is to be carried out all the same.
    :param quiet_for: seconds without a change after which the checkpoint counts as at rest.
    :param made_by: the run or user that resets.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :raises RefusedError: the checkpoint is not any more what the plan was made for, somebody writes to it, or the verdict was
        not accepted; nothing was changed.
    :raises StorageError: reading or writing failed; the checkpoint stays sealed, and the same command again finishes.
    """
    began = time.monotonic()
    if not plan.continued:
        if plan.verdict not in (Verdict.SAFE, accept):
            raise RefusedError(
                f"the reset's verdict is {plan.verdict.value}: {'; '.join(_worst_reasons(plan))}",
                hint=f"put that right first, or accept it in so many words: --accept {plan.verdict.value}",
            )
        repository.keep_plan(plan.plan_id, plan.document())
    aside = SetAside(repository, plan.name, plan.plan_id, "checkpoint")
    mark = _seal(plan, checkpoint, aside, quiet_for=quiet_for, made_by=made_by)
    only = {METADATA_FILE} if plan.way is ResetWay.NEW_QUERY_ID else None
    there = inspect_target(checkpoint).visible
    aside.keep(checkpoint, [file for path, file in there.items() if only is None or path in only], workers=workers)
    if plan.way is not ResetWay.NEW_QUERY_ID:
        mark = raise_above(checkpoint, mark, plan.contents, made_by=made_by)
        clear(checkpoint, mark, workers=workers)
    for path, content in _wanted(plan).items():
        write_file(checkpoint, path, content)
    after = _check(plan, checkpoint)
    facts = {"made_by": made_by, "reason": reason, "checkpoint": plan.checkpoint, "kept": aside.place}
    repository.record(plan.plan_id, {"kind": "reset", **facts, "after": after.fingerprint, "plan": plan.to_json()})
    # Performed last: until now no Spark could start.
    remove_seal(checkpoint, mark)
    checkpoint.remove_empty_directories()
    log.info("%s is reset (%s), its former content is in %s; seal lifted", checkpoint, plan.way.value, aside.place)
    return outcome_of(plan, kept=aside.place, seconds=time.monotonic() - began)


def stop_plan_and_reset(
    checkpoint: Location,
    repository: Repository,
    plan: Callable[[str | None], ResetPlan],
    *,
    stop_running: bool = False,
    under: str | None = None,
    quiet_for: float = 5.0,
    made_by: str = "",
    **more: Any,
) -> tuple[ResetPlan, ResetOutcome]:
    """Plan a reset and carry it out, after the query was stopped where that is allowed.

    :param plan: makes the plan, given the id under which the checkpoint was sealed to stop its query, or ``None``.
    :param stop_running: a query that still runs may be stopped, by the seal, at its batch boundary.
    :param under: id of a seal that is there already and stays where the reset is refused; the plan takes it over.
    :param more: what else :func:`apply_reset` takes.
    """

    def work(sealed_under: str | None) -> tuple[ResetPlan, ResetOutcome]:
        made = plan(sealed_under)
        return made, apply_reset(made, checkpoint, repository, quiet_for=quiet_for, made_by=made_by, **more)

    if under is not None:
        return work(under)
    return with_query_stopped(
        checkpoint,
        repository,
        work,
        change="reset",
        stop_running=stop_running,
        quiet_for=quiet_for,
        made_by=made_by,
    )


def _wanted(plan: ResetPlan) -> dict[str, bytes]:
    """What the plan writes."""
    if plan.way is ResetWay.NEW_QUERY_ID:
        return {METADATA_FILE: new_metadata(str(plan.new_query_id)).encode()}
    return {path: content.encode() for path, content in plan.contents.items()}


def _worst_reasons(plan: ResetPlan) -> Iterable[str]:
    if plan.cutover.verdict is plan.verdict:
        yield from plan.cutover.reasons
    for source in plan.sources:
        if source.verdict is plan.verdict:
            yield from source.reasons


def _seal(plan: ResetPlan, location: Location, aside: SetAside, *, quiet_for: float, made_by: str) -> Seal:
    """Seal the checkpoint, which may be too broken to be read."""
    return seal_for_plan(
        location,
        plan_id=plan.plan_id,
        reason=f"reset, {plan.way.value}",
        made_by=made_by,
        fingerprint=plan.fingerprint,
        begun=aside.sizes is not None,
        quiet_for=quiet_for,
        hint="stop the query, then make a new plan; or have the seal stop it (stop_running / --stop-running)",
    )


def _check(plan: ResetPlan, location: Location) -> Target:
    """See that exactly what was planned is there."""
    there = inspect_target(location)
    wanted = {} if plan.way is not ResetWay.NEW_QUERY_ID else dict(plan.before)
    wanted |= {path: len(content) for path, content in _wanted(plan).items()}
    expect_files(there, wanted.items(), plan_id=plan.plan_id)
    return there
