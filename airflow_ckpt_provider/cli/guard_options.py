"""What verbs tell the guards: what the stream declares, and ``--option KIND.KEY=VALUE``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_ckpt_provider.cli.calling import Call, UsageError
from airflow_ckpt_provider.streams.parameters import guard_options


def options_of_guards(given: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Sort options of guards by the kind of source they are for.

    :raises UsageError: one names no kind.
    """
    options: dict[str, dict[str, Any]] = {}
    for key, value in given:
        kind, dot, name = key.partition(".")
        if not dot or not name:
            raise UsageError(f"--option {key} is not KIND.KEY=VALUE", hint="such as --option kinesis.region=eu-west-1")
        options.setdefault(kind, {})[name] = value
    return options


def declared_options(call: Call) -> dict[str, dict[str, Any]]:
    """Options of guards that the one stream of a command declares; none without ``--stream``."""
    stream = getattr(call.args, "stream", None)
    return guard_options(call.streams(call.args.streams).named(stream)) if isinstance(stream, str) else {}
