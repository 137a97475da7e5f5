"""Verbs and options, once for both commands: ``airflow-ckpt`` and ``airflow ckpt``.

Every start of ``airflow`` imports this module, and ``airflow-ckpt --help`` little else: nothing here may be slow to load.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

    from airflow_ckpt_provider.cli.calling import Answer, Call

GROUP = "ckpt"
SUMMARY = "Back up, verify, restore and seal checkpoints of Spark Structured Streaming."
EXIT_CODES = "exit codes: 0 fine, 1 findings or refused, 2 wrong usage, 3 could not read or write"


@dataclass(frozen=True, slots=True)
class Option:
    """An argument of a verb.

    :param flags: ``("--name",)``, or ``("CHECKPOINT",)`` without dashes for an argument that goes by its position.
    :param help: what it is for.
    :param settings: what else argparse is to know.
    """

    flags: tuple[str, ...]
    help: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_positional(self) -> bool:
        """Whether it goes by its position."""
        return not self.flags[0].startswith("-")

    @property
    def arguments(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """What ``add_argument`` takes."""
        if not self.is_positional:
            return self.flags, {"help": self.help, **self.settings}
        # Named in lower case for the code, in capitals for people.
        name = self.flags[0]
        return (name.lower(),), {"help": self.help, "metavar": name, **self.settings}


@dataclass(frozen=True, slots=True)
class Verb:
    """One sub-command.

    :param name: what people type.
    :param help: one line about it.
    :param options: its own arguments; those of every verb are added to them.
    :param places: arguments that name a place in a store, by which Airflow has a connection for each.
    :param module: the module below ``cli/verbs`` that carries it out, in a function of the verb's name.
    """

    name: str
    help: str
    options: tuple[Option, ...]
    places: tuple[str, ...]
    module: str

    @property
    def shell_options(self) -> tuple[Option, ...]:
        """All arguments of ``airflow-ckpt <verb>``."""
        return (*self.options, *_OF_EVERY_VERB)

    @property
    def airflow_options(self) -> tuple[Option, ...]:
        """All arguments of ``airflow ckpt <verb>``: those of the shell, and connections."""
        connections = (
            Option(
                (f"--{place}-conn-id",),
                f"Airflow connection to reach the {place}; without one, what the environment has",
                {"metavar": "CONN_ID"},
            )
            for place in self.places
        )
        return (*self.shell_options, *connections)

    def load(self) -> Callable[[Call], Answer]:
        """Import what carries the verb out."""
        run: Callable[[Call], Answer] = getattr(
            import_module(f"airflow_ckpt_provider.cli.verbs.{self.module}"), self.name
        )
        return run


def filled(text: str) -> str:
    """Take a text that is not empty: an empty one is a shell variable that was not set.

    An empty address would mean the current directory, and that is no place to restore to by mistake.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def pair(text: str) -> tuple[str, str]:
    """Take ``key=value``."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key.strip(), value


def setting(text: str) -> tuple[str, Any]:
    """Take ``key=value`` whose value may be a whole number, ``true``, ``false``, ``null``, or JSON in brackets or quotes."""
    key, value = pair(text)
    if not re.match(r'(-?\d+|true|false|null)$|[\[{"]', value):
        return key, value
    try:
        return key, json.loads(value)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"the value of {key} is no JSON: {e}") from e


class _AllUnlessToldOtherwise(argparse.Action):
    """An option whose value may be left out; argparse's own ``const`` is unknown to Airflow's ``Arg``."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values or "all")


def length_of_time(text: str) -> float:
    """Take a length of time such as ``24h``, in seconds."""
    from airflow_ckpt_provider.errors import CkptError
    from airflow_ckpt_provider.guards.durations import seconds_of

    try:
        return seconds_of(text, field="it")
    except CkptError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time such as 24h, 90min or 1d 12h") from e


def number_from(least: int) -> Callable[[str], int]:
    """Make a type for whole numbers."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} up")
        return value

    return number


def seconds(text: str) -> float:
    """Take a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


