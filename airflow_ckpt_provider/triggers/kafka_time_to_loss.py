"""Watching how long Kafka will still have a resume point, while no worker is held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ckpt_provider.errors import SourceError
from airflow_ckpt_provider.triggers.in_thread import in_thread
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow_ckpt_provider.guards.report import GuardReport

#: Partitions that a message names.
_NAMED = 6


def look(
    checkpoint: str,
    checkpoint_conn_id: str | None,
    kafka_config_id: str,
    source: str | None,
    options: Mapping[str, Any],
) -> GuardReport:
    """Look once: the resume point as it is now, and the broker.

    :param options: ``reader_options`` and ``isolation_level`` of the query, as the sensor has them.
    :raises CkptError: the checkpoint or the broker could not be asked.
    """
    from airflow_ckpt_provider.guards.kafka import KafkaGuard
    from airflow_ckpt_provider.guards.query import from_checkpoint, guard_query
    from airflow_ckpt_provider.guards.registry import GuardSettings
    from airflow_ckpt_provider.operators.fields import by_source
    from airflow_ckpt_provider.operators.kafka_connection import open_kafka
    from airflow_ckpt_provider.places import open_place

    query = from_checkpoint(open_place(checkpoint, checkpoint_conn_id)).of_kind("kafka", source)
    readers = by_source(options.get("reader_options"), "reader_options", [each.name for each in query.sources])
    settings = GuardSettings(options={"kafka": {"options": readers, "isolation_level": options.get("isolation_level")}})
    query.refuse_other_sources(settings.options)
    return guard_query(query, settings, guards=[KafkaGuard(settings, open_kafka(kafka_config_id))])


def seconds_left(report: GuardReport) -> float | None:
    """The least time that a partition leaves: its lower bound, or the estimate if it has none.

    :param report: of a poll.
    :return: seconds; ``None``: no partition has either.
    """
    facts = [part.facts for source in report.sources for part in source.parts]
    bounds = [(each.get("seconds_left"), each.get("seconds_left_estimate")) for each in facts]
    left = [report.seconds_left, *(estimate if bound is None else bound for bound, estimate in bounds)]
    return min((seconds for seconds in left if seconds is not None), default=None)


def is_due(report: GuardReport, threshold: float) -> bool:
    """Whether it is time to call somebody.

    :param report: of a poll.
    :param threshold: seconds.
    """
    left = seconds_left(report)
    return report.verdict in (Verdict.WILL_LOSE, Verdict.WILL_FAIL) or (left is not None and left < threshold)


def not_known(report: GuardReport) -> str | None:
    """Why a poll did not show how much time is left; ``None``: it did.

    Of a partition that is read to its end nothing can be lost yet, whatever limits it.

    :param report: of the poll.
    """
    if report.verdict is Verdict.UNKNOWN:
        return "; ".join(report.reasons)
    unknown: dict[str, list[str]] = {}
    for part in (part for source in report.sources for part in source.parts):
        facts = part.facts
        limited = facts.get("limited_by", "nothing") != "nothing"
        if limited and facts["seconds_left"] is None and facts["seconds_left_estimate"] is None and _has_unread(facts):
            unknown.setdefault(facts["time_to_loss_reason"], []).append(part.name)
    said = (
        f"for how long Kafka keeps what is unread of {', '.join(names[:_NAMED])}"
        f"{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''} is not known: {why}"
        for why, names in unknown.items()
    )
    return "; ".join(said) or None


def _has_unread(facts: Mapping[str, Any]) -> bool:
    """Whether a partition has offsets to read; one that is new to the checkpoint is read from its beginning."""
    offset = facts["earliest"] if facts["offset"] is None else facts["offset"]
    return bool(offset < facts["latest"])


class KafkaTimeToLossTrigger(BaseTrigger):
    """Fires when the time to loss falls below a threshold, or something is lost already.

    A broker that does not answer is asked again at the next poll, until the time is over. If the last poll did not show how
    much time is left, the event says why.

    .. code-block:: python

        import time

        trigger = KafkaTimeToLossTrigger(
            checkpoint="s3://lake/checkpoints/orders",
            checkpoint_conn_id=None,
            kafka_config_id="kafka_orders",
            source=None,
            threshold=6 * 3600.0,
            poll_interval=60.0,
            end_time=time.time() + 3600,
        )

    :param checkpoint: URI of the checkpoint.
    :param checkpoint_conn_id: Airflow connection to reach it.
    :param kafka_config_id: Airflow connection of type ``kafka``.
    :param source: position or name of one source; ``None``: all Kafka sources.
    :param options: ``reader_options`` and ``isolation_level`` of the query, as the sensor has them; tasks of before have none.
    :param threshold: seconds.
    :param poll_interval: seconds between two polls.
    :param end_time: when to give up, seconds since the epoch.
    """

    def __init__(
        self,
        *,
        checkpoint: str,
        checkpoint_conn_id: str | None,
        kafka_config_id: str,
        source: str | None,
        threshold: float,
        poll_interval: float,
        end_time: float,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.checkpoint = checkpoint
        self.checkpoint_conn_id = checkpoint_conn_id
        self.kafka_config_id = kafka_config_id
        self.source = source
        self.options = dict(options or {})
        self.threshold = threshold
        self.poll_interval = poll_interval
        self.end_time = end_time

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "checkpoint": self.checkpoint,
                "checkpoint_conn_id": self.checkpoint_conn_id,
                "kafka_config_id": self.kafka_config_id,
                "source": self.source,
                "options": self.options,
                "threshold": self.threshold,
                "poll_interval": self.poll_interval,
                "end_time": self.end_time,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll, wait, poll again; one event ends it."""
        while True:
            unknown: str | None
            try:
                report = await in_thread(
                    look, self.checkpoint, self.checkpoint_conn_id, self.kafka_config_id, self.source, self.options
                )
                if is_due(report, self.threshold):
                    yield TriggerEvent({"status": "due", "report": report.to_json()})
                    return
                unknown = not_known(report)
            except SourceError as e:
                unknown = str(e)
            except Exception as e:  # whatever it is, the task has to learn of it
                yield TriggerEvent({"status": "error", "message": str(e)})
                return
            if unknown:
                self.log.warning("%s", unknown)
            left = self.end_time - time.time()
            if left <= 0:
                yield TriggerEvent({"status": "timeout", "unknown": unknown})
                return
            await asyncio.sleep(min(self.poll_interval, left))
