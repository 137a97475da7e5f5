"""Before new code of a Lakeflow pipeline goes to production: can it be analysed, what would break, and copies of what is at risk.

Deploy the new code to a pipeline of its own (the candidate: a development target of the bundle) and fill in the form. The
candidate is validated (`validate_only`: no table is written, no checkpoint opened), its flows are compared with those in
production, and the tables whose flows are touched are copied by `DEEP CLONE`, with those that the form names.

A validation opens no checkpoint. Whether the checkpoints survive the new code shows on a test pipeline that has run the old
code: start it, and if a flow fails, `dags/lakeflow_recover.py` shows the way back before production needs it.
"""

from __future__ import annotations

import hashlib
from datetime import UTC
from typing import Any

from airflow.providers.databricks.operators.databricks import DatabricksSQLStatementsOperator  # noqa: TID253
from airflow.sdk import DAG, Param, task

from airflow_ckpt_provider.lakeflow.deployment import compare_deployment
from airflow_ckpt_provider.lakeflow.tables import TableRecovery, backup_name
from airflow_ckpt_provider.sensors.pipeline_update import PipelineUpdateSensor

with DAG(
    dag_id="lakeflow_predeploy",
    schedule=None,
    tags=["lakeflow"],
    doc_md=__doc__,
    params={
        "databricks_conn_id": Param("databricks_default", type="string", minLength=1, title="Connection"),
        "pipeline": Param("", type="string", minLength=1, title="Pipeline in production", description="its id"),
        "candidate": Param(
            "", type="string", minLength=1, title="Candidate", description="id of the one with the new code"
        ),
        "warehouse_id": Param("", type="string", minLength=1, title="SQL warehouse", description="for the copies"),
        "tables": Param(
            [],
            type="array",
            title="More tables to copy",
            description="full names, one a line; those at risk are copied anyway",
        ),
    },
) as dag:

    @task
    def validate(params: dict[str, Any] | None = None) -> str:
        """Start the validation; it changes nothing, so another attempt may start another."""
        from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook

        form = params or {}
        hook = DatabricksPipelinesHook(form["databricks_conn_id"], caller="lakeflow_predeploy")
        return hook.start_update(form["candidate"], {"validate_only": True})

    @task(multiple_outputs=True)
    def what_would_break(update_id: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare the flows of the candidate with those in production."""
        from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook

        form = params or {}
        hook = DatabricksPipelinesHook(form["databricks_conn_id"], caller="lakeflow_predeploy")
        found = compare_deployment(hook, form["pipeline"], form["candidate"], update_id)
        print(found.to_markdown())
        return found.to_json()

    @task
    def copies(
        at_risk: list[str], params: dict[str, Any] | None = None, run_id: str | None = None, dag_run: Any = None
    ) -> list[dict[str, str]]:
        """The statements that copy the tables: the same for every attempt, and made only if absent."""
        token = hashlib.sha256(str(run_id).encode()).hexdigest()[:8]
        # The day of the run: an attempt after midnight would give the copies other names.
        day = f"{dag_run.run_after.astimezone(UTC):%Y%m%d}"
        form = params or {}
        tables = [
            TableRecovery(name, backup_name(name, day, token)) for name in dict.fromkeys([*at_risk, *form["tables"]])
        ]
        return [{"statement": table.copy, "warehouse_id": form["warehouse_id"]} for table in tables]

    # [START howto_lakeflow_validate]
    update_id = validate()
    validated = PipelineUpdateSensor(
        task_id="validated",
        pipeline_id="{{ params.candidate }}",
        update_id=update_id,
        databricks_conn_id="{{ params.databricks_conn_id }}",
        poll_interval=10,
        timeout=3600,
    )
    # [END howto_lakeflow_validate]
    broken = what_would_break(update_id)
    clone = DatabricksSQLStatementsOperator.partial(
        task_id="clone",
        databricks_conn_id="{{ params.databricks_conn_id }}",
        polling_period_seconds=5,
        retries=2,
    ).expand_kwargs(copies(broken["tables"]))

    validated >> broken
