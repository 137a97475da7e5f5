"""Verbs that change a checkpoint where it lies, or keep others from it."""

from __future__ import annotations

import argparse

from airflow_ckpt_provider.cli.options import (
    ACCEPT,
    APPLY,
    BACKUP_ID,
    CHECKPOINT,
    CONTINUE_NUMBERS,
    FLAG,
    NAME,
    OLD_BACKUP,
    ONE_SINK,
    PARTITIONS,
    REASON,
    REPOSITORY,
    RESTORABLE_BATCH,
    SINK,
    SINK_OPTION,
    STOP_RUNNING,
    STOPPED,
    Option,
    deprecated,
    filled,
    number_from,
    pair,
)
from airflow_ckpt_provider.cli.verb import Verb

#: Where a rewind goes; exactly one of them.
WHERE_TO = (
    Option(("--to-batch",), "to a committed batch", {"type": number_from(0), "metavar": "N"}),
    Option(
        ("--to-datetime",),
        "to the last batch that had ended by a time in ISO 8601 with its zone, such as 2026-11-21T14:05:00Z",
        {"type": filled, "metavar": "TIME"},
    ),
    Option(
        ("--by-duration",),
        "to the last batch that had ended that long ago, in ISO 8601, such as PT2H",
        {"type": filled, "metavar": "DURATION"},
    ),
    Option(("--shift-by",), "by so many batches, such as --shift-by=-3", {"type": int, "metavar": "N"}),
    Option(("--to-earliest",), "to the oldest batch that can be rewound to", FLAG),
    Option(("--to-latest",), "to the newest committed batch: drops what was logged and not committed", FLAG),
    Option(
        ("--to-current",),
        "nowhere: checks sink and checkpoint as they are; exit code 1 unless the verdict is SAFE",
        FLAG,
    ),
    Option(
        ("--from-file",),
        "to the newest batch that is not beyond offsets of Kafka, given as topic,partition,offset lines; - is standard input",
        {"type": filled, "metavar": "FILE"},
    ),
    Option(
        ("--to-table-version",),
        "to the batch that a version of the Delta table in --sink holds",
        {"type": number_from(0), "metavar": "N"},
    ),
)

#: For tables that ``deltalake`` cannot roll back.
BY_SPARK = (
    Option(
        ("--spark-submit",),
        "command that runs a Spark application with Delta, such as 'spark-submit --packages io.delta:…': rolls back tables whose "
        "features deltalake does not know",
        {"type": filled, "metavar": "COMMAND"},
    ),
    Option(
        ("--spark-sink",),
        "SINK as Spark names it, where that differs, such as s3a://lake/tables/orders",
        {"type": filled, "metavar": "URI"},
    ),
)


def _old_flag(flag: str, words: tuple[str, ...]) -> Option:
    return deprecated(flag, " ".join(f"--accept {word}" for word in words), sets="accept", adds=words)


