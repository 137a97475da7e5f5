"""Whom to notify: the notifiers that a stream declares, after the advice of this package."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.operators.declared_classes import by_name
from airflow_ckpt_provider.operators.fields import text
from airflow_ckpt_provider.operators.fleet import ProblemsError
from airflow_ckpt_provider.streams.stream import Stream

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)


class ToldError(RuntimeError):
    """A task has called the notifiers of its stream itself, and then fails with this.

    .. code-block:: python

        raise ToldError("orders: Kafka keeps what it has not read for 1 h more, less than 6 h")
    """


class TellOfFailure:
    """Callback of a task that failed: logs the advice, and calls the notifiers of the task's stream.

    If that stream is not known, it calls those of all streams of the DAG. A report that names problems of streams calls none: its
    error names the streams. A report that cannot be made calls those of all streams.

    :param streams: the streams by name.
    :param of_dag: the streams that the DAG is about.
    """

    def __init__(self, streams: Mapping[str, Stream], of_dag: Iterable[Stream] = ()) -> None:
        self._streams = streams
        self._of_dag = tuple(of_dag)

    def __call__(self, context: Context) -> None:
        """Tell. Never fails, for that would hide the error it is about."""
        from airflow_ckpt_provider.notifications.recovery_advice import recovery_advice

        try:
            recovery_advice(context)
        except Exception:  # the error may be of any class, with code of its own
            log.exception("the recovery advice could not be made")
        try:
            told = self._whose(context)
        except Exception:
            log.exception("the stream of the task is not known")
            told = self._of_dag
        for stream in told:
            tell(stream, context)

    def _whose(self, context: Context) -> Iterable[Stream]:
        error = context.get("exception")
        if isinstance(error, ToldError | ProblemsError):
            return ()
        task: Any = context.get("task")
        params: Mapping[str, Any] = context.get("params") or {}
        # If a worker is lost there is no error, and the DAG processor calls this with the task as the DAG has it: its fields are
        # not rendered, and what it is mapped over is not resolved. A form has the name as a value; it is no template here either.
        given: Any
        for given in (
            getattr(task, "stream", None),
            getattr(task, "op_kwargs", {}).get("stream"),
            params.get("stream"),
        ):
            name = given.resolve(context) if hasattr(given, "resolve") else given
            if stream := self._streams.get(text(name) or ""):
                return (stream,)
        return self._of_dag


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
