"""A flow of a Lakeflow pipeline fails on its checkpoint: the way back, tried on a test pipeline first.

Fill in the form. The DAG finds where each failed flow has to begin, and shows the advised way and its plan. The test pipeline,
deployed from the same code, goes that way first, and its tables are counted. Then approve or reject; without an answer the plan
is rejected. Production goes the same way and is counted too. Until the approval nothing of production is touched, and a plan
(the default) sends only reads.

The three ways are the reset of the failed flow's checkpoint (its table keeps its rows), the full refresh, and the full
refresh with a copy of the table before it and a backfill from the copy. `docs/howto/lakeflow-choose.md` distinguishes them.

The fixed code has to be deployed to both pipelines before. Positions are found from the event log, histories, files and Kafka,
on the test pipeline too, and again after the approval, once no update is active: the reset is refused if the flow has read on
since. `about` names the keys that the code reads them from (`carried_by`): they are merged into the pipeline's configuration for
the update and put back afterwards; for a flow with `"language": "sql"` they are parameters of the update, unless `carried_in`
says `configuration`. Parameters do not reach Python code. With `starting_positions` the form gives the positions, and nothing is
found.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from airflow_ckpt_provider.advisor.reproduction import same_failure
from airflow_ckpt_provider.lakeflow.positions import SQL, positions_of
from airflow_ckpt_provider.lakeflow.strategy import StrategyFacts, Way, facts_of_positions, recovery_strategy
from airflow_ckpt_provider.lakeflow.table_check import table_checks
from airflow_ckpt_provider.operators.pipeline_configuration import PipelineConfigurationPutBackOperator
from airflow_ckpt_provider.operators.pipeline_positions import PipelinePositionsOperator
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.pipeline_stop import PipelineStopOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from airflow_ckpt_provider.operators.table_check import TableCheckOperator
from airflow_ckpt_provider.verdict import Verdict

ADVISE = "advise me"
OPTIONAL = ["null", "string"]
ONE_IS_ENOUGH = "none_failed_min_one_success"
WAY = "ti.xcom_pull(task_ids='advise')['way']"
#: By the way of now: a task that is skipped keeps what it left before the run was cleared.
PLAN = f"ti.xcom_pull(task_ids='plan_reset' if {WAY} == '{Way.RESET.value}' else 'plan_refresh')"


def carried(starting_positions: Any, *, sql: bool) -> dict[str, str]:
    """Keys and values of the form's positions that reach SQL as parameters, or any code as configuration."""
    return {
        position.carried_by[option]: value
        for position in positions_of(starting_positions)
        for option, value in position.options.items()
        if option in position.carried_by and (position.language == SQL) == sql
    }


def begins(task_id: str) -> dict[str, str]:
    """Arguments of a reset: what a task has found, or else what the form says."""
    found = f"(ti.xcom_pull(task_ids='{task_id}') or ti.xcom_pull(task_ids='advise')['given'])"
    names = ("flows", "starting_positions", "configuration", "parameters")
    return {name: f"{{{{ {found}['{name}'] | tojson }}}}" for name in names}


@task.branch
def positions_given(params: dict[str, Any] | None = None) -> str:
    """Find positions, unless the form gives them or asks for another way."""
    form = params or {}
    return "find" if form["strategy"] in (ADVISE, Way.RESET.value) and not form["starting_positions"] else "advise"


