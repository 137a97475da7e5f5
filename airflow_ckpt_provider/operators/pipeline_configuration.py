"""Put back keys of a pipeline's configuration that a reset has merged into it and could not put back itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.lakeflow.examine import WAIT
from airflow_ckpt_provider.lakeflow.settings import put_back_configuration
from airflow_ckpt_provider.lakeflow.updates import is_continuous
from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineConfigurationPutBackOperator(PipelineOperator):
    """Give keys of a pipeline's configuration the values that they had before a reset; without such keys it changes nothing.

    For a task after the reset (``trigger_rule="one_failed"``, or a teardown): ``ResetCheckpointOperator`` puts them back itself,
    unless its worker was killed and it has no retry left. The former values stand in the configuration. Waits until no update of
    a triggered pipeline is active, for that update may still need what was merged.

    The result: ``pipeline_id``, ``put_back`` (key -> former value, ``None`` for a key that was removed).

    Parameters: see :class:`~.pipeline_waiting.PipelineOperator`.

    .. seealso:: :doc:`/howto/lakeflow-reset`
    """

    def _run(self, context: Context) -> dict[str, Any]:
        pipeline_id = self._pipeline_id()
        if not is_continuous(self.workspace.get_pipeline(pipeline_id)):
            self._free(WAIT)
        return {"pipeline_id": pipeline_id, "put_back": put_back_configuration(self.workspace, pipeline_id)}
