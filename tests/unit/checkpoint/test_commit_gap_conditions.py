"""What may be waited for."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from airflow_ckpt_provider.checkpoint.conditions import CONDITIONS, Condition, Wait
from airflow_ckpt_provider.errors import RefusedError


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (Condition("idle"), "condition is 'idle'\nHINT: give one of: drained, progressed_by, committed_batch, max_gap"),
        (Condition("drained", 1), "value is 1, and condition 'drained' has none\nHINT: leave value out"),
        (
            Condition("progressed_by"),
            "value is None\nHINT: condition 'progressed_by' needs a whole number from 1 up",
        ),
        (Condition("progressed_by", 0), "value is 0\nHINT: condition 'progressed_by' needs a whole number from 1 up"),
        (
            Condition("committed_batch", -1),
            "value is -1\nHINT: condition 'committed_batch' needs a whole number from 0 up",
        ),
        (Condition("max_gap"), "value is None\nHINT: condition 'max_gap' needs a whole number from 0 up"),
        (
            Condition("max_gap", 1, 4),
            "since_batch is 4 with condition 'max_gap'\n"
            "HINT: give it with 'progressed_by' only: a batch id, or -1 for before the first batch",
        ),
    ],
)
def test_refused(condition: Condition, message: str) -> None:
    with pytest.raises(RefusedError) as e:
        condition.check()
    assert str(e.value) == message


@pytest.mark.parametrize("kind", CONDITIONS)
def test_through_json(kind: str) -> None:
    condition = Condition(kind, None if kind == "drained" else 1).check()
    for wait in (
        Wait(condition),
        Wait(condition, timedelta(minutes=2), timedelta(hours=1), missing_ok=True),
        Wait(Condition("progressed_by", 3, -1).check()),
    ):
        assert Wait.from_json(json.loads(json.dumps(wait.to_json()))) == wait


def test_in_words() -> None:
    assert str(Condition("drained")) == "drained"
    assert str(Condition("max_gap", 0)) == "max_gap 0"
    assert str(Condition("progressed_by", 3, 7)) == "progressed_by 3 since batch 7"
