"""Says in the log of a failed task what its error means and what to do about it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_ckpt_provider.advisor.advice import RecoveryAdvice
from airflow_ckpt_provider.advisor.advice import recovery_advice as advise

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

#: Of a longer log the end is read.
_MOST_BYTES = 4 * 1024 * 1024


class RecoveryAdviceNotifier(BaseNotifier):
    """Attach the advice for a stream's error to the log of the task that failed with it.

    The error is the task's exception with all its causes. ``SparkSubmitOperator`` puts the end of Spark's own output into
    its exception; where an operator does not, ``log_file`` names the driver's log. Reads no checkpoint and no network, and
    never fails: a callback that fails would hide the error it is about. ::

        SparkSubmitOperator(task_id="stream", …, on_failure_callback=RecoveryAdviceNotifier())

    .. seealso:: :doc:`/howto/explain`

    :param log_file: a local file with the driver's log, looked at when the exception alone says nothing. (templated)
    :param unknown: say so too where the error is not a known one.
    """

    template_fields: Sequence[str] = ("log_file",)

    def __init__(self, *, log_file: str | None = None, unknown: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.log_file = log_file
        self.unknown = unknown

    def notify(self, context: Context) -> None:
        """Log the advice."""
        _say(_advice(context, self.log_file), unknown=self.unknown)

    async def async_notify(self, context: Context) -> None:
        """Log the advice; there is nothing to wait for."""
        self.notify(context)


def recovery_advice(context: Context) -> None:
    """Log the advice, as a plain callback: ``on_failure_callback=recovery_advice``."""
    _say(_advice(context, None), unknown=True)


def _advice(context: Context, log_file: str | None) -> RecoveryAdvice | None:
    error = context.get("exception")
    advice = advise(error) if error is not None else None
    if log_file and not (advice and advice.recognised):
        try:
            advice = advise(_end_of(log_file))
        except OSError as e:
            log.warning("The driver's log could not be read: %s", e)
    return advice


def _end_of(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _MOST_BYTES))
        return file.read().decode("utf-8", "replace")


def _say(advice: RecoveryAdvice | None, *, unknown: bool) -> None:
    if advice is None or not (advice.recognised or unknown):
        return
    log.error("Recovery advice\n%s", advice.to_text())
