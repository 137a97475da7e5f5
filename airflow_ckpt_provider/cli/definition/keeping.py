"""Verbs that keep a repository small, whole and in a second place."""

from __future__ import annotations

from airflow_ckpt_provider.cli.options import (
    APPLY,
    CHECKPOINT,
    FLAG,
    KAFKA_CONFIG,
    NAME,
    REASON,
    REPOSITORY,
    WORKERS,
    Option,
    filled,
    length_of_time,
)
from airflow_ckpt_provider.cli.verb import Verb

_ABANDONED_AFTER = Option(
    ("--abandoned-after",),
    "a backup or restore that began that long ago and has not ended is treated as dead (default: %(default)s)",
    {"type": length_of_time, "default": "24h", "metavar": "TIME"},
)
_PRUNING = (
    Option(
        ("--max-unused",),
        "what may stay though no backup lists it: 200M, 5%% or unlimited (default: nothing)",
        {"type": filled, "metavar": "SIZE"},
    ),
    _ABANDONED_AFTER,
)
_BACKUP = Option(("BACKUP",), "id of the backup, or latest", {"type": filled})
_WHY = Option(("--reason",), "why", {"type": filled, "required": True, "metavar": "TEXT"})


def _keep(rule: str, text: str, *, metavar: str = "N") -> Option:
    return Option((f"--keep-{rule}",), text, {"type": filled, "metavar": metavar})


#: restic's rules under restic's names, and one of our own.
_KEEP = (
    _keep("last", "keep the newest N backups; unlimited for all, as with every N"),
    _keep("hourly", "keep the newest backup of each of the last N hours that have one"),
    _keep("daily", "the same for days, in UTC"),
    _keep("weekly", "the same for weeks"),
    _keep("monthly", "the same for months"),
    _keep("yearly", "the same for years"),
    _keep("within", "keep all that are at most so much older than the newest, such as 2y5m7d3h", metavar="SPAN"),
    _keep("within-hourly", "of those, keep the newest of each hour", metavar="SPAN"),
    _keep("within-daily", "of those, keep the newest of each day", metavar="SPAN"),
    _keep("within-weekly", "of those, keep the newest of each week", metavar="SPAN"),
    _keep("within-monthly", "of those, keep the newest of each month", metavar="SPAN"),
    _keep("within-yearly", "of those, keep the newest of each year", metavar="SPAN"),
    Option(
        ("--keep-tag",),
        "keep those that have all of these tags, key or key=value, separated by commas; repeatable",
        {"type": filled, "action": "append", "default": [], "metavar": "TAGS"},
    ),
    _keep("replayable", "keep the newest N whose sources still have what they would read next; see --kafka-config"),
)

VERBS = (
    Verb(
        "expire",
        "Remove the backups that no rule keeps: prints the plan, and applies it with --apply",
        (
            REPOSITORY,
            NAME,
            *_KEEP,
            KAFKA_CONFIG,
            Option(("--prune",), "then delete the objects that no backup lists any more", FLAG),
            *_PRUNING,
            REASON,
            WORKERS,
            APPLY,
        ),
        ("repository",),
        "expire",
    ),
    Verb(
        "prune",
        "Delete the objects that no backup lists: prints the plan, and applies it with --apply",
        (REPOSITORY, NAME, *_PRUNING, WORKERS, APPLY),
        ("repository",),
        "expire",
    ),
    Verb(
        "migrate",
        "Put the small files of all backups together into packs: prints the plan, and applies it with --apply",
        (REPOSITORY, NAME, _ABANDONED_AFTER, WORKERS, APPLY),
        ("repository",),
        "migrate",
    ),
    Verb("hold", "Keep a backup whatever the policy says", (REPOSITORY, _BACKUP, NAME, _WHY), ("repository",), "hold"),
    Verb(
        "release",
        "Release a hold: the policy applies again",
        (
            REPOSITORY,
            _BACKUP,
            NAME,
            _WHY,
            Option(
                ("--expire-is-dead",),
                "id of an expire that was removing the backup and whose process has ended: the backup stays; repeatable",
                {"type": filled, "action": "append", "default": [], "metavar": "EXPIRE"},
            ),
        ),
        ("repository",),
        "hold",
    ),
    Verb(
        "check",
        "Compare all backups of a repository with the objects that are there, and with what was found damaged",
        (
            REPOSITORY,
            NAME,
            Option(
                ("--trust",),
                "also report what is signed, and gaps in the audit records and in the numbers of backups",
                FLAG,
            ),
            Option(
                ("--pin",),
                "file that remembers the newest backups; that one of them is missing is a finding, also if --trust is not given",
                {"type": filled, "metavar": "FILE"},
            ),
        ),
        ("repository",),
        "check",
    ),
    Verb(
        "repair",
        "Rebuild missing and damaged objects of a repository: prints the plan, and applies it with --apply",
        (
            REPOSITORY,
            CHECKPOINT,
            NAME,
            Option(
                ("--second",),
                "another repository that may hold the same contents, such as one that backups are copied to",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            Option(
                ("--second-key-file",),
                "key of that repository (default: that of --key-file)",
                {"type": filled, "metavar": "FILE"},
            ),
            REASON,
            APPLY,
        ),
        ("repository", "checkpoint", "second"),
        "check",
    ),
    Verb(
        "copy",
        "Copy backups into another repository",
        (
            REPOSITORY,
            Option(("BACKUP",), "id of the backup, latest, or all", {"type": filled}),
            Option(("TARGET",), "the other repository: a path or a URI", {"type": filled}),
            NAME,
            Option(
                ("--target-key-file",),
                "key of TARGET (default: that of --key-file)",
                {"type": filled, "metavar": "FILE"},
            ),
            WORKERS,
        ),
        ("repository", "target"),
        "copy",
    ),
    Verb(
        "key",
        "List, add, rotate or remove the keys of an encrypted repository, export them, or put them back",
        (
            Option(
                ("ACTION",),
                "what to do: list, add, rotate (replace the key that is given), remove, export or import",
                {"choices": ("list", "add", "rotate", "remove", "export", "import")},
            ),
            REPOSITORY,
            Option(
                ("--new-key-file",),
                "the key to add, or the one that replaces the key that is given",
                {"type": filled, "metavar": "FILE"},
            ),
            Option(("--id",), "id of the key to remove, as the list has it", {"type": filled, "metavar": "ID"}),
            Option(("--note",), "what the new key is for, for the list", {"default": "", "metavar": "TEXT"}),
            Option(
                ("--file",),
                "where to export to, a new file on this machine; or the export to put back",
                {"type": filled, "metavar": "FILE"},
            ),
        ),
        ("repository",),
        "key",
    ),
    Verb(
        "new-signing-key",
        "Make a key that signs what is written into repositories, and show its public key",
        (Option(("FILE",), "where to write the private key: a new file on this machine", {"type": filled}),),
        (),
        "signing",
    ),
    Verb(
        "sign",
        "Sign the documents of a repository that no trusted key has signed: see that they are right before",
        (REPOSITORY,),
        ("repository",),
        "signing",
    ),
)
