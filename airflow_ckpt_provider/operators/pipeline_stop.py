"""Stop a Lakeflow pipeline, and wait until it is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.lakeflow.examine import STOP, examine
from airflow_ckpt_provider.lakeflow.updates import active_update
from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineStopOperator(PipelineOperator):
    """Stop the active update of a pipeline and wait until none is active; without an active update it changes nothing.

    The result: ``pipeline_id``, ``state`` (``IDLE``, or ``FAILED`` where its last update failed), ``stopped_update_id`` (``None``
    if none was active).

    Parameters: see :class:`~.pipeline_waiting.PipelineOperator`.

    .. code-block:: python

        PipelineStopOperator(
            task_id="stop",
            pipeline_name="customers",
        )

    .. seealso:: :doc:`/howto/lakeflow-reset`
    """

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
