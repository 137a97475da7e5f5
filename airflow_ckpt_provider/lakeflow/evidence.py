"""What is known of how far a flow has read, before it is judged: plain values, whoever read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_ckpt_provider.lakeflow.histories import TableHistory
from airflow_ckpt_provider.lakeflow.progress import FlowProgress

KAFKA, DELTA, FILES = "kafka", "delta", "files"

#: Topic -> partition -> offset.
Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class FileState:
    """Files of an Auto Loader source, by ``cloud_files_state`` and a listing of the directory.

    :param read: files that are committed to the checkpoint.
    :param unread: files in the directory that are not.
    :param oldest_unread: modification time of the oldest of these.
    :param newest_read: modification time of the newest committed file.
    :param newest: modification time of the newest file of all.
    :param read_after: counts committed files that were modified after a time.
    """

    read: int
    unread: int
    oldest_unread: datetime | None
    newest_read: datetime | None
    newest: datetime | None
    read_after: Callable[[datetime], int]


@dataclass(frozen=True, slots=True)
class KafkaState:
    """Topics of a Kafka source.

    :param earliest: the oldest offset that can be read.
    :param latest: one after the newest.
    :param append_time: timestamps are the broker's, so they rise with the offsets.
    :param at: the first offset at or after a time, or the end of the log.
    """

    earliest: Offsets
    latest: Offsets
    append_time: bool
    at: Callable[[datetime], Offsets]


@dataclass(frozen=True, slots=True)
class SourceEvidence:
    """One source of a flow.

    :param name: table, topic or directory.
    :param kind: ``kafka``, ``delta``, ``files``; empty: not known.
    :param history: of a Delta table.
    :param files: of a directory.
    :param kafka: of a topic.
    :param unread: why something could not be read.
    """

    name: str
    kind: str = ""
    history: TableHistory | None = None
    files: FileState | None = None
    kafka: KafkaState | None = None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowEvidence:
    """One flow.

    :param flow: its name.
    :param table: full name of the table that it writes.
    :param kind: what its definition says: ``APPEND``, ``CHANGE``, …; empty: not known.
    :param sources: what it reads.
    :param progress: the newest batch that was reported.
    :param completed: when the newest triggered update was started in which the flow ran to its end.
    :param emptied: when the newest update was started that empties the table.
    :param history: of the table.
    :param other_queries: ids of the checkpoints of other flows that write the table, as far as they are known.
    :param unread: why something could not be read.
    """

    flow: str
    table: str = ""
    kind: str = ""
    sources: tuple[SourceEvidence, ...] = ()
    progress: FlowProgress | None = None
    completed: datetime | None = None
    emptied: datetime | None = None
    history: TableHistory | None = None
    other_queries: frozenset[str] = field(default_factory=frozenset)
    unread: tuple[str, ...] = ()

    @property
    def sources_known(self) -> bool:
        """Whether its sources are named: by the caller or the event log, or all of them by its newest batch."""
        return any(source.name for source in self.sources) or bool(self.progress and self.progress.sources)
