"""Whom to notify: the notifiers that a stream declares, after the advice of this package."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.operators.fields import text
from airflow_ckpt_provider.operators.stream_action import by_name
from airflow_ckpt_provider.streams.stream import Stream

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)


class TellOfFailure:
    """Callback of a task that failed: logs the advice, and calls the notifiers of the task's stream.

    A task about no stream, or about all of them, notifies nobody by itself: its error names the streams.

    :param streams: the streams by name.
    """

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self._streams = streams

    def __call__(self, context: Context) -> None:
        """Tell. Never fails, for that would hide the error it is about."""
        from airflow_ckpt_provider.notifications.recovery_advice import recovery_advice

        try:
            recovery_advice(context)
        except Exception:  # the error may be of any class, with code of its own
            log.exception("the recovery advice could not be made")
        stream = self._streams.get(text(getattr(context.get("task"), "stream", None)) or "")
        if stream is not None:
            tell(stream, context)


def tell(stream: Stream, context: Context) -> None:
    """Call the notifiers that a stream declares; one that fails does not prevent the others.

    :param stream: the stream.
    :param context: of the task that they report.
    """
    for each in stream.notifiers:
        try:
            notifier: Any = by_name(each.notifier)(**each.arguments)
            notifier(context)
        except Exception:
            log.exception("%s of %s failed", each.notifier, stream)
