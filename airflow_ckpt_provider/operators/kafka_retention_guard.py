"""Will Kafka still have it? Before a stream is started, and before it is stopped for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.durations import seconds_of
from airflow_ckpt_provider.guards.query import GuardedQuery, guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.operators.fields import flag, one_of, required, text
from airflow_ckpt_provider.operators.guard_result import REACTIONS, conclude
from airflow_ckpt_provider.operators.kafka_connection import open_kafka
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.places import open_place
from airflow_ckpt_provider.upgrade.preflight import query_to_guard

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.guards.kafka_client import KafkaClient
    from airflow_ckpt_provider.guards.kafka_raise import RaisedRetention
    from airflow_ckpt_provider.guards.report import GuardReport

#: Where a task keeps what it is about to change, for its next attempt (Airflow 3.3 and later).
_STATE_KEY = "ckpt_raised_retention"


class KafkaRetentionGuardOperator(BaseOperator):
    """See that Kafka still has every offset of the resume point, and for how long.

    Reads only: it joins no consumer group and commits nothing. The result is the report, as a dictionary and key by key
    (``guard.output["verdict"]``): ``verdict``, ``reasons``, ``lost``, ``seconds_left``, ``sources`` with their
    partitions, and ``raised``. Before the task fails it is pushed as the XCom ``report``. A broker that cannot be asked
    is an error that Airflow may retry, not a verdict.

    With ``raise_retention`` the topics' ``retention.ms`` is raised as far as the planned downtime needs;
    :class:`KafkaRetentionRestoreOperator` puts it back, best as a teardown::

        restore = KafkaRetentionRestoreOperator(task_id="restore", raised=guard.output["raised"])
        guard >> downtime >> restore.as_teardown(setups=guard)

    .. seealso:: :doc:`/howto/kafka-guard`

    :param checkpoint: URI of the checkpoint; leave it out to ask about a backup or about ``offsets``. (templated)
    :param checkpoint_conn_id: Airflow connection to reach it; ``None``: the environment's own credentials. (templated)
    :param kafka_config_id: Airflow connection of type ``kafka``. (templated)
    :param source: position (``"0"``) or name of one source; ``None``: all Kafka sources of the query. (templated)
    :param offsets: Kafka offsets instead of a checkpoint, as Spark's ``startingOffsets``: text or mapping. (templated)
    :param repository: URI of a repository: its backups know the topics' identities, so a topic that was made again is
        noticed; without a checkpoint, the backup itself is asked about. (templated)
    :param repository_conn_id: Airflow connection to reach the repository; ``None`` likewise. (templated)
    :param name: name of the stream there; ``None``: the last segment of the checkpoint. (templated)
    :param backup_id: which backup; ``None``: the newest. (templated)
    :param max_downtime: how long the stream will stand still from now on, such as ``"24h"``. (templated)
    :param buffer: time to have in hand after that. (templated)
    :param fail_on_data_loss: the query's ``failOnDataLoss``, which no checkpoint records. (templated)
    :param isolation_level: the query's ``kafka.isolation.level``. (templated)
    :param on_finding: ``"fail"`` the task on a verdict other than ``SAFE``, or ``"warn"``. (templated)
    :param on_short_retention: likewise for a retention that is too short for ``max_downtime``. (templated)
    :param raise_retention: raise ``retention.ms`` where it is too short for ``max_downtime``. (templated)
    :param raise_retention_to_at_most: the longest that may be set, such as ``"7d"``; needed for that. (templated)
    :param timeout: seconds that one look at the broker may take.
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "checkpoint_conn_id",
        "kafka_config_id",
        "source",
        "offsets",
        "repository",
        "repository_conn_id",
        "name",
        "backup_id",
        "max_downtime",
        "buffer",
        "fail_on_data_loss",
        "isolation_level",
        "on_finding",
        "on_short_retention",
        "raise_retention",
        "raise_retention_to_at_most",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"offsets": "json"}
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        checkpoint: str | None = None,
        checkpoint_conn_id: str | None = None,
        kafka_config_id: str = "kafka_default",
        source: str | int | None = None,
        offsets: str | Mapping[str, Any] | None = None,
        repository: str | None = None,
        repository_conn_id: str | None = None,
        name: str | None = None,
        backup_id: str | None = None,
        max_downtime: str | None = None,
        buffer: str = "1h",
        fail_on_data_loss: bool | str = True,
        isolation_level: str = "read_uncommitted",
        on_finding: str = "fail",
        on_short_retention: str = "fail",
        raise_retention: bool | str = False,
        raise_retention_to_at_most: str | None = None,
        timeout: float = 10.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.checkpoint_conn_id = checkpoint_conn_id
        self.kafka_config_id = kafka_config_id
        self.source = source
        self.offsets = offsets
        self.repository = repository
        self.repository_conn_id = repository_conn_id
        self.name = name
        self.backup_id = backup_id
        self.max_downtime = max_downtime
        self.buffer = buffer
        self.fail_on_data_loss = fail_on_data_loss
        self.isolation_level = isolation_level
        self.on_finding = on_finding
        self.on_short_retention = on_short_retention
        self.raise_retention = raise_retention
        self.raise_retention_to_at_most = raise_retention_to_at_most
        self.timeout = timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; a verdict other than ``SAFE`` fails the task, unless it is only to be told."""
        with no_retry_when_refused():
            reaction = one_of(self.on_finding, "on_finding", REACTIONS)
            settings = self._settings()
            cluster = open_kafka(required(self.kafka_config_id, "kafka_config_id"), timeout=self.timeout)
            query = self._query()
            report = self._judge(query, settings, cluster)
            raised = self._raise(report, cluster, context) if flag(self.raise_retention, "raise_retention") else []
            if raised:
                report = self._judge(query, settings, cluster)
            try:
                result = conclude(report, reaction, context, self.log)
            except RefusedError:
                self._put_back(raised, cluster)
                raise
        return {**result, "raised": [change.to_json() for change in raised]}

    def _settings(self) -> GuardSettings:
        downtime = text(self.max_downtime)
        options = {
            "isolation_level": one_of(self.isolation_level, "isolation_level", ("read_uncommitted", "read_committed")),
            "warn_only": one_of(self.on_short_retention, "on_short_retention", REACTIONS) == "warn",
        }
        return GuardSettings(
            fail_on_data_loss=flag(self.fail_on_data_loss, "fail_on_data_loss"),
            max_downtime=seconds_of(downtime, field="max_downtime") if downtime else None,
            buffer=seconds_of(text(self.buffer) or "0", field="buffer") if downtime else 0.0,
            options={"kafka": options},
        )

    def _query(self) -> GuardedQuery:
        place, uri = text(self.checkpoint), text(self.repository)
        offsets = self.offsets if isinstance(self.offsets, Mapping) else text(self.offsets)
        query = query_to_guard(
            checkpoint=open_place(place, text(self.checkpoint_conn_id)) if place else None,
            repository=Repository.open(open_place(uri, text(self.repository_conn_id))) if uri else None,
            name=text(self.name),
            backup_id=text(self.backup_id),
            offsets=offsets,
        )
        return query.of_kind("kafka", text(self.source))

    def _judge(self, query: GuardedQuery, settings: GuardSettings, cluster: KafkaClient) -> GuardReport:
        from airflow_ckpt_provider.guards.kafka import KafkaGuard

        return guard_query(query, settings, guards=[KafkaGuard(settings, cluster)])

    def _raise(self, report: GuardReport, cluster: KafkaClient, context: Context) -> list[RaisedRetention]:
        """Raise what is too short; what was there before is kept where the next attempt finds it, before it is changed."""
        from airflow_ckpt_provider.guards.kafka_raise import RaisedRetention, plan_raise, raise_retention

        bound = text(self.raise_retention_to_at_most)
        if bound is None:
            raise RefusedError(
                "raise_retention needs an upper bound", hint="give raise_retention_to_at_most, such as 7d"
            )
        if text(self.max_downtime) is None:
            raise RefusedError("raise_retention needs the planned downtime", hint="give max_downtime, such as 24h")
        state: Any = context.get("task_state_store")
        before = [RaisedRetention.from_json(each) for each in (state.get(_STATE_KEY) or [] if state else [])]
        at_most = int(seconds_of(bound, field="raise_retention_to_at_most") * 1000)
        planned = plan_raise(report, at_most_ms=at_most)
        # Of a topic that an attempt before has raised, what was there before that attempt is what has to come back.
        first = {change.topic: change for change in before}
        record = {change.topic: change for change in before}
        for change in planned:
            known = first.get(change.topic)
            record[change.topic] = (
                RaisedRetention(change.topic, known.old_retention_ms, known.inherited, change.new_retention_ms)
                if known
                else change
            )
        if record and state:
            state.set(_STATE_KEY, [change.to_json() for change in record.values()])
        for change in planned:
            self.log.info(
                "Raising retention.ms of topic %s from %d%s to %d",
                change.topic,
                change.old_retention_ms,
                " (inherited)" if change.inherited else "",
                change.new_retention_ms,
            )
        raise_retention(cluster.again(), planned)
        return list(record.values())

    def _put_back(self, raised: list[RaisedRetention], cluster: KafkaClient) -> None:
        """Undo the raise: a teardown does not run after a setup that failed."""
        if raised:
            from airflow_ckpt_provider.guards.kafka_raise import restore_retention

            self.log.info("Put back: %s", restore_retention(cluster.again(), raised))


class KafkaRetentionRestoreOperator(BaseOperator):
    """Put ``retention.ms`` back as it was before :class:`KafkaRetentionGuardOperator` raised it.

    A setting that was the broker's default becomes that again. What somebody has changed since is left, and said. Running it
    again changes nothing. The result says for each topic what was done: ``restored``, ``changed since``, ``topic is gone``.

    .. seealso:: :doc:`/howto/kafka-guard`

    :param raised: ``guard.output["raised"]``. (templated)
    :param kafka_config_id: Airflow connection of type ``kafka``. (templated)
    :param timeout: seconds that it may take.
    """

    template_fields: Sequence[str] = ("raised", "kafka_config_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"raised": "json"}
    ui_color = "#fff2cc"

    def __init__(
        self,
        *,
        raised: Any,
        kafka_config_id: str = "kafka_default",
        timeout: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.raised = raised
        self.kafka_config_id = kafka_config_id
        self.timeout = timeout

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Return what was done, topic by topic."""
        import json

        from airflow_ckpt_provider.guards.kafka_raise import RaisedRetention, restore_retention

        with no_retry_when_refused():
            given = self.raised
            if isinstance(given, str):
                try:
                    given = json.loads(text(given) or "[]")
                except ValueError as e:
                    raise RefusedError(f"raised is {given!r}", hint="give guard.output['raised']") from e
            changes = [RaisedRetention.from_json(each) for each in given or []]
            if not changes:
                self.log.info("Nothing was raised")
                return []
            cluster = open_kafka(required(self.kafka_config_id, "kafka_config_id"), timeout=self.timeout)
            done = restore_retention(cluster, changes)
        for each in done:
            self.log.info("Topic %s: retention.ms %s", each["topic"], each["outcome"])
        return done
