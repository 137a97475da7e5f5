"""A health gate after a deployment: whether the stream runs again, as fast as before, on as much input, without an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_rendered
from airflow_ckpt_provider.operators.fields import required, seconds, text, whole_number
from airflow_ckpt_provider.redaction import redacted
from airflow_ckpt_provider.sensors.waiting import StreamSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.checkpoint.conditions import Wait
    from airflow_ckpt_provider.checkpoint.health import Check, Pace
    from airflow_ckpt_provider.checkpoint.waiting import Answer
    from airflow_ckpt_provider.checkpoint.waiting_memory import Memory


def stream_baseline(
    checkpoint: str,
    checkpoint_conn_id: str | None = None,
    *,
    batches: int = 20,
    progress_log: str | None = None,
    error_log: str | None = None,
    progress_log_conn_id: str | None = None,
) -> dict[str, Any]:
    """Measure the pace of a stream, for :class:`StreamHealthSensor` to compare with later. Call it in a task.

    :param checkpoint: URI of the checkpoint.
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials.
    :param batches: how many of the newest committed batches to measure; fewer where fewer are retained.
    :param progress_log: as for :class:`StreamHealthSensor`: the lag is measured, and what it says by now does not count later.
    :param error_log: likewise; its length is noted.
    :param progress_log_conn_id: Airflow connection to reach both.
    :return: plain JSON: ``checkpoint, query_id, batch_id, batches, seconds_per_batch, input_per_second, whole_seconds, time, lag,
        driver``.
    :raises RefusedError: there is no committed batch to measure.
    """
    from airflow_ckpt_provider.checkpoint.driver_logs import mark_logs
    from airflow_ckpt_provider.checkpoint.health import measure
    from airflow_ckpt_provider.checkpoint.lag import batches_of, largest_lags
    from airflow_ckpt_provider.checkpoint.progress_events import read_events
    from airflow_ckpt_provider.places import open_logs, open_place

    location = open_place(required(checkpoint, "checkpoint"), text(checkpoint_conn_id))
    pace = measure(location, batches=batches, with_query_id=True)
    if not pace.batches:
        raise RefusedError(
            f"{location} has no committed batch to measure", hint="take the baseline of a stream that has run"
        )
    lag = None
    logs = open_logs(text(progress_log), text(error_log), text(progress_log_conn_id))
    if logs and logs.progress is not None:
        progress = batches_of(read_events(logs.progress), pace.query_id)
        lag = largest_lags(progress, first=pace.batch_id - pace.batches + 1, last=pace.batch_id)
    now = datetime.now(UTC)
    return replace(pace, time=now, lag=lag, driver=mark_logs(logs, now) if logs else None).to_json()


def mark_baseline(
    baseline: dict[str, Any] | str,
    *,
    progress_log: str | None = None,
    error_log: str | None = None,
    progress_log_conn_id: str | None = None,
) -> dict[str, Any]:
    """Return a baseline with the same figures and batch, behind everything that the driver has said until now.

    For the moment before a start: how the old run ended, or the new one before a roll back, is then no fault of what is started.
    Call it in a task.

    :param baseline: what :func:`stream_baseline` returned.
    :raises RefusedError: it is something else.
    """
    from airflow_ckpt_provider.checkpoint.driver_logs import DriverMark, mark_logs
    from airflow_ckpt_provider.places import open_logs

    now = datetime.now(UTC)
    logs = open_logs(text(progress_log), text(error_log), text(progress_log_conn_id))
    return replace(_parsed(baseline), driver=mark_logs(logs, now) if logs else DriverMark(now)).to_json()


class StreamHealthSensor(StreamSensor):
    """Wait for new batches after a deployment, and compare their pace with the one before.

    Passes once ``warm_up`` + ``new_batches`` batches are committed beyond the baseline, and the newest ``new_batches`` of
    them take as long and bring as much input as before, within the given percentages. Reads again at new batches where
    they do not, up to ``give_up_after`` of them, and then fails without retries. Fails early when the stream is stuck and
    when its history was rewritten since the baseline (smaller batch ids, another query id: the deployment lost its
    checkpoint). With ``progress_log`` or ``error_log`` it fails at the first poll after a new run has crashed, also where that
    began no batch.
    What cannot be known (a source whose offsets cannot be counted, a baseline without input) is said and fails nothing.

    The result holds ``healthy``, ``checks``, ``baseline``, ``measured`` and ``progress``.

    Parameters of the checkpoint and of waiting: see :class:`~.waiting.StreamSensor`.

    .. code-block:: python

        StreamHealthSensor(
            task_id="healthy",
            checkpoint="s3://lake/checkpoints/orders",
            baseline="{{ ti.xcom_pull(task_ids='baseline') }}",
            new_batches=10,
            catching_up=True,
        )

    .. seealso:: :doc:`/howto/health-gate`

    :param baseline: what :func:`stream_baseline` returned before the deployment, as a dictionary or as JSON. (templated)
    :param new_batches: how many new batches to compare. (templated)
    :param warm_up: batches after the baseline that are not compared: they catch up on the time of the deployment. (templated)
    :param duration_within: percent by which a batch may take longer or shorter; 100 allows twice as long. ``None``: not
        compared.
    :param input_within: percent by which each source may bring more or less. ``None``: not compared.
    :param catching_up: more input is no fault: the stream reads what arrived while it was down.
    :param lag_within: percent by which the lag of the newest compared batch may be above the larger one of the baseline's and
        that of the first new batch; a lag of what one batch reads is none. Needs ``progress_log``. ``None``: not compared.
    :param progress_log: URI of the JSON lines that :class:`~airflow_ckpt_provider.spark.progress_lines.ProgressLines` writes in
        the stream's driver. (templated)
    :param error_log: URI of the driver's text log. (templated)
    :param progress_log_conn_id: Airflow connection to reach both. (templated)
    :param give_up_after: new batches after which a pace that is still another fails the task; ``None``: ``warm_up`` and
        four times ``new_batches``. (templated)
    :param stuck_after: as for :class:`~airflow_ckpt_provider.sensors.commit_gap.CommitGapSensor`.
    """

    template_fields: Sequence[str] = (
        *StreamSensor.template_fields,
        "baseline",
        "new_batches",
        "warm_up",
        "give_up_after",
        "progress_log",
        "error_log",
        "progress_log_conn_id",
    )

    def __init__(
        self,
        *,
        baseline: dict[str, Any] | str,
        new_batches: int | str = 10,
        warm_up: int | str = 1,
        duration_within: float | None = 100.0,
        input_within: float | None = 50.0,
        catching_up: bool = False,
        lag_within: float | None = 20.0,
        give_up_after: int | str | None = None,
        stuck_after: timedelta | float | None = 1800.0,
        progress_log: str | None = None,
        error_log: str | None = None,
        progress_log_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.baseline = baseline
        self.new_batches = new_batches
        self.warm_up = warm_up
        self.duration_within = duration_within
        self.input_within = input_within
        self.catching_up = catching_up
        self.lag_within = lag_within
        self.give_up_after = give_up_after
        self.stuck_after = stuck_after
        self.progress_log = progress_log
        self.error_log = error_log
        self.progress_log_conn_id = progress_log_conn_id
        self._needed = 0

    def execute(self, context: Context) -> Any:
        """Wait; return the comparison."""
        self._needed = 0
        return super().execute(context)

    def _wait(self) -> Wait:
        from airflow_ckpt_provider.checkpoint.conditions import PROGRESSED_BY, Condition, Wait
        from airflow_ckpt_provider.checkpoint.driver_logs import DriverMark

        for field in ("duration_within", "input_within", "lag_within"):
            percent = getattr(self, field)
            if percent is not None and (
                isinstance(percent, bool) or not isinstance(percent, int | float) or percent < 0
            ):
                raise RefusedError(f"{field} is {percent!r}", hint="give percent from 0 up, or None")
        new, warm_up, limit = self._numbers()
        if limit < new + warm_up:
            raise RefusedError(
                f"give_up_after is {limit}", hint=f"give at least warm_up and new_batches together, {new + warm_up}"
            )
        baseline = self._baseline()
        return Wait(
            Condition(PROGRESSED_BY, max(self._needed, new + warm_up), baseline.batch_id).check(),
            stuck_after=None if self.stuck_after is None else seconds(self.stuck_after, "stuck_after", least=0.001),
            driver=baseline.driver or DriverMark(baseline.time),
            # Before the first batch of a new checkpoint there need not be one yet.
            missing_ok=baseline.batch_id < 0,
        )

    def _log_places(self) -> dict[str, str | None]:
        return {
            "progress_log": text(self.progress_log),
            "error_log": text(self.error_log),
            "logs_conn_id": text(self.progress_log_conn_id),
        }

    def _recall(self, context: Context) -> Memory:
        """Begin at the baseline: what was rewritten since is noticed too."""
        memory = super()._recall(context)
        if memory.looked is not None:
            return memory
        baseline = self._baseline()
        committed = baseline.batch_id if baseline.batch_id >= 0 else None
        return replace(memory, base=baseline.batch_id, committed=committed, query_id=baseline.query_id)

    def _conclude(self, answer: Answer) -> dict[str, Any] | None:
        from airflow_ckpt_provider.checkpoint.health import compare, measure

        new, warm_up, limit = self._numbers()
        baseline = self._baseline()
        measured = measure(self._open(), batches=new, after=baseline.batch_id + warm_up)
        checks = compare(
            baseline,
            measured,
            duration_within=self.duration_within,
            input_within=self.input_within,
            catching_up=self.catching_up,
        )
        checks += self._lags(baseline, measured)
        healthy = all(check.ok is not False for check in checks)
        for check in checks:
            self.log.info("%s", check)
        report = {
            "healthy": healthy,
            "checks": [check.to_json() for check in checks],
            "baseline": baseline.to_json(),
            "measured": measured.to_json(),
            "progress": answer.progress,
        }
        done = measured.batch_id - baseline.batch_id
        if healthy:
            return report
        if done >= limit:
            raise _UnhealthyError(self._said(measured, checks), report)
        self._needed = done + 1
        return None

    def _lags(self, baseline: Pace, measured: Pace) -> list[Check]:
        from airflow_ckpt_provider.checkpoint.lag import batches_of, compare_lags
        from airflow_ckpt_provider.checkpoint.progress_events import read_events

        if self.lag_within is None or self._logs is None or self._logs.progress is None:
            return []
        progress = batches_of(read_events(self._logs.progress), baseline.query_id)
        return compare_lags(
            progress, before=baseline.lag, after=baseline.batch_id, last=measured.batch_id, within=self.lag_within
        )

    def _judge(self, answer: Answer, context: Context) -> dict[str, Any] | None:
        try:
            return super()._judge(answer, context)
        except Exception as e:
            if isinstance(e.__cause__, _UnhealthyError):
                self._forget(context)
                self._push(e.__cause__.report, context)
            raise

    def _said(self, measured: Pace, checks: list[Any]) -> str:
        lines = [
            f"{redacted(required(self.checkpoint, 'checkpoint'))} does not run as before: batches up to {measured.batch_id}"
        ]
        return "\n".join([*lines, *(str(check) for check in checks if check.ok is False)])

    def _numbers(self) -> tuple[int, int, int]:
        new = whole_number(self.new_batches, "new_batches", least=1) or 1
        warm_up = whole_number(self.warm_up, "warm_up") or 0
        return new, warm_up, whole_number(self.give_up_after, "give_up_after", least=1) or warm_up + 4 * new

    def _baseline(self) -> Pace:
        return _parsed(self.baseline)


def _parsed(baseline: dict[str, Any] | str) -> Pace:
    from airflow_ckpt_provider.checkpoint.health import Pace

    value = baseline
    if isinstance(value, str):
        try:
            value = load_rendered(value)
        except ValueError as e:
            raise RefusedError(
                f"baseline is {value[:80]!r}", hint="give what stream_baseline(…) returned, as it is or as JSON"
            ) from e
    return Pace.from_json(value)


class _UnhealthyError(RefusedError):
    def __init__(self, message: str, report: dict[str, Any]) -> None:
        self.report = report
        super().__init__(message, hint="check what was deployed; the report is the task's result")
