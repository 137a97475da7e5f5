"""What a sink holds of a query, as a new checkpoint is planned by it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_ckpt_provider.sinks.delta_sink import beyond_the_log
from airflow_ckpt_provider.sinks.file_sink import FileSink, newest_in_log
from airflow_ckpt_provider.sinks.kinds import Recognised
from airflow_ckpt_provider.sinks.named_tables import BY_NAME
from airflow_ckpt_provider.sinks.other_tables import other_table
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink, check_word, look_at, no_sink
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory


@dataclass(frozen=True, slots=True)
class Known:
    """A sink, read once.

    :param sink: as the person names it.
    :param found: what its kind read of it; ``None`` where no kind recognises it.
    :param other: the kind of a table whose memory is not read here, such as ``hudi``; else empty.
    """

    sink: Sink
    found: Recognised | None = None
    other: str = ""

    @classmethod
    def of(cls, sink: Sink) -> Known:
        """Read a sink.

        :raises RefusedError: a place is given that is no sink; or a word that is none.
        """
        if found := look_at(sink):
            return cls(sink, found)
        if sink.place is None:
            check_word(sink)
            return cls(sink)
        if kind := other_table(sink.place):
            return cls(sink, other=kind)
        raise no_sink(sink.place)

    @property
    def history(self) -> TableHistory | None:
        """Its log, where it is a Delta or Iceberg table."""
        return self.found.content.history if self.found and not self.is_of_another_package else None

    @property
    def is_of_another_package(self) -> bool:
        """Whether another package has its kind: what it does with a new query id, or with batch 0, is not known here."""
        return self.found is not None and self.found.kind.kind not in ("delta", "iceberg", "file", *BY_NAME)

    @property
    def is_file_sink(self) -> bool:
        """Whether it is the output of Spark's file sink."""
        return self.found is not None and self.found.kind.kind == FileSink.kind

    @property
    def lineage(self) -> tuple[TableCommit, ...]:
        """The commits that make up the table; none where that is not known, or it is no table."""
        return (self.history.lineage() if self.history else None) or ()

    def held(self, ids: QueryIds | None) -> int | None:
        """Newest batch of a query whose rows are in the table; ``None`` where that is not known or there is none."""
        batches = (ids.batch_in(c) for c in self.lineage) if ids else ()
        return max((batch for batch in batches if batch is not None), default=None)

    def others(self, ids: QueryIds) -> tuple[str, ...]:
        """Other ids under which batches are in the table: other streams, or earlier checkpoints of this one."""
        return tuple(dict.fromkeys(other for c in self.lineage for other in c.txns if other not in ids.all))

    def after(self, ids: QueryIds, batch_id: int) -> tuple[TableCommit, ...]:
        """The commits in the table of batches after one."""
        return tuple(c for c in self.lineage if ids.is_beyond(c, batch_id))

    def memory(self, ids: QueryIds) -> int | None:
        """Newest batch that the table remembers of the id that the query writes with; ``None``: there is none, or not known."""
        if self.history is None:
            return None
        app_id = ids.writes_as(self.history)
        memory = self.history.remembered(app_id)
        return beyond_the_log(self.sink, self.history, QueryIds.of(app_id)).get(app_id) if memory is None else memory

    def app_id(self, ids: QueryIds | None) -> str | None:
        """The ``txnAppId`` that stays the same under a new query id; ``None`` where the table knows the query by its query id.

        An id that a person named may be an older query id. Iceberg knows query ids alone.
        """
        named = self.sink.app_id
        if self.history is None or ids is None or named is None:
            return named
        return named if ids.known_as(named).writes_as(self.history) == named else None

    def memory_of_app_id(self, new_app_id: str | None) -> int | None:
        """Newest batch that a Delta table remembers of the ``txnAppId`` that the new query writes with; ``None`` without one.

        :param new_app_id: where it is another one than the sink's.
        """
        app_id = new_app_id or self.sink.app_id
        is_delta = self.history is not None and self.history.format == "delta"
        return self.memory(QueryIds.of(app_id)) if app_id and is_delta else None

    def reached_in_log(self) -> int | None:
        """Newest batch in the log of a file sink, -1 without any; ``None`` for other sinks."""
        return newest_in_log(self.sink.place) if self.is_file_sink and self.sink.place else None
