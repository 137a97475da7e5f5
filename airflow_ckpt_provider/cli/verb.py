"""A sub-command of ``airflow-ckpt``, and of ``airflow ckpt``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from airflow_ckpt_provider.cli.by_stream import BY_STREAM, takes_stream
from airflow_ckpt_provider.cli.options import OF_EVERY_VERB, Option

if TYPE_CHECKING:
    from airflow_ckpt_provider.cli.calling import Answer, Call


@dataclass(frozen=True, slots=True)
class Verb:
    """One sub-command.

    :param name: what people type.
    :param help: one line about it.
    :param options: its own arguments; those of every verb are added to them.
    :param places: arguments that name a place in a store, by which Airflow has a connection for each.
    :param module: the module below ``cli/verbs`` that runs it, in a function of the verb's name, with ``_`` for ``-``.
    :param deprecated: arguments of version 0.1 that work for one more release.
    """

    name: str
    help: str
    options: tuple[Option, ...]
    places: tuple[str, ...]
    module: str
    deprecated: tuple[Option, ...] = ()

    @property
    def shell_options(self) -> tuple[Option, ...]:
        """All arguments of ``airflow-ckpt <verb>``."""
        return (*self.options, *(BY_STREAM if takes_stream(self) else ()), *OF_EVERY_VERB, *self.deprecated)

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
            import_module(f"airflow_ckpt_provider.cli.verbs.{self.module}"), self.name.replace("-", "_")
        )
        return run
