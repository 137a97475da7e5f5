"""Whether a new query finds in a Delta table what a kept position promises. The table itself is read.

A new query knows no table id. Spark reads another table under the same path without an error, and what that table has below the
version is lost. So a position is ``SAFE`` only where the table was read, and has the id that the old offset names.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset
from airflow_ckpt_provider.errors import CkptError, MissingExtraError, RefusedError
from airflow_ckpt_provider.guards.delta import DeltaGuard
from airflow_ckpt_provider.guards.delta_client import UnreadableTableError, read_state
from airflow_ckpt_provider.guards.delta_log import DeltaLog, read_delta_log
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

#: Why no position of Delta is ``SAFE``: the version is right, but whether it still means what it meant only the table shows.
NO_TABLE = (
    "the table was not read: whether it is the same table, and still has these versions and their files, is not known; name its "
    "directory (--table; tables or delta_tables of the operator)"
)
#: What a position begins a reason with whose table was read.
TABLE_READ = "the table was read: "


def judge_start(table: Location, source: str, offset: DeltaOffset, *, logged_at: datetime | None) -> list[Judgement]:
    """Compare a table with the position at which a new query starts to read it.

    :param table: the table's directory.
    :param source: position in the plan, or name.
    :param offset: where the old query stood.
    :param logged_at: when that was logged, in UTC, where known.
    :return: at least one judgement; ``SAFE`` alone where the table has all of it.
    :raises RefusedError: there is no Delta table.
    """
    log = _log(table)
    state = _id_of(log)
    if isinstance(state, Judgement):
        return [state]
    if state != offset.table_id:
        return [_another(table, state, offset)]
    if offset.initial_snapshot and offset.table_version > log.latest:
        return [
            Judgement(
                Verdict.UNKNOWN,
                f"{table} ends at version {log.latest}, and the query was reading version {offset.table_version}: the table was "
                "restored to an older version, or is a copy of an older day",
            )
        ]
    # A new query reads the newest snapshot whole, or all files of the version.
    within = offset.initial_snapshot
    start = replace(offset, table_version=log.latest if within else offset.table_version, index=-1)
    guard = DeltaGuard(GuardSettings(options={DeltaOffset.kind: {"tables": {source: table}}}))
    asked = GuardedSource(SourceOffset(source, start), logged_at=None if within else logged_at)
    found = list(guard.judge(asked).judgements)
    if all(judgement.verdict is Verdict.SAFE for judgement in found):
        has = (
            f"version {log.latest}"
            if start.table_version >= log.latest
            else f"versions {start.table_version} to {log.latest}"
        )
        newer = start.table_version > log.latest
        kept = f"ends at {has}, all of which was read" if newer else f"has {has} and their files"
        found.append(Judgement(Verdict.SAFE, f"{TABLE_READ}{table} is the one that the query read, and {kept}"))
    return found


def judge_start_by_clock(table: Location, offset: DeltaOffset, *, time: datetime) -> list[Judgement]:
    """Compare a table with a time at which a new query starts to read it.

    Delta starts with the oldest commit that is left, without an error, where the log begins after the time
    (``DeltaHistoryManager.getActiveCommitAtTime`` with ``canReturnEarliestCommit``).

    :param table: the table's directory.
    :param offset: any offset of the old query in this table.
    :param time: where it starts.
    :raises RefusedError: there is no Delta table.
    """
    log = _log(table)
    state = _id_of(log)
    if isinstance(state, Judgement):
        return [state]
    if state != offset.table_id:
        return [_another(table, state, offset)]
    first = min(log.commits, default=None)
    written = None if first is None else (log.commit(first).time or log.commits[first])
    if first is not None and (first == 0 or (written is not None and written <= time)):
        return []
    return [
        Judgement(
            Verdict.WILL_LOSE,
            f"the log of {table} begins at version {first}, after the time: what was committed in between is gone, and Delta "
            "starts with the oldest version left, without an error",
        )
    ]


def _log(table: Location) -> DeltaLog:
    log = read_delta_log(table)
    if log.is_empty:
        raise RefusedError(f"{table} is not a Delta table: it has no _delta_log", hint="give the table's own directory")
    return log


def _id_of(log: DeltaLog) -> str | Judgement:
    try:
        return read_state(log, log.latest).table_id
    except MissingExtraError:
        raise
    except (UnreadableTableError, FileNotFoundError) as e:
        reason = e.message if isinstance(e, CkptError) else f"{e} is gone"
        return Judgement(Verdict.UNKNOWN, f"{reason}; whether it is the table that the query read is not known")


def _another(table: Location, table_id: str, offset: DeltaOffset) -> Judgement:
    return Judgement(
        Verdict.WILL_LOSE,
        f"the table at {table} is another one (id {table_id}; the query read {offset.table_id}): its versions are others, and "
        "rows that the query has never seen are skipped silently; leave the position out, and compare the sink with the table",
    )
