"""Probes of the command line: those of the core, and a command that the person gives."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from airflow_ckpt_provider.change import rest_probes
from airflow_ckpt_provider.change.rest import StopProbe
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.redaction import redacted_text
from airflow_ckpt_provider.storage.location import Location

log = logging.getLogger(__name__)

_ENDED, _RUNS = 0, 1
#: Seconds for one run of the command, and characters of its output that are kept.
TIMEOUT, _SHOWN = 60.0, 200


@dataclass(frozen=True, slots=True)
class CommandProbe:
    """A command that knows: exit code 0, the query has ended; 1, it runs; anything else, not known.

    It is no shell: for pipes and the like give ``sh -c '…'``.

    :param command: the command line.
    :param timeout: seconds after which it is killed, with whatever it has started; not known then.
    :raises RefusedError: the command is empty or has an open quotation mark.
    """

    command: str
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as e:
            raise RefusedError(
                f"the command {self.command!r} cannot be read: {e}", hint="close the quotation mark"
            ) from e
        if not words:
            raise RefusedError("the command that shows whether the query has ended is empty", hint="give a command")

    def ended(self) -> str | None:
        """Run it.

        :raises RefusedError: it says that the query runs, or it cannot be run.
        """
        words = shlex.split(self.command)
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as e:
            raise RefusedError(f"{words[0]} could not be run: {e}", hint="correct the command") from e
        try:
            output, _ = process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own group, see start_new_session
            process.communicate()
            shown = redacted_text(self.command)
            log.warning("`%s` timed out after %g s: not known whether the query has ended", shown, self.timeout)
            return None
        said = " ".join(output.split())[:_SHOWN]
        # What is returned is kept in the audit record.
        words_of_it = redacted_text(
            f"`{self.command}` ended with exit code {process.returncode}{f' and said: {said}' if said else ''}"
        )
        if process.returncode == _ENDED:
            return f"{words_of_it}; 0 means that the query has ended"
        if process.returncode == _RUNS:
            raise RefusedError(f"{words_of_it}; 1 means that the query runs", hint="stop the query, then try again")
        log.warning("%s: not known whether the query has ended", words_of_it)
        return None


def probes_of(
    checkpoint: Location,
    *,
    progress_log: Location | None = None,
    spark_rest: str | None = None,
    command: str | None = None,
    query_id: str | None = None,
) -> tuple[StopProbe, ...]:
    """Make the probes that are given; see :func:`airflow_ckpt_provider.change.rest_probes.probes_of`.

    :param command: a command line for :class:`CommandProbe`.
    """
    core = rest_probes.probes_of(checkpoint, progress_log=progress_log, spark_rest=spark_rest, query_id=query_id)
    return (*core, *((CommandProbe(command),) if command else ()))
