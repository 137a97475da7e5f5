"""Templates with which a task of an upgrade reads what another one has returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ckpt_provider.operators.stream_action import ENDED


@dataclass(frozen=True, slots=True)
class Results:
    """The results of the tasks of one group. All but the last two are expressions, for a template to put into ``{{ }}``.

    :param group_id: id of the group.
    """

    group_id: str

    def returned(self, task_id: str) -> str:
        """What a task has returned."""
        return f"ti.xcom_pull(task_ids='{self.group_id}.{task_id}')"

    def of(self, task_id: str, key: str) -> str:
        """One value of what it has returned."""
        return f"{self.returned(task_id)}['{key}']"

    def ended(self, task_id: str) -> str:
        """When a task of the user has ended, where it says so."""
        return f"ti.xcom_pull(task_ids='{self.group_id}.{task_id}', key='{ENDED}')"

    def baseline(self, task_id: str) -> Callable[[str], dict[str, str]]:
        """The pace of a stream before, as the result of a task has it: the argument ``baseline``, given the name of a stream."""

        def of(name: str) -> dict[str, str]:
            found = self.of(task_id, "baseline")
            if name:
                found = f"{self.of(task_id, 'streams')}['{name}']['baseline']"
            return {"baseline": f"{{{{ {found} | tojson }}}}"}

        return of

    def raised(self, part: str) -> str:
        """A template: the retentions that the guard of a stream has raised."""
        return (
            f"{{{{ (ti.xcom_pull(task_ids='{self.group_id}.raise_retention{part}', key='raised') or []) | tojson }}}}"
        )

    def succeeded(self, task_id: str) -> str:
        """A template: whether a task was successful."""
        states = "ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})"
        return f"{{{{ {states}.get('{self.group_id}.{task_id}') == 'success' }}}}"


def of_stream(given: Any, key: str) -> Callable[[str], dict[str, Any]]:
    """What is given for a stream: an argument of that name, given the name of the stream.

    :param given: one value, or a dictionary with one for each stream.
    """
    return lambda name: {key: given.get(name) if isinstance(given, Mapping) else given}
