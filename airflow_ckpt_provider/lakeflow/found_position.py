"""A position that was found, the terms it was found under, and what every way of finding one has to see to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_start import TABLE_READ
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.evidence import FlowEvidence, Offsets, SourceEvidence
from airflow_ckpt_provider.lakeflow.histories import VACUUM, Commit, foreign, removes_files, written_rows
from airflow_ckpt_provider.verdict import WORST_FIRST, Verdict, worst

APPEND, APPLY_CHANGES, APPLY_CHANGES_SCD2, DEDUP = "append", "apply_changes", "apply_changes_scd2", "dedup"
#: What the target does with rows that are written twice.
TARGETS = (APPEND, APPLY_CHANGES, APPLY_CHANGES_SCD2, DEDUP)
#: Before the time that is known, where nobody says how much.
MARGIN = timedelta(hours=1)
BY_PROGRESS, BY_FILES, BY_TIME = "progress", "file state", "time"


@dataclass(frozen=True, slots=True)
class FoundPosition:
    """Where one source of a flow begins.

    :param flow: the flow.
    :param source: the source.
    :param kind: ``kafka``, ``delta``, ``files``; empty: not known.
    :param options: options of the reader; none where no position holds.
    :param how: ``progress``, ``file state``, ``time``; empty: not found.
    :param judgements: what it does, and why.
    :param again: what is read a second time at most, by unit (``offsets``, ``versions``, ``rows``, ``files``); ``None``: not
        known.
    """

    flow: str
    source: str
    kind: str
    options: Mapping[str, str]
    how: str
    judgements: tuple[Judgement, ...] = ()
    again: Mapping[str, int] | None = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        return worst(judgement.verdict for judgement in self.judgements)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, worst first."""
        return tuple(j.reason for j in sorted(self.judgements, key=lambda j: WORST_FIRST.index(j.verdict)))

    def to_json(self) -> dict[str, Any]:
        """The position as plain JSON."""
        return {
            "flow": self.flow,
            "source": self.source,
            "kind": self.kind,
            "options": dict(self.options),
            "how": self.how or None,
            "verdict": self.verdict.value,
            "reasons": list(self.reasons),
            "again": None if self.again is None else dict(self.again),
        }


@dataclass(frozen=True, slots=True)
class Terms:
    """What the caller says.

    :param target: what the target does with rows that come twice; empty: as an ``append``, unless the flow's definition shows of
        something else.
    :param margin: how much before the known time reading begins; ``None``: :data:`MARGIN`, and where only it keeps late files
        or records from being lost, the verdict is ``UNKNOWN``.
    :param stateful: whether the deployed code still has stateful operators; ``None``: not known.
    """

    target: str = ""
    margin: timedelta | None = None
    stateful: bool | None = None

    def __post_init__(self) -> None:
        if self.target and self.target not in TARGETS:
            raise RefusedError(f"target is {self.target!r}", hint=f"give one of {', '.join(TARGETS)}")
        if self.margin is not None and self.margin < timedelta(0):
            raise RefusedError(f"margin is {self.margin}", hint="give a time that is not negative, such as 15min")

    @property
    def before(self) -> timedelta:
        """The margin."""
        return MARGIN if self.margin is None else self.margin


def written_until(flow: FlowEvidence, commits: Sequence[Commit], version: int, terms: Terms) -> list[Commit]:
    """Versions of a source from one on that the flow may have written already: none was read after its last write."""
    wrote = flow.history.newest_write if flow.history else None
    end = None if wrote is None or flow.history is None else wrote.time + terms.before
    return [c for c in commits if c.version >= version and (end is None or c.time <= end)]


def versions(commits: Sequence[Commit]) -> dict[str, int]:
    """Count versions, and their rows where all tell them."""
    if not commits:
        return {}
    rows = written_rows(commits)
    return {"versions": len(commits)} | ({} if rows is None else {"rows": rows})


def of_files(name: str, commits: Sequence[Commit], version: int) -> Judgement:
    """Say whether a history shows that the files of versions from one on are still there.

    VACUUM removes files that a commit had put out of use. Databricks writes each VACUUM into the history.
    """
    since = [commit for commit in commits if commit.version >= version]
    first = min((c.version for c in since if removes_files(c)), default=None)
    vacuumed = next((c for c in since if first is not None and c.version > first and c.operation in VACUUM), None)
    if vacuumed:
        return Judgement(
            Verdict.UNKNOWN,
            f"{name}: files of versions from {version} on were put out of use (version {first}), and VACUUM ran since (version "
            f"{vacuumed.version}): whether it removed them is not reported",
        )
    return Judgement(
        Verdict.SAFE, f"{TABLE_READ}{name} is the one that the flow read, and its history has version {version}"
    )


