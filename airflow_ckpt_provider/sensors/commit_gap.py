"""Wait for a stream to drain, to move on, to reach a batch, to catch up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.checkpoint.conditions import CONDITIONS, DRAINED, Condition, Wait
from airflow_ckpt_provider.operators.fields import flag, one_of, seconds, text, whole_number
from airflow_ckpt_provider.sensors.waiting import StreamSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.waiting import Answer

_REACTIONS = ("fail", "pass")


class CommitGapSensor(StreamSensor):
    """Wait for one of four things of a Structured Streaming query, by its checkpoint alone.

    ``drained``: every logged batch is committed, and nothing was added to the logs for ``quiet_for``.
    ``progressed_by``: ``value`` batches more are committed than when the task began (or than ``since_batch``).
    ``committed_batch``: batch ``value`` is committed.
    ``max_gap``: at most ``value`` logged batches are uncommitted; numbers that async progress tracking leaves out do
    not count.

    Fails before the timeout, without retries, when the stream is stuck (a batch was begun, and nothing was written to
    ``offsets/``, ``commits/`` or ``state/`` for ``stuck_after``) and when its history was rewritten during the wait
    (smaller batch ids, commits written again, another query id). An idle stream is not stuck. A sealed checkpoint is
    reported as such, and drained when its newest real batch is committed.

    The result says how far the stream is: ``checkpoint, latest_logged, latest_committed, gap, uncommitted, batch_time,
    logged_at, committed_at, seconds_since_commit, batches_per_minute, sources, sealed``.

    Parameters of the checkpoint and of waiting: see :class:`~.waiting.StreamSensor`.

    .. code-block:: python

        CommitGapSensor(
            task_id="drained",
            checkpoint="s3://lake/checkpoints/orders",
            condition="drained",
            quiet_for=120,
            deferrable=True,
        )

    .. seealso:: :doc:`/howto/sensor`

    :param condition: ``"drained"``, ``"progressed_by"``, ``"committed_batch"`` or ``"max_gap"``. (templated)
    :param value: the number that the condition needs; ``drained`` needs none. (templated)
    :param since_batch: for ``progressed_by``: count from this batch, -1 for before the first; ``None``: from the newest
        one committed when the task began. (templated)
    :param quiet_for: for ``drained``: seconds or a timedelta in which nothing must have been logged or committed. Longer
        than the trigger interval of a stream that runs; 0 for one that was stopped.
    :param stuck_after: seconds or a timedelta after which a batch under way that writes nothing is stuck. Longer than the longest
        batch of a stateless query. ``None``: never.
    :param on_stuck: ``"fail"``, or ``"pass"`` where a dead stream is as good as a drained one: before a rewind, which drops
        the batch that it left behind. (templated)
    :param missing_ok: wait for a checkpoint that does not exist yet, instead of failing. (templated)
    """

    template_fields: Sequence[str] = (
        *StreamSensor.template_fields,
        "condition",
        "value",
        "since_batch",
        "on_stuck",
        "missing_ok",
    )

    def __init__(
        self,
        *,
        condition: str = DRAINED,
        value: int | str | None = None,
        since_batch: int | str | None = None,
        quiet_for: timedelta | float = 60.0,
        stuck_after: timedelta | float | None = 1800.0,
        on_stuck: Literal["fail", "pass"] | str = "fail",
        missing_ok: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.condition = condition
        self.value = value
        self.since_batch = since_batch
        self.quiet_for = quiet_for
        self.stuck_after = stuck_after
        self.on_stuck = on_stuck
        self.missing_ok = missing_ok

    def _wait(self) -> Wait:
        condition = Condition(
            one_of(text(self.condition), "condition", CONDITIONS),
            whole_number(self.value, "value"),
            whole_number(self.since_batch, "since_batch", least=-1),
        )
        one_of(text(self.on_stuck), "on_stuck", _REACTIONS)
        return Wait(
            condition.check(),
            quiet_for=seconds(self.quiet_for, "quiet_for"),
            stuck_after=None if self.stuck_after is None else seconds(self.stuck_after, "stuck_after", least=0.001),
            missing_ok=flag(self.missing_ok, "missing_ok"),
        )

    def _judge(self, answer: Answer, context: Context) -> dict[str, Any] | None:
        from airflow_ckpt_provider.checkpoint.waiting import State

        if answer.state is State.STUCK and text(self.on_stuck) == "pass":
            self.log.warning("%s: taken for stopped", answer.message)
            self._forget(context)
            return answer.progress
        return super()._judge(answer, context)
