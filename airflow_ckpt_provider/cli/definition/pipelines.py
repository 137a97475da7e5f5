"""The verb for pipelines of Databricks."""

from __future__ import annotations

import argparse

from airflow_ckpt_provider.cli.options import APPLY, FLAG, KAFKA_CONFIG, Option, filled, length_of_time, pair
from airflow_ckpt_provider.cli.verb import Verb

ACTIONS = ("list", "flows", "positions", "reset", "refresh", "rewind", "put-back")
#: Verdicts that a plan can have besides SAFE; that module takes longer to load.
VERDICTS = ("WILL_SKIP", "WILL_DUPLICATE", "WILL_LOSE", "WILL_FAIL", "UNKNOWN")


def _one_of(*words: str) -> object:
    def take(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return take


def _many(flag: str, help: str, metavar: str, **settings: object) -> Option:
    return Option((flag,), f"{help}; repeatable", {"action": "append", "default": [], "metavar": metavar, **settings})


VERBS = (
    Verb(
        "pipelines",
        "Lakeflow pipelines of Databricks: list them and their flows, find positions, reset, refresh, rewind",
        (
            Option(("ACTION",), "list, flows, positions, reset, refresh, rewind or put-back", {"choices": ACTIONS}),
            Option(
                ("PIPELINE",),
                "id or name of the pipeline; with list a pattern in which %% stands for any characters",
                {"type": filled, "nargs": "?"},
            ),
            Option(
                ("--profile",),
                "profile of ~/.databrickscfg (default: as the Databricks SDK's unified configuration finds a login)",
                {"type": filled, "metavar": "NAME"},
            ),
            _many("--flow", "positions, reset: a flow, as the event log names it", "NAME", type=filled),
            _many("--refresh", "a table that the update refreshes without emptying it", "TABLE", type=filled),
            _many("--empty", "refresh: a table that is emptied and filled again", "TABLE", type=filled),
            Option(("--everything",), "refresh: empty every table", FLAG),
            Option(
                ("--positions",),
                "reset: a file with where the flows begin, as positions --json prints it; - is standard input",
                {"type": filled, "metavar": "FILE"},
            ),
            _many("--set", "reset: a key that is merged into the pipeline's configuration", "KEY=VALUE", type=pair),
            _many("--parameter", "reset: a parameter of the update, which only SQL reads", "KEY=VALUE", type=pair),
            Option(
                ("--configuration-after",),
                "reset: put_back all keys when the flows run, or keep them (default: keep what a flow may still need)",
                {"type": _one_of("put_back", "keep"), "metavar": "WORD"},
            ),
            Option(
                ("--about",),
                "positions: a JSON file with what is known of the flows (sources, carried_by, language, target, keys, stateful)",
                {"type": filled, "metavar": "FILE"},
            ),
            Option(
                ("--margin",),
                "positions: how much before a known time reading begins, such as 15min; nothing arrives later than that",
                {"type": length_of_time, "metavar": "TIME"},
            ),
            Option(
                ("--warehouse",),
                "positions: SQL warehouse for the histories of the tables",
                {"type": filled, "metavar": "ID"},
            ),
            KAFKA_CONFIG,
            Option(
                ("--guard-report",),
                "reset, refresh: a file with what guard --json printed of the sources",
                {"type": filled, "metavar": "FILE"},
            ),
            Option(
                ("--to",),
                "rewind: to this time, ISO 8601 with its zone or with --timezone",
                {"type": filled, "metavar": "TIME"},
            ),
            Option(
                ("--timezone",),
                "rewind: time zone of a time given without an offset",
                {"type": filled, "metavar": "ZONE"},
            ),
            _many("--dataset", "rewind: a dataset, with what is downstream (default: all)", "NAME", type=filled),
            Option(("--no-replay",), "rewind: do not start the update that reads the input again", FLAG),
            Option(
                ("--changed-by",),
                "put-back: whose keys, as the plan of a reset names them",
                {"type": filled, "metavar": "WHO"},
            ),
            Option(("--validate-only",), "reset, refresh: a dry run: the update only validates the code", FLAG),
            Option(
                ("--on-active-update",),
                "about an update that is active: fail, wait or stop (default: %(default)s)",
                {"type": _one_of("fail", "wait", "stop"), "default": "fail", "metavar": "WORD"},
            ),
            Option(
                ("--wait-for",),
                "COMPLETED, or RUNNING for continuous pipelines (default: %(default)s)",
                {"type": _one_of("COMPLETED", "RUNNING"), "default": "COMPLETED", "metavar": "STATE"},
            ),
            Option(
                ("--flows-run-for",),
                "how long the flows of a continuous pipeline have to run without a failure (default: %(default)s)",
                {"type": length_of_time, "default": 60.0, "metavar": "SECONDS"},
            ),
            Option(
                ("--poll",),
                "time between two polls (default: %(default)s)",
                {"type": length_of_time, "default": 10.0, "metavar": "SECONDS"},
            ),
            Option(
                ("--timeout",),
                "for all waiting together (default: %(default)s)",
                {"type": length_of_time, "default": 86400.0, "metavar": "SECONDS"},
            ),
            Option(
                ("--accept",),
                "accept a plan whose verdict is this: WILL_DUPLICATE, WILL_LOSE, WILL_FAIL, WILL_SKIP or UNKNOWN",
                {"type": _one_of(*VERDICTS), "metavar": "VERDICT"},
            ),
            Option(
                ("--fingerprint",),
                "apply only the plan that has this fingerprint: the one that was shown and approved",
                {"type": filled, "metavar": "TEXT"},
            ),
            Option(
                ("--forget",),
                "reset, refresh, rewind: remove the note of an earlier run of this command that was cut off; start nothing",
                FLAG,
            ),
            APPLY,
        ),
        (),
        "pipelines",
    ),
)
