"""Says what the error of a failed task means and what to do about it: in the task's log, and by any notifier of Airflow."""

from __future__ import annotations

import copy
import html
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_ckpt_provider.advisor.advice import RecoveryAdvice
from airflow_ckpt_provider.advisor.advice import recovery_advice as advise
from airflow_ckpt_provider.advisor.reading import text_of
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

#: Of a longer log the end is read.
_MOST_BYTES = 4 * 1024 * 1024
#: What an error of this package has before its next step.
_HINT = "\nHINT: "


class RecoveryAdviceNotifier(BaseNotifier):
    """Attach the advice for a stream's error to the log of the task that failed with it, and send it by other notifiers.

    The error is the task's exception with all its causes. ``SparkSubmitOperator`` puts the end of Spark's own output into
    its exception; where an operator does not, ``log_file`` names the driver's log. Reads no checkpoint and no network, and
    never fails: a callback that fails would hide the error it is about.

    .. code-block:: python

        from airflow.providers.smtp.notifications.smtp import SmtpNotifier
        from airflow.providers.standard.operators.bash import BashOperator

        BashOperator(
            task_id="stream",
            bash_command="./start.sh orders",
            on_failure_callback=RecoveryAdviceNotifier(
                SmtpNotifier(to="oncall@example.com", html_content="{{ recovery_advice.html }}"),
                log_file="driver.log",
            ),
        )

    The templates of the notifiers find ``recovery_advice`` beside what Airflow gives them: ``code`` (of the condition, or
    ``UNKNOWN``), ``known``, ``summary`` (one line), ``text``, ``html`` (the text, safe in a mail), ``error``, ``steps``.

    .. seealso:: :doc:`/howto/alerting`

    :param notifiers: get the advice, in this order. If one fails, this is logged, and the next gets it.
    :param log_file: a local file with the driver's log, read when the exception alone says nothing. (templated)
    :param unknown: say so too, and send it, where the error is not a known one.
    """

    template_fields: Sequence[str] = ("log_file",)

    def __init__(
        self, *notifiers: BaseNotifier, log_file: str | None = None, unknown: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.notifiers = notifiers
        self.log_file = log_file
        self.unknown = unknown

    def notify(self, context: Context) -> None:
        """Log the advice and send it."""
        said = _said(context, self.log_file)
        if not (said["known"] or self.unknown):
            return
        if context.get("exception") or said["known"]:
            log.error("Recovery advice\n%s", said["text"])
        for notifier in self.notifiers:
            try:
                # A copy: what a notifier renders stays in it, and the next failure has another text.
                copy.copy(notifier)({**context, "recovery_advice": said})
            except Exception:
                log.exception("%s could not send the recovery advice", type(notifier).__name__)

    async def async_notify(self, context: Context) -> None:
        """Log the advice and send it, in a thread: a notifier that can only wait does not hold up the triggerer."""
        import asyncio

        await asyncio.to_thread(self.notify, context)


def recovery_advice(context: Context) -> None:
    """Log the advice for a task's error, as a plain callback.

    .. code-block:: python

        from airflow.providers.standard.operators.bash import BashOperator

        BashOperator(task_id="stream", bash_command="./start.sh orders", on_failure_callback=recovery_advice)

    :param context: of the task that failed.
    """
    RecoveryAdviceNotifier().notify(context)


def _said(context: Context, log_file: str | None) -> Mapping[str, Any]:
    """What is said of a failure, as the templates of notifiers find it."""
    error = context.get("exception")
    message = redacted_text(text_of(error or context.get("reason") or "nothing says why"))
    if _HINT in message:
        # Refused by this package: it says itself what is wrong and what to do.
        what, _, hint = message.partition(_HINT)
        name = type(error.__cause__ or error).__name__ if isinstance(error, BaseException) else Verdict.UNKNOWN.value
        return _entry(name, True, what, message, message, [{"text": hint}])
    advice = _advice(error, log_file)
    if advice is None:
        return _entry(Verdict.UNKNOWN.value, False, message, message, message, [])
    found = advice.to_json()
    return _entry(
        found["code"], advice.recognised, advice.cause, advice.to_text(in_airflow=True), message, found["steps"]
    )


def _entry(code: str, known: bool, cause: str, text: str, error: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    text = redacted_text(text)
    return {
        "code": code,
        "known": known,
        "summary": " ".join(f"{code}: {redacted_text(cause)}".split()),
        "text": text,
        "html": f"<pre>{html.escape(text)}</pre>",
        "error": error,
        "steps": [
            {name: redacted_text(value) if isinstance(value, str) else value for name, value in step.items()}
            for step in steps
        ],
    }


def _advice(error: Any, log_file: str | None) -> RecoveryAdvice | None:
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
