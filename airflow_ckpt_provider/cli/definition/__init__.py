"""Verbs and options, once for both commands: ``airflow-ckpt`` and ``airflow ckpt``.

Every start of ``airflow`` imports this package, and ``airflow-ckpt --help`` little else: nothing here may be slow to load.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_ckpt_provider.cli.by_stream import names_stream, without_addresses
from airflow_ckpt_provider.cli.definition import fleet, keeping, pipelines, reading, recovering, repositories
from airflow_ckpt_provider.cli.definition.examples import examples_of
from airflow_ckpt_provider.cli.verb import Verb

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

GROUP = "ckpt"
SUMMARY = "Back up, verify, restore and seal checkpoints of Spark Structured Streaming."
MORE = "`airflow-ckpt VERB --help` has the options of a verb."
EXIT_CODES = "exit codes: 0 fine, 1 findings or refused, 2 wrong usage, 3 could not read or write"

#: Title in the help -> the verbs below it.
GROUPS: dict[str, tuple[Verb, ...]] = {
    "inspect a checkpoint": reading.VERBS,
    "back up and restore": repositories.VERBS,
    "keep a repository small, whole and in a second place": keeping.VERBS,
    "many streams": fleet.VERBS,
    "change a checkpoint, and undo that": recovering.VERBS,
    "Databricks": pipelines.VERBS,
}
VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)


def get_cli_commands() -> list[CLICommand]:
    """Return the group ``ckpt`` of Airflow's command line; Airflow finds this function by the provider info."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    by_stream = names_stream(sys.argv[1:])

    def args_of(verb: Verb) -> list[Arg]:
        options = without_addresses(verb, verb.airflow_options) if by_stream else verb.airflow_options
        described = (option.arguments for option in options)
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
                    epilog=f"{examples_of(verb.name, f'airflow {GROUP}')}\n\n{EXIT_CODES}",
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
