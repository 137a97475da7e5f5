"""How a stream is stopped, started and deployed: one way each, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from airflow_ckpt_provider.streams.declared import Declared
from airflow_ckpt_provider.streams.kinds import ConnId, Dotted


@dataclass(frozen=True, kw_only=True)
class DagAction(Declared):
    """A DAG that is triggered, and waited for.

    :param dag_id: its id.
    :param conf: its configuration; the stream and the action are added to it.
    """

    shorthand: ClassVar[str | None] = "dag_id"
    title: ClassVar[str] = "DAG"

    dag_id: str
    conf: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OperatorAction(Declared):
    """An operator of Airflow.

    :param operator: its class by its dotted name.
    :param arguments: what it is made with.
    """

    shorthand: ClassVar[str | None] = "operator"
    title: ClassVar[str] = "Operator"

    operator: Dotted
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def conflicts(self) -> list[tuple[str, str, str]]:
        """An argument that its task gives."""
        return [
            ("arguments", f"{name} is given", f"remove {name}: the DAG that runs the operator gives it")
            for name in ("task_id", "dag", "task_group")
            if name in self.arguments
        ]


@dataclass(frozen=True, kw_only=True)
class DatabricksJob(Declared):
    """A job of Databricks: it is run, or its active runs are cancelled.

    A `start` is done when its run runs; every other action when its run has succeeded, and it fails with it. A job that runs
    continuously is paused before its run is cancelled, and resumed for the `start`; it can be nothing else. Another trigger of
    the job stays as it is: the seal of the checkpoint stops what it starts.

    :param job_id: its id.
    :param do: what is done with it; the default is `cancel` for `stop`, else `run`. A `start` takes no `cancel`.
    :param conn_id: Airflow connection of type `databricks`; the default is that of the stream.
    :param parameters: job parameters of the run; a job that runs continuously takes none.
    """

    shorthand: ClassVar[str | None] = "job_id"
    title: ClassVar[str] = "Databricks job"

    job_id: str
    do: Literal["run", "cancel"] | None = None
    conn_id: ConnId | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def conflicts(self) -> list[tuple[str, str, str]]:
        """A name in the place of the id."""
        if self.job_id.isdecimal():
            return []
        return [("job_id", f"{self.job_id!r} is no id of a job", "give the number that the page of the job shows")]


@dataclass(frozen=True, kw_only=True)
class SparkApplication(Declared):
    """An application of the Spark operator for Kubernetes: it is created from a file, or deleted.

    A `start` is done when the driver runs; whatever else creates one, when it has completed. Both fail with the application. A
    stop waits for its pods: the connection needs the right to list those of the namespace, and to get the application.

    :param name: its name.
    :param namespace: its namespace.
    :param do: what is done with it; the default is `delete` for `stop`, else `create`.
    :param file: path of its manifest in YAML, for `create`; a relative path begins at the directory of `streams.yaml`. Its
        name and namespace have to be those of the declaration.
    :param conn_id: Airflow connection of type `kubernetes`.
    """

    title: ClassVar[str] = "Spark application"

    name: str
    namespace: str = "default"
    do: Literal["create", "delete"] | None = None
    file: str | None = None
    conn_id: ConnId | None = None

    def is_created_by(self, action: str) -> bool:
        """Whether an action creates it, else it deletes it.

        :param action: what the declaration calls it: ``stop``, ``start``, ….
        """
        return (self.do or ("delete" if action == "stop" else "create")) == "create"


@dataclass(frozen=True, kw_only=True)
class Action(Declared):
    """One way to stop, start or deploy a stream: exactly one of the fields. All of them can be repeated.

    :param command: command of the shell, run where the task runs, in the directory of `streams.yaml`; `CKPT_STREAM`,
        `CKPT_ACTION` and `VERSION` are in its environment, and after a reset `CKPT_OPTIONS`.
    :param dag: DAG that is triggered.
    :param operator: operator of Airflow.
    :param databricks_job: job of Databricks.
    :param spark_application: application of the Spark operator for Kubernetes.
    """

    shorthand: ClassVar[str | None] = "command"
    title: ClassVar[str] = "Action"

    command: str | None = None
    dag: DagAction | None = None
    operator: OperatorAction | None = None
    databricks_job: DatabricksJob | None = None
    spark_application: SparkApplication | None = None

    @property
    def way(self) -> str:
        """The field that is given."""
        return next(name for name in _WAYS if getattr(self, name) is not None)

    def conflicts(self) -> list[tuple[str, str, str]]:
        """None of the ways, or several."""
        given = [name for name in _WAYS if getattr(self, name) is not None]
        if len(given) == 1:
            return []
        said = f"{' and '.join(given)} are given" if given else "it does nothing"
        return [("", said, f"give one of {', '.join(_WAYS)}")]


_WAYS = ("command", "dag", "operator", "databricks_job", "spark_application")
