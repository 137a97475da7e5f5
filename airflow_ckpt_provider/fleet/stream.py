"""The status of one stream of a fleet, and whether that is within the limits that were given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.backup.drills import Drill
from airflow_ckpt_provider.change.sealing import of_change
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset
from airflow_ckpt_provider.fleet.backups import LastBackup
from airflow_ckpt_provider.fleet.discovery import Found, State
from airflow_ckpt_provider.fleet.objectives import Met, Recovery, Standing, judge_rpo, passed, standing
from airflow_ckpt_provider.fleet.time_to_loss import TimeToLoss
from airflow_ckpt_provider.recovery.status import UNDER_WAY, RewindStatus
from airflow_ckpt_provider.streams.stream import Objectives
from airflow_ckpt_provider.streams.stream import Stream as DeclaredStream
from airflow_ckpt_provider.units import format_duration, shown_time
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Limits:
    """What is still fine. What is not known is never within a limit.

    :param max_age: seconds since the last good backup, where anything was committed since; ``None``: not judged, as with the
        others.
    :param max_gap: logged batches without a commit.
    :param min_time_to_loss: seconds for which the sources must still have what the next start reads.
    """

    max_age: float | None = None
    max_gap: int | None = None
    min_time_to_loss: float | None = None

    @classmethod
    def of(cls, stream: DeclaredStream, given: Limits | None = None) -> Limits:
        """What a declared stream is judged by: what is given, and the rest as it is declared.

        Without ``min_time_to_loss``, ``max_downtime`` limits the time to loss of a stream that declares a source for which a
        guard can say it. Of files no guard can, and of a stream that declares none nobody was meant to ask it.

        :param stream: the stream.
        :param given: limits for all streams; ``None``: there are none.
        """
        rpo, can_be_known = stream.objectives.rpo, bool(stream.sources.keys() - {FileOffset.kind} or stream.kafka)
        left = stream.watch.min_time_to_loss or (stream.max_downtime if can_be_known else None)
        declared = cls(
            max_age=rpo.total_seconds() if rpo else None,
            max_gap=stream.watch.max_gap,
            min_time_to_loss=left.total_seconds() if left else None,
        )
        said = given.to_json() if given else {}
        return replace(declared, **{name: value for name, value in said.items() if value is not None})

    def to_json(self) -> dict[str, Any]:
        """The limits as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Stream:
    """One row of the fleet.

    :param found: its checkpoint.
    :param looked_at: when, in UTC.
    :param situation: whether it is sealed, half-way through a rewind, or rewound and not started since; ``None``: not known.
    :param backup: its last good backup; ``None``: there is none, or it is not known.
    :param drill: when a backup of it was last restored and run on; ``None`` likewise.
    :param time_to_loss: how long its sources will have what the next start reads.
    :param size: bytes of the checkpoint as it is; ``None`` where nobody asked, or it is not known.
    :param unknown: what could not be found out, and why: ``situation``, ``backup``, ``drill``, ``size``.
    """

    found: Found
    looked_at: datetime
    situation: RewindStatus | None
    backup: LastBackup | None
    drill: Drill | None
    time_to_loss: TimeToLoss
    size: int | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name it goes by in the repository, as far as it has backups there."""
        return self.backup.name if self.backup else self.found.name

    @property
    def gap(self) -> int | None:
        """Newest logged minus newest committed batch; ``None`` where the checkpoint cannot be read."""
        return self.found.progress.gap if self.found.progress else None

    @property
    def backup_age(self) -> float | None:
        """Seconds since the position of the last good backup was read; ``None``: there is none, or its clock was wrong."""
        return self.backup.age(self.looked_at) if self.backup else None

    @property
    def drill_age(self) -> float | None:
        """Seconds since the last drill; ``None``: there was none, or its clock was wrong."""
        return passed(self.drill.at, self.looked_at) if self.drill else None

    @property
    def batches_behind(self) -> int | None:
        """Batches committed since that backup; ``None`` where either is not known."""
        committed = self.found.progress.latest_committed if self.found.progress else None
        if self.backup is None or committed is None:
            return None
        return committed - self.backup.batch_id

    @property
    def backup_is_current(self) -> bool:
        """Whether that backup is known to hold all that was committed; a stream may have nothing to do for days."""
        progress = self.found.progress
        if self.backup is None or progress is None or self.batches_behind != 0 or progress.gap != 0:
            return False
        # A batch of the same number that was run again after a rewind was planned at another time.
        is_same = progress.batch_time is not None and progress.batch_time.isoformat() == self.backup.planned
        return is_same and progress.query_id == self.backup.query_id

    @property
    def has_no_batch(self) -> bool:
        """Whether nothing was committed yet: then there is nothing to back up."""
        return self.found.state is State.NO_BATCH

    @property
    def recovery(self) -> Recovery:
        """What its objectives are judged by."""
        seconds = self.drill.report.get("seconds") if self.drill and self.drill_age is not None else None
        return Recovery(
            reported=self.looked_at,
            has_backup=None if "backup" in self.unknown else self.backup is not None,
            backup_created=self.backup.as_of if self.backup else None,
            backup_held_until=self.backup.held_until if self.backup and self.batches_behind != 0 else None,
            nothing_to_lose=None if "backup" in self.unknown else self.backup_is_current or self.has_no_batch,
            drill_seconds=None if seconds is None else float(seconds),
        )

    def standing(self, objectives: Objectives) -> Standing:
        """Whether it meets its objectives.

        :param objectives: what is declared of it.
        """
        return standing(objectives, self.recovery, self.looked_at)

    def problems(self, limits: Limits) -> tuple[str, ...]:
        """What is wrong with it, in words: what is broken or not known, and the limits that it does not keep."""
        return tuple(self._problems(limits))

    def _problems(self, limits: Limits) -> Iterator[str]:
        if self.found.state in (State.TORN, State.UNREADABLE):
            yield f"{self.found.state.value}: {self.found.message}"
        yield from (f"{part} UNKNOWN: {reason}" for part, reason in self.unknown.items())
        seal = self.found.progress.seal if self.found.progress else None
        # A change whose repository is elsewhere, or cannot be read, may have stopped half-way too; a person's seal is wanted.
        if self.situation and (self.situation.kind == UNDER_WAY or (seal and of_change(seal))):
            yield self.situation.message
        if self.backup and self.backup.damaged:
            yield f"damaged backups newer than the last good one: {', '.join(self.backup.damaged)}"
        if self.time_to_loss.verdict not in (Verdict.SAFE, Verdict.UNKNOWN):
            yield f"next start {self.time_to_loss.verdict.value}: {'; '.join(self.time_to_loss.reasons)}"
        if limits.max_age is not None:
            yield from self._too_old(limits.max_age)
        if limits.max_gap is not None and self.gap is None:
            yield f"gap UNKNOWN, against at most {limits.max_gap}"
        if limits.max_gap is not None and (gap := self._uncommitted()) and abs(gap) > limits.max_gap:
            yield f"gap {gap}, more than {limits.max_gap}"
        if limits.min_time_to_loss is not None:
            yield from self._too_short(limits.min_time_to_loss)

    def _uncommitted(self) -> int:
        """Logged batches without a commit, as a watch counts them: asynchronous progress logs some numbers only.

        Negative where offsets were lost.
        """
        progress = self.found.progress
        return 0 if progress is None else len(progress.uncommitted) or min(progress.gap, 0)

    def _too_old(self, most: float) -> Iterator[str]:
        judged = judge_rpo(most, self.recovery, self.looked_at)
        if self.backup is None:
            if judged.met is Met.NO:
                yield "no backup"
        elif self.backup_age is None:
            yield f"age of the last good backup UNKNOWN: a clock says it is of {shown_time(self.backup.as_of)}"
        elif judged.seconds is not None and judged.met is not Met.YES and self.backup_age <= most:
            planned = f"batch {self.backup.batch_id}, planned {format_duration(judged.seconds)} ago"
            yield f"age of the last good backup UNKNOWN: it holds {planned}, and was finished later"
        elif judged.met is not Met.YES:
            yield f"last good backup {format_duration(self.backup_age)} old, more than {format_duration(most)}"

    def _too_short(self, least: float) -> Iterator[str]:
        left = self.time_to_loss
        if left.seconds is not None and left.seconds < least:
            yield f"time to loss {format_duration(left.seconds)}, less than {format_duration(least)}"
        elif not left.known:
            yield f"time to loss UNKNOWN: {'; '.join(left.reasons)}"

    def to_json(self, limits: Limits, objectives: Objectives | None = None) -> dict[str, Any]:
        """The row as plain JSON."""
        return {
            **self.found.to_json(),
            "name": self.name,
            "gap": self.gap,
            "situation": self.situation.to_json() if self.situation else None,
            "backup": self.backup.to_json(self.looked_at) if self.backup else None,
            "batches_behind": self.batches_behind,
            "nothing_to_lose": self.recovery.nothing_to_lose,
            "objectives": self.standing(objectives or Objectives()).to_json(),
            "time_to_loss": self.time_to_loss.to_json(),
            "last_drill": self.drill.to_json() if self.drill else None,
            "size": self.size,
            "unknown": dict(self.unknown),
            "problems": list(self.problems(limits)),
        }
