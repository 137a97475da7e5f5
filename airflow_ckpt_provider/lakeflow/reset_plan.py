"""The selective reset of checkpoints: the flows named begin again, the rows of their tables stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.examine import Examined, reset_forbidden, room_step
from airflow_ckpt_provider.lakeflow.flows import bare, is_streaming_table, qualified
from airflow_ckpt_provider.lakeflow.plan import PipelinePlan, guard_judgements
from airflow_ckpt_provider.lakeflow.positions import NEEDED_LATER, WHY_LATER, Position, judge_positions, positions_of
from airflow_ckpt_provider.lakeflow.read_on import judge_read_on
from airflow_ckpt_provider.lakeflow.refresh_plan import judge_other_fields, judge_refresh, wiped_tables
from airflow_ckpt_provider.lakeflow.request import FULL_REFRESH, REFRESH, RESET, StartRequest
from airflow_ckpt_provider.lakeflow.settings import (
    PUT_BACK_HINT,
    bundle_patch,
    changed_by,
    deployed_by_bundle,
    language_of,
)
from airflow_ckpt_provider.lakeflow.updates import COMPLETED, is_continuous, parameters_of
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.verdict import Verdict

#: What becomes of keys that were merged into the configuration: by default they are put back, but not what the flow may need.
PUT_BACK, KEEP = "put_back", "keep"


@dataclass(frozen=True, slots=True)
class Merged:
    """Keys that are merged into the pipeline's configuration for the update.

    :param values: key -> value.
    :param by: who does it.
    :param after: ``put_back``, ``keep``, or empty: put back all but those that the flow may still need.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    by: str = ""
    after: str = ""

    def kept(self, positions: Sequence[Position]) -> frozenset[str]:
        """The keys that stay in the configuration."""
        if self.after == KEEP:
            return frozenset(self.values)
        return frozenset() if self.after == PUT_BACK else self.needed_later(positions)

    def needed_later(self, positions: Sequence[Position]) -> frozenset[str]:
        """The keys that carry an option which the flow may need after its first start."""
        carried = {key for p in positions for option, key in p.carried_by.items() if option in NEEDED_LATER}
        return frozenset(carried & set(self.values))


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
    merged: Merged | None = None,
    as_of: str | None = "",
) -> PipelinePlan:
    """Plan the reset of flows; reads only.

    :param examined: the pipeline, as it was found.
    :param request: the start that would be sent.
    :param starting_positions: flow -> where it begins to read.
    :param sources: flow -> all that it reads, where the event log does not show.
    :param guard_report: what a guard found of the sources.
    :param on_active_update: what is done about an update that is active.
    :param wait_for: the state that is waited for.
    :param merged: what is merged into the pipeline's configuration before the start.
    :param as_of: the newest update that had ended when this run planned first, for positions that name none; empty: it is
        now; ``None``: updates are not judged, for one of them may be this run's.
    :raises RefusedError: no flow is named, or what is asked for cannot be.
    """
    flows = tuple(request.body.get(RESET) or ())
    if not flows:
        raise RefusedError("flows is empty: nothing would be reset", hint="name the flows, as the event log does")
    room = room_step(examined, on_active_update, wait_for)
    known = examined.flows.flows
    read = {flow: tuple((sources or {}).get(flow) or (known[flow].sources if flow in known else ())) for flow in flows}
    positions = positions_of(starting_positions)
    merged = merged or Merged()
    if merged.values and not wait_for and merged.kept(positions) != frozenset(merged.values):
        raise RefusedError(
            "configuration is put back when the flows run, and nothing waits for that",
            hint="give wait_for, or configuration_after='keep'",
        )
    judgements = [judgement for flow in flows for judgement in _names(examined, flow)]
    guarded = guard_judgements(guard_report)
    emptied = wiped_tables(examined, request) if request.empties else ()
    if request.dry_run:
        judgements.append(
            Judgement(Verdict.SAFE, "a dry run (validate_only): no checkpoint is reset, and nothing is read")
        )
    else:
        judgements += judge_positions(
            flows,
            positions,
            read,
            parameters={**parameters_of(examined.pipeline), **(request.body.get("parameters") or {})},
            configuration=examined.configuration,
            defaults=parameters_of(examined.pipeline),
            merged=merged.values,
            language=language_of(examined.spec),
            guard_report=guard_report,
        )
        judgements += guarded
        judgements += _selections(examined, request, flows)
        judgements += judge_refresh(workspace, examined, request, emptied)
        judgements += judge_other_fields(request)
        judgements += _settings(examined, merged, positions)
    warnings = examined.warnings() + _kinds(workspace, examined, flows) + _reach(workspace, examined, request)
    warnings += _bundle(examined, merged, positions)
    begins = [
        f"{p.label} begins at {', '.join(f'{k}={v}' for k, v in p.options.items()) or 'its own beginning'}"
        for p in positions
    ]
    update = f"2.0/pipelines/{examined.pipeline_id}/updates"
    calls: list[tuple[str, str, Mapping[str, Any]]] = [("POST", update, request.body)]
    steps = [room, f"check where the flows begin to read: {'; '.join(begins) or 'not known'}"]
    waited = f"follow it until it is {wait_for}" if wait_for else "do not wait for it"
    followed = f"{waited}, through updates that the workspace starts in its place"
    if request.dry_run:
        steps += [
            f"start an update that only validates the code (validate_only): {', '.join(flows)} are not reset",
            followed,
        ]
    else:
        kept = f"{', '.join(emptied) or 'tables'} are emptied" if request.empties else "their tables keep their rows"
        steps.append(f"start an update that resets {', '.join(flows)}; {kept}")
        steps.append(f"{followed}, and until these flows run" if wait_for else followed)
        if merged.values:
            keys, stay = ", ".join(merged.values), merged.kept(positions)
            calls.insert(0, ("PUT", f"2.0/pipelines/{examined.pipeline_id}", {"configuration": dict(merged.values)}))
            steps.insert(
                2,
                f"merge {keys} into the pipeline's configuration, with all its other settings as they are, and read it back",
            )
            back = [key for key in merged.values if key not in stay]
            steps += [f"put {', '.join(back)} of the configuration back"] if back else []
            steps += [f"leave {', '.join(sorted(stay))} in the configuration"] if stay else []
    return PipelinePlan(
        kind="pipeline-reset",
        pipeline_id=examined.pipeline_id,
        pipeline_name=examined.name,
        calls=tuple(calls),
        steps=tuple(steps),
        judgements=tuple(judgements),
        warnings=tuple(warnings),
        rows=(
            *examined.rows(),
            ("flows", ", ".join(map(markdown.code, flows))),
            ("refreshes", ", ".join(request.body.get(REFRESH) or ()) or "the whole pipeline"),
            *((("empties", ", ".join(emptied) or "tables"),) if request.empties else ()),
        ),
        facts={
            "flows": list(flows),
            "sources": {flow: list(names) for flow, names in read.items()},
            "starting_positions": [position.to_json() for position in positions],
            "known_flows": sorted(known),
            "emptied": list(emptied),
        },
        dry_run=request.dry_run,
        emptied=emptied,
        specification=examined.specification,
        read_on=(
            tuple(judge_read_on(workspace, examined, {p.as_of or as_of for p in positions} - {""}))
            if positions and not request.dry_run and as_of is not None
            else ()
        ),
    )