@task(multiple_outputs=True, trigger_rule=ONE_IS_ENOUGH)
def advise(found: dict[str, Any] | None, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """Rank the ways by what is known; take the one that was asked for, or the best."""
    form = params or {}
    positions = [position for each in (found or {}).get("steps", ()) for position in each["positions"]]
    known = {"position_known": True} if form["starting_positions"] else facts_of_positions(positions)
    strategies = recovery_strategy(StrategyFacts.from_json({**known, **form["facts"]}))
    checks = table_checks({**form["checks"], **form["test_checks"]})
    return {
        "way": strategies.best.way.value if form["strategy"] == ADVISE else form["strategy"],
        "markdown": strategies.to_markdown(),
        "given": {
            "flows": form["flows"],
            "starting_positions": form["starting_positions"],
            "configuration": carried(form["starting_positions"], sql=False),
            "parameters": carried(form["starting_positions"], sql=True),
        },
        "checks": form["checks"] or (found or {}).get("checks", {}),
        "keys": {check.table.rpartition(".")[2]: list(check.keys) for check in checks if check.keys},
    }


def by_way(reset: str, refresh: str, find: str | None = None) -> Any:
    """A branch: the reset, after its positions are found, or the refresh of one kind or the other."""

    # All that is before it has to have succeeded: `advise` alone, which has in every run, is no leave to continue.
    @task.branch(task_id=f"which_{reset}")
    def which(way: str, given: dict[str, Any]) -> str:
        if way != Way.RESET.value:
            return refresh
        return reset if find is None or given["starting_positions"] else find

    return which(advice["way"], advice["given"])


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
        "mode": Param("plan", type="string", enum=["plan", "apply"], title="Mode", description="plan changes nothing"),
        "databricks_conn_id": Param("databricks_default", type="string", minLength=1, title="Connection"),
        "pipeline": Param("", type="string", minLength=1, title="Pipeline", description="its id"),
        "test_pipeline": Param(
            None, type=OPTIONAL, title="Test pipeline", description="its id; empty: straight to the approval"
        ),
        "strategy": Param(ADVISE, type="string", enum=[ADVISE, *(way.value for way in Way)], title="Way"),
        "facts": Param(
            {},
            type="object",
            title="What is known",
            description="for the advice: source, source_holds_history, source_holds_unread, sink_idempotent, stateful, …",
        ),
        "flows": Param(
            [],
            type="array",
            title="Flows to reset",
            description="as the event log names them, one a line; empty: that failed",
        ),
        "about": Param(
            {},
            type="object",
            title="What you know of each flow",
            description='flow -> {"sources": …, "carried_by": {option: key}, "language": "python", "keys": […], …}',
        ),
        "margin": Param(
            None,
            type=["null", "number"],
            minimum=0,
            title="Margin",
            description="seconds, for positions found by times",
        ),
        "kafka_config_id": Param(
            None, type=OPTIONAL, title="Kafka", description="connection of type kafka, for offsets"
        ),
        "test_flows": Param([], type="array", title="Flows of the test pipeline", description="the same"),
        "test_about": Param({}, type="object", title="What you know of them", description="empty: the same"),
        "starting_positions": Param(
            {},
            type="object",
            title="Starting positions",
            description="empty: found; "
            'flow -> {"options": {"modifiedAfter": …}, "carried_by": {"modifiedAfter": key}, "language": "python", '
            '"all_sources": true} or "deployed": true',
        ),
        "tables": Param([], type="array", title="Tables to refresh", description="bare names, one a line"),
        "guard_report": Param({}, type="object", title="Report of a source guard", description="for a full refresh"),
        "backfill": Param(
            None, type=OPTIONAL, enum=[None, "merge", "insert", "append_once"], title="Backfill from the copy"
        ),
        "warehouse_id": Param(None, type=OPTIONAL, title="SQL warehouse", description="for copies and counts"),
        "checks": Param(
            {},
            type="object",
            title="Counts in production",
            description='full name of a table -> {"keys": […], "expected": "SELECT <keys> FROM <source>"}; empty: as found',
        ),
        "test_checks": Param({}, type="object", title="Counts in the test pipeline", description="the same"),
        "on_active_update": Param(
            "stop", type="string", enum=["stop", "wait", "fail"], title="When an update is active"
        ),
        "wait_for": Param(
            "COMPLETED",
            type="string",
            enum=["COMPLETED", "RUNNING"],
            title="Wait for",
            description="RUNNING if continuous",
        ),
        "accept": Param(
            None,
            type=OPTIONAL,
            enum=[None, *(v.value for v in Verdict if v is not Verdict.SAFE)],
            title="Verdict that you accept",
        ),
    },
) as dag:
    # [START howto_lakeflow_find]
    FIND = {
        "databricks_conn_id": "{{ params.databricks_conn_id }}",
        "warehouse_id": "{{ params.warehouse_id }}",
        "kafka_config_id": "{{ params.kafka_config_id }}",
        "margin": "{{ params.margin }}",
    }
    OF_PRODUCTION = {
        "pipeline_id": "{{ params.pipeline }}",
        "flows": "{{ params.flows | tojson }}",
        "about": "{{ params.about | tojson }}",
    }
    find = PipelinePositionsOperator(task_id="find", **OF_PRODUCTION, **FIND)
    # [END howto_lakeflow_find]
    advice = advise(find.output)
    positions_given() >> [find, advice]
    HOW = {
        "databricks_conn_id": "{{ params.databricks_conn_id }}",
        "on_active_update": "{{ params.on_active_update }}",
        "wait_for": "{{ params.wait_for }}",
        "accept": "{{ params.accept }}",
    }
    # [START howto_lakeflow_reset]
    RESET = {"guard_report": "{{ params.guard_report | tojson if params.guard_report }}", **HOW}
    plan_reset = ResetCheckpointOperator(
        task_id="plan_reset", pipeline_id="{{ params.pipeline }}", **begins("find"), **RESET
    )
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

    # On the test pipeline first. A retry of any of these finds the update that it has started, and continues.
    ON_TEST = {"mode": "apply", "pipeline_id": "{{ params.test_pipeline }}", "retries": 2}
    COUNT = {"warehouse_id": "{{ params.warehouse_id }}", "databricks_conn_id": "{{ params.databricks_conn_id }}"}
    is_reproduced = reproduced()
    test_before = TableCheckOperator(task_id="test_before", tables="{{ params.test_checks | tojson }}", **COUNT)
    which_on_test = by_way("test_reset", "test_refresh", "test_room")
    # What an update writes after the positions are found is written again by the reset.
    ROOM = {name: HOW[name] for name in ("databricks_conn_id", "on_active_update")}
    test_room = PipelineStopOperator(task_id="test_room", pipeline_id="{{ params.test_pipeline }}", retries=2, **ROOM)
    test_find = PipelinePositionsOperator(
        task_id="test_find",
        pipeline_id="{{ params.test_pipeline }}",
        flows="{{ params.test_flows | tojson }}",
        about="{{ (params.test_about or params.about) | tojson }}",
        **FIND,
    )
    test_reset = ResetCheckpointOperator(
        task_id="test_reset", trigger_rule=ONE_IS_ENOUGH, **ON_TEST, **begins("test_find"), **RESET
    )
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
            "{{ (ti.xcom_pull(task_ids='find') or {}).get('flows_markdown') or '' }}\n\n"
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
    CHECKS = "{{ ti.xcom_pull(task_ids='advise')['checks'] | tojson }}"
    before = TableCheckOperator(task_id="before", tables=CHECKS, **COUNT)
    which_on_production = by_way("reset", "refresh", "room")
    room = PipelineStopOperator(task_id="room", pipeline_id="{{ params.pipeline }}", retries=2, **ROOM)
    # A flow that has read on since has another position, so another plan than the one that was approved.
    find_again = PipelinePositionsOperator(task_id="find_again", **OF_PRODUCTION, **FIND)
    reset = ResetCheckpointOperator(
        task_id="reset", trigger_rule=ONE_IS_ENOUGH, **ON_PRODUCTION, **begins("find_again"), **RESET
    )
    refresh = PipelineRefreshOperator(task_id="refresh", **ON_PRODUCTION, **REFRESH, **HOW)
    # [START howto_lakeflow_put_back]
    # Where the worker of the reset was lost: what it has merged into the configuration is put back all the same.
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
        tables=CHECKS,
        before=before.output,
        fail_when_worse=True,
        trigger_rule=ONE_IS_ENOUGH,
        **COUNT,
    )

    by_way("plan_reset", "plan_refresh") >> [plan_reset, plan_refresh] >> next_step >> [is_reproduced, approve]
    is_reproduced >> test_before >> which_on_test >> [test_room, test_reset, test_refresh]
    test_room >> test_find >> test_reset
    [test_reset, test_refresh] >> test_after >> approve
    approve >> before >> which_on_production >> [room, reset, refresh]
    room >> find_again >> reset
    [reset, refresh] >> after
    reset >> put_back
