"""The selective reset of checkpoints: the flows named begin again, the rows of their tables stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.examine import Examined, reset_forbidden, room_step
from airflow_ckpt_provider.lakeflow.flows import is_streaming_table, qualified
from airflow_ckpt_provider.lakeflow.plan import PipelinePlan, guard_judgements
from airflow_ckpt_provider.lakeflow.positions import judge_positions, positions_of
from airflow_ckpt_provider.lakeflow.request import FULL_REFRESH, REFRESH, RESET, StartRequest
from airflow_ckpt_provider.lakeflow.updates import COMPLETED
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.verdict import Verdict


def plan_pipeline_reset(
    workspace: Workspace,
    examined: Examined,
    request: StartRequest,
    *,
    starting_positions: Any = None,
    sources: Mapping[str, Sequence[str]] | None = None,
    guard_report: Any = None,
    on_active_update: str = "fail",
    wait_for: str | None = COMPLETED,
) -> PipelinePlan:
    """Plan the reset of flows; reads only.

    :param examined: the pipeline, as it was found.
    :param request: the start that would be sent.
    :param starting_positions: flow -> where it begins to read.
    :param sources: flow -> all that it reads, where the event log does not tell.
    :param guard_report: what a guard found of the sources.
    :param on_active_update: what is done about an update that is active.
    :param wait_for: the state that is waited for.
    :raises RefusedError: no flow is named, or what is asked for cannot be.
    """
    flows = tuple(request.body.get(RESET) or ())
    if not flows:
        raise RefusedError("flows is empty: nothing would be reset", hint="name the flows, as the event log does")
    room = room_step(examined, on_active_update, wait_for)
    known = examined.flows.flows
    read = {flow: tuple((sources or {}).get(flow) or (known[flow].sources if flow in known else ())) for flow in flows}
    positions = positions_of(starting_positions)
    judgements = [judgement for flow in flows for judgement in _names(examined, flow)]
    judgements += judge_positions(
        flows,
        positions,
        read,
        parameters=request.body.get("parameters") or {},
        configuration=examined.configuration,
    )
    judgements += guard_judgements(guard_report)
    warnings = examined.warnings() + _kinds(workspace, examined, flows) + _reach(workspace, examined, request)
    begins = [
        f"{p.label} begins at {', '.join(f'{k}={v}' for k, v in p.options.items()) or 'its own beginning'}"
        for p in positions
    ]
    waited = f"follow it until it is {wait_for}" if wait_for else "do not wait for it"
    return PipelinePlan(
        kind="pipeline-reset",
        pipeline_id=examined.pipeline_id,
        pipeline_name=examined.name,
        calls=(("POST", f"2.0/pipelines/{examined.pipeline_id}/updates", request.body),),
        steps=(
            room,
            f"check where the flows begin to read: {'; '.join(begins) or 'not known'}",
            f"start an update that resets {', '.join(flows)}; their tables keep their rows",
            f"{waited}, through updates that the workspace starts in its place",
        ),
        judgements=tuple(judgements),
        warnings=tuple(warnings),
        rows=(
            *examined.rows(),
            ("flows", ", ".join(f"`{flow}`" for flow in flows)),
            ("refreshes", ", ".join(request.body.get(REFRESH) or ()) or "the whole pipeline"),
        ),
        facts={
            "flows": list(flows),
            "sources": {flow: list(names) for flow, names in read.items()},
            "starting_positions": [position.to_json() for position in positions],
            "known_flows": sorted(known),
        },
    )


def _names(examined: Examined, flow: str) -> list[Judgement]:
    known = examined.flows
    if flow in known.flows:
        return []
    if not known.flows:
        return [
            Judgement(
                Verdict.UNKNOWN,
                f"flow {flow}: neither the event log nor the specification names any flow of the pipeline to compare it with",
            )
        ]
    near = known.near(flow)
    meant = f"; is {' or '.join(near)} meant?" if near else f"; they name {', '.join(sorted(known.flows)[:10])}"
    if known.complete:
        return [Judgement(Verdict.WILL_FAIL, f"flow {flow}: neither event log nor specification knows it{meant}")]
    return [Judgement(Verdict.UNKNOWN, f"flow {flow}: the newest events do not name it{meant}")]


def _kinds(workspace: Workspace, examined: Examined, flows: Sequence[str]) -> list[str]:
    found = []
    for name in flows:
        flow = examined.flows.flows.get(name)
        streaming = flow.streaming if flow else None
        if flow and flow.dataset and streaming is None:
            streaming = is_streaming_table(workspace.get_table(qualified(flow.dataset, examined.spec)))
        if streaming is False:
            found.append(f"flow {name} is not a stream: it has no checkpoint, and a reset changes nothing")
    return found


def _reach(workspace: Workspace, examined: Examined, request: StartRequest) -> list[str]:
    found = []
    full = tuple(request.body.get(FULL_REFRESH) or ())
    if not request.body.get(REFRESH) and not full:
        tables = examined.flows.datasets
        which = f" ({', '.join(tables)})" if tables else ""
        found.append(
            f"a reset does not limit what is refreshed: without refresh_selection the update runs the whole pipeline{which}"
        )
    asked = examined.flows.datasets if request.body.get("full_refresh") else full
    for table in reset_forbidden(workspace, asked, examined.spec):
        found.append(
            f"table {table} has pipelines.reset.allowed=false: a full refresh does not empty it; the reset of a flow is not "
            "stopped by that"
        )
    return found
