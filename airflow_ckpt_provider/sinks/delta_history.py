"""What a Delta table's log says about one streaming query: which batches are in the table, and what others wrote.

Read straight from ``_delta_log/<version>.json``, without a client: a commit is a few lines of JSON (Delta's PROTOCOL.md), of
which only ``txn``, ``commitInfo``, ``protocol``, ``metaData`` and the ``dataChange`` of ``add`` and ``remove`` matter here.

Delta remembers ``txn(appId = query id, version = batch id)`` and skips every batch up to it without a word. ``RESTORE`` by Spark
writes no ``txn``, so the table's content and its memory can differ. Both are worked out here, each by folding the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.errors import RefusedError, UnreadableLogError
from airflow_ckpt_provider.guards.delta_log import (
    DELTA_LOG,
    commit_path,
    commit_time,
    read_actions,
    read_delta_log,
    rows_of,
)
from airflow_ckpt_provider.storage.location import Location

#: What our own rollback writes into ``commitInfo``, so that a run that was killed finds it.
PLAN_KEY = "airflowCkptPlan"
#: No version at all; -1 is the emptiness before version 0.
_NO_VERSION = -2


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One version of a Delta table.

    :param version: the version.
    :param time: when it was committed, in UTC; ``None`` where the commit does not say.
    :param operation: Delta's word for it, such as ``STREAMING UPDATE``, ``WRITE``, ``OPTIMIZE``, ``RESTORE``.
    :param txns: app id -> the version it set.
    :param changes_data: rows came or went; false for ``OPTIMIZE`` and the like.
    :param restored: the version that a ``RESTORE`` went back to, or ``None``.
    :param rows: rows added, as far as the commit tells.
    :param plan_id: the plan of ours that wrote it.
    """

    version: int
    time: datetime | None
    operation: str
    txns: Mapping[str, int]
    changes_data: bool
    restored: int | None = None
    rows: int | None = None
    plan_id: str | None = None

    def describe(self) -> str:
        """The commit in a few words."""
        when = f" at {self.time:%Y-%m-%d %H:%M:%S} UTC" if self.time else ""
        return f"version {self.version} ({self.operation}{when})"


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The part of a table's log that is still there.

    :param uri: the table.
    :param commits: all versions whose JSON is there, ascending and without a hole.
    :param table_id: id of the table, or ``None`` where no commit that is left says it.
    :param features: reader and writer features that its protocol names.
    :param configuration: its properties, such as ``delta.appendOnly``; empty where no commit that is left says them.
    """

    uri: str
    commits: tuple[TableCommit, ...]
    table_id: str | None = None
    features: frozenset[str] = field(default_factory=frozenset)
    configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """Oldest version whose JSON is there."""
        return self.commits[0].version

    @property
    def newest(self) -> int:
        """Newest version."""
        return self.commits[-1].version

    @property
    def is_whole(self) -> bool:
        """Whether the log begins with the table."""
        return self.first == 0

    def at(self, version: int) -> TableCommit | None:
        """The commit of a version, or ``None`` if its JSON is gone."""
        index = version - self.first
        return self.commits[index] if 0 <= index < len(self.commits) else None

    def remembered(self, app_id: str) -> int | None:
        """The newest ``txn`` of an app id in the commits that are left: batches up to it are skipped silently."""
        return next((c.txns[app_id] for c in reversed(self.commits) if app_id in c.txns), None)

    def lineage(self, version: int | None = None) -> tuple[TableCommit, ...] | None:
        """The commits whose rows make up the table at a version, oldest first, as far back as the log reaches.

        A ``RESTORE`` takes the table back to the lineage of the version it names; what only tidies up is left out. A batch
        without rows counts: it has a ``txn``.

        :return: ``None`` where a restore went back to a version that the log does not have any more.
        """
        lineages: dict[int, tuple[TableCommit, ...] | None] = {self.first - 1: ()}
        for commit in self.commits:
            before = lineages[commit.version - 1]
            if commit.restored is not None:
                lineages[commit.version] = lineages.get(commit.restored)
            elif before is not None and (commit.changes_data or commit.txns):
                lineages[commit.version] = (*before, commit)
            else:
                lineages[commit.version] = before
        return lineages[self.newest if version is None else version]


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
    table_id: str | None = None
    features: frozenset[str] = frozenset()
    configuration: Mapping[str, str] = {}
    for version, actions in zip(versions[start:], raw, strict=True):
        commits.append(_commit(version, actions, commits))
        for action in actions:
            if "metaData" in action:
                table_id = action["metaData"].get("id")
                configuration = action["metaData"].get("configuration") or {}
            if "protocol" in action:
                protocol = action["protocol"]
                named = (*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ()))
                features = frozenset(named)
    return TableHistory(table.uri, tuple(commits), table_id, features, configuration)


def _actions(table: Location, version: int) -> list[dict[str, Any]]:
    path = commit_path(version)
    try:
        return read_actions(table.read(path), path=f"{table}/{path}")
    except FileNotFoundError as e:
        raise UnreadableLogError(
            f"{table}/{path} is gone since it was listed", path=path, hint="the log was cleaned up just now: try again"
        ) from e


def _commit(version: int, actions: list[dict[str, Any]], before: list[TableCommit]) -> TableCommit:
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    txns = {a["txn"]["appId"]: int(a["txn"]["version"]) for a in actions if "txn" in a}
    changes = [a.get("add") or a.get("remove") for a in actions if "add" in a or "remove" in a]
    operation = str(info.get("operation", "unknown"))
    return TableCommit(
        version=version,
        time=commit_time(info),
        operation=operation,
        txns=txns,
        changes_data=any(change.get("dataChange", True) for change in changes if change),
        restored=_restored(info.get("operationParameters") or {}, before) if operation == "RESTORE" else None,
        rows=_rows(info, actions),
        plan_id=info.get(PLAN_KEY) or _plan_in(info.get("userMetadata")),
    )


def _plan_in(words: Any) -> str | None:
    """The plan that Spark's ``RESTORE`` was run for: Spark keeps one text of the user with a commit."""
    key, _, plan_id = words.partition("=") if isinstance(words, str) else ("", "", "")
    return plan_id if key == PLAN_KEY else None


def _restored(parameters: Mapping[str, Any], before: list[TableCommit]) -> int:
    """The version a RESTORE went back to; ``_NO_VERSION`` where it cannot be told."""
    version = parameters.get("version")
    if version not in (None, "", "null"):
        return int(str(version))
    stamp = str(parameters.get("timestamp") or "").strip('"')
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return _NO_VERSION
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max((c.version for c in before if c.time and c.time <= when), default=_NO_VERSION)


def _rows(info: Mapping[str, Any], actions: list[dict[str, Any]]) -> int | None:
    written = (info.get("operationMetrics") or {}).get("numOutputRows")
    if written is not None:
        return int(written)
    added = [rows_of(a["add"].get("stats")) for a in actions if "add" in a]
    return None if None in added else sum(rows or 0 for rows in added)
