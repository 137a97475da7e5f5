"""The five steps of a checkpoint's recovery for each flow, in one call: identify, position, how it is carried, reset, verify.

Only reads. What comes of it are the arguments of ``ResetCheckpointOperator`` (or of ``airflow-ckpt pipelines reset``), the
plan that they make, and the counts that show afterwards whether it went well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.json_text import load_rendered
from airflow_ckpt_provider.lakeflow.evidence import FlowEvidence
from airflow_ckpt_provider.lakeflow.examine import FAIL, Examined
from airflow_ckpt_provider.lakeflow.finding import find_positions
from airflow_ckpt_provider.lakeflow.flows import LOOKED_AT, flow_status
from airflow_ckpt_provider.lakeflow.found_position import FoundPosition, Terms
from airflow_ckpt_provider.lakeflow.gathering import Readers, gather
from airflow_ckpt_provider.lakeflow.plan import PipelinePlan
from airflow_ckpt_provider.lakeflow.positions import PYTHON, SQL
from airflow_ckpt_provider.lakeflow.progress import same_flow
from airflow_ckpt_provider.lakeflow.read_on import newest_ended
from airflow_ckpt_provider.lakeflow.request import RESET, StartRequest
from airflow_ckpt_provider.lakeflow.reset_plan import Merged, plan_pipeline_reset
from airflow_ckpt_provider.lakeflow.settings import language_of
from airflow_ckpt_provider.lakeflow.table_check import TableCheck
from airflow_ckpt_provider.lakeflow.updates import COMPLETED, FAILED, RUNNING, is_continuous
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.verdict import Verdict, worst

CONFIGURATION, PARAMETERS = "configuration", "parameters"
#: Where the code reads its position from.
CARRIED_IN = (CONFIGURATION, PARAMETERS)
_SHAPE = (
    'give {flow: {"sources": {name: "kafka", "delta" or "files"}, "carried_by": {option: key}, "language": "python" or "sql", '
    '"target": …, "keys": [columns], "stateful": false}}'
)


@dataclass(frozen=True, slots=True)
class AboutFlow:
    """What the caller says of a flow.

    :param sources: what it reads -> ``kafka``, ``delta``, ``files``, or empty; ``None``: as the event log reports.
    :param carried_by: option -> key from which its code reads it; empty: not known.
    :param carried_in: ``configuration`` or ``parameters``; empty: parameters for SQL, and the configuration for all else.
    :param language: ``python`` or ``sql``; empty: as the pipeline's source files show.
    :param target: what the target does with rows that come twice.
    :param keys: columns that tell the rows of the table apart, for the counts.
    :param stateful: whether the deployed code still has stateful operators.
    """

    sources: Mapping[str, str] | None = None
    carried_by: Mapping[str, str] = field(default_factory=dict)
    carried_in: str = ""
    language: str = ""
    target: str = ""
    keys: tuple[str, ...] = ()
    stateful: bool | None = None

    @classmethod
    def from_json(cls, given: Any) -> dict[str, AboutFlow]:
        """Read what is said of flows, as a form or Python gives it.

        :param given: flow -> its facts, or JSON of it.
        :raises RefusedError: it has another shape.
        """
        if isinstance(given, str):
            try:
                given = load_rendered(given) if given.strip() not in ("", "None") else {}
            except ValueError as e:
                raise RefusedError(f"about is {given[:80]!r}", hint=_SHAPE) from e
        found = {}
        for flow, facts in (given or {}).items() if isinstance(given or {}, Mapping) else [("", given)]:
            if not isinstance(facts, Mapping) or set(facts) - set(cls.__slots__) or not _are_of_their_kind(facts):
                raise RefusedError(f"about has {flow!r}: {facts!r}", hint=_SHAPE)
            language = str(facts.get("language") or "").lower()
            if language not in ("", PYTHON, SQL):
                raise RefusedError(f"the language of flow {flow} is {language!r}", hint="give 'python' or 'sql'")
            carried_in = str(facts.get("carried_in") or "")
            if carried_in not in ("", *CARRIED_IN) or (carried_in == PARAMETERS and language == PYTHON):
                raise RefusedError(
                    f"flow {flow}: carried_in is {carried_in!r}",
                    hint=f"give one of {', '.join(CARRIED_IN)}; parameters do not reach Python code",
                )
            sources = facts.get("sources")
            if sources is not None and not isinstance(sources, Mapping):
                sources = dict.fromkeys([sources] if isinstance(sources, str) else sources, "")
            found[str(flow)] = cls(
                None if sources is None else {str(name): str(kind or "") for name, kind in sources.items()},
                {str(option): str(key) for option, key in (facts.get("carried_by") or {}).items()},
                carried_in,
                language,
                str(facts.get("target") or ""),
                tuple(map(str, facts.get("keys") or ())),
                facts.get("stateful"),
            )
        return found


def _are_of_their_kind(facts: Mapping[str, Any]) -> bool:
    """Whether each fact of a flow is of the kind that it has to be; ``None`` is as if it were left out."""
    kinds: dict[str, tuple[type, ...]] = {
        "sources": (Mapping, str, list, tuple),
        "carried_by": (Mapping,),
        "keys": (list, tuple),
        "stateful": (bool,),
    }
    return all(value is None or isinstance(value, kinds.get(name, (str,))) for name, value in facts.items())


@dataclass(frozen=True, slots=True)
class FlowSteps:
    """The steps of one flow.

    :param flow: its name.
    :param failure: what it fails with, in a line; empty: it was named by the caller, and no failure of it was found.
    :param evidence: what is known of how far it has read.
    :param positions: where its sources begin.
    :param language: of its code; empty: not known.
    :param keys: option -> key of the pipeline's configuration or parameters that carries it, by source.
    :param check: what is counted before and after.
    :param said: whether the caller has said that the code reads these keys.
    :param carried_in: what they are keys of: ``configuration`` or ``parameters``.
    :param as_of: id of the newest update that had ended before the evidence was read; empty: there was none.
    """

    flow: str
    failure: str
    evidence: FlowEvidence
    positions: tuple[FoundPosition, ...]
    language: str
    keys: Mapping[str, Mapping[str, str]]
    check: TableCheck | None
    said: bool = False
    carried_in: str = CONFIGURATION
    as_of: str = ""

    @property
    def carried(self) -> dict[str, str]:
        """Key -> value."""
        return {self.keys[p.source][option]: value for p in self.positions for option, value in p.options.items()}

    @property
    def starting_positions(self) -> list[dict[str, Any]]:
        """As ``ResetCheckpointOperator`` takes them."""
        several = len(self.positions) > 1
        return [
            {
                "source": p.source if several else "",
                "options": dict(p.options),
                "carried_by": dict(self.keys[p.source]) if self.said else {},
                "language": self.language,
                "verdict": p.verdict.value,
                "reasons": list(p.reasons),
                **({"all_sources": True} if self.evidence.sources_known else {}),
                **({"as_of": self.as_of} if self.as_of else {}),
            }
            for p in self.positions
        ]

    def to_json(self) -> dict[str, Any]:
        """The steps as plain JSON."""
        return {
            "flow": self.flow,
            "table": self.evidence.table or None,
            "failure": self.failure or None,
            "positions": [position.to_json() for position in self.positions],
            "carried": {"by": self.carried_in, "keys": self.carried},
            "language": self.language or None,
            "verify": self.check.queries if self.check else {},
        }


@dataclass(frozen=True, slots=True)
class RecoverySteps:
    """The steps of all flows, and the plan of the reset that they make.

    :param flows: by flow.
    :param plan: of the reset; its verdict is that of all of it.
    :param wait_for: the state that the reset waits for.
    """

    flows: tuple[FlowSteps, ...]
    plan: PipelinePlan
    wait_for: str = COMPLETED

    @property
    def verdict(self) -> Verdict:
        """The verdict of the reset's plan."""
        return self.plan.verdict

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters of the update, which only SQL flows read."""
        return self._carried_in(PARAMETERS)

    @property
    def configuration(self) -> dict[str, str]:
        """Keys of the pipeline's configuration."""
        return self._carried_in(CONFIGURATION)

    def _carried_in(self, place: str) -> dict[str, str]:
        return {key: value for each in self.flows if each.carried_in == place for key, value in each.carried.items()}

    @property
    def starting_positions(self) -> dict[str, list[dict[str, Any]]]:
        """As ``ResetCheckpointOperator`` takes them."""
        return {each.flow: each.starting_positions for each in self.flows}

    def to_json(self) -> dict[str, Any]:
        """The steps as plain JSON, with the arguments of the reset."""
        return {
            "pipeline_id": self.plan.pipeline_id,
            "pipeline_name": self.plan.pipeline_name,
            "verdict": self.verdict.value,
            "flows": [each.flow for each in self.flows],
            "steps": [each.to_json() for each in self.flows],
            "starting_positions": self.starting_positions,
            "configuration": self.configuration,
            "parameters": self.parameters,
            "wait_for": self.wait_for,
            "checks": {each.check.table: {"keys": list(each.check.keys)} for each in self.flows if each.check},
            "plan": self.plan.to_json(),
            "flows_markdown": self.flows_markdown,
            "markdown": self.to_markdown(),
        }

    @property
    def flows_markdown(self) -> str:
        """The steps of each flow for people, without the plan."""
        return "\n\n".join(map(_of_flow, self.flows))

    def to_markdown(self) -> str:
        """The steps for people."""
        head = f"## Pipeline {self.plan.pipeline_name}: **{self.verdict.value}**"
        return "\n\n".join([head, self.flows_markdown, self.plan.to_markdown()])


