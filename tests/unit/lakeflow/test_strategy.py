"""Which way back: the vendor's table, and what the facts make of it."""

from __future__ import annotations

import itertools
import json

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.lakeflow.strategy import (
    LARGE_BYTES,
    StrategyFacts,
    Way,
    facts_of_positions,
    recovery_strategy,
)
from airflow_ckpt_provider.verdict import Verdict

SAFE = Verdict.SAFE


def ranked(**facts: object) -> list[Way]:
    return [choice.way for choice in recovery_strategy(StrategyFacts.from_json(facts)).ranked]


def test_a_known_position_makes_the_reset_best() -> None:
    found = recovery_strategy(
        StrategyFacts(source="kafka", source_holds_unread=True, position_known=True, stateful=False)
    )
    assert found.best.way is Way.RESET
    assert (found.best.loss, found.best.duplication, found.best.cost, found.best.complexity) == (
        SAFE,
        SAFE,
        "low",
        "medium",
    )
    assert not found.best.needs_snapshot
    assert not found.best.empties_table


def test_a_source_with_all_its_history_and_no_position_makes_the_full_refresh_best() -> None:
    assert ranked(source="files", source_holds_history=True, position_known=False)[0] is Way.REFRESH


def test_lost_history_and_no_position_make_the_backup_best() -> None:
    facts = {"source": "kafka", "source_holds_history": False, "source_holds_unread": True, "position_known": False}
    assert ranked(**facts)[0] is Way.BACKUP
    assert ranked(**facts, sink_idempotent=True, stateful=False)[0] is Way.RESET
    assert ranked(**facts, duplicates_acceptable=True, stateful=False)[0] is Way.RESET
    assert ranked(**facts)[-1] in (Way.REFRESH, Way.RESET)


def test_a_source_that_cannot_be_told_where_to_begin() -> None:
    reset = next(
        c for c in recovery_strategy(StrategyFacts(source="socket", position_known=True)).ranked if c.way is Way.RESET
    )
    assert reset.duplication is Verdict.WILL_DUPLICATE
    assert reset.complexity == "high"


def test_a_table_that_must_not_be_reset() -> None:
    found = recovery_strategy(StrategyFacts(source_holds_history=True, reset_allowed=False))
    assert found.best.way is Way.RESET
    assert [choice.possible for choice in found.ranked] == [True, False, False]


def test_what_nobody_has_is_lost_on_every_way() -> None:
    found = recovery_strategy(StrategyFacts(source="kafka", source_holds_history=False, source_holds_unread=False))
    assert {choice.loss for choice in found.ranked} == {Verdict.WILL_LOSE}


@pytest.mark.parametrize("stateful", [True, None])
def test_a_reset_that_may_begin_with_an_empty_state_is_not_safe(stateful: bool | None) -> None:
    known = {"source": "kafka", "source_holds_unread": True, "position_known": True, "sink_idempotent": True}
    facts = StrategyFacts.from_json({**known, "stateful": stateful})
    reset = next(c for c in recovery_strategy(facts).ranked if c.way is Way.RESET)
    assert (reset.loss, reset.duplication) == (Verdict.UNKNOWN, Verdict.UNKNOWN)
    assert "state" in reset.reasons[-1]


def test_a_large_table_is_dear() -> None:
    def cost(size: int | None) -> str:
        found = recovery_strategy(StrategyFacts(source_holds_history=True, table_bytes=size))
        return next(choice.cost for choice in found.ranked if choice.way is Way.REFRESH)

    assert (cost(1), cost(LARGE_BYTES), cost(None)) == ("medium", "high", "high")


def test_nothing_known_is_not_safe() -> None:
    found = {choice.way: choice for choice in recovery_strategy(StrategyFacts()).ranked}
    assert (found[Way.RESET].loss, found[Way.RESET].duplication) == (Verdict.UNKNOWN, Verdict.UNKNOWN)
    assert (found[Way.BACKUP].loss, found[Way.BACKUP].duplication) == (Verdict.UNKNOWN, Verdict.UNKNOWN)
    assert (found[Way.REFRESH].loss, found[Way.REFRESH].duplication) == (Verdict.UNKNOWN, SAFE)


def test_every_combination_is_ranked_with_reasons() -> None:
    known = (True, False, None)
    for history, unread, position, idempotent, allowed, loss in itertools.product(
        known, known, known, known, known, (True, False)
    ):
        facts = StrategyFacts("kafka", history, unread, position, idempotent, None, loss, False, None, allowed)
        found = recovery_strategy(facts)
        assert {choice.way for choice in found.ranked} == set(Way)
        assert all(choice.reasons for choice in found.ranked)
        assert found.best.possible
        safe = [c for c in found.ranked if c.possible and c.loss is SAFE and c.duplication is SAFE]
        if safe and not loss:
            assert found.best in safe


def test_texts() -> None:
    found = recovery_strategy(StrategyFacts(source="kafka"))
    assert json.loads(json.dumps(found.to_json()))["best"] == found.best.way.value
    assert f"| 1 | `{found.best.way.value}` |" in found.to_markdown()
    with pytest.raises(RefusedError, match="there is no fact 'sauce'"):
        StrategyFacts.from_json({"sauce": 1})


@pytest.mark.parametrize(
    ("verdicts", "known"),
    [
        (["SAFE", "SAFE"], True),
        ([], False),
        *(([verdict, "SAFE"], False) for verdict in ("UNKNOWN", "WILL_DUPLICATE", "WILL_LOSE", "WILL_FAIL")),
    ],
)
def test_positions_that_were_found(verdicts: list[str], known: bool) -> None:
    """``WILL_DUPLICATE`` is worse than ``UNKNOWN``, and hides that the flow may keep state."""
    positions = [{"options": {"modifiedAfter": "x"}, "verdict": verdict} for verdict in verdicts]
    assert facts_of_positions(positions) == ({"position_known": True, "stateful": False} if known else {})
    assert facts_of_positions([*positions, {"options": {}, "verdict": "SAFE"}]) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stateful", "false"),
        ("stateful", 0),
        ("source", 5),
        ("source", None),
        ("table_bytes", "1"),
        ("table_bytes", True),
    ],
)
def test_a_fact_of_another_kind(name: str, value: object) -> None:
    with pytest.raises(RefusedError, match=f"fact {name} is {value!r}, not"):
        StrategyFacts.from_json({name: value})
