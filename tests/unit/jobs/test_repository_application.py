"""The Spark applications on a repository open the one that they were sent for."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError, RepositoryError, StorageError
from airflow_ckpt_provider.jobs import copy_closure, restore_contents, verify_contents
from airflow_ckpt_provider.jobs.exit_codes import exit_code_of
from airflow_ckpt_provider.jobs.repository_application import open_repository
from airflow_ckpt_provider.storage.opening import open_location

#: Application -> places that it is given beside the repository.
APPLICATIONS: dict[ModuleType, tuple[tuple[str, ...], tuple[str, ...]]] = {
    copy_closure: (("/checkpoint",), ()),
    restore_contents: ((), ("/checkpoint",)),
    verify_contents: ((), ()),
}
#: A place on the local disk needs nothing of a session.
NO_SPARK: Any = None


@pytest.mark.parametrize("application", APPLICATIONS, ids=lambda each: each.__name__.rpartition(".")[2])
def test_another_repository_is_refused(application: ModuleType, tmp_path: Path) -> None:
    """A driver may have another place mounted there than the task that submits it."""
    repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    before, after = APPLICATIONS[application]
    words = [*before, repository.location.uri, *after]
    same = application._parser().parse_args([*words, f"--repository-id={repository.repository_id}"])
    reached, opened = open_repository(NO_SPARK, same)
    assert (reached.repository_id, opened.repository_id) == (repository.repository_id, repository.repository_id)
    other = application._parser().parse_args([*words, "--repository-id=another"])
    with pytest.raises(RepositoryError, match=f"is repository {repository.repository_id}, and repository another is"):
        open_repository(NO_SPARK, other)


@pytest.mark.parametrize(("error", "code"), [(RefusedError("no"), 1), (StorageError("away"), 3), (None, 7)])
def test_the_exit_code(error: Exception | None, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        if error:
            raise error
        return 7

    assert exit_code_of(work) == code
    assert capsys.readouterr().err.strip() == (str(error) if error else "")
