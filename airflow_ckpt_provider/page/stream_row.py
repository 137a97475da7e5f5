"""One stream as the fleet task found it last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.backup.manifest import CLOCKS_DIFFER
from airflow_ckpt_provider.fleet.objectives import Met, Recovery, Standing, passed, standing
from airflow_ckpt_provider.page.fields import inner, number, text, texts, time, whole
from airflow_ckpt_provider.recovery.status import UNFINISHED
from airflow_ckpt_provider.streams.stream import Objectives
from airflow_ckpt_provider.verdict import Verdict

#: Seconds after which a report does not say any more what the next start does, though the sources set no limit.
MOST_AGE = 48 * 3600


@dataclass(frozen=True, slots=True)
class StreamRow:
    """What a report says of a stream, and what follows from it at the time when the page is made.

    :param name: in the repository.
    :param checkpoint: its address.
    :param state: how its checkpoint looks, as the fleet calls it.
    :param looked_at: when the fleet task looked.
    :param now: when the page is made.
    :param committed: newest committed batch.
    :param newest: time of the newest batch that was planned.
    :param oldest: the oldest batch that the checkpoint still has, and its time.
    :param gap: newest logged minus newest committed batch.
    :param backup_id: the last backup that is not known to be damaged.
    :param backup_created: when it read the newest committed batch; of a report of an earlier version: when it was finished.
    :param verified: what verifying it found; empty: nobody has looked.
    :param behind: batches committed since.
    :param nothing_to_lose: see :class:`~airflow_ckpt_provider.fleet.objectives.Recovery`.
    :param backup_unknown: whether the task could not find out which backups there are.
    :param drill_unknown: whether it could not find out when one was last proven restorable.
    :param may_be_reported: whether a report could not be read that may be about it.
    :param left: seconds for which the sources had what the next start reads, when they were asked; ``None``: none, or no limit.
    :param left_known: whether that is known; not by a report whose clock is ahead.
    :param verdict: of the guards, on the next start, when they were asked; see :attr:`verdict_now`.
    :param situation: a kind of :mod:`~airflow_ckpt_provider.recovery.status`.
    :param message: the situation in words.
    :param plan_id: the change that it is about.
    :param drilled_at: when a backup was last proven restorable.
    :param drill_seconds: how long that took.
    :param problems: what is wrong, in words.
    :param objectives: what was declared.
    :param repository: key of its repository among several that are shown.
    """

    name: str
    checkpoint: str
    state: str
    looked_at: datetime | None
    now: datetime
    committed: int | None
    newest: datetime | None
    oldest: tuple[int, datetime | None] | None
    gap: int | None
    backup_id: str
    backup_created: datetime | None
    verified: str
    behind: int | None
    left: float | None
    left_known: bool
    verdict: str
    situation: str
    message: str
    plan_id: str
    drilled_at: datetime | None
    drill_seconds: float | None
    problems: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    nothing_to_lose: bool | None = None
    backup_unknown: bool = False
    drill_unknown: bool = False
    may_be_reported: bool = False
    objectives: Objectives = field(default_factory=Objectives)
    repository: str = ""

    @classmethod
    def of(
        cls,
        row: Mapping[str, Any],
        now: datetime,
        objectives: Objectives | None = None,
        *,
        repository: str = "",
        may_be_reported: bool = False,
    ) -> StreamRow:
        """Take a row of a report; whatever of it is not what it should be is not known."""
        backup, left, situation = inner(row.get("backup")), inner(row.get("time_to_loss")), inner(row.get("situation"))
        drill, oldest = inner(row.get("last_drill")), inner(row.get("oldest"))
        verdict, looked_at = text(left.get("verdict")), time(row.get("looked_at"))
        batch, backup_id = whole(oldest.get("batch_id")), text(backup.get("backup_id"))
        return cls(
            name=text(row.get("name")),
            checkpoint=text(row.get("checkpoint")),
            state=text(row.get("state")),
            looked_at=looked_at,
            now=now,
            committed=whole(row.get("latest_committed")),
            newest=time(row.get("batch_time")),
            oldest=None if batch is None else (batch, time(oldest.get("batch_time"))),
            gap=whole(row.get("gap")),
            backup_id=backup_id,
            backup_created=(time(backup.get("as_of")) or time(backup.get("created"))) if backup_id else None,
            verified=text(backup.get("verified")),
            behind=whole(row.get("batches_behind")),
            left=number(left.get("seconds")),
            left_known=left.get("known") is True and passed(looked_at, now) is not None,
            verdict=verdict if verdict in set(Verdict) else Verdict.UNKNOWN.value,
            situation=text(situation.get("kind")),
            message=text(situation.get("message")),
            plan_id=text(situation.get("plan_id")),
            drilled_at=time(drill.get("proven_at")),
            drill_seconds=number(drill.get("seconds")),
            problems=texts(row.get("problems")),
            reasons=texts(left.get("reasons")),
            nothing_to_lose=lose if isinstance(lose := row.get("nothing_to_lose"), bool) else None,
            backup_unknown="backup" in inner(row.get("unknown")),
            drill_unknown="drill" in inner(row.get("unknown")),
            may_be_reported=may_be_reported,
            objectives=objectives or Objectives(),
            repository=repository,
        )

    @property
    def is_unfinished(self) -> bool:
        """Whether it is sealed, or half-way through a change."""
        return self.situation in UNFINISHED or self.state == "sealed"

    @property
    def report_age(self) -> float | None:
        """Seconds since the fleet task looked; ``None``: it never did, or its clock is ahead."""
        return passed(self.looked_at, self.now)

    @property
    def backup_age(self) -> float | None:
        """Seconds since the last whole backup read its position; ``None``: there is none, or the clock is ahead."""
        return passed(self.backup_created, self.now)

    @property
    def left_now(self) -> float | None:
        """Seconds left of the time to loss, now: the time since the report is gone of it."""
        if self.left is None or self.report_age is None:
            return None
        return max(0.0, self.left - self.report_age)

    @property
    def verdict_now(self) -> str:
        """The verdict; ``UNKNOWN`` where the guards found it safe for no longer than until now, or too long ago."""
        age, left = self.report_age, self.left_now
        is_over = age is None or age > MOST_AGE or (left is not None and left <= CLOCKS_DIFFER.total_seconds())
        return Verdict.UNKNOWN.value if self.verdict == Verdict.SAFE and is_over else self.verdict

    def without_backup(self, why: str) -> StreamRow:
        """The row where the backup that the report calls good is not good any more; whether another one is, is not known.

        :param why: what is wrong with it, in words.
        """
        problem = f"backup {self.backup_id}, the last good one of the report, {why}"
        return replace(
            self,
            backup_id="",
            backup_created=None,
            verified="",
            backup_unknown=True,
            nothing_to_lose=False,
            problems=(*self.problems, problem),
        )

    @property
    def recovery(self) -> Recovery:
        """What its objectives are judged by."""
        # A report of an earlier version does not say it: equal numbers do not prove that the batches are the same.
        may_be = self.nothing_to_lose is None and self.behind == 0 and self.gap == 0
        known = not self.backup_unknown and self.looked_at is not None
        return Recovery(
            reported=self.looked_at,
            has_backup=bool(self.backup_id) if known else None,
            backup_created=self.backup_created,
            nothing_to_lose=None if may_be else bool(self.nothing_to_lose),
            # One that a clock dates in the future proves nothing of now.
            drill_seconds=self.drill_seconds if passed(self.drilled_at, self.now) is not None else None,
        )

    @property
    def judged(self) -> Standing:
        """Its objectives, at the time when the page is made."""
        return standing(self.objectives, self.recovery, self.now)

    @property
    def rpo(self) -> Met | None:
        """Whether the last good backup is young enough; ``None``: nothing was declared."""
        judged = self.judged.rpo
        return judged.met if judged else None

    @property
    def rto(self) -> Met | None:
        """Whether the last drill was fast enough; ``None``: nothing was declared."""
        judged = self.judged.rto
        return judged.met if judged else None

    @property
    def standing(self) -> str:
        """``problem``, ``unknown`` or ``fine``: the worst of all that is said."""
        if self.problems or self.is_unfinished or Met.NO in (self.rpo, self.rto):
            return "problem"
        is_fine = self.verdict_now == Verdict.SAFE and self.backup_id and Met.UNKNOWN not in (self.rpo, self.rto)
        return "fine" if is_fine else "unknown"