VERBS = (
    Verb(
        "rewind",
        "Rewind to a batch or a time, with state and sink: prints the plan, and applies it with --apply",
        (
            CHECKPOINT,
            *WHERE_TO,
            Option(("--list",), "show every batch that can be rewound to", FLAG),
            *SINK,
            *BY_SPARK,
            Option(
                ("--sink-policy",),
                "what is done about rows that the sink has beyond that batch: rollback (the sink is rolled back too), forward "
                "(the checkpoint goes to where the sink is), keep (nothing; --accept has to name what happens then); of several "
                "sinks one for all, or one for each in their order",
                {"choices": ["rollback", "forward", "keep"], "action": "append", "default": []},
            ),
            Option(
                ("--repository",),
                "where removed files are kept, and whose backups can be rewound to (default: CHECKPOINT.rewinds)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            NAME,
            Option(
                ("--backup-id",),
                "rewind to a batch of this backup, also where the checkpoint still has it: all is as it was then",
                {"type": filled, "metavar": "ID"},
            ),
            Option(
                ("--exact-replay",),
                "run the next batch again over exactly the same data, or with --no-exact-replay plan it again",
                {"action": argparse.BooleanOptionalAction, "default": True},
            ),
            Option(
                ("--downstream",),
                "checkpoint of a stream that reads the sink, or a folder of such; it counts in the verdict; repeatable",
                {"type": filled, "action": "append", "default": [], "metavar": "PLACE"},
            ),
            Option(
                ("--kafka-config",),
                "a client's configuration for the Kafka brokers, to check whether they still have the data",
                {"type": filled, "metavar": "FILE"},
            ),
            STOP_RUNNING,
            *STOPPED,
            ACCEPT,
            REASON,
            APPLY,
        ),
        ("checkpoint", "repository", "sink", "progress_log"),
        "rewind",
        (
            deprecated("--sink-exit", "--sink-policy", sets="sink_policy"),
            deprecated("--fresh", "--no-exact-replay", sets="exact_replay", to=False),
            OLD_BACKUP,
            _old_flag("--accept-source-loss", ("source_loss", "source_failure", "source_skips")),
            _old_flag("--accept-foreign-loss", ("foreign_loss",)),
        ),
    ),
    Verb(
        "undo",
        "Undo a rewind, reset, repair, restore or reset of a flow, as long as nothing was written since",
        (
            CHECKPOINT,
            Option(
                ("--plan",),
                "id of the change (default: the one that is half-way, else the newest)",
                {"type": filled, "metavar": "ID"},
            ),
            *SINK,
            *BY_SPARK,
            Option(
                ("--repository",),
                "the repository that the change was carried out with (default: the one beside CHECKPOINT)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            *STOPPED,
            REASON,
        ),
        ("checkpoint", "repository", "sink", "progress_log"),
        "undo",
    ),
    Verb(
        "chain",
        "Back up, restore or rewind several streams together, such as bronze, silver and gold, or the queries of one "
        "application, or undo that",
        (
            Option(
                ("ACTION",),
                "what to do: rewind or undo; backup or restore, of a set of backups",
                {"choices": ("rewind", "undo", "backup", "restore")},
            ),
            Option(
                ("--stream",),
                "a stream: its name, its checkpoint, and sink=SINK for all that it writes to, each followed by its txn-app-id=ID "
                "and policy=keep where it has them; repeatable, once for each stream",
                {"type": filled, "action": "append", "default": [], "metavar": "NAME=CHECKPOINT,sink=SINK"},
            ),
            Option(
                ("--application",),
                "in place of --stream: all streams that are declared with this application",
                {"type": filled, "metavar": "NAME"},
            ),
            Option(
                ("--streams",),
                "the file that declares them (default: AIRFLOW_CKPT_STREAMS of the environment, else ./streams.yaml; in Airflow "
                "`streams` in the section [ckpt])",
                {"type": filled, "metavar": "FILE"},
            ),
            *(option for option in WHERE_TO if option.flags != ("--to-current",)),
            Option(
                ("--from",),
                "name of the stream that the rewind begins with; repeatable (default: those that read no other of the streams)",
                {"type": filled, "action": "append", "default": [], "dest": "begins_with", "metavar": "NAME"},
            ),
            SINK_OPTION,
            BY_SPARK[0],
            Option(
                ("--repository",),
                "where removed files of all streams are kept (default: CHECKPOINT.rewinds of each, or what is declared); with "
                "backup and restore the one that holds the set",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            Option(
                ("--set",),
                "with restore: id of the set (default: the newest one of these streams that is whole); with backup: a set that "
                "was begun, to resume it",
                {"type": filled, "metavar": "ID"},
            ),
            Option(
                ("--replace",),
                "with restore: replace the checkpoints that are there; what differs is set aside before",
                FLAG,
            ),
            Option(
                ("--tag",),
                "with backup: word to find the backups by; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "KEY=VALUE"},
            ),
            Option(
                ("--exact-replay",),
                "run the next batch again over exactly the same data, where nothing that a stream reads is rolled back, or with "
                "--no-exact-replay plan it again",
                {"action": argparse.BooleanOptionalAction, "default": True},
            ),
            Option(
                ("--downstream",),
                "folder of checkpoints to look for streams that read one of the tables and are not named, beside the folders of "
                "those that are; repeatable",
                {"type": filled, "action": "append", "default": [], "metavar": "PLACE"},
            ),
            Option(
                ("--kafka-config",),
                "a client's configuration for the Kafka brokers, to check whether they still have the data",
                {"type": filled, "metavar": "FILE"},
            ),
            Option(
                ("--plan",),
                "with undo: id of the rewind or restore (default: the one that is half-way, else the newest)",
                {"type": filled, "metavar": "ID"},
            ),
            Option(
                ("--fingerprint",),
                "of the plan that was approved: another plan is refused",
                {"type": filled, "metavar": "FINGERPRINT"},
            ),
            STOP_RUNNING,
            *STOPPED,
            ACCEPT,
            REASON,
            APPLY,
        ),
        ("checkpoint", "repository", "sink", "progress_log"),
        "chain",
    ),
    Verb(
        "status",
        "Status of a change of a checkpoint, and the command that resumes it",
        (
            CHECKPOINT,
            Option(
                ("--repository",),
                "the repository that the change was carried out with (default: the one beside CHECKPOINT)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
        ),
        ("checkpoint", "repository"),
        "status",
    ),
    Verb(
        "upgrade",
        "Show the newest upgrade of a stream, or end one whose run is gone",
        (
            REPOSITORY,
            NAME,
            Option(
                ("--checkpoint",),
                "the checkpoint, to show its progress",
                {"type": filled, "metavar": "CHECKPOINT"},
            ),
            Option(("--end",), "leave the stream to the next upgrade; changes nothing else", FLAG),
            REASON,
        ),
        ("repository", "checkpoint"),
        "upgrade",
    ),
    Verb(
        "reset",
        "A new checkpoint in the place of the old one: prints the plan, and applies it with --apply",
        (
            CHECKPOINT,
            Option(
                ("--keep-position",),
                "the new one continues at the position of the old one: gives reader options for every source",
                FLAG,
            ),
            Option(("--from-scratch",), "the new one starts where the sources' own options say", FLAG),
            Option(("--new-query-id",), "keep the checkpoint, under a new query id", FLAG),
            Option(
                ("--batch",),
                "with --keep-position: after this committed batch (default: the newest)",
                {"type": number_from(0), "metavar": "N"},
            ),
            *SINK,
            Option(
                ("--new-txn-app-id",),
                "txnAppId with which the new query's foreachBatch will write",
                {"type": filled, "metavar": "ID"},
            ),
            CONTINUE_NUMBERS,
            Option(
                ("--source",),
                "a source has another place or name in the new query: 0=1; 0= for one that is gone; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "OLD=NEW"},
            ),
            PARTITIONS,
            Option(
                ("--kafka-config",),
                "a client's configuration for the Kafka brokers, to check whether they still have the kept position",
                {"type": filled, "metavar": "FILE"},
            ),
            Option(
                ("--table",),
                "directory of the Delta table that a source reads, to learn whether it still has the kept position; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "SOURCE=URI"},
            ),
            Option(
                ("--repository",),
                "where the old checkpoint is kept (default: CHECKPOINT.rewinds)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            NAME,
            STOP_RUNNING,
            Option(
                ("--seal-id",),
                "plan id of a seal that is there already: it is taken over, and lifted with the reset's end",
                {"type": filled, "metavar": "ID"},
            ),
            *STOPPED,
            ACCEPT,
            REASON,
            APPLY,
        ),
        ("checkpoint", "repository", "sink", "table", "progress_log"),
        "reset",
    ),
    Verb(
        "flows",
        "Flows of Spark Declarative Pipelines: list them, reset one without its table, roll one back",
        (
            Option(("STORAGE",), "the storage of the pipeline's specification: a path or a URI", {"type": filled}),
            Option(
                ("--reset",),
                "let the next run of this flow begin in a new checkpoint; its table keeps its rows",
                {"type": filled, "metavar": "FLOW"},
            ),
            Option(
                ("--keep-position",),
                "with --reset: the new checkpoint continues at the position of the live one (default: from the start)",
                FLAG,
            ),
            CONTINUE_NUMBERS,
            Option(
                ("--restore-into-next",),
                "restore a backup of this flow into its next version",
                {"type": filled, "metavar": "FLOW"},
            ),
            Option(
                ("--repository",),
                "where the backup is; with --reset, where the audit record goes",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            BACKUP_ID,
            NAME,
            RESTORABLE_BATCH,
            *ONE_SINK,
            *STOPPED,
            ACCEPT,
            REASON,
            APPLY,
        ),
        ("storage", "repository", "sink", "progress_log"),
        "flows",
        (OLD_BACKUP,),
    ),
    Verb(
        "seal",
        "Stop a running stream after its batch, and keep every Spark from starting it",
        (
            CHECKPOINT,
            Option(
                ("--reason",),
                "why; Spark's own error message will show it",
                {"type": filled, "required": True, "metavar": "TEXT"},
            ),
        ),
        ("checkpoint",),
        "seal",
    ),
    Verb(
        "unseal",
        "Lift a seal: the stream can be started and continues where it was",
        (
            CHECKPOINT,
            Option(
                ("--plan",), "id of the plan that set the seal; inspect shows it", {"type": filled, "metavar": "ID"}
            ),
            Option(("--force",), "lift it whoever set it", FLAG),
            Option(
                ("--for-start",),
                "lift it to start the query next: refused where a change has begun to change files and is not finished",
                FLAG,
            ),
            Option(
                ("--repository",),
                "with --for-start: where that change keeps its plan (default: beside CHECKPOINT)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
        ),
        ("checkpoint", "repository"),
        "seal",
    ),
)
