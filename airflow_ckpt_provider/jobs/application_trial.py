"""An application that takes ``--checkpoint`` and ``--sink``, run for a few batches on a scratch checkpoint."""

from __future__ import annotations

import shlex
import signal
import subprocess
import tempfile
import time
from typing import IO

from airflow_ckpt_provider.advisor.advice import recovery_advice
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.health import measure
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.upgrade.rehearsal.report import Failure, TrialBatch

_LOOK_EVERY = 0.5
_STOP_WITHIN = 30.0
#: Of a log the end is read.
_MOST_BYTES = 4 * 1024 * 1024


def run_application(
    command: str, location: Location, *, checkpoint: str, sink: str, after: int, last: int, timeout: float
) -> tuple[list[TrialBatch], Failure | None]:
    """Run an application until it has committed a batch, ended by itself, or has had its time; then end it.

    :param command: the command, such as ``spark-submit app.py``; ``--checkpoint`` and ``--sink`` are added.
    :param location: the scratch checkpoint.
    :param checkpoint: the same, by Spark's name.
    :param sink: a scratch place for its output, by Spark's name.
    :param after: the batch that the checkpoint was restored at.
    :param last: the last batch to wait for.
    :param timeout: seconds.
    :return: the batches it committed, and why it failed.
    :raises RefusedError: the command cannot be started.
    """
    words = [*shlex.split(command), "--checkpoint", checkpoint, "--sink", sink]
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as e:
            raise RefusedError(f"--application {command!r} cannot be started: {e}", hint="give a command") from e
        try:
            failure = _watch(process, location, last=last, timeout=timeout, output=output)
        finally:
            _end(process)
    return _batches(location, after), failure


def _watch(
    process: subprocess.Popen[bytes], location: Location, *, last: int, timeout: float, output: IO[bytes]
) -> Failure | None:
    deadline = time.monotonic() + timeout
    while process.poll() is None:
        committed = Checkpoint.at(location).progress().latest_committed
        if committed is not None and committed >= last:
            return None
        if time.monotonic() > deadline:
            return Failure("TIMEOUT", f"still running after {timeout:g} s, batch {committed} committed")
        time.sleep(_LOOK_EVERY)
    if process.returncode == 0:
        return None
    output.seek(max(0, output.seek(0, 2) - _MOST_BYTES))
    text = output.read().decode(errors="replace")
    advice = recovery_advice(text)
    if advice.condition is None:
        end = text.strip().splitlines()[-1:] or ["it said nothing"]
        return Failure("APPLICATION-EXIT", f"exit code {process.returncode}: {end[0]}", advice.to_json())
    return Failure(advice.condition.code, advice.evidence or text[-2000:], advice.to_json())


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _batches(location: Location, after: int) -> list[TrialBatch]:
    committed = [b for b in Checkpoint.at(location).progress().committed if b > after]
    pace = measure(location, batches=len(committed), after=after) if committed else None
    return [TrialBatch(batch, pace.seconds_per_batch if pace else None) for batch in committed]
