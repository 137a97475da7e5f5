"""One verdict for a whole query, before it is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ckpt_provider.operators.fields import mapping, text
from airflow_ckpt_provider.operators.guard_operator import GuardOperator
from airflow_ckpt_provider.operators.guard_result import conclude
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused

if TYPE_CHECKING:
    from airflow.sdk import Context


class RecoveryPreflightOperator(GuardOperator):
    """See what the next start of a query would do: its checkpoint, and every one of its sources.

    The verdict is the worst of all. The report has ``verdict``, ``reasons``, ``lost``, ``seconds_left``, ``sources``, and
    ``markdown`` for an approval form.

    Parameters of the query: see :class:`~.guard_operator.GuardOperator`.

    .. code-block:: python

        RecoveryPreflightOperator(
            task_id="preflight",
            checkpoint="s3://lake/checkpoints/orders",
            kafka_config_id="kafka_orders",
        )

    .. seealso:: :doc:`/howto/preflight`

    :param kafka_config_id: Airflow connection of type ``kafka``; ``None``: Kafka sources are ``UNKNOWN``. (templated)
    :param options: what else guards need, by kind of source: ``{"delta": {"tables": {"0": "s3://lake/t"}, "conn_id": "aws"}}``.
        (templated)
    """

    template_fields: Sequence[str] = (*GuardOperator.template_fields, "kafka_config_id", "options")
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json"}

    def __init__(
        self,
        *,
        kafka_config_id: str | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kafka_config_id = kafka_config_id
        self.options = options

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report; a verdict other than ``SAFE`` fails the task, unless it is only to be reported."""
        from airflow_ckpt_provider.guards.query import guard_query
        from airflow_ckpt_provider.operators.source_connections import guards_by_connection

        with no_retry_when_refused():
            reaction, settings = self._reaction(), self._settings(mapping(self.options, "options"))
            guards = guards_by_connection(settings, text(self.kafka_config_id))
            query = self._query()
            query.refuse_other_sources(settings.options)
            report = guard_query(query, settings, guards=guards)
            return {**conclude(report, reaction, context, self), "markdown": report.to_markdown()}
