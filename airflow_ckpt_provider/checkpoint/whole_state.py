"""Can a version of one store be put together, when damaged files do not count? What the doctor says and a repair relies on."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_ckpt_provider.checkpoint.rocksdb import shared_files
from airflow_ckpt_provider.checkpoint.state_closure import store_closure
from airflow_ckpt_provider.checkpoint.state_contents import content_damage, crc32c, is_self_checking, parse_checksum
from airflow_ckpt_provider.checkpoint.state_files import StateVersion, state_files
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import MissingFileError, NotJudgedError, UnreadableLogError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.store import StoredFile

#: Requests under way at once.
_READERS = 16


@dataclass(frozen=True, slots=True)
class WholeState:
    """What a version of a store can be put together from.

    :param files: the files; ``None`` where it cannot be put together.
    :param missing: path of the file that it fails for, and why.
    :param damaged: path -> what is wrong, of files that Spark would read and that do not count.
    :param not_judged: why some of it is not judged: it may be whole or damaged; ``None``: all of it is judged.
    :param stale_checksums: path of a checksum file -> what is wrong, where its state file is whole by its own checksums.
    """

    files: tuple[StoredFile, ...] | None
    missing: tuple[str, str] | None = None
    damaged: dict[str, str] = field(default_factory=dict)
    stale_checksums: dict[str, str] = field(default_factory=dict)
    not_judged: str | None = None


def whole_state(
    tree: Tree, directory: str, version: StateVersion, *, provider: str, codec: str, contents: bool = True
) -> WholeState:
    """Put a version together from files that are whole.

    :param tree: the checkpoint's files.
    :param directory: the store's directory.
    :param version: the version.
    :param provider: class of the state store provider.
    :param codec: compression of state files.
    :param contents: whether to read the files; else only listings and the contents of snapshots' zips tell.
    :raises RefusedError: the provider is not known.
    :raises FileNotFoundError: a file vanished since it was listed.
    """
    damaged: dict[str, str] = {}
    while True:
        try:
            files = store_closure(tree, directory, version, provider=provider, codec=codec)
        except NotJudgedError as e:
            return WholeState(None, None, damaged, not_judged=e.message)
        except UnreadableLogError as e:
            worse = {e.path: e.message.removeprefix(f"{e.path}: ")}
        except MissingFileError as e:
            worse = incomplete_zips(tree, directory, version)
            if not worse:
                return WholeState(None, (e.path, e.message), damaged)
        else:
            try:
                worse, stale = damage_of(tree, files, codec) if contents else ({}, {})
            except NotJudgedError as e:
                return WholeState(files, None, damaged, not_judged=e.message)
            if not worse:
                return WholeState(files, None, damaged, stale)
        damaged |= worse
        tree = tree.without([*worse, *(f"{path}.crc" for path in worse)])


def incomplete_zips(tree: Tree, directory: str, version: StateVersion) -> dict[str, str]:
    """Snapshots up to a version whose table files are not all there: Spark takes the newest and fails."""
    incomplete = {}
    for of, archive in state_files(directory, tree.files(directory)).zips.items():
        if of.number > version.number:
            continue
        try:
            needed = shared_files(tree.read(archive), path=archive.path)
        except UnreadableLogError as e:
            incomplete[archive.path] = e.message.removeprefix(f"{archive.path}: ")
            continue
        for shared in needed:
            file = tree.get(f"{directory}/{shared.name}")
            if file is None or file.size != shared.size:
                has = "is missing" if file is None else f"has {file.size} bytes instead of {shared.size}"
                incomplete[archive.path] = f"{shared.name}, which it needs, {has}"
    return incomplete


def damage_of(tree: Tree, files: tuple[StoredFile, ...], codec: str) -> tuple[dict[str, str], dict[str, str]]:
    """Files that are damaged, and checksum files that do not match a file that is whole.

    :raises NotJudgedError: the compression of one cannot be undone here, and none of the others is damaged.
    """
    checksums = {file.path for file in files if file.path.endswith(".crc")}
    read = [f for f in files if f.path not in checksums and "/SSTs/" not in f.path and "/logs/" not in f.path]

    not_judged: list[NotJudgedError] = []

    def judged(file: StoredFile) -> tuple[str | None, str | None]:
        beside = tree.get(f"{file.path}.crc")
        key = (file.path, file.identity, file.size, beside and beside.identity)
        if file.identity is None or key not in tree.judged:
            data = tree.read_once(file)
            try:
                damage = content_damage(data, path=file.path, codec=codec)
            except NotJudgedError as e:
                not_judged.append(e)
                return None, None
            checksum = f"{file.path}.crc"
            mismatch = _mismatch(tree, checksum, data) if checksum in checksums and not damage else None
            if mismatch and not is_self_checking(file.path, codec=codec):
                damage, mismatch = f"{mismatch} in {checksum}", None
            tree.judged[key] = damage, mismatch
        found: tuple[str | None, str | None] = tree.judged[key]
        return found

    found = list(zip(read, in_parallel(judged, read, workers=_READERS), strict=True))
    damaged = {file.path: damage for file, (damage, _) in found if damage}
    if not_judged and not damaged:
        raise min(not_judged, key=str)
    return damaged, {f"{file.path}.crc": mismatch for file, (_, mismatch) in found if mismatch}


def _mismatch(tree: Tree, path: str, data: bytes) -> str | None:
    file = tree.get(path)
    if file is None:
        return None
    try:
        checksum = parse_checksum(tree.read(file))
    except ValueError as e:
        return str(e)
    if checksum.size != len(data):
        return f"the file has {len(data)} bytes, not {checksum.size}"
    value = crc32c(data)
    return None if value == checksum.value else f"the file's CRC-32C is {value:08x}, not {checksum.value:08x}"
