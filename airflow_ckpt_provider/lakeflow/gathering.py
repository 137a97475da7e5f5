"""Reads what positions are found from: the event log, updates, the histories of tables, the files of Auto Loader.

Everything here only reads. What cannot be read (a right that is missing, a statement that a workspace does not know) is noted
in words, and the position falls back on what is left.
"""

# ruff: noqa: S608  # names and texts are quoted
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from airflow_ckpt_provider.errors import CkptError, NoSuchPipelineError
from airflow_ckpt_provider.lakeflow.evidence import (
    DELTA,
    FILES,
    KAFKA,
    FileState,
    FlowEvidence,
    KafkaState,
    SourceEvidence,
)
from airflow_ckpt_provider.lakeflow.examine import Examined
from airflow_ckpt_provider.lakeflow.flows import LOOKED_AT, flow_status, qualified
from airflow_ckpt_provider.lakeflow.histories import ENTRIES, TableHistory, history_of
from airflow_ckpt_provider.lakeflow.progress import STREAM_PROGRESS, FlowProgress, moment, newest_progress, same_flow
from airflow_ckpt_provider.lakeflow.queries import Queries
from airflow_ckpt_provider.lakeflow.request import FULL_REFRESH
from airflow_ckpt_provider.lakeflow.tables import quoted
from airflow_ckpt_provider.lakeflow.updates import COMPLETED
from airflow_ckpt_provider.lakeflow.workspace import Workspace

#: Updates that are looked through for one that empties a table.
_UPDATES = 200
#: Asks Kafka about topics.
AskKafka = Callable[[Sequence[str]], KafkaState]


@dataclass(frozen=True, slots=True)
class Readers:
    """What may be asked besides the pipelines interface.

    :param queries: a SQL warehouse; ``None``: no history is read.
    :param kafka: the brokers; ``None``: they are not asked.
    """

    queries: Queries | None = None
    kafka: AskKafka | None = None


@dataclass(slots=True)
class _Unread:
    reasons: list[str] = field(default_factory=list)

    def trying(self, what: str, read: Callable[[], Any]) -> Any:
        """What a reading returns, or ``None`` with a note where it was refused or failed."""
        try:
            return read()
        except CkptError as e:
            self.reasons.append(f"{what} could not be read: {e.message}")
            return None


def gather(
    workspace: Workspace,
    examined: Examined,
    flow: str,
    readers: Readers,
    *,
    sources: Mapping[str, str] | None = None,
) -> FlowEvidence:
    """Read what is known of how far a flow has read.

    :param flow: its name.
    :param sources: what it reads -> ``kafka``, ``delta``, ``files``, or empty, in the order of its query; by default as the
        event log and the names tell.
    """
    known = examined.flows.flows
    own = known.get(flow) or next((each for name, each in known.items() if same_flow(name, flow)), None)
    table = qualified(own.dataset, examined.spec) if own and own.dataset else ""
    others = [
        name
        for name, each in known.items()
        if table and not same_flow(name, flow) and each.dataset and qualified(each.dataset, examined.spec) == table
    ]
    events = list(islice(workspace.iter_events(examined.pipeline_id, max_results=250), LOOKED_AT))
    unread = _Unread()
    progress = _progress(readers, examined.pipeline_id, events, flow, unread)
    history = _history(readers, table, unread) if table else None
    named = sources if sources is not None else dict.fromkeys(own.sources if own else (), "")
    reads = list(named.items()) or _reported(progress)
    return FlowEvidence(
        flow,
        table,
        own.kind if own else "",
        tuple(
            _source(readers, name, kind, number, progress, table, others, flow)
            for number, (name, kind) in enumerate(reads)
        ),
        progress,
        _completed(workspace, examined.pipeline_id, events, flow),
        _emptied(workspace, examined, table),
        history,
        frozenset(
            found.query_id
            for other in others
            if (found := _progress(readers, examined.pipeline_id, events, other, _Unread()))
        ),
        tuple(unread.reasons),
    )


def kind_of(name: str) -> str:
    """Return what a source is by its name: a path or URI has files, ``a.b.c`` is a table; empty where it does not show."""
    if "/" in name:
        return FILES
    return DELTA if name.count(".") in (1, 2) else ""


def _reported(progress: FlowProgress | None) -> list[tuple[str, str]]:
    """The sources of the newest batch, for a flow of which nobody has named any; a single one needs no name."""
    sources = progress.sources if progress else ()
    if progress is None or len(sources) < 2:
        return [("", "")] if progress else []
    return [(each.name or f"source {number}", each.kind) for number, each in enumerate(sources, 1)]


def _progress(
    readers: Readers, pipeline_id: str, events: Sequence[Mapping[str, Any]], flow: str, unread: _Unread
) -> FlowProgress | None:
    found = newest_progress(events, flow)
    if readers.queries is None:
        return found
    # By default only the owner may read the event log table; the interface may not return these events.
    bare = text(flow.rpartition(".")[2].strip("`"))
    statement = (
        f"SELECT timestamp, event_type, origin, details FROM event_log({text(pipeline_id)}) WHERE event_type = "
        f"'{STREAM_PROGRESS}' AND (origin.flow_name = {text(flow)} OR origin.flow_name LIKE concat('%.', {bare})) "
        "ORDER BY timestamp DESC LIMIT 100"
    )
    queries = readers.queries
    rows = unread.trying("the event log table", lambda: queries(statement)) or ()
    by_table = newest_progress([_event(row) for row in rows], flow)
    return max((each for each in (found, by_table) if each), key=lambda each: each.time, default=None)


