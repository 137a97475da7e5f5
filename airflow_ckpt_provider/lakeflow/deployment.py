"""What a deployment would do to the flows of a pipeline, as far as two event logs tell it.

``validate_only`` checks that the code can be analysed. It opens no checkpoint: a changed stateful operator passes, and fails
when the pipeline runs. What can be seen are the flows that the code defines, so they are compared with those in production.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.flows import Flow, bare, known_flows, qualified
from airflow_ckpt_provider.lakeflow.updates import spec_of
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.verdict import Verdict, worst


@dataclass(frozen=True, slots=True)
class Deployment:
    """What was found.

    :param judgements: what happens to single flows.
    :param tables: full names of production's tables whose flows are touched.
    """

    judgements: tuple[Judgement, ...]
    tables: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        return worst(judgement.verdict for judgement in self.judgements)

    def to_json(self) -> dict[str, Any]:
        """The findings as plain JSON."""
        return {
            "verdict": self.verdict.value,
            "reasons": [f"{j.verdict.value}: {j.reason}" for j in self.judgements],
            "tables": list(self.tables),
            "markdown": self.to_markdown(),
        }

    def to_markdown(self) -> str:
        """The findings for people."""
        lines = [f"### What the deployment would do: **{self.verdict.value}**", ""]
        lines.append(markdown.bullets(f"{j.verdict.value}: {j.reason}" for j in self.judgements))
        if self.tables:
            lines += ["", f"Tables at risk: {', '.join(self.tables)}"]
        return "\n".join(lines) + "\n"


def compare_deployment(workspace: Workspace, pipeline_id: str, candidate_id: str, update_id: str) -> Deployment:
    """Compare the flows that run in production with those that a validated candidate defines; reads only.

    :param pipeline_id: the pipeline in production.
    :param candidate_id: the pipeline that the new code is deployed to; may be the same.
    :param update_id: its ``validate_only`` update.
    :raises RefusedError: one of the event logs defines no flow.
    """
    production = {"pipeline_id": pipeline_id, **workspace.ask(pipeline_id)}
    candidate = {"pipeline_id": candidate_id, **workspace.ask(candidate_id)}
    now = _defined(workspace, production, None if pipeline_id != candidate_id else update_id, other=True)
    then = _defined(workspace, candidate, update_id)
    found: list[Judgement] = []
    touched: list[str] = []
    for name, flow in now.items():
        judgement = _judge(flow, then.get(name), [each for key, each in then.items() if key not in now])
        found.append(judgement)
        if judgement.verdict not in (Verdict.SAFE, Verdict.UNKNOWN) and flow.dataset:
            touched.append(qualified(flow.dataset, spec_of(production)))
    tables = {bare(flow.dataset) for flow in now.values()}
    for name, flow in then.items():
        if name not in now:
            where = (
                f"writes to {flow.dataset}, which has rows: it reads all that its code lets it"
                if bare(flow.dataset) in tables
                else f"makes {flow.dataset}"
            )
            found.append(Judgement(Verdict.SAFE, f"flow {flow.name} is new and {where}"))
    return Deployment(tuple(found), tuple(dict.fromkeys(touched)))


def _judge(flow: Flow, new: Flow | None, strangers: list[Flow]) -> Judgement:
    if new is None:
        renamed = [each.name for each in strangers if bare(each.dataset) == bare(flow.dataset)]
        if renamed:
            return Judgement(
                Verdict.WILL_DUPLICATE,
                f"flow {flow.name} is gone, and {renamed[0]} writes to the same table {flow.dataset}: a renamed flow begins with "
                "an empty checkpoint and reads its source again; keep the name, or give it a starting position",
            )
        return Judgement(
            Verdict.WILL_LOSE,
            f"flow {flow.name} is gone: {flow.dataset or 'its table'} gets no more rows of it, and its checkpoint is left behind",
        )
    if None not in (flow.streaming, new.streaming) and flow.streaming != new.streaming:
        kinds = ("a stream", "no stream")
        was, becomes = kinds if flow.streaming else reversed(kinds)
        return Judgement(
            Verdict.WILL_FAIL,
            f"flow {flow.name} was {was} and becomes {becomes}: the table {flow.dataset} has to be refreshed in full",
        )
    if flow.sources and new.sources and {*map(bare, flow.sources)} != {*map(bare, new.sources)}:
        return Judgement(
            Verdict.WILL_FAIL,
            f"flow {flow.name} read {', '.join(flow.sources)} and would read {', '.join(new.sources)}: its checkpoint has "
            "offsets of the former; reset it, with starting positions",
        )
    if flow.streaming is False:
        return Judgement(Verdict.SAFE, f"flow {flow.name} has no checkpoint")
    return Judgement(
        Verdict.UNKNOWN,
        f"flow {flow.name}: whether its checkpoint survives the new code is not seen by a validation: stateful operators "
        "(dropDuplicates, aggregations, joins) must not come, go or change; run the new code on a test pipeline that has run the "
        "old one",
    )


class _OneUpdate:
    """The event log of one update only."""

    def __init__(self, workspace: Workspace, update_id: str | None, *, other: bool) -> None:
        self._workspace, self._update_id, self._other = workspace, update_id, other

    def iter_events(self, pipeline_id: str, *, filter: str = "", max_results: int = 100) -> Iterator[dict[str, Any]]:
        """Events of the update that is meant: the one named, or the newest other one that defines flows."""
        chosen = None if self._other else self._update_id
        for event in self._workspace.iter_events(pipeline_id, filter=filter, max_results=max_results):
            of = (event.get("origin") or {}).get("update_id")
            if chosen is None and event.get("event_type") == "flow_definition" and of != self._update_id:
                chosen = of
            if chosen is not None and of == chosen:
                yield event


def _defined(
    workspace: Workspace, pipeline: Mapping[str, Any], update_id: str | None, *, other: bool = False
) -> dict[str, Flow]:
    one: Any = _OneUpdate(workspace, update_id, other=other)
    flows = {bare(name): flow for name, flow in known_flows(one, pipeline).flows.items()}
    if not flows:
        raise RefusedError(
            f"the event log of pipeline {pipeline['pipeline_id']} defines no flow",
            hint="run the pipeline once, or validate it again: its event log may have been cleared",
        )
    return flows
