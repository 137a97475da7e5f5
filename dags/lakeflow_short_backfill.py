"""Copy tables, empty and fill them again from their sources, and bring back what only the copies have.

The way "full table refresh with backup and backfill". Rows are distinguished by the keys that the form gives; the
copies stay. Run ``lakeflow_recover`` for a test pipeline and an approval.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator

with DAG(
    dag_id="lakeflow_short_backfill",
    schedule=None,
    max_active_runs=1,
    tags=["lakeflow"],
    doc_md=__doc__,
    params={
        "pipeline": Param("", type="string", minLength=1, title="Pipeline", description="its id"),
        "warehouse": Param("", type="string", minLength=1, title="SQL warehouse", description="its id"),
        "tables": Param({}, type="object", title="Tables", description="full name -> columns that identify its rows"),
        "accept": Param(None, enum=[None, "UNKNOWN", "WILL_LOSE"], title="Verdict that you accept"),
    },
) as dag:
    # [START howto_lakeflow_short_backfill]
    PipelineRefreshOperator(
        task_id="refresh",
        pipeline_id="{{ params.pipeline }}",
        full_refresh_selection="{{ params.tables | list | tojson }}",
        warehouse_id="{{ params.warehouse }}",
        backup="deep_clone",
        backfill="merge",
        keys="{{ params.tables | tojson }}",
        accept="{{ params.accept }}",
        on_active_update="stop",
        mode="apply",
        retries=2,
    )
    # [END howto_lakeflow_short_backfill]
