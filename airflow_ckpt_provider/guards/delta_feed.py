"""The change data feed of a Delta table: whether it was kept in every version that a query's start asks for.

Spark fails with ``DELTA_MISSING_CHANGE_DATA`` at a version after which the table kept no feed, also where nothing but a setting
was changed while it was off, and also where it is on again. It asks for the newest committed batch again. Run with Spark
4.0.0 and Delta 4.4.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ckpt_provider.guards.delta_client import TableState, UnreadableTableError, read_state
from airflow_ckpt_provider.guards.delta_log import DeltaLog
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.verdict import Verdict

_SETTING = "delta.enableChangeDataFeed"


def judge_feed(log: DeltaLog, state: TableState, first: int, *, readers: int) -> list[Judgement]:
    """Judge the table of a query that reads its change data feed.

    :param log: its log.
    :param state: the table as it is now.
    :param first: the first version that Spark asks for.
    :param readers: commits that are read at once.
    """
    if not _keeps_feed(state.configuration):
        return [
            Judgement(
                Verdict.WILL_FAIL,
                f"the query reads the change data feed, which the table does not keep any more ({_SETTING}): "
                "DELTA_MISSING_CHANGE_DATA; start a new checkpoint",
            )
        ]
    first = max(first, 0)
    commits = in_parallel(log.commit, [version for version in log.commits if version >= first], workers=readers)
    told = {c.version: _keeps_feed(c.metadata.get("configuration") or {}) for c in commits if c.metadata is not None}
    off = next((version for version, keeps in told.items() if not keeps), None)
    if off is None and log.missing(first, log.latest):
        return [_unknown(f"versions from {first} on are not all in the log any more")]
    if off is None and told and first not in told:
        # The settings were changed after the first version: only the table as it was then says what held before.
        before = _state_at(log, first)
        if before is None:
            return [_unknown(f"settings were changed since version {first}, whose own cannot be read any more")]
        off = None if _keeps_feed(before.configuration) else first
    if off is None:
        return []
    return [
        Judgement(
            Verdict.WILL_FAIL,
            f"the query reads the change data feed, which the table did not keep in version {off}, though it does now "
            f"({_SETTING}): DELTA_MISSING_CHANGE_DATA; start a new checkpoint, from a version since which it is kept",
        )
    ]


def _unknown(why: str) -> Judgement:
    return Judgement(
        Verdict.UNKNOWN,
        f"the query reads the change data feed, and it is not known whether the table kept it all the time ({_SETTING}): {why}",
    )


def _keeps_feed(configuration: Mapping[str, Any]) -> bool:
    return str(configuration.get(_SETTING, "false")).lower() == "true"


def _state_at(log: DeltaLog, version: int) -> TableState | None:
    """The table at a version; ``None`` where it cannot be put together any more."""
    try:
        return read_state(log, version) if log.can_rebuild(version) else None
    except (UnreadableTableError, FileNotFoundError):
        return None
