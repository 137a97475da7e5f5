"""Whether a replay did what it was to do: every batch after the target logged, committed and in the sink, each once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_log import is_delta_table
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.sink import Sink


@dataclass(frozen=True, slots=True)
class ReplayProof:
    """What a look at checkpoint and sink showed after a replay.

    :param batch_id: the batch that was gone back to.
    :param replayed: batches committed since, ascending.
    :param rows: batch -> rows that the sink has of it, where its log tells; empty for sinks that keep none.
    :param findings: what is not as it has to be; none: the replay is proven as far as the logs go.
    """

    batch_id: int
    replayed: tuple[int, ...]
    rows: dict[int, int | None]
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """The proof as plain JSON."""
        return {
            "batch_id": self.batch_id,
            "replayed": list(self.replayed),
            "rows": {str(batch): rows for batch, rows in self.rows.items()},
            "findings": list(self.findings),
            "ok": self.ok,
        }

    def to_markdown(self) -> str:
        """The proof for people."""
        head = f"### Replay after batch {self.batch_id}: {'as it has to be' if self.ok else 'NOT as it has to be'}\n"
        lines = [f"* {finding}" for finding in self.findings]
        if self.rows:
            lines += ["", "| batch | rows in the sink |", "|---|---:|"]
            lines += [
                f"| {batch} | {'not told' if rows is None else f'{rows:,}'} |" for batch, rows in self.rows.items()
            ]
        return "\n".join([head, *lines]) + "\n"


def prove_replay(checkpoint: Checkpoint, batch_id: int, *, sink: Sink | None = None) -> ReplayProof:
    """Look whether all batches after ``batch_id`` were run once, over offsets without a gap.

    Spark starts each batch where the one before ended, so offsets are contiguous where no entry is missing.

    :param checkpoint: the checkpoint; its stream may run.
    :param batch_id: the batch that was gone back to.
    :param sink: what the query writes to; a Delta table tells the rows of each batch.
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
    rows: dict[int, int | None] = {}
    if sink and sink.place and is_delta_table(sink.place):
        app_id = sink.app_id or progress.query_id or ""
        rows, found = _in_table(sink, app_id, range(batch_id + 1, newest + 1))
        findings += found
    return ReplayProof(batch_id, replayed, rows, tuple(findings))


def _in_table(sink: Sink, app_id: str, batches: range) -> tuple[dict[int, int | None], list[str]]:
    if sink.place is None:
        return {}, []
    lineage = read_table_history(sink.place).lineage() or ()
    commits = [c for c in lineage if c.txns.get(app_id, -1) in batches]
    count = Counter(c.txns[app_id] for c in commits)
    rows = {c.txns[app_id]: c.rows for c in commits}
    missing = [b for b in batches if b not in count]
    findings = [f"the table has no commit of batch {b}: its rows are missing if it had any" for b in missing]
    findings += [f"the table has {n} commits of batch {b}: its rows are doubled" for b, n in count.items() if n > 1]
    return dict(sorted(rows.items())), findings
