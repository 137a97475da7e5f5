"""What ``DESCRIBE HISTORY`` and ``DESCRIBE DETAIL`` say of a Delta table, as a history like that of its log.

Delta's own streaming sink notes ``queryId`` and ``epochId`` with each batch: the same numbers as the ``txn`` of the log.
What is not reported: the ``txn`` of a ``foreachBatch`` (``txnAppId``), the files, and the settings between two versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.sinks.delta_history import NO_VERSION, plan_in, writes_all
from airflow_ckpt_provider.sinks.named_tables import Described
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.units import is_number

_STREAM = "STREAMING UPDATE"
#: Operations that change neither rows nor settings.
_MAINTENANCE = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS", "REORG"})
#: Operations that change settings, and no rows: ``RESTORE`` reverts them.
_SETTINGS = (
    "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES",
    "ADD COLUMNS",
    "CHANGE COLUMN",
    "CHANGE COLUMNS",
    "RENAME COLUMN",
    "DROP COLUMNS",
    "REPLACE COLUMNS",
    "ADD CONSTRAINT",
    "DROP CONSTRAINT",
    "UPGRADE PROTOCOL",
    "DROP FEATURE",
    "CLUSTER BY",
    "SET TABLE COMMENT",
)


def described_history(uri: str, described: Described, *, feature: str) -> TableHistory:
    """The history of a table that its engine describes.

    :param uri: how the sink is named.
    :param described: what the engine said.
    :param feature: why only the engine can restore it.
    :raises RefusedError: it is no Delta table, or its history is empty.
    """
    detail = described.detail
    if str(detail.get("format") or "").lower() != "delta":
        raise RefusedError(
            f"{uri} is a table of the format {detail.get('format') or 'unknown'}, not delta",
            hint="name a Delta table, or an Iceberg table as iceberg:CATALOG.NAMESPACE.TABLE",
        )
    rows = sorted(({**row, "version": int(str(row["version"]))} for row in described.history), key=_version)
    if not rows:
        raise RefusedError(f"{uri}: DESCRIBE HISTORY is empty", hint="see that its versions may be read")
    # Below a hole nothing counts.
    start = next((i + 1 for i in range(len(rows) - 2, -1, -1) if _version(rows[i]) + 1 != _version(rows[i + 1])), 0)
    settings: dict[str, str] = {}
    commits = []
    unnamed = []
    for row in rows[start:]:
        commit = _commit(row, settings)
        settings = dict(commit.settings)
        commits.append(commit)
        if row.get("operation") == _STREAM and not commit.txns:
            unnamed.append(commit.version)
    doubt = (
        f"DESCRIBE HISTORY names neither query nor batch of version {unnamed[-1]} (STREAMING UPDATE): which batches the table "
        "holds is not known"
        if unnamed
        else None
    )
    return TableHistory(
        uri,
        tuple(commits),
        str(detail.get("id") or "") or None,
        frozenset({feature}),
        {str(key): str(value) for key, value in _mapping(detail.get("properties")).items()},
        doubt=doubt,
    )


def is_row_change(commit: TableCommit) -> bool:
    """Whether a commit of nobody known wrote or removed rows."""
    return commit.changes_data and commit.restored is None and not commit.txns


def _version(row: Mapping[str, Any]) -> int:
    return int(row["version"])


def _commit(row: Mapping[str, Any], settings: Mapping[str, str]) -> TableCommit:
    version, operation = _version(row), str(row.get("operation") or "unknown")
    parameters, metrics = _mapping(row.get("operationParameters")), _mapping(row.get("operationMetrics"))
    query, epoch = str(parameters.get("queryId") or ""), str(parameters.get("epochId") or "")
    txns = {query: int(epoch)} if operation == _STREAM and query and is_number(epoch) else {}
    restored = None
    if operation == "RESTORE":
        to = str(parameters.get("version") or "")
        restored = int(to) if is_number(to) else NO_VERSION
    sets = operation in _SETTINGS
    written = str(metrics.get("numOutputRows") or "")
    user = str(row.get("userName") or row.get("userId") or "")
    time = _time(row.get("timestamp"))
    return TableCommit(
        version=version,
        time=time,
        operation=f"{operation} by {user}" if user and not txns and restored is None else operation,
        txns=txns,
        changes_data=not sets and operation not in _MAINTENANCE,
        restored=restored,
        rows=int(written) if is_number(written) else None,
        plan_id=plan_in(row.get("userMetadata")),
        settings={**settings, f"{operation} of version {version}": json.dumps(dict(parameters))} if sets else settings,
        updated=dict.fromkeys(txns, time),  # Delta's sink sets both when it commits
        replaces=writes_all(operation, parameters),
        is_all=writes_all(operation, parameters),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    try:
        found = load_json(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    return found if isinstance(found, Mapping) else {}


def _time(value: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
