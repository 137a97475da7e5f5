"""Forms that start a DAG, filled in with what the page knows: Airflow's own form cannot be filled in by an address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.page.stream_row import StreamRow


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    :param name: of the DAG's param.
    :param kind: what is sent: ``text`` (nothing where it is empty), ``number`` or ``flag``.
    :param choices: the values that there are; empty: any.
    :param fixed: shown, and sent as it is.
    """

    name: str
    title: str
    value: Any = None
    kind: str = "text"
    choices: Sequence[str] = ()
    required: bool = False
    fixed: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """A form for one DAG.

    :param dag_id: what it starts.
    :param title: what it is for.
    :param refused: why it cannot be sent; empty: it can.
    """

    dag_id: str
    title: str
    fields: Sequence[Field]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the DAGs find things, as Airflow's configuration has it; ``None``: it has nothing."""

    repository: str
    repository_conn_id: str | None = None
    checkpoint_conn_id: str | None = None


_MODE = Field("mode", "Mode", "plan", choices=("plan", "apply"), required=True, hint="plan changes nothing")
_STOPPED = Field(
    "query_is_stopped", "The stream is stopped", False, "flag", hint="you say so; the audit record names the run"
)
_ACCEPT = Field("accept", "Accepted risks", hint="words that the plan prints, such as source_loss")
_REASON = Field("reason", "Reason", hint="kept in the repository's audit record")


def restore_form(dag_id: str, row: StreamRow, manifest: Manifest, places: Places) -> Form:
    """Restore a backup over the checkpoint, with the params of ``dags/restore_checkpoint.py``."""
    batches = [str(batch) for batch in reversed(manifest.restorable)]
    fields = (
        _MODE,
        Field("repository", "Repository", places.repository, fixed=True),
        Field("repository_conn_id", "Connection for the repository", places.repository_conn_id, fixed=True),
        Field("name", "Name of the stream", manifest.name, fixed=True),
        Field("backup_id", "Backup", manifest.backup_id, fixed=True),
        Field("batch", "Batch", str(manifest.batch_id), "number", choices=batches, required=True),
        Field("target", "Target", row.checkpoint or manifest.checkpoint, required=True),
        Field("target_conn_id", "Connection for the target", places.checkpoint_conn_id),
        Field("replace", "Replace", True, "flag", hint="what is at the target; it is backed up before"),
        _STOPPED,
        Field("stop_running", "Stop a running stream", False, "flag", hint="by sealing its checkpoint"),
        Field("approval", "Approval", True, "flag", hint="ask before the plan is applied"),
        _ACCEPT,
        _REASON,
    )
    return Form(dag_id, f"Restore {manifest.name} to backup {manifest.backup_id}", fields)


def rewind_form(dag_id: str, row: StreamRow, to: datetime, places: Places) -> Form:
    """Rewind to the last batch that was planned by a time, with the params of ``dags/rewind_replay.py``."""
    fields = (
        _MODE,
        Field("checkpoint", "Checkpoint", row.checkpoint, fixed=True),
        Field("checkpoint_conn_id", "Connection for the checkpoint", places.checkpoint_conn_id, fixed=True),
        Field("to", "Where to", "to_datetime", choices=("to_datetime", "to_batch", "shift_by"), required=True),
        Field("value", "Value", to.isoformat(timespec="seconds"), required=True),
        Field("sink", "Sink", hint="directory of the table, or foreachBatch, foreach, kafka"),
        Field("repository", "Repository", places.repository, fixed=True),
        Field("repository_conn_id", "Connection for the repository", places.repository_conn_id, fixed=True),
        _STOPPED,
        _ACCEPT,
        _REASON,
    )
    return Form(dag_id, f"Rewind {row.name}", fields)
