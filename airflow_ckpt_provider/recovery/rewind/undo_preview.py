"""Whether a rewind could be taken back again: judged when it is planned, so that whoever approves the plan knows. Reads only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.guards.delta_client import read_properties
from airflow_ckpt_provider.guards.delta_log import interval
from airflow_ckpt_provider.sinks.report import SinkPolicy, SinkReport
from airflow_ckpt_provider.sinks.sink import Sink

#: A property of a table: VACUUM deletes files that left the table longer ago. A week by default (Delta's documentation).
_RETENTION = "delta.deletedFileRetentionDuration"
#: Less than this, and a VACUUM may come before somebody decides.
_A_DAY = timedelta(days=1)


def undo_preview(report: SinkReport, sink: Sink, sink_exit: SinkPolicy | None, *, changes: bool) -> dict[str, Any]:
    """Judge the undo of a rewind that is being planned.

    The checkpoint's own files are set aside by every rewind; what decides is the sink.

    :param report: what the sink says of the rewind.
    :param sink: the sink.
    :param sink_exit: what is done about its rows.
    :param changes: the rewind changes anything at all.
    :return: plain JSON: ``possible``, and ``reasons``: what the undo needs, or why it cannot be had.
    """
    rolls_back = sink_exit is SinkPolicy.ROLLBACK and report.rollback is not None
    if not changes and not rolls_back:
        return {"possible": True, "reasons": ["there is nothing to take back"]}
    needs = ["only until the stream is started: then rewind again instead"]
    if not (rolls_back and report.rollback):
        return {"possible": True, "reasons": needs}
    if report.rollback.to_version is None:
        files = len(report.rollback.paths)
        needs.append(
            f"{files} files of the sink are set aside in the repository and put back: nothing may delete them before"
        )
        return {"possible": True, "reasons": needs}
    needs.append("nobody may write into the table before")
    if report.kind == "iceberg":
        needs.append(
            "a tag keeps the snapshot that leaves the table for 30 days, also from expire_snapshots: nobody may drop it before"
        )
        return {"possible": True, "reasons": needs}
    found, against = _of_table(report.uri, report.rollback.feature, sink)
    return {"possible": not against, "reasons": against or [*needs, *found]}


def _of_table(uri: str, feature: str | None, sink: Sink) -> tuple[list[str], list[str]]:
    """What bringing a table forward again needs, and what forbids it."""
    if feature and sink.by_spark is None:
        return [], [f"{uri} has the feature {feature}: only Spark brings it forward again, and no Spark is named"]
    if feature:
        return [f"Spark brings the table forward again (feature {feature}): name it as for the rewind"], []
    if sink.place is None:
        return [], []
    try:
        properties = read_properties(sink.place, storage_options=sink.storage_options).configuration
    except StorageError as e:
        return [], [f"{e.message}; {e.hint}" if e.hint else e.message]
    words = properties.get(_RETENTION, "")
    kept = interval(words) if words else None
    if kept is not None and kept < _A_DAY:
        return [f"a VACUUM deletes files {words} after they left the table ({_RETENTION}): none may run before"], []
    return [], []
