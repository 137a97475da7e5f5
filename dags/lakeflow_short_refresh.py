"""Empty tables and fill them again from their sources, which still have all of their history.

The way "full table refresh". The form says so (``accept``): what a source no longer has is lost. Run ``lakeflow_recover`` for a
test pipeline and an approval, and give it the report of a source guard.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.table_check import TableCheckOperator

with DAG(
    dag_id="lakeflow_short_refresh",
    schedule=None,
    max_active_runs=1,
    tags=["lakeflow"],
    doc_md=__doc__,
    params={
        "pipeline": Param("", type="string", minLength=1, title="Pipeline", description="its id"),
        "warehouse": Param("", type="string", minLength=1, title="SQL warehouse", description="its id"),
        "tables": Param({}, type="object", title="Tables", description='full name -> {"keys": …, "expected": …}'),
        "accept": Param(None, enum=[None, "UNKNOWN", "WILL_LOSE"], title="Verdict that you accept"),
    },
) as dag:
    # [START howto_lakeflow_short_refresh]
    COUNT = {"tables": "{{ params.tables | tojson }}", "warehouse_id": "{{ params.warehouse }}"}
    HOW = {"accept": "{{ params.accept }}", "on_active_update": "stop", "mode": "apply", "retries": 2}
    before = TableCheckOperator(task_id="before", **COUNT)
    refresh = PipelineRefreshOperator(
        task_id="refresh",
        pipeline_id="{{ params.pipeline }}",
        full_refresh_selection="{{ params.tables | list | tojson }}",
        **HOW,
    )
    before >> refresh >> TableCheckOperator(task_id="after", before=before.output, fail_when_worse=True, **COUNT)
    # [END howto_lakeflow_short_refresh]
