"""Parameters under an old name: they work, and the warning names the line that has to change."""

from __future__ import annotations

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.fields import words
from airflow_ckpt_provider.operators.renamed import renamed, renamed_value
from airflow_ckpt_provider.operators.upgrade import UpgradePlanOperator
from airflow_ckpt_provider.operators.upgrade_switch import UpgradeRestoreOperator

PLACES = {"checkpoint": "c", "repository": "r"}


def test_an_operator_by_its_old_names() -> None:
    with pytest.warns(AirflowProviderDeprecationWarning, match="`sink_exit`") as warned:
        made = UpgradeRestoreOperator(task_id="t", **PLACES, sink_exit="accept")
    assert (made.sink_policy, warned[0].filename) == ("keep", __file__)
    with pytest.warns(AirflowProviderDeprecationWarning, match="`accept` is deprecated. Use `accept_rehearsal`"):
        assert UpgradePlanOperator(task_id="t", **PLACES, accept="UNKNOWN").accept_rehearsal == "UNKNOWN"
    assert UpgradeRestoreOperator(task_id="t", **PLACES, sink_policy="keep").sink_policy == "keep"


def test_both_names_are_refused() -> None:
    with pytest.raises(RefusedError, match="sink_exit and sink_policy are given"):
        renamed({"sink_exit": "accept"}, old="sink_exit", new="sink_policy", value="keep", default="rollback")


def test_the_old_name_is_taken_out() -> None:
    kwargs = {"old": 3, "task_id": "t"}
    with pytest.warns(AirflowProviderDeprecationWarning):
        assert renamed(kwargs, old="old", new="new", value=None, default=None) == 3
    assert kwargs == {"task_id": "t"}


def test_values_of_templates() -> None:
    assert renamed_value(" keep ", "sink_policy", {"accept": "keep"}) == "keep"
    assert renamed_value("None", "sink_policy", {"accept": "keep"}) is None
    with pytest.warns(AirflowProviderDeprecationWarning, match="The value 'accept' of `sink_policy`"):
        assert renamed_value("accept", "sink_policy", {"accept": "keep"}) == "keep"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, ()),
        ("", ()),
        ("None", ()),
        ("[]", ()),
        ((), ()),
        ("a", ("a",)),
        ("a, b,a", ("a", "b")),
        ("['a', 'b']", ("a", "b")),
        ('["a"]', ("a",)),
        (["a", "{{ '' }}".strip("{ '}")], ("a",)),
        (["a, b"], ("a", "b")),
    ],
)
def test_words(value: object, found: tuple[str, ...]) -> None:
    assert words(value, "accept", ("a", "b")) == found


def test_a_word_that_is_none() -> None:
    with pytest.raises(RefusedError, match="accept has 'c'"):
        words(["a", "c"], "accept", ("a", "b"))
