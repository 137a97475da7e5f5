"""Repositories in which contents were moved to other packs, and what is done to them."""

from __future__ import annotations

from datetime import timedelta

from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.prune import MaxUnused, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repack import repack
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, part_of, read_moved
from tests.support.packs import mostly_garbage


def moved_once(place: Location) -> tuple[Repository, Manifest]:
    """A repository whose only backup lists contents that were moved, and the pack that its manifest names is gone."""
    repository, made = mostly_garbage(place)
    apply_prune(repository, plan_prune(repository))
    assert read_moved(repository.location, "orders").paths
    return repository, made


def flip(repository: Repository, path: str) -> None:
    """Change a bit of a content in a pack."""
    part = part_of(path)
    assert part is not None
    assert part.length
    data = bytearray(repository.location.read(part.pack))
    data[part.start] ^= 1
    repository.location.replace(part.pack, bytes(data))


def prune(repository: Repository) -> None:
    """Prune so that no garbage stays in packs, and give up at once whoever has not ended."""
    apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(0)), abandoned_after=timedelta(0))


def moved_twice(place: Location) -> tuple[Repository, Manifest, FileEntry, set[str]]:
    """What `moved_once` makes, moved again: with a content of it, and the packs that it was in first, which are still there."""
    repository, made = moved_once(place)
    first = {file_of(to) for to in read_moved(repository.location, "orders").paths.values()}
    assert repack(repository, "orders", first, made_by="a test")[0] == first
    moved = read_moved(repository.location, "orders")
    return repository, made, next(e for e in made.files if e.object in moved.paths and e.size), first


def repacked(place: Location) -> tuple[Repository, Manifest, str, FileEntry]:
    """A repository with one backup; the pack that it lists was packed anew and is still there. That pack, and a content of it."""
    repository, made = mostly_garbage(place)
    (pack,) = plan_prune(repository).streams[0].repacked
    assert repack(repository, "orders", [pack], made_by="a test")[0] == {pack}
    return repository, made, pack, next(e for e in made.files if file_of(e.object) == pack and e.size)
