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
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.guards.delta_log import (
    CATALOG_MANAGED,
    CLOCKS,
    DELTA_LOG,
    commit_path,
    commit_time,
    fields_of,
    interval,
    read_actions,
    read_delta_log,
    rows_of,
    time_of,
)
from airflow_ckpt_provider.guards.delta_vector import vector_path
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.units import format_time

#: What our own rollback writes into ``commitInfo``, so that a run that was killed finds it.
PLAN_KEY = "airflowCkptPlan"
#: A property of a table: how long it remembers a ``txn``. Without it, permanently.
TXN_RETENTION = "delta.setTransactionRetentionDuration"
#: The next start may be as late as this.
_UNTIL_START = timedelta(days=1)
#: Operations that write the rows again that they leave in a table, where they take a whole file out of it.
_BY_ROW = frozenset({"DELETE", "UPDATE", "MERGE"})
#: No version at all; -1 is the emptiness before version 0.
NO_VERSION = -2


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One version of a Delta table.

    :param version: the version.
    :param time: when it was committed, in UTC; ``None`` where the commit does not say.
    :param operation: Delta's word for it, such as ``STREAMING UPDATE``, ``WRITE``, ``OPTIMIZE``, ``RESTORE``.
    :param txns: app id -> the version it set.
    :param changes_data: rows came or went; false for ``OPTIMIZE`` and the like.
    :param restored: the version that a ``RESTORE`` restored, or ``None``.
    :param rows: rows added, as far as the commit shows.
    :param plan_id: the plan of ours that wrote it.
    :param snapshot_id: the id of the snapshot, in an Iceberg table.
    :param added: paths of the files that it adds, whether rows change or not; those of deletion vectors too.
    :param removed: paths of the files that it removes from the table; ``VACUUM`` may delete them later. A file of deletion
        vectors may still be needed, for other data files.
    :param settings: what the table's metadata and protocol say after it, one entry a setting; see :func:`_settings`.
    :param updated: app id -> the ``lastUpdated`` of its ``txn``, in UTC, where it has one; ``None``: it has one, not known which.
    :param replaces: no row of before is left after it, such as after ``TRUNCATE`` and ``INSERT OVERWRITE``.
    :param is_all: it writes the whole table by what it is, such as a batch of a query in output mode complete.
    """

    version: int
    time: datetime | None
    operation: str
    txns: Mapping[str, int]
    changes_data: bool
    restored: int | None = None
    rows: int | None = None
    plan_id: str | None = None
    snapshot_id: int | None = None
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    updated: Mapping[str, datetime | None] = field(default_factory=dict)
    replaces: bool = False
    is_all: bool = False

    def describe(self) -> str:
        """The commit in a few words."""
        when = f" at {format_time(self.time)}" if self.time else ""
        name = f"version {self.version}" if self.snapshot_id is None else f"snapshot {self.snapshot_id}"
        return f"{name} ({self.operation}{when})"


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The part of a table's log that is still there.

    :param uri: the table.
    :param commits: all versions whose JSON is there, ascending and without a hole.
    :param table_id: id of the table, or ``None`` where no commit that is left says it.
    :param features: reader and writer features that its protocol names.
    :param configuration: its properties, such as ``delta.appendOnly``; empty where no commit that is left says them.
    :param format: ``delta`` or ``iceberg``.
    :param snapshots: ids of the commits, in an Iceberg table.
    :param held: ids of all snapshots that have not expired, in or outside of the main line, in an Iceberg table.
    :param references: name of a branch or tag -> its snapshot, in an Iceberg table.
    :param elsewhere: commits of streams that never were in the table's main line, such as those of a branch (Iceberg).
    :param left: commits that were in the table's main line once, and left it (Iceberg; of Delta they are among the commits).
    :param gap: version of the first commit before which others were made that are not in the main line, in a log that is whole
        (Iceberg); ``None``: there is none.
    :param doubt: why something newer than this may be the table's current log; ``None``: it is current.
    :param is_described: the commits that are left say the table's protocol and its properties.
    """

    uri: str
    commits: tuple[TableCommit, ...]
    table_id: str | None = None
    features: frozenset[str] = field(default_factory=frozenset)
    configuration: Mapping[str, str] = field(default_factory=dict)
    format: str = "delta"
    snapshots: tuple[int, ...] = ()
    held: frozenset[int] = frozenset()
    references: Mapping[str, int] = field(default_factory=dict)
    elsewhere: tuple[TableCommit, ...] = ()
    left: tuple[TableCommit, ...] = ()
    gap: int | None = None
    doubt: str | None = None
    is_described: bool = True

    @property
    def engine(self) -> str:
        """Who skips a replayed batch, for messages."""
        return {"delta": "Delta", "iceberg": "Iceberg"}[self.format]

    @property
    def begins(self) -> str:
        """Where a log begins that is not whole, for messages."""
        if self.format == "iceberg":
            return "older snapshots of the table have expired"
        return f"the table's log begins at version {self.first}"

    @property
    def first(self) -> int:
        """Oldest version whose JSON is there; 0 for a table without any."""
        return self.commits[0].version if self.commits else 0

    @property
    def newest(self) -> int:
        """Newest version; -1 for a table without any."""
        return self.commits[-1].version if self.commits else -1

    def snapshot_of(self, version: int) -> int:
        """What a rollback names: the version itself, or the id of the snapshot (Iceberg)."""
        return self.snapshots[version - self.first] if self.format == "iceberg" else version

    @property
    def is_whole(self) -> bool:
        """Whether the log begins with the table."""
        return self.first == 0

    def at(self, version: int) -> TableCommit | None:
        """The commit of a version, or ``None`` if its JSON is gone."""
        index = version - self.first
        return self.commits[index] if 0 <= index < len(self.commits) else None

    def remembered(self, app_id: str) -> int | None:
        """The newest ``txn`` of an app id in the commits that are left: batches up to it are skipped silently.

        ``None`` also where Delta has forgotten it; see :meth:`forgets`.
        """
        commit = self.newest_of(app_id)
        return None if commit is None or self.forgets(app_id) else commit.txns[app_id]

    def newest_of(self, app_id: str) -> TableCommit | None:
        """The commit of the newest ``txn`` of an app id, among those that are left."""
        return next((c for c in reversed(self.commits) if app_id in c.txns), None)

    def forgets(self, app_id: str) -> bool | None:
        """Whether Delta has forgotten the newest ``txn`` of an app id, by :data:`TXN_RETENTION`.

        One without ``lastUpdated`` is forgotten at once (``InMemoryLogReplay.getTransactions``).

        :return: ``None`` where that is not known, or may have happened by the next start.
        """
        if TXN_RETENTION not in self.configuration:
            return False if self.is_described else None
        commit, keeps = self.newest_of(app_id), interval(self.configuration[TXN_RETENTION])
        if commit is None or keeps is None:
            return None
        if app_id not in commit.updated:
            return True
        if (updated := commit.updated[app_id]) is None:
            return None
        age = datetime.now(UTC) - updated
        if age > keeps + CLOCKS:
            return True
        return False if age + _UNTIL_START < keeps else None

    def lineage(self, version: int | None = None) -> tuple[TableCommit, ...] | None:
        """The commits whose rows make up the table at a version, oldest first, as far back as the log reaches.

        A ``RESTORE`` takes the table back to the lineage of the version it names; what only tidies up is left out. A batch
        without rows counts: it has a ``txn``.

        :return: ``None`` where a restore returned to a version that the log does not have any more.
        """
        heads = self.heads()
        head = heads[self.newest if version is None else version]
        if head is None:
            return None
        found = []
        while head is not None and (commit := self.at(head)) is not None:
            found.append(commit)
            head = heads[head - 1]  # known: what is in a lineage was added to a known one
        return tuple(reversed(found))

    def heads(self) -> dict[int, int | None]:
        """Version -> the newest commit of its lineage; two versions with the same one have the same rows.

        Also for the version before the first one. Each commit has one lineage before it, that of the version below, so the newest
        commit distinguishes them all: a table has as many entries as versions, however long the lineages are.

        :return: the version before the first one stands for a lineage without a commit, ``None`` for one that is not known.
        """
        nothing = self.first - 1
        heads: dict[int, int | None] = {nothing: nothing}
        for commit in self.commits:
            before = heads[commit.version - 1]
            if commit.restored is not None:
                heads[commit.version] = heads.get(commit.restored)
            elif before is not None and (commit.changes_data or commit.txns):
                heads[commit.version] = commit.version
            else:
                heads[commit.version] = before
        return heads

    def left_by(self, version: int) -> TableCommit | None:
        """The ``RESTORE`` by which the table returned to rows of before a version; ``None``: it has what that version did.

        What others wrote on top of the version, and restores to a version that builds on it, leave it in the table.
        """
        heads, at = self.heads(), self.newest
        while at > version and (commit := self.at(at)) is not None:
            before = at - 1 if commit.restored is None else min(commit.restored, at - 1)
            if before < version and (heads.get(before) is None or heads.get(before) != heads.get(version)):
                return commit
            at = before
        return None


def read_table_history(table: Location) -> TableHistory:
    """Read a table's log.

    :param table: the table's directory.
    :raises RefusedError: there is no Delta table.
    :raises UnreadableLogError: a commit cannot be parsed, or one in the middle is missing.
    """
    versions = list(read_delta_log(table).commits)
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
        doubt=_doubt_of(features),
        is_described=metadata is not None and protocol is not None,
    )


def _doubt_of(features: frozenset[str]) -> str | None:
    """Why the newest versions may be elsewhere: the catalog of such a table keeps commits that are not in its log yet."""
    managed = sorted(features & CATALOG_MANAGED)
    return (
        f"the table has the feature {managed[0]}: its newest versions may not be in its log; name the table, not its directory"
        if managed
        else None
    )


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
        changes_data=any(change.get("dataChange", True) for change in changes if change),
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
