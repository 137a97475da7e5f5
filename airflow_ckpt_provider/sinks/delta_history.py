"""What a Delta table's log says about one streaming query: which batches are in the table, and what others wrote.

Read straight from ``_delta_log/<version>.json``, without a client: a commit is a few lines of JSON (Delta's PROTOCOL.md), of
which only ``txn``, ``commitInfo``, ``protocol``, ``metaData`` and the ``dataChange`` of ``add`` and ``remove`` matter here.

Delta remembers ``txn(appId = query id, version = batch id)`` and skips every batch up to it silently. ``RESTORE`` by Spark
writes no ``txn``, so the table's content and its memory can differ. Both are worked out here, each by folding the log.
With ``delta.setTransactionRetentionDuration`` Delta forgets a ``txn`` by its ``lastUpdated``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.guards.delta_log import (
    CATALOG_MANAGED,
    DELTA_LOG,
    commit_path,
    commit_time,
    fields_of,
    read_actions,
    read_delta_log,
    rows_of,
    time_of,
)
from airflow_ckpt_provider.guards.delta_vector import vector_path
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.storage.location import Location

#: What our own rollback writes into ``commitInfo``, so that a run that was killed finds it.
PLAN_KEY = "airflowCkptPlan"
#: Takes files out of a table that are lost.
FSCK = "FSCK"
#: Operations that write the rows again that they leave in a table, where they take a whole file out of it.
_BY_ROW = frozenset({"DELETE", "UPDATE", "MERGE"})
#: No version at all; -1 is the emptiness before version 0.
NO_VERSION = -2


def read_table_history(table: Location) -> TableHistory:
    """Read a table's log.

    :param table: the table's directory.
    :raises RefusedError: there is no Delta table.
    :raises UnreadableLogError: a commit cannot be parsed, or one in the middle is missing.
    """
    log = read_delta_log(table)
    versions = list(log.commits)
    if not versions:
        raise RefusedError(
            f"{table} is not a Delta table: it has no commits in {DELTA_LOG}/",
            hint="give the directory that the stream writes to",
        )
    # After a clean-up the log begins somewhere; below a hole nothing counts.
    start = next((i + 1 for i in range(len(versions) - 2, -1, -1) if versions[i] + 1 != versions[i + 1]), 0)
    raw = in_parallel(lambda version: _actions(table, version), versions[start:])
    commits: list[TableCommit] = []
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    settings: Mapping[str, str] = {}
    features: frozenset[str] = frozenset()
    files = _Files()
    for version, actions in zip(versions[start:], raw, strict=True):
        with fields_of(f"{table}/{commit_path(version)}"):
            changes = [action for action in actions if "metaData" in action or "protocol" in action]
            for action in changes:
                metadata, protocol = action.get("metaData") or metadata, action.get("protocol") or protocol
            settings = _settings(metadata or {}, protocol or {}) if changes else settings
            features = features_of(metadata or {}, protocol or {}) if changes else features
            commits.append(_commit(version, actions, files, settings, is_whole=versions[start] == 0))
    return TableHistory(
        table.uri,
        tuple(commits),
        (metadata or {}).get("id"),
        features,
        {key: str(value) for key, value in ((metadata or {}).get("configuration") or {}).items()},
        doubt=doubt_of(features, staged="" if protocol else log.staged),
        is_described=metadata is not None and protocol is not None,
    )


def doubt_of(features: frozenset[str], *, staged: str = "") -> str | None:
    """Why the newest versions may be elsewhere: the catalog of such a table keeps commits that are not in its log yet.

    :param features: of the table.
    :param staged: see :class:`~airflow_ckpt_provider.guards.delta_log.DeltaLog`; empty where the features are all known: a table
        that has lost the feature keeps the directory.
    """
    managed = sorted(features & CATALOG_MANAGED)
    if not managed and not staged:
        return None
    has = f"the table has the feature {managed[0]}" if managed else f"{DELTA_LOG}/{staged} has commits of a catalog"
    return f"{has}: its newest versions may not be in its log; name the table, not its directory"


def features_of(metadata: Mapping[str, Any], protocol: Mapping[str, Any]) -> frozenset[str]:
    """Table features that are named, and those that a table uses under a protocol version that does not name them."""
    named = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    if str((metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")).lower() != "none":
        named.add("columnMapping")
    if '"delta.identity.' in str(metadata.get("schemaString", "")):
        named.add("identityColumns")
    return frozenset(named)


def changed_settings(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Setting -> how it changes between two versions, in words."""

    def words(name: str) -> str:
        if name not in before:
            return f"{name} = {after[name]} (added)"
        if name not in after:
            return f"{name} = {before[name]} (removed)"
        return f"{name} = {before[name]} -> {after[name]}"

    names = sorted({*before, *after})
    return {name: words(name) for name in names if before.get(name) != after.get(name)}


