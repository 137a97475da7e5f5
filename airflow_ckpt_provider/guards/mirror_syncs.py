"""What MirrorMaker 2 writes down of the offsets that it copies: the topic ``mm2-offset-syncs.<alias>.internal``.

A record of it says that record ``upstream`` of a partition on the old cluster is record ``downstream`` of the same partition
on the new one. Read in Apache Kafka's ``connect/mirror``: ``OffsetSync`` (the format), ``OffsetSyncWriter`` (when one is
written), ``OffsetSyncStore`` (what they are used for), ``DefaultReplicationPolicy`` and ``IdentityReplicationPolicy`` (names);
run against MirrorMaker 4.1.1. ``checkpoints`` topics hold offsets of consumer groups, and Spark has none.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.kafka_log import KafkaCluster, Partition

SOURCE, TARGET = "source", "target"
DEFAULT, IDENTITY = "default", "identity"
_PREFIX, _SUFFIX = "mm2-offset-syncs", "internal"


@dataclass(frozen=True, slots=True)
class OffsetSync:
    """One record of the topic.

    :param partition: topic and partition on the old cluster.
    :param upstream: offset of a record there.
    :param downstream: offset of its copy on the new cluster.
    """

    partition: Partition
    upstream: int
    downstream: int


@dataclass(frozen=True, slots=True)
class SyncTrail:
    """The syncs of one partition since MirrorMaker last restarted at an older offset, ascending.

    :param syncs: at least one.
    :param highest_before: the highest upstream offset before that; ``None`` if it did not, as far as the topic
        still shows.
    """

    syncs: tuple[OffsetSync, ...]
    highest_before: int | None = None

    def below(self, offset: int) -> OffsetSync | None:
        """The newest sync at or below an upstream offset."""
        return next((sync for sync in reversed(self.syncs) if sync.upstream <= offset), None)

    def above(self, offset: int) -> OffsetSync | None:
        """The first sync above an upstream offset."""
        return next((sync for sync in self.syncs if sync.upstream > offset), None)

    def since(self, sync: OffsetSync) -> tuple[OffsetSync, ...]:
        """A sync and all after it."""
        return self.syncs[self.syncs.index(sync) :]


@dataclass(frozen=True, slots=True)
class MirrorNames:
    """How MirrorMaker names topics.

    :param source: alias of the old cluster.
    :param target: alias of the new cluster; ``None``: not known.
    :param policy: ``default`` (``DefaultReplicationPolicy``: the alias in front) or ``identity`` (the same name).
    :param separator: ``replication.policy.separator``.
    :raises RefusedError: the policy is neither.
    """

    source: str
    target: str | None = None
    policy: str = DEFAULT
    separator: str = "."

    def __post_init__(self) -> None:
        if self.policy not in (DEFAULT, IDENTITY):
            raise RefusedError(
                f"{self.policy!r} is no replication policy that is known here", hint=f"give {DEFAULT} or {IDENTITY}"
            )

    def remote(self, topic: str) -> str:
        """The name of a topic on the new cluster."""
        return topic if self.policy == IDENTITY else f"{self.source}{self.separator}{topic}"

    def syncs_topic(self, location: str, topics: Collection[str]) -> str:
        """Choose the topic of the syncs among those of the cluster that holds them.

        On the old cluster its name has the alias of the new one, and on the new cluster that of the old one.

        :param location: ``source`` or ``target``, as ``offset-syncs.topic.location``.
        :param topics: names of all topics of that cluster.
        :raises RefusedError: there is none, or which one is not clear.
        """
        alias = self.target if location == SOURCE else self.source
        if alias is not None:
            # The separator of topics is not that of internal topics where `replication.policy.internal.topic.separator.enabled`
            # is false.
            names = {f"{_PREFIX}{s}{alias}{s}{_SUFFIX}" for s in (self.separator, ".")}
            found = sorted(names & set(topics))
        else:
            found = sorted(t for t in topics if t.startswith(_PREFIX) and t.endswith(_SUFFIX))
        if len(found) == 1:
            return found[0]
        there = "old" if location == SOURCE else "new"
        if found:
            raise RefusedError(
                f"the {there} cluster has several topics of offset syncs: {', '.join(found)}",
                hint="give the new cluster's alias in MirrorMaker (--mirrored-to, mirrored_to)",
            )
        wanted = f"{_PREFIX}{self.separator}{alias}{self.separator}{_SUFFIX}" if alias else f"{_PREFIX}….{_SUFFIX}"
        raise RefusedError(
            f"the {there} cluster has no topic {wanted}",
            hint="check the aliases and offset-syncs.topic.location of MirrorMaker (--offset-syncs-location), and "
            "emit.offset-syncs.enabled",
        )


class MirroredCluster(KafkaCluster, Protocol):
    """The questions to one end of a mirror, beside those of the guards."""

    def topic_names(self) -> frozenset[str]:
        """Names of all topics."""

    def first_at(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """The first offset of each partition whose timestamp is at or after one; ``None`` if there is no such record."""

    def contents(self, partition: Partition) -> tuple[tuple[bytes, bytes], ...]:
        """Key and value of every record of a partition, in order."""


def parse_sync(key: bytes, value: bytes) -> OffsetSync:
    """Read a record of the topic.

    The key is the topic (length in two bytes, UTF-8) and the partition (four); the value two offsets of eight bytes each.

    :raises ValueError: it is something else.
    """
    try:
        (length,) = struct.unpack_from(">h", key)
        topic = key[2 : 2 + length].decode()
        (partition,) = struct.unpack(">i", key[2 + length :])
        upstream, downstream = struct.unpack(">qq", value)
    except (struct.error, UnicodeDecodeError) as e:
        raise ValueError(f"no offset sync of MirrorMaker 2: {e}") from e
    if length < 0 or min(partition, upstream, downstream) < 0:
        raise ValueError("no offset sync of MirrorMaker 2: a number in it is negative")
    return OffsetSync((topic, partition), upstream, downstream)


def trails(syncs: Iterable[OffsetSync]) -> dict[Partition, SyncTrail]:
    """Keep of each partition what still holds.

    An upstream offset that decreases makes the earlier syncs invalid, as in ``OffsetSyncStore.updateSyncArray``. So does the
    same upstream offset with another downstream one: its record was copied twice, or the old topic was recreated. So does
    a downstream offset that does not rise: the new topic was recreated.

    :param syncs: in the order of the topic.
    """
    kept: dict[Partition, list[OffsetSync]] = {}
    before: dict[Partition, int] = {}
    for sync in syncs:
        held = kept.setdefault(sync.partition, [])
        if held and (sync.upstream, sync.downstream) == (held[-1].upstream, held[-1].downstream):
            continue
        if held and (sync.upstream <= held[-1].upstream or sync.downstream <= held[-1].downstream):
            before[sync.partition] = max(held[-1].upstream, before.get(sync.partition, 0))
            held.clear()
        held.append(sync)
    return {partition: SyncTrail(tuple(held), before.get(partition)) for partition, held in kept.items()}
