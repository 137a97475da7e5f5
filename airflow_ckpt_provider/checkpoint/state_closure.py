"""Which files version V of one store needs, for each way that Spark keeps state."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.logs import refuse_empty
from airflow_ckpt_provider.checkpoint.rocksdb import lineage, shared_files
from airflow_ckpt_provider.checkpoint.state_files import StateFiles, StateVersion, state_files
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import MissingFileError, RefusedError
from airflow_ckpt_provider.storage.store import StoredFile

_LOST = "Spark cannot load this version either; restore a backup, or rewind to a batch whose state is whole"


def store_closure(
    tree: Tree, directory: str, version: StateVersion, *, provider: str, codec: str
) -> tuple[StoredFile, ...]:
    """Return the files that Spark reads to load ``version`` of the store in ``directory``, checksum side files included.

    :param provider: class of the state store provider, from the offset log.
    :param codec: compression of state files, from the offset log.
    :raises MissingFileError: a needed file is missing; a live checkpoint's maintenance may have just replaced it.
    :raises UnreadableLogError: a needed file is empty, or does not say which others are needed.
    :raises RefusedError: the provider is not known.
    """
    files = state_files(directory, tree.files(directory))
    if "HDFSBacked" in provider:
        needed = _hdfs_backed(files, version)
    elif "RocksDB" not in provider:
        raise RefusedError(
            f"{directory}: the state store provider {provider} is not known here, so its files cannot be distinguished",
            hint="stop the query and copy the whole checkpoint, or report the provider",
        )
    elif version.unique_id is None:
        needed = _rocksdb(tree, files, version)
    else:
        needed = _rocksdb_with_lineage(tree, files, version, codec)
    for main in needed:
        refuse_empty(main)
    return tuple(file for main in needed for file in _with_checksum_file(tree, main))


def contents_needed(
    tree: Tree, directory: str, version: StateVersion, *, provider: str, codec: str
) -> list[StoredFile]:
    """Files whose contents :func:`store_closure` will read next and that are not in hand yet; for reading them together."""
    there = tree.files(directory)
    if "RocksDB" not in provider or not (version.unique_id or any(name.endswith(".zip") for name in there)):
        return []
    files = state_files(directory, there)
    wanted: StoredFile | None
    if version.unique_id is None:
        base = max((v for v in files.zips if v.unique_id is None and v <= version), default=None)
        wanted = files.zips[base] if base else None
    elif version in files.zips:
        wanted = files.zips[version]
    else:
        wanted = files.changelogs.get(version)
        content = tree.content_in_hand(wanted) if wanted else None
        if wanted and content is not None:
            before = lineage(content, codec=codec, path=wanted.path)
            wanted = next((files.zips[v] for v in reversed(before) if v in files.zips), None)
    return [wanted] if wanted and tree.content_in_hand(wanted) is None else []


def _hdfs_backed(files: StateFiles, version: StateVersion) -> list[StoredFile]:
    base = max((v.number for v in files.snapshots if v.unique_id is None and v <= version), default=0)
    needed = [files.snapshots[StateVersion(base)]] if base else []
    for number in range(base + 1, version.number + 1):
        if StateVersion(number) not in files.deltas:
            raise _missing(f"{files.directory}/{number}.delta", version)
        needed.append(files.deltas[StateVersion(number)])
    return needed


def _rocksdb(tree: Tree, files: StateFiles, version: StateVersion) -> list[StoredFile]:
    base = max((v.number for v in files.zips if v.unique_id is None and v <= version), default=0)
    needed = _snapshot(tree, files, StateVersion(base)) if base else []
    for number in range(base + 1, version.number + 1):
        if StateVersion(number) not in files.changelogs:
            raise _missing(f"{files.directory}/{number}.changelog", version)
        needed.append(files.changelogs[StateVersion(number)])
    return needed


def _rocksdb_with_lineage(tree: Tree, files: StateFiles, version: StateVersion, codec: str) -> list[StoredFile]:
    if version in files.zips:
        return _snapshot(tree, files, version)
    if version not in files.changelogs:
        raise _missing(f"{files.directory}/{version}.changelog", version)
    newest = files.changelogs[version]
    before = lineage(tree.read(newest), codec=codec, path=newest.path)
    snapshots = [v for v in before if v in files.zips]
    if snapshots:
        needed = _snapshot(tree, files, snapshots[-1])
        replayed = [v for v in before if v > snapshots[-1]]
    elif (before or (version,))[0].number == 1:
        needed, replayed = [], list(before)
    else:
        raise _missing(f"{files.directory}/{before[0] if before else version}.zip", version)
    for earlier in replayed:
        if earlier not in files.changelogs:
            raise _missing(f"{files.directory}/{earlier}.changelog", version)
        needed.append(files.changelogs[earlier])
    return [*needed, newest]


def _snapshot(tree: Tree, files: StateFiles, version: StateVersion) -> list[StoredFile]:
    """A zip and the table files it shares with others; these first, as Spark writes them."""
    archive = files.zips[version]
    try:
        content = tree.read(archive)
    except FileNotFoundError:
        raise _missing(archive.path, version) from None
    needed = []
    for shared in shared_files(content, path=archive.path):
        path = f"{files.directory}/{shared.name}"
        file = tree.get(path)
        if file is None:
            raise _missing(path, version)
        if file.size != shared.size:
            raise MissingFileError(
                f"{path}: has {file.size} bytes, {archive.path} needs {shared.size}", path=path, hint=_LOST
            )
        needed.append(file)
    return [*needed, archive]


def _with_checksum_file(tree: Tree, file: StoredFile) -> list[StoredFile]:
    """A file with its visible ``<file>.crc`` (Spark 4.1+), which Spark verifies it against."""
    checksum = tree.get(f"{file.path}.crc")
    return [file, checksum] if checksum else [file]


def _missing(path: str, version: StateVersion) -> MissingFileError:
    return MissingFileError(f"{path} is missing, state version {version.number} needs it", path=path, hint=_LOST)
