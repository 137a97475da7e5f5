"""Where the changes of a checkpoint are kept when nobody names the repository: beside the checkpoint, or beside its pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from airflow_ckpt_provider.backup.beside import default_repository, has_room_beside, repair_place
from airflow_ckpt_provider.backup.flow_path import flow_path
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.history import UNDOABLE, not_undone, records_of
from airflow_ckpt_provider.change.plan import undone_by
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.errors import NoSuchBackupError
from airflow_ckpt_provider.storage.location import Location


def repository_of_change(
    checkpoint: Location, plan_id: str | None = None, *, given: Repository | None = None, stands: bool = False
) -> Repository:
    """Find the repository that keeps a change of a checkpoint.

    Rewinds and resets without a repository are kept in ``<checkpoint>.rewinds``, repairs in ``<checkpoint>.repairs``, resets of a
    flow in ``<storage>.rewinds``.

    :param checkpoint: the checkpoint.
    :param plan_id: the change; by default the one that is half-way, else the newest one.
    :param given: a repository that may keep it as well.
    :param stands: a change that was undone does not count.
    :raises NoSuchBackupError: there is no such repository.
    """
    found = [*([given] if given else []), *repositories_beside(checkpoint)]
    if not found:
        raise NoSuchBackupError(
            f"there is no repository with changes of {checkpoint} beside it",
            hint="name the repository that the change was carried out with (--repository)",
        )
    if len(found) == 1:
        return found[0]
    seal = inspect_target(checkpoint).seal
    wanted = plan_id or (undone_by(seal.plan_id) if seal else None)
    if wanted is not None:
        return next((repository for repository in found if repository.kept_plan(wanted) is not None), found[0])
    return max(found, key=lambda repository: _newest(repository, checkpoint, stands=stands))


def repositories_beside(checkpoint: Location) -> list[Repository]:
    """The repositories beside a checkpoint, and beside the storage of its pipeline where it is one of a flow."""
    return [found for place in places_beside(checkpoint) if (found := Repository.open_if_there(place))]


def places_beside(checkpoint: Location) -> Iterator[Location]:
    """Where these repositories are, if they are there."""
    if has_room_beside(checkpoint):
        yield from (default_repository(checkpoint), repair_place(checkpoint))
    flow = flow_path(checkpoint.root)
    if flow and has_room_beside(storage := Location(checkpoint.store, flow.storage)):
        yield default_repository(storage)


def _newest(repository: Repository, checkpoint: Location, *, stands: bool) -> str:
    """The time of the newest record of a change of a checkpoint, or of an undo; empty if there is none."""
    records: Iterable[dict[str, Any]] = records_of(checkpoint, repository)
    if stands:
        records = not_undone(records, kinds=UNDOABLE)
    return max((str(record["at"]) for record in records), default="")
