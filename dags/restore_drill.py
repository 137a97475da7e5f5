"""Prove every week that the newest backup can be restored: restore it to a scratch place and run the code of production on it.

The task `drill` runs `airflow_ckpt_provider/jobs/rehearse.py --drill` by `spark-submit`: a few batches, a sink that drops the
rows, everything at the scratch place deleted afterwards. What worked is recorded in the repository, beside the manifest; the
task `proven` returns when that was. A drill that fails says what Spark said and what to do.

What to read comes from the form, and where a field of it is left empty from Airflow Variables: `ckpt_repository`, `ckpt_name`,
`ckpt_scratch` (by a name that Spark and this package both know, `s3a://…`), `ckpt_build` (`package.module:function`, shipped
with the job), `ckpt_checkpoint` (not written, which the report proves). The connection `spark_default` says where Spark runs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param, task

from airflow_ckpt_provider.backup.drills import last_drill
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.dag_factory.run_types import no_backfill
from airflow_ckpt_provider.jobs import rehearse
from airflow_ckpt_provider.notifications.recovery_advice import RecoveryAdviceNotifier
from airflow_ckpt_provider.places import open_place

OPTIONAL = ["null", "string"]
REPOSITORY = "{{ params.repository or var.value.ckpt_repository }}"
SCRATCH = "{{ params.scratch or var.value.ckpt_scratch }}"
NAME = "{{ params.name or var.value.ckpt_name }}"
BUILD = "{{ params.build or var.value.ckpt_build }}"
CHECKPOINT = "{{ params.checkpoint or var.value.get('ckpt_checkpoint', '') }}"
RUN = "{{ dag.dag_id }}/{{ run_id }}"


# [START howto_drill_proven]
@task
def proven(repository: str, conn_id: str | None, name: str) -> dict[str, Any]:
    """Return when the stream was last proven restorable, and from which backup."""
    found = last_drill(Repository.open(open_place(repository, conn_id or None)), name)
    return found.to_json() if found else {}


# [END howto_drill_proven]

with DAG(
    dag_id="restore_drill",
    schedule=timedelta(days=7),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    **no_backfill(),
    tags=["checkpoint"],
    doc_md=__doc__,
    params={
        "repository": Param(None, type=OPTIONAL, title="Repository", description="e.g. s3a://lake/backups"),
        "repository_conn_id": Param(None, type=OPTIONAL, title="Connection for the repository"),
        "name": Param(None, type=OPTIONAL, title="Name of the stream", description="e.g. orders"),
        "scratch": Param(None, type=OPTIONAL, title="Scratch place", description="e.g. s3a://lake/scratch"),
        "build": Param(None, type=OPTIONAL, title="Build function", description="e.g. orders.stream:build"),
        "checkpoint": Param(None, type=OPTIONAL, title="Checkpoint in production"),
        "output_mode": Param("append", type="string", enum=["append", "update", "complete"], title="Output mode"),
        "batches": Param(3, type="integer", minimum=1, title="Batches at most"),
    },
) as dag:
    # [START howto_drill]
    drill = SparkSubmitOperator(
        task_id="drill",
        application=rehearse.__file__,
        application_args=[
            REPOSITORY,
            "--drill",
            *("--name", NAME),
            *("--build", BUILD),
            *("--scratch", SCRATCH),
            *("--checkpoint", CHECKPOINT),
            *("--output-mode", "{{ params.output_mode }}"),
            *("--batches", "{{ params.batches }}"),
            *("--made-by", RUN),
        ],
        name="restore drill",
        on_failure_callback=RecoveryAdviceNotifier(),
    )
    # [END howto_drill]

    drill >> proven(REPOSITORY, "{{ params.repository_conn_id or '' }}", NAME)
