"""A Databricks workspace in this process: pipelines, jobs, statements and tables over HTTP.

>>> with FakeWorkspace() as workspace:  # doctest: +SKIP
...     source = workspace.add_source("/landing/customers")
...     source.add(yesterday, id="c1", value="Ada")
...     pipeline = workspace.add_pipeline(
...         "customers",
...         datasets=[Dataset("customers")],
...         flows=[Flow("customers_incremental_flow", "customers", ("/landing/customers",))],
...     )
...     os.environ["AIRFLOW_CONN_DATABRICKS_DEFAULT"] = workspace.airflow_connection()
"""

from __future__ import annotations

from tests.fake_databricks.errors import FlowFailed
from tests.fake_databricks.faults import Fault
from tests.fake_databricks.flows import DROP_DUPLICATES, Dataset, Flow
from tests.fake_databricks.pace import Pace
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.sources import Source
from tests.fake_databricks.workspace import TOKEN, WAREHOUSE, FakeWorkspace

__all__ = [
    "DROP_DUPLICATES",
    "TOKEN",
    "WAREHOUSE",
    "Dataset",
    "FakeWorkspace",
    "Fault",
    "Flow",
    "FlowFailed",
    "Pace",
    "Pipeline",
    "Source",
]
