"""The query ids of one stream, as one chain: a reset or a rewind can give a query a new id, and its batch numbers continue.

A Delta table keeps ``txn(appId, version)`` by query id. So a table can hold batches of one stream under several ids, and only
what it remembers of the id that the query has at its next start makes it skip a batch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory


@dataclass(frozen=True, slots=True)
class QueryIdLink:
    """One id of a stream.

    :param query_id: the id.
    :param known_by: how it is known that the stream had this id, in words, such as ``rewind 7f3a90c1``.
    :param from_batch: the first batch that could be written under it; ``None``: the first of all, or not known.
    """

    query_id: str
    known_by: str
    from_batch: int | None = None


@dataclass(frozen=True, slots=True)
class QueryIds:
    """All ids under which one stream has written, with the batch numbers of one log.

    :param links: the ids, oldest first; the last is the one that the query has at its next start.
    :param app_id: the ``txnAppId`` with which ``foreachBatch`` writes, or an older id, as a person named it; ``None``: none
        was named.
    :param successors: ids of queries with other batch numbers that took the stream's place: all that they wrote lies beyond
        every batch of the stream.
    """

    links: tuple[QueryIdLink, ...]
    app_id: str | None = None
    successors: frozenset[str] = frozenset()

    @classmethod
    def of(cls, query_id: str, *, app_id: str | None = None) -> QueryIds:
        """The chain of a query of which one id is known."""
        return cls((QueryIdLink(query_id, "metadata"),), app_id)

    @property
    def current(self) -> str:
        """The id that the query has at its next start."""
        return self.links[-1].query_id

    @property
    def all(self) -> tuple[str, ...]:
        """Every id with batches of the stream, oldest first; the one that a person named comes first."""
        named = (self.app_id,) if self.app_id else ()
        return tuple(dict.fromkeys((*named, *(link.query_id for link in self.links))))

    def known_as(self, app_id: str | None) -> QueryIds:
        """The same stream, as a sink knows it for which a person named an id.

        :param app_id: the id; ``None``: none was named.
        """
        return replace(self, app_id=app_id)

    def starting_as(self, query_id: str) -> QueryIds:
        """The same stream if its next start has another id of the chain, as after a rewind to an older backup."""
        last = [link for link in self.links if link.query_id == query_id]
        return replace(self, links=(*(link for link in self.links if link.query_id != query_id), *last))

    def writes_as(self, history: TableHistory) -> str:
        """The id that the table knows the query's next start by.

        An id that a person named can be the ``txnAppId`` of ``foreachBatch``, which stays the same when the query id changes; or
        an older query id. It is older if the table's newest commit of the two has the current query id.
        """
        if self.app_id is None or history.format == "iceberg":  # Iceberg compares query ids alone
            return self.current
        newest = (id_ for c in reversed(history.commits) for id_ in (self.current, self.app_id) if id_ in c.txns)
        return next(newest, self.app_id)

    def batch_in(self, commit: TableCommit) -> int | None:
        """The batch of the stream that a commit holds, whichever id wrote it; ``None``: the commit is not the stream's."""
        return max((commit.txns[id_] for id_ in self.all if id_ in commit.txns), default=None)

    def is_own(self, commit: TableCommit) -> bool:
        """Whether the stream, or a query that took its place, wrote a commit."""
        return not commit.txns.keys().isdisjoint(self.all) or not commit.txns.keys().isdisjoint(self.successors)

    def is_beyond(self, commit: TableCommit, batch_id: int) -> bool:
        """Whether a commit holds rows that the stream, or a query that took its place, wrote after a batch."""
        batch = self.batch_in(commit)
        return (batch is not None and batch > batch_id) or not commit.txns.keys().isdisjoint(self.successors)

    def in_words(self) -> str:
        """The ids for a message."""
        ids = self.all
        return f"the query {ids[0]}" if len(ids) == 1 else f"the query under its ids {', '.join(ids)}"


def strange_ids(history: TableHistory, known: Collection[str]) -> tuple[str, ...]:
    """Ids in a table's log that are not known to be the stream's: of other streams, or older ids of this one."""
    return tuple(dict.fromkeys(id_ for c in history.commits for id_ in c.txns if id_ not in known))
