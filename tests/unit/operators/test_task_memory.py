"""What a task keeps for its next attempt, until it is cleared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ckpt_provider.operators.task_memory import TaskMemory
from tests.support.attempts import Store


def memory(store: Store, *, max_tries: int, retries: int) -> TaskMemory:
    context: Any = {"ti": SimpleNamespace(try_number=2, max_tries=max_tries), "task_state_store": store}
    return TaskMemory(context, "k", retries=retries)


@pytest.mark.parametrize("retries", [2, 0, 3], ids=["as before", "edited to fewer", "edited to more"])
def test_a_retry_finds_it_though_the_retries_of_the_task_were_edited(retries: int) -> None:
    """``max_tries`` is as it was when Airflow created the task's instance."""
    store = Store()
    first = memory(store, max_tries=2, retries=2)
    first.notes("refresh").save({"update_id": "u1"})
    again = memory(store, max_tries=2, retries=retries)
    assert again.notes("refresh").load() == {"update_id": "u1"}
    assert again.life == first.life


@pytest.mark.parametrize("max_tries", [3, 4])
def test_a_cleared_task_begins_anew(max_tries: int) -> None:
    """Cleared after one attempt, or after two: the number of an earlier life is none of a later one, whatever the retries."""
    store = Store()
    first = memory(store, max_tries=2, retries=2)
    first.notes("refresh").save({"update_id": "u1"})
    cleared = memory(store, max_tries=max_tries, retries=2)
    assert cleared.notes("refresh").load() is None
    assert cleared.life != first.life


@pytest.mark.parametrize(("max_tries", "found"), [(2, 7), (3, None)], ids=["retried", "cleared"])
def test_what_an_earlier_version_has_kept(max_tries: int, found: int | None) -> None:
    """It kept ``max_tries`` less the retries; copies and runs of jobs are named by that, so it stays."""
    store = Store()
    store.set("k", {"life": 0, "attempt": "a", "steps": {"send": {"note": {"after": 7}}}})
    again = memory(store, max_tries=max_tries, retries=2)
    assert (again.notes("send").load() or {}).get("after") == found
    assert again.life == (0 if found else max_tries)