def recovery_steps(
    workspace: Workspace,
    examined: Examined,
    readers: Readers,
    *,
    flows: Sequence[str] = (),
    about: Mapping[str, AboutFlow] | None = None,
    terms: Terms | None = None,
    made_by: str = "",
) -> RecoverySteps:
    """Go through the steps for each flow; reads only.

    :param readers: what may be asked besides the pipelines interface.
    :param flows: the flows; by default those that failed in the newest update that failed.
    :param about: what the caller says of them, by their names; one without catalog and schema will do.
    :param terms: margin, and what holds for all flows of which ``about`` says nothing else.
    :param made_by: who plans, for the keys of the configuration.
    :raises RefusedError: no flow is named and none has failed, or something is said of a flow that is not reset.
    """
    failures = failed_flows(workspace, examined)
    chosen = tuple(flows) or tuple(failures)
    if not chosen:
        raise RefusedError(
            f"pipeline {examined.name}: no flow of its newest update has failed",
            hint="name the flows, as the event log does",
        )
    said, terms = about or {}, terms or Terms()
    if strange := [name for name in sorted(said) if not any(same_flow(flow, name) for flow in chosen)]:
        raise RefusedError(f"about names flow {strange[0]}, which is not reset", hint=f"flows: {', '.join(chosen)}")
    # A name without catalog and schema holds for the flow of that name in a test pipeline too.
    about = {flow: facts for name, facts in said.items() for flow in chosen if same_flow(flow, name)}
    about |= {flow: said[flow] for flow in chosen if flow in said}
    wait_for = RUNNING if is_continuous(examined.pipeline) else COMPLETED
    as_of = newest_ended(workspace, examined.pipeline_id)  # before anything is read: it may read on meanwhile
    found = [
        replace(
            _steps(workspace, examined, readers, flow, about.get(flow, AboutFlow()), terms, failures.get(flow, "")),
            as_of=as_of,
        )
        for flow in chosen
    ]
    steps = RecoverySteps(tuple(found), PipelinePlan("", "", "", (), ()), wait_for)
    request = StartRequest.of({RESET: list(chosen), "parameters": steps.parameters})
    plan = plan_pipeline_reset(
        workspace,
        examined,
        request,
        starting_positions=steps.starting_positions,
        sources={each.flow: [p.source for p in each.positions] for each in found if len(each.positions) > 1},
        on_active_update=FAIL,
        wait_for=wait_for,
        merged=Merged(steps.configuration, made_by),
    )
    clashes = _clashes(found)
    return replace(steps, plan=replace(plan, judgements=(*plan.judgements, *clashes)))


