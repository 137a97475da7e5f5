"""Answers a question of a DAG over Airflow's REST API, in the place of a person who would use its web interface."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


@contextmanager
def answering(dag_id: str, task_id: str, choice: str) -> Iterator[None]:
    """Answer the first question that a task asks, as soon as it is asked.

    :param dag_id: the DAG.
    :param task_id: the task.
    :param choice: the answer, ``Approve`` or ``Reject``.
    """
    from airflow.api_fastapi.app import cached_app
    from fastapi.testclient import TestClient

    client = TestClient(cached_app(apps="core"))
    client.headers["Authorization"] = "Bearer " + client.get("/auth/token").json()["access_token"]
    over = threading.Event()
    arguments = (client, dag_id, task_id, choice, over)
    person = threading.Thread(target=_answer, args=arguments, name="person", daemon=True)
    person.start()
    try:
        yield
    finally:
        over.set()
        person.join(10)


def _answer(client: TestClient, dag_id: str, task_id: str, choice: str, over: threading.Event) -> None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = select(TaskInstance.run_id).where(
        TaskInstance.dag_id == dag_id, TaskInstance.task_id == task_id, TaskInstance.state == "awaiting_input"
    )
    while not over.wait(0.2):
        with create_session() as session:
            run_id = session.scalar(query)
        if run_id is None:
            continue
        question = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        reply = client.patch(question, json={"chosen_options": [choice], "params_input": {}})
        reply.raise_for_status()
        return
