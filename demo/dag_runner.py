"""Runs the example DAGs in an Airflow of its own: one request a line on standard input, one answer a line on output.

A process of its own because Airflow reads its settings from the environment when it is first imported, and one for all
runs because that import takes seconds.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from typing import Any

from demo.answering import answering
from demo.skipping import skipping_at_once


def prepare() -> None:
    """Make the tables of the metadata database, and load what the first task and the first answer would wait for."""
    import httpx
    from airflow.api_fastapi.app import cached_app
    from airflow.sdk.execution_time import task_runner  # noqa: F401
    from airflow.sdk.execution_time.supervisor import in_process_api_server
    from airflow.utils.db import initdb

    initdb()
    cached_app(apps="core")
    with httpx.Client(transport=in_process_api_server().transport, base_url="http://in-process") as client:
        client.get("/health").raise_for_status()


def run(dag_id: str, conf: dict[str, Any], approve: str = "") -> dict[str, Any]:
    """Run a DAG of the DAGs folder to its end, its tasks one after the other in this process.

    :param dag_id: the DAG.
    :param conf: what a user would enter in its form.
    :param approve: id of the task whose question is answered with yes; empty: none asks.
    """
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.providers.common.compat.sdk import conf as settings

    # Loaded for each run: dag.test() leaves the form's values in the DAG.
    bag = DagBag(dag_folder=os.path.join(settings.get("core", "dags_folder"), f"{dag_id}.py"))
    if bag.import_errors:
        raise RuntimeError(str(bag.import_errors))
    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    sync_bag_to_db(bag, next(iter(manager.get_all_dag_bundles())).name, None)
    with skipping_at_once(), answering(dag_id, approve, "Approve") if approve else nullcontext():
        done = bag.dags[dag_id].test(run_conf=conf)
    instances = done.get_task_instances()
    tasks = {ti.task_id: str(ti.state) for ti in instances}
    return {
        "dag_id": dag_id,
        "run_id": done.run_id,
        "state": str(done.state),
        "tasks": tasks,
        "results": {task_id: _xcom(done, task_id, "return_value") for task_id in tasks},
        "reports": {task_id: report for task_id in tasks if (report := _xcom(done, task_id, "report"))},
        "times": {
            ti.task_id: (ti.start_date.isoformat(), ti.end_date.isoformat())
            for ti in sorted(instances, key=lambda ti: str(ti.start_date))
            if ti.start_date and ti.end_date and ti.state in ("success", "failed")
        },
    }


def _xcom(done: Any, task_id: str, key: str) -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(run_id=done.run_id, key=key, task_ids=task_id, dag_ids=done.dag_id)
        row = session.scalars(query).first()
        return None if row is None else XComModel.deserialize_value(row)


def main() -> None:
    """Answer requests until the input ends."""
    # Airflow and its tasks may print what they like: that goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    prepare()
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(run(**request), default=str), file=answers)


if __name__ == "__main__":
    main()
