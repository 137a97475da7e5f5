"""What the factory's DAGs have in common: their ids, their streams, their tasks, who is notified of failures."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from airflow.sdk import DAG, BaseOperator, Param

from airflow_ckpt_provider.dag_factory.run_types import no_backfill
from airflow_ckpt_provider.dag_factory.told import TellOfFailure
from airflow_ckpt_provider.streams.settings import DAG_PREFIX, id_of_dag
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams

Operator = TypeVar("Operator", bound=BaseOperator)
OPTIONAL = ["null", "string"]
START = datetime(2026, 1, 1, tzinfo=UTC)


class DagsOfStreams:
    """Base of the factory. To replace a task override :meth:`task`; to add tasks around those of a DAG, :meth:`around`.

    :param streams: the streams.
    :param prefix: what the ids of the DAGs begin with.
    :param default_args: of the tasks of all DAGs.
    :param tags: of all DAGs, beside those of the streams.
    """

    def __init__(
        self,
        streams: Streams,
        *,
        prefix: str = DAG_PREFIX,
        default_args: Mapping[str, Any] | None = None,
        tags: Sequence[str] = ("checkpoint",),
    ) -> None:
        self.streams = streams
        self.prefix = prefix
        self.default_args = {"retries": 2, "retry_delay": timedelta(minutes=2), **(default_args or {})}
        self.tags = tags

    def task(self, operator: type[Operator], task_id: str, **arguments: Any) -> Operator:
        """Make a task. Every task of this package in these DAGs is made here: override it to change or replace one.

        :param operator: its class.
        :param task_id: its id, without that of its group.
        :param arguments: what it is made with.
        """
        return operator(task_id=task_id, **self.of_file, **arguments)

    def around(self, dag: DAG) -> None:
        """Add tasks of your own to a DAG, before or after ours. Called inside it, when all of ours are made.

        :param dag: the DAG; its id ends with the kind, such as ``_restore``.
        """

    @property
    def of_file(self) -> dict[str, Any]:
        """The argument that says where the streams are declared."""
        return {"streams_file": self.streams.source or self.streams}

    def dag(
        self,
        kind: str,
        make: Callable[[], None],
        *,
        streams: Sequence[Stream] = (),
        schedule: Any = None,
        params: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> DAG:
        """Make a DAG.

        :param kind: what it is for: the end of its id.
        :param make: makes its tasks, inside it.
        :param streams: the streams that it is about.
        :param schedule: when it runs; ``None``: when somebody triggers it.
        :param params: the fields of its form.
        :param settings: more for the DAG.
        """
        owners = {stream.owner for stream in streams if stream.owner}
        of_streams = {tag for stream in streams for tag in stream.tags}
        with DAG(
            dag_id=id_of_dag(self.prefix, kind),
            schedule=schedule,
            start_date=START,
            catchup=False,
            max_active_runs=1,
            default_args={
                **({"owner": owners.pop()} if len(owners) == 1 else {}),
                "on_failure_callback": TellOfFailure(self.streams, streams),
                **self.default_args,
            },
            tags=sorted({*self.tags, *of_streams}),
            **{**no_backfill(), **settings},
        ) as dag:
            make()
            self.around(dag)
        # Last, for each task would copy all of them, names of streams and all; at run time it gets them from the DAG.
        # Copied: a run writes its values into the fields of its DAG, and several DAGs have the same fields.
        dag.params = copy.deepcopy(dict(params or {}))  # type: ignore[assignment]  # Airflow converts it
        return dag

    def choice(self, streams: Sequence[Stream]) -> Param:
        """The field of a form that says which stream; it is filled in where there is only one.

        :param streams: the streams to choose from.
        """
        names = [stream.name for stream in streams]
        return Param(names[0] if len(names) == 1 else None, type="string", minLength=1, enum=names, title="Stream")
