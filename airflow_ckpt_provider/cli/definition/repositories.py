"""Verbs that keep checkpoints in a repository, and bring them back."""

from __future__ import annotations

from airflow_ckpt_provider.cli.options import (
    ACCEPT,
    APPLY,
    CHECKPOINT,
    FLAG,
    KAFKA_CONFIG,
    NAME,
    REASON,
    REPOSITORY,
    RESTORABLE_BATCH,
    SINK,
    STOP_RUNNING,
    STOPPED,
    WORKERS,
    AllUnlessToldOtherwise,
    Option,
    deprecated,
    filled,
    length_of_time,
    number_from,
    pair,
)
from airflow_ckpt_provider.cli.verb import Verb

VERBS = (
    Verb(
        "init",
        "Make a repository in an empty place",
        (
            REPOSITORY,
            Option(
                ("--format",),
                "2: new backups put small files together into packs; a repository of format 1 becomes one of format 2 "
                "(default: 1)",
                {"type": int, "choices": (1, 2), "metavar": "N"},
            ),
        ),
        ("repository",),
        "init",
    ),
    Verb(
        "backup",
        "Back up a checkpoint, while its stream runs or not",
        (
            CHECKPOINT,
            REPOSITORY,
            Option(
                ("--name",),
                "name of the stream (default: the one that CHECKPOINT has there, else an ending of its path)",
                {"type": filled, "metavar": "NAME"},
            ),
            Option(
                ("--tag",),
                "word to find the backup by; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "KEY=VALUE"},
            ),
            Option(("--reason",), "why it is taken", {"default": "", "metavar": "TEXT"}),
            Option(
                ("--restorable-batches",),
                "how many of the newest batches can be restored from it (default: 1)",
                {"type": number_from(1), "metavar": "N"},
            ),
            Option(
                ("--skip-if-unchanged",),
                "take none where nothing was committed since the newest one, and name that one",
                FLAG,
            ),
            Option(
                ("--immutable-for",),
                "lock it by S3 Object Lock: nobody can delete it before this time is over, such as 30d",
                {"type": length_of_time, "metavar": "TIME"},
            ),
            Option(
                ("--new-life",),
                "CHECKPOINT continues the stream of this name under another query id, at another place or "
                "with fewer stateful operators",
                FLAG,
            ),
            KAFKA_CONFIG,
            WORKERS,
        ),
        ("checkpoint", "repository"),
        "backup",
    ),
    Verb(
        "backups",
        "List the backups in a repository",
        (
            REPOSITORY,
            NAME,
            KAFKA_CONFIG,
            Option(("--sets",), "list the sets instead: backups of several streams that are restored together", FLAG),
        ),
        ("repository",),
        "backups",
    ),
    Verb(
        "verify",
        "Check that a backup is whole, or that all are",
        (
            REPOSITORY,
            Option(("BACKUP",), "id of the backup, latest, or all (default: latest)", {"type": filled, "nargs": "?"}),
            NAME,
            Option(
                ("--read-data",),
                "read contents too: all of them, or a part: =1/t (what was read longest ago), =n/t (the n-th of t parts) or "
                "=x%% (a random sample)",
                {"nargs": "?", "action": AllUnlessToldOtherwise, "metavar": "PART"},
            ),
            WORKERS,
        ),
        ("repository",),
        "verify",
    ),
    Verb(
        "restore",
        "Restore a backup: prints the plan, and applies it with --apply",
        (
            REPOSITORY,
            Option(("BACKUP",), "id of the backup, or latest", {"type": filled}),
            Option(("TARGET",), "where to: an empty place, or the checkpoint to replace", {"type": filled}),
            NAME,
            RESTORABLE_BATCH,
            Option(("--replace",), "replace the checkpoint at TARGET; what differs is set aside before", FLAG),
            STOP_RUNNING,
            Option(
                ("--target-uri",),
                "TARGET as Spark names it, where that differs; for state that holds absolute paths",
                {"metavar": "URI"},
            ),
            *SINK,
            *STOPPED,
            ACCEPT,
            REASON,
            WORKERS,
            APPLY,
        ),
        ("repository", "target", "sink", "progress_log"),
        "restore",
        (
            deprecated("--seal-running", "--stop-running", sets="stop_running", to=True),
            deprecated(
                "--accept-sink",
                "--accept sink_skips --accept sink_duplicates",
                sets="accept",
                adds=("sink_skips", "sink_duplicates"),
            ),
        ),
    ),
)