def _event(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in ("timestamp", "event_type", "origin", "details")}


def _completed(
    workspace: Workspace, pipeline_id: str, events: Sequence[Mapping[str, Any]], flow: str
) -> datetime | None:
    """When the newest triggered update was started in which the flow ran to its end."""
    for event in events:  # newest first
        origin = event.get("origin") or {}
        if flow_status(event) != COMPLETED or not same_flow(str(origin.get("flow_name") or ""), flow):
            continue
        try:
            update = workspace.ask(pipeline_id, f"updates/{origin.get('update_id')}").get("update") or {}
        except NoSuchPipelineError:
            continue
        created = update.get("creation_time")
        if isinstance(created, int) and update.get("mode") != "CONTINUOUS":
            return datetime.fromtimestamp(created / 1000, UTC)
    return None


def _emptied(workspace: Workspace, examined: Examined, table: str) -> datetime | None:
    """When the newest update was started that empties a table."""
    for update in islice(workspace.iter_updates(examined.pipeline_id), _UPDATES):
        named = {qualified(str(name), examined.spec) for name in update.get(FULL_REFRESH) or ()}
        created = update.get("creation_time")
        if (
            (update.get("full_refresh") or table in named)
            and not update.get("validate_only")
            and isinstance(created, int)
        ):
            return datetime.fromtimestamp(created / 1000, UTC)
    return None


def _history(readers: Readers, table: str, unread: _Unread, *, detail: bool = False) -> TableHistory | None:
    queries = readers.queries
    if queries is None:
        return None
    name = quoted(table)
    rows = unread.trying(f"the history of {table}", lambda: queries(f"DESCRIBE HISTORY {name} LIMIT {ENTRIES}"))
    if rows is None:
        return None
    about = unread.trying(f"the id of {table}", lambda: queries(f"DESCRIBE DETAIL {name}")) if detail else None
    return history_of(rows, about or ())


def _source(
    readers: Readers,
    name: str,
    kind: str,
    number: int,
    progress: FlowProgress | None,
    table: str,
    others: Sequence[str],
    flow: str,
) -> SourceEvidence:
    reported = progress.sources[number] if progress and number < len(progress.sources) else None
    kind = kind or (reported.kind if reported else "") or kind_of(name)
    unread = _Unread()
    topics = (
        sorted(reported.end.partitions) if reported and reported.end and hasattr(reported.end, "partitions") else [name]
    )
    return SourceEvidence(
        name,
        kind,
        _history(readers, name, unread, detail=True) if kind == DELTA and name and "/" not in name else None,
        unread.trying(f"files of {name}", lambda: _files(readers, name, table, others, flow))
        if kind == FILES
        else None,
        unread.trying(f"topics {', '.join(topics)}", lambda: _asked(readers, topics)) if kind == KAFKA else None,
        tuple(unread.reasons),
    )


def _asked(readers: Readers, topics: Sequence[str]) -> KafkaState | None:
    return readers.kafka(topics) if readers.kafka and all(topics) else None


def _files(readers: Readers, directory: str, table: str, others: Sequence[str], flow: str) -> FileState | None:
    """Files by ``cloud_files_state`` and a listing of the directory; ``None`` where their paths cannot be compared."""
    queries = readers.queries
    if queries is None or not table or not directory:
        return None
    inside = f"left({_path('path')}, {len(_plain(directory)) + 1}) = {text(_plain(directory) + '/')}"
    of_flow = f" AND flow_name IN ({text(flow)}, {text(flow.rpartition('.')[2])})" if others else ""
    state = f"cloud_files_state(TABLE({quoted(table)}))"
    read = f"SELECT path, create_time FROM {state} WHERE commit_time IS NOT NULL AND {inside}{of_flow}"
    counted = queries(f"SELECT count(*) AS n, max(create_time) AS newest FROM ({read}) AS s")[0]
    there = f"read_files({text(directory)}, format => 'binaryFile')"
    listed = queries(
        f"SELECT count(*) AS n, count(s.path) AS known, min(CASE WHEN s.path IS NULL THEN f.modificationTime END) AS oldest, "
        "max(f.modificationTime) AS newest "
        f"FROM {there} AS f LEFT JOIN ({read}) AS s ON {_path('f.path')} = {_path('s.path')}"
    )[0]
    total, known = int(listed["n"]), int(listed["known"])
    if int(counted["n"]) and total and not known:
        return None

    def read_after(time: datetime) -> int:
        at = f"timestamp {text(time.astimezone(UTC).isoformat())}"
        both = f"{there} AS f JOIN ({read}) AS s ON {_path('f.path')} = {_path('s.path')}"
        return int(queries(f"SELECT count(*) AS n FROM {both} WHERE f.modificationTime > {at}")[0]["n"])

    newest_read = moment(counted["newest"])
    newest = max(filter(None, (newest_read, moment(listed["newest"]))), default=None)
    return FileState(int(counted["n"]), total - known, moment(listed["oldest"]), newest_read, newest, read_after)


def _path(column: str) -> str:
    return f"regexp_replace({column}, '^dbfs:', '')"


def _plain(directory: str) -> str:
    return directory.removeprefix("dbfs:").rstrip("/")


def text(value: str) -> str:
    """Write a text in SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
