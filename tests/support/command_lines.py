"""Command lines of ``airflow-ckpt``, parsed as a shell's are."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from typing import Any

from airflow_ckpt_provider.cli.by_stream import names_stream
from airflow_ckpt_provider.cli.program import build_parser


def parsed(words: Sequence[str]) -> Any:
    """What a command line says.

    :param words: what follows the program's name.
    :raises SystemExit: it is wrong usage.
    """
    return _parser(names_stream(words)).parse_args(words)


@cache
def _parser(by_stream: bool) -> argparse.ArgumentParser:
    return build_parser(by_stream=by_stream)
