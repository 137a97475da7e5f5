"""Which way back: full refresh, full refresh with backup and backfill, or the reset of a checkpoint.

The vendor's documentation names the three ways and compares them by complexity, cost, possible loss, possible duplication and
the need of an initial snapshot. These are the columns here; how each is answered from what is known, and the ranking, are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.verdict import Verdict


class Way(StrEnum):
    """A way back."""

    RESET = "reset_checkpoint"
    BACKUP = "full_refresh_with_backup"
    REFRESH = "full_refresh"


#: Sources whose readers can be given a position.
_SEEKABLE = frozenset({"kafka", "delta", "file", "files", "auto-loader", "autoloader", "kinesis", "event-hubs"})
#: Above this a copy and a second reading are dear.
LARGE_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class StrategyFacts:
    """What is known of the failure's surroundings; ``None`` if it is not.

    :param source: kind of the source: ``kafka``, ``delta``, ``files``, ``auto-loader``, …
    :param source_holds_history: whether the source still has all that the table was made of.
    :param source_holds_unread: whether it still has all that the flow had not read yet.
    :param position_known: whether it is known up to where the table has the source.
    :param sink_idempotent: whether rows written twice end up once: AUTO CDC by key, deduplication downstream.
    :param table_bytes: size of the table.
    :param loss_acceptable: whether rows that the source no longer has may go.
    :param duplicates_acceptable: whether rows may come twice.
    :param stateful: whether the flow keeps state (aggregation, deduplication, join) that a reset throws away.
    :param reset_allowed: ``False`` where the table has ``pipelines.reset.allowed=false``.
    """

    source: str = ""
    source_holds_history: bool | None = None
    source_holds_unread: bool | None = None
    position_known: bool | None = None
    sink_idempotent: bool | None = None
    table_bytes: int | None = None
    loss_acceptable: bool = False
    duplicates_acceptable: bool = False
    stateful: bool | None = None
    reset_allowed: bool | None = None

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> StrategyFacts:
        """Read facts as a form gives them.

        :raises RefusedError: there is no such fact, or it is of another kind.
        """
        for name, value in known.items():
            if name not in cls.__slots__:
                raise RefusedError(f"there is no fact {name!r}", hint=f"facts: {', '.join(cls.__slots__)}")
            wanted, words = _KINDS.get(name, (bool, "true or false"))
            may_be_left_out = value is None and name not in _ALWAYS_KNOWN
            if not may_be_left_out and type(value) is not wanted:
                raise RefusedError(f"fact {name} is {value!r}, not {words}", hint="leave out what is not known")
        return cls(**known)


#: Facts that are not yes or no: kind and words.
_KINDS: dict[str, tuple[type, str]] = {"source": (str, "a text"), "table_bytes": (int, "a number of bytes")}
_ALWAYS_KNOWN = ("source", "loss_acceptable", "duplicates_acceptable")


def facts_of_positions(positions: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What positions that were found say of a flow: only all of them, and each ``SAFE``, say that its rows and state are known.

    A worse verdict hides the others: a position that reads rows twice may also belong to a flow whose state is lost.

    :param positions: as ``PipelinePositionsOperator`` returns them: each with ``options`` and ``verdict``.
    """
    safe = bool(positions) and all(p["options"] and p["verdict"] == Verdict.SAFE for p in positions)
    return {"position_known": True, "stateful": False} if safe else {}


@dataclass(frozen=True, slots=True)
class Choice:
    """One way, judged.

    :param way: the way.
    :param complexity: ``low``, ``medium``, ``high``: how much has to be known and done.
    :param cost: ``low``, ``medium``, ``high``: computing and time.
    :param loss: whether rows may be lost: ``SAFE``, ``WILL_LOSE`` or ``UNKNOWN``.
    :param duplication: whether rows may come twice: ``SAFE``, ``WILL_DUPLICATE`` or ``UNKNOWN``.
    :param needs_snapshot: whether the source has to give its whole history again.
    :param empties_table: whether readers see an empty table for a while.
    :param possible: whether it can be done at all.
    :param reasons: why.
    """

    way: Way
    complexity: str
    cost: str
    loss: Verdict
    duplication: Verdict
    needs_snapshot: bool
    empties_table: bool
    possible: bool
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The judgement as plain JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "way": self.way.value,
            "loss": self.loss.value,
            "duplication": self.duplication.value,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class Strategies:
    """The ways, best first.

    :param facts: what they were judged by.
    :param ranked: the ways.
    """

    facts: StrategyFacts
    ranked: tuple[Choice, ...]

    @property
    def best(self) -> Choice:
        """The first; it may still not be safe."""
        return self.ranked[0]

    def to_json(self) -> dict[str, Any]:
        """The ranking as plain JSON."""
        return {"best": self.best.way.value, "ranked": [choice.to_json() for choice in self.ranked]}

    def to_markdown(self) -> str:
        """The ranking for people."""
        rows = []
        for number, c in enumerate(self.ranked, 1):
            snapshot = "yes" if c.needs_snapshot else "no"
            name = f"`{c.way.value}`{'' if c.possible else ' (not possible)'}"
            rows.append((number, name, c.complexity, c.cost, c.loss.value, c.duplication.value, snapshot))
        columns = ("", "way", "complexity", "cost", "loss", "duplication", "initial snapshot")
        lines = [markdown.table(columns, rows)]
        for choice in self.ranked:
            lines += ["", f"`{choice.way.value}`:", "", markdown.bullets(choice.reasons)]
        return "\n".join(lines) + "\n"


