"""Updates of a pipeline and their states, as the workspace reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

COMPLETED, FAILED, CANCELED, RUNNING = "COMPLETED", "FAILED", "CANCELED", "RUNNING"
#: ``UpdateInfoState`` of databricks-sdk; a state that is not among these is under way.
TERMINAL = frozenset({COMPLETED, FAILED, CANCELED})
#: Causes of updates that the workspace starts by itself in place of one that ended.
FOLLOW_UPS = frozenset({"RETRY_ON_FAILURE", "SCHEMA_CHANGE", "INFRASTRUCTURE_MAINTENANCE", "SERVICE_UPGRADE"})
API_CALL, JOB_TASK = "API_CALL", "JOB_TASK"


@dataclass(frozen=True, slots=True)
class UpdateState:
    """Where an update is.

    :param update_id: its id.
    :param state: its state, in the workspace's word.
    :param cause: why it was started; empty if it is not reported.
    :param created: when it was made, in UTC, by the workspace's clock.
    :param seen: when it was first seen in this state, in UTC, by the clock of the one who looked.
    :param flows_run_since: since when all flows that are waited for run in it without a failure, by the same clock.
    :param flow_failed: time of the newest event before that in which one of them failed, as the event says it; empty: none.
    :param event_seen: time of the newest event that was read for it, likewise.
    """

    update_id: str
    state: str
    cause: str = ""
    created: datetime | None = None
    seen: datetime | None = None
    flows_run_since: datetime | None = None
    flow_failed: str = ""
    event_seen: str = ""

    @classmethod
    def of(cls, update: Mapping[str, Any], seen: datetime | None = None) -> UpdateState:
        """Read an ``UpdateInfo``."""
        millis = update.get("creation_time")
        created = datetime.fromtimestamp(millis / 1000, UTC) if isinstance(millis, int | float) else None
        return cls(
            str(update.get("update_id") or ""),
            str(update.get("state") or ""),
            str(update.get("cause") or ""),
            created,
            seen,
        )

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.state in TERMINAL

    @property
    def is_successful(self) -> bool:
        """Whether it has ended well."""
        return self.state == COMPLETED

    def to_json(self) -> dict[str, Any]:
        """The state as plain JSON."""
        return {
            "update_id": self.update_id,
            "state": self.state,
            "cause": self.cause,
            "created": self.created.isoformat() if self.created else None,
            "time": self.seen.isoformat() if self.seen else None,
            **({"flows_run_since": self.flows_run_since.isoformat()} if self.flows_run_since else {}),
            **({"flow_failed": self.flow_failed} if self.flow_failed else {}),
            **({"event_seen": self.event_seen} if self.event_seen else {}),
        }

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> UpdateState:
        """Read what :meth:`to_json` wrote."""
        created, seen, since = known.get("created"), known.get("time"), known.get("flows_run_since")
        return cls(
            known["update_id"],
            known["state"],
            known.get("cause", ""),
            datetime.fromisoformat(created) if created else None,
            datetime.fromisoformat(seen) if seen else None,
            datetime.fromisoformat(since) if since else None,
            known.get("flow_failed", ""),
            known.get("event_seen", ""),
        )


def active_update(pipeline: Mapping[str, Any]) -> str | None:
    """Return the id of the update that a pipeline is running, by ``latest_updates``; ``None`` if there is none."""
    for update in pipeline.get("latest_updates") or ():
        if update.get("state") not in TERMINAL:
            return str(update.get("update_id") or "")
    return None


def spec_of(pipeline: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the specification of a pipeline, empty where it cannot be seen."""
    found = pipeline.get("spec")
    return found if isinstance(found, Mapping) else {}


def configuration_of(pipeline: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the configuration of a pipeline, which its code reads with ``spark.conf.get``."""
    found = spec_of(pipeline).get("configuration")
    return found if isinstance(found, Mapping) else {}


def parameters_of(pipeline: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the default parameters of a pipeline, which are beside its specification; only SQL code reads them."""
    found = pipeline.get("parameters")
    return found if isinstance(found, Mapping) else {}


def is_continuous(pipeline: Mapping[str, Any]) -> bool:
    """Whether it runs without an end."""
    return bool(spec_of(pipeline).get("continuous"))


def retries_by_itself(pipeline: Mapping[str, Any], update: Mapping[str, Any]) -> bool:
    """Whether the workspace may start another update in place of one that failed.

    Not in development mode, not for a validation, and not where ``pipelines.numUpdateRetryAttempts`` is 0.
    """
    if spec_of(pipeline).get("development") or update.get("validate_only"):
        return False
    return str(configuration_of(pipeline).get("pipelines.numUpdateRetryAttempts", "")) != "0"
