"""Verbs that read a checkpoint, and change nothing but with ``doctor --repair --apply``."""

from __future__ import annotations

from airflow_ckpt_provider.cli.options import (
    ACCEPT,
    BACKUP_ID,
    CHECKPOINT,
    FLAG,
    KAFKA_CONFIG,
    MIRROR,
    NAME,
    OLD_BACKUP,
    PARTITIONS,
    REASON,
    STOP_RUNNING,
    STOPPED,
    Option,
    filled,
    length_of_time,
    number_from,
    pair,
)
from airflow_ckpt_provider.cli.verb import Verb

VERBS = (
    Verb(
        "inspect",
        "What is in a checkpoint, and what Spark will do at its next start",
        (
            CHECKPOINT,
            Option(
                ("--kafka-config",),
                "a client's configuration for the Kafka brokers, to show how far behind them the next start is",
                {"type": filled, "metavar": "FILE"},
            ),
        ),
        ("checkpoint",),
        "inspect",
    ),
    Verb(
        "doctor",
        "What is wrong with a checkpoint, what Spark will do because of it, and the smallest repair",
        (
            CHECKPOINT,
            Option(
                ("--repair",), "plan the minimal cut: the newest batch that is whole, with the fewest removals", FLAG
            ),
            Option(
                ("--repository",),
                "repository whose backups have missing files; it keeps removed and replaced ones (default: CHECKPOINT.repairs)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            NAME,
            Option(
                ("--query-id",),
                "id of the query, where the file metadata is lost; logs of a former run name it",
                {"type": filled, "metavar": "UUID"},
            ),
            Option(("--skip-contents",), "do not read state files to find damage in them", FLAG),
            Option(
                ("--target",),
                "the table that the query writes to, by name or path: for advice on where the checkpoint lies",
                {"type": filled, "metavar": "NAME"},
            ),
            Option(
                ("--trigger",),
                "interval of the query's trigger: for advice on batches that take longer",
                {"type": length_of_time, "metavar": "SECONDS"},
            ),
            ACCEPT,
            STOP_RUNNING,
            *STOPPED,
            REASON,
            Option(("--apply",), "apply the plan of the repair", FLAG),
        ),
        ("checkpoint", "repository", "progress_log"),
        "doctor",
    ),
    Verb(
        "explain",
        "What an error of a stream means, what not to do about it, and what to do",
        (
            Option(
                ("FILE",),
                "a log, an error message, or JSON of a Databricks pipeline event; by default standard input",
                {"type": filled, "nargs": "?"},
            ),
        ),
        (),
        "explain",
    ),
    Verb(
        "compatible",
        "Can new code continue from a checkpoint: what Spark allows, ignores, refuses and does not notice",
        (
            CHECKPOINT,
            Option(
                ("DESCRIPTION",),
                "description of the new code, written by jobs/describe_query.py: a path or a URI",
                {"type": filled},
            ),
            Option(
                ("--old",),
                "description of the code that wrote the checkpoint: shows what no checkpoint holds, such as the type of a join",
                {"type": filled, "metavar": "DESCRIPTION"},
            ),
            Option(("--markdown",), "print Markdown, for a ticket or an approval", FLAG),
        ),
        ("checkpoint", "description"),
        "compatible",
    ),
    Verb(
        "guard",
        "Will the sources still have what the next start reads, and for how long",
        (
            Option(
                ("CHECKPOINT",),
                "the checkpoint: a path or a URI; left out with --offsets, or to ask about a backup",
                {"type": filled, "nargs": "?"},
            ),
            KAFKA_CONFIG,
            Option(
                ("--max-downtime",),
                "how long the stream will be down from now on, such as 24h",
                {"type": length_of_time, "metavar": "TIME"},
            ),
            Option(
                ("--buffer",),
                "margin after that (default: %(default)s)",
                {"type": length_of_time, "default": "1h", "metavar": "TIME"},
            ),
            Option(
                ("--repository",),
                "backups of the stream, which know what its sources were; without CHECKPOINT the backup is asked about",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            BACKUP_ID,
            NAME,
            Option(
                ("--offsets",),
                "Kafka offsets instead of CHECKPOINT, as Spark's startingOffsets",
                {"type": filled, "metavar": "JSON"},
            ),
            Option(("--source",), "only this source: 0, 1, … or its name", {"type": filled, "metavar": "SOURCE"}),
            Option(("--ignore-data-loss",), "the query runs with failOnDataLoss=false", FLAG),
            Option(("--read-committed",), "the query runs with kafka.isolation.level=read_committed", FLAG),
            Option(
                ("--option",),
                "option of a guard, such as one of another package; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "KIND.KEY=VALUE"},
            ),
            Option(("--markdown",), "print Markdown, for a ticket or an approval", FLAG),
        ),
        ("checkpoint", "repository"),
        "guard",
        (OLD_BACKUP,),
    ),
    Verb(
        "positions",
        "Reader options with which a new checkpoint starts at the position of this one",
        (
            Option(
                ("CHECKPOINT",),
                "the checkpoint, whole or broken: a path or a URI; left out with --repository",
                {"type": filled, "nargs": "?"},
            ),
            Option(
                ("--batch",),
                "after this committed batch (default: the newest)",
                {"type": number_from(0), "metavar": "N"},
            ),
            Option(
                ("--to-datetime",),
                "after the newest batch planned at or before a time, such as 2026-11-21T08:30:00Z",
                {"type": filled, "metavar": "TIME"},
            ),
            Option(
                ("--by-duration",),
                "the same for a time that long ago, such as PT2H",
                {"type": filled, "metavar": "DURATION"},
            ),
            Option(
                ("--repository",),
                "take them from a backup in this repository instead of a checkpoint",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            BACKUP_ID,
            NAME,
            PARTITIONS,
            Option(
                ("--table",),
                "directory of the Delta table that a source (0, 1, …) reads, to learn whether it has the position; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "SOURCE=URI"},
            ),
            Option(
                ("--seed",),
                "write into the empty place of the new checkpoint which input files were read already",
                {"type": filled, "metavar": "NEW_CHECKPOINT"},
            ),
            *MIRROR,
        ),
        ("checkpoint", "repository", "seed", "table"),
        "positions",
        (OLD_BACKUP,),
    ),
)