def failed_flows(workspace: Workspace, examined: Examined) -> dict[str, str]:
    """Return the flows that failed in the newest update in which any did -> the first line of what they say."""
    found: dict[str, str] = {}
    update = ""
    errors = workspace.iter_events(examined.pipeline_id, filter="level='ERROR'", max_results=100)
    for event in islice(errors, LOOKED_AT):  # newest first
        origin = event.get("origin") or {}
        if flow_status(event) != FAILED or not origin.get("flow_name"):
            continue
        update = update or str(origin.get("update_id"))
        if origin.get("update_id") != update:
            break
        said = [str(each.get("message") or "") for each in (event.get("error") or {}).get("exceptions") or ()]
        found.setdefault(str(origin["flow_name"]), (said or [str(event.get("message") or "")])[0].split("\n")[0])
    return found


def _steps(
    workspace: Workspace,
    examined: Examined,
    readers: Readers,
    flow: str,
    about: AboutFlow,
    terms: Terms,
    failure: str,
) -> FlowSteps:
    evidence = gather(workspace, examined, flow, readers, sources=about.sources)
    own = Terms(
        about.target or terms.target, terms.margin, terms.stateful if about.stateful is None else about.stateful
    )
    positions = tuple(find_positions(evidence, own))
    bare = flow.rpartition(".")[2].strip("`")
    several = len(positions) > 1
    keys = {
        p.source: {
            option: about.carried_by.get(f"{p.source}.{option}" if several else option, "")
            or about.carried_by.get(option, "")
            or ".".join([bare, *([p.source] if several else []), option])
            for option in p.options
        }
        for p in positions
    }
    language = about.language or language_of(examined.spec)
    check = TableCheck(evidence.table, about.keys) if evidence.table else None
    carried_in = about.carried_in or (PARAMETERS if language == SQL else CONFIGURATION)
    return FlowSteps(flow, failure, evidence, positions, language, keys, check, bool(about.carried_by), carried_in)


