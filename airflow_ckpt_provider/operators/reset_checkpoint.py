"""Reset the checkpoints of single flows of a Lakeflow pipeline; their tables keep their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_ckpt_provider.lakeflow.begun import judge_begun
from airflow_ckpt_provider.lakeflow.carrying_out import Keys, carry_out_reset, put_back_after_failure
from airflow_ckpt_provider.lakeflow.examine import FAIL, STOP, WAIT, examine, names_of
from airflow_ckpt_provider.lakeflow.positions import positions_of
from airflow_ckpt_provider.lakeflow.read_on import newest_ended
from airflow_ckpt_provider.lakeflow.request import FULL_REFRESH, REFRESH, RESET, StartRequest
from airflow_ckpt_provider.lakeflow.reset_plan import KEEP, PUT_BACK, Merged, plan_pipeline_reset
from airflow_ckpt_provider.lakeflow.settings import merge_configuration, put_back_configuration
from airflow_ckpt_provider.lakeflow.updates import COMPLETED, JOB_TASK, RUNNING
from airflow_ckpt_provider.operators.change_operator import APPLY, PLAN
from airflow_ckpt_provider.operators.fields import mapping, one_of, text
from airflow_ckpt_provider.operators.pipeline_change import PipelineChangeOperator
from airflow_ckpt_provider.operators.run_identity import made_by

if TYPE_CHECKING:
    from airflow.sdk import Context


class ResetCheckpointOperator(PipelineChangeOperator):
    """Reset the checkpoints of flows and run the pipeline: the flows begin to read where their code says, the rows stay.

    Plans only, unless ``mode="apply"``; planning sends nothing but GET. The start is sent once: a retry, a worker that was
    killed and an answer that was lost find the update that was started, and follow it. An update that failed is not started
    again by a retry; the workspace has retried by itself.

    The result: ``mode``, ``plan``, ``markdown``, ``pipeline_id``, ``pipeline_name``, ``update_id``, ``update_ids`` (with those
    that the workspace started in its place), ``state``, ``states`` (with times), ``flows``, ``cause``, ``found``, ``url``.

    Parameters of pipeline and update: see :class:`~.pipeline_change.PipelineChangeOperator`.

    .. code-block:: python

        ResetCheckpointOperator(
            task_id="reset",
            pipeline_name="customers",
            flows=["lake.sales.orders_flow"],
            starting_positions="{{ ti.xcom_pull(task_ids='positions', key='starting_positions') }}",
        )

    .. seealso:: :doc:`/howto/lakeflow-reset`

    :param flows: names of the flows, as ``origin.flow_name`` of the event log has them; passed on as they are. (templated)
    :param full_refresh_selection: tables to empty in the same update. (templated)
    :param cause: for the update, one of the interface's words; ``None``: ``API_CALL``. (templated)
    :param parameters: parameters of the pipeline for this update; they reach SQL code only. (templated)
    :param configuration: keys that are merged into the pipeline's configuration before the start, for Python and SQL code; needs
        CAN MANAGE. The former values are kept in the configuration itself until they are put back. (templated)
    :param configuration_after: ``"put_back"`` them when the flows run or the update has failed, or ``"keep"`` them; by default
        all are put back but those that the flow may still need (``modifiedAfter``, ``startingVersion``, ``startingTimestamp``).
        (templated)
    :param starting_positions: flow -> where it begins: ``{"source", "options", "carried_by": {option: key of configuration or
        parameters}, "language": "python" or "sql"}`` or with ``"deployed": True``; or the XCom of ``StartingPositionsOperator``.
        (templated)
    :param sources: flow -> all that it reads, where the event log does not show; or ``"all_sources": True`` in its position.
        (templated)
    :param guard_report: the XCom of a source guard, or several by name. (templated)
    :param job_id: the job that runs the pipeline: the reset goes through it. (templated)
    :param run_parameter: name of a pipeline parameter that gets this task's id, so that its update is certain where the
        workspace repeats parameters. (templated)
    :param flows_run_for: seconds that the flows of a continuous pipeline have to run without a failure.
    """

    template_fields: Sequence[str] = (
        *PipelineChangeOperator.template_fields,
        "flows",
        "full_refresh_selection",
        "cause",
        "parameters",
        "configuration",
        "configuration_after",
        "starting_positions",
        "sources",
        "guard_report",
        "job_id",
        "run_parameter",
    )
    #: Keys that this process has merged into the configuration, or may have.
    _keys: Keys | None = None
    template_fields_renderers: ClassVar[dict[str, str]] = {"body": "json", "starting_positions": "json"}

    def __init__(
        self,
        *,
        flows: Sequence[str] | str,
        full_refresh_selection: Sequence[str] | str | None = None,
        cause: str | None = None,
        parameters: Mapping[str, str] | None = None,
        configuration: Mapping[str, str] | None = None,
        configuration_after: Literal["put_back", "keep"] | str | None = None,
        starting_positions: Mapping[str, Any] | str | None = None,
        sources: Mapping[str, Sequence[str]] | None = None,
        guard_report: Mapping[str, Any] | str | None = None,
        job_id: int | str | None = None,
        run_parameter: str | None = None,
        flows_run_for: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.flows = flows
        self.full_refresh_selection = full_refresh_selection
        self.cause = cause
        self.parameters = parameters
        self.starting_positions = starting_positions
        self.sources = sources
        self.guard_report = guard_report
        self.job_id = job_id
        self.run_parameter = run_parameter
        self.configuration = configuration
        self.configuration_after = configuration_after
        self.flows_run_for = flows_run_for

    def _run(self, context: Context) -> dict[str, Any]:
        apply = one_of(self.mode, "mode", (PLAN, APPLY)) == APPLY
        room = one_of(self.on_active_update, "on_active_update", (FAIL, WAIT, STOP))
        given = text(self.wait_for)
        wait_for = one_of(given, "wait_for", (COMPLETED, RUNNING)) if given else None
        flows = names_of(self.flows, "flows")
        request, job_id = self._request(context, flows), text(self.job_id)
        merged = self._merged(context)
        # Where the flows begin, and not how that is known: positions that are found again are the same request.
        positions = [
            replace(position, all_sources=False, as_of="").to_json()
            for position in positions_of(self.starting_positions)
        ]
        about = {"apply": apply, "waits": wait_for is not None, "dry_run": request.dry_run}
        self._asks_for(request.body, positions, dict(merged.values), **about)

        def planned() -> None:
            kept = self._kept.data
            if apply and "as_of" not in kept:
                kept["as_of"] = newest_ended(self.workspace, self._pipeline_id())
            plan = plan_pipeline_reset(
                self.workspace,
                examine(self.workspace, self._pipeline_id()),
                request,
                starting_positions=self.starting_positions,
                sources=mapping(self.sources, "sources"),
                guard_report=self.guard_report,
                on_active_update=room,
                wait_for=wait_for,
                merged=merged,
                # Before Airflow 3.3 a retry does not know which update is its own; it is searched for.
                as_of=None if self._kept.blank_retry else kept.get("as_of", ""),
            )
            plan = replace(plan, judgements=(*plan.judgements, *judge_begun(self._reset_before())))
            plan = self._planned_through_job(context, plan, job_id, request)
            self._planned(plan, apply=apply, accept=self.accept, fingerprint=self.fingerprint)

        if not self._has_begun():
            planned()
        if apply:
            how = self._through_job(context, job_id, request) if job_id else {}
            carry_out_reset(
                self._as_run(context, **how),
                request,
                keys=self._merging(merged),
                on_active_update=room,
                wait_for=wait_for,
                flows=flows,
                flows_run_for=float(self.flows_run_for),
                check=planned,
            )
            if request.dry_run:
                self.log.info("The update was a dry run (validate_only): no checkpoint was reset")
        found = {"flows": list(flows), "cause": request.expected_cause, "dry_run": request.dry_run}
        return self._result() | found | ({"mode": "dry_run"} if apply and request.dry_run else {})

    def _reset_before(self) -> list[str]:
        """Ids of updates that may have reset the same flows to the same positions before this task was cleared."""
        kept = self._kept.before or self._kept.data
        if not self._asked_for or kept.get("asked", self._asked_for) != self._asked_for:
            return []
        found = self._begun_before("reset") or list(kept.get("reset_before") or ())
        self._kept.data["reset_before"] = found
        return found

    def _merging(self, merged: Merged) -> Keys | None:
        """The keys that carry positions; kept for a kill too."""
        if not merged.values:
            return None
        pipeline_id = self._pipeline_id()
        keep = merged.kept(positions_of(self.starting_positions))

        def merge() -> None:
            self._kept.check_current()
            flows = names_of(self.flows, "flows")
            merge_configuration(self.workspace, pipeline_id, merged.values, merged.by, keep=keep, flows=flows)

        def put_back() -> None:
            self._kept.check_current()  # all attempts have one name there
            put_back_configuration(self.workspace, pipeline_id, merged.by, keep=keep)

        self._keys = Keys(merge, put_back)
        return self._keys

    def _stopped(self) -> None:
        self.log.info("The task was ended%s", put_back_after_failure(self._keys))

    def _merged(self, context: Context) -> Merged:
        after = text(self.configuration_after)
        return Merged(
            {key: str(value) for key, value in mapping(self.configuration, "configuration").items()},
            made_by(context) or str(self.task_id),
            one_of(after, "configuration_after", (PUT_BACK, KEEP)) if after else "",
        )

    def _request(self, context: Context, flows: Sequence[str]) -> StartRequest:
        parameters = mapping(self.parameters, "parameters")
        if name := text(self.run_parameter):
            parameters[name] = made_by(context) or str(self.task_id)
        fields = {
            RESET: list(flows),
            REFRESH: list(names_of(self.refresh_selection, "refresh_selection")),
            FULL_REFRESH: list(names_of(self.full_refresh_selection, "full_refresh_selection")),
            "cause": text(self.cause),
            "parameters": parameters,
        }
        about = {"run_parameter": name or ""} | ({"expected_cause": JOB_TASK} if text(self.job_id) else {})
        return StartRequest.of(fields, mapping(self.body, "body"), **about)
