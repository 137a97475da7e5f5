"""A copy that takes the place of one that a prune gave up, on each store: it replaces what it listed, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_ckpt_provider.backup.copy import copy_backups
from airflow_ckpt_provider.backup.prune import apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import GIVEN_UP, Repository
from airflow_ckpt_provider.backup.repository_check import check_repository
from airflow_ckpt_provider.backup.verify import ReadData, verify_backup
from airflow_ckpt_provider.errors import BackupRunningError
from tests.support.backups import back_up, stream
from tests.support.repository_histories import opened
from tests.support.stores_under_test import Place
from tests.support.watched_stores import in_memory, watched


@pytest.mark.parametrize("operation", ["find", "replace_listed"])
def test_it_wakes_up_and_fails_and_the_next_takes_the_place(place: Place, operation: str) -> None:
    location, source = place.location, in_memory()
    made = [back_up(source, stream(newest)).manifest for newest in (4, 5)]
    target = Repository.open_or_create(location / "second")
    copy_backups(opened(source), target, made[:1])
    target.location.create(made[1].path, GIVEN_UP)
    before = set(target.location.walk("objects"))
    suspended: list[str] = []

    def suspend(asked: str, path: str) -> None:
        if asked == operation and path.endswith(made[1].path) and not suspended:
            suspended.append(path)
            apply_prune(target, plan_prune(target), abandoned_after=timedelta(0))
            assert set(target.location.walk("objects")) == before

    seen, _ = watched(location / "second", suspend)
    with pytest.raises(BackupRunningError, match="a prune has given this backup up"):
        copy_backups(opened(source), Repository(seen, target.repository_id, target.format), made[1:])
    assert suspended
    assert target.location.read(made[1].path) == GIVEN_UP
    assert target.backup_ids("orders") == (made[0].backup_id,)
    assert check_repository(target).ok
    copy_backups(opened(source), target, made)
    assert target.backup_ids("orders") == tuple(m.backup_id for m in made)
    assert all(verify_backup(target, m, read_data=ReadData()).ok for m in target.backups("orders"))
