"""What a checkpoint says of the query that wrote it: sources, stateful operators, schemas of their state, pinned settings.

The checkpoint of a running stream and that of a trial run of new code are read by the same function, so that what is compared
afterwards is what Spark itself has written, and not what somebody thinks it would write.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.checkpoint.commits import COMMITS, parse_commit
from airflow_ckpt_provider.checkpoint.logs import FETCH_IT
from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry, SourceOffset
from airflow_ckpt_provider.checkpoint.operators import STATE, metadata_file, parse_operator_metadata
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, FileOffset, KafkaOffset
from airflow_ckpt_provider.checkpoint.sources import files_read
from airflow_ckpt_provider.checkpoint.state_schema import StoreSchema, parse_store_schemas
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.json_text import load_json


@dataclass(frozen=True, slots=True)
class SourceShape:
    """One source.

    :param source: its position, or its name where sources are named.
    :param kind: ``kafka``, ``delta``, ``file``, …; ``unknown`` where the offset does not show.
    :param reads: what it reads as far as the checkpoint shows: topics, a table's id, directories; empty: not known.
    """

    source: str
    kind: str
    reads: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The source as plain JSON."""
        return {"source": self.source, "kind": self.kind, "reads": list(self.reads)}


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """One stateful operator.

    :param operator_id: its number, counted from the sink.
    :param name: as Spark has it, such as ``stateStoreSave``; ``None`` before Spark 4.0, which writes none.
    :param stores: schemas by store: ``default``, ``left-keyToNumValues``; empty where they are missing.
    :param properties: of ``transformWithState``: ``timeMode``, ``outputMode``.
    :param variables: of ``transformWithState``: state variable -> its type, such as ``ValueState``.
    """

    operator_id: int
    name: str | None
    stores: dict[str, tuple[StoreSchema, ...]]
    properties: dict[str, str]
    variables: dict[str, str]

    def __str__(self) -> str:
        return f"operator {self.operator_id} ({self.name or 'of an unknown name'})"

    def to_json(self) -> dict[str, Any]:
        """The operator as plain JSON."""
        return {
            "id": self.operator_id,
            "name": self.name,
            "stores": {name: [schema.to_json() for schema in found] for name, found in self.stores.items()},
            "properties": self.properties,
            "variables": self.variables,
        }


@dataclass(frozen=True, slots=True)
class QueryShape:
    """A query as its checkpoint shows it.

    :param sources: in the order of the plan.
    :param operators: by their number, the one next to the sink first.
    :param conf: settings pinned in the newest entry of the offset log.
    :param partitions: partitions of the state.
    :param offset_log: version of the offset log.
    :param commit_log: version of the commit log; ``None`` before the first commit.
    """

    sources: tuple[SourceShape, ...]
    operators: tuple[OperatorShape, ...]
    conf: dict[str, str]
    partitions: int | None
    offset_log: int
    commit_log: int | None

    def to_json(self) -> dict[str, Any]:
        """The shape as plain JSON; :meth:`from_json` reads it."""
        return {
            "sources": [source.to_json() for source in self.sources],
            "operators": [operator.to_json() for operator in self.operators],
            "conf": self.conf,
            "partitions": self.partitions,
            "offset_log": self.offset_log,
            "commit_log": self.commit_log,
        }

    @classmethod
    def from_json(cls, value: Any) -> QueryShape:
        """Read what :meth:`to_json` gave.

        :raises ValueError: it is something else.
        """
        try:
            return cls(
                sources=tuple(SourceShape(s["source"], s["kind"], tuple(s["reads"])) for s in value["sources"]),
                operators=tuple(_operator_from(o) for o in value["operators"]),
                conf={str(k): str(v) for k, v in value["conf"].items()},
                partitions=value["partitions"],
                offset_log=int(value["offset_log"]),
                commit_log=value["commit_log"],
            )
        except (KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"no shape of a query ({type(e).__name__}: {e})") from e


