"""What can be waited for, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import RefusedError

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.driver_logs import DriverMark

DRAINED, PROGRESSED_BY, COMMITTED_BATCH, MAX_GAP = "drained", "progressed_by", "committed_batch", "max_gap"
CONDITIONS = (DRAINED, PROGRESSED_BY, COMMITTED_BATCH, MAX_GAP)
_LEAST = {PROGRESSED_BY: 1, COMMITTED_BATCH: 0, MAX_GAP: 0}


@dataclass(frozen=True, slots=True)
class Condition:
    """What is waited for.

    :param kind: ``drained``: every logged batch is committed, and nothing is added to the logs for a while.
        ``progressed_by``: ``value`` batches more than at the beginning are committed. ``committed_batch``: batch ``value`` is.
        ``max_gap``: at most ``value`` logged batches are uncommitted.
    :param value: the number; none for ``drained``.
    :param since_batch: for ``progressed_by``, the batch to count from; ``None``: the newest commit of the first poll.
    """

    kind: str
    value: int | None = None
    since_batch: int | None = None

    def check(self) -> Condition:
        """Return the condition if it makes sense.

        :raises RefusedError: it does not; the message names the parameter.
        """
        if self.kind not in CONDITIONS:
            raise RefusedError(f"condition is {self.kind!r}", hint=f"give one of: {', '.join(CONDITIONS)}")
        if self.kind == DRAINED and self.value is not None:
            raise RefusedError(f"value is {self.value}, and condition 'drained' has none", hint="leave value out")
        if self.kind != DRAINED and (self.value is None or self.value < _LEAST[self.kind]):
            hint = f"condition {self.kind!r} needs a whole number from {_LEAST[self.kind]} up"
            raise RefusedError(f"value is {self.value}", hint=hint)
        if self.since_batch is not None and (self.kind != PROGRESSED_BY or self.since_batch < -1):
            raise RefusedError(
                f"since_batch is {self.since_batch} with condition {self.kind!r}",
                hint="give it with 'progressed_by' only: a batch id, or -1 for before the first batch",
            )
        return self

    def __str__(self) -> str:
        since = "" if self.since_batch is None else f" since batch {self.since_batch}"
        return self.kind if self.value is None else f"{self.kind} {self.value}{since}"


@dataclass(frozen=True, slots=True)
class Wait:
    """A condition and its time limits.

    :param condition: what is waited for.
    :param quiet_for: for ``drained``: nothing must have been added to the logs for so long. Not asked under a seal.
    :param stuck_after: a batch under way is stuck when nothing was written to ``offsets/``, ``commits/`` or ``state/``
        for so long; ``None``: never.
    :param missing_ok: a checkpoint that does not exist yet is waited for.
    :param driver: what the driver said before, where its logs are read: a run that begins later must not crash.
    """

    condition: Condition
    quiet_for: timedelta = timedelta(0)
    stuck_after: timedelta | None = None
    missing_ok: bool = False
    driver: DriverMark | None = None

    def to_json(self) -> dict[str, Any]:
        """The wait as plain JSON; times in seconds."""
        return {
            "condition": self.condition.kind,
            "value": self.condition.value,
            "since_batch": self.condition.since_batch,
            "quiet_for": self.quiet_for.total_seconds(),
            "stuck_after": None if self.stuck_after is None else self.stuck_after.total_seconds(),
            "missing_ok": self.missing_ok,
            "driver": self.driver.to_json() if self.driver else None,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Wait:
        """The wait that :meth:`to_json` wrote."""
        from airflow_ckpt_provider.checkpoint.driver_logs import DriverMark

        patience = value["stuck_after"]
        return cls(
            Condition(value["condition"], value["value"], value["since_batch"]),
            quiet_for=timedelta(seconds=value["quiet_for"]),
            stuck_after=None if patience is None else timedelta(seconds=patience),
            missing_ok=value["missing_ok"],
            driver=DriverMark.from_json(value.get("driver")),
        )