def of_target(flow: FlowEvidence, since: datetime | None, terms: Terms, *, after: int | None = None) -> list[Judgement]:
    """Say what has happened to the table since the position: rows that are gone are not read again.

    :param since: the time that the position goes by.
    :param after: the version of the table that it goes by, where that is known; it needs no clock.
    """
    table = flow.table or "the table"
    found = []
    if flow.emptied and since and flow.emptied > since:
        found.append(
            Judgement(
                Verdict.UNKNOWN,
                f"an update of {iso(flow.emptied)} empties {table}: what was read before may not be in it any more",
            )
        )
    if flow.history is None:
        reason = (
            f"the history of {table} was not read: whether rows were removed since, or more was written, is not known"
        )
        return [*found, Judgement(Verdict.UNKNOWN, reason)]
    if since is None:
        return found
    merges = flow.kind == "CHANGE" or terms.target in (APPLY_CHANGES, APPLY_CHANGES_SCD2)
    later = flow.history.since(since) if after is None else flow.history.after(after)
    strange = foreign(later, merges=merges)
    if strange:
        shown = ", ".join(strange[:5])
        found.append(
            Judgement(Verdict.UNKNOWN, f"{table}: {shown} since then: rows may be gone that are not read again")
        )
    if after is None and not flow.history.complete and flow.history.commits and flow.history.commits[-1].time > since:
        found.append(Judgement(Verdict.UNKNOWN, f"the history of {table} does not reach back to {iso(since)}"))
    return found


def of_state(flow: FlowEvidence, terms: Terms) -> list[Judgement]:
    """A reset throws state away; a position in the input does not bring it back."""
    operators = flow.progress.operators if flow.progress else ()
    if terms.stateful is False or (terms.stateful is None and not operators and flow.progress is not None):
        return []
    if terms.stateful is None and not operators:
        reason = "whether the flow keeps state (aggregation, dropDuplicates, join) is not known; a reset throws it away"
        return [Judgement(Verdict.UNKNOWN, f"{reason}: say stateful=False if the deployed code has none")]
    named = f" ({', '.join(operators)})" if operators else ""
    return [
        Judgement(
            Verdict.UNKNOWN,
            f"the flow had stateful operators{named}, and its state begins empty: windows and duplicates that reach over the "
            "position come out differently; say stateful=False if the deployed code has none any more"
            if terms.stateful is None
            else "the flow has stateful operators, and its state begins empty: windows and duplicates that reach over the "
            "position come out differently",
        )
    ]


def repeats(flow: FlowEvidence, again: Mapping[str, int] | None, terms: Terms) -> Judgement:
    """What becomes of what is read again."""
    if again is not None and not any(again.values()):
        return Judgement(Verdict.SAFE, "nothing is read again")
    counted = (
        "an unknown amount" if again is None else ", ".join(f"{number:,} {unit}" for unit, number in again.items())
    )
    what = f"up to {counted} is read again" if again else f"{counted} may be read again"
    if terms.target == APPLY_CHANGES:
        return Judgement(
            Verdict.SAFE, f"{what}; the target keeps one row a key, by its sequence (apply_changes, SCD type 1)"
        )
    if terms.target == DEDUP:
        return Judgement(Verdict.SAFE, f"{what}; what reads the table removes rows that come twice, as you say (dedup)")
    if terms.target == APPLY_CHANGES_SCD2:
        reason = f"{what}; whether a history (SCD type 2) takes the same change twice is not established"
        return Judgement(Verdict.UNKNOWN, reason)
    if not terms.target and flow.kind not in ("", "APPEND"):
        reason = f"{what}; the flow is {flow.kind}: say what its target does with it (target: {', '.join(TARGETS)})"
        return Judgement(Verdict.UNKNOWN, reason)
    if again is None:
        return Judgement(Verdict.UNKNOWN, f"{what}, and an append writes it twice")
    return Judgement(Verdict.WILL_DUPLICATE, f"{what}, and an append writes it twice")


def late(source: SourceEvidence, terms: Terms, who: str, when: str) -> list[Judgement]:
    """Say what a time leaves out that arrives after it, and whether somebody has said that nothing does."""
    what = f"{source.name}: {who} more than {words(terms.before)} after {when} is not read"
    if terms.margin is not None:
        return [Judgement(Verdict.SAFE, f"{what}; you say that there is none (margin)")]
    return [Judgement(Verdict.UNKNOWN, f"{what}: say how late it may be (margin)")]


def lost_of_kafka(start: Offsets, earliest: Offsets, latest: Offsets) -> list[Judgement]:
    """Compare offsets with those that can still be read."""
    found = []
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            first = earliest.get(topic, {}).get(partition)
            end = latest.get(topic, {}).get(partition)
            if first is None or end is None:
                found.append(
                    Judgement(Verdict.UNKNOWN, f"{topic}-{partition} cannot be asked, or does not exist any more")
                )
            elif 0 <= offset < first:
                lost = f"{topic}-{partition}: {first - offset:,} offsets from {offset} on are gone"
                found.append(Judgement(Verdict.WILL_LOSE, lost))
            elif offset > end:
                reason = f"{topic}-{partition} ends at {end}, before {offset}: it is another topic than the one that was read"
                found.append(Judgement(Verdict.UNKNOWN, reason))
    return found


def between(start: Offsets, latest: Offsets) -> int:
    """Count the offsets from a start to the end of the logs."""
    return sum(
        max(0, latest.get(topic, {}).get(partition, offset) - offset)
        for topic, partitions in start.items()
        for partition, offset in partitions.items()
        if offset >= 0
    )


def offsets_json(offsets: Offsets) -> str:
    """Write offsets as ``startingOffsets`` has them."""
    return json.dumps(
        {topic: {str(p): offset for p, offset in sorted(each.items())} for topic, each in offsets.items()}
    )


def iso(time: datetime) -> str:
    """Write a time as options have it, in whole milliseconds; a part of one goes to the earlier."""
    # Down to the millisecond before: a later time would leave something out.
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def words(time: timedelta) -> str:
    """Write a length of time."""
    seconds = int(time.total_seconds())
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
