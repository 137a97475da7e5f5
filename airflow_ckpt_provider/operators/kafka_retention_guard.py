"""Will Kafka still have it? Before a stream is started, and before it is stopped for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ckpt_provider.errors import ChangeRunningError, CkptError, RefusedError
from airflow_ckpt_provider.json_text import load_rendered
from airflow_ckpt_provider.operators.fields import by_source, flag, one_of, required, text
from airflow_ckpt_provider.operators.guard_operator import GuardOperator
from airflow_ckpt_provider.operators.guard_result import REACTIONS, conclude, skip_if_absent
from airflow_ckpt_provider.operators.masking import MaskingOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.task_memory import TaskMemory
from airflow_ckpt_provider.units import parse_seconds
from airflow_ckpt_provider.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ckpt_provider.guards.kafka_client import KafkaClient
    from airflow_ckpt_provider.guards.kafka_raise import RaisedRetention
    from airflow_ckpt_provider.guards.query import GuardedQuery
    from airflow_ckpt_provider.guards.registry import GuardSettings
    from airflow_ckpt_provider.guards.report import GuardReport

#: Where a task keeps what it is about to change, for its next attempt (Airflow 3.3 and later).
_STATE_KEY = "ckpt_raised_retention"


class KafkaRetentionGuardOperator(GuardOperator):
    """See that Kafka still has every offset of the resume point, and for how long.

    Reads only: it joins no consumer group and commits nothing. The report has ``verdict``, ``reasons``, ``lost``,
    ``seconds_left``, ``sources`` with their partitions, and ``raised``. A broker that cannot be asked is an error that Airflow
    may retry, not a verdict.

    With ``raise_retention`` the topics' ``retention.ms`` is raised as far as the planned downtime needs, and never lowered: of
    a topic that somebody else has given enough meanwhile nothing is set. A reason names each topic that has enough by a setting
    of its own that this guard has not made. :class:`KafkaRetentionRestoreOperator` puts back what was raised, best as a
    teardown::

        restore = KafkaRetentionRestoreOperator(task_id="restore", raised=guard.output["raised"])
        guard >> downtime >> restore.as_teardown(setups=guard)

    Parameters of the query: see :class:`~.guard_operator.GuardOperator`.

    .. code-block:: python

        KafkaRetentionGuardOperator(
            task_id="guard",
            checkpoint="s3://lake/checkpoints/orders",
            kafka_config_id="kafka_orders",
            max_downtime="24h",
        )

    .. seealso:: :doc:`/howto/kafka-guard`

    :param kafka_config_id: Airflow connection of type ``kafka``. (templated)
    :param source: position (``"0"``) or name of one source; ``None``: all Kafka sources of the query. (templated)
    :param offsets: Kafka offsets instead of a checkpoint, as Spark's ``startingOffsets``: text or mapping. (templated)
    :param reader_options: options of the query's reader that say which topics it reads (``subscribePattern``, ``subscribe``,
        ``assign``), which no checkpoint records, or source -> options. (templated)
    :param isolation_level: the query's ``kafka.isolation.level``. (templated)
    :param on_short_retention: as ``on_finding``, for a retention that is too short for ``max_downtime``. (templated)
    :param raise_retention: raise ``retention.ms`` where it is too short for ``max_downtime``. (templated)
    :param raise_retention_to_at_most: the longest that may be set, such as ``"7d"``; needed for that. (templated)
    :param if_absent: ``"fail"`` where the query has no Kafka source, or ``"skip"`` the task: for one guard over streams of
        several kinds. A source of unknown kind is no reason to skip. (templated)
    :param timeout: seconds that one question to the broker may take.
    """

    template_fields: Sequence[str] = (
        *GuardOperator.template_fields,
        "kafka_config_id",
        "source",
        "offsets",
        "reader_options",
        "isolation_level",
        "on_short_retention",
        "raise_retention",
        "raise_retention_to_at_most",
        "if_absent",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"offsets": "json", "reader_options": "json"}
    stream_aliases: ClassVar[Mapping[str, str]] = {"reader_options": "kafka_reader_options"}

    def __init__(
        self,
        *,
        kafka_config_id: str = "kafka_default",
        source: str | int | None = None,
        offsets: str | Mapping[str, Any] | None = None,
        reader_options: Mapping[str, Any] | None = None,
        isolation_level: str = "read_uncommitted",
        on_short_retention: str = "fail",
        raise_retention: bool | str = False,
        raise_retention_to_at_most: str | None = None,
        if_absent: str = "fail",
        timeout: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kafka_config_id = kafka_config_id
        self.source = source
        self.offsets = offsets
        self.reader_options = reader_options
        self.isolation_level = isolation_level
        self.on_short_retention = on_short_retention
        self.raise_retention = raise_retention
        self.raise_retention_to_at_most = raise_retention_to_at_most
        self.if_absent = if_absent
        self.timeout = timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; a verdict other than ``SAFE`` fails the task, unless it is only to be reported."""
        from airflow_ckpt_provider.guards.kafka_raise import set_by_others
        from airflow_ckpt_provider.guards.report import Judgement
        from airflow_ckpt_provider.operators.kafka_connection import open_kafka

        with no_retry_when_refused(), skip_if_absent(self.if_absent):
            reaction = self._reaction()
            offsets = self.offsets if isinstance(self.offsets, Mapping) else text(self.offsets)
            query = self._query(offsets).of_kind("kafka", text(self.source))
            settings = self._settings({"kafka": self._options([source.name for source in query.sources])})
            query.refuse_other_sources(settings.options)
            # After the query: a stream without Kafka needs no connection to it.
            cluster = open_kafka(required(self.kafka_config_id, "kafka_config_id"), timeout=self.timeout)
            report = self._judge(query, settings, cluster)
            raised: list[RaisedRetention] = []
            try:
                if flag(self.raise_retention, "raise_retention"):
                    if self._raise(report, cluster, context, raised):
                        # What each topic has now counts, whoever has set it.
                        report = self._judge(query, settings, cluster)
                    notes = tuple(Judgement(Verdict.SAFE, note) for note in set_by_others(report, raised))
                    report = replace(report, judgements=(*report.judgements, *notes))
                result = conclude(report, reaction, context, self)
            except ChangeRunningError:
                raise  # another attempt took over: what is set is its own now
            except BaseException:
                self._put_back(raised, cluster)
                raise
        return {**result, "raised": [change.to_json() for change in raised]}

    def _options(self, sources: list[str]) -> dict[str, Any]:
        from airflow_ckpt_provider.guards.kafka import ISOLATION_LEVELS

        return {
            "options": by_source(self.reader_options, "reader_options", sources),
            "isolation_level": one_of(self.isolation_level, "isolation_level", ISOLATION_LEVELS),
            "warn_only": one_of(self.on_short_retention, "on_short_retention", REACTIONS) == "warn",
        }

    def _judge(self, query: GuardedQuery, settings: GuardSettings, cluster: KafkaClient) -> GuardReport:
        from airflow_ckpt_provider.guards.kafka import KafkaGuard
        from airflow_ckpt_provider.guards.query import guard_query

        return guard_query(query, settings, guards=[KafkaGuard(settings, cluster)])

    def _raise(
        self, report: GuardReport, cluster: KafkaClient, context: Context, raised: list[RaisedRetention]
    ) -> bool:
        """Raise what is too short. What was there before is kept where the next attempt finds it, before it is changed.

        :param raised: gets all that is to be put back, also if this fails.
        :return: whether anything was too short.
        """
        from airflow_ckpt_provider.guards.kafka_raise import RaisedRetention, plan_raise, raise_retention

        bound = text(self.raise_retention_to_at_most)
        if bound is None:
            raise RefusedError(
                "raise_retention needs an upper bound", hint="give raise_retention_to_at_most, such as 7d"
            )
        if text(self.max_downtime) is None:
            raise RefusedError("raise_retention needs the planned downtime", hint="give max_downtime, such as 24h")
        at_most = int(parse_seconds(bound, field="raise_retention_to_at_most") * 1000)
        planned = plan_raise(report, at_most_ms=at_most)
        # Of a topic that an attempt before has raised, also before a clear, what was there before that attempt is what has to be
        # put back, as long as the topic has what that attempt has set.
        memory = TaskMemory(context, _STATE_KEY, retries=int(self.retries or 0), outlives_clear=True)
        store: Any = context.get("task_state_store")
        old = store.get(_STATE_KEY) if store is not None else None  # a version before kept a list
        kept = old if isinstance(old, list) else memory.data.get("raised", [])

        def keep(changes: list[RaisedRetention]) -> None:
            memory.data["raised"] = [change.to_json() for change in changes]
            memory.keep()
            raised[:] = changes

        before = [RaisedRetention.from_json(each) for each in kept]
        raise_retention(cluster.again(), planned, before=before, keep=keep)
        return bool(planned)

    def _put_back(self, raised: list[RaisedRetention], cluster: KafkaClient) -> None:
        """Undo the raise: a teardown does not run after a setup that failed. The task ends with the error that it has."""
        from airflow_ckpt_provider.guards.kafka_raise import restore_retention

        try:
            if raised:
                self.log.info("Put back: %s", restore_retention(cluster.again(), raised))
        except CkptError:
            self.log.exception("Retention was not put back: %s", [change.to_json() for change in raised])


class KafkaRetentionRestoreOperator(MaskingOperator):
    """Put ``retention.ms`` back as it was before :class:`KafkaRetentionGuardOperator` raised it.

    A setting that was the broker's default becomes that again. What somebody has changed since is left as it is, and
    reported. Running it again changes nothing. The result says for each topic what was done:
    ``restored``, ``changed since``, ``topic is gone``.

    .. code-block:: python

        guard = KafkaRetentionGuardOperator(
            task_id="guard",
            checkpoint="s3://lake/checkpoints/orders",
            max_downtime="30h",
            raise_retention=True,
            raise_retention_to_at_most="7d",
        )
        KafkaRetentionRestoreOperator(task_id="restore", raised=guard.output["raised"]).as_teardown(setups=guard)

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
        from airflow_ckpt_provider.guards.kafka_raise import RaisedRetention, restore_retention
        from airflow_ckpt_provider.operators.kafka_connection import open_kafka

        with no_retry_when_refused():
            given = self.raised
            if isinstance(given, str):
                try:
                    given = load_rendered(text(given) or "[]")
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