def _settings(examined: Examined, merged: Merged, positions: Sequence[Position]) -> list[Judgement]:
    """What keys mean that are merged into the configuration, or that somebody has left there."""
    found = []
    other = changed_by(examined.configuration)
    if other and other != merged.by:
        found.append(
            Judgement(
                Verdict.WILL_FAIL if merged.values else Verdict.UNKNOWN,
                f"{other} has changed the pipeline's configuration and has not put it back: {PUT_BACK_HINT.format(other)}",
            )
        )
    if needed := merged.needed_later(positions) - merged.kept(positions):
        found.append(
            Judgement(
                Verdict.UNKNOWN,
                f"{', '.join(sorted(needed))} is put back, and it is not established that the flow needs it no longer: "
                f"{WHY_LATER}; give configuration_after='keep'",
            )
        )
    return found


def _bundle(examined: Examined, merged: Merged, positions: Sequence[Position]) -> list[str]:
    stay = merged.kept(positions)
    found = []
    if needed := stay & merged.needed_later(positions):
        found.append(
            f"{', '.join(sorted(needed))} stays in the configuration, for the flow may need it after its first start; remove it "
            "before a full refresh, which would begin there too"
        )
    if merged.values and deployed_by_bundle(examined.spec):
        found.append(
            "a bundle deploys the pipeline: its next deployment overwrites its configuration; do not deploy until the flows run, "
            f"and give the bundle what has to stay:\n\n```yaml\n{bundle_patch(merged.values)}\n```"
        )
    return found


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


def _selections(examined: Examined, request: StartRequest, flows: Sequence[str]) -> list[Judgement]:
    """What the workspace refuses of selections of tables (``INVALID_REFRESH_SELECTION``)."""
    selected = [*(request.body.get(REFRESH) or ()), *(request.body.get(FULL_REFRESH) or ())]
    if not selected:
        return []
    if is_continuous(examined.pipeline):
        reason = "the pipeline is continuous: refresh selection is not supported for continuous pipelines"
        return [Judgement(Verdict.WILL_FAIL, reason)]
    tables = {qualified(table, examined.spec) for table in selected}
    found = []
    for name in flows:
        known = examined.flows.flows.get(name)
        if known and known.dataset and qualified(known.dataset, examined.spec) not in tables:
            found.append(
                Judgement(
                    Verdict.WILL_FAIL,
                    f"flow {name}: its table {bare(known.dataset)} is not among those that are refreshed: the workspace refuses "
                    "that, or the flow does not run; add it to refresh_selection",
                )
            )
    return found


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
