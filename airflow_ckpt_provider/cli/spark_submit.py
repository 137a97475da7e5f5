"""Running a Spark application by the command that the person gives."""

from __future__ import annotations

import shlex
import subprocess

from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.sinks.delta_rollback import RestoreBySpark, TableTarget
from airflow_ckpt_provider.sinks.spark_restore import APPLICATION, arguments_for
from airflow_ckpt_provider.sinks.spark_tables import RunApplication

_REFUSED = 1
#: How much of what the application said an error shows, in lines.
_SHOWN = 15


def run_by_command(command: str) -> RunApplication:
    """Run applications by a command line.

    :param command: the command up to the application and its arguments, such as ``spark-submit --packages io.delta:…``.
    :raises RefusedError: the command is empty.
    """
    words = shlex.split(command)
    if not words:
        raise RefusedError(
            "the command that runs Spark is empty", hint="give such as 'spark-submit --packages io.delta:…'"
        )

    def run(application: str, arguments: list[str]) -> None:
        try:
            done = subprocess.run([*words, application, *arguments], capture_output=True, text=True, check=False)
        except OSError as e:
            raise StorageError(
                f"{words[0]} could not be run: {e}", hint="correct the command, and run this again"
            ) from e
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-_SHOWN:])
            kind = RefusedError if done.returncode == _REFUSED and "nothing was changed" in said else StorageError
            raise kind(
                f"Spark failed (exit code {done.returncode}): {said}",
                hint="see DESCRIBE HISTORY of the table and what Spark said, then run this again",
            )

    return run


def restore_by_command(command: str, *, uri: str | None = None) -> RestoreBySpark:
    """Restore a table by a command line.

    :param command: see :func:`run_by_command`.
    :param uri: the table as Spark names it, where that differs.
    :raises RefusedError: the command is empty.
    """
    run = run_by_command(command)

    def restore(target: TableTarget, expected: int) -> None:
        try:
            run(APPLICATION, arguments_for(target, expected, uri=uri))
        except (RefusedError, StorageError) as e:
            message = f"Spark did not restore {target.table} to version {target.version}: {e.message}"
            raise type(e)(message, hint=e.hint) from e

    return restore
