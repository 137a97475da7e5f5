"""A flow of a Lakeflow pipeline fails on its checkpoint: the way back, tried on a test pipeline first.

Fill in the form; read which way is advised and the plan of it; the test pipeline, deployed from the same code, goes that way
first and its tables are counted; approve or not; then production goes the same way and is counted too. No answer is a
no. Until the approval nothing of production has been touched, and a plan (the default) sends nothing but reads.

The three ways are the reset of the failed flow's checkpoint (its table keeps its rows), the full refresh, and the full
refresh with a copy of the table before it and a backfill from the copy. `docs/howto/lakeflow-choose.md` tells them apart.

The fixed code has to be deployed to both pipelines before. A position in `starting_positions` that names the key that the code
reads it from (`carried_by`) is merged into the pipeline's configuration for the update and put back afterwards; for a flow with
`"language": "sql"` it is a parameter of the update. Parameters do not reach Python code.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from airflow_ckpt_provider.advisor.reproduction import same_failure
from airflow_ckpt_provider.lakeflow.positions import SQL, positions_of
from airflow_ckpt_provider.lakeflow.strategy import StrategyFacts, Way, recovery_strategy
from airflow_ckpt_provider.lakeflow.table_check import table_checks
from airflow_ckpt_provider.operators.pipeline_configuration import PipelineConfigurationPutBackOperator
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from airflow_ckpt_provider.operators.table_check import TableCheckOperator
from airflow_ckpt_provider.verdict import Verdict

ADVISE = "advise me"
OPTIONAL = ["null", "string"]
ONE_IS_ENOUGH = "none_failed_min_one_success"
PLAN = "(ti.xcom_pull(task_ids='plan_reset') or ti.xcom_pull(task_ids='plan_refresh'))"


def carried(starting_positions: Any, *, sql: bool) -> dict[str, str]:
    """Keys and values that reach SQL as parameters, or any code as configuration."""
    return {
        position.carried_by[option]: value
        for position in positions_of(starting_positions)
        for option, value in position.options.items()
        if option in position.carried_by and (position.language == SQL) == sql
    }


@task(multiple_outputs=True)
def advise(params: dict[str, Any] | None = None) -> dict[str, Any]:
    """Rank the ways by what is known; take the one that was asked for, or the best."""
    form = params or {}
    known = {"position_known": True} if form["starting_positions"] else {}
    strategies = recovery_strategy(StrategyFacts.from_json({**known, **form["facts"]}))
    checks = table_checks({**form["checks"], **form["test_checks"]})
    return {
        "way": strategies.best.way.value if form["strategy"] == ADVISE else form["strategy"],
        "markdown": strategies.to_markdown(),
        "parameters": carried(form["starting_positions"], sql=True),
        "configuration": carried(form["starting_positions"], sql=False),
        "keys": {check.table.rpartition(".")[2]: list(check.keys) for check in checks if check.keys},
    }


def by_way(reset: str, refresh: str) -> Any:
    """A branch: the reset, or the refresh of one kind or the other."""

    # All that is before it has to have succeeded: `advise` alone, which has in every run, is no leave to go on.
    @task.branch(task_id=f"which_{reset}")
    def which(way: str) -> str:
        return reset if way == Way.RESET.value else refresh

    return which(advice["way"])


@task.branch(trigger_rule=ONE_IS_ENOUGH)
def what_next(params: dict[str, Any] | None = None) -> str | None:
    """Stop here when only a plan was asked for."""
    form = params or {}
    if form["mode"] == "plan":
        return None
    return "reproduced" if form["test_pipeline"] else "approve"


@task
def reproduced(params: dict[str, Any] | None = None) -> str:
    """See that the test pipeline fails as production does; a test of something else would prove nothing."""
    from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook

    form = params or {}
    hook = DatabricksPipelinesHook(form["databricks_conn_id"], caller="lakeflow_recover")
    return same_failure(hook, form["pipeline"], form["test_pipeline"])


with DAG(
    dag_id="lakeflow_recover",
    schedule=None,
    max_active_runs=1,
    tags=["lakeflow"],
    doc_md=__doc__,
    params={
        "mode": Param("plan", enum=["plan", "apply"], title="Mode", description="plan changes nothing"),
        "databricks_conn_id": Param("databricks_default", type="string", minLength=1, title="Connection"),
        "pipeline": Param("", type="string", minLength=1, title="Pipeline", description="its id"),
        "test_pipeline": Param(
            None, type=OPTIONAL, title="Test pipeline", description="its id; empty: straight to the approval"
        ),
        "strategy": Param(ADVISE, enum=[ADVISE, *(way.value for way in Way)], title="Way"),
        "facts": Param(
            {},
            type="object",
            title="What is known",
            description="for the advice: source, source_holds_history, source_holds_unread, sink_idempotent, stateful, …",
        ),
        "flows": Param([], type="array", title="Flows to reset", description="as the event log names them, one a line"),
        "starting_positions": Param(
            {},
            type="object",
            title="Starting positions",
            description='flow -> {"options": {"modifiedAfter": …}, "carried_by": {"modifiedAfter": key}, "language": "python"} '
            'or "deployed": true',
        ),
        "tables": Param([], type="array", title="Tables to refresh", description="bare names, one a line"),
        "guard_report": Param({}, type="object", title="Report of a source guard", description="for a full refresh"),
        "backfill": Param(None, enum=[None, "merge", "insert", "append_once"], title="Backfill from the copy"),
        "warehouse_id": Param(None, type=OPTIONAL, title="SQL warehouse", description="for copies and counts"),
        "checks": Param(
            {},
            type="object",
            title="Counts in production",
            description='full name of a table -> {"keys": […], "expected": "SELECT <keys> FROM <source>"}',
        ),
        "test_checks": Param({}, type="object", title="Counts in the test pipeline", description="the same"),
        "on_active_update": Param("stop", enum=["stop", "wait", "fail"], title="When an update is active"),
        "wait_for": Param(
            "COMPLETED", enum=["COMPLETED", "RUNNING"], title="Wait for", description="RUNNING if continuous"
        ),
        "accept": Param(
            None, enum=[None, *(v.value for v in Verdict if v is not Verdict.SAFE)], title="Verdict that you accept"
        ),
    },
) as dag:
    advice = advise()
    HOW = {
        "databricks_conn_id": "{{ params.databricks_conn_id }}",
        "on_active_update": "{{ params.on_active_update }}",
        "wait_for": "{{ params.wait_for }}",
        "accept": "{{ params.accept }}",
    }
    # [START howto_lakeflow_reset]
    RESET = {
        "flows": "{{ params.flows | join(',') }}",
        "starting_positions": "{{ params.starting_positions | tojson }}",
        "parameters": advice["parameters"],
        "configuration": advice["configuration"],
    }
    plan_reset = ResetCheckpointOperator(task_id="plan_reset", pipeline_id="{{ params.pipeline }}", **RESET, **HOW)
    # [END howto_lakeflow_reset]
    # [START howto_lakeflow_refresh]
    REFRESH = {
        "full_refresh_selection": "{{ params.tables | join(',') }}",
        "guard_report": "{{ params.guard_report | tojson if params.guard_report }}",
        "backup": "{{ 'deep_clone' if ti.xcom_pull(task_ids='advise')['way'] == 'full_refresh_with_backup' }}",
        "backfill": "{{ params.backfill if ti.xcom_pull(task_ids='advise')['way'] == 'full_refresh_with_backup' }}",
        "keys": advice["keys"],
        "warehouse_id": "{{ params.warehouse_id }}",
    }
    plan_refresh = PipelineRefreshOperator(
        task_id="plan_refresh", pipeline_id="{{ params.pipeline }}", **REFRESH, **HOW
    )
    # [END howto_lakeflow_refresh]
    next_step = what_next()

    # On the test pipeline first. A retry of any of these finds the update that it has started, and goes on.
    ON_TEST = {"mode": "apply", "pipeline_id": "{{ params.test_pipeline }}", "retries": 2}
    COUNT = {"warehouse_id": "{{ params.warehouse_id }}", "databricks_conn_id": "{{ params.databricks_conn_id }}"}
    is_reproduced = reproduced()
    test_before = TableCheckOperator(task_id="test_before", tables="{{ params.test_checks | tojson }}", **COUNT)
    which_on_test = by_way("test_reset", "test_refresh")
    test_reset = ResetCheckpointOperator(task_id="test_reset", **ON_TEST, **RESET, **HOW)
    test_refresh = PipelineRefreshOperator(task_id="test_refresh", **ON_TEST, **REFRESH, **HOW)
    # [START howto_lakeflow_check]
    test_after = TableCheckOperator(
        task_id="test_after",
        tables="{{ params.test_checks | tojson }}",
        before=test_before.output,
        fail_when_worse=True,  # where the test has lost or doubled rows, nobody is asked
        trigger_rule=ONE_IS_ENOUGH,
        **COUNT,
    )
    # [END howto_lakeflow_check]

    approve = ApprovalOperator(
        task_id="approve",
        subject="Recover pipeline {{ params.pipeline }} by {{ ti.xcom_pull(task_ids='advise')['way'] }}?",
        body=(
            f"{{{{ {PLAN}['markdown'] }}}}\n\n"
            "### On the test pipeline\n\n"
            "{{ (ti.xcom_pull(task_ids='test_after') or {}).get('markdown') or 'It was not tried.' }}\n\n"
            "### The ways\n\n{{ ti.xcom_pull(task_ids='advise')['markdown'] }}"
        ),
        defaults="Reject",
        response_timeout=timedelta(hours=4),
        trigger_rule=ONE_IS_ENOUGH,
    )

    # Then production, as it was planned and approved: another plan by now is refused.
    ON_PRODUCTION = {
        "mode": "apply",
        "pipeline_id": "{{ params.pipeline }}",
        "fingerprint": f"{{{{ {PLAN}['plan']['fingerprint'] }}}}",
        "retries": 2,
    }
    before = TableCheckOperator(task_id="before", tables="{{ params.checks | tojson }}", **COUNT)
    which_on_production = by_way("reset", "refresh")
    reset = ResetCheckpointOperator(task_id="reset", **ON_PRODUCTION, **RESET, **HOW)
    refresh = PipelineRefreshOperator(task_id="refresh", **ON_PRODUCTION, **REFRESH, **HOW)
    # [START howto_lakeflow_put_back]
    # Where the worker of the reset was killed for good: what it has merged into the configuration is put back all the same.
    put_back = PipelineConfigurationPutBackOperator(
        task_id="put_back",
        pipeline_id="{{ params.pipeline }}",
        databricks_conn_id="{{ params.databricks_conn_id }}",
        trigger_rule="one_failed",
        retries=5,
    )
    # [END howto_lakeflow_put_back]
    after = TableCheckOperator(
        task_id="after",
        tables="{{ params.checks | tojson }}",
        before=before.output,
        fail_when_worse=True,
        trigger_rule=ONE_IS_ENOUGH,
        **COUNT,
    )

    by_way("plan_reset", "plan_refresh") >> [plan_reset, plan_refresh] >> next_step >> [is_reproduced, approve]
    is_reproduced >> test_before >> which_on_test >> [test_reset, test_refresh] >> test_after >> approve
    approve >> before >> which_on_production >> [reset, refresh] >> after
    reset >> put_back
