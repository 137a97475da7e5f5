"""Carrying a rewind out, under the seal.

From the first change to the last the newest file in ``offsets/`` is the seal, so no Spark starts: not between the sink's rollback
and the checkpoint's, and not from a half-rewound checkpoint. The plan is kept in the repository before the seal is set;
killed anywhere, the same command again finds the seal, reads the plan, and finishes.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.restore import STOP_WITHIN
from airflow_ckpt_provider.backup.sealing import put_seal, remove_seal, seal, sealed_by_another
from airflow_ckpt_provider.backup.set_aside import SetAside
from airflow_ckpt_provider.backup.target import Target, check_at_rest, look_at, wait_until_at_rest
from airflow_ckpt_provider.backup.transfer import WORKERS, in_parallel
from airflow_ckpt_provider.backup.verify import content_damage
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.logs import batch_id_of
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.seal import Seal
from airflow_ckpt_provider.errors import CkptError, RefusedError, StorageError
from airflow_ckpt_provider.plan import Verdict
from airflow_ckpt_provider.recovery.rewind import Sink, plan_path, read_plan
from airflow_ckpt_provider.recovery.rewind_plan import RewindPlan
from airflow_ckpt_provider.recovery.sinks.delta_rollback import TableTarget, roll_back_table
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

_STOPPING = "stopping the query for a rewind"


@dataclass(frozen=True, slots=True)
class RewindOutcome:
    """A rewind that was carried out.

    :param plan_id: the plan; ``undo`` takes it back by this id.
    :param checkpoint: URI of the checkpoint.
    :param batch_id: the batch it stands at; the next to run is one more.
    :param deleted: files of the checkpoint that went.
    :param written: files of the checkpoint that came from a backup.
    :param table_version: the commit that rolled the table back, or ``None``.
    :param kept: where what went is kept, in the repository.
    :param seconds: how long it took.
    :param already_done: nothing had to be done.
    """

    plan_id: str
    checkpoint: str
    batch_id: int
    deleted: int
    written: int
    table_version: int | None
    kept: str | None
    seconds: float
    already_done: bool

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": round(self.seconds, 3)}


def apply_rewind(
    plan: RewindPlan,
    checkpoint: Checkpoint,
    repository: Repository,
    *,
    sink: Sink | None = None,
    accept_source_loss: bool = False,
    accept_foreign_loss: bool = False,
    quiet_for: float = 5.0,
    made_by: str = "",
    reason: str = "",
    workers: int = WORKERS,
) -> RewindOutcome:
    """Carry a rewind out.

    :param plan: from :func:`~airflow_ckpt_provider.recovery.rewind.plan_rewind`.
    :param checkpoint: the checkpoint that it was made for.
    :param repository: keeps what goes, the plan and the audit record.
    :param sink: the sink that the plan was made for.
    :param accept_source_loss: go on though the guards say that the sources have lost data, or were not asked.
    :param accept_foreign_loss: go on though rows that others wrote into the table leave it too.
    :param quiet_for: seconds without a change after which the checkpoint counts as at rest.
    :param made_by: the run or user that rewinds.
    :param reason: why, for the audit record.
    :param workers: requests under way at once.
    :raises RefusedError: the checkpoint or the table is not any more what the plan was made for, somebody writes to it, or
        the plan would do what was not accepted; nothing was changed.
    :raises StorageError: reading or writing failed; the checkpoint stays sealed, and the same command again finishes.
    """
    began = time.monotonic()
    sink = sink or Sink()
    if plan.already_done:
        return _outcome(plan, began, table_version=None, kept=None)
    if not plan.continued:
        _check_accepted(plan, source_loss=accept_source_loss, foreign_loss=accept_foreign_loss)
        repository.location.create(plan_path(plan.plan_id), json.dumps(plan.document()).encode())
    aside = SetAside(repository, plan.name, plan.plan_id, "checkpoint")
    mark = _seal(plan, checkpoint, aside, quiet_for=quiet_for, made_by=made_by)
    location = checkpoint.location
    try:
        now = look_at(location)
        going = {*plan.deletes, *(entry.path for entry in plan.writes)}
        aside.keep(location, [file for path, file in now.visible.items() if path in going], workers=workers)
        table_version = _roll_sink_back(plan, sink, repository, workers)
    except RefusedError:
        remove_seal(location, mark)  # nothing was changed
        raise
    _delete(plan, location, workers)
    _write(plan, repository, location, workers)
    after = _check(plan, checkpoint, mark)
    facts = {"made_by": made_by, "reason": reason, "checkpoint": plan.checkpoint, "kept": aside.place}
    result = {"table_version": table_version, "after": after.fingerprint, "plan": plan.to_json()}
    repository.record(plan.plan_id, {"kind": "rewind", **facts, **result})
    # Performed last: until now no Spark could start.
    remove_seal(location, mark)
    log.info("%s stands at batch %d; seal lifted", location, plan.batch_id)
    return _outcome(plan, began, table_version=table_version, kept=aside.place)


def _outcome(plan: RewindPlan, began: float, *, table_version: int | None, kept: str | None) -> RewindOutcome:
    return RewindOutcome(
        plan_id=plan.plan_id,
        checkpoint=plan.checkpoint,
        batch_id=plan.batch_id,
        deleted=len(plan.deletes),
        written=len(plan.writes),
        table_version=table_version,
        kept=kept,
        seconds=time.monotonic() - began,
        already_done=plan.already_done,
    )


def _check_accepted(plan: RewindPlan, *, source_loss: bool, foreign_loss: bool) -> None:
    """Refuse what nobody has agreed to."""
    why = "; ".join(plan.sink.reasons)
    if plan.sink.verdict is not Verdict.SAFE and plan.sink_exit is None:
        raise RefusedError(
            f"the sink says {plan.sink.verdict.value} for a start after batch {plan.batch_id}: {why}",
            hint="choose an exit: --sink-exit rollback (the sink goes back too), forward (the checkpoint goes to where the sink "
            "is) or accept (what was just said will happen)",
        )
    rollback = plan.sink.rollback
    if plan.rolls_sink_back and rollback and rollback.feature:
        raise RefusedError(
            f"{plan.sink.uri} has the feature {rollback.feature}, with which deltalake cannot restore it",
            hint="rewind with --sink-exit accept, restore the table by Spark (airflow_ckpt_provider/jobs/roll_table_back.py "
            f"--version {rollback.to_version}), then `airflow-ckpt reset {plan.checkpoint} --new-query-id`",
        )
    if plan.rolls_sink_back and rollback and rollback.foreign and not foreign_loss:
        raise RefusedError(
            f"others have written into {plan.sink.uri} since batch {plan.batch_id}: {', '.join(rollback.foreign)}; a "
            "rollback takes their rows away too",
            hint="accept that (--accept-foreign-loss), or choose another exit",
        )
    if plan.source_verdict in (Verdict.WILL_LOSE, Verdict.WILL_FAIL, Verdict.WILL_SKIP) and not source_loss:
        reasons = "; ".join(plan.sources["reasons"]) if plan.sources else ""
        raise RefusedError(
            f"the sources say {plan.source_verdict.value}: {reasons}",
            hint="go back to a later batch, or accept the loss (--accept-source-loss)",
        )


def stop_plan_and_apply(
    checkpoint: Checkpoint,
    repository: Repository,
    plan: Callable[[str | None], RewindPlan],
    *,
    sink: Sink,
    stop_running: bool = False,
    quiet_for: float = 5.0,
    made_by: str = "",
    **accepted: Any,
) -> tuple[RewindPlan, RewindOutcome]:
    """Plan a rewind and carry it out, after the query was stopped where that is allowed.

    :param plan: makes the plan, given the id under which the checkpoint was sealed to stop its query, or ``None``.
    :param stop_running: a query that still runs may be stopped, by the seal, at its batch boundary.
    :param accepted: what else :func:`apply_rewind` takes.
    """
    under = stop_query(checkpoint, repository, quiet_for=quiet_for, made_by=made_by) if stop_running else None
    try:
        made = plan(under)
        if made.already_done and under:
            _lift(checkpoint, under)
        outcome = apply_rewind(
            made, checkpoint, repository, sink=sink, quiet_for=quiet_for, made_by=made_by, **accepted
        )
    except RefusedError:
        if under:  # nothing was changed: the query may be started again
            _lift(checkpoint, under)
        raise
    return made, outcome


def _lift(checkpoint: Checkpoint, under: str) -> None:
    mark = checkpoint.progress().seal
    if mark and mark.plan_id == under and mark.reason == _STOPPING:
        remove_seal(checkpoint.location, mark)


def stop_query(
    checkpoint: Checkpoint, repository: Repository, *, quiet_for: float = 5.0, made_by: str = ""
) -> str | None:
    """Stop a query that still runs, by the seal, at its batch boundary; a rewind can then be planned ``under`` that seal.

    A second call finds the seal of the first one.

    :param quiet_for: seconds without a change after which the query counts as stopped.
    :return: the id to plan and apply under; ``None`` where another seal is there, whose planning says what to do.
    :raises RefusedError: it is still written to after ten minutes.
    """
    progress = checkpoint.progress()
    mark = progress.seal
    if mark is None:
        mark = seal(checkpoint, reason=_STOPPING, made_by=made_by)
    elif mark.reason != _STOPPING or read_plan(repository, mark.plan_id):
        return None  # planning says whose it is, or goes on with it
    wait_until_at_rest(checkpoint.location, quiet_for=quiet_for, at_most=STOP_WITHIN)
    return mark.plan_id


def _seal(plan: RewindPlan, checkpoint: Checkpoint, aside: SetAside, *, quiet_for: float, made_by: str) -> Seal:
    """Seal the checkpoint, and see that it still is the one the plan was made for."""
    location = checkpoint.location
    progress = checkpoint.progress()
    if progress.seal and progress.seal.plan_id != plan.plan_id:
        raise sealed_by_another(progress)
    if progress.seal is None and not plan.continued:
        before = look_at(location)
        if before.fingerprint == plan.fingerprint:
            check_at_rest(before, quiet_for=quiet_for)
    mark = seal(checkpoint, reason=f"rewind to batch {plan.batch_id}", made_by=made_by, plan_id=plan.plan_id)
    if aside.sizes is not None:
        return mark  # gone on with: files may be gone already
    now = look_at(location)
    if now.fingerprint != plan.fingerprint:
        remove_seal(location, mark)
        raise RefusedError(
            f"{location} is not any more what plan {plan.plan_id} was made for: its stream went on; nothing was changed",
            hint="stop the query, then make a new plan; or have the seal stop it (stop_running / --stop-running)",
        )
    return put_above(location, mark, (entry.path for entry in plan.writes), made_by=made_by)


def put_above(location: Location, mark: Seal, paths: Iterable[str], *, made_by: str) -> Seal:
    """Move a seal above every number that is going to be written into ``offsets/``; a lower one would be overwritten.

    :param mark: the seal that is there.
    :param paths: files that are going to be written.
    :return: the seal that is there then.
    """
    written = (batch_id_of(path.partition("/")[2]) for path in paths if path.startswith(f"{OFFSETS}/"))
    highest = max((number for number in written if number is not None), default=-1)
    if mark.batch_id > highest:
        return mark
    with suppress(FileExistsError):
        put_seal(location, highest + 1, plan_id=mark.plan_id, reason=mark.reason, made_by=made_by)
    remove_seal(location, mark)
    return replace(mark, batch_id=highest + 1)


def _roll_sink_back(plan: RewindPlan, sink: Sink, repository: Repository, workers: int) -> int | None:
    rollback = plan.sink.rollback
    if not plan.rolls_sink_back or rollback is None:
        return None
    if sink.place is None:
        raise RefusedError(
            "the plan rolls a sink back, and none was given", hint="name it as when the plan was made: --sink"
        )
    if rollback.to_version is None:
        _set_sink_files_aside(plan, sink.place, repository, workers)
        return None
    target = TableTarget(
        table=sink.place,
        version=rollback.to_version,
        app_id=plan.app_id,
        batch_id=plan.batch_id,
        plan_id=plan.plan_id,
        storage_options=dict(sink.storage_options),
    )
    return roll_back_table(target, expected=rollback.from_version)


def _set_sink_files_aside(plan: RewindPlan, place: Location, repository: Repository, workers: int) -> None:
    aside = SetAside(repository, plan.name, plan.plan_id, "sink")
    paths = plan.sink.rollback.paths if plan.sink.rollback else ()
    if aside.sizes is None:
        there = place.walk()
        gone = [path for path in paths if path not in there]
        if gone:
            raise RefusedError(
                f"{place}/{gone[0]} is gone though the sink's log names it", hint="see who deletes files of the sink"
            )
        aside.keep(place, [there[path] for path in paths], workers=workers)
    for path in paths:  # in the plan's order: the log first, from its newest entry on
        _remove(place, path)


def _delete(plan: RewindPlan, location: Location, workers: int) -> None:
    """Delete what goes, in the order that is loud by itself: first the entry without which Spark does not start."""
    going = set(plan.deletes)
    offsets = sorted((p for p in going if p.startswith(f"{OFFSETS}/")), key=lambda p: p.rpartition("/")[2].zfill(20))
    newest, others = offsets[-1:], offsets[:-1]
    for path in reversed(others):
        _remove(location, path)
    state = sorted(p for p in going if p.startswith(f"{STATE}/"))
    in_parallel(lambda path: _remove(location, path), state, workers=workers)
    rest = sorted(going - set(offsets) - set(state), reverse=True)
    in_parallel(lambda path: _remove(location, path), rest, workers=workers)
    for path in newest:
        _remove(location, path)


def _remove(location: Location, path: str) -> None:
    directory, _, name = path.rpartition("/")
    location.delete(path)
    # Hadoop's own checksum of a local file; left behind it would speak of a file to come.
    if location.store.protocol == "file":
        location.delete(f"{directory}/.{name}.crc" if directory else f".{name}.crc")


def _write(plan: RewindPlan, repository: Repository, location: Location, workers: int) -> None:
    gates = [entry for entry in plan.writes if entry.path.startswith(f"{OFFSETS}/")]
    others = [entry for entry in plan.writes if entry not in gates]

    def write(entry: Any) -> None:
        content = repository.location.read(entry.object)
        if damage := content_damage(entry, content):
            raise StorageError(
                f"{damage.message}; it was right when the plan was made",
                hint="the checkpoint stays sealed; mend the store, then run the same command again",
            )
        _remove(location, entry.path)
        location.replace(entry.path, content)

    in_parallel(write, others, workers=workers)
    for entry in sorted(gates, key=lambda e: e.path.rpartition("/")[2].zfill(20), reverse=True):
        write(entry)


def _check(plan: RewindPlan, checkpoint: Checkpoint, mark: Seal) -> Target:
    """See that exactly what was planned is there, and that it is whole for Spark."""
    there = look_at(checkpoint.location)
    kept = {path: size for path, size in plan.before.items() if path not in set(plan.deletes)}
    wanted = kept | {entry.path: entry.size for entry in plan.writes}
    found = {path: file.size for path, file in there.visible.items()}
    differing = sorted(path for path in {*wanted, *found} if wanted.get(path) != found.get(path))
    if differing:
        raise StorageError(
            f"{checkpoint.location}/{differing[0]} is not as planned ({len(differing)} files differ)",
            hint=f"it stays sealed by plan {plan.plan_id}; see who else writes there, then run the same command again",
        )
    try:
        resolve_closure(checkpoint.tree(), plan.batch_id, replays_next=plan.exact_replay)
    except CkptError as e:
        raise StorageError(
            f"{checkpoint.location} does not read back as batch {plan.batch_id}: {e.message}",
            hint=f"take it back: `airflow-ckpt undo {plan.checkpoint} --plan {plan.plan_id}`",
        ) from e
    return there
