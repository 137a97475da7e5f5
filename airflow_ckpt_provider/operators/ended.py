"""Whether somebody has ended a task, or only its process was ended.

Airflow calls ``on_kill`` for each SIGTERM and for a time-out: also where a pod is evicted, and where an attempt was replaced by
another one. Then the next attempt continues, and what was started elsewhere has to be left to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from airflow_ckpt_provider.errors import ChangeRunningError

log = logging.getLogger(__name__)

#: A running task that was cleared: Airflow gives its next attempt another id at once.
_CLEARED = "restarting"
#: States that a running task gets from outside only: from a person, from the time limit of its run, or from the scheduler,
#: which misses its heartbeats and has no attempt left.
_ENDED = frozenset({"failed", "success", "skipped", "removed"})


def was_ended(ti: Any, check_current: Callable[[], None], *, within: float) -> bool:
    """Ask Airflow whether somebody has ended a task: marked or cleared it.

    The question is asked in a thread of its own: the signal may have come while the task waits for an answer of Airflow, and
    holds the lock on the connection. Then there is no answer in time, and nobody knows.

    :param ti: the task instance.
    :param check_current: raises where another attempt took over.
    :param within: seconds for the answer.
    :return: ``False`` also without an answer.
    """
    answers: list[bool] = []

    def ask() -> None:
        try:
            state = _state_of(ti)
            try:
                check_current()
            except ChangeRunningError:
                answers.append(state == _CLEARED)
            else:
                answers.append(state == _CLEARED or state in _ENDED)
        except Exception as e:  # of whatever kind: then nobody knows
            log.warning("Airflow did not give the state of the task: %s", e)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(within)
    return answers == [True]


def _state_of(ti: Any) -> str:
    index = None if ti.map_index is None or ti.map_index < 0 else ti.map_index
    states = ti.get_task_states(dag_id=ti.dag_id, map_index=index, task_ids=[ti.task_id], run_ids=[ti.run_id])
    return str(next(iter((states.get(ti.run_id) or {}).values()), None) or "")
