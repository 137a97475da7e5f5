"""Advice in the words of the surface where it is read: options of the command line, or arguments of the operators.

The core says what to do with the options of ``airflow-ckpt``. Whoever reads that in Airflow needs the argument instead. A whole
command stays a command: it is right wherever there is a shell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Options that are set or not -> the argument and its value.
_FLAGS = {
    "apply": 'mode="apply"',
    "continue-numbers": "continue_numbers=True",
    "new-life": "new_life=True",
    "query-is-stopped": "query_is_stopped=True",
    "read-data": 'read_data="all"',
    "repair": "repair=True",
    "replace": "replace=True",
    "stop-running": "stop_running=True",
}
#: Options with a value -> the argument.
_ARGUMENTS = {
    "accept": "accept",
    "backup-id": "backup_id",
    "batch": "batch",
    "kafka-config": "kafka_config_id",
    "mirrored-from": "mirrored_from",
    "mirrored-to": "mirrored_to",
    "name": "name",
    "offset-syncs-location": "offset_syncs_location",
    "old-kafka-config": "old_kafka_config_id",
    "on-active-update": "on_active_update",
    "plan": "plan_id",
    "query-id": "query_id",
    "reason": "reason",
    "replication-policy": "replication_policy",
    "repository": "repository",
    "sink": "sink",
    "sink-policy": "sink_policy",
    "txn-app-id": "txn_app_id",
    "wait-at-most": "wait_at_most",
}
#: Verb -> what its first arguments are called in the operator.
_POSITIONAL = {
    "backup": ("checkpoint", "repository"),
    "doctor": ("checkpoint",),
    "guard": ("checkpoint",),
    "positions": ("checkpoint",),
    "restore": ("repository", "backup_id", "target"),
    "rewind": ("checkpoint",),
    "seal": ("checkpoint",),
    "unseal": ("checkpoint",),
    "verify": ("repository", "backup_id"),
}
#: A command of a shell, with or without backticks around it: kept as it is.
_COMMAND = r"`(?:airflow|airflow-ckpt|spark-submit|spark-pipelines|kafka-[a-z-]+|databricks) [^`]*`"
_COMMAND += r"|\b(?:airflow-ckpt|airflow|spark-submit|kafka-[a-z-]+\.sh|databricks) [a-z]+ [^;\n]*"
_VALUE = r"[A-Z][A-Z0-9_.]+\b|[a-z0-9]+:[^\s,;)`]+|'[^']*'|[a-z]+_[a-z_]+\b|(?:rollback|forward|keep|wait|stop|fail|target)\b"
#: ``query_is_stopped / --query-is-stopped`` and ``--accept source_loss (accept=['source_loss'])`` say both already.
_BOTH = r"(?P<both>\b[a-z_]+) / --[a-z-]+|(?:--[a-z-]+ \S+ )+\((?P<given>[a-z_]+=[^)]*)\)"
_OPTION = rf"--(?P<option>[a-z][a-z-]*[a-z])(?:[ =](?P<value>{_VALUE}))?(?P<more> (?=--))?"
_WORDS = re.compile(f"(?P<command>{_COMMAND})|{_BOTH}|{_OPTION}")


def for_operators(text: str) -> str:
    """Return a hint with arguments of operators in the place of options; an option that no operator has stays as it is."""
    return _WORDS.sub(_translated, text)


def _translated(found: re.Match[str]) -> str:
    if found["command"]:
        return found[0]
    if both := found["both"] or found["given"]:
        return both
    argument = _argument(found["option"], found["value"])
    return argument + (", " if found["more"] else "") if argument else found[0]


def _argument(option: str, value: str | None) -> str:
    if flag := _FLAGS.get(option):
        # What follows belongs to the sentence.
        return flag + (f" {value}" if value else "")
    if option.startswith("to-"):
        return f'to="{option.replace("-", "_")}"' + (f", value={value}" if value else "")
    argument = _ARGUMENTS.get(option, "")
    if not argument or not value:
        return argument
    return f"{argument}={_quoted(value)}"


def operator_call(operator: str, command: Sequence[str]) -> str:
    """Return how a task is written that does what a command does; an empty text where the operator has no such argument.

    :param operator: class name.
    :param command: arguments of ``airflow-ckpt``, verb first.
    """
    verb, *rest = command
    names = iter(_POSITIONAL.get(verb, ()))
    arguments = []
    while rest:
        given = rest.pop(0)
        if not given.startswith("--"):
            argument = _named(next(names, ""), given)
        elif given[2:] in _FLAGS:
            argument = _FLAGS[given[2:]]
        elif given == "--to-latest":
            argument = 'to="to_latest"'
        elif given == "--option":
            argument = _of_guard(rest.pop(0)) if rest else ""
        else:
            argument = _named(_ARGUMENTS.get(given[2:], ""), rest.pop(0)) if rest else ""
        if not argument:
            return ""
        arguments.append(argument)
    return f"{operator}({', '.join(arguments)})"


def _of_guard(option: str) -> str:
    """``delta.table.0=TABLE`` as the argument of the guard of Delta tables."""
    table = re.fullmatch(r"delta\.table\.([^=]+)=(.+)", option)
    return f'tables={{"{table[1]}": {_quoted(table[2])}}}' if table else ""


def _named(argument: str, value: str) -> str:
    return f"{argument}={_quoted(value)}" if argument else ""


def _quoted(value: str) -> str:
    """A value as Python; a word in capitals stands for what the reader knows."""
    bare = value.strip("'")
    return bare if re.fullmatch(r"[A-Z][A-Z_]+", bare) else f'"{bare}"'
