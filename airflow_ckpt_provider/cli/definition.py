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
        (_CHECKPOINT,),
        ("checkpoint",),
        "inspect",
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
            _WORKERS,
        ),
        ("checkpoint", "repository"),
        "backup",
    ),
    Verb(
        "backups",
        "List the backups in a repository",
        (_REPOSITORY, _NAME),
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
            Option(("--reason",), "why, for the audit record", {"default": "", "metavar": "TEXT"}),
            _WORKERS,
            Option(("--apply",), "carry the plan out", _FLAG),
        ),
        ("repository", "target"),
        "restore",
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
