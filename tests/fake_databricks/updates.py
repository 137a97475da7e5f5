"""Updates of a pipeline: their states, and what is asked of them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.fake_databricks.clock import millis, parse, text
from tests.fake_databricks.errors import invalid

TERMINAL = ("COMPLETED", "FAILED", "CANCELED")
#: The way of an update that goes well; RESETTING only where something is reset.
WAY = ("CREATED", "WAITING_FOR_RESOURCES", "INITIALIZING", "RESETTING", "SETTING_UP_TABLES", "RUNNING", "COMPLETED")
#: The state of the pipeline while an update is in a state.
PIPELINE_STATES = {
    "CREATED": "DEPLOYING",
    "QUEUED": "DEPLOYING",
    "WAITING_FOR_RESOURCES": "STARTING",
    "INITIALIZING": "STARTING",
    "RESETTING": "RESETTING",
    "SETTING_UP_TABLES": "RUNNING",
    "RUNNING": "RUNNING",
    "STOPPING": "STOPPING",
}


@dataclass
class Update:
    """One update.

    :param body: what was asked for, byte for byte.
    :param cause: why it was started.
    """

    pipeline_id: str
    cause: str
    body: dict[str, Any]
    created: datetime
    continuous: bool = False
    state: str = "QUEUED"
    update_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    #: What it asks to reset has been reset.
    reset_done: bool = False

    @property
    def active(self) -> bool:
        return self.state not in TERMINAL

    @property
    def resets(self) -> bool:
        """Whether it goes through RESETTING."""
        asked = ("full_refresh", "full_refresh_selection", "reset_checkpoint_selection", "rewind_spec")
        return any(self.body.get(name) for name in asked) and not self.body.get("validate_only")

    def names(self, key: str) -> list[str]:
        """A selection in the request."""
        return list(self.body.get(key) or [])

    def next_state(self) -> str:
        """The state after this one, if nothing goes wrong."""
        if self.state == "QUEUED":
            return WAY[0]
        if self.state == "STOPPING":
            return "CANCELED"
        following = WAY[WAY.index(self.state) + 1]
        return WAY[WAY.index(following) + 1] if following == "RESETTING" and not self.resets else following

    def info(self, spec: dict[str, Any] | None = None) -> dict[str, Any]:
        """``UpdateInfo``.

        :param spec: for ``config``, which only the answer for one update has.
        """
        info: dict[str, Any] = {
            "pipeline_id": self.pipeline_id,
            "update_id": self.update_id,
            "cause": self.cause,
            "state": self.state,
            "cluster_id": f"0821-{self.update_id[:8]}",
            "creation_time": millis(self.created),
            "full_refresh": bool(self.body.get("full_refresh")),
            "validate_only": bool(self.body.get("validate_only")),
            "mode": "CONTINUOUS" if self.continuous else "DEFAULT",
        }
        for key in ("refresh_selection", "full_refresh_selection"):
            if self.body.get(key):
                info[key] = self.names(key)
        if self.body.get("parameters"):
            info["parameters"] = dict(self.body["parameters"])
        return info if spec is None else {**info, "config": spec}

    def brief(self) -> dict[str, Any]:
        """``UpdateStateInfo``: the time is text here."""
        return {"update_id": self.update_id, "state": self.state, "creation_time": text(self.created)}


def check(body: dict[str, Any]) -> None:
    """Read what a start asks for; fields that are not known pass.

    :raises ApiError: 400.
    """
    if not isinstance(body, dict):
        raise invalid("The body has to be a JSON object.")
    lists = ("refresh_selection", "full_refresh_selection", "reset_checkpoint_selection", "replace_where_overrides")
    for key in lists:
        if not isinstance(body.get(key, []), list):
            raise invalid(f"{key} has to be a list.")
    for key in ("full_refresh", "validate_only", "development"):
        if not isinstance(body.get(key, False), bool):
            raise invalid(f"{key} has to be a boolean.")
    if body.get("full_refresh") and (body.get("refresh_selection") or body.get("full_refresh_selection")):
        raise invalid("full_refresh cannot be set together with refresh_selection or full_refresh_selection.")
    both = {*(body.get("refresh_selection") or [])} & {*(body.get("full_refresh_selection") or [])}
    if both:
        raise invalid(f"{sorted(both)} cannot be in refresh_selection and full_refresh_selection.")
    if spec := body.get("rewind_spec"):
        try:
            parse(spec["rewind_timestamp"])
        except (KeyError, ValueError, TypeError) as e:
            raise invalid("rewind_spec.rewind_timestamp has to be a timestamp.") from e
