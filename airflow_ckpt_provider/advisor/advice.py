"""From an error to an advice."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.advisor.condition import ErrorCondition, Remedy, Step
from airflow_ckpt_provider.advisor.facts import Facts, facts_of
from airflow_ckpt_provider.advisor.pipeline_conditions import EVENTS, NO_FULL_REFRESH, RESET_FLOW
from airflow_ckpt_provider.advisor.reading import read
from airflow_ckpt_provider.advisor.registry import WRAPPERS, Match, matches_in, names_in
from airflow_ckpt_provider.advisor.steps import DIAGNOSE, KEEP_IT, LOOK
from airflow_ckpt_provider.advisor.surface import for_operators, operator_call
from airflow_ckpt_provider.lakeflow.strategy import Strategies, StrategyFacts, recovery_strategy
from airflow_ckpt_provider.verdict import Verdict

#: Characters around the place where a condition was recognised that belong to it.
_NEAR = 600
#: Remedies that change the checkpoint's files, which nobody can in a pipeline of Databricks.
_BY_FILES = frozenset({Remedy.RESTORE, Remedy.REPAIR, Remedy.REWIND, Remedy.RESET, Remedy.UNSEAL})

#: Conditions that say that the source no longer has what the query had not read.
_GONE = frozenset({"KAFKA-OFFSETS-GONE", "KAFKA-DATA-LOSS", "DELTA-VERSIONS-GONE"})


@dataclass(frozen=True, slots=True)
class RecoveryAdvice:
    """What an error means and what to do.

    :param condition: what was recognised; ``None``: nothing was, and the verdict is ``UNKNOWN``.
    :param name: the name that Spark or another gives it, or empty.
    :param wrapped_in: names of the conditions around it.
    :param evidence: the line that gave it away.
    :param facts: what else the error says.
    :param also: other conditions in the same error, less exact or earlier in the chain of causes.
    """

    condition: ErrorCondition | None
    name: str
    wrapped_in: tuple[str, ...]
    evidence: str
    facts: Facts
    also: tuple[ErrorCondition, ...] = ()

    @property
    def recognised(self) -> bool:
        """Whether anything was."""
        return self.condition is not None

    @property
    def cause(self) -> str:
        """What has happened, in words."""
        if self.condition:
            return self.condition.cause
        named = f" The error names {self.name}, of which nothing is known here." if self.name else ""
        return f"{Verdict.UNKNOWN}: nothing in this text is an error condition that is known here.{named}"

    @property
    def do_not(self) -> str:
        """What would make it worse."""
        if self._in_pipeline and self.condition and self.condition.remedy in _BY_FILES:
            return NO_FULL_REFRESH
        return self.condition.do_not if self.condition else KEEP_IT

    @property
    def steps(self) -> tuple[Step, ...]:
        """What to do, in order, with the facts filled in."""
        return tuple(
            Step(
                self.facts.fill(step.text),
                tuple(map(self.facts.fill, step.command)),
                step.operator,
                self.facts.fill(step.call),
            )
            for step in self._templates()
        )

    @property
    def ways(self) -> Strategies | None:
        """The ways back of a pipeline, best first, by what the error alone says; ``None`` where it asks for none of them."""
        if not self._in_pipeline or not self.condition or self.condition.remedy not in _BY_FILES | {Remedy.FIX_QUERY}:
            return None
        code = self.condition.code
        held = False if code in _GONE else None
        return recovery_strategy(
            StrategyFacts(
                source=code.partition("-")[0].lower() if code.startswith(("KAFKA-", "DELTA-")) else "",
                source_holds_history=held,
                source_holds_unread=held,
                reset_allowed=False if code == "PIPELINE-NOT-RESETTABLE" else None,
            )
        )

    @property
    def _in_pipeline(self) -> bool:
        return bool(self.facts.pipeline_id)

    def _templates(self) -> tuple[Step, ...]:
        if self.condition is None:
            return (EVENTS,) if self._in_pipeline else (LOOK, DIAGNOSE)
        if not self._in_pipeline or any(step.call for step in self.condition.steps):
            return self.condition.steps
        # The checkpoint is the pipeline's own: no file of it can be reached.
        words = tuple(step for step in self.condition.steps if not step.command)
        return (*words, RESET_FLOW) if self.condition.remedy in _BY_FILES | {Remedy.FIX_QUERY} else (*words, EVENTS)

    def to_json(self) -> dict[str, Any]:
        """The documented keys of ``airflow-ckpt explain --json``."""
        condition = self.condition
        return {
            "recognised": self.recognised,
            "code": condition.code if condition else Verdict.UNKNOWN.value,
            "condition": self.name or None,
            "wrapped_in": list(self.wrapped_in),
            "evidence": self.evidence,
            "cause": self.cause,
            "do_not": self.do_not,
            "remedy": condition.remedy.value if condition else None,
            "steps": [
                {
                    "text": step.text,
                    "command": shlex.join(("airflow-ckpt", *step.command)) if step.command else None,
                    "operator": step.operator or None,
                    "call": step.call or None,
                }
                for step in self.steps
            ],
            "facts": self.facts.to_json(),
            "also": [other.code for other in self.also],
            "ways": self.ways.to_json()["ranked"] if self.ways else None,
        }

    def to_text(self, *, in_airflow: bool = False) -> str:
        """The advice in plain lines, for a log.

        :param in_airflow: it is read in Airflow: tasks come before commands, and arguments stand for options.
        """
        head = self.condition.code if self.condition else Verdict.UNKNOWN.value
        lines = [f"{head}{f' ({self.name})' if self.name else ''}: {self.cause}"]
        if self.evidence:
            lines.append(f"Said by: {self.evidence}")
        lines += [f"{name.replace('_', ' ')}: {value}" for name, value in self.facts.to_json().items()]
        lines.append(f"Do not: {self.do_not}")
        if self.condition:
            lines.append(f"Way out: {self.condition.remedy.value}")
        for number, step in enumerate(self.steps, 1):
            lines.append(f"{number}. {for_operators(step.text) if in_airflow else step.text}")
            command = [f"   $ {shlex.join(('airflow-ckpt', *step.command))}"] if step.command else []
            task = [f"   in a DAG: {step.operator}"] if step.operator else []
            if in_airflow and task and (call := operator_call(step.operator, step.command or ("",))):
                task = [f"   in a DAG: {call}"]
            lines += [*task, *command] if in_airflow else [*command, *task]
            if step.call:
                lines.append(f"   $ {step.call}")
        if self.ways:
            ranked = (
                f"{w.way.value} (loss {w.loss.value}, duplication {w.duplication.value})" for w in self.ways.ranked
            )
            lines.append(f"Ways back, by what this error says: {'; '.join(ranked)}")
        return "\n".join(lines)


def recovery_advice(error: BaseException | str) -> RecoveryAdvice:
    """Say what an error of a stream means and what to do about it.

    Nothing is read but the error itself: no checkpoint, no network.

    :param error: an exception as PySpark or Airflow raised it, or a text: a message, a whole log (its last failure
        counts), an event of a Databricks pipeline as JSON.
    :return: the advice; where nothing is recognised it says so, and recommends only to inspect the checkpoint.
    """
    report = read(error)
    matches = matches_in(report.text)
    best = _best(matches)
    near = report.text[max(0, best.position - _NEAR) : best.position + _NEAR] if best else ""
    facts = report.facts.beside(facts_of(report.text, near=near))
    names = [name for name, _ in names_in(report.text)]
    wrappers = tuple(dict.fromkeys(name for name in names if name in WRAPPERS and best and name != best.name))
    if best is None:
        unknown = [name for name in names if name not in WRAPPERS and f"[{name}]" in report.text]
        return RecoveryAdvice(None, unknown[-1] if unknown else "", wrappers, "", facts)
    also = dict.fromkeys(m.condition for m in matches if m.condition is not best.condition)
    return RecoveryAdvice(
        condition=best.condition,
        name=best.name,
        wrapped_in=wrappers,
        evidence=_line(report.text, best.position),
        facts=facts,
        also=tuple(also),
    )


def _best(matches: list[Match]) -> Match | None:
    """The most exact one; of equally exact ones the last, for a chain of causes ends with what began it.

    A seal comes first: it is why the rest happens.
    """
    if not matches:
        return None
    seals = [m for m in matches if m.condition.code == "SEALED"]
    exact = [m for m in matches if not m.condition.vague]
    chosen = (seals or exact or matches)[-1]
    # The same condition by its name says more than by its wording.
    named = [m for m in matches if m.condition is chosen.condition and m.name]
    return named[-1] if named else chosen


def _line(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)].strip()
    # A message can be one line of many thousand characters: the part around what was recognised.
    if len(line) > 500:
        at = position - start
        line = f"…{line[max(0, at - 100) : at + 390]}…"
    return line
