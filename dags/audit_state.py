"""Audit the state of a stream every day, while it runs, and raise an alarm when it has grown by more than so many percent.

The task `audit` runs `airflow_ckpt_provider/jobs/audit_state.py` by `spark-submit` and keeps its report; the task `judge`
compares it with the one before. What grew too much fails the task, or gives an asset event that starts other DAGs.

What to read comes from the form, and where a field of it is left empty from Airflow Variables: `ckpt_checkpoint`, as Spark
names it (`s3a://…`), and `ckpt_audits`, a directory for the reports of this stream; `ckpt_audits_conn_id` to reach it.
The connection `spark_default` says where Spark runs.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Asset, AssetAlias, Param, task

from airflow_ckpt_provider.dag_factory.run_types import no_backfill
from airflow_ckpt_provider.jobs import audit_state
from airflow_ckpt_provider.notifications.recovery_advice import RecoveryAdviceNotifier
from airflow_ckpt_provider.places import address, open_place

OPTIONAL = ["null", "string"]
CHECKPOINT = "{{ params.checkpoint or var.value.ckpt_checkpoint }}"
REPORTS = "{{ (params.reports or var.value.ckpt_audits).rstrip('/') }}"
#: One report for each run: a run that is done again writes the same one, and compares with the same one before it.
REPORT = f"{REPORTS}/{{{{ dag_run.run_after | ts_nodash }}}}.json"
#: Of every stream whose state grew too much. ``DAG(schedule=[AssetAlias("ckpt_state_grew")])`` runs after each event.
GREW = AssetAlias(name="ckpt_state_grew", group="ckpt")


# [START howto_audit_judge]
@task(outlets=[GREW])
def judge(
    report: str,
    conn_id: str | None,
    *,
    params: dict[str, Any] | None = None,
    outlet_events: Any = None,
) -> dict[str, Any]:
    """Fail, or give an asset event, when the state has grown by more than was allowed since the report before."""
    form = params or {}
    directory, _, name = report.rpartition("/")
    found = json.loads(open_place(directory, conn_id or None).read(name))
    before, measure = found["compared_with"] or {}, form["measure"]
    grown = before.get(f"{measure}_percent")
    # No percentage says how much more than nothing something is: it is more than any limit.
    from_nothing = before.get(measure) == 0 and found[measure] > 0
    if from_nothing or (grown is not None and grown > form["max_growth_percent"]):
        words = (
            f"the state of {found['checkpoint']} grew{'' if from_nothing else f' by {grown:.1f} %'} "
            f"from {before[measure]:,} to {found[measure]:,} {measure} since batch {before['batch_id']} "
            f"({before['taken']}), more than {form['max_growth_percent']:g} %"
        )
        if form["on_growth"] == "fail":
            raise AirflowFailException(words)
        asset = Asset("://".join(address(found["checkpoint"])))
        outlet_events[GREW].add(asset, extra={"message": words, "percent": grown, "report": report})
    return {"batch_id": found["batch_id"], "rows": found["rows"], "bytes": found["bytes"], "percent": grown}


# [END howto_audit_judge]

with DAG(
    dag_id="audit_state",
    schedule=timedelta(days=1),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    **no_backfill(),
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
    tags=["checkpoint"],
    doc_md=__doc__,
    params={
        "checkpoint": Param(None, type=OPTIONAL, title="Checkpoint", description="e.g. s3a://lake/checkpoints/orders"),
        "reports": Param(None, type=OPTIONAL, title="Reports", description="e.g. s3://lake/audits/orders"),
        "reports_conn_id": Param(None, type=OPTIONAL, title="Connection for the reports"),
        "measure": Param("rows", type="string", enum=["rows", "bytes"], title="What may grow"),
        "max_growth_percent": Param(50, type="number", minimum=0, title="By how many percent"),
        "on_growth": Param("fail", type="string", enum=["fail", "event"], title="If it grew by more"),
    },
) as dag:
    # [START howto_audit]
    audit = SparkSubmitOperator(
        task_id="audit",
        application=audit_state.__file__,
        application_args=[CHECKPOINT, "--output", REPORT, "--compare-with", REPORTS],
        name="audit of state",
        on_failure_callback=RecoveryAdviceNotifier(),
    )
    # [END howto_audit]

    audit >> judge(REPORT, "{{ params.reports_conn_id or var.value.get('ckpt_audits_conn_id', '') }}")
