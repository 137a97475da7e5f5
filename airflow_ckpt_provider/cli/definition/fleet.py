"""Verbs for many streams at once."""

from __future__ import annotations

from airflow_ckpt_provider.cli.options import (
    FLAG,
    KAFKA_CONFIG,
    REPOSITORY,
    Option,
    filled,
    length_of_time,
    number_from,
    pair,
)
from airflow_ckpt_provider.cli.verb import Verb

_LOOKING = (
    Option(
        ("--depth",),
        "how many levels below each ROOT are listed (default: %(default)s)",
        {"type": number_from(0), "default": 8, "metavar": "N"},
    ),
    Option(
        ("--workers",),
        "directories and streams read at the same time (default: %(default)s)",
        {"type": number_from(1), "default": 16, "metavar": "N"},
    ),
)

VERBS = (
    Verb(
        "streams",
        "Write a first streams.yaml, check it against the world, list what it declares, or print its JSON Schema",
        (
            Option(
                ("ACTION",), "what to do: init, check, list or schema", {"choices": ("init", "check", "list", "schema")}
            ),
            Option(
                ("ROOT",),
                "with init: where checkpoints are looked for: paths or URIs",
                {"type": filled, "nargs": "*", "default": []},
            ),
            Option(
                ("--repository",), "with init: where the backups will go", {"type": filled, "metavar": "REPOSITORY"}
            ),
            Option(("--path",), "with schema: print where its file is", FLAG),
            *_LOOKING,
        ),
        ("root", "checkpoint", "repository", "sink", "progress_log"),
        "streams",
    ),
    Verb(
        "discover",
        "Find the checkpoints below a place, with the status of each",
        (Option(("ROOT",), "where to look: paths or URIs", {"type": filled, "nargs": "+"}), *_LOOKING),
        ("root",),
        "discover",
    ),
    Verb(
        "fleet",
        "Status of all streams, compared with a repository: last backup, gap, time to loss, size, last drill, RPO, RTO",
        (
            REPOSITORY,
            Option(
                ("ROOT",),
                "where the checkpoints are looked for: paths or URIs; or `--streams FILE` for the streams that the file "
                "declares with this repository, their limits and objectives",
                {"type": filled, "nargs": "*", "default": []},
            ),
            Option(
                ("--checkpoints",),
                "list of checkpoints, instead of ROOT or besides: one address a line, a tab before its name; or what "
                "discover --json printed",
                {"type": filled, "metavar": "FILE"},
            ),
            *_LOOKING,
            Option(
                ("--max-age",),
                "the oldest that the last good backup of a stream may be that has committed since, such as 26h",
                {"type": length_of_time, "metavar": "TIME"},
            ),
            Option(
                ("--max-gap",),
                "the most logged batches without a commit",
                {"type": number_from(0), "metavar": "N"},
            ),
            Option(
                ("--min-time-to-loss",),
                "the least time for which the sources must still have what the next start reads, such as 24h",
                {"type": length_of_time, "metavar": "TIME"},
            ),
            KAFKA_CONFIG,
            Option(
                ("--option",),
                "option of a guard, for all streams or, behind its name and a colon, for one: orders:delta.table.0=s3://lake/t; "
                "repeatable; without one, and without --kafka-config, the time to loss is UNKNOWN",
                {"type": pair, "action": "append", "default": [], "metavar": "[STREAM:]KIND.KEY=VALUE"},
            ),
            Option(("--size",), "list all files of each checkpoint for its size too, not only of its backup", FLAG),
            Option(
                ("--prometheus",),
                "write metrics to a file, for the textfile collector of a node exporter",
                {"type": filled, "metavar": "FILE"},
            ),
            Option(("--keep-report",), "keep the report in the repository, for the pages of `report`", FLAG),
            Option(("--csv",), "print CSV", FLAG),
            Option(("--markdown",), "print Markdown, for a ticket or a chat", FLAG),
        ),
        ("repository", "root"),
        "fleet",
    ),
    Verb(
        "report",
        "The pages about all streams as files: status, timeline, backups, changes",
        (
            REPOSITORY,
            Option(
                ("--html",),
                "directory for the pages; it is made if it does not exist. With `--streams FILE` they show whether `rpo` and "
                "`rto` are met",
                {"type": filled, "metavar": "DIR", "required": True},
            ),
        ),
        ("repository",),
        "report",
    ),
)