def _operator_from(value: dict[str, Any]) -> OperatorShape:
    stores = {
        name: tuple(StoreSchema(s["name"], s["key"], s["value"]) for s in schemas)
        for name, schemas in value["stores"].items()
    }
    return OperatorShape(int(value["id"]), value["name"], stores, dict(value["properties"]), dict(value["variables"]))


def read_query_shape(tree: Tree, entry: OffsetEntry) -> QueryShape:
    """Read the shape of the query that wrote a checkpoint.

    :param tree: the checkpoint's files.
    :param entry: the newest entry of its offset log.
    :raises UnreadableLogError: operator metadata, a schema or the newest commit is damaged.
    """
    committed = [batch for batch in tree.batches(COMMITS) if batch <= entry.batch_id]
    commit = None
    if committed:
        file = tree.files(COMMITS)[str(committed[-1])]
        commit = parse_commit(tree.read(file), batch_id=committed[-1])
    return QueryShape(
        sources=tuple(_source(tree, source, sources=len(entry.sources)) for source in entry.sources),
        operators=tuple(_operator(tree, number, entry.batch_id) for number in tree.numbered_directories(STATE)),
        conf=dict(entry.conf),
        partitions=entry.state_partitions,
        offset_log=entry.version,
        commit_log=commit.version if commit else None,
    )


def _source(tree: Tree, source: SourceOffset, *, sources: int) -> SourceShape:
    match source.offset:
        case KafkaOffset(partitions=partitions):
            reads = tuple(sorted(partitions))
        case DeltaOffset(table_id=table):
            reads = (table,)
        case FileOffset(log_offset=last):
            paths, _ = files_read(tree, source.source, last, sources=sources)
            # Of one file the directory, of many what they have in common: partitioned input has directories below.
            reads = (posixpath.commonpath([posixpath.dirname(path) for path in paths]),) if paths else ()
        case _:
            reads = ()
    return SourceShape(source.source, source.kind, reads)


def _operator(tree: Tree, number: int, batch_id: int) -> OperatorShape:
    # The first batch of a run writes version 2 under its own number, before it is committed.
    file = metadata_file(tree, number, batch_id=batch_id)
    name: str | None = None
    properties: dict[str, str] = {}
    variables: dict[str, str] = {}
    files: dict[str, str] = {}
    if file is not None:
        content = tree.read(file)
        metadata = parse_operator_metadata(content, path=file.path)
        name = metadata.name
        properties, variables = _properties(content, path=file.path)
        # Spark reads the last one named: each change of the schema adds one.
        for uri in metadata.schema_files:
            files[_store_of(uri)] = f"{STATE}/{number}/_stateSchema/{uri.rpartition('/_stateSchema/')[2]}"
    partition = f"{STATE}/{number}/0"
    files |= {
        store: path
        for store, path in (
            ("default", f"{partition}/_metadata/schema"),
            *((d, f"{partition}/{d}/_metadata/schema") for d in tree.directories(partition) if d != "_metadata"),
        )
        if tree.get(path)
    }
    stores = {}
    for store, path in sorted(files.items()):
        schema = tree.get(path)
        if schema is not None:
            stores[store] = parse_store_schemas(tree.read(schema), path=path)
    return OperatorShape(number, name, stores, properties, variables)


def _store_of(uri: str) -> str:
    return uri.rpartition("/_stateSchema/")[2].partition("/")[0]


def _properties(content: bytes, *, path: str) -> tuple[dict[str, str], dict[str, str]]:
    """What ``transformWithState`` writes of itself: its modes, and its state variables with their types."""
    try:
        text = load_json(content.partition(b"\n")[2]).get("operatorPropertiesJson")
        found = load_json(text) if text else {}
        given = found.get("stateVariables") or ()
        listed = load_json(given) if isinstance(given, str) else given
        variables = {str(v["stateName"]): str(v["stateVariableType"]) for v in listed}
        return {k: str(found[k]) for k in ("timeMode", "outputMode") if k in found}, variables
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UnreadableLogError(
            f"{path}: not readable properties of an operator ({type(e).__name__}: {e})",
            path=path,
            hint=FETCH_IT,
        ) from e