def _clashes(found: Sequence[FlowSteps]) -> list[Judgement]:
    """Keys that two positions would give different values."""
    values: dict[str, set[str]] = {}
    for each in found:
        for p in each.positions:
            for option, value in p.options.items():
                values.setdefault(each.keys[p.source][option], set()).add(value)
    return [
        Judgement(Verdict.WILL_FAIL, f"key {key} would carry {len(several)} different positions: give each its own key")
        for key, several in values.items()
        if len(several) > 1
    ]


def _of_flow(steps: FlowSteps) -> str:
    verdict = worst(p.verdict for p in steps.positions)
    lines = [f"### Flow {markdown.code(steps.flow)}: **{verdict.value}**", ""]
    lines.append(
        f"1. **Identify.** Table {steps.evidence.table or 'not known'}. {steps.failure or 'No failure was found.'}"
    )
    for p in steps.positions:
        begins = ", ".join(f"{name}={value}" for name, value in p.options.items()) or "no position"
        lines.append(f"2. **Position** of {p.source or 'its source'}, by {p.how or 'nothing'}: {markdown.code(begins)}")
        lines += [f"   * {reason}" for reason in p.reasons]
    if steps.carried_in == PARAMETERS:
        lines.append("3. **Carried** by parameters of the update, which SQL reads as `:key`:")
    else:
        how = 'Python reads it by `spark.conf.get("key", None)`, SQL as `${key}`'
        lines.append(f"3. **Carried** by the pipeline's configuration; {how}:")
    lines += [f"   * {markdown.code(f'{key} = {value}')}" for key, value in steps.carried.items()] or ["   * nothing"]
    if not steps.said and steps.carried:
        lines.append("   * The keys are proposed; see that the deployed code reads them, and say so (`carried_by`).")
    lines.append("4. **Reset**: the plan below.")
    lines.append("5. **Verify** before and after:")
    queries = "\n".join((steps.check.queries if steps.check else {}).values())
    fence = markdown.fence_of(queries)
    return "\n".join([*map(markdown.line, lines), "", f"{fence}sql", queries or "-- the table is not known", fence])
