"""Forms that start a DAG, filled in with what the page knows: Airflow's own form cannot be filled in by an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.page.stream_row import StreamRow
from airflow_ckpt_provider.streams.settings import DAG_PREFIX, id_of_dag
from airflow_ckpt_provider.streams.stream import Stream


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    :param name: of the DAG's param.
    :param kind: what is sent: ``text`` (nothing where it is empty), ``number``, ``flag``, or ``words``: a list.
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


@dataclass(frozen=True, slots=True)
class DagOfForm:
    """A DAG that a form could start.

    :param declared: made by ``stream_dags``: it takes a declared stream; else one with the params of an example DAG.
    """

    dag_id: str
    declared: bool


#: The next step if there is none of them.
HOW_TO_GET_ONE = "Copy the example DAG, or declare the stream and make its DAGs by stream_dags."
_EXAMPLES = {"restore": "restore_checkpoint", "rewind": "rewind_replay"}


def dags_of_form(kind: str, stream: Stream | None, setting: Callable[[str, str], str]) -> tuple[DagOfForm, ...]:
    """The DAGs that a form could start, the best first: that of declared streams, then the one of the configuration.

    :param kind: ``restore`` or ``rewind``.
    :param stream: the stream, if it is declared.
    :param setting: returns an option of the configuration, or the default that it is given.
    """
    example = DagOfForm(setting(f"{kind}_dag_id", _EXAMPLES[kind]), False)
    if stream is None:
        return (example,)
    prefix = setting("dag_prefix", DAG_PREFIX)
    made = (id_of_dag(prefix, kind), id_of_dag(prefix, stream.name, kind))
    return (*(DagOfForm(each, True) for each in made), example)


_MODE = Field("mode", "Mode", "plan", choices=("plan", "apply"), required=True, hint="plan changes nothing")
_STOPPED = Field(
    "query_is_stopped", "The stream is stopped", False, "flag", hint="you say so; the audit record names the run"
)
_ACCEPT = Field("accept", "Accepted risks", hint="words that the plan prints, such as source_loss")
_SINK = Field("sink", "Sink", hint="what the stream writes to: directory of the table, or foreachBatch, foreach, kafka")
_APPROVAL = Field("approval", "Approval", True, "flag", hint="ask before the plan is applied")
_REASON = Field("reason", "Reason", hint="kept in the repository's audit record")
#: Of the DAGs of declared streams.
_IN_EACH = (
    replace(_ACCEPT, kind="words"),
    _APPROVAL,
    replace(_STOPPED, hint="not needed where the declaration says how it is stopped"),
    Field("start", "Start the stream afterwards", True, "flag", hint="as its declaration says"),
    _REASON,
)


def restore_form(dag_id: str, row: StreamRow, manifest: Manifest, places: Places) -> Form:
    """Restore a backup over the checkpoint, with the params of ``dags/restore_checkpoint.py``."""
    is_other = row.checkpoint not in ("", manifest.checkpoint)
    hint = f"as the report has it; the backup was taken of {manifest.checkpoint}" if is_other else ""
    fields = (
        _MODE,
        Field("repository", "Repository", places.repository, fixed=True),
        Field("repository_conn_id", "Connection for the repository", places.repository_conn_id, fixed=True),
        Field("name", "Name of the stream", manifest.name, fixed=True),
        Field("backup_id", "Backup", manifest.backup_id, fixed=True),
        _batch(manifest),
        Field("target", "Target", row.checkpoint or manifest.checkpoint, required=True, hint=hint),
        Field("target_conn_id", "Connection for the target", places.checkpoint_conn_id),
        _SINK,
        Field("replace", "Replace", True, "flag", hint="what is at the target; it is kept first"),
        _STOPPED,
        Field("stop_running", "Stop a running stream", False, "flag", hint="by sealing its checkpoint"),
        _APPROVAL,
        _ACCEPT,
        _REASON,
    )
    return Form(dag_id, f"Restore {manifest.name} to backup {manifest.backup_id}", fields)


def declared_restore_form(dag_id: str, stream: Stream, manifest: Manifest) -> Form:
    """Restore a backup of a declared stream, with the params of the DAG that ``stream_dags`` makes."""
    fields = (
        _MODE,
        _stream(stream),
        Field("backup_id", "Backup", manifest.backup_id, fixed=True),
        _batch(manifest),
        Field("replace", "Replace", True, "flag", hint="what is at the checkpoint; it is set aside before"),
        *_IN_EACH,
    )
    return Form(dag_id, f"Restore {stream.name} to backup {manifest.backup_id}", fields)


def rewind_form(dag_id: str, row: StreamRow, to: datetime, places: Places) -> Form:
    """Rewind to the last batch that was planned by a time, with the params of ``dags/rewind_replay.py``."""
    fields = (
        _MODE,
        Field("checkpoint", "Checkpoint", row.checkpoint, fixed=True),
        Field("checkpoint_conn_id", "Connection for the checkpoint", places.checkpoint_conn_id, fixed=True),
        *_where(to),
        _SINK,
        Field("repository", "Repository", places.repository, fixed=True),
        Field("repository_conn_id", "Connection for the repository", places.repository_conn_id, fixed=True),
        _STOPPED,
        _ACCEPT,
        _REASON,
    )
    return Form(dag_id, f"Rewind {row.name}", fields)


def declared_rewind_form(dag_id: str, stream: Stream, to: datetime) -> Form:
    """Rewind a declared stream, with the params of the DAG that ``stream_dags`` makes."""
    policies = ("rollback", "forward", "keep")
    hint = "rollback: they are rolled back too; forward: the checkpoint goes to them; keep: they stay"
    fields = (
        _MODE,
        _stream(stream),
        *_where(to),
        Field("sink_policy", "What happens to the sinks", "rollback", choices=policies, required=True, hint=hint),
        Field("exact_replay", "Only where the replay is exact", True, "flag"),
        *_IN_EACH,
    )
    return Form(dag_id, f"Rewind {stream.name}", fields)


def _stream(stream: Stream) -> Field:
    return Field("stream", "Stream", stream.name, fixed=True, hint=f"its checkpoint is {stream.checkpoint}")


def _batch(manifest: Manifest) -> Field:
    batches = [str(batch) for batch in reversed(manifest.restorable)]
    return Field("batch", "Batch", str(manifest.batch_id), "number", choices=batches, required=True)


def _where(to: datetime) -> tuple[Field, Field]:
    return (
        Field("to", "Where to", "to_datetime", choices=("to_datetime", "to_batch", "shift_by"), required=True),
        Field("value", "Value", to.isoformat(timespec="seconds"), required=True),
    )
