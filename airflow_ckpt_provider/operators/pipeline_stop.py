"""Stop a Lakeflow pipeline, and wait until it is idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow_ckpt_provider.lakeflow.examine import FAIL, STOP, WAIT, examine, room_step
from airflow_ckpt_provider.lakeflow.one_update import make_room
from airflow_ckpt_provider.lakeflow.updates import active_update
from airflow_ckpt_provider.operators.fields import one_of
from airflow_ckpt_provider.operators.pipeline_waiting import PipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineStopOperator(PipelineOperator):
    """Stop the active update of a pipeline and wait until none is active; without an active update it changes nothing.

    Before positions are found: what an active update writes after that is written again by the reset.

    The result: ``pipeline_id``, ``state`` (``IDLE``, or ``FAILED`` where its last update failed), ``stopped_update_id`` (``None``
    if none was active).

    Parameters: see :class:`~.pipeline_waiting.PipelineOperator`.

    .. code-block:: python

        PipelineStopOperator(
            task_id="stop",
            pipeline_name="customers",
        )

    .. seealso:: :doc:`/howto/lakeflow-reset`

    :param on_active_update: ``"stop"`` it, ``"wait"`` until it has ended, or ``"fail"``. (templated)
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "on_active_update")

    def __init__(self, *, on_active_update: Literal["stop", "wait", "fail"] | str = STOP, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.on_active_update = on_active_update

    def _run(self, context: Context) -> dict[str, Any]:
        pipeline_id = self._pipeline_id()
        room = one_of(self.on_active_update, "on_active_update", (FAIL, WAIT, STOP))
        examined = examine(self.workspace, pipeline_id, with_flows=False)
        room_step(examined, room, None)
        found = examined.pipeline
        if active := active_update(found):
            if room == STOP:
                self._kept.data["stopped"] = active
                self._kept.keep()
            make_room(self.workspace, pipeline_id, room, self._free)
            found = self.workspace.get_pipeline(pipeline_id)
        return {
            "pipeline_id": pipeline_id,
            "state": found.get("state"),
            "stopped_update_id": self._kept.data.get("stopped"),
        }
