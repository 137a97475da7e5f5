"""Objects of which the manifests of a stream say different things: a manifest among them is wrong, and the object may be right.

Whoever may create files can write a manifest that lists the object of a good backup with another size or hash. Such an object is
not rebuilt, and what the forged manifest says of it makes no good backup a damaged one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from airflow_ckpt_provider.backup.content_checks import content_damage, is_computable, structure_damage
from airflow_ckpt_provider.backup.file_entry import OBJECTS, FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest, manifest_path
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.repository_check import readable
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.storage.packs import OBJECT_SHA256

#: What a manifest says of an object: its path, its bytes, its SHA-256 and its store's checksum.
Claim = tuple[str, int, str | None, str | None]
#: Object -> what is said of it -> an entry that says so, and the ids of the backups that do.
Claims = Mapping[str, Mapping[Claim, tuple[FileEntry, list[str]]]]


def claim_of(entry: FileEntry) -> Claim:
    """What an entry says of its object."""
    return entry.object, entry.size, entry.sha256, entry.checksum


def claims_of(repository: Repository, name: str, objects: Collection[str]) -> Claims:
    """What the manifests of a stream that can be read say of some objects; reads them all."""
    found: dict[str, dict[Claim, tuple[FileEntry, list[str]]]] = {path: {} for path in objects}
    for manifest in readable(repository, name, repository.backup_ids(name)) if objects else ():
        for entry in manifest.files if isinstance(manifest, Manifest) else ():
            if entry.object in found:
                ids = found[entry.object].setdefault(claim_of(entry), (entry, []))[1]
                if manifest.backup_id not in ids[-1:]:
                    ids.append(manifest.backup_id)
    return found


def is_manifest_wrong(entry: FileEntry, others: Iterable[FileEntry], is_whole: Callable[[FileEntry], bool]) -> bool:
    """Whether it is the manifest that is wrong, where an object is not what an entry says.

    :param entry: the entry.
    :param others: all entries of the object.
    :param is_whole: whether the object is what another entry says.
    """
    against = [other for other in others if claim_of(other) != claim_of(entry)]
    if name := OBJECT_SHA256.match(entry.object.rpartition("/")[2]):
        right = [other for other in against if other.sha256 == name[0]]
        if entry.sha256 != name[0] and right:
            return True
        against = right if entry.sha256 == name[0] else against
    return any(map(is_whole, against))


def is_whole(repository: Repository, entry: FileEntry) -> bool:
    """Whether an object is proven to be what an entry says: by its hash, or by the word of its store."""
    if not is_computable(entry) and entry.checksum is None:
        return False
    try:
        file = repository.location.find(entry.object)
        if file is not None and structure_damage(entry, file) is not None:
            return False
        if not is_computable(entry):
            return file is not None
        return content_damage(entry, repository.location.read(entry.object)) is None
    except (FileNotFoundError, StorageError):
        return False


def suspects(repository: Repository, claims: Mapping[Claim, tuple[FileEntry, list[str]]]) -> tuple[str, ...]:
    """Ids of the backups whose manifests are wrong about a disputed object; all that list it where that cannot be determined."""
    entries = [entry for entry, _ in claims.values()]
    proven = partial(is_whole, repository)
    wrong = [ids for entry, ids in claims.values() if is_manifest_wrong(entry, entries, proven) and not proven(entry)]
    return tuple(sorted({i for ids in wrong or [ids for _, ids in claims.values()] for i in ids}))


def to_note(repository: Repository, name: str, backup_id: str, damaged: Mapping[str, str]) -> dict[str, str]:
    """What is to be noted of the damage that was found by one backup: the objects; or its manifest, where that is wrong.

    Reads all manifests of the stream if a content was found damaged.

    :param damaged: path in the repository -> problem.
    """
    objects = {path for path, problem in damaged.items() if path.startswith(f"{OBJECTS}/") and problem != "missing"}
    claims = claims_of(repository, name, objects)
    noted: dict[str, str] = {}
    for path, problem in damaged.items():
        of_object = claims.get(path, {}).values()
        entries = [entry for entry, _ in of_object]
        own = [entry for entry, ids in of_object if backup_id in ids]
        wrong = own and all(is_manifest_wrong(entry, entries, partial(is_whole, repository)) for entry in own)
        noted[manifest_path(name, backup_id) if wrong else path] = problem
    return noted
