"""Raising ``retention.ms`` for the length of a downtime, and putting back exactly what was there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.kafka_log import TopicConfig
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.units import format_duration


class _Configures(Protocol):
    def configs(self, topics: list[str]) -> dict[str, TopicConfig]: ...

    def set_retention(self, topic: str, retention_ms: int | None, *, inherit: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class RaisedRetention:
    """What was changed of a topic.

    :param topic: its name.
    :param old_retention_ms: what was in force before; -1 for ever.
    :param inherited: whether that was the broker's default, not the topic's own setting.
    :param new_retention_ms: what is in force now.
    """

    topic: str
    old_retention_ms: int
    inherited: bool
    new_retention_ms: int

    def to_json(self) -> dict[str, Any]:
        """What XCom holds, and :meth:`from_json` reads back."""
        return {
            "topic": self.topic,
            "old_retention_ms": self.old_retention_ms,
            "inherited": self.inherited,
            "new_retention_ms": self.new_retention_ms,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RaisedRetention:
        """Read it back.

        :raises RefusedError: it is something else.
        """
        try:
            return cls(
                str(value["topic"]),
                int(value["old_retention_ms"]),
                bool(value["inherited"]),
                int(value["new_retention_ms"]),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise RefusedError(
                f"{value!r} is no raised retention", hint="give output['raised'] of KafkaRetentionGuardOperator"
            ) from e


def plan_raise(report: GuardReport, *, at_most_ms: int) -> list[RaisedRetention]:
    """Say which topics need more retention for the planned downtime, and how much.

    :param report: of a guard that was given the planned downtime.
    :param at_most_ms: the longest retention that may be set.
    :raises RefusedError: a topic needs more than that.
    """
    planned = []
    for source in report.sources:
        for topic, facts in dict(source.facts.get("topics", {})).items():
            if not facts.get("retention_is_short") or facts["retention_ms"] < 0:
                continue
            needed = int(facts["needed_retention_ms"])
            if needed <= facts["retention_ms"]:
                continue  # what is short is not its age limit
            if needed > at_most_ms:
                raise RefusedError(
                    f"topic {topic} needs retention.ms={needed} ({format_duration(needed / 1000)}), and at most "
                    f"{at_most_ms} ({format_duration(at_most_ms / 1000)}) may be set",
                    hint="shorten the downtime, start the stream before it, or allow more by raise_retention_to_at_most",
                )
            planned.append(RaisedRetention(topic, facts["retention_ms"], facts["retention_is_inherited"], needed))
    return planned


def raise_retention(cluster: _Configures, planned: Iterable[RaisedRetention]) -> None:
    """Set what was planned."""
    for raised in planned:
        cluster.set_retention(raised.topic, raised.new_retention_ms)


def still_raised(cluster: _Configures, raised: Iterable[RaisedRetention]) -> list[RaisedRetention]:
    """Return those whose topic still has what was set; of the others, what was there before counts no longer."""
    changes = list(raised)
    now = cluster.configs([change.topic for change in changes])
    return [change for change in changes if (config := now.get(change.topic)) and _is_as_set(config, change)]


def restore_retention(cluster: _Configures, raised: Iterable[RaisedRetention]) -> list[dict[str, Any]]:
    """Put back what was there before, unless somebody has changed it since.

    :return: for each topic what was done: ``restored``, ``changed since`` or ``topic is gone``.
    """
    changes = list(raised)
    now = cluster.configs([change.topic for change in changes])
    done = []
    for change in changes:
        config = now.get(change.topic)
        if config is None:
            outcome = "topic is gone"
        elif _is_as_before(config, change):
            outcome = "restored"  # by an attempt before this one
        elif not _is_as_set(config, change):
            outcome = "changed since"
        else:
            before = None if change.old_retention_ms < 0 else change.old_retention_ms
            cluster.set_retention(change.topic, before, inherit=change.inherited)
            outcome = "restored"
        done.append({**change.to_json(), "outcome": outcome})
    return done


def _is_as_before(config: TopicConfig, change: RaisedRetention) -> bool:
    old = None if change.old_retention_ms < 0 else change.old_retention_ms
    return config.retention_ms == old and config.retention_is_inherited == change.inherited


def _is_as_set(config: TopicConfig, change: RaisedRetention) -> bool:
    return not config.retention_is_inherited and config.retention_ms == change.new_retention_ms
