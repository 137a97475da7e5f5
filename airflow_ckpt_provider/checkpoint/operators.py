"""Stateful operators: what ``state/<op>/_metadata`` says of them, and which partitions and stores they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.logs import FETCH_IT, batch_id_of
from airflow_ckpt_provider.checkpoint.state_files import RESERVED, holds_state, oldest_version
from airflow_ckpt_provider.checkpoint.state_schema import may_have_one_partition, parse_key_schema
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.store import StoredFile

STATE = "state"
#: The store whose files lie directly in the partition's directory.
DEFAULT_STORE = "default"
#: Order of ids in ``commits/N`` for the four stores of join state formats 1 and 2.
JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)


@dataclass(frozen=True, slots=True)
class OperatorMetadata:
    """``_metadata/metadata`` (version 1, Spark 4.0+) or ``_metadata/v2/<batch>`` (transformWithState, joins 3 and 4).

    :param name: name of the operator, such as ``stateStoreSave``.
    :param partitions: number of partitions when it was written; an offline repartition does not update version 1.
    :param schema_files: absolute URIs of state schema files, of the checkpoint's place at that time (version 2 only).
    """

    name: str
    partitions: int | None
    schema_files: tuple[str, ...]


def parse_operator_metadata(data: bytes, *, path: str) -> OperatorMetadata:
    """Parse an operator metadata file.

    :raises UnreadableLogError: it is not one.
    """
    try:
        content: dict[str, Any] = load_json(data.partition(b"\n")[2])
        stores = content["stateStoreInfo"]
        schemas = tuple(uri for s in stores for uri in s.get("stateSchemaFilePaths") or ())
        if not all(isinstance(uri, str) for uri in schemas):
            raise ValueError(f"stateSchemaFilePaths are {schemas!r:.80}")
        return OperatorMetadata(
            name=str(content["operatorInfo"]["operatorName"]),
            partitions=max((int(s["numPartitions"]) for s in stores), default=None),
            schema_files=schemas,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as e:
        raise UnreadableLogError(
            f"{path}: not readable operator metadata ({type(e).__name__}: {e})",
            path=path,
            hint=FETCH_IT,
        ) from e


def metadata_file(tree: Tree, operator: int, *, batch_id: int) -> StoredFile | None:
    """The metadata file of an operator that holds for ``batch_id``: the newest of version 2 up to it, else version 1."""
    directory = f"{STATE}/{operator}/_metadata"
    versions = {b: f for name, f in tree.files(f"{directory}/v2").items() if (b := batch_id_of(name)) is not None}
    held = [b for b in versions if b <= batch_id]
    return versions[max(held)] if held else tree.get(f"{directory}/metadata")


def operator_metadata(tree: Tree, operator: int, *, batch_id: int) -> OperatorMetadata | None:
    """Read :func:`metadata_file`; ``None`` if there is none (Spark 3.5 and older)."""
    file = metadata_file(tree, operator, batch_id=batch_id)
    return parse_operator_metadata(tree.read(file), path=file.path) if file else None


def partitions(tree: Tree, operator: int, *, logged: int | None, batch_id: int | None) -> tuple[int, ...]:
    """Partitions an operator has to have.

    The offset log shows, not the directories: a repartition leaves old ones, a torn copy lacks some. Where all rows go
    to one partition, the schema of the keys hints at it, and it is true only if no other partition has state.

    :param logged: number of state partitions in the batch's log entries.
    :param batch_id: the batch; ``None`` if none is known.
    """
    if _has_one_partition(tree, operator, logged=logged, batch_id=batch_id):
        return (0,)
    return tuple(range(logged)) if logged else tuple(tree.numbered_directories(f"{STATE}/{operator}"))


def _has_one_partition(tree: Tree, operator: int, *, logged: int | None, batch_id: int | None) -> bool:
    schema = tree.get(f"{STATE}/{operator}/0/_metadata/schema")
    if schema is None:
        return False
    key = parse_key_schema(tree.read(schema), path=schema.path)
    if not may_have_one_partition(key, _operator_name(tree, operator)):
        return False
    newest = None if batch_id is None else batch_id + 1
    return not any(
        has_state_up_to(tree, operator, partition, newest)
        for partition in tree.numbered_directories(f"{STATE}/{operator}")
        if partition > 0 and (logged is None or partition < logged)
    )


def _operator_name(tree: Tree, operator: int) -> str | None:
    """The name in metadata of version 1: operators with one partition have no other."""
    file = tree.get(f"{STATE}/{operator}/_metadata/metadata")
    try:
        return parse_operator_metadata(tree.read(file), path=file.path).name if file else None
    except UnreadableLogError:
        return None  # Spark does not need the file for a start


def has_state_up_to(tree: Tree, operator: int, partition: int, version: int | None) -> bool:
    """Whether a partition has a state file of a version or of one before it.

    :param version: the version; ``None``: any.
    """
    root = f"{STATE}/{operator}/{partition}"
    for directory in (root, *(f"{root}/{name}" for name in tree.directories(root) if name not in RESERVED)):
        oldest = oldest_version(tree.files(directory))
        if oldest is not None and (version is None or oldest <= version):
            return True
    return False


def stores(tree: Tree, operator: int, in_partitions: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the stores of an operator, as found in any of its partitions; every partition must have all of them."""
    found: set[str] = set()
    for partition in in_partitions:
        directory = f"{STATE}/{operator}/{partition}"
        if holds_state(tree.files(directory)):
            found.add(DEFAULT_STORE)
        found.update(name for name in tree.directories(directory) if name not in RESERVED)
    # A join of formats 1 and 2 has all four, even where a torn copy shows none of one.
    return JOIN_STORES if found & set(JOIN_STORES) else tuple(sorted(found))


def store_directory(operator: int, partition: int, store: str) -> str:
    """Directory of a store, relative to the checkpoint."""
    directory = f"{STATE}/{operator}/{partition}"
    return directory if store == DEFAULT_STORE else f"{directory}/{store}"