def recovery_strategy(facts: StrategyFacts) -> Strategies:
    """Rank the three ways.

    Possible ways come first; then those that do what is not acceptable possibly or certainly come last;
    then what is cheaper, then what is simpler.

    :param facts: what is known.
    """
    choices = [_reset(facts), _backup(facts), _refresh(facts)]
    return Strategies(facts, tuple(sorted(choices, key=lambda choice: _rank(choice, facts))))


_SCALE = {"low": 0, "medium": 1, "high": 2}


def _rank(choice: Choice, facts: StrategyFacts) -> tuple[bool, int, int, int]:
    harm = 0
    for verdict, acceptable in (
        (choice.loss, facts.loss_acceptable),
        (choice.duplication, facts.duplicates_acceptable),
    ):
        if verdict is not Verdict.SAFE and not acceptable:
            harm += 2 if verdict is Verdict.UNKNOWN else 5
    return (not choice.possible, harm, _SCALE[choice.cost], _SCALE[choice.complexity])


def _reset(facts: StrategyFacts) -> Choice:
    seekable = not facts.source or facts.source.lower() in _SEEKABLE
    reasons = ["the table keeps its rows and stays readable; only the flow begins again"]
    complexity, duplication = "medium", Verdict.SAFE
    loss, unread = _loss_of_unread(facts)
    if unread:
        reasons.append(unread)
    if facts.sink_idempotent:
        reasons.append("what is read twice ends up once, so the position may be early")
    elif facts.position_known and seekable:
        reasons.append("it begins where the table ends, so nothing is written twice")
    else:
        duplication = Verdict.UNKNOWN if facts.position_known is None and seekable else Verdict.WILL_DUPLICATE
        complexity = "high"
        why = "the source's reader cannot be given a position" if not seekable else "where the table ends is not known"
        reasons.append(f"{why}: what is read again is written again")
    if facts.stateful is not False:
        complexity = "high" if facts.stateful else complexity
        loss = loss if loss is Verdict.WILL_LOSE else Verdict.UNKNOWN
        duplication = duplication if duplication is Verdict.WILL_DUPLICATE else Verdict.UNKNOWN
        reasons.append(
            "the flow's state begins empty: windows and duplicates that reach over the position come out differently"
            if facts.stateful
            else "whether the flow keeps state (aggregation, deduplication, join) is not known; it begins empty: give stateful"
        )
    return Choice(Way.RESET, complexity, "low", loss, duplication, False, False, True, tuple(reasons))


def _loss_of_unread(facts: StrategyFacts) -> tuple[Verdict, str]:
    if facts.source_holds_unread is False:
        return Verdict.WILL_LOSE, "the source no longer has all that the flow had not read; no way back has it either"
    if facts.source_holds_unread is None and facts.source_holds_history is not True:
        said = "it is not known whether the source still has what the flow had not read: ask a source guard"
        return Verdict.UNKNOWN, said
    return Verdict.SAFE, ""


def _loss_of_history(facts: StrategyFacts) -> tuple[Verdict, str]:
    if facts.source_holds_unread is False:
        return Verdict.WILL_LOSE, "the source no longer has all that the flow had not read"
    if facts.source_holds_history:
        return Verdict.SAFE, "the source still has all that the table was made of"
    if facts.source_holds_history is None:
        return Verdict.UNKNOWN, "it is not known whether the source still has its history: ask a source guard"
    return Verdict.WILL_LOSE, "the source no longer has all that the table was made of"


def _allowed(facts: StrategyFacts) -> list[str]:
    forbidden = facts.reset_allowed is False
    return ["the table has pipelines.reset.allowed=false: a full refresh does not empty it"] if forbidden else []


def _refresh(facts: StrategyFacts) -> Choice:
    loss, why = _loss_of_history(facts)
    reasons = ["the table is emptied and filled again from the source; nothing is written twice", why, *_allowed(facts)]
    return Choice(
        Way.REFRESH,
        "low",
        "high" if _large(facts) or facts.table_bytes is None else "medium",
        loss,
        Verdict.SAFE,
        True,
        True,
        facts.reset_allowed is not False,
        tuple(reasons),
    )


def _backup(facts: StrategyFacts) -> Choice:
    known, why = _loss_of_history(facts)
    reasons = ["a copy of the table is kept before it is emptied, and brings back what the source no longer has"]
    duplication = Verdict.SAFE
    if known is not Verdict.SAFE:
        reasons.append(why)
        if not facts.sink_idempotent:
            duplication = Verdict.UNKNOWN
            reasons.append(
                "rows of the copy that the source also gives have to be distinguished: by keys, or as whole rows"
            )
    else:
        reasons.append(f"{why}, so the copy is only a safety net")
    loss, unread = _loss_of_unread(facts)
    if unread:
        reasons.append(unread)
    return Choice(
        Way.BACKUP,
        "medium" if facts.sink_idempotent or known is Verdict.SAFE else "high",
        "high" if _large(facts) or facts.table_bytes is None else "medium",
        loss,
        duplication,
        False,
        True,
        facts.reset_allowed is not False,
        (*reasons, *_allowed(facts)),
    )


def _large(facts: StrategyFacts) -> bool:
    return (facts.table_bytes or 0) >= LARGE_BYTES
