"""What the operators on several streams have in common: the streams, and a change of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.fleet.application import application_streams
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.operators.change_operator import APPLY, ChangeOperator
from airflow_ckpt_provider.operators.declared_fleet import repository_of
from airflow_ckpt_provider.operators.fields import flag, mapping, text, text_settings, texts
from airflow_ckpt_provider.operators.place_operators import RepositoryOperator
from airflow_ckpt_provider.operators.run_identity import has_been_tried, made_by
from airflow_ckpt_provider.operators.source_connections import guards_by_connection
from airflow_ckpt_provider.operators.spark_restore import restore_by_connection, spark_engines
from airflow_ckpt_provider.operators.submitting import SubmittingOperator
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.recovery.chains.naming import stream_of
from airflow_ckpt_provider.recovery.chains.stream import ChainStream, named_streams
from airflow_ckpt_provider.recovery.chains.together import carried_out_by
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.streams.parameters import connected_guard_options

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.guards.registry import Guard
    from airflow_ckpt_provider.storage.location import Location
    from airflow_ckpt_provider.streams.stream import Stream


class ChainOperator(RepositoryOperator, SubmittingOperator):
    """Base of the operators on several streams.

    Parameters of the repository: see :class:`~.place_operators.RepositoryOperator`. It keeps what is removed of all streams;
    ``None``: ``<checkpoint>.rewinds`` of each.

    :param streams: the streams, each as ``NAME=CHECKPOINT,sink=SINK``, with more ``sink=`` where it writes to several, each
        followed by its ``txn-app-id=`` and ``policy=keep`` where it has them: a list, or text with one in each line. (templated)
    :param application: in place of ``streams``: all streams that are declared with this application, with their connections.
        (templated)
    :param checkpoint_conn_id: Airflow connection to reach all checkpoints; ``None``: the environment's own credentials.
        (templated)
    :param sink_conn_id: Airflow connection to read the logs of all sinks; ``None``: the environment's own credentials.
        (templated)
    :param sink_options: settings of the tables' store as ``deltalake`` names them, or of an Iceberg catalog as ``pyiceberg``
        names them. (templated)
    :param spark_conn_id: Airflow connection of type ``spark``, by which tables with features that ``deltalake`` cannot restore
        are rolled back; their queries get new ids then. ``None``: such a table is refused. (templated)
    :param spark_settings: what ``SparkSubmitHook`` is given: ``packages``, ``conf``, …. (templated)
    """

    template_fields: Sequence[str] = (
        *RepositoryOperator.template_fields,
        "streams",
        "application",
        "checkpoint_conn_id",
        "sink_conn_id",
        "sink_options",
        "spark_conn_id",
        "spark_settings",
    )

    def __init__(
        self,
        *,
        streams: Sequence[str] | str = (),
        application: str | None = None,
        repository: str | None = None,
        checkpoint_conn_id: str | None = None,
        sink_conn_id: str | None = None,
        sink_options: dict[str, str] | None = None,
        spark_conn_id: str | None = None,
        spark_settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(repository=repository, **kwargs)
        self.spark_conn_id = spark_conn_id
        self.spark_settings = spark_settings
        self.streams = streams
        self.application = application
        self.checkpoint_conn_id = checkpoint_conn_id
        self.sink_conn_id = sink_conn_id
        self.sink_options = sink_options

    def _streams(self) -> tuple[ChainStream, ...]:
        """The streams that are given, or declared."""
        place = self._repository_place() if self._repository_uri() else None
        lines = [
            line.strip() for given in texts(self.streams, "streams") for line in given.splitlines() if line.strip()
        ]
        if (application := text(self.application)) is not None:
            if lines:
                raise RefusedError("streams and application are both given", hint="give one of them")
            found = application_streams(
                self.declared_streams().of_application(application),
                open_checkpoint=lambda uri, conn_id: self._open(uri, text(self.checkpoint_conn_id) or conn_id),
                open_repository=lambda uri, conn_id: open_place(uri, text(self.repository_conn_id) or conn_id),
                named_sink=lambda stream, sink, conn_id: self._sink(
                    sink.sink, sink.txn_app_id, conn_id, options=sink.options, spark_conn_id=stream.spark_conn_id
                ),
                repository=place,
                guards=self._guards,
            )
            return named_streams(found)
        return named_streams(
            tuple(
                stream_of(
                    line,
                    open_checkpoint=lambda uri: self._open(uri, text(self.checkpoint_conn_id)),
                    named_sink=self._sink,
                    repository=place,
                )
                for line in lines
            )
        )

    def _guards(self, stream: Stream) -> tuple[Guard, ...]:
        """The guards of a stream; only a rewind asks them."""
        kafka = text(getattr(self, "kafka_config_id", None))
        return guards_by_connection(GuardSettings(options=connected_guard_options(stream)), kafka)

    def _sink(
        self,
        name: str,
        app_id: str | None,
        conn_id: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        spark_conn_id: str | None = None,
    ) -> Sink:
        spark, settings = text(self.spark_conn_id) or spark_conn_id, mapping(self.spark_settings, "spark_settings")
        return Sink.named(
            name,
            lambda uri: self._open(uri, text(self.sink_conn_id) or conn_id),
            app_id=app_id,
            storage_options={**(options or {}), **text_settings(self.sink_options, "sink_options")},
            by_spark=restore_by_connection(spark, under_way=self._submitted, **settings) if spark else None,
            engines=spark_engines(spark, settings, self._submitted),
        )

    def _set_repository(self) -> Repository:
        """The repository of a set: the one that is given, else the one that all streams of the application declare."""
        application = text(self.application)
        if self._repository_uri() or application is None:
            return self._open_repository()
        declared = self.declared_streams().of_application(application)
        return repository_of(declared, text(self.repository_conn_id))

    def _open(self, uri: str, conn_id: str | None) -> Location:
        return self.opened(open_place(uri, conn_id))


class JointOperator(ChangeOperator, ChainOperator):
    """Base of the operators that plan a change of several streams and apply it.

    Parameters of streams and change: see :class:`~.chain_operator.ChainOperator` and :class:`~.change_operator.ChangeOperator`.

    :param stop_running: stop queries that still run: all checkpoints are sealed, and each query ends at its batch boundary.
        (templated)
    """

    template_fields: Sequence[str] = (
        *ChainOperator.template_fields,
        *ChangeOperator.template_fields,
        "stop_running",
    )

    def __init__(self, *, stop_running: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stop_running = stop_running

    def _together(self, context: Context, shown: dict[str, Any]) -> dict[str, Any]:
        """What carrying a plan over several streams out takes.

        :param shown: gets what the task says of the plan.
        """
        return {
            "accept": self._accepted(),
            "fingerprint": text(self.fingerprint),
            "rest": lambda checkpoint: self._rest(checkpoint, context),
            "stop_running": flag(self.stop_running, "stop_running"),
            "made_by": made_by(context),
            "reason": text(self.reason) or "",
            "on_plan": lambda made: shown.update(self._shown(made)),
        }

    def _done_before(self, streams: Sequence[ChainStream], context: Context, kind: str) -> dict[str, Any] | None:
        """What the attempt before this one returned that has carried it out."""
        done = carried_out_by(streams, made_by(context), kind=kind) if has_been_tried(context) else None
        if done is None or self._is_asked_again(done):
            return None
        self.log.info("An attempt before this one carried chain %s out: nothing is changed.", done["plan_id"])
        outcome = {"plan_id": done["plan_id"], "streams": [], "seconds": 0.0, "already_done": True}
        return self._carried_out({"mode": APPLY, "plan": done["plan"], "markdown": "", "outcome": outcome}, context)
