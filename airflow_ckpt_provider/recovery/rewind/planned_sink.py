"""The sinks of a rewind: what was asked for each, what each says, and what is done to it.

A plan has a list of them, and one sink is a list of one. In documents one sink is stored as it was before there were several, so
that either release reads the plans of the other; several are stored as a list, which earlier releases refuse to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.change.plan import Risk
from airflow_ckpt_provider.change.plan_page import named_sink
from airflow_ckpt_provider.change.risks import sink_risk
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import plain_uri
from airflow_ckpt_provider.verdict import Verdict, worst


@dataclass(frozen=True, slots=True)
class RequestedSink:
    """What was asked for one sink.

    :param sink: URI of the sink, or the kind of one without a place; empty where none was named.
    :param sink_exit: what is done about rows beyond the target; empty where nothing was chosen.
    :param app_id: its ``txnAppId`` where that is not the query id; else empty.
    """

    sink: str = ""
    sink_exit: str = ""
    app_id: str = ""

    def to_json(self) -> dict[str, str]:
        """As plain JSON."""
        return {"sink": self.sink, "sink_exit": self.sink_exit, "app_id": self.app_id}


@dataclass(frozen=True, slots=True)
class PlannedSink:
    """One sink in a plan.

    :param name: how the request names it.
    :param report: what it says.
    :param policy: what is done about rows beyond the target, where anything is.
    :param app_id: the id by which it knows the query.
    :param table_id: the id of the table; empty where it has none, and in plans of earlier releases.
    """

    name: str
    report: SinkReport
    policy: SinkPolicy | None
    app_id: str
    table_id: str = ""

    @property
    def rolls_back(self) -> bool:
        """Whether it is rolled back too."""
        return self.policy is SinkPolicy.ROLLBACK and self.report.rollback is not None

    @property
    def by_spark(self) -> str | None:
        """The table feature because of which Spark has to roll it back, or ``None``."""
        return self.report.rollback.feature if self.rolls_back and self.report.rollback else None

    @property
    def verdict(self) -> Verdict:
        """What happens at the sink with the policy that was chosen."""
        if not self.rolls_back:
            return self.report.verdict
        if self.report.rollback and (self.report.rollback.reverts or self.report.rollback.foreign):
            return Verdict.WILL_LOSE
        return Verdict.UNKNOWN if self.report.doubts else Verdict.SAFE

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, in words."""
        rollback = self.report.rollback
        if not self.rolls_back or rollback is None:
            return self.report.reasons
        return (
            *self.report.doubts,
            *(f"a rollback removes rows of others: {commit}" for commit in rollback.foreign),
            *(f"a rollback removes: {change}" for change in rollback.reverts),
        )

    def risks(self, batch_id: int) -> Iterator[Risk]:
        """What has to be accepted: what it does when nothing is done to it, rows and settings of others."""
        word = sink_risk(self.report.verdict)
        if word and not self.rolls_back and self.policy is not SinkPolicy.ACCEPT:
            yield Risk(word, "; ".join(self.report.reasons))
        rollback = self.report.rollback
        if self.rolls_back and rollback and rollback.foreign:
            others = f"others have written into {self.report.uri} since batch {batch_id}: {', '.join(rollback.foreign)}"
            settings = f", and removes: {'; '.join(rollback.reverts)}" if rollback.reverts else ""
            yield Risk("foreign_loss", f"{others}; a roll-back removes their rows too{settings}")
        elif self.rolls_back and rollback and rollback.reverts:
            others = f"others have changed {self.report.uri} since batch {batch_id}"
            yield Risk("foreign_loss", f"{others}; a rollback removes: {'; '.join(rollback.reverts)}")

    def step(self, batch_id: int, *, what: str = "the table") -> str | None:
        """What is done to it, in words; ``None`` for nothing.

        :param batch_id: the batch that is rewound to.
        :param what: how the step names it.
        """
        rollback = self.report.rollback
        if not self.rolls_back or rollback is None:
            return None
        if rollback.how:
            return f"roll {what} back: {rollback.how}"
        if rollback.to_version is None:
            return f"set {len(rollback.paths)} files of {what} aside and delete them, its log first"
        how = f"in one commit; it then remembers batch {batch_id}"
        if self.by_spark:
            how = f"by Spark, because it has the feature {self.by_spark}; it still remembers its newer batches"
        return f"roll {what} back to {self._version} {rollback.to_version} {how}"

    @property
    def rollback_in_words(self) -> str:
        """What leaves it; empty where nothing does."""
        rollback = self.report.rollback
        if not self.rolls_back or rollback is None:
            return ""
        rows = "a number of rows not known" if rollback.rows is None else f"{rollback.rows:,} rows"
        where = (
            f"{self._version} {rollback.from_version} to {rollback.to_version}"
            if rollback.to_version is not None
            else rollback.how or "its log"
        )
        return f"{where}, {rows} of {rollback.batches} batches leave it"

    @property
    def in_words(self) -> str:
        """The sink in one line of a plan."""
        policy = f"policy {self.policy.value}" if self.policy else ""
        leaves = f": {self.rollback_in_words}" if self.rollback_in_words else ""
        return f"{named_sink(self.report.uri, self.report.kind, policy)}{leaves}"

    @property
    def _version(self) -> str:
        return "snapshot" if self.report.kind == "iceberg" else "version"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, in a plan with several sinks."""
        return {
            "name": self.name,
            "report": self.report.to_json(),
            "verdict": self.verdict.value,
            "sink_exit": self.policy.value if self.policy else None,
            "app_id": self.app_id,
            **({"table_id": self.table_id} if self.table_id else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PlannedSink:
        """Read what :meth:`to_json` wrote."""
        policy = SinkPolicy(value["sink_exit"]) if value["sink_exit"] else None
        table_id = str(value.get("table_id") or "")
        return cls(str(value["name"]), SinkReport.from_json(value["report"]), policy, str(value["app_id"]), table_id)


def planned_sinks_of(document: Mapping[str, Any]) -> tuple[PlannedSink, ...]:
    """The sinks in the document of a rewind.

    :raises ValueError: there is none.
    """
    if "sinks" not in document:
        one = {"name": document["request"]["sink"], "report": document["sink"]}
        beside = {name: document[name] for name in ("sink_exit", "app_id", "table_id") if name in document}
        return (PlannedSink.from_json({**one, **beside}),)
    found = tuple(PlannedSink.from_json(each) for each in document["sinks"])
    if not found:
        raise ValueError("the plan has no sink")
    return found


def sinks_json(sinks: Sequence[PlannedSink]) -> dict[str, Any]:
    """The sinks of a plan as its document has them."""
    if len(sinks) > 1:
        return {"sinks": [sink.to_json() for sink in sinks]}
    sink = sinks[0]
    exit_ = sink.policy.value if sink.policy else None
    table = {"table_id": sink.table_id} if sink.table_id else {}
    return {"sink": sink.report.to_json(), "sink_exit": exit_, "app_id": sink.app_id, **table}


def verdict_of(sinks: Sequence[PlannedSink]) -> Verdict:
    """The worst of the sinks."""
    return worst(sink.verdict for sink in sinks)


def reasons_of(sinks: Sequence[PlannedSink]) -> list[str]:
    """Why, in words; of several sinks each reason names its own."""
    if len(sinks) == 1:
        return [f"sink: {reason}" for reason in sinks[0].reasons]
    return [f"sink {sink.report.uri}: {reason}" for sink in sinks for reason in sink.reasons]


def risks_of(sinks: Sequence[PlannedSink], batch_id: int) -> list[Risk]:
    """What has to be accepted at the sinks; of several sinks each risk names its own."""
    of_each = ((sink, risk) for sink in sinks for risk in sink.risks(batch_id))
    return [risk if len(sinks) == 1 else replace(risk, why=f"{sink.report.uri}: {risk.why}") for sink, risk in of_each]


def steps_of(sinks: Sequence[PlannedSink], batch_id: int) -> list[str]:
    """What is done to the sinks, in order."""
    if len(sinks) == 1:
        what = (
            "the table" if sinks[0].report.rollback and sinks[0].report.rollback.to_version is not None else "the sink"
        )
        steps = [sinks[0].step(batch_id, what=what)]
    else:
        steps = [sink.step(batch_id, what=f"`{sink.report.uri}`") for sink in sinks]
    found = [step for step in steps if step]
    return found if len(found) < 2 else ["see that nobody has written into any of the sinks", *found]


def sinks_table(sinks: Sequence[PlannedSink]) -> str:
    """The sinks of a plan as a table; empty for one, which has a line of its own."""
    if len(sinks) == 1:
        return ""
    rows = [
        (
            f"`{sink.report.uri}`",
            sink.report.kind,
            _in_words(sink.policy),
            f"**{sink.verdict.value}**",
            sink.rollback_in_words or "stays as it is",
        )
        for sink in sinks
    ]
    return markdown.table(("sink", "kind", "policy", "verdict", "what leaves it"), rows)


def _in_words(policy: SinkPolicy | None) -> str:
    return "keep" if policy in (None, SinkPolicy.ACCEPT) else str(policy.value) if policy else ""


def given_for(planned: PlannedSink, sinks: Sequence[Sink], *, however_named: bool) -> Sink:
    """The sink that was given for one of a plan.

    :param planned: the sink of the plan.
    :param sinks: those that were given.
    :param however_named: the only one is taken for it under any name: the plan has no other, and its kind refuses another one.
    :return: an unknown one where none was given for it.
    """
    if however_named and len(sinks) == 1:
        return sinks[0]
    wanted = {plain_uri(planned.name), plain_uri(planned.report.uri)}
    return next((sink for sink in sinks if sink.name and plain_uri(sink.name) in wanted), Sink())


def policies_for(
    sinks: Sequence[Sink], policies: SinkPolicy | Sequence[SinkPolicy | None] | None
) -> tuple[SinkPolicy | None, ...]:
    """A policy for each sink: one for all, or one for each in the same order.

    :raises RefusedError: their numbers differ; or the checkpoint is to go forward to some sinks and back with others.
    """
    given = (policies,) if policies is None or isinstance(policies, SinkPolicy) else tuple(policies)
    if len(given) == 1:
        given *= len(sinks)
    if len(given) != len(sinks):
        raise RefusedError(
            f"{len(given)} sink policies are given for {len(sinks)} sinks",
            hint="give one for all of them, or one for each in the order of the sinks",
        )
    if SinkPolicy.FORWARD in given and set(given) != {SinkPolicy.FORWARD}:
        raise RefusedError(
            "the policy 'forward' is given for some of the sinks, and the checkpoint can go forward only to all of them",
            hint="give 'forward' for all of them, or 'rollback' and 'keep'",
        )
    return given
