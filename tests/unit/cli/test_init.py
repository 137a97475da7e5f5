"""``init`` of a repository that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import run


@pytest.mark.format_1
def test_the_format_is_changed_permanently_and_the_output_says_so(tmp_path: Path) -> None:
    repository = tmp_path / "backups"
    assert run("init", repository).code == 0
    assert "There is a repository already:" in run("init", repository).out
    changed = run("init", repository, "--format", "2")
    assert (changed.code, "Changed the format, which cannot be undone:" in changed.out) == (0, True)
    assert "There is a repository already:" in run("init", repository, "--format", "2").out
    assert run("init", repository, "--format", "1").code == 1
