"""Notes of pipelines' runs from a shell: one small file each, so that the same command finds the update that it has started."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.json_text import load_json

#: Beside the notes of the steps: what the run was approved with.
_APPROVED = "approved"


def notes_directory() -> Path:
    """Return where notes are kept: ``$XDG_STATE_HOME/airflow-ckpt/pipelines``.

    :raises RefusedError: this user has no home, and the variable is not set.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if state.startswith("~"):
        raise RefusedError(
            "this user has no home directory for the notes of the command",
            hint="set HOME, or XDG_STATE_HOME to a directory that stays until the command has ended",
        )
    return Path(state) / "airflow-ckpt" / "pipelines"


class FileMemos:
    """One of :class:`~airflow_ckpt_provider.lakeflow.blocking_run.Memos`.

    :param name: of the run: the same for the same command on the same pipeline of the same workspace.
    :param directory: where the file is.
    """

    def __init__(self, name: str, directory: Path | None = None) -> None:
        self.path = (directory or notes_directory()) / f"{name}.json"
        self._approval: dict[str, str] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the same command out of other processes of this machine.

        :raises RefusedError: it is running.
        :raises StorageError: the file of the lock cannot be made.
        """
        path = self.path.with_suffix(".lock")
        file = _opened(path)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                pid = os.pread(file, 20, 0).decode(errors="replace").strip() or "not known"
                raise RefusedError(
                    f"the same command is running (process {pid})",
                    hint="wait until it ends; it has the start in its hands",
                ) from e
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
            # The file stays: were it removed, two processes could lock two files of this name.
            yield
        finally:
            os.close(file)

    def notes(self, step: str) -> StepNotes:
        """The notes of one start."""
        return StepNotes(self, step)

    def approve(self, fingerprint: str) -> None:
        """Remember what the run is approved with; it is kept with its first note."""
        time = datetime.now(UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
        self._approval = {"fingerprint": fingerprint, "time": time}

    def approval(self) -> dict[str, str]:
        """The fingerprint of the plan and when it was approved, in UTC; nothing where a note of an older version lacks it."""
        return dict(self._read().get(_APPROVED) or {})

    def load(self) -> dict[str, Any]:
        """The notes of all steps; nothing if there is no file.

        :raises StorageError: the file cannot be read.
        """
        return {step: note for step, note in self._read().items() if step != _APPROVED}

    def _read(self) -> dict[str, Any]:
        try:
            found = load_json(self.path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as e:
            raise StorageError(
                f"{self.path} cannot be read: {e}",
                hint="it shows which update an earlier run has started; check the pipeline's updates before you remove it",
            ) from e
        return dict(found)

    def save(self, notes: dict[str, Any]) -> None:
        """Write all notes, at once, with what the run was approved with."""
        approved = self._approval or self.approval()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(f".{os.getpid()}")
            with temporary.open("w") as file:
                json.dump({**notes, **({_APPROVED: approved} if approved else {})}, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError as e:
            raise StorageError(
                f"{self.path} cannot be written: {e}", hint="set XDG_STATE_HOME to a directory that lasts"
            ) from e

    def forget(self) -> None:
        """Remove the notes: the run is over."""
        self.path.unlink(missing_ok=True)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise StorageError(f"{path} cannot be written: {e}", hint="set XDG_STATE_HOME to a directory that lasts") from e


class StepNotes:
    """One of :class:`~airflow_ckpt_provider.lakeflow.starting.Notes`."""

    def __init__(self, memos: FileMemos, step: str) -> None:
        self._memos, self._step = memos, step

    def load(self) -> dict[str, Any] | None:
        """The note, where there is one."""
        note = self._memos.load().get(self._step)
        return note if isinstance(note, dict) else None

    def save(self, note: dict[str, Any]) -> None:
        """Keep it."""
        self._memos.save({**self._memos.load(), self._step: note})

    def clear(self) -> None:
        """Forget it: nothing was started."""
        left = {step: note for step, note in self._memos.load().items() if step != self._step}
        self._memos.save(left) if left else self._memos.forget()
