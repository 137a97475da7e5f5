"""Carrying a reset out, under the seal, and taking it back.

The old checkpoint is set aside whole before the first file goes. From then on the seal is the newest file in ``offsets/`` until
the place is empty, or holds exactly what the new checkpoint begins with: no Spark starts from half of the old one. The
plan is kept in the repository before the seal is set; killed anywhere, the same command again finishes.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.restore import STOP_WITHIN
from airflow_ckpt_provider.backup.sealing import put_seal, remove_seal, seal
from airflow_ckpt_provider.backup.set_aside import SetAside
from airflow_ckpt_provider.backup.target import Target, check_at_rest, look_at, wait_until_at_rest
from airflow_ckpt_provider.backup.transfer import WORKERS, in_parallel
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import RefusedError, SealedError, StorageError
from airflow_ckpt_provider.plan import Verdict
from airflow_ckpt_provider.recovery.reset import read_reset
from airflow_ckpt_provider.recovery.reset_plan import ResetPlan, ResetWay
from airflow_ckpt_provider.recovery.rewind import plan_path
from airflow_ckpt_provider.recovery.rewind_apply import put_above
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

_STOPPING = "stopping the query for a reset"


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

    :param plan: from :func:`~airflow_ckpt_provider.recovery.reset.plan_reset`.
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
        repository.location.create(plan_path(plan.plan_id), json.dumps(plan.document()).encode())
    aside = SetAside(repository, plan.name, plan.plan_id, "checkpoint")
    mark = _seal(plan, checkpoint, aside, quiet_for=quiet_for, made_by=made_by)
    only = {METADATA_FILE} if plan.way is ResetWay.NEW_QUERY_ID else None
    there = look_at(checkpoint).visible
    aside.keep(checkpoint, [file for path, file in there.items() if only is None or path in only], workers=workers)
    if plan.way is not ResetWay.NEW_QUERY_ID:
        mark = put_above(checkpoint, mark, plan.contents, made_by=made_by)
        clear(checkpoint, mark, workers=workers)
    for path, content in _wanted(plan).items():
        _replace(checkpoint, path, content)
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
    quiet_for: float = 5.0,
    made_by: str = "",
    **more: Any,
) -> tuple[ResetPlan, ResetOutcome]:
    """Plan a reset and carry it out, after the query was stopped where that is allowed.

    :param plan: makes the plan, given the id under which the checkpoint was sealed to stop its query, or ``None``.
    :param stop_running: a query that still runs may be stopped, by the seal, at its batch boundary.
    :param more: what else :func:`apply_reset` takes.
    """
    under = _stop(checkpoint, quiet_for=quiet_for, made_by=made_by) if stop_running else None
    try:
        made = plan(under)
        return made, apply_reset(made, checkpoint, repository, quiet_for=quiet_for, made_by=made_by, **more)
    except RefusedError:
        mark = look_at(checkpoint).seal
        if mark and under == mark.plan_id and read_reset(repository, under) is None:
            remove_seal(checkpoint, mark)  # nothing was begun: the query may be started again
        raise


def _stop(location: Location, *, quiet_for: float, made_by: str) -> str | None:
    """Stop a query that still runs by the seal; the id to plan under, ``None`` where another seal is there."""
    mark = look_at(location).seal
    if mark is None:
        mark = seal(Checkpoint.at(location), reason=_STOPPING, made_by=made_by)
    elif mark.reason != _STOPPING:
        return None  # planning says whose it is, or goes on with it
    wait_until_at_rest(location, quiet_for=quiet_for, at_most=STOP_WITHIN)
    return mark.plan_id


def clear(place: Location, mark: Seal, *, workers: int = WORKERS) -> None:
    """Delete all of a checkpoint but its seal, hidden files too; first the entries without which no Spark starts."""
    paths = sorted(path for path in place.walk() if path != mark.path)
    offsets = sorted((p for p in paths if p.startswith(f"{OFFSETS}/")), key=lambda p: p.rpartition("/")[2].zfill(20))
    for path in (*offsets[-2:-1], *offsets[:-2], *offsets[-1:]):
        place.delete(path)
    in_parallel(place.delete, sorted(set(paths) - set(offsets)), workers=workers)
    place.remove_empty_directories()


def _wanted(plan: ResetPlan) -> dict[str, bytes]:
    """What the plan writes."""
    if plan.way is ResetWay.NEW_QUERY_ID:
        return {METADATA_FILE: json.dumps({"id": plan.new_query_id}, separators=(",", ":")).encode()}
    return {path: content.encode() for path, content in plan.contents.items()}


def _worst_reasons(plan: ResetPlan) -> Iterable[str]:
    if plan.seam.verdict is plan.verdict:
        yield from plan.seam.reasons
    for source in plan.sources:
        if source.verdict is plan.verdict:
            yield from source.reasons


def _seal(plan: ResetPlan, location: Location, aside: SetAside, *, quiet_for: float, made_by: str) -> Seal:
    """Seal the checkpoint, and see that it still is the one the plan was made for. It may be too broken to be read."""
    now = look_at(location)
    if now.seal and now.seal.plan_id != plan.plan_id:
        raise SealedError(
            f"{location} was sealed by plan {now.seal.plan_id} ({now.seal.reason}) in the meantime",
            hint="let that plan finish first",
        )
    mark = now.seal
    if mark is None:
        _check_unchanged(plan, now)
        check_at_rest(now, quiet_for=quiet_for)
        reason = f"reset, {plan.way.value}"
        try:
            mark = put_seal(location, now.newest_offsets + 1, plan_id=plan.plan_id, reason=reason, made_by=made_by)
        except FileExistsError:
            raise _moved_on(plan) from None
    if aside.sizes is None:
        try:
            _check_unchanged(plan, look_at(location))
        except RefusedError:
            remove_seal(location, mark)
            raise
    return mark


def _check_unchanged(plan: ResetPlan, now: Target) -> None:
    if now.fingerprint != plan.fingerprint:
        raise _moved_on(plan)


def _moved_on(plan: ResetPlan) -> RefusedError:
    return RefusedError(
        f"{plan.checkpoint} is not any more what plan {plan.plan_id} was made for: its stream went on; nothing was changed",
        hint="stop the query, then make a new plan; or have the seal stop it (stop_running / --stop-running)",
    )


def _replace(location: Location, path: str, content: bytes) -> None:
    remove_hidden_checksum(location, path)
    location.replace(path, content)


def remove_hidden_checksum(location: Location, path: str) -> None:
    """Delete Hadoop's own checksum of a local file, which would speak of the content it had."""
    if location.store.protocol == "file":
        directory, _, name = path.rpartition("/")
        with suppress(FileNotFoundError):
            location.delete(f"{directory}/.{name}.crc" if directory else f".{name}.crc")


def _check(plan: ResetPlan, location: Location) -> Target:
    """See that exactly what was planned is there."""
    there = look_at(location)
    wanted = {} if plan.way is not ResetWay.NEW_QUERY_ID else dict(plan.before)
    wanted |= {path: len(content) for path, content in _wanted(plan).items()}
    found = {path: file.size for path, file in there.visible.items()}
    differing = sorted(path for path in {*wanted, *found} if wanted.get(path) != found.get(path))
    if differing:
        raise StorageError(
            f"{location}/{differing[0]} is not as planned ({len(differing)} files differ)",
            hint=f"it stays sealed by plan {plan.plan_id}; see who else writes there, then run the same command again",
        )
    return there
