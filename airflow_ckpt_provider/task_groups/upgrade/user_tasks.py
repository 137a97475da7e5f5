"""The tasks of an upgrade that its user makes, and what keeps them from doing harm."""

from __future__ import annotations

from collections.abc import Mapping

from airflow.sdk import BaseOperator, Context, TaskGroup

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.upgrade_operator import UpgradeOperator, task_part
from airflow_ckpt_provider.task_groups.upgrade.own_tasks import MakeTask, Tasks

#: Tasks of the user that are part of an upgrade. Not ``start_old``: of a stream that was rolled back and nobody has started, the
#: upgrade has ended.
OF_THE_RUN = ("stop", "deploy", "start", "stop_new", "roll_back_code")
#: Those among them that put the new code in place, or start it.
_BRING_NEW_CODE = ("deploy", "start")


def check_skips(group: TaskGroup) -> None:
    """Refuse a task that would skip the way back and the report, whatever their trigger rules say."""
    for task in group.iter_tasks():
        if getattr(task, "ignore_downstream_trigger_rules", False):
            raise RefusedError(
                f"the task {task.task_id} skips all that comes after it, the way back and the report too: the stream would "
                "stay stopped and sealed",
                hint="give it ignore_downstream_trigger_rules=False; what is skipped then is rolled back",
            )


def run_while_under_way(task: BaseOperator, step: UpgradeOperator) -> None:
    """Have a task of the user refuse once the upgrade has ended: cleared then, it would stop a stream that nobody starts.

    What brings the new code refuses once the way back has begun: it would run under the old code's checkpoint, or beside it.

    :param step: any step of the upgrade, which knows its record.
    """
    hook, brings_new_code = task._pre_execute_hook, task.task_id.rpartition(".")[2] in _BRING_NEW_CODE

    def check(context: Context) -> None:
        step.check_under_way(context, brings_new_code=brings_new_code)
        if hook is not None:
            hook(context)

    task._pre_execute_hook = check


def rehearsals(rehearse: MakeTask | Mapping[str, MakeTask]) -> Tasks:
    """Your rehearsal; of several streams those that are given, one beside the other."""
    if not isinstance(rehearse, Mapping):
        return rehearse("rehearse")
    with TaskGroup("rehearse") as group:
        for name, make in rehearse.items():
            make(task_part(name))
    return group
