"""For how long a Delta table is sure to have what a stream needs: a lower bound, by the table's own settings.

Delta cleans its log up by the time of a file, after ``delta.logRetentionDuration``. ``VACUUM`` takes a file that left the table
after ``delta.deletedFileRetentionDuration``, by the time in its ``remove``, and one of the change data feed by its own time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider.guards.delta_client import TableState
from airflow_ckpt_provider.guards.delta_log import interval
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.guards.time_left import hours_needed
from airflow_ckpt_provider.units import format_duration
from airflow_ckpt_provider.verdict import Verdict

_LOG, _FILES = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
#: Delta's defaults.
_DEFAULTS = {_LOG: "interval 30 days", _FILES: "interval 7 days"}


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """What is known of it.

    :param seconds: how long all will be there; ``None``: no setting limits it, or it is not known.
    :param judgement: where a planned downtime is longer, or may be.
    :param facts: for the report.
    """

    seconds: float | None
    judgement: Judgement | None
    facts: dict[str, Any]


def time_left(
    state: TableState, settings: GuardSettings, *, log_since: Iterable[datetime | None], files_since: Iterable[datetime]
) -> TimeLeft:
    """Work it out.

    :param state: the table as it is now.
    :param settings: with the planned downtime.
    :param log_since: when the needed files of the log were written; ``None``: they are still to be written.
    :param files_since: when needed files left the table, or those of the change data feed were written.
    """
    now = datetime.now(UTC)
    keeps = {name: interval(state.configuration.get(name, default)) for name, default in _DEFAULTS.items()}
    since: dict[str, datetime | None] = {_FILES: min(files_since, default=None)}
    if state.configuration.get("delta.enableExpiredLogCleanup", "true").lower() != "false":
        since[_LOG] = min((time or now for time in log_since), default=now)
    limits = {name: (time, keeps[name]) for name, time in since.items() if time is not None}
    facts: dict[str, Any] = {
        "log_retention_s": _seconds(keeps[_LOG]),
        "deleted_file_retention_s": _seconds(keeps[_FILES]),
    }
    if unknown := [name for name, (_, kept) in limits.items() if kept is None]:
        reason = (
            f"{unknown[0]} = {state.configuration[unknown[0]]!r} is in a form that is not known here: for how long the resume "
            "point will be there is not known"
        )
        is_asked = settings.max_downtime is not None
        return TimeLeft(None, Judgement(Verdict.UNKNOWN, reason) if is_asked else None, facts)
    if not limits:
        return TimeLeft(None, None, facts | {"keeps_all": True})
    left, setting = min(
        ((time - now).total_seconds() + (_seconds(kept) or 0.0), name) for name, (time, kept) in limits.items()
    )
    judgement = _judge_downtime(settings, left, setting, _seconds(keeps[setting]) or 0.0)
    return TimeLeft(max(left, 0.0), judgement, facts | {"limited_by": setting})


def _judge_downtime(settings: GuardSettings, left: float, setting: str, keeps: float) -> Judgement | None:
    if settings.max_downtime is None:
        return None
    needed = settings.max_downtime + settings.buffer
    if left >= needed:
        return None
    hours = hours_needed((needed - left + keeps) * 1000)
    return Judgement(
        settings.if_gone,
        f"the resume point is guaranteed only for {format_duration(max(left, 0.0))}, less than the planned downtime and "
        f"its buffer of {format_duration(needed)}; {setting} = 'interval {hours} hours' would do",
    )


def _seconds(kept: timedelta | None) -> float | None:
    return None if kept is None else kept.total_seconds()
