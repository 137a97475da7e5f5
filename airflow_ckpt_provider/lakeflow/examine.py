"""What every plan reads first: that the pipeline is there, what runs on it, and which tables may be touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.errors import NoSuchPipelineError, RefusedError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.json_text import load_rendered
from airflow_ckpt_provider.lakeflow.flows import KnownFlows, forbids_reset, known_flows, qualified
from airflow_ckpt_provider.lakeflow.updates import (
    COMPLETED,
    active_update,
    configuration_of,
    is_continuous,
    spec_of,
)
from airflow_ckpt_provider.lakeflow.workspace import Workspace

#: What is done about an update that is active already.
FAIL, WAIT, STOP = "fail", "wait", "stop"


@dataclass(frozen=True, slots=True)
class Examined:
    """A pipeline as it was found.

    :param pipeline: the answer to GET of the pipeline.
    :param flows: what is known of its flows.
    """

    pipeline: Mapping[str, Any]
    flows: KnownFlows

    @property
    def pipeline_id(self) -> str:
        """Its id."""
        return str(self.pipeline["pipeline_id"])

    @property
    def name(self) -> str:
        """Its name, or its id where it has none."""
        return str(self.pipeline.get("name") or self.pipeline_id)

    @property
    def spec(self) -> Mapping[str, Any]:
        """Its specification."""
        return spec_of(self.pipeline)

    @property
    def specification(self) -> str:
        """The same for the same specification, but for its configuration: a reset changes that itself, and plans judge it."""
        return fingerprint_of({key: value for key, value in self.spec.items() if key != "configuration"})

    @property
    def configuration(self) -> Mapping[str, str]:
        """Its configuration."""
        return configuration_of(self.pipeline)

    def warnings(self) -> list[str]:
        """What its settings mean for any update."""
        found = []
        if self.spec.get("development"):
            found.append(
                "the pipeline is in development mode: a failed update is not retried by itself, and its cluster stays up"
            )
        return found

    def rows(self) -> list[tuple[str, str]]:
        """State and kind, for people."""
        kind = "continuous" if is_continuous(self.pipeline) else "triggered"
        active = active_update(self.pipeline)
        running = f", update `{active}` is active" if active else ""
        return [("state", f"{self.pipeline.get('state') or 'not known'}, {kind}{running}")]


def examine(workspace: Workspace, pipeline_id: str, *, with_flows: bool = True) -> Examined:
    """Read a pipeline; reads only.

    :param with_flows: read the event log for its flows too.
    :raises NoSuchPipelineError: it does not exist, or deleted.
    """
    pipeline = {"pipeline_id": pipeline_id, **workspace.ask(pipeline_id)}
    if pipeline.get("state") == "DELETED":
        raise NoSuchPipelineError(
            f"pipeline {pipeline.get('name') or ''} ({pipeline_id}) is deleted",
            hint="give the pipeline that took its place; a new one begins with empty checkpoints",
        )
    return Examined(pipeline, known_flows(workspace, pipeline) if with_flows else KnownFlows({}, complete=False))


def room_step(examined: Examined, on_active_update: str, wait_for: str | None) -> str:
    """Say in words what is done about whatever is active.

    :raises RefusedError: what was asked for would never end.
    """
    continuous = is_continuous(examined.pipeline)
    if continuous and wait_for == COMPLETED:
        raise RefusedError(
            f"pipeline {examined.name} is continuous: its updates never complete",
            hint="give wait_for='RUNNING', or None",
        )
    if continuous and on_active_update == WAIT:
        raise RefusedError(
            f"pipeline {examined.name} is continuous: its update never ends by itself",
            hint="give on_active_update='stop'",
        )
    return {
        FAIL: "see that no update is active; fail if one is",
        WAIT: "wait until no update is active",
        STOP: "stop the pipeline if an update is active, and wait until it is IDLE",
    }[on_active_update]


def reset_forbidden(workspace: Workspace, tables: Iterable[str], spec: Mapping[str, Any]) -> list[str]:
    """Return those tables that have ``pipelines.reset.allowed=false``, by what Unity Catalog shows.

    :param tables: names; those without catalog and schema get the pipeline's own.
    """
    full = dict.fromkeys(qualified(table, spec) for table in tables)
    return [name for name in full if forbids_reset(workspace.get_table(name))]


def names_of(given: Sequence[str] | str | None, field: str) -> tuple[str, ...]:
    """Read a list of names.

    :param given: a list, or names with commas between.
    :param field: what to call it in messages.
    :raises RefusedError: a name is empty.
    """
    if isinstance(given, str):
        # A rendered template: nothing, a list as text, or names with commas between.
        stripped = given.strip()
        if stripped in ("", "None", "[]"):
            return ()
        try:
            given = load_rendered(stripped) if stripped.startswith("[") else stripped.split(",")
        except ValueError as e:
            raise RefusedError(f"{field} is {given!r}: {e}", hint=f"give {field} as a list of names") from e
    names = list(given or ())
    found = tuple(str(name).strip() for name in names)
    if any(not name or name == "None" for name in found):
        raise RefusedError(f"{field} is {given!r}: a name is empty", hint=f"give {field} as a list of names")
    return tuple(dict.fromkeys(found))
