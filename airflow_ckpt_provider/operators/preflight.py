"""One verdict for a whole query, before it is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.guards.durations import seconds_of
from airflow_ckpt_provider.guards.query import guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.operators.fields import flag, one_of, text
from airflow_ckpt_provider.operators.guard_result import REACTIONS, conclude
from airflow_ckpt_provider.operators.kafka_connection import guards_with_kafka
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.upgrade.preflight import query_to_guard

if TYPE_CHECKING:
    from airflow.sdk import Context


class RecoveryPreflightOperator(BaseOperator):
    """See what the next start of a query would do: its checkpoint, and every one of its sources.

    The verdict is the worst of all. The result is the report, as a dictionary and key by key: ``verdict``, ``reasons``,
    ``lost``, ``seconds_left``, ``sources``, and ``markdown`` for an approval form. Before the task fails it is pushed as the
    XCom ``report``.

    .. seealso:: :doc:`/howto/kafka-guard`

    :param checkpoint: URI of the checkpoint; leave it out to ask about a backup. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param repository: URI of a repository with backups of the stream, which know what its sources were; without a
        checkpoint, the backup itself is asked about. (templated)
    :param repository_conn_id: Airflow connection to reach the repository; ``None`` likewise. (templated)
    :param name: name of the stream there; ``None``: the last segment of the checkpoint. (templated)
    :param backup_id: which backup; ``None``: the newest. (templated)
    :param kafka_config_id: Airflow connection of type ``kafka``; ``None``: Kafka sources are ``UNKNOWN``. (templated)
    :param max_downtime: how long the stream will stand still from now on, such as ``"24h"``. (templated)
    :param buffer: time to have in hand after that. (templated)
    :param fail_on_data_loss: ``failOnDataLoss`` of the query's sources, which no checkpoint records. (templated)
    :param options: what else guards need, by kind of source: ``{"kinesis": {"region": "eu-west-1"}}``. (templated)
    :param on_finding: ``"fail"`` the task on a verdict other than ``SAFE``, or ``"warn"``. (templated)
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "checkpoint_conn_id",
        "repository",
        "repository_conn_id",
        "name",
        "backup_id",
        "kafka_config_id",
        "max_downtime",
        "buffer",
        "fail_on_data_loss",
        "options",
        "on_finding",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json"}
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        checkpoint: str | None = None,
        checkpoint_conn_id: str | None = None,
        repository: str | None = None,
        repository_conn_id: str | None = None,
        name: str | None = None,
        backup_id: str | None = None,
        kafka_config_id: str | None = None,
        max_downtime: str | None = None,
        buffer: str = "1h",
        fail_on_data_loss: bool | str = True,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        on_finding: str = "fail",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.checkpoint_conn_id = checkpoint_conn_id
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.name = name
        self.backup_id = backup_id
        self.kafka_config_id = kafka_config_id
        self.max_downtime = max_downtime
        self.buffer = buffer
        self.fail_on_data_loss = fail_on_data_loss
        self.options = options
        self.on_finding = on_finding

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; a verdict other than ``SAFE`` fails the task, unless it is only to be told."""
        with no_retry_when_refused():
            reaction = one_of(self.on_finding, "on_finding", REACTIONS)
            settings = self._settings()
            place, uri = text(self.checkpoint), text(self.repository)
            query = query_to_guard(
                checkpoint=open_place(place, text(self.checkpoint_conn_id)) if place else None,
                repository=Repository.open(open_place(uri, text(self.repository_conn_id))) if uri else None,
                name=text(self.name),
                backup_id=text(self.backup_id),
            )
            report = guard_query(query, settings, guards=guards_with_kafka(settings, text(self.kafka_config_id)))
            return {**conclude(report, reaction, context, self.log), "markdown": report.to_markdown()}

    def _settings(self) -> GuardSettings:
        downtime = text(self.max_downtime)
        return GuardSettings(
            fail_on_data_loss=flag(self.fail_on_data_loss, "fail_on_data_loss"),
            max_downtime=seconds_of(downtime, field="max_downtime") if downtime else None,
            buffer=seconds_of(text(self.buffer) or "0", field="buffer") if downtime else 0.0,
            options={kind: dict(values) for kind, values in (self.options or {}).items()},
        )