def _settings(metadata: Mapping[str, Any], protocol: Mapping[str, Any]) -> dict[str, str]:
    """What ``RESTORE`` changes besides rows: properties, columns, protocol. Flat, so that two versions can be compared."""
    found = {f"property {key}": str(value) for key, value in (metadata.get("configuration") or {}).items()}
    try:
        fields = load_json(metadata.get("schemaString") or "{}").get("fields", ())
        for column in fields:
            comment = json.dumps(column.get("metadata") or {}, sort_keys=True)
            null = "" if column.get("nullable", True) else " NOT NULL"
            kind = column["type"] if isinstance(column["type"], str) else json.dumps(column["type"], sort_keys=True)
            found[f"column {column['name']}"] = f"{kind}{null}{'' if comment == '{}' else f' {comment}'}"
    except (ValueError, KeyError, TypeError, AttributeError):
        found["schema"] = str(metadata.get("schemaString"))
    for name in ("name", "description", "partitionColumns"):
        if metadata.get(name):
            found[name] = str(metadata[name])
    for name in ("minReaderVersion", "minWriterVersion"):
        if name in protocol:
            found[name] = str(protocol[name])
    named = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    return found | {f"feature {name}": "on" for name in named}


@dataclass(slots=True)
class _Files:
    """The files of a table, version after version, as far as the log reaches.

    :param there: file -> whether it is in the table; a file that no commit has named is not in it.
    :param digest: changes with the set of files, and is the same for the same set.
    :param versions: digest -> the newest version that had that set.
    :param count: how many files are known to be in the table.
    :param since: file -> the version that added it last.
    :param first: the first version that was taken in.
    """

    there: dict[tuple[str, str], bool] = field(default_factory=dict)
    digest: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    count: int = 0
    since: dict[tuple[str, str], int] = field(default_factory=dict)
    first: int | None = None

    def was_cut(self, version: int, actions: list[dict[str, Any]]) -> bool:
        """Whether a RESTORE to a version removes files that this version had: it did not restore all of it.

        delta-rs (1.2) restores a version whose earlier commits are gone from the log with the files that the others name.

        :param version: the version that it says it restored.
        """
        if self.first is None or self.first > version + 1:
            return False  # what the commits between have added is not known
        removed = (_key(action["remove"]) for action in actions if "remove" in action)
        return any(self.since.get(key, version) <= version and self.there.get(key, True) for key in removed)

    def add(self, version: int, actions: list[dict[str, Any]]) -> int | None:
        """Take a commit in.

        :return: the newest earlier version with exactly the files that the table has after it; ``None`` without one.
        """
        self.first = version if self.first is None else self.first
        for name, becomes in (("remove", False), ("add", True)):
            for action in actions:
                if file := action.get(name):
                    key = _key(file)
                    if becomes:
                        self.since[key] = version
                    if self.there.get(key, not becomes) is not becomes:
                        self.digest ^= int.from_bytes(blake2b(repr(key).encode(), digest_size=16).digest())
                    self.count += becomes - self.there.get(key, False)
                    self.there[key] = becomes
        same = self.versions.get(self.digest)
        self.versions[self.digest] = version
        return same


def _key(file: Mapping[str, Any]) -> tuple[str, str]:
    """A file of a table: one with other deleted rows is another one."""
    vector = file.get("deletionVector") or {}
    return file["path"], f"{vector.get('pathOrInlineDv', '')}@{vector.get('offset', '')}"


def _actions(table: Location, version: int) -> list[dict[str, Any]]:
    path = commit_path(version)
    try:
        return read_actions(table.read(path), path=f"{table}/{path}")
    except FileNotFoundError as e:
        raise UnreadableLogError(
            f"{table}/{path} is gone since it was listed", path=path, hint="the log was cleaned up just now: try again"
        ) from e


