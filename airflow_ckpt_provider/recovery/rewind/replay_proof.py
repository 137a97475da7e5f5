"""Whether a replay did what it was to do: every batch after the target logged, committed and in the sink, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.backup.beside import repository_at
from airflow_ckpt_provider.backup.stream_names import stream_name
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.rewind.targets import logged_batches
from airflow_ckpt_provider.sinks.earlier_run import of_an_earlier_run
from airflow_ckpt_provider.sinks.kinds import SinkStart
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink, history_of, look_at, named_sinks
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict


@dataclass(frozen=True, slots=True)
class ReplayProof:
    """What checkpoint and sink showed after a replay.

    :param batch_id: the batch that was rewound to.
    :param replayed: batches committed since, ascending.
    :param tables: name of a sink -> batch -> rows that the sink has of it, where its log has them; without sinks that keep none.
    :param findings: what is not as it has to be; none: the replay is proven as far as the logs go.
    """

    batch_id: int
    replayed: tuple[int, ...]
    tables: dict[str, dict[int, int | None]]
    findings: tuple[str, ...]

    @property
    def rows(self) -> dict[int, int | None]:
        """Batch -> rows of it in the only table, or in the first."""
        return next(iter(self.tables.values()), {})

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """The proof as plain JSON."""
        return {
            "batch_id": self.batch_id,
            "replayed": list(self.replayed),
            **(self._rows_json if len(self.tables) < 2 else {"tables": self._tables_json}),
            "findings": list(self.findings),
            "ok": self.ok,
        }

    @property
    def _rows_json(self) -> dict[str, Any]:
        return {"rows": {str(batch): rows for batch, rows in self.rows.items()}}

    @property
    def _tables_json(self) -> dict[str, Any]:
        return {name: {str(batch): n for batch, n in rows.items()} for name, rows in self.tables.items()}

    def to_markdown(self) -> str:
        """The proof for people."""
        head = f"### Replay after batch {self.batch_id}: {'as it has to be' if self.ok else 'NOT as it has to be'}\n"
        lines = [markdown.bullets(self.findings)] if self.findings else []
        for name, rows in self.tables.items():
            if not rows:
                continue
            of = "the sink" if len(self.tables) == 1 else f"`{name}`"
            counts = [(batch, "not reported" if count is None else f"{count:,}") for batch, count in rows.items()]
            lines += ["", markdown.table(("batch", f"rows in {of}>"), counts)]
        return "\n".join([head, *lines]) + "\n"


def prove_replay(
    checkpoint: Checkpoint,
    batch_id: int,
    *,
    sink: Sink | Sequence[Sink] | None = None,
    repository: Location | None = None,
    name: str | None = None,
) -> ReplayProof:
    """Check whether all batches after ``batch_id`` were run once, over offsets without a gap.

    Spark starts each batch where the one before ended, so offsets are contiguous without an entry missing.

    :param checkpoint: the checkpoint; its stream may run.
    :param batch_id: the batch that was rewound to.
    :param sink: what the query writes to, one sink or all of them; a Delta table has the rows of each batch, under every id
        that the query has had.
    :param repository: place of the repository that knows the query's older ids; by default the one beside the checkpoint.
    :param name: name of the stream in the repository; by default the one that the checkpoint has there.
    :raises RefusedError: nothing was committed since.
    """
    progress = checkpoint.progress()
    replayed = tuple(b for b in progress.committed if b > batch_id)
    if not replayed:
        raise RefusedError(
            f"{checkpoint.location} has no commit after batch {batch_id}: the stream has not run since",
            hint="start the stream, and wait for its first batch",
        )
    newest = replayed[-1]
    # Older ones may have been purged by now: that is no gap.
    first = max(batch_id + 1, min(progress.logged, default=0))
    findings = [
        f"{log}/{b} is missing: the batches around it do not follow each other"
        for log, there in ((OFFSETS, progress.logged), (COMMITS, progress.committed))
        for b in range(first, newest + 1)
        if b not in there
    ]
    tables: dict[str, dict[int, int | None]] = {}
    planned = logged_batches(checkpoint.tree()).planned
    sinks = named_sinks(sink)
    for each in sinks:
        found = _in_file_sink(each, progress.query_id or "", newest, planned)
        findings += found if len(sinks) == 1 else [f"{each.name}: {finding}" for finding in found]
    histories = [(each, history) for each in sinks if (history := history_of(each))]
    if histories:
        location = checkpoint.location
        held = repository_at(repository, location)
        ids = read_query_ids(
            progress.query_id,
            place=location,
            repository=held,
            name=stream_name(held, location, name, query_id=progress.query_id),
            app_ids=[each.app_id for each, _ in histories],
            histories=[history for _, history in histories],
            tree=checkpoint.tree(),
        )
        if ids is None:
            findings.append("metadata is missing: which batches of the table are the query's is not known")
        else:
            for each, history in histories:
                rows, found = _in_table(history, ids.known_as(each.app_id), range(batch_id + 1, newest + 1), planned)
                tables[each.name] = rows
                findings += found if len(sinks) == 1 else [f"{each.name}: {finding}" for finding in found]
    return ReplayProof(batch_id, replayed, tables, tuple(findings))


def _in_file_sink(sink: Sink, query_id: str, newest: int, planned: Mapping[int, datetime]) -> list[str]:
    """What is wrong with the batches in a sink that has a log and is no table; nothing of other sinks."""
    found = look_at(sink) if sink.place else None
    if found is None or found.content.history is not None:
        return []
    report = found.verdict(SinkStart(QueryIds.of(query_id), newest, newest, planned=planned))
    return [*(report.doubts or (report.reasons if report.verdict is Verdict.UNKNOWN else ()))]


def _in_table(
    history: TableHistory, ids: QueryIds, batches: range, planned: Mapping[int, datetime]
) -> tuple[dict[int, int | None], list[str]]:
    lineage = history.lineage() or ()
    commits = [(batch, c) for c in lineage if (batch := ids.batch_in(c)) is not None and batch in batches]
    count = Counter(batch for batch, _ in commits)
    rows: dict[int, int | None] = {}
    for batch, commit in commits:
        before = rows.get(batch, 0)
        rows[batch] = None if before is None or commit.rows is None else before + commit.rows
    missing = [b for b in batches if b not in count]
    findings = [f"the table has no commit of batch {b}: its rows are missing if it had any" for b in missing]
    findings += [f"the table has {n} commits of batch {b}: its rows are doubled" for b, n in count.items() if n > 1]
    written = {batch: c.time for batch, c in commits if c.time}
    findings += of_an_earlier_run(written, planned)
    return dict(sorted(rows.items())), [*findings, *_under_unknown_ids(lineage, ids, batches)]


def _under_unknown_ids(lineage: Sequence[TableCommit], ids: QueryIds, batches: range) -> Iterator[str]:
    """Unknown ids that may be older ones of this query: the query's own batches begin where an unknown id has been before.

    A query whose first batch in the table is not 0 had another id before, or another table. Whoever wrote the batch before
    that one into the table is the likely one.
    """
    own = [(i, batch) for i, c in enumerate(lineage) if (batch := ids.batch_in(c)) is not None]
    if not own:
        return
    first = own[0][0]
    oldest = min(batch for _, batch in own)
    of_id: dict[str, list[tuple[int, int]]] = {}
    for i, commit in enumerate(lineage):
        for id_, batch in commit.txns.items():
            if id_ not in ids.all:
                of_id.setdefault(id_, []).append((i, batch))
    for id_, found in of_id.items():
        twice = sorted({batch for _, batch in found} & {batch for _, batch in own} & {*batches})
        if twice and found[-1][0] < first and oldest - 1 in {batch for _, batch in found}:
            yield (
                f"the table has batch {', '.join(map(str, twice))} of {id_} too: if that is an older id of this "
                "query, those rows "
                "are doubled; give the repository that has the records of the change, or name the id (--txn-app-id)"
            )
