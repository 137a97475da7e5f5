"""Repositories of format 2, for tests that need one."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping

from fsspec.implementations.memory import MemoryFile

from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.expire_plan import plan_expire
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.pack_file import PackBuilder
from airflow_ckpt_provider.backup.prune import MaxUnused, PruneOutcome, apply_prune, plan_prune
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.retention import Policy
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, pack_size, part_of
from tests.support.backups import back_up, stream
from tests.support.checkpoints import Files, contents


def packed_repository(place: Location, **options: bytes) -> Repository:
    """Make ``place/backups`` of format 2."""
    backups = Location(place.store, f"{place.root}/backups", **options)  # type: ignore[arg-type]
    return Repository.open_or_create(backups, format=2)


def packs_of(repository: Repository, name: str = "orders") -> list[str]:
    """Paths of the packs of a stream."""
    return [path for path in repository.location.walk(f"objects/{name}") if pack_size(path) is not None]


def of_pack(manifest: Manifest, pack: str) -> list[str]:
    """Paths in the checkpoint of the files of a backup whose contents lie in a pack."""
    return [e.path for e in manifest.files if (part := part_of(e.object)) and part.pack == pack]


def restorable(repository: Repository, manifest: Manifest) -> Files:
    """What can be read of a backup, and is what its manifest says."""
    from airflow_ckpt_provider.backup.content_checks import content_damage
    from airflow_ckpt_provider.errors import StorageError

    found = {}
    for entry in manifest.files:
        try:
            content = repository.location.read(entry.object)
        except (FileNotFoundError, StorageError):
            continue
        if content_damage(entry, content) is None:
            found[entry.path] = content
    return found


def with_big_files(files: Mapping[str, bytes], *, count: int = 2) -> Files:
    """The files, and some that are too big for a pack, where Spark looks for nothing but carries them."""
    made = random.Random(1)
    return {**files, **{f"_schema/big{n}": made.randbytes(600_000) for n in range(count)}}


def restored(repository: Repository, manifest: Manifest, target: Location) -> Files:
    """Restore a backup to an empty place; what is there then."""
    from airflow_ckpt_provider.recovery.restore.apply import apply_restore
    from airflow_ckpt_provider.recovery.restore.planning import plan_restore

    apply_restore(plan_restore(repository, manifest, target))
    return contents(target)


def expire_and_prune(repository: Repository, *, last: int = 1, may_stay: int = 0) -> PruneOutcome:
    """Keep the last backups only, and delete what the others needed.

    :param may_stay: bytes that nobody needs and may stay in packs.
    """
    apply_expire(repository, plan_expire(repository, Policy(last=last)))
    return apply_prune(repository, plan_prune(repository, max_unused=MaxUnused(may_stay)))


def mostly_garbage(place: Location) -> tuple[Repository, Manifest]:
    """A repository whose first pack is mostly garbage, and its only backup."""
    repository = packed_repository(place)
    back_up(place, {**stream(4), **{f"_schema/{n}": bytes([n]) * 5000 for n in range(8)}})
    for n in range(8):
        (place / "orders").delete(f"_schema/{n}")
    made = back_up(place, stream(6)).manifest
    apply_expire(repository, plan_expire(repository, Policy(last=1)))
    return repository, made


def flip(data: bytes, at: int) -> bytes:
    """The content with one bit of a byte changed."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def plant_beside(repository: Repository, path: str) -> None:
    """Write a file of its own under the path of a content in a pack, which only object stores can have beside the pack."""
    place = repository.location
    MemoryFile(place.store.fs, f"{place.root}/{path}", place.read(path)).commit()  # type: ignore[attr-defined]
    assert path in place.walk("objects")


def rot(files: Location, path: str, *, encrypted: bool = False) -> None:
    """Change a bit of an object, on its disk; of one in a pack of its part, or where that is encrypted of the pack."""
    part = part_of(path)
    if file_of(path) not in files.walk("objects") or (part and not part.length):
        return
    content = files.read(file_of(path))
    at = (part.end if part and not encrypted else len(content)) - 1
    if 0 <= at < len(content):
        files.replace(file_of(path), content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def cut_off(files: Location, path: str) -> None:
    """Cut the last byte of an object off; of one in a pack with all that comes behind it."""
    part = part_of(path)
    if file_of(path) in files.walk("objects"):
        content = files.read(file_of(path))
        files.replace(file_of(path), content[: part.end - 1 if part else -1])


def planted_pack(repository: Repository, *contents_: bytes) -> str:
    """A pack that is right in itself, and that no backup lists."""
    builder = PackBuilder()
    for each in contents_:
        builder.add(each, hashlib.sha256(each).hexdigest())
    data = builder.sealed()
    path = f"objects/orders/aa/{hashlib.sha256(data).hexdigest()}-{len(data)}.pack"
    repository.location.create(path, data)
    return path