def writes_all(operation: str, parameters: Mapping[str, Any]) -> bool:
    """Whether an operation leaves no row of before in a table, by its name and its parameters.

    :param operation: Delta's word for it.
    :param parameters: its ``operationParameters``.
    """
    if "TRUNCATE" in operation or "REPLACE TABLE" in operation or operation == "CLONE":
        return True
    mode = str(parameters.get("outputMode" if operation == "STREAMING UPDATE" else "mode") or "").lower()
    predicate = str(parameters.get("predicate") or "").replace(" ", "")
    if operation == "STREAMING UPDATE":
        return mode == "complete"
    if operation == "DELETE":
        return predicate in ("", "[]", "[true]", '["true"]', "true")
    is_dynamic = str(parameters.get("isDynamicPartitionOverwrite") or "").lower() == "true"
    return operation == "WRITE" and mode == "overwrite" and predicate in ("", "[]") and not is_dynamic


def _commit(
    version: int, actions: list[dict[str, Any]], files: _Files, settings: Mapping[str, str], *, is_whole: bool
) -> TableCommit:
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    set_by = [a["txn"] for a in actions if "txn" in a]
    txns = {txn["appId"]: int(txn["version"]) for txn in set_by}
    changes = [a.get("add") or a.get("remove") for a in actions if "add" in a or "remove" in a]
    operation = str(info.get("operation", "unknown"))
    to = _restored(info.get("operationParameters") or {}) if operation == "RESTORE" else None
    was_cut = to is not None and files.was_cut(to, actions)
    same = files.add(version, actions)
    restored = None
    if operation == "RESTORE":
        found = same if to is None else to  # the files show which version it was at a time
        restored = NO_VERSION if found is None or was_cut else found
    elif "commitInfo" not in {key for action in actions for key in action} and same is not None and changes:
        restored = (
            same  # nobody says what it was: a commitInfo is optional, and the files are those of an older version
        )
    added = {a["add"]["path"] for a in actions if "add" in a}
    is_all = writes_all(operation, info.get("operationParameters") or {})
    # In a log that was cleaned up, files that it does not name may be left.
    leaves_none = files.count == len(added) and not (operation in _BY_ROW and added) if is_whole else is_all
    plan_id = info.get(PLAN_KEY) or plan_in(info.get("userMetadata"))
    if plan_id and not changes and restored is None:
        restored = version - 1  # a rollback that changes only what the table remembers
    return TableCommit(
        version=version,
        time=commit_time(info),
        operation=operation,
        txns=txns,
        changes_data=any(operation == FSCK or change.get("dataChange", True) for change in changes if change),
        restored=restored,
        rows=_rows(info, actions),
        plan_id=plan_id,
        added=frozenset(path for a in actions if "add" in a for path in _paths(a["add"])),
        removed=frozenset(path for a in actions if "remove" in a for path in _paths(a["remove"])),
        settings=settings,
        updated={txn["appId"]: time_of(txn["lastUpdated"]) for txn in set_by if txn.get("lastUpdated") is not None},
        replaces=any("remove" in a for a in actions) and leaves_none,
        is_all=is_all,
    )


def _paths(file: Mapping[str, Any]) -> Iterator[str]:
    """A data file, and the file of its deletion vector."""
    yield file["path"]
    if (vector := file.get("deletionVector")) and (path := vector_path(vector)):
        yield path


def plan_in(words: Any) -> str | None:
    """The plan that Spark's ``RESTORE`` was run for: Spark keeps one text of the user with a commit."""
    key, _, plan_id = words.partition("=") if isinstance(words, str) else ("", "", "")
    return plan_id if key == PLAN_KEY else None


def _restored(parameters: Mapping[str, Any]) -> int | None:
    """The version that a RESTORE names; ``None``: a time, the local one of its driver, without a zone."""
    version = parameters.get("version")
    return None if version in (None, "", "null") else int(str(version))


def _rows(info: Mapping[str, Any], actions: list[dict[str, Any]]) -> int | None:
    written = (info.get("operationMetrics") or {}).get("numOutputRows")
    if written is not None:
        return int(written)
    added = [rows_of(a["add"].get("stats")) for a in actions if "add" in a]
    return None if None in added else sum(rows or 0 for rows in added)
