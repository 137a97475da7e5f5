"""What a change of a pipeline would do, before anything is sent: one shape for reset, refresh and rewind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.asked_sources import reports_by_name
from airflow_ckpt_provider.verdict import WORST_FIRST, Verdict, worst


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A change of a pipeline.

    :param kind: ``pipeline-reset``, ``pipeline-refresh`` or ``pipeline-rewind``.
    :param pipeline_id: the pipeline.
    :param pipeline_name: its name.
    :param calls: the requests that ``apply`` sends besides reads, in order: method, path and body.
    :param steps: what ``apply`` does, in order, in words.
    :param judgements: what was found; none means ``SAFE``.
    :param read_on: what updates mean for it that are active, or ran since: judged again right before the start, and so no part
        of what an approval is given for.
    :param warnings: what to know, whatever the verdict.
    :param rows: facts for people: name and value.
    :param facts: the same for programs.
    :param dry_run: the update only validates the code.
    :param emptied: full names of the tables that are emptied, as far as they are known.
    :param specification: the same for the same specification of the pipeline, see ``Examined.specification``.
    """

    kind: str
    pipeline_id: str
    pipeline_name: str
    calls: tuple[tuple[str, str, Mapping[str, Any]], ...]
    steps: tuple[str, ...]
    judgements: tuple[Judgement, ...] = ()
    warnings: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    emptied: tuple[str, ...] = ()
    specification: str = ""
    read_on: tuple[Judgement, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        return worst(judgement.verdict for judgement in (*self.judgements, *self.read_on))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, worst first."""
        found = (*self.judgements, *self.read_on)
        return tuple(j.reason for j in sorted(found, key=lambda j: WORST_FIRST.index(j.verdict)))

    @property
    def fingerprint(self) -> str:
        """Changes with the requests, the verdict or its reasons, what is emptied, and the pipeline that runs: what an approval
        is given for.
        """
        verdict = worst(judgement.verdict for judgement in self.judgements)
        reasons = sorted(judgement.reason for judgement in self.judgements)
        what = [self.kind, self.pipeline_id, self.calls, verdict.value, reasons]
        return fingerprint_of([*what, sorted(self.emptied), self.specification])

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON."""
        return {
            "kind": self.kind,
            "pipeline_id": self.pipeline_id,
            "pipeline_name": self.pipeline_name,
            "dry_run": self.dry_run,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "steps": list(self.steps),
            "calls": [{"method": method, "path": path, "body": dict(body)} for method, path, body in self.calls],
            "fingerprint": self.fingerprint,
            **self.facts,
        }

    def to_markdown(self) -> str:
        """The plan for people: the log, an approval form."""
        head = self.kind.replace("pipeline-", "").capitalize()
        rows = [("pipeline", f"{self.pipeline_name} ({markdown.code(self.pipeline_id)})"), *self.rows]
        rows.append(("verdict", f"**{self.verdict.value}**"))
        if self.dry_run:
            head = f"Dry run, nothing is changed: {head.lower()}"
        parts = [f"### {head} of a pipeline\n\n{markdown.facts(rows)}"]
        parts.append(markdown.bullets(self.reasons))
        parts.append(markdown.bullets(f"Note: {warning}" for warning in self.warnings))
        parts.append(markdown.steps(self.steps))
        sent = [f"{m} /api/{path}\n{json.dumps(body, indent=2, default=dict)}" for m, path, body in self.calls]
        fence = markdown.fence_of("\n".join(sent))
        parts.append(f"Requests:\n\n{fence}\n" + "\n".join(sent) + f"\n{fence}")
        parts.append(f"Plan {self.fingerprint}.")
        return "\n\n".join(part for part in parts if part) + "\n"

    def check(self, *, accept: Verdict | None, fingerprint: str | None) -> None:
        """See that the plan may be carried out.

        :param accept: the verdict, if it is not ``SAFE`` and is to be carried out all the same.
        :param fingerprint: that of the plan that was shown and approved; ``None``: not compared.
        :raises RefusedError: it may not.
        """
        if fingerprint not in (None, self.fingerprint):
            raise RefusedError(
                f"pipeline {self.pipeline_name}: the plan that was shown ({fingerprint}) is not the one that would be carried "
                f"out now ({self.fingerprint})",
                hint="make a new plan, and apply that",
            )
        if self.verdict not in (Verdict.SAFE, accept):
            raise RefusedError(
                f"pipeline {self.pipeline_name}: the verdict is {self.verdict.value}: {'; '.join(self.reasons)}",
                hint=f"put that right first, or accept it explicitly: accept={self.verdict.value!r}",
            )


def guard_judgements(report: Any, *, about: str = "source guard") -> list[Judgement]:
    """Take over the verdict of a guard's report, given as the XCom of its task.

    :param report: a report as JSON, several by name, or nothing. A name without a report is ``UNKNOWN``: its guard was skipped.
    :param about: what to call it.
    :raises RefusedError: it is no report.
    """
    try:
        named = reports_by_name(report)
    except ValueError as e:
        raise RefusedError(f"{about}: no report: {report[:80]!r}", hint="give the XCom of a guard's task") from e
    if "" not in named:
        return [judgement for name, each in named.items() for judgement in _of_one(each, f"{about} of {name}")]
    report = named[""]
    try:
        verdict = Verdict(report["verdict"])
        reasons = list(report.get("reasons") or ())
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise RefusedError(f"{about}: no report: {str(report)[:80]!r}", hint="give the XCom of a guard's task") from e
    if verdict is Verdict.SAFE:
        return [Judgement(verdict, f"{about}: {Verdict.SAFE.value}")]
    return [Judgement(verdict, f"{about}: {'; '.join(map(str, reasons)) or verdict.value}")]


def _of_one(report: Any, about: str) -> list[Judgement]:
    """One of several reports; its guard may have been skipped, and has asked nobody then."""
    missing = Judgement(
        Verdict.UNKNOWN, f"{about}: no report: see why its task has returned none, and give the XCom of one that ran"
    )
    return guard_judgements(report, about=about) or [missing]
