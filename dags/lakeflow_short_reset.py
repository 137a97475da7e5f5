"""Reset the checkpoints of the flows that failed, from the positions that are found; their tables keep their rows.

The way "reset the checkpoint and continue". It carries out at once what is ``SAFE``, or what the form accepts; run
``lakeflow_recover`` for a test pipeline and an approval. Deploy the fixed code first, and say which keys it reads (``about``).
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_ckpt_provider.operators.pipeline_positions import PipelinePositionsOperator
from airflow_ckpt_provider.operators.pipeline_stop import PipelineStopOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from airflow_ckpt_provider.operators.table_check import TableCheckOperator

with DAG(
    dag_id="lakeflow_short_reset",
    schedule=None,
    max_active_runs=1,
    tags=["lakeflow"],
    doc_md=__doc__,
    params={
        "pipeline": Param("", type="string", minLength=1, title="Pipeline", description="its id"),
        "warehouse": Param("", type="string", minLength=1, title="SQL warehouse", description="its id"),
        "about": Param({}, type="object", title="Flows", description="as docs/howto/lakeflow-positions.md says"),
        "margin": Param(None, type=["null", "number"], minimum=0, title="Margin", description="seconds"),
        "accept": Param(None, enum=[None, "UNKNOWN", "WILL_DUPLICATE", "WILL_LOSE"], title="Verdict that you accept"),
    },
) as dag:
    # [START howto_lakeflow_short_reset]
    WHERE = {"pipeline_id": "{{ params.pipeline }}"}
    SQL = {"warehouse_id": "{{ params.warehouse }}"}
    KNOWN = {"about": "{{ params.about | tojson }}", "margin": "{{ params.margin }}"}
    find = PipelinePositionsOperator(task_id="find", **KNOWN, **WHERE, **SQL)
    PipelineStopOperator(task_id="stop", **WHERE) >> find  # what runs on writes rows after the position
    found = find.output
    NAMES = ("flows", "starting_positions", "configuration", "parameters", "wait_for")
    HOW = {"accept": "{{ params.accept }}", "on_active_update": "stop", "mode": "apply", "retries": 2}
    reset = ResetCheckpointOperator(task_id="reset", **WHERE, **HOW, **{name: found[name] for name in NAMES})
    reset >> TableCheckOperator(task_id="count", tables=found["checks"], **SQL)
    # [END howto_lakeflow_short_reset]
