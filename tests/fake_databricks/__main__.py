"""``make fake-databricks``: the workspace by itself, with pipelines that have something the matter, for trying the DAGs."""

from __future__ import annotations

import argparse
import os
import threading

from tests.fake_databricks.pace import Pace
from tests.fake_databricks.samples import INCREMENTAL, customers, land, orders, remove_drop_duplicates
from tests.fake_databricks.workspace import TOKEN, WAREHOUSE, FakeWorkspace


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make fake-databricks", description=__doc__)
    parser.add_argument("--port", type=int, default=8765, help="port (default: %(default)s; 0: any)")
    parser.add_argument(
        "--address", default="127.0.0.1", help="where it listens (default: %(default)s, this machine only)"
    )
    parser.add_argument(
        "--step", type=float, default=1.0, help="seconds an update stays in a state (default: %(default)s)"
    )
    chosen = parser.parse_args()
    token = os.environ.get("FAKE_DATABRICKS_TOKEN") or TOKEN
    with FakeWorkspace(port=chosen.port, address=chosen.address, token=token) as workspace:
        for name in ("customers", "customers_test"):
            pipeline = customers(workspace, name, pipeline_id=name, pace=Pace.by_clock(chosen.step))
            land(workspace.sources[f"/landing/{name}"], 2)
            remove_drop_duplicates(pipeline)
            pipeline.start({}, cause="USER_ACTION")
            pipeline.advance()
        rewindable = {"pipelines.rewind.betaEnabled": "true"}
        orders(
            workspace,
            pipeline_id="orders",
            pace=Pace.by_clock(chosen.step),
            channel="PREVIEW",
            configuration=rewindable,
        )
        print(f"""A Databricks workspace at {workspace.url}; give Airflow this connection:

  export AIRFLOW_CONN_DATABRICKS_DEFAULT='{workspace.airflow_connection(token)}'

pipelines  customers, customers_test   their flow {INCREMENTAL} has lost its dropDuplicates and fails
                                       table main.customers.customers, main.customers_test.customers
           orders                      Kafka to bronze, silver and latest; can be rewound
warehouse  {WAREHOUSE}

Every request is printed. Ctrl-C ends it.
""")
        shown = 0
        try:
            while True:
                threading.Event().wait(0.2)
                for request in workspace.requests[shown:]:
                    print(f"{request.status or 'cut'} {request}")
                    shown += 1
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
