"""The topics and partitions that the options of a query's Kafka reader name: ``subscribe``, ``assign``, ``subscribePattern``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.kafka_log import Partition
from airflow_ckpt_provider.json_text import load_json

#: Names of the options, in the case in which they are compared.
PATTERN, SUBSCRIBE, ASSIGN = "subscribepattern", "subscribe", "assign"
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
#: What Python reads in another way than Java: sets within sets.
_OTHERWISE = re.compile(r"&&|\[[^\]\\]*\[")


@dataclass(frozen=True, slots=True)
class NamedTopics:
    """What a query names.

    :param topics: by their names; Spark fails where one of them does not exist.
    :param assigned: the partitions, with ``assign``; ``None``: all of the topics.
    :param pattern: what the name of a topic has to have somewhere in it, as Spark's ``SubscribePatternStrategy`` looks for it.
    :param doubt: why the pattern is not understood here; empty if it is.
    """

    topics: frozenset[str] = frozenset()
    assigned: frozenset[Partition] | None = None
    pattern: re.Pattern[str] | None = None
    doubt: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> NamedTopics:
        """Read the options of a reader.

        :param options: the options, in any case.
        :raises RefusedError: ``assign`` is not of its form.
        """
        told = {key.lower(): value for key, value in options.items()}
        if (pattern := told.get(PATTERN)) is not None:
            try:
                if _OTHERWISE.search(pattern):
                    raise re.error("a set within a set is read in another way")
                return cls(pattern=re.compile(pattern))
            except re.error as e:
                doubt = f"subscribePattern {pattern!r} is not understood here ({e}): topics that it adds are not known"
                return cls(doubt=doubt)
        if (assign := told.get(ASSIGN)) is not None:
            try:
                given = load_json(assign)
                assigned = frozenset((str(topic), int(n)) for topic, numbers in given.items() for n in numbers)
            except (ValueError, AttributeError, TypeError) as e:
                raise RefusedError(
                    f"the option assign is {assign!r}, with which Spark does not start",
                    hint='give what the query has, as JSON: {"orders": [0, 1]}',
                ) from e
            return cls(frozenset(topic for topic, _ in assigned), assigned)
        return cls(frozenset(filter(None, (name.strip() for name in told.get(SUBSCRIBE, "").split(",")))))

    def matching(self, there: Collection[str]) -> frozenset[str]:
        """The topics that the query names, of all that exist where it goes by a pattern. No pattern matches internal ones.

        :param there: names of the topics that exist.
        """
        if self.pattern is None:
            return self.topics
        return frozenset(name for name in there if name not in _INTERNAL and self.pattern.search(name))

    def left_out(self, start: Collection[Partition]) -> set[Partition]:
        """Partitions of the checkpoint that the query does not name any more; none if that is not known."""
        if self.pattern is not None:
            return {p for p in start if not self.pattern.search(p[0])}
        if self.assigned is not None:
            return set(start) - self.assigned
        return {p for p in start if p[0] not in self.topics} if self.topics else set()
