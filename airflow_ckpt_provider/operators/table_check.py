"""Count what tables of a Databricks workspace have, before and after a recovery."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, conf

from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.table_check import counts_markdown, table_checks
from airflow_ckpt_provider.lakeflow.table_copies import number
from airflow_ckpt_provider.operators.databricks_workspace import open_workspace
from airflow_ckpt_provider.operators.fields import flag, mapping, required, seconds
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.rendering import TextOperator
from airflow_ckpt_provider.operators.task_memory import TaskMemory
from airflow_ckpt_provider.operators.warehouse import Warehouse, is_deferral_timeout, wait_for_statement
from airflow_ckpt_provider.verdict import Verdict, worst

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

#: Seconds that the trigger gets beyond its own deadline, before Airflow ends it.
_GRACE = 60.0


class TableCheckOperator(TextOperator):
    """Count rows, keys that a table has twice, and rows of its source that it lacks; compare with an earlier count.

    Reads only. Before a recovery it gives the counts to compare with (``before``); after it, it shows whether rows were lost
    or doubled. The result: ``tables`` (table -> counts), ``verdict``, ``reasons``, ``markdown``.

    .. code-block:: python

        TableCheckOperator(
            task_id="count",
            tables={"lake.sales.orders": {"keys": ["id"]}},
            warehouse_id="8f2d",
        )

    .. seealso:: :doc:`/howto/lakeflow-choose`, :doc:`/howto/lakeflow-dags`

    :param tables: table -> ``{"keys": [columns], "expected": "SELECT <the keys> FROM <the source>"}``; both may be left out,
        and then less can be said. Empty: nothing is counted. (templated)
    :param warehouse_id: the SQL warehouse. (templated)
    :param before: the XCom of the same operator before the recovery. (templated)
    :param fail_when_worse: fail the task where rows were lost or doubled. (templated)
    :param databricks_conn_id: Airflow connection of type ``databricks``. (templated)
    :param poll_interval: seconds between two polls at a statement.
    :param timeout: seconds or a timedelta for all statements.
    :param deferrable: wait in the triggerer, without a worker.
    """

    template_fields: Sequence[str] = ("tables", "warehouse_id", "before", "fail_when_worse", "databricks_conn_id")
    ui_color = "#ffe6cc"

    def __init__(
        self,
        *,
        tables: Mapping[str, Mapping[str, Any]] | str,
        warehouse_id: str | None = None,
        before: Mapping[str, Any] | None = None,
        fail_when_worse: bool | str = False,
        databricks_conn_id: str = "databricks_default",
        poll_interval: timedelta | float = 2.0,
        timeout: timedelta | float = 86400.0,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("multiple_outputs", True)
        super().__init__(**kwargs)
        self.tables = tables
        self.warehouse_id = warehouse_id
        self.before = before
        self.fail_when_worse = fail_when_worse
        self.databricks_conn_id = databricks_conn_id
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.deferrable = deferrable

    def execute(self, context: Context) -> dict[str, Any]:
        """Count and judge."""
        with no_retry_when_refused():
            return self._counted(context, None, time.time() + seconds(self.timeout, "timeout").total_seconds())

    def execute_complete(self, context: Context, event: dict[str, Any], carried: dict[str, Any]) -> dict[str, Any]:
        """Continue where the trigger has stopped: the statement that it waited for is read again."""
        with no_retry_when_refused():
            return self._counted(context, carried["memory"], carried["end_time"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As Airflow does it; where the wait has taken too long, say for what."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowException as e:
            if is_deferral_timeout(e):
                raise self._too_late("the statements have") from e
            raise

    def _too_late(self, what: str) -> AirflowException:
        return AirflowException(
            f"not within {seconds(self.timeout, 'timeout').total_seconds():g} s: {what} not ended\n"
            "HINT: see the warehouse's query history, then clear this task, or give a longer timeout"
        )

    def _counted(self, context: Context, carried: dict[str, Any] | None, end_time: float) -> dict[str, Any]:
        checks = table_checks(self.tables)
        queries = {check.table: check.queries for check in checks}
        counts = self._count(context, queries, carried, end_time)
        before = mapping(self.before, "before").get("tables") or {}
        judgements = [j for c in checks for j in c.judge(counts[c.table], before.get(c.table) or {})]
        if not checks:
            judgements = [Judgement(Verdict.UNKNOWN, "no table was named: nothing was counted")]
        result = {
            "tables": counts,
            "verdict": worst(judgement.verdict for judgement in judgements).value,
            "reasons": [judgement.reason for judgement in judgements],
            "markdown": counts_markdown(checks, counts) + "".join(f"\n* {j.reason}" for j in judgements),
        }
        self.log.info("\n%s", result["markdown"])
        if result["verdict"] in ("WILL_LOSE", "WILL_DUPLICATE") and flag(
            self.fail_when_worse, "fail_when_worse", empty=True
        ):
            if "ti" in context:
                # A task that fails has no result of its own accord, and the next one shows it.
                context["ti"].xcom_push(key="return_value", value=result)
            raise AirflowFailException(
                f"{'; '.join(map(str, result['reasons']))}\nHINT: the copies and versions of the tables are still there: "
                "RESTORE TABLE … TO VERSION AS OF, or bring back what lacks"
            )
        return result

    def _count(
        self,
        context: Context,
        queries: Mapping[str, Mapping[str, str]],
        carried: dict[str, Any] | None,
        end_time: float,
    ) -> dict[str, dict[str, int]]:
        if not queries:
            return {}
        conn_id = required(self.databricks_conn_id, "databricks_conn_id")
        # Each attempt counts again.
        key = f"table_check_{getattr(context.get('ti'), 'try_number', 0)}"
        memory = TaskMemory(context, key, retries=int(self.retries or 0), carried=carried)

        def hand_over(trigger: BaseTrigger) -> NoReturn:
            self.defer(
                trigger=trigger,
                method_name="execute_complete",
                kwargs={"carried": {"memory": memory.data, "end_time": end_time}},
                timeout=timedelta(seconds=max(0.0, end_time - time.time()) + _GRACE),
            )

        def wait(statement_id: str, *, here: bool = False) -> None:
            in_time = wait_for_statement(
                statement_id,
                conn_id=conn_id,
                caller=type(self).__name__,
                end_time=end_time,
                poll_interval=seconds(self.poll_interval, "poll_interval").total_seconds(),
                hand_over=hand_over if self.deferrable and not here else None,
            )
            if not in_time:
                raise self._too_late(f"statement {statement_id} has")

        workspace = open_workspace(conn_id, caller=type(self).__name__)
        warehouse = Warehouse(workspace, required(self.warehouse_id, "warehouse_id"), memory, wait)
        return {
            table: {name: number(warehouse.run(f"{name} {table}", query)) for name, query in each.items()}
            for table, each in queries.items()
        }
