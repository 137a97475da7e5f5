"""How an upgrade has ended, or where it stands: in words, with times, and with the commands that continue from there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.poll import list_logs
from airflow_ckpt_provider.errors import command
from airflow_ckpt_provider.upgrade.record import Event, Upgrade, is_needed

KEPT = "kept"
TAKEN_BACK = "taken_back"
UNTOUCHED = "untouched"
HALF_WAY = "half_way"

#: Tasks of the group ``safe_upgrade``.
_TAKE_BACK, _START_OLD, _REPORT = "take_back", "start_old", "report"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of an upgrade.

    :param kind: ``kept``: the new code runs; ``taken_back``: the old code continues where it was; ``untouched``: the stream was
        never stopped; ``half_way``: none of these; ``clear`` says how the run continues, ``commands`` how a person does.
    :param message: the same in words.
    :param commands: a way out by hand, one command a line.
    :param clear: the task of the group to clear, with what comes after it, so that the run ends; ``None``: there is nothing
        left to do.
    :param downtime: seconds from the last commit of the old code to the first one after it, of the new code or, rolled back,
        of the old; ``None`` where there was none, or it cannot be determined.
    """

    kind: str
    message: str
    commands: tuple[str, ...] = ()
    downtime: float | None = None
    clear: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"commands": list(self.commands)}

    def to_markdown(self) -> str:
        """The outcome for a report."""
        lines = [self.message]
        if self.downtime is not None:
            lines += ["", f"Downtime, from commit to commit: {self.downtime:,.0f} s."]
        if self.commands:
            lines += ["", "```sh", *self.commands, "```"]
        return "\n".join(lines)


def outcome_of(upgrade: Upgrade, checkpoint: Checkpoint) -> Outcome:
    """Look where an upgrade stands. Changes nothing."""
    place = checkpoint.location.uri
    mark = inspect_target(checkpoint.location).seal
    sealed = mark is not None and mark.plan_id in upgrade.plan_ids
    if upgrade.has(Event.KEPT) and sealed and mark:
        return Outcome(
            HALF_WAY,
            f"The new code was to be kept, and {place} is sealed by this upgrade: no Spark starts from it. See which code is in "
            f"place and what the sink holds, lift the seal by hand, start the code, and clear the task `{_REPORT}`:",
            (command("unseal", place, "--plan", mark.plan_id),),
            clear=_REPORT,
        )
    if upgrade.has(Event.KEPT):
        return Outcome(KEPT, f"The new code runs on {place}.", downtime=upgrade.fact(Event.KEPT, "downtime"))
    if upgrade.has(Event.BACK) and not sealed:
        changed = upgrade.fact(Event.BACK, "plan")
        how = (
            f"checkpoint and sink were put back to batch {upgrade.fact(Event.BACK, 'batch_id')} (rewind {changed}), of backup "
            # An older release notes it of the release only.
            f"{upgrade.fact(Event.BACK, 'backup_id') or upgrade.fact(Event.RELEASED, 'backup_id')}"
            if changed
            else "the new code had written nothing"
        )
        downtime = downtime_of(upgrade, checkpoint, since=datetime.fromisoformat(str(upgrade.fact(Event.BACK, "at"))))
        if downtime is not None:
            return Outcome(
                TAKEN_BACK, f"The upgrade was rolled back: {how}. The old code continues.", downtime=downtime
            )
        goes_on = f"No batch was committed since: see that the old code runs; the task `{_START_OLD}` starts it."
        return Outcome(TAKEN_BACK, f"The upgrade was rolled back: {how}. {goes_on}", clear=_START_OLD)
    if not is_needed(upgrade):
        return Outcome(UNTOUCHED, f"Nothing was changed: {place} was not stopped and continues with the old code.")
    back = f"Clear the task `{_TAKE_BACK}` with what comes after it: the old code is put in place, the checkpoint is what it was"
    on = " Or correct what failed and clear the first task that did not succeed, with what comes after it: the run continues."
    if upgrade.has(Event.GOING_BACK):
        on = ""  # whatever comes after it would be refused
    if sealed and mark:
        leaves = ", if the new code has written nothing" if upgrade.has(Event.GOING_BACK) else ""
        if upgrade.has(Event.RELEASED):
            leaves = ", which leaves what the new code has written"
        return Outcome(
            HALF_WAY,
            f"{place} is sealed by this upgrade, and no Spark starts from it, old code or new. {back}, and the old code is "
            f"started.{on} Or see to it that the old code is in place, and lift the seal by hand{leaves}:",
            (command("unseal", place, "--plan", mark.plan_id),),
            clear=_TAKE_BACK,
        )
    if not upgrade.has(Event.RELEASED):
        found = f" It is sealed by plan {mark.plan_id} ({mark.reason}, {mark.made_by})." if mark else ""
        return Outcome(
            HALF_WAY,
            f"{place} was to be stopped, is not sealed by this upgrade, and may be stopped or run with the old code.{found} "
            f"{back}, and the old code is started.{on}",
            clear=_TAKE_BACK,
        )
    return Outcome(
        HALF_WAY,
        f"The new code was allowed to start on {place}, is not known to be well, and was not rolled back. {back}, the "
        f"sink is rolled back with it, and the old code is started.{on} Or stop the stream and rewind by hand:",
        (
            command(
                *("rewind", place, "--to-batch", upgrade.fact(Event.RELEASED, "batch_id")),
                *("--backup-id", upgrade.fact(Event.RELEASED, "backup_id")),
                *("--repository", "REPOSITORY", "--name", upgrade.name, "--sink", "SINK", "--sink-policy", "rollback"),
                *("--query-is-stopped", "--apply"),
            ),
        ),
        clear=_TAKE_BACK,
    )


def downtime_of(upgrade: Upgrade, checkpoint: Checkpoint, *, since: datetime | None = None) -> float | None:
    """Seconds from the last commit before the new code to the first one after.

    :param since: commits before this time are not of the code that is looked for; ``None``: all beyond the drained batch count.
    """
    files = list_logs(checkpoint.location).commits.values()
    commits = [file.modified.astimezone(UTC) for file in files if file.modified]
    noted = upgrade.fact(Event.RELEASED, "last_commit")
    # Where the new code was never let start, no commit was taken away or written again.
    ended = datetime.fromisoformat(noted) if noted else max((c for c in commits if since and c <= since), default=None)
    if ended is None:
        return None
    later = [time for time in commits if time > (since or ended)]
    return (min(later) - ended).total_seconds() if later else None
