"""Put back keys of a pipeline's configuration that a reset has merged into it and could not put back itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.lakeflow.settings import PUT_BACK_HINT, changed_by, needed_until, put_back_configuration
from airflow_ckpt_provider.lakeflow.updates import configuration_of
from airflow_ckpt_provider.operators.fields import text
from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator
from airflow_ckpt_provider.operators.run_identity import made_by

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineConfigurationPutBackOperator(PipelineOperator):
    """Give keys of a pipeline's configuration the values that they had before a reset; without such keys it changes nothing.

    For a task after the reset (``trigger_rule="one_failed"``, or a teardown): ``ResetCheckpointOperator`` puts them back itself,
    unless its worker was killed and it has no retry left. The former values are in the configuration. Only keys of this run of
    the DAG are put back; those of another run may still be needed, and are named in the result. A key that somebody has changed
    since stays as it is, and so does one that its flow may need after its first start, as the plan of the reset said. Waits until
    no update is active, for that update may still need what was merged; in a continuous pipeline until the flows run in it.

    The result: ``pipeline_id``, ``put_back`` (key -> former value, ``None`` for a key that was removed), ``changed_since`` (key
    -> the value of somebody else, which stands), ``left_to`` (whose keys were left, or ``None``).

    Parameters: see :class:`~.pipeline_waiting.PipelineOperator`.

    .. code-block:: python

        PipelineConfigurationPutBackOperator(
            task_id="put_back",
            pipeline_name="customers",
            trigger_rule="one_failed",
            retries=5,
        )

    .. seealso:: :doc:`/howto/lakeflow-reset`

    :param changed_by: whose keys are put back, as the plan of a reset names them (``dag_id/run_id/task_id/map_index``); by
        default those of all tasks of this run. (templated)
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "changed_by")

    def __init__(self, *, changed_by: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.changed_by = changed_by

    def _run(self, context: Context) -> dict[str, Any]:
        pipeline_id = self._pipeline_id()
        given = text(self.changed_by)
        # Outside of a task run nobody's name is known, and whoever calls this decides.
        by = given or "".join(f"{part}/" for part in made_by(context).split("/")[:2] if part)
        pipeline = self.workspace.get_pipeline(pipeline_id)
        whose = changed_by(configuration_of(pipeline))
        if given and whose and whose != given and not (given.endswith("/") and whose.startswith(given)):
            raise RefusedError(
                f"pipeline {pipeline_id}: its configuration was changed by {whose}, not by {given}",
                hint=PUT_BACK_HINT.format(whose),
            )
        if whose and whose.startswith(by) and (wait := needed_until(pipeline)):
            self._wait(wait, None)
        outcome = put_back_configuration(self.workspace, pipeline_id, by)
        if outcome.left_to:
            self.log.warning(
                "Pipeline %s: keys of its configuration belong to %s, and are left as they are; %s",
                pipeline_id,
                outcome.left_to,
                PUT_BACK_HINT.format(outcome.left_to),
            )
        return {"pipeline_id": pipeline_id, **outcome.to_json()}
