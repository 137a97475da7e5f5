"""Rendered fields are text; values written in Python arrive as they are; both mean the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.fields import flag, one_of, required, seconds, text, whole_number


@pytest.mark.parametrize("empty", [None, "", "  ", "None"])
def test_empty(empty: Any) -> None:
    assert text(empty) is None
    assert whole_number(empty, "batch") is None
    assert flag(empty, "replace") is False
    assert flag(empty, "must_be_accepted", empty=True) is True
    with pytest.raises(RefusedError) as e:
        required(empty, "repository")
    assert str(e.value) == ("repository is empty\nHINT: give repository, or check the template that it comes from")


@pytest.mark.parametrize(("value", "number"), [(0, 0), ("0", 0), (12, 12), (" 12 ", 12)])
def test_whole_number(value: Any, number: int) -> None:
    assert whole_number(value, "batch") == number


@pytest.mark.parametrize(("value", "shown"), [("twelve", "'twelve'"), ("-1", "-1"), (1.5, "'1.5'")])
def test_not_a_whole_number(value: Any, shown: str) -> None:
    with pytest.raises(RefusedError) as e:
        whole_number(value, "batch")
    assert str(e.value) == f"batch is {shown}\nHINT: give a whole number from 0 up, or leave it out"


@pytest.mark.parametrize(
    ("value", "meaning"), [(True, True), ("True", True), ("yes", True), (False, False), ("False", False), ("0", False)]
)
def test_flag(value: Any, meaning: bool) -> None:
    assert flag(value, "replace") is meaning


def test_neither_true_nor_false() -> None:
    with pytest.raises(RefusedError) as e:
        flag("maybe", "replace")
    assert str(e.value) == "replace is 'maybe'\nHINT: give true or false"


def test_one_of() -> None:
    assert one_of(" apply ", "mode", ("plan", "apply")) == "apply"
    with pytest.raises(RefusedError) as e:
        one_of("Apply", "mode", ("plan", "apply"))
    assert str(e.value) == "mode is 'Apply'\nHINT: give one of: plan, apply"


@pytest.mark.parametrize(("value", "expected"), [(90, 90.0), (0.5, 0.5), (timedelta(minutes=2), 120.0), (0, 0.0)])
def test_seconds(value: timedelta | float, expected: float) -> None:
    assert seconds(value, "quiet_for").total_seconds() == expected


@pytest.mark.parametrize("value", [-1, None, "soon", True, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_no_seconds(value: Any) -> None:
    with pytest.raises(RefusedError) as e:
        seconds(value, "quiet_for")
    assert str(e.value) == f"quiet_for is {value!r}\nHINT: give seconds or a duration such as 90s or 1h, from 0 s up"
