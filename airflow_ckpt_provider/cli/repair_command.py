"""What to type after damage was found in a repository."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.errors import CkptError, command


def show_repairs(screen: Console, repository: Repository, names: Iterable[str]) -> None:
    """Show the command that plans the repair of each stream.

    :param screen: where to print.
    :param repository: where damage was found.
    :param names: streams that have damaged backups.
    """
    for name in dict.fromkeys(names):
        try:
            checkpoint = repository.manifest(name=name, whole=False).checkpoint
        except CkptError:  # the manifest is what is damaged
            checkpoint = "CHECKPOINT"
        line = command("repair", repository.location, checkpoint, "--name", name)
        terminal.next_command(screen, "To plan the repair", line)
