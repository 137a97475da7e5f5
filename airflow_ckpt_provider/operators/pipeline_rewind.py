"""Rewind a Lakeflow pipeline to a time with the vendor's own rewind, and read the input since then again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.lakeflow.carrying_out import carry_out_rewind
from airflow_ckpt_provider.lakeflow.examine import FAIL, STOP, WAIT, examine, names_of
from airflow_ckpt_provider.lakeflow.request import REFRESH, StartRequest
from airflow_ckpt_provider.lakeflow.rewind_plan import (
    plan_pipeline_rewind,
    rewind_datasets,
    rewind_spec,
    rewind_time,
)
from airflow_ckpt_provider.lakeflow.updates import COMPLETED, RUNNING
from airflow_ckpt_provider.operators.change_operator import APPLY, PLAN
from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, required, separated, text
from airflow_ckpt_provider.operators.pipeline_change import PipelineChangeOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineRewindOperator(PipelineChangeOperator):
    """Rewind tables and checkpoints of a pipeline to a time together: a dry run, the rewind, then a replay.

    Three updates, each started once: the dry run, the rewind, and the replay, for a rewind does not read anything. Plans only,
    unless ``mode="apply"``: the dry run is an update too, so a plan does without. A Beta of the vendor.

    The result is that of ``ResetCheckpointOperator``, of the replay, and ``updates``: the same for ``dry_run``, ``rewind`` and
    ``replay``.

    Parameters of pipeline and update: see :class:`~.pipeline_change.PipelineChangeOperator`.

    .. code-block:: python

        PipelineRewindOperator(
            task_id="rewind",
            pipeline_name="customers",
            to="2026-11-21T12:00:00",
            timezone="Europe/Berlin",
        )

    .. seealso:: :doc:`/howto/lakeflow-rewind`

    :param to: the time: ISO 8601 with an offset, or a wall clock's time with ``timezone``. (templated)
    :param timezone: name of a time zone, such as ``Europe/Berlin``. (templated)
    :param datasets: names, or ``{"identifier", "cascade", "reset_checkpoints"}``, both true by default; ``None``: all.
        (templated)
    :param replay: start the update that reads the input again. (templated)
    """

    template_fields: Sequence[str] = (
        *PipelineChangeOperator.template_fields,
        "to",
        "timezone",
        "datasets",
        "replay",
    )

    def __init__(
        self,
        *,
        to: str,
        timezone: str | None = None,
        datasets: Sequence[str | Mapping[str, Any]] | None = None,
        replay: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.to = to
        self.timezone = timezone
        self.datasets = datasets
        self.replay = replay

    def _run(self, context: Context) -> dict[str, Any]:
        apply = one_of(self.mode, "mode", (PLAN, APPLY)) == APPLY
        room = one_of(self.on_active_update, "on_active_update", (FAIL, WAIT, STOP))
        given = text(self.wait_for)
        wait_for = one_of(given, "wait_for", (COMPLETED, RUNNING)) if given else None
        to = rewind_time(required(self.to, "to"), text(self.timezone))
        datasets = rewind_datasets(separated(self.datasets, "datasets"))
        dry_run, rewind = (
            StartRequest.of({"rewind_spec": rewind_spec(to, datasets, dry_run=dry)}) for dry in (True, False)
        )
        selection = {REFRESH: list(names_of(self.refresh_selection, "refresh_selection"))}
        replay = (
            StartRequest.of(selection, mapping(self.body, "body")) if flag(self.replay, "replay", empty=True) else None
        )
        self._asks_for(rewind.body, replay.body if replay else None, apply=apply)

        def planned() -> None:
            plan = plan_pipeline_rewind(
                self.workspace,
                examine(self.workspace, self._pipeline_id(), with_flows=False),
                rewind,
                dry_run,
                replay,
                to=to,
                on_active_update=room,
                wait_for=wait_for,
            )
            self._planned(plan, apply=apply, accept=self.accept, fingerprint=self.fingerprint)

        if not self._has_begun():
            planned()
        done = []
        if apply:
            done = carry_out_rewind(
                self._as_run(context),
                dry_run=dry_run,
                rewind=rewind,
                replay=replay,
                on_active_update=room,
                wait_for=wait_for,
                check=planned,
            )
        return self._result() | {"updates": {step: self._result(step) for step in done}}