_CHECKPOINT = Option(
    ("CHECKPOINT",), "the checkpointLocation of the query: a path, or a URI such as s3://bucket/path", {"type": filled}
)
_REPOSITORY = Option(("REPOSITORY",), "the place that holds the backups: a path or a URI", {"type": filled})
_NAME = Option(("--name",), "name of the stream in the repository", {"type": filled, "metavar": "NAME"})
_WORKERS = Option(
    ("--workers",),
    "files under way at the same time (default: %(default)s)",
    {"type": number_from(1), "default": 32, "metavar": "N"},
)
_FLAG = {"action": "store_true"}
_KAFKA_CONFIG = Option(
    ("--kafka-config",),
    "a client's configuration for the Kafka brokers: JSON or key=value lines of librdkafka's settings",
    {"type": filled, "metavar": "FILE"},
)

_QUIET_FOR = Option(
    ("--quiet-for",),
    "how long nobody may have written to CHECKPOINT before it is changed (default: %(default)s)",
    {"type": seconds, "default": 5.0, "metavar": "SECONDS"},
)
#: Where a rewind goes; exactly one of them.
_WHERE_TO = (
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
    Option(("--to-earliest",), "to the oldest batch that can be gone back to", _FLAG),
    Option(("--to-latest",), "to the newest committed batch: drops what was logged and not committed", _FLAG),
    Option(("--to-current",), "nowhere: checks checkpoint and sink as they are", _FLAG),
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
_SINK = (
    Option(
        ("--sink",),
        "what the query writes to: the directory of a Delta table or a file sink, or foreachBatch, foreach or kafka",
        {"type": filled, "metavar": "SINK"},
    ),
    Option(
        ("--txn-app-id",),
        "txnAppId with which foreachBatch writes to the Delta table (default: the query id)",
        {"type": filled, "metavar": "ID"},
    ),
    Option(
        ("--sink-option",),
        "setting of the table's store as deltalake names it, such as AWS_REGION=eu-central-1; repeatable",
        {"type": pair, "action": "append", "default": [], "metavar": "KEY=VALUE"},
    ),
)

_ACCEPT = Option(
    ("--accept",),
    "go on though the plan's verdict is this one",
    {"choices": ["WILL_SKIP", "WILL_DUPLICATE", "WILL_LOSE", "WILL_FAIL", "UNKNOWN"]},
)
_CONTINUE_NUMBERS = Option(
    ("--continue-numbers",),
    "the new checkpoint goes on with the old batch numbers, which file sinks want; for queries without state",
    _FLAG,
)

_OF_EVERY_VERB = (
    Option(
        ("--storage-option",),
        "setting of the fsspec filesystem of stores other than local disks, such as endpoint_url=http://host:9000; repeatable",
        {"type": setting, "action": "append", "default": [], "metavar": "KEY=VALUE"},
    ),
    Option(("--json",), "print one JSON document on stdout, and nothing else there", _FLAG),
    Option(("--debug",), "show what is done, and the traceback of an error, on stderr", _FLAG),
)

VERBS = (
    Verb(
        "inspect",
        "What is in a checkpoint, and what Spark will do at its next start",
        (
            _CHECKPOINT,
            Option(
                ("--kafka-config",),
                "a client's configuration for the Kafka brokers, to be told how far behind them the next start is",
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
            _CHECKPOINT,
            Option(
                ("--repair",), "plan the minimal cut: the newest batch that is whole, with the fewest removals", _FLAG
            ),
            Option(
                ("--repository",),
                "whose backups missing files are fetched from, and where what goes is kept (default: CHECKPOINT.repairs)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            _NAME,
            Option(
                ("--query-id",),
                "id of the query, where the file metadata is lost; logs of a former run name it",
                {"type": filled, "metavar": "UUID"},
            ),
            Option(("--skip-contents",), "do not read state files to find damage in them", _FLAG),
            Option(
                ("--target",),
                "the table that the query writes to, by name or path: for advice on where the checkpoint lies",
                {"type": filled, "metavar": "NAME"},
            ),
            Option(
                ("--trigger",),
                "interval of the query's trigger: for advice on batches that take longer",
                {"type": seconds, "metavar": "SECONDS"},
            ),
            Option(
                ("--quiet-for",),
                "how long nobody may have written to CHECKPOINT before it is repaired (default: %(default)s)",
                {"type": seconds, "default": 5.0, "metavar": "SECONDS"},
            ),
            Option(("--reason",), "why, for the audit record", {"default": "", "metavar": "TEXT"}),
            Option(("--apply",), "carry the plan of the repair out", _FLAG),
        ),
        ("checkpoint", "repository"),
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
        "backup",
        "Back up a checkpoint, while its stream runs or not",
        (
            _CHECKPOINT,
            Option(("REPOSITORY",), "where to: a path or a URI; an empty place becomes a repository", {"type": filled}),
            Option(
                ("--name",),
                "name of the stream (default: last part of CHECKPOINT)",
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
                "how many of the newest batches can be restored from it (default: %(default)s)",
                {"type": number_from(1), "default": 1, "metavar": "N"},
            ),
            _KAFKA_CONFIG,
            _WORKERS,
        ),
        ("checkpoint", "repository"),
        "backup",
    ),
    Verb(
        "backups",
        "List the backups in a repository",
        (_REPOSITORY, _NAME, _KAFKA_CONFIG),
        ("repository",),
        "backups",
    ),
    Verb(
        "verify",
        "Check that a backup is whole",
        (
            _REPOSITORY,
            Option(("BACKUP",), "id of the backup, or latest (default: latest)", {"type": filled, "nargs": "?"}),
            _NAME,
            Option(
                ("--read-data",),
                "read contents too: all of them, or a part: =n/t (the n-th of t parts) or =x%% (a random sample)",
                {"nargs": "?", "action": _AllUnlessToldOtherwise, "metavar": "PART"},
            ),
            _WORKERS,
        ),
        ("repository",),
        "verify",
    ),
    Verb(
        "restore",
        "Restore a backup: shows the plan, and carries it out with --apply",
        (
            _REPOSITORY,
            Option(("BACKUP",), "id of the backup, or latest", {"type": filled}),
            Option(("TARGET",), "where to: an empty place, or the checkpoint to replace", {"type": filled}),
            _NAME,
            Option(
                ("--batch",),
                "batch to go back to, one of the backup's restorable ones (default: its newest)",
                {"type": number_from(0), "metavar": "N"},
            ),
            Option(("--replace",), "replace the checkpoint at TARGET; it is backed up, or set aside, before", _FLAG),
            Option(("--seal-running",), "stop a query that writes to TARGET, by sealing it", _FLAG),
            Option(
                ("--quiet-for",),
                "how long nobody may have written to the TARGET that is replaced (default: %(default)s)",
                {"type": seconds, "default": 5.0, "metavar": "SECONDS"},
            ),
            Option(
                ("--target-uri",),
                "TARGET as Spark names it, where that differs; for state that holds absolute paths",
                {"metavar": "URI"},
            ),
            *_SINK,
            Option(("--accept-sink",), "go on though the sink says that it will skip or double rows", _FLAG),
            Option(("--reason",), "why, for the audit record", {"default": "", "metavar": "TEXT"}),
            _WORKERS,
            Option(("--apply",), "carry the plan out", _FLAG),
        ),
        ("repository", "target", "sink"),
        "restore",
    ),
    Verb(
        "rewind",
        "Go back to a batch or a time, with state and sink: shows the plan, and carries it out with --apply",
        (
            _CHECKPOINT,
            *_WHERE_TO,
            Option(("--list",), "show every batch that can be gone back to", _FLAG),
            *_SINK,
            Option(
                ("--sink-exit",),
                "what is done about rows that the sink has beyond that batch: rollback (the sink goes back too), forward (the "
                "checkpoint goes to where the sink is), accept (what the verdict says will happen)",
                {"choices": ["rollback", "forward", "accept"]},
            ),
            Option(
                ("--repository",),
                "where what goes is kept, and whose backups can be gone back to (default: CHECKPOINT.rewinds)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            _NAME,
            Option(
                ("--fresh",),
                "plan the next batch anew, instead of running it again over exactly the same data",
                _FLAG,
            ),
            Option(
                ("--downstream",),
                "checkpoint of a stream that reads the sink, or a folder of such, to be told what happens to it; repeatable",
                {"type": filled, "action": "append", "default": [], "metavar": "PLACE"},
            ),
            Option(
                ("--kafka-config",),
                "a client's configuration for the Kafka brokers, to be told whether they still have the data",
                {"type": filled, "metavar": "FILE"},
            ),
            Option(("--stop-running",), "stop a query that runs, by the seal, at its batch boundary", _FLAG),
            Option(("--accept-source-loss",), "go on though the sources have lost data", _FLAG),
            Option(("--accept-foreign-loss",), "go on though rows that others wrote leave the table too", _FLAG),
            _QUIET_FOR,
            Option(("--reason",), "why, for the audit record", {"default": "", "metavar": "TEXT"}),
            Option(("--apply",), "carry the plan out", _FLAG),
        ),
        ("checkpoint", "repository", "sink"),
        "rewind",
    ),
    Verb(
        "undo",
        "Take a rewind or a reset back, as long as nothing was written since",
        (
            _CHECKPOINT,
            Option(("--plan",), "id of the rewind or reset (default: the newest)", {"type": filled, "metavar": "ID"}),
            *_SINK,
            Option(
                ("--repository",),
                "the repository that the rewind was carried out with (default: CHECKPOINT.rewinds)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            Option(("--reason",), "why, for the audit record", {"default": "", "metavar": "TEXT"}),
        ),
        ("checkpoint", "repository", "sink"),
        "rewind",
    ),
    Verb(
        "reset",
        "A new checkpoint in the place of the old one: shows the plan, and carries it out with --apply",
        (
            _CHECKPOINT,
            Option(
                ("--keep-position",),
                "the new one reads on where the old one stood: gives reader options for every source",
                _FLAG,
            ),
            Option(("--from-scratch",), "the new one starts where the sources' own options say", _FLAG),
            Option(("--new-query-id",), "keep the checkpoint, under a new query id", _FLAG),
            Option(
                ("--batch",),
                "with --keep-position: after this committed batch (default: the newest)",
                {"type": number_from(0), "metavar": "N"},
            ),
            *_SINK,
            Option(
                ("--new-txn-app-id",),
                "txnAppId with which the new query's foreachBatch will write",
                {"type": filled, "metavar": "ID"},
            ),
            _CONTINUE_NUMBERS,
            Option(
                ("--source",),
                "a source has another place or name in the new query: 0=1; 0= for one that is gone; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "OLD=NEW"},
            ),
            Option(
                ("--partitions",),
                "how many partitions a Kafka topic has now, so that added ones are read too; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "TOPIC=N"},
            ),
            Option(
                ("--table",),
                "the Delta table that a source reads, to count the rows that are read again; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "SOURCE=URI"},
            ),
            Option(
                ("--repository",),
                "where the old checkpoint is kept (default: CHECKPOINT.rewinds)",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            _NAME,
            Option(("--stop-running",), "stop a query that runs, by the seal, at its batch boundary", _FLAG),
            _ACCEPT,
            _QUIET_FOR,
            Option(("--reason",), "why, for the audit record", {"default": "", "metavar": "TEXT"}),
            Option(("--apply",), "carry the plan out", _FLAG),
        ),
        ("checkpoint", "repository", "sink", "table"),
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
                "with --reset: the new checkpoint reads on where the live one stands (default: from the start)",
                _FLAG,
            ),
            _CONTINUE_NUMBERS,
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
            Option(("--backup",), "id of the backup (default: latest)", {"type": filled, "metavar": "BACKUP"}),
            _NAME,
            Option(
                ("--batch",),
                "batch to go back to, one of the backup's restorable ones (default: its newest)",
                {"type": number_from(0), "metavar": "N"},
            ),
            *_SINK,
            _ACCEPT,
            _QUIET_FOR,
            Option(("--reason",), "why, for the audit record", {"default": "", "metavar": "TEXT"}),
            Option(("--apply",), "carry the plan out", _FLAG),
        ),
        ("storage", "repository", "sink"),
        "flows",
    ),
    Verb(
        "seal",
        "Stop a running stream after its batch, and keep every Spark from starting it",
        (
            _CHECKPOINT,
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
        "Lift a seal: the stream can be started and goes on where it was",
        (
            _CHECKPOINT,
            Option(
                ("--plan",), "id of the plan that set the seal; inspect shows it", {"type": filled, "metavar": "ID"}
            ),
            Option(("--force",), "lift it whoever set it", _FLAG),
        ),
        ("checkpoint",),
        "seal",
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
            _KAFKA_CONFIG,
            Option(
                ("--max-downtime",),
                "how long the stream will stand still from now on, such as 24h",
                {"type": length_of_time, "metavar": "TIME"},
            ),
            Option(
                ("--buffer",),
                "time to have in hand after that (default: %(default)s)",
                {"type": length_of_time, "default": "1h", "metavar": "TIME"},
            ),
            Option(
                ("--repository",),
                "backups of the stream, which know what its sources were; without CHECKPOINT the backup is asked about",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            Option(("--backup",), "id of the backup (default: latest)", {"type": filled, "metavar": "BACKUP"}),
            _NAME,
            Option(
                ("--offsets",),
                "Kafka offsets instead of CHECKPOINT, as Spark's startingOffsets",
                {"type": filled, "metavar": "JSON"},
            ),
            Option(("--source",), "only this source: 0, 1, … or its name", {"type": filled, "metavar": "SOURCE"}),
            Option(("--ignore-data-loss",), "the query runs with failOnDataLoss=false", _FLAG),
            Option(("--read-committed",), "the query runs with kafka.isolation.level=read_committed", _FLAG),
            Option(
                ("--option",),
                "option of a guard, such as one of another package; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "KIND.KEY=VALUE"},
            ),
            Option(("--markdown",), "print Markdown, for a ticket or an approval", _FLAG),
        ),
        ("checkpoint", "repository"),
        "guard",
    ),
    Verb(
        "positions",
        "Reader options with which a new checkpoint starts where this one stands",
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
                "the same for a time so long ago, such as PT2H",
                {"type": filled, "metavar": "DURATION"},
            ),
            Option(
                ("--repository",),
                "take them from a backup in this repository instead of a checkpoint",
                {"type": filled, "metavar": "REPOSITORY"},
            ),
            Option(("--backup",), "id of the backup (default: latest)", {"type": filled, "metavar": "BACKUP"}),
            _NAME,
            Option(
                ("--partitions",),
                "how many partitions a Kafka topic has now, so that added ones are read too; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "TOPIC=N"},
            ),
            Option(
                ("--table",),
                "the Delta table that a source reads (0, 1, … in plan order), to count the rows that are read again; repeatable",
                {"type": pair, "action": "append", "default": [], "metavar": "SOURCE=URI"},
            ),
            Option(
                ("--seed",),
                "write into the empty place of the new checkpoint which input files were read already",
                {"type": filled, "metavar": "NEW_CHECKPOINT"},
            ),
        ),
        ("checkpoint", "repository", "seed", "table"),
        "positions",
    ),
)


def get_cli_commands() -> list[CLICommand]:
    """Return the group ``ckpt`` of Airflow's command line; Airflow finds this function by the provider info."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    def args_of(verb: Verb) -> list[Arg]:
        described = (option.arguments for option in verb.airflow_options)
        return [Arg(flags, **settings) for flags, settings in described]

    return [
        GroupCommand(
            name=GROUP,
            help="Back up and restore checkpoints of Spark Structured Streaming",
            description=SUMMARY,
            subcommands=[
                ActionCommand(
                    name=verb.name,
                    help=verb.help,
                    func=_in_airflow(verb),
                    args=args_of(verb),
                    epilog=EXIT_CODES,
                )
                for verb in VERBS
            ],
        )
    ]


def _in_airflow(verb: Verb) -> Callable[[argparse.Namespace], None]:
    def command(args: argparse.Namespace) -> None:
        from airflow_ckpt_provider.cli.in_airflow import run

        run(verb, args)

    command.__name__ = verb.name
    return command
