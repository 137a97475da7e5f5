"""An Airflow worker: runs the tasks of a run one after the other, each in its supervised process, as executors do.

Run it with the environment of the Airflow that has the run: ``python -m tests.support.worker DAG_ID RUN_ID TASK_ID…``.
"""

from __future__ import annotations

import sys


def main(dag_id: str, run_id: str, task_ids: list[str]) -> None:
    """Run the tasks in the order given."""
    from airflow.executors.workloads.task import ExecuteTask
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, supervise_task
    from airflow.utils.session import create_session
    from sqlalchemy import select

    for task_id in task_ids:
        with create_session() as session:
            chosen = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id == task_id)
            ti = session.scalars(select(TaskInstance).where(*chosen)).one()
            ti.state = "queued"
            ti.try_number = 1
            session.flush()
            work = ExecuteTask.make(ti)
        supervise_task(
            ti=work.ti,  # type: ignore[arg-type]
            bundle_info=work.bundle_info,
            dag_rel_path=work.dag_rel_path,
            token="",
            log_path=work.log_path,
            client=InProcessTestSupervisor._api_client(),
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
