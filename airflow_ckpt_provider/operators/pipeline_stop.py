"""Stop a Lakeflow pipeline, and wait until it stands still."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.lakeflow.examine import STOP, examine
from airflow_ckpt_provider.lakeflow.updates import active_update
from airflow_ckpt_provider.operators.pipeline_waiting import DEFERRABLE, POLL_INTERVAL, TIMEOUT, PipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineStopOperator(PipelineOperator):
    """Stop whatever is active in a pipeline and wait until nothing is; does nothing where nothing is.

    The result: ``pipeline_id``, ``state`` (``IDLE``, or ``FAILED`` where its last update failed), ``stopped_update_id`` (``None``
    where none was active).

    .. seealso:: :doc:`/howto/lakeflow-reset`

    :param pipeline_id: the pipeline; or ``pipeline_name``. (templated)
    :param pipeline_name: its name, which only one may have. (templated)
    :param databricks_conn_id: Airflow connection of type ``databricks``. (templated)
    :param poll_interval: seconds between two looks.
    :param timeout: seconds or a timedelta for the waiting.
    :param deferrable: wait in the triggerer, without a worker.
    """

    template_fields: Sequence[str] = ("pipeline_id", "pipeline_name", "databricks_conn_id")

    def __init__(
        self,
        *,
        pipeline_id: str | None = None,
        pipeline_name: str | None = None,
        databricks_conn_id: str = "databricks_default",
        poll_interval: timedelta | float = POLL_INTERVAL,
        timeout: timedelta | float = TIMEOUT,
        deferrable: bool = DEFERRABLE,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            pipeline_id=pipeline_id,
            pipeline_name=pipeline_name,
            databricks_conn_id=databricks_conn_id,
            poll_interval=poll_interval,
            timeout=timeout,
            deferrable=deferrable,
            **kwargs,
        )

    def _run(self, context: Context) -> dict[str, Any]:
        pipeline_id = self._pipeline_id()
        found = examine(self.workspace, pipeline_id, with_flows=False).pipeline
        if active := active_update(found):
            self._kept.data["stopped"] = active
            self._kept.keep()
            self._free(STOP)
            found = self.workspace.get_pipeline(pipeline_id)
        return {
            "pipeline_id": pipeline_id,
            "state": found.get("state"),
            "stopped_update_id": self._kept.data.get("stopped"),
        }
