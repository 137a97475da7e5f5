"""DAGs run by a real Airflow in one process, and what they said."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from demo.answering import answering
from demo.skipping import skipping_at_once

DAGS = Path(__file__).parents[2] / "dags"


_BUNDLE = "system_tests"


RunDag = Callable[..., Any]


#: Given a DAG's id, a choice and the id of the task (`approve`), stands in for the person who is asked.
Answer = Callable[..., None]


def load_dags(place: Path) -> dict[str, DAG]:
    """Load the DAGs of a file or a folder as Airflow does; an error in one of them fails the test."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(place))
    assert bag.import_errors == {}
    return dict(bag.dags)


@pytest.fixture(scope="session")
def metadata_database() -> None:
    """Make the tables of Airflow's metadata database, once for all tests of the process."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def known(metadata_database: None) -> Callable[[DAG], None]:
    """Make a DAG known to Airflow, as the DAG processor does."""

    def make_known(dag: DAG) -> None:
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
        from airflow.models.dagbundle import DagBundleModel
        from airflow.utils.session import create_session

        DagBundlesManager().sync_bundles_to_db()
        with create_session() as session:
            session.merge(DagBundleModel(name=_BUNDLE))
        bag = DagBag(dag_folder=os.devnull)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, _BUNDLE, None)

    return make_known


@pytest.fixture
def run_dag(known: Callable[[DAG], None]) -> RunDag:
    """Run a DAG to its end in this process and return its run."""

    def run(dag: DAG, **arguments: Any) -> Any:
        known(dag)
        with skipping_at_once():
            return dag.test(**arguments)

    return run


@pytest.fixture
def answer(metadata_database: None) -> Iterator[Answer]:
    """Stand in for the person on call: answer the first question that a task of a DAG asks, over the REST API."""
    with ExitStack() as people:

        def make(dag_id: str, choice: str, task_id: str = "approve") -> None:
            people.enter_context(answering(dag_id, task_id, choice))

        yield make


def states(run: Any) -> dict[str, str]:
    """State of each task of a run."""
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def result(run: Any, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
    """What a task of a run left as XCom."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        row = session.scalars(
            XComModel.get_many(run_id=run.run_id, key=key, task_ids=task_id, dag_ids=run.dag_id, map_indexes=map_index)
        ).first()
        return None if row is None else XComModel.deserialize_value(row)


def event_of(uri: str) -> dict[str, Any] | None:
    """What the newest event of an asset says."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent).join(AssetModel, AssetEvent.asset_id == AssetModel.id)
        event = session.scalars(query.where(AssetModel.uri == uri).order_by(AssetEvent.id.desc())).first()
        return None if event is None else dict(event.extra)
