"""Raising ``retention.ms`` for the length of a downtime, and putting back exactly what was there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.kafka_log import TopicConfig
from airflow_ckpt_provider.guards.report import GuardReport
from airflow_ckpt_provider.units import format_duration

log = logging.getLogger(__name__)


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
            present = facts.get("retention_ms")
            if not facts.get("retention_is_short") or present is None or present < 0:
                continue  # enough, or nobody knows what it is
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


def raise_retention(
    cluster: _Configures,
    planned: Iterable[RaisedRetention],
    *,
    before: Iterable[RaisedRetention] = (),
    keep: Callable[[list[RaisedRetention]], None] = lambda raised: None,
) -> list[RaisedRetention]:
    """Set what was planned, topic by topic, and never less than a topic has at that moment.

    Kafka cannot set a value on the condition that another one is in force: between the read and the set somebody else may
    set one.

    :param planned: what :func:`plan_raise` says.
    :param before: what attempts before have set. What was there before them is what is put back.
    :param keep: called with all that is to be put back, before each change.
    :return: all that is to be put back. Of a topic that has enough by then nothing is set.
    """
    given = list(before)
    raised = {change.topic: change for change in _still_raised(cluster, given)}
    if given:
        keep(list(raised.values()))
    for change in planned:
        _raise_one(cluster, change, raised, lambda: keep(list(raised.values())))
    return list(raised.values())


def _raise_one(
    cluster: _Configures, change: RaisedRetention, raised: dict[str, RaisedRetention], keep: Callable[[], None]
) -> None:
    """Set one topic, once what it has right before that is kept."""
    earlier, kept = raised.get(change.topic), None
    while (config := cluster.configs([change.topic]).get(change.topic)) and _has_less(config, change):
        before = earlier if earlier and _is_as_set(config, earlier) else None
        now = replace(
            change,
            old_retention_ms=before.old_retention_ms if before else config.retention_ms or 0,
            inherited=before.inherited if before else config.retention_is_inherited,
        )
        if now == kept:
            log.info(
                "Raising retention.ms of topic %s from %s%s to %d",
                change.topic,
                config.retention_ms,
                " (inherited)" if config.retention_is_inherited else "",
                change.new_retention_ms,
            )
            cluster.set_retention(change.topic, change.new_retention_ms)
            return
        raised[change.topic] = kept = now
        keep()
    if kept is not None:  # somebody else has raised it in between
        del raised[change.topic]
        if earlier:
            raised[change.topic] = earlier
        keep()


def set_by_others(report: GuardReport, raised: Iterable[RaisedRetention]) -> list[str]:
    """Name the topics whose retention is enough by a setting that this guard has not made, and so does not keep.

    Whether it is there permanently, or another guard has raised it for a while, Kafka does not say.

    :param report: of a guard that was given the planned downtime.
    :param raised: what this guard has set.
    """
    ours = {change.topic for change in raised}
    topics = {name: facts for source in report.sources for name, facts in dict(source.facts.get("topics", {})).items()}
    return [
        f"topic {name}: its own retention.ms={facts['retention_ms']} ({format_duration(facts['retention_ms'] / 1000)}) is enough "
        "for the planned downtime, and this guard has not set it: if another guard has raised it, that one may put it back "
        "during the downtime"
        for name, facts in topics.items()
        if facts.get("retention_is_short") is False
        and facts["retention_is_inherited"] is False
        and (facts["retention_ms"] or 0) > 0
        and name not in ours
    ]


def _still_raised(cluster: _Configures, raised: list[RaisedRetention]) -> list[RaisedRetention]:
    """Return those whose topic has what was set, or more; of the others, what was there before counts no longer."""
    now = cluster.configs([change.topic for change in raised]) if raised else {}
    return [change for change in raised if (config := now.get(change.topic)) and _has_as_much(config, change)]


def restore_retention(cluster: _Configures, raised: Iterable[RaisedRetention]) -> list[dict[str, Any]]:
    """Put back what was there before, unless somebody has changed it since. Each topic is read right before that.

    :return: for each topic what was done: ``restored``, ``changed since`` or ``topic is gone``.
    """
    done = []
    for change in raised:
        config = cluster.configs([change.topic]).get(change.topic)
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


def _has_less(config: TopicConfig, change: RaisedRetention) -> bool:
    """Whether a topic is known to have less than is planned."""
    reported = "retention.ms" not in config.unreported
    return reported and config.retention_ms is not None and config.retention_ms < change.new_retention_ms


def _has_as_much(config: TopicConfig, change: RaisedRetention) -> bool:
    """Whether a topic has what was set, or somebody has raised it further."""
    return not config.retention_is_inherited and (
        config.retention_ms is None or config.retention_ms >= change.new_retention_ms
    )
