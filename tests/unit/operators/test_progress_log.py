"""A line now and then, never one for each file."""

from __future__ import annotations

from typing import Any

from airflow_ckpt_provider.backup.copy_progress import CopyProgress
from airflow_ckpt_provider.operators.progress_log import ProgressLog


class Lines(list[str]):
    """A log that keeps its lines."""

    def info(self, message: str, *values: Any) -> None:
        self.append(message % values)


def _copy(files: int, log: ProgressLog, *, file_size: int = 1024) -> None:
    for done in range(1, files + 1):
        log(CopyProgress(done, files, done * file_size, files * file_size))


def test_a_line_for_every_tenth() -> None:
    lines = Lines()
    _copy(1000, ProgressLog(lines, "Copied", least=0))  # type: ignore[arg-type]
    assert len(lines) == 10
    assert lines[0] == "Copied 100 of 1000 files, 100.0 KiB of 1000.0 KiB (10 %)"
    assert lines[-1] == "Copied 1000 of 1000 files, 1000.0 KiB of 1000.0 KiB (100 %)"


def test_a_line_when_nothing_was_said_for_long() -> None:
    lines = Lines()
    _copy(5, ProgressLog(lines, "Copied", percent=200, most=0, least=0))  # type: ignore[arg-type]
    assert len(lines) == 5


def test_a_short_copy_needs_no_line() -> None:
    lines = Lines()
    _copy(1000, ProgressLog(lines, "Copied", least=3600))  # type: ignore[arg-type]
    assert lines == []


def test_empty_files_count_by_number() -> None:
    lines = Lines()
    _copy(2, ProgressLog(lines, "Copied", least=0), file_size=0)  # type: ignore[arg-type]
    assert lines == ["Copied 1 of 2 files, 0 B of 0 B (50 %)", "Copied 2 of 2 files, 0 B of 0 B (100 %)"]
