"""Tables of other formats as a sink: recognised by their directories and named, never judged by guesswork."""

from __future__ import annotations

from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

#: Kind -> its name, and what is known of its memory of batches.
_KNOWN = {
    "hudi": (
        "an Apache Hudi table",
        "Hudi's sink keeps the newest batch of each writer in its commits (_hudi_streaming_sink_checkpoint) and skips batches up "
        "to it, depending on its version and its options",
    ),
    "paimon": (
        "an Apache Paimon table",
        "Paimon's snapshots keep a commit user and a commit identifier; whether its sink skips a replayed batch depends on its "
        "version and on the table",
    ),
}


def other_table(place: Location) -> str | None:
    """The kind of table at a place, ``hudi`` or ``paimon``; ``None`` for anything else."""
    directories = place.list().directories
    if ".hoodie" in directories:
        return "hudi"
    return "paimon" if {"snapshot", "schema"} <= set(directories) else None


def inspect_other_table(place: Location, kind: str, batch_id: int, newest: int) -> SinkReport:
    """Judge a start after a batch, of which only the checkpoint is known.

    :param kind: see :func:`other_table`.
    :param batch_id: the batch after which the query starts.
    :param newest: the newest batch that it may have written.
    """
    begun = newest > batch_id
    return SinkReport(
        kind,
        place.uri,
        Verdict.UNKNOWN if begun else Verdict.SAFE,
        (doubt_of(kind) if begun else "no batch after the target was ever begun",),
        obstacle=f"{_KNOWN[kind][0]} cannot be rolled back from here",
    )


def doubt_of(kind: str) -> str:
    """Why it is not known what a table does with batches that are run again."""
    name, memory = _KNOWN[kind]
    return (
        f"the sink is {name}: {memory}; it is not known whether batches that are run again are skipped or written twice: "
        "compare the table's own commits with the batches"
    )
