"""Backups with the dates and tags that a test wants, made of real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider.backup.expire_plan import ExpirePlan, plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest, new_backup_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import back_up, repository, stream

#: When the newest backup of a history is made, in these tests' time.
NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)


def dated(
    place: Location,
    ages: Mapping[str, timedelta],
    *,
    tags: Mapping[str, Mapping[str, str]] | None = None,
    after: Mapping[str, timedelta] | None = None,
) -> dict[str, Manifest]:
    """Make a backup for each age (a word of the test's for it -> how long before :data:`NOW`); all share their objects.

    :param tags: of some, by the same words.
    :param after: by how much the id of some is later than the time, as after a backup of a clock that was ahead.
    """
    first = back_up(place, stream()).manifest
    place_of = place / "backups"
    found = {}
    for word, age in ages.items():
        created = NOW - age
        made = replace(
            first,
            backup_id=new_backup_id(created + (after or {}).get(word, timedelta(0)), first.batch_id),
            created=created,
            tags=(tags or {}).get(word, {}),
            claim="",
        )
        place_of.create(made.path, made.to_document())
        found[word] = made
    place_of.delete(first.path)
    return found


def left(place: Location, made: Mapping[str, Manifest]) -> set[str]:
    """The words of the backups that are still there."""
    ids = set(opened(place).backup_ids("orders"))
    return {word for word, manifest in made.items() if manifest.backup_id in ids}


def opened(place: Location) -> Repository:
    return repository(place)


#: A backup of each of the last five days.
DAYS = {f"day{n}": timedelta(days=n) for n in range(5)}


def plan(place: Location, policy: Policy, **options: Any) -> ExpirePlan:
    """Plan an expire an hour after the newest backup of a history."""
    return plan_expire(opened(place), policy, **{"now": NOW + timedelta(hours=1), **options})


def why(made: ExpirePlan, manifest: Manifest) -> tuple[str, ...]:
    """Why a plan keeps a backup, or lets it go."""
    (found,) = (d.reasons for d in made.decisions if d.backup.backup_id == manifest.backup_id)
    return found
