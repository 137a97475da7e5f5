"""Find where the flows of a Lakeflow pipeline have to begin after a reset of their checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.lakeflow.examine import examine, names_of
from airflow_ckpt_provider.lakeflow.found_position import Terms
from airflow_ckpt_provider.lakeflow.gathering import AskKafka, Readers
from airflow_ckpt_provider.lakeflow.kafka_state import asking
from airflow_ckpt_provider.lakeflow.queries import warehouse_queries
from airflow_ckpt_provider.lakeflow.recovery_steps import AboutFlow, recovery_steps
from airflow_ckpt_provider.operators.fields import seconds, text
from airflow_ckpt_provider.operators.kafka_connection import open_kafka
from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator
from airflow_ckpt_provider.operators.run_identity import made_by

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelinePositionsOperator(PipelineOperator):
    """Go through the five steps of a checkpoint's recovery for each flow: identify, position, how it is carried, reset, verify.

    Sends nothing but reads. Positions come from the event log's progress, the histories of source and target, the files of Auto
    Loader and Kafka's timestamps; without any of these the verdict is ``UNKNOWN``.

    The result: ``verdict``, ``flows``, ``steps`` (one a flow), ``plan`` and ``markdown`` of the reset, and the arguments of
    ``ResetCheckpointOperator``: ``starting_positions``, ``configuration``, ``parameters``, ``wait_for``; ``checks`` for
    ``TableCheckOperator``.

    Parameters: see :class:`~.pipeline_waiting.PipelineOperator`.

    .. code-block:: python

        PipelinePositionsOperator(
            task_id="positions",
            pipeline_name="customers",
            flows=["orders_flow"],
            warehouse_id="8f2d",
        )

    .. seealso:: :doc:`/howto/lakeflow-positions`

    :param flows: names of the flows; by default those that failed in the newest update that failed. (templated)
    :param about: flow -> what is known of it: ``sources`` (name -> ``kafka``, ``delta``, ``files``), ``carried_by`` (option ->
        key that its code reads), ``carried_in`` (``configuration`` or ``parameters``), ``language``, ``target`` (``append``,
        ``apply_changes``, ``apply_changes_scd2``, ``dedup``), ``keys``, ``stateful``; a name without catalog and schema will do.
        (templated)
    :param margin: seconds, or a timedelta, by which a position found by times lies before them; by default an hour. Giving it
        says that no file or record arrives later than that after its own time. (templated)
    :param warehouse_id: SQL warehouse for the histories; ``None``: they are not read. (templated)
    :param kafka_config_id: Airflow connection of type ``kafka``; ``None``: Kafka is not asked. (templated)
    """

    template_fields: Sequence[str] = (
        *PipelineOperator.template_fields,
        "flows",
        "about",
        "margin",
        "warehouse_id",
        "kafka_config_id",
    )

    def __init__(
        self,
        *,
        flows: Sequence[str] | str | None = None,
        about: Mapping[str, Any] | str | None = None,
        margin: timedelta | float | str | None = None,
        warehouse_id: str | None = None,
        kafka_config_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.flows = flows
        self.about = about
        self.margin = margin
        self.warehouse_id = warehouse_id
        self.kafka_config_id = kafka_config_id

    def _run(self, context: Context) -> dict[str, Any]:
        warehouse, config_id = text(self.warehouse_id), text(self.kafka_config_id)
        queries = None
        if warehouse:
            interval = seconds(self.poll_interval, "poll_interval").total_seconds()
            queries = warehouse_queries(self.workspace, warehouse, interval=min(2.0, interval))
        kafka: AskKafka | None = asking(open_kafka(config_id)) if config_id else None
        found = recovery_steps(
            self.workspace,
            examine(self.workspace, self._pipeline_id()),
            Readers(queries, kafka),
            flows=names_of(self.flows, "flows"),
            about=AboutFlow.from_json(self.about),
            terms=Terms(margin=self._margin()),
            made_by=made_by(context) or str(self.task_id),
        )
        self.log.info("\n%s", found.to_markdown())
        return found.to_json()

    def _margin(self) -> timedelta | None:
        given = text(self.margin) if isinstance(self.margin, str) else self.margin
        return None if given is None else seconds(given, "margin", least=0.0)
